//! The address of one server, and how a connection to it logs in.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::hosts::{Host, Hosts};

/// The parts of the first exchange. Holds the password, so it is not `Debug`.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) client_name: Option<String>,
    /// How long one write may block.
    pub(crate) write_timeout: Duration,
    pub(crate) role: Role,
    pub(crate) hosts: Arc<Hosts>,
}

/// The role that the server there must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// One that takes writes.
    Primary,
    /// A cluster's that takes writes.
    ClusterPrimary,
    /// A cluster's, to be asked who the others are.
    ClusterMember,
}

/// The place of one server.
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
