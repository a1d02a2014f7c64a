//! The process that listens on a port. A server that answers there may be that of another test, or of another
//! program: the port was free when it was looked for, and taken when the server of this test started.

use std::collections::HashSet;
use std::path::Path;

/// Whether this very process listens on the TCP port, in whatever network it is; as the kernel tells, so that
/// it need not be asked, and a server that never answers is not waited for. Its word is not needed where the
/// kernel does not tell.
pub fn listens(pid: u32, port: u16) -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let process = Path::new("/proc").join(pid.to_string());
    let listening = ["net/tcp", "net/tcp6"].iter().flat_map(|table| {
        let table = std::fs::read_to_string(process.join(table)).unwrap_or_default();
        table.lines().filter_map(|line| listening_socket(line, port)).collect::<Vec<_>>()
    });
    let listening: HashSet<String> = listening.collect();
    // It may have ended by now.
    let Ok(files) = std::fs::read_dir(process.join("fd")) else { return false };
    files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok()).any(|target| {
        let target = target.to_string_lossy();
        target.strip_prefix("socket:[").is_some_and(|socket| listening.contains(socket.trim_end_matches(']')))
    })
}

/// The number of the socket that a line of the kernel's table is about, if that listens on the port.
fn listening_socket(line: &str, port: u16) -> Option<String> {
    const LISTEN: &str = "0A";
    let fields: Vec<_> = line.split_whitespace().collect();
    let (_, local) = fields.get(1)?.rsplit_once(':')?;
    let is_it = u16::from_str_radix(local, 16) == Ok(port) && fields.get(3) == Some(&LISTEN);
    Some((*fields.get(9)?).to_owned()).filter(|_| is_it)
}
