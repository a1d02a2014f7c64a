//! The process that listens on a port. A server that answers there may be that of another test, or of another
//! program: the port was free when it was looked for, and taken when the server of this test started.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Whether this very process listens on the TCP port, in whatever network it is; as the kernel tells, so that
/// it need not be asked, and a server that never answers is not waited for. Its word is not needed where the
/// kernel does not tell.
pub fn listens(pid: u32, port: u16) -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let process = Path::new("/proc").join(pid.to_string());
    // It may have ended by now.
    let Ok(files) = std::fs::read_dir(process.join("fd")) else { return false };
    let links = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    let number =
        |link: PathBuf| Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned());
    let sockets: HashSet<String> = links.filter_map(number).collect();
    // A process without a socket does not listen. The kernel takes milliseconds to write its table, and a server
    // that takes a second to start is looked at fifty times.
    !sockets.is_empty()
        && ["net/tcp", "net/tcp6"].iter().any(|table| {
            let Ok(table) = File::open(process.join(table)) else { return false };
            let lines = BufReader::new(table).lines().map_while(Result::ok).skip(1);
            // Sockets that listen come first; the rest of the table is not read.
            lines
                .map_while(|line| listening_socket(&line))
                .any(|(at, socket)| at == port && sockets.contains(&socket))
        })
}

/// The port and the number of the socket that a line of the kernel's table is about, if that socket listens.
fn listening_socket(line: &str) -> Option<(u16, String)> {
    const LISTEN: &str = "0A";
    let fields: Vec<_> = line.split_whitespace().collect();
    if fields.get(3) != Some(&LISTEN) {
        return None;
    }
    let (_, port) = fields.get(1)?.rsplit_once(':')?;
    Some((u16::from_str_radix(port, 16).ok()?, (*fields.get(9)?).to_owned()))
}
