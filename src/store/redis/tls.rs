//! TLS by rustls: certificates are always verified.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::error::{Error, Result};
use crate::sync::Mutex;

/// Trusts the authorities in the PEM file `ca`, or the system's.
pub(super) fn config(ca: Option<&Path>) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(ca) => {
            let unusable = |what: &str| {
                Error::invalid(
                    "connect",
                    format!("the authorities in {} cannot be used: {what}", ca.display()),
                )
            };
            let certificates =
                CertificateDer::pem_file_iter(ca).map_err(|error| unusable(&error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| unusable(&error.to_string()))?;
                roots.add(certificate).map_err(|error| unusable(&error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(unusable("there is no certificate in it"));
            }
        }
        None => {
            // A certificate of the system's that cannot be read is one that nobody is trusted by.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(Error::invalid(
                    "connect",
                    "the system has no authorities to trust; name a file of them by tls_ca",
                ));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("connect", "TLS cannot be set up").with_source(error))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// A TLS connection that one thread reads while others write.
pub(super) struct TlsStream {
    socket: TcpStream,
    session: Mutex<Session>,
}

struct Session {
    tls: ClientConnection,
    /// Bytes from the socket that the session has not taken yet.
    raw: Box<[u8]>,
    start: usize,
    end: usize,
}

impl TlsStream {
    /// Shakes hands over `wire`, which reads and writes `socket` within the time allowed.
    pub(super) fn connect(
        host: &str,
        config: &Arc<ClientConfig>,
        socket: TcpStream,
        mut wire: impl Read + Write,
    ) -> io::Result<TlsStream> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut wire)?;
        }
        let raw = vec![0; 16 * 1024].into_boxed_slice();
        Ok(TlsStream { socket, session: Mutex::new(Session { tls, raw, start: 0, end: 0 }) })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether there are bytes that the socket no longer shows.
    pub(super) fn has_plaintext(&self) -> bool {
        let session = self.session.lock();
        session.start < session.end || !session.tls.wants_read()
    }

    /// Reads plain text. Waits for the socket without holding the session, so that others can write meanwhile.
    /// Only one thread may read at a time.
    pub(super) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut fresh = [0; 8 * 1024];
        loop {
            {
                let mut session = self.session.lock();
                if let Some(read) = session.plain(buf)? {
                    return Ok(read);
                }
                session.flush(&self.socket)?;
            }
            let read = (&self.socket).read(&mut fresh)?;
            let mut session = self.session.lock();
            match (session.raw.get_mut(..read), fresh.get(..read)) {
                (Some(raw), Some(fresh)) if read > 0 => raw.copy_from_slice(fresh),
                _ => return Ok(0),
            }
            (session.start, session.end) = (0, read);
        }
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = self.session.lock();
        let taken = session.tls.writer().write(bytes)?;
        session.flush(&self.socket)?;
        Ok(taken)
    }
}

impl Session {
    /// Plain text that is there; `None` if the socket has to be read first. All raw bytes are taken by then.
    fn plain(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.tls.reader().read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(Some),
            }
            let Some(mut rest) = self.raw.get(self.start..self.end).filter(|rest| !rest.is_empty()) else {
                return Ok(None);
            };
            let before = rest.len();
            self.tls.read_tls(&mut rest)?;
            self.start += before - rest.len();
            self.tls
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    fn flush(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut socket)?;
        }
        Ok(())
    }
}
