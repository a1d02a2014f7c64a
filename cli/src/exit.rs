//! The exit codes of the program.

use std::process::ExitCode;

pub(crate) const SIGINT: i32 = 2;

/// How the program ends. `docs/command-line.md` has the same table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Success,
    /// `doctor` found a fault; with `--strict`, also a warning. `show -q`: a lock that nobody holds.
    Found,
    Command(u8),
    /// The command, or the wait, was ended by this signal: 128 and its number.
    Signal(i32),
    /// Somebody else has the lock, or the wait ended: `EX_TEMPFAIL`, unless `-E` says another.
    Busy(u8),
    /// The lock was lost while the command ran; never 0.
    Lost(u8),
    /// The command had to end, and one of its processes could not be ended.
    Survivor,
    /// `--max-hold` ended the command, as `timeout` says it.
    MaxHold,
    /// The command succeeded, and whether the lock was released is unknown (`--strict`).
    ReleaseUnknown,
    /// The store cannot be used: `EX_UNAVAILABLE`.
    Unavailable,
    /// The store gives no rights: `EX_NOPERM`.
    NoPermission,
    /// Arguments that cannot be used, or a kind that the store cannot keep: `EX_USAGE`.
    Usage,
    /// The name stands for something that is no lock: `EX_DATAERR`.
    NotALock,
    /// The system refused what this program needs, or its helper was killed: `EX_SOFTWARE`.
    Internal,
    CannotRun,
    NotFound,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Found => 1,
            Exit::Command(code) | Exit::Busy(code) | Exit::Lost(code) => code,
            Exit::Signal(signal) => u8::try_from(128 + signal).unwrap_or(255),
            Exit::MaxHold => 124,
            Exit::ReleaseUnknown => 80,
            Exit::Survivor => 81,
            Exit::Unavailable => 69,
            Exit::NoPermission => 77,
            Exit::Usage => 64,
            Exit::NotALock => 65,
            Exit::Internal => 70,
            Exit::CannotRun => 126,
            Exit::NotFound => 127,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}
