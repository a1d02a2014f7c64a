//! The exit codes of the program.

use std::process::ExitCode;

pub(crate) const SIGINT: i32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Success,
    /// `doctor` found a fault; with `--strict`, also a warning. `show -q`: a lock that nobody holds.
    Found,
    Command(u8),
    Signal(i32),
    Busy(u8),
    Lost(u8),
    Survivor,
    MaxHold,
    ReleaseUnknown,
    Unavailable,
    NoPermission,
    Usage,
    NotALock,
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
