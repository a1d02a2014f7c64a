//! The meaning of PostgreSQL's errors.

use std::error::Error as _;

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::{Error, ErrorKind};
use crate::seam::{Answer, Failure};
use crate::stores::sql::refused::{self, Words};

/// The failure of a request that was sent. After an error of the statement the server has rolled it back. If
/// the session ended, unless for idleness, the statement may have been committed: the outcome is unknown.
pub(super) fn failed(error: tokio_postgres::Error, table: Option<&str>) -> Failure {
    match error.as_db_error() {
        Some(said) if ends_the_session(said) && !was_idle(said) => Failure::Unknown(ended(error)),
        Some(said) if ends_the_session(said) => Failure::Refused(ended(error)),
        Some(_) => Failure::Refused(refusal(error, table)),
        None => Failure::Unknown(
            Error::new(ErrorKind::Unreachable, "request", "the connection broke").with_source(error),
        ),
    }
}

pub(super) fn ends_the_session(said: &DbError) -> bool {
    // Servers also send the severity untranslated. Some poolers send only the translated one.
    let is_fatal = match said.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        None => matches!(said.severity(), "FATAL" | "PANIC"),
    };
    is_fatal || class(said.code()) == "08"
}

/// Whether a pooler has given this connection another session, which lacks the prepared statements.
pub(super) fn is_other_session(said: &DbError) -> bool {
    *said.code() == SqlState::INVALID_SQL_STATEMENT_NAME
}

/// Whether the server ended an idle session, and so did not read this request.
fn was_idle(said: &DbError) -> bool {
    matches!(said.code().code(), "57P05" | "25P03")
}

fn class(code: &SqlState) -> &str {
    code.code().get(..2).unwrap_or_default()
}

fn code_of(error: &Error) -> Option<&SqlState> {
    error.source()?.downcast_ref::<tokio_postgres::Error>()?.code()
}

/// Whether the error is a pooler's answer to a request that it does not support.
pub(super) fn is_protocol_violation(error: &Error) -> bool {
    code_of(error) == Some(&SqlState::PROTOCOL_VIOLATION)
}

fn has_full_queue(error: &Error) -> bool {
    code_of(error) == Some(&SqlState::PROGRAM_LIMIT_EXCEEDED)
}

/// Runs a change that notifies `channel`. If the server's queue of messages is full, the server does not
/// commit the change. Then the change runs again without a message, and waiters learn of it by polling.
pub(super) fn or_unheard<T>(channel: &str, mut change: impl FnMut(&str) -> Answer<T>) -> Answer<T> {
    match change(channel) {
        Err(Failure::Refused(error)) if !channel.is_empty() && has_full_queue(&error) => change(""),
        outcome => outcome,
    }
}

/// Runs `plain` if the server refused the table of the wait queue: the user lost the right, or the table is
/// gone or locked by another transaction. Nothing was changed.
pub(super) fn or_without_queue<T>(outcome: Answer<T>, plain: impl FnOnce() -> Answer<T>) -> Answer<T> {
    match outcome {
        Err(Failure::Refused(error)) if is_of_table(&error) => plain(),
        outcome => outcome,
    }
}

/// Whether a table was refused or locked. (The error of a locked row has the same code, but also a `where_`.)
fn is_of_table(error: &Error) -> bool {
    let said =
        error.source().and_then(|source| source.downcast_ref::<tokio_postgres::Error>()?.as_db_error());
    said.is_some_and(|said| {
        class(said.code()) == "42" || *said.code() == SqlState::LOCK_NOT_AVAILABLE && said.where_().is_none()
    })
}

/// As [`or_unheard`], for session locks. The server never rolls their changes back, so the change was made
/// although its message failed, and `done` gives the result.
pub(super) fn or_done_unheard<T>(outcome: Answer<T>, done: impl FnOnce() -> T) -> Answer<T> {
    match outcome {
        Err(Failure::Refused(error)) if has_full_queue(&error) => Ok(done()),
        outcome => outcome,
    }
}

pub(super) fn read_only_now() -> Error {
    Error::new(ErrorKind::ReadOnly, "request", READ_ONLY)
}

pub(super) fn unreachable(error: tokio_postgres::Error) -> Error {
    if error.as_db_error().is_some() {
        return refusal(error, None);
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
            "the server does not speak TLS: to connect without TLS, write sslmode=disable in the URL",
        )
    } else {
        (
            ErrorKind::Unreachable,
            "no connection to PostgreSQL: check host and port, and that no other program answers there",
        )
    };
    Error::new(kind, "connect", words).with_source(error)
}

fn refusal(error: tokio_postgres::Error, table: Option<&str>) -> Error {
    let (kind, words) = match error.code().map_or(refused::ANYTHING, classify) {
        // The transaction contained only this statement, so the client can repeat it: `Busy`.
        (ErrorKind::Deadlock, words) => (ErrorKind::Busy, words),
        other => other,
    };
    let is_of_table = error.code().is_some_and(|code| matches!(class(code), "22" | "23" | "42" | "P0"));
    let table = table.filter(|_| is_of_table).map(|table| format!("{words}, on the table {table}"));
    worded("request", (kind, table.as_deref().unwrap_or(words)), error)
}

fn ended(error: tokio_postgres::Error) -> Error {
    let words = error.code().map(classify).filter(|(kind, _)| *kind != ErrorKind::Refused);
    worded("request", words.unwrap_or((ErrorKind::Unreachable, ENDED)), error)
}

pub(super) fn worded(
    action: &'static str,
    (kind, words): (ErrorKind, &str),
    error: tokio_postgres::Error,
) -> Error {
    let said = error.as_db_error().map(|said| format!(" (the server said: {})", said.message()));
    Error::new(kind, action, format!("{words}{}", said.unwrap_or_default())).with_source(error)
}

const READ_ONLY: &str = "the server is read-only, or a standby";

const ENDED: &str = "the server is starting, stopping, or ended the connection";

pub(super) const POOLED: &str = "a pooler gives each transaction another session, as PgBouncer does in \
    transaction mode: connect to the server directly, or use session mode";

pub(super) const BEGUN: &str = "a transaction that this client had not begun was open after a statement: a pooler (such as pgpool-II in raw \
    mode) or the server began it; connect without the pooler";

/// The meaning of single codes, and of the classes (two characters) of all other codes.
const CODES: &[(&[&str], Words)] = &[
    (&["28P01", "28000"], refused::LOGIN),
    (&["42501"], refused::RIGHT),
    (&["25006"], (ErrorKind::ReadOnly, READ_ONLY)),
    (&["40001"], (ErrorKind::Busy, "another transaction was in the way: try again")),
    (&["40P01"], (ErrorKind::Deadlock, "the server broke a deadlock by ending this statement")),
    (&["53300", "53400"], refused::CONNECTION),
    (&["55P03"], (ErrorKind::TimedOut, "another transaction has locked the row")),
    (&["57014"], (ErrorKind::TimedOut, "the server ended the statement for taking too long")),
    (&["53100"], refused::DISK),
    (&["53200"], refused::MEMORY),
    (&["42P01"], refused::TABLE),
    (&["42703", "42804", "42883", "42P10", "23502"], refused::COLUMNS),
    (&["26000"], (ErrorKind::Unsupported, POOLED)),
    (
        &["42P07"],
        (
            ErrorKind::InvalidInput,
            "a table of this name is in a schema outside the search path: give the schema of the table to use or to create, by \
             table(\"schema.name\")",
        ),
    ),
    (&["54000"], (ErrorKind::Busy, "a limit of the server's is reached, such as that of its NOTIFY queue")),
    (&["3D000"], refused::DATABASE),
    (&["08", "57"], (ErrorKind::Unreachable, ENDED)),
    (&["53"], (ErrorKind::Busy, "the server is short of a resource")),
];

pub(super) fn classify(code: &SqlState) -> Words {
    let of = |code: &str| CODES.iter().find(|(codes, _)| codes.contains(&code)).map(|(_, words)| *words);
    of(code.code()).or_else(|| of(class(code))).unwrap_or(refused::ANYTHING)
}
