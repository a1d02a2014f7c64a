//! On Windows this program holds no lock for a command or a shell. This module refuses the subcommands that
//! would, and catches signals for the other ones.

/// Used here only by `doctor`, which prints for how long a store may be down.
#[allow(dead_code, reason = "no command is ended here")]
#[path = "times.rs"]
pub(crate) mod times;

use crate::args::{Common, ElectArgs, OnceArgs, RunArgs};
use crate::say::{Ended, Exit, Say};

pub(crate) fn run(common: &Common, _args: &RunArgs) -> Ended {
    refused(common, "run")
}

pub(crate) fn once(common: &Common, _args: &OnceArgs) -> Ended {
    refused(common, "once")
}

pub(crate) fn elect(common: &Common, _args: &ElectArgs) -> Ended {
    refused(common, "elect")
}

/// Refuses `action`: Windows has no sure way to end a command or a shell before the lock is lost.
fn refused(common: &Common, action: &str) -> Ended {
    let words =
        format!("{action} is for Unix only: a command could outlive the lock here; take the library, or WSL");
    Err(Say::new(common).error(&words, Exit::Usage))
}

pub(crate) fn end_as_interrupted(_exit: Exit) {}

pub(crate) mod hold {
    use super::refused;
    use crate::args::{Common, HoldArgs, ReleaseArgs};
    use crate::say::Ended;

    pub(crate) mod place {
        pub(crate) fn is_first(_text: &str) -> bool {
            true
        }
    }

    pub(crate) fn hold(common: &Common, _args: &HoldArgs) -> Ended {
        refused(common, "hold")
    }

    pub(crate) fn release(common: &Common, _args: &ReleaseArgs) -> Ended {
        refused(common, "release")
    }
}

pub(crate) mod signals {
    use std::io;
    use std::time::Duration;

    use leasehold::crossbeam_channel::{Receiver, select, unbounded};

    use crate::say::{Exit, SIGINT, Say};

    /// Ctrl-C, Ctrl-Break and the closing of the console, each received as SIGINT.
    pub(crate) struct Caught {
        pub(crate) signals: Receiver<i32>,
    }

    impl Caught {
        pub(crate) fn start() -> io::Result<Caught> {
            let (sender, signals) = unbounded();
            ctrlc::set_handler(move || sender.send(SIGINT).unwrap_or_default()).map_err(io::Error::other)?;
            Ok(Caught { signals })
        }

        pub(crate) fn unless_signaled<T: Send + 'static>(
            &self,
            what: &str,
            more: Duration,
            say: Say,
            act: impl FnOnce() -> T + Send + 'static,
        ) -> Result<T, Exit> {
            let is_done = say.on_thread(what, act)?;
            select! {
                recv(is_done) -> outcome => outcome.map_err(|_panicked| Exit::Internal),
                recv(self.signals) -> signal => is_done
                    .recv_timeout(more)
                    .map_err(|_late| signal.map_or(Exit::Internal, Exit::Signal)),
            }
        }
    }
}
