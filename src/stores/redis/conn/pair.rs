//! For tests: a connection within the process.

use crate::wire::Wire;

/// The server's end.
#[cfg(unix)]
pub(super) type Peer = std::os::unix::net::UnixStream;
#[cfg(windows)]
pub(super) type Peer = std::net::TcpStream;

#[cfg(unix)]
pub(super) fn pair() -> (Wire, Peer) {
    let (ours, theirs) = Peer::pair().unwrap();
    (Wire::Unix(ours), theirs)
}

#[cfg(windows)]
pub(super) fn pair() -> (Wire, Peer) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (Wire::Tcp(crate::system::socket(ours).unwrap()), theirs)
}
