//! The file's errors, in words.

use rusqlite::ErrorCode;

use crate::error::{Error, ErrorKind};
use crate::seam::Failure;
use crate::stores::sql::MIGRATION;

pub(super) fn failed_to_open(error: rusqlite::Error) -> Error {
    refused(error).during("connect")
}

pub(super) fn replaced() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "request",
        "the file, or what SQLite keeps beside it, was deleted or replaced",
    )
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// The file's errors. SQLite rolls a statement back that it cannot carry out; only of what the disk did to a
/// commit it is not sure itself. SQLite has no code for a table that is not there: without that of the
/// clients only the directory does not work.
pub(super) fn failed(error: rusqlite::Error) -> Failure {
    let said = error.to_string();
    if said.contains("no such table") && said.contains("_clients") {
        let words = format!("the table of clients is not there: see create_schema() and {MIGRATION}");
        return Failure::Refused(Error::new(ErrorKind::Unsupported, "directory", words).with_source(error));
    }
    if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) {
        Failure::Unknown(refused(error))
    } else {
        Failure::Refused(refused(error))
    }
}

fn refused(error: rusqlite::Error) -> Error {
    let (kind, words) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Busy, "other connections kept the file locked (SQLITE_BUSY)")
        }
        Some(ErrorCode::DiskFull) => (ErrorKind::OutOfMemory, "the disk is full, or the file may not grow"),
        Some(ErrorCode::OutOfMemory) => (ErrorKind::OutOfMemory, "out of memory"),
        Some(ErrorCode::ReadOnly) => (ErrorKind::ReadOnly, "the file is read-only"),
        Some(ErrorCode::PermissionDenied) => (ErrorKind::NoPermission, "permission denied for the file"),
        Some(ErrorCode::CannotOpen) => (ErrorKind::Unreachable, "the file cannot be opened"),
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Unreachable, "the file cannot be read or written"),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            (ErrorKind::Protocol, "the file is not a SQLite database, or is damaged")
        }
        _ => (ErrorKind::Refused, "SQLite refused"),
    };
    Error::new(kind, "request", words).with_source(error)
}
