//! Whether a server that does not answer as it should speaks TLS, where the URL says otherwise.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1);

/// The first message of TLS 1.2, with two ciphers that every server knows or refuses by an alert.
fn hello() -> Vec<u8> {
    // A record of a handshake; a ClientHello of 43 bytes. 32 of these need not be random here.
    let head = [0x16, 3, 1, 0, 47, 1, 0, 0, 43, 3, 3];
    let tail = [0, 0, 4, 0xc0, 0x2f, 0xc0, 0x30, 1, 0];
    [&head[..], &[7; 32], &tail].concat()
}

/// Databases agree on TLS after they are connected.
const SCHEMES: [(&str, &str, u16); 5] = [
    ("redis", "rediss", 6379),
    ("redis-sentinel", "rediss-sentinel", 26379),
    ("redis-cluster", "rediss-cluster", 6379),
    ("etcd", "etcds", 2379),
    ("zk", "zks", 2181),
];

pub(crate) fn mismatch(url: &str) -> Option<String> {
    let (scheme, rest) = url.trim().split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let (plain, secured, port) =
        SCHEMES.into_iter().find(|(plain, secured, _)| scheme == *plain || scheme == *secured)?;
    let hosts = rest.split(['/', '?']).next()?;
    let host = hosts.rsplit('@').next()?.split(',').next()?;
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let place = if has_port { host.to_owned() } else { format!("{host}:{port}") };
    match (speaks_tls(&place)?, scheme == secured) {
        (true, false) => {
            Some(format!("{place} speaks TLS, and the URL does not: it has to begin with {secured}://"))
        }
        (false, true) => Some(format!(
            "{place} does not speak TLS, and the URL does: name the port for TLS, or begin the URL with {plain}://"
        )),
        _ => None,
    }
}

fn speaks_tls(place: &str) -> Option<bool> {
    let address = place.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, LIMIT).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream.write_all(&hello()).ok()?;
    let mut first = [0; 2];
    // An alert or a handshake, and the major version. A server that says nothing to it reads no TLS.
    Some(stream.read_exact(&mut first).is_ok() && matches!(first, [0x15 | 0x16, 3]))
}
