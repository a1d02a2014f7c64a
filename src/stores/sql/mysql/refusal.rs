//! The meaning of the server's errors, by their numbers.

use std::error::Error as _;
use std::io::ErrorKind::{TimedOut, WouldBlock};

use mysql::{DriverError, Error as Driver};

use crate::error::{Error, ErrorKind};
use crate::seam::Failure;

pub(super) const NO_SUCH_TABLE: u16 = 1146;
pub(super) const LOCK_WAIT_TIMEOUT: u16 = 1205;

/// A request that failed after it was sent. An error of the server's means that the statement was rolled back.
pub(super) fn failed(error: Driver) -> Failure {
    match error {
        Driver::MySqlError(_) => Failure::Refused(refused(error)),
        _ => Failure::Unknown(refused(error)),
    }
}

/// Whether no more can be asked over the connection.
pub(super) fn ends_the_session(error: &Driver) -> bool {
    match error {
        // Shutdown, killed, idle for too long.
        Driver::MySqlError(error) => matches!(error.code, 1053 | 1927 | 3169 | 4031),
        _ => true,
    }
}

pub(super) fn refused(error: Driver) -> Error {
    #[cfg(feature = "tls")]
    if let Some((kind, words)) = tls_refusal(&error) {
        return Error::new(kind, "request", words).with_source(error);
    }
    let (kind, words) = match &error {
        Driver::MySqlError(error) => match classify(error.code) {
            // One statement alone: nobody else's work was undone, and it can be asked for again.
            (ErrorKind::Deadlock, words) => (ErrorKind::Busy, words),
            other => other,
        },
        error if took_too_long(error) => (ErrorKind::TimedOut, "the server did not answer in time"),
        Driver::DriverError(DriverError::CouldNotConnect(_)) => {
            (ErrorKind::Unreachable, "no connection to the server")
        }
        Driver::DriverError(
            DriverError::UnknownAuthPlugin(_)
            | DriverError::OldMysqlPasswordDisabled
            | DriverError::CleartextPluginDisabled,
        ) => (
            ErrorKind::Unsupported,
            "the server wants an authentication method that this driver does not have",
        ),
        Driver::DriverError(DriverError::TlsNotSupported) => (
            ErrorKind::Unsupported,
            "the server does not speak TLS; to do without it, say ssl-mode=DISABLED in the URL",
        ),
        Driver::IoError(_) | Driver::CodecError(_) => (ErrorKind::Unreachable, "the connection broke"),
        _ => (ErrorKind::Protocol, "the server's answer is not the one expected"),
    };
    let said = said(&error);
    Error::new(kind, "request", format!("{words}{said}")).with_source(error)
}

pub(super) fn took_too_long(error: &Driver) -> bool {
    matches!(error, Driver::DriverError(DriverError::ConnectTimeout | DriverError::Timeout))
        || of_socket(error).is_some_and(|io| matches!(io.kind(), TimedOut | WouldBlock))
}

/// The socket's error, if the error is its.
fn of_socket(error: &Driver) -> Option<&std::io::Error> {
    match error {
        Driver::IoError(io) => Some(io),
        Driver::CodecError(codec) => codec.source().and_then(|cause| cause.downcast_ref()),
        _ => None,
    }
}

#[cfg(feature = "tls")]
fn tls_refusal(error: &Driver) -> Option<(ErrorKind, String)> {
    match error {
        Driver::TlsError(error) => Some((ErrorKind::InvalidInput, format!("TLS cannot be set up: {error}"))),
        error => of_socket(error).and_then(crate::tls::refusal),
    }
}

pub(super) fn said(error: &Driver) -> String {
    match error {
        Driver::MySqlError(said) => format!(" (the server said: {})", said.message),
        _ => String::new(),
    }
}

pub(super) fn classify(code: u16) -> (ErrorKind, &'static str) {
    match code {
        1045 | 1698 | 1251 | 1862 => {
            (ErrorKind::Authentication, "the server rejected the user name or the password")
        }
        1044 | 1142 | 1143 | 1227 | 1370 | 1095 => {
            (ErrorKind::NoPermission, "permission denied for this user")
        }
        1049 => (ErrorKind::InvalidInput, "there is no such database"),
        NO_SUCH_TABLE => {
            (ErrorKind::Unsupported, "the table is not there: see create_schema() and docs/stores.md")
        }
        1036 | 1290 | 1792 | 1836 => (ErrorKind::ReadOnly, "the server is read-only"),
        // A node of Galera that has lost the others.
        1047 => (ErrorKind::ReadOnly, "this node of the cluster takes no requests now"),
        1040 | 1203 | 1226 => (ErrorKind::Busy, "the server has reached its limit of connections"),
        LOCK_WAIT_TIMEOUT | 3572 => (ErrorKind::TimedOut, "another transaction has locked the row"),
        1213 => (ErrorKind::Deadlock, "the server broke a deadlock by ending this transaction"),
        1021 | 1114 => (ErrorKind::OutOfMemory, "the server's disk is full"),
        1037 | 1038 | 1041 => (ErrorKind::OutOfMemory, "the server is out of memory"),
        1317 | 1969 | 3024 => (ErrorKind::TimedOut, "the server ended the statement"),
        1053 | 1927 | 3169 | 4031 => (ErrorKind::Unreachable, "the server ended the connection"),
        _ => (ErrorKind::Refused, "the server refused"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Then the connection is looked up anew.
    #[test]
    fn a_server_that_takes_no_writes_is_read_only_whatever_the_reason() {
        for code in [1036, 1047, 1290, 1792, 1836] {
            assert_eq!(classify(code).0, ErrorKind::ReadOnly, "{code}");
        }
    }
}
