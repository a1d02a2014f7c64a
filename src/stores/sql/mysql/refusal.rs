//! The meaning of MySQL's and MariaDB's errors.

use std::error::Error as _;
use std::io::ErrorKind::{TimedOut, WouldBlock};

use mysql::{DriverError, Error as Driver, MySqlError};

use crate::error::{Error, ErrorKind};
use crate::seam::Failure;
use crate::stores::sql::refused::{self, Words};

pub(super) fn read_only_now() -> Error {
    Error::new(ErrorKind::ReadOnly, "request", "the server is read-only: connect to the primary")
}

pub(super) const NO_SUCH_TABLE: u16 = 1146;
pub(super) const LOCK_WAIT_TIMEOUT: u16 = 1205;
const TOO_MANY_CONNECTIONS: u16 = 1040;
/// Galera: the node is not connected to the other nodes.
const NOT_READY: u16 = 1047;
const ENDED: &str = "the server ended the connection";

/// The session was idle for too long, so the server did not read the request.
const WAS_IDLE: u16 = 4031;

/// The failure of a request that was sent. After an error the server has rolled the statement back. If only
/// the session's end is known, as behind a proxy whose server failed, the statement may have been committed.
pub(super) fn failed(error: Driver) -> Failure {
    match &error {
        Driver::MySqlError(said) if said.code == WAS_IDLE || !is_end(said) => {
            Failure::Refused(refusal(error))
        }
        _ => Failure::Unknown(refusal(error)),
    }
}

pub(super) fn ends_the_session(error: &Driver) -> bool {
    match error {
        Driver::MySqlError(error) => is_end(error),
        _ => true,
    }
}

/// Whether the error means a shutdown, a killed or idle session, or a broken network. Codes 2000 to 2999
/// are a proxy's. Class 08 has connection errors, of which two leave the connection intact.
fn is_end(error: &MySqlError) -> bool {
    matches!(error.code, 1053 | 1080 | 1152 | 1158..=1161 | 1927 | 2000..=2999 | 3169 | WAS_IDLE)
        || error.state.starts_with("08") && !matches!(error.code, TOO_MANY_CONNECTIONS | NOT_READY)
}

/// Whether the server did not carry out the statement because it has not prepared it: too many statements are
/// prepared, or the server (behind a proxy perhaps another one) does not know it, or its tables have changed.
pub(super) fn was_not_prepared(error: &Driver) -> bool {
    matches!(error, Driver::MySqlError(said) if matches!(said.code, 1243 | 1461 | 1615))
}

pub(super) fn refusal(error: Driver) -> Error {
    #[cfg(feature = "tls")]
    if let Some((kind, words)) = tls_refusal(&error) {
        return Error::new(kind, "request", words).with_source(error);
    }
    let (kind, words) = match &error {
        Driver::MySqlError(error) => match classify(error.code) {
            (ErrorKind::Refused, _) if is_end(error) => (ErrorKind::Unreachable, ENDED),
            // The transaction contained only this statement, so the client can repeat it: `Busy`.
            (ErrorKind::Deadlock, words) => (ErrorKind::Busy, words),
            other => other,
        },
        error if took_too_long(error) => (ErrorKind::TimedOut, "the server did not answer in time"),
        Driver::DriverError(DriverError::CouldNotConnect(_)) => {
            (ErrorKind::Unreachable, "no connection to the server: check host and port")
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
            "the server does not speak TLS: to connect without TLS, write ssl-mode=DISABLED in the URL",
        ),
        Driver::IoError(_) | Driver::CodecError(_) => (ErrorKind::Unreachable, "the connection broke"),
        _ => (ErrorKind::Protocol, "the server's answer is not the one expected"),
    };
    worded("request", (kind, words), error)
}

pub(super) fn worded(action: &'static str, (kind, words): Words, error: Driver) -> Error {
    let said = match &error {
        Driver::MySqlError(said) => format!(" (the server said: {})", said.message),
        _ => String::new(),
    };
    Error::new(kind, action, format!("{words}{said}")).with_source(error)
}

pub(super) fn took_too_long(error: &Driver) -> bool {
    matches!(error, Driver::DriverError(DriverError::ConnectTimeout | DriverError::Timeout))
        || of_socket(error).is_some_and(|io| matches!(io.kind(), TimedOut | WouldBlock))
}

/// Whether the host refused the connection at once, so it is not silent, and open connections may still work.
pub(super) fn is_refused_connection(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    matches!(
        cause,
        Some(Driver::DriverError(DriverError::CouldNotConnect(Some((_, _, io)))))
            if *io == std::io::ErrorKind::ConnectionRefused
    )
}

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

const CODES: &[(&[u16], Words)] = &[
    (&[1045, 1698, 1251, 1862], refused::LOGIN),
    (&[1044, 1142, 1143, 1227, 1370, 1095], refused::RIGHT),
    (&[1049], refused::DATABASE),
    (&[NO_SUCH_TABLE], refused::TABLE),
    (&[1036, 1290, 1792, 1836], (ErrorKind::ReadOnly, "the server is read-only")),
    (&[TOO_MANY_CONNECTIONS, 1203, 1226], refused::CONNECTION),
    (&[3032], (ErrorKind::Unreachable, "the server is in offline mode")),
    (
        &[LOCK_WAIT_TIMEOUT, 3572],
        (
            ErrorKind::TimedOut,
            "another transaction has locked the row, or somebody has locked the table or the server",
        ),
    ),
    (&[NOT_READY], (ErrorKind::ReadOnly, "this node of the cluster takes no requests now")),
    (&[1665], (ErrorKind::Unsupported, BY_STATEMENT)),
    (&[1054], refused::COLUMNS),
    (&[1213], (ErrorKind::Deadlock, "the server broke a deadlock by ending this transaction")),
    (&[1021, 1114], refused::DISK),
    (&[1037, 1038, 1041], refused::MEMORY),
    (&[1317, 1969, 3024], (ErrorKind::TimedOut, "the server ended the statement")),
    (&[1053, 1927, 3169, WAS_IDLE], (ErrorKind::Unreachable, ENDED)),
];

const BY_STATEMENT: &str = "the server's binlog_format is STATEMENT: set it to ROW or MIXED";

pub(super) fn classify(code: u16) -> Words {
    CODES.iter().find(|(codes, _)| codes.contains(&code)).map_or(refused::ANYTHING, |(_, words)| *words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: u16, state: &str) -> Driver {
        let (state, message) = (state.to_owned(), String::new());
        Driver::MySqlError(MySqlError { state, message, code })
    }

    #[test]
    fn a_session_end_except_by_idleness_leaves_the_outcome_unknown() {
        // A shutdown, two codes of a kill, a proxy's code for a lost server, and an unknown code of class 08.
        for (code, state) in
            [(1053, "08S01"), (1927, "70100"), (3169, "HY000"), (2013, "HY000"), (9_999, "08007")]
        {
            assert!(ends_the_session(&of(code, state)), "{code}");
            let Failure::Unknown(error) = failed(of(code, state)) else { panic!("{code}") };
            assert!(error.is_retryable(), "{code}: {error}");
        }
        assert!(ends_the_session(&of(WAS_IDLE, "HY000")));
        assert!(matches!(failed(of(WAS_IDLE, "HY000")), Failure::Refused(error) if error.is_retryable()));
        for (code, state) in [(1062, "23000"), (TOO_MANY_CONNECTIONS, "08004"), (NOT_READY, "08S01")] {
            assert!(!ends_the_session(&of(code, state)), "{code}");
            assert!(matches!(failed(of(code, state)), Failure::Refused(_)), "{code}");
        }
    }

    /// The kind `ReadOnly` makes the client look up the server's address again.
    #[test]
    fn a_server_refusing_writes_is_reported_as_read_only() {
        for code in [1036, 1047, 1290, 1792, 1836] {
            assert_eq!(classify(code).0, ErrorKind::ReadOnly, "{code}");
        }
    }
}
