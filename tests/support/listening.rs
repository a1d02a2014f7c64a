//! Which process listens on a port: another test's server, or another program, may have taken a port that
//! was free before.
//! program: the port was free when it was looked for, and taken when the server of this test started.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Whether this process listens on the TCP port, in any network namespace. The kernel knows, so a silent
/// server delays nobody; without such a kernel always true.
pub fn listens(pid: u32, port: u16) -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let process = Path::new("/proc").join(pid.to_string());
    // The process may have ended.
    let Ok(files) = std::fs::read_dir(process.join("fd")) else { return false };
    let links = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    let number =
        |link: PathBuf| Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned());
    let sockets: HashSet<String> = links.filter_map(number).collect();
    // A process without a socket does not listen. Reading the kernel's table takes milliseconds, and a
    // server that starts within a second is checked fifty times.
    !sockets.is_empty()
        && ["net/tcp", "net/tcp6"].iter().any(|table| {
            let Ok(table) = File::open(process.join(table)) else { return false };
            let lines = BufReader::new(table).lines().map_while(Result::ok).skip(1);
            // Listening sockets come first; the rest of the table is not read.
            lines
                .map_while(|line| listening_socket(&line))
                .any(|(at, socket)| at == port && sockets.contains(&socket))
        })
}

/// Port and socket number of a line in the kernel's table, for a listening socket.
fn listening_socket(line: &str) -> Option<(u16, String)> {
    const LISTEN: &str = "0A";
    let fields: Vec<_> = line.split_whitespace().collect();
    if fields.get(3) != Some(&LISTEN) {
        return None;
    }
    let (_, port) = fields.get(1)?.rsplit_once(':')?;
    Some((u16::from_str_radix(port, 16).ok()?, (*fields.get(9)?).to_owned()))
}
