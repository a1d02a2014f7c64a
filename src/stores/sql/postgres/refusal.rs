//! The meaning of the server's errors.

use std::error::Error as _;

use tokio_postgres::error::SqlState;

use crate::error::{Error, ErrorKind};
use crate::seam::Failure;

/// A request that failed after it was sent. An error of the server's means that the statement was rolled back.
pub(super) fn failed(error: tokio_postgres::Error) -> Failure {
    if error.as_db_error().is_some() {
        Failure::Refused(refused(error))
    } else {
        Failure::Unknown(
            Error::new(ErrorKind::Unreachable, "request", "the connection broke").with_source(error),
        )
    }
}

/// The server takes no writes, also if what was asked for is none to it.
pub(super) fn read_only_now() -> Error {
    Error::new(ErrorKind::ReadOnly, "request", "the server is read-only, or a standby")
}

/// Why there is no connection.
pub(super) fn unreachable(error: tokio_postgres::Error) -> Error {
    if error.as_db_error().is_some() {
        return refused(error);
    }
    #[cfg(feature = "tls")]
    if let Some((kind, words)) =
        error.source().and_then(|cause| cause.downcast_ref()).and_then(crate::tls::refusal)
    {
        return Error::new(kind, "connect", words).with_source(error);
    }
    let text = error.source().map(ToString::to_string).unwrap_or_default();
    let (kind, words) = if text.contains("password missing") {
        (ErrorKind::Authentication, "the server wants a password")
    } else if text.contains("TLS") {
        (
            ErrorKind::Unsupported,
            "the server does not speak TLS; to do without it, say sslmode=disable in the URL",
        )
    } else {
        (ErrorKind::Unreachable, "no connection to the server")
    };
    Error::new(kind, "connect", words).with_source(error)
}

fn refused(error: tokio_postgres::Error) -> Error {
    let (kind, words) = match error.code().map_or((ErrorKind::Refused, "the server refused"), classify) {
        // One statement alone: nobody else's work was undone, and it can be asked for again.
        (ErrorKind::Deadlock, words) => (ErrorKind::Busy, words),
        other => other,
    };
    let said = error.as_db_error().map(|said| format!(" (the server said: {})", said.message()));
    Error::new(kind, "request", format!("{words}{}", said.unwrap_or_default())).with_source(error)
}

pub(super) fn classify(code: &SqlState) -> (ErrorKind, &'static str) {
    match *code {
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (ErrorKind::Authentication, "the server rejected the user name or the password")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => (ErrorKind::NoPermission, "permission denied for this user"),
        SqlState::READ_ONLY_SQL_TRANSACTION => (ErrorKind::ReadOnly, "the server is read-only, or a standby"),
        SqlState::T_R_SERIALIZATION_FAILURE => {
            (ErrorKind::Busy, "another transaction was in the way; it can be tried again")
        }
        SqlState::T_R_DEADLOCK_DETECTED => {
            (ErrorKind::Deadlock, "the server broke a deadlock by ending this statement")
        }
        SqlState::TOO_MANY_CONNECTIONS | SqlState::CONFIGURATION_LIMIT_EXCEEDED => {
            (ErrorKind::Busy, "the server has reached its limit of connections")
        }
        SqlState::CANNOT_CONNECT_NOW | SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => {
            (ErrorKind::Unreachable, "the server is starting, stopping, or ended the connection")
        }
        SqlState::LOCK_NOT_AVAILABLE => (ErrorKind::TimedOut, "another transaction has locked the row"),
        SqlState::QUERY_CANCELED => {
            (ErrorKind::TimedOut, "the server ended the statement for taking too long")
        }
        SqlState::DISK_FULL => (ErrorKind::OutOfMemory, "the server's disk is full"),
        SqlState::OUT_OF_MEMORY => (ErrorKind::OutOfMemory, "the server is out of memory"),
        SqlState::UNDEFINED_TABLE => {
            (ErrorKind::Unsupported, "the table is not there: see create_schema() and docs/stores.md")
        }
        SqlState::INVALID_CATALOG_NAME => (ErrorKind::InvalidInput, "there is no such database"),
        _ => (ErrorKind::Refused, "the server refused"),
    }
}
