//! How much TLS a URL of PostgreSQL asks for.

/// libpq's `sslmode`. `allow` is left out: it begins in the clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TlsMode {
    Disable,
    /// TLS if the server has it; any server.
    Prefer,
    /// TLS, any server; if authorities are named, one that these know.
    Require,
    VerifyCa,
    VerifyFull,
}
