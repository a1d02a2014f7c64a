//! The address of one server, and the login there.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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

/// The role that the server must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Takes writes.
    Primary,
    /// A cluster's member that takes writes.
    ClusterPrimary,
    /// A cluster's member of any role, to be asked who the others are.
    ClusterMember,
}

#[derive(Clone)]
pub(crate) enum ServerPlace {
    Tcp {
        host: Host,
        port: u16,
    },
    #[cfg(feature = "tls")]
    Tls {
        host: Host,
        port: u16,
        config: crate::tls::Config,
    },
    Unix(PathBuf),
}

impl ServerPlace {
    pub(crate) fn host(&self) -> Option<&Host> {
        match self {
            ServerPlace::Tcp { host, .. } => Some(host),
            #[cfg(feature = "tls")]
            ServerPlace::Tls { host, .. } => Some(host),
            ServerPlace::Unix(_) => None,
        }
    }
}

impl ServerPlace {
    /// For a provider of credentials; errors show [`Display`](fmt::Display), which hides what may be secret.
    pub(crate) fn address(&self) -> String {
        match self {
            ServerPlace::Tcp { host, port } => format!("{}:{port}", host.name()),
            #[cfg(feature = "tls")]
            ServerPlace::Tls { host, port, .. } => format!("{}:{port}", host.name()),
            ServerPlace::Unix(path) => path.display().to_string(),
        }
    }
}

impl fmt::Display for ServerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerPlace::Tcp { host, port } => write!(f, "{host}:{port}"),
            #[cfg(feature = "tls")]
            ServerPlace::Tls { host, port, .. } => write!(f, "{host}:{port}"),
            ServerPlace::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
