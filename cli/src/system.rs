//! The system below, under the same names on Unix and on Windows. Commands are run on Unix only: `run` has a
//! file of its own for each.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use self::unix::*;
#[cfg(windows)]
pub(crate) use self::windows::*;
