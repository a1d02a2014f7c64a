//! For tests: a connection within the process.

use crate::stores::redis::conn::connection::RedisStream;

/// The server's end.
#[cfg(unix)]
pub(super) type Peer = std::os::unix::net::UnixStream;
#[cfg(windows)]
pub(super) type Peer = std::net::TcpStream;

#[cfg(unix)]
pub(super) fn pair() -> (RedisStream, Peer) {
    let (ours, theirs) = Peer::pair().unwrap();
    (RedisStream::Unix(ours), theirs)
}

#[cfg(windows)]
pub(super) fn pair() -> (RedisStream, Peer) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (RedisStream::Tcp(crate::system::socket(ours).unwrap()), theirs)
}
