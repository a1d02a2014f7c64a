//! The address of one server, and the login there.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::config::ServerOptions;
use crate::error::Result;
use crate::hosts::{Host, Hosts};

/// The contents of the handshake. Not `Debug`: it holds the password.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) client_name: Option<String>,
    /// How long one write may block.
    pub(crate) write_timeout: Duration,
    pub(crate) role: Role,
    /// Grants wait for append-only files: the server must know WAITAOF.
    pub(crate) is_durable: bool,
    pub(crate) hosts: Arc<Hosts>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Takes writes.
    Primary,
    /// A cluster's member that takes writes.
    ClusterPrimary,
    /// A cluster's member of any role, to be asked who the others are.
    ClusterMember,
}

#[cfg(feature = "tls")]
pub(crate) use crate::tls::Config as TlsConfig;
/// Without the feature nobody has any.
#[cfg(not(feature = "tls"))]
#[derive(Clone)]
pub(crate) enum TlsConfig {}

/// The options' certificates, if TLS is wanted.
pub(crate) fn certificates(options: &ServerOptions, is_tls: bool) -> Result<Option<TlsConfig>> {
    #[cfg(feature = "tls")]
    if is_tls {
        return crate::tls::config(&options.tls).map(Some);
    }
    let _ = (options, is_tls);
    Ok(None)
}

#[derive(Clone)]
pub(crate) enum ServerPlace {
    Tcp { host: Host, port: u16, tls: Option<TlsConfig> },
    Unix(PathBuf),
}

impl ServerPlace {
    /// For a provider of credentials; errors show [`Display`](fmt::Display), which hides what may be secret.
    pub(crate) fn address(&self) -> String {
        match self {
            ServerPlace::Tcp { host, port, .. } => format!("{}:{port}", host.name()),
            ServerPlace::Unix(path) => path.display().to_string(),
        }
    }

    pub(crate) fn secured(&self, tls: Option<&TlsConfig>) -> ServerPlace {
        match self {
            ServerPlace::Tcp { host, port, .. } => {
                ServerPlace::Tcp { host: host.clone(), port: *port, tls: tls.cloned() }
            }
            ServerPlace::Unix(_) => self.clone(),
        }
    }
}

impl fmt::Display for ServerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerPlace::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            ServerPlace::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
