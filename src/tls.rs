//! TLS by rustls. Certificates are verified unless the options explicitly ask for less.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::Error::NoItemsFound;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, ConfigBuilder, RootCertStore,
    WantsVerifier,
};

use crate::config::TlsOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::system::Socket;

pub(crate) type Config = Arc<ClientConfig>;

pub(crate) fn config(options: &TlsOptions) -> Result<Config> {
    let roots = roots(options.ca.as_deref())?;
    identified(begin(&provider())?.with_root_certificates(roots), options)
}

/// As [`config`], for a server of any name. If the options name no authorities, accepts every certificate:
/// anybody can get one from the system's authorities, so without a check of the name it proves nothing.
#[cfg(feature = "postgres")]
pub(crate) fn config_for_any_name(options: &TlsOptions) -> Result<Config> {
    use rustls::client::WebPkiServerVerifier;
    let provider = provider();
    let chain = if let Some(ca) = options.ca.as_deref() {
        let roots = Arc::new(roots(Some(ca))?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        Some(verifier.map_err(|error| Error::invalid("connect", "TLS cannot be set up").with_source(error))?)
    } else {
        None
    };
    let config = begin(&provider)?;
    let lenient = lenient::Lenient { chain, provider };
    identified(config.dangerous().with_custom_certificate_verifier(Arc::new(lenient)), options)
}

/// Makes this crate's crypto provider the process's default, which drivers use, if there is no default yet.
#[cfg(feature = "mysql")]
pub(crate) fn provide() {
    if CryptoProvider::get_default().is_none() {
        let provider = CryptoProvider::clone(&provider());
        drop(provider.install_default()); // fails if another thread has just installed one
    }
}

/// Checks the options for drivers that read the files themselves.
#[cfg(feature = "mysql")]
pub(crate) fn check(options: &TlsOptions) -> Result<()> {
    let roots = options.ca.as_deref().map(|ca| roots(Some(ca))).transpose()?;
    identified(
        begin(&provider())?.with_root_certificates(roots.unwrap_or_else(RootCertStore::empty)),
        options,
    )
    .map(drop)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn begin(provider: &Arc<CryptoProvider>) -> Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(unset)
}

fn identified(config: ConfigBuilder<ClientConfig, WantsClientCert>, options: &TlsOptions) -> Result<Config> {
    let Some((certificate, key)) = &options.identity else {
        return Ok(Arc::new(config.with_no_client_auth()));
    };
    let chain = certificates(certificate, "the client's certificate")?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        NoItemsFound => unusable("the client's key", key, &"there is none in it, or one that is encrypted"),
        error => unusable("the client's key", key, &error),
    })?;
    let config = config.with_client_auth_cert(chain, key).map_err(|error| {
        Error::invalid("connect", format!("the client's certificate and key cannot be used: {error}"))
    })?;
    Ok(Arc::new(config))
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore> {
    const WHAT: &str = "the CA certificates";
    let mut roots = RootCertStore::empty();
    if let Some(ca) = ca {
        for certificate in certificates(ca, WHAT)? {
            roots.add(certificate).map_err(|error| unusable(WHAT, ca, &error))?;
        }
        return Ok(roots);
    }
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::invalid(
            "connect",
            "the system has no CA certificates to trust: name a file of them by tls_ca",
        ));
    }
    Ok(roots)
}

fn certificates(file: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| unusable(what, file, &error))?;
    if certificates.is_empty() {
        return Err(unusable(what, file, &"there is no certificate in it"));
    }
    Ok(certificates)
}

fn unusable(what: &str, file: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::invalid("connect", format!("{what} in {} cannot be used: {why}", file.display()))
}

fn unset(error: rustls::Error) -> Error {
    Error::invalid("connect", "TLS cannot be set up").with_source(error)
}

/// Explains a failed connection if TLS failed: then another attempt would fail too. Otherwise `None`.
pub(crate) fn refusal(error: &io::Error) -> Option<(ErrorKind, String)> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let words = match error {
        rustls::Error::AlertReceived(alert) => refused_by_server(*alert),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "the server's certificate is not one for this host",
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "the server's certificate has expired",
        rustls::Error::InvalidCertificate(_) => {
            "no trusted authority has signed the server's certificate: name its authority by tls_ca"
        }
        rustls::Error::InvalidMessage(_) => "the server does not speak TLS at this port",
        _ => "server and client cannot agree on TLS",
    };
    Some((ErrorKind::Tls, format!("TLS failed: {words} ({error})")))
}

/// The meaning of a server's alert. TLS 1.3 has an alert for a missing certificate, but some servers send
/// another.
fn refused_by_server(alert: AlertDescription) -> &'static str {
    use AlertDescription::{CertificateRequired, HandshakeFailure, InsufficientSecurity, ProtocolVersion};
    match alert {
        CertificateRequired => {
            "the server demands a client certificate, and none was given: give one by tls_identity"
        }
        HandshakeFailure | InsufficientSecurity | ProtocolVersion => {
            "the server and this client have no cipher or version in common, or it demands a client certificate (tls_identity)"
        }
        _ => "the server does not accept the client certificate (tls_identity), or demands one",
    }
}

/// Explains a time-out: a server without TLS takes the handshake for a request, and waits for its end.
fn unanswered(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ (io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
            io::Error::new(kind, "there was no answer to the TLS handshake: is this the port for TLS?")
        }
        _ => error,
    }
}

/// Why the server hung up before it accepted the client, if it said so; else `error`.
///
/// A server checks the client's certificate while the client still writes the rest of the handshake and, in
/// TLS 1.3, its first request. So a write may fail while the server's reason waits to be read.
pub(crate) fn last_words(tls: &mut ClientConnection, mut socket: impl Read, error: io::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    if !matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset) {
        return error;
    }
    // Does not block, since the server has closed the connection.
    while matches!(tls.read_tls(&mut socket), Ok(1..)) {
        if let Err(refused) = tls.process_new_packets() {
            return io::Error::new(io::ErrorKind::InvalidData, refused);
        }
    }
    error
}

pub(crate) type TlsClient = ClientConnection;

pub(crate) fn client(host: &str, config: &Config) -> io::Result<TlsClient> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)
}

#[cfg(feature = "postgres")]
pub(crate) type Stream<'a, S> = rustls::Stream<'a, ClientConnection, S>;

#[cfg(feature = "postgres")]
pub(crate) fn over<'a, S: Read + Write>(session: &'a mut TlsClient, socket: &'a mut S) -> Stream<'a, S> {
    rustls::Stream::new(session, socket)
}

/// A TLS connection that one thread reads while others write.
pub(crate) struct TlsStream {
    socket: Socket,
    session: Mutex<TlsSession>,
}

struct TlsSession {
    tls: ClientConnection,
    /// Bytes read from the socket that `tls` has not taken yet.
    raw: Vec<u8>,
    /// Whether plain text has come, which shows that the server accepted this client.
    is_accepted: bool,
}

impl TlsStream {
    pub(crate) fn connect(
        host: &str,
        config: &Config,
        socket: Socket,
        mut wire: impl Read + Write,
    ) -> io::Result<TlsStream> {
        let mut tls = client(host, config)?;
        while tls.is_handshaking() {
            if let Err(error) = tls.complete_io(&mut wire) {
                return Err(last_words(&mut tls, &socket, unanswered(error)));
            }
        }
        let session = Mutex::new(TlsSession { tls, raw: Vec::new(), is_accepted: false });
        Ok(TlsStream { socket, session })
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether unread bytes have already left the socket, so that a poll of the socket does not report them.
    pub(crate) fn has_plaintext(&self) -> bool {
        let session = self.session.lock();
        !session.raw.is_empty() || !session.tls.wants_read()
    }

    /// Reads plain text. Waits for the socket without holding the session, so that others can write. Only one
    /// thread may read at a time. A partial record yields `Interrupted`, so that the reader checks its
    /// deadline.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut fresh = [0; 8 * 1024];
        {
            let mut session = self.session.lock();
            if let Some(read) = session.plain(buf)? {
                return Ok(read);
            }
            session.flush_now(&self.socket)?;
        }
        let read = (&self.socket).read(&mut fresh)?;
        let mut session = self.session.lock();
        if read == 0 {
            return Ok(0);
        }
        session.raw.extend_from_slice(fresh.get(..read).unwrap_or_default());
        session.plain(buf)?.ok_or_else(|| io::ErrorKind::Interrupted.into())
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = self.session.lock();
        let taken = session.tls.writer().write(bytes)?;
        session.flush(&self.socket)?;
        Ok(taken)
    }

    /// Writes what the socket takes now; the session keeps the rest for the next call.
    pub(crate) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = self.session.lock();
        session.flush(&self.socket)?;
        let taken = session.tls.writer().write(bytes)?;
        session.flush_now(&self.socket)?;
        Ok(taken)
    }
}

impl TlsSession {
    /// Reads available plain text; `None`: all raw bytes are processed, and the socket must be read first.
    fn plain(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.tls.reader().read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(read) => {
                    self.is_accepted |= read > 0;
                    return Ok(Some(read));
                }
                Err(error) => return Err(error),
            }
            if self.raw.is_empty() {
                return Ok(None);
            }
            let taken = self.tls.read_tls(&mut self.raw.as_slice())?;
            self.raw.drain(..taken);
            self.tls
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    fn flush_now(&mut self, socket: &Socket) -> io::Result<()> {
        match self.flush(socket) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(())
            }
            flushed => flushed,
        }
    }

    fn flush(&mut self, mut socket: &Socket) -> io::Result<()> {
        while self.tls.wants_write() {
            if let Err(error) = self.tls.write_tls(&mut socket) {
                // Until plain text comes no other thread reads, so this one may read why the server hung up.
                return Err(if self.is_accepted { error } else { last_words(&mut self.tls, socket, error) });
            }
        }
        Ok(())
    }
}

#[cfg(feature = "postgres")]
mod lenient {
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};

    /// Accepts any server certified by the authorities, whatever its name; without authorities, any server.
    #[derive(Debug)]
    pub(super) struct Lenient {
        pub(super) chain: Option<Arc<WebPkiServerVerifier>>,
        pub(super) provider: Arc<CryptoProvider>,
    }

    impl ServerCertVerifier for Lenient {
        fn verify_server_cert(
            &self,
            certificate: &CertificateDer<'_>,
            between: &[CertificateDer<'_>],
            name: &ServerName<'_>,
            ocsp: &[u8],
            now: UnixTime,
        ) -> std::result::Result<ServerCertVerified, rustls::Error> {
            let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
            match chain.verify_server_cert(certificate, between, name, ocsp, now) {
                // rustls checks the name last, so everything else was valid.
                Err(rustls::Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                )) => Ok(ServerCertVerified::assertion()),
                verified => verified,
            }
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            let known = &self.provider.signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signed, known)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            let known = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signed, known)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    }
}
