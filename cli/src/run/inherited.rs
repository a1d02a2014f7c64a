//! The treatment of signals that this program was started with: it sets what it needs, and the command gets the old one.
//!
//! Some start programs with signals blocked, or with SIGCHLD ignored, which hides the end of a child. Real-time signals are
//! not kept blocked for the command, and SIGPIPE has its default there, since Rust's runtime replaces what was before `main`.

use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, sigprocmask};
use serde::{Deserialize, Serialize};

/// The signals that were blocked and those that were ignored: a bit for each, the first for signal 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inherited {
    blocked: u64,
    ignored: u64,
}

impl Inherited {
    /// Reads them, and blocks nothing from now on. Before the first thread, so that all have it so.
    pub(crate) fn take() -> Inherited {
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), Some(&mut before)).ok();
        let blocked = before.iter().map(bit).fold(0, std::ops::BitOr::bitor);
        Inherited { blocked, ignored: ignored() }
    }

    pub(super) fn restore(self) {
        for signal in Signal::iterator() {
            // The others that were ignored have stayed so.
            if signal == Signal::SIGCHLD && self.ignored & bit(signal) != 0 {
                set(signal, SigHandler::SigIgn);
            }
        }
        set(Signal::SIGPIPE, SigHandler::SigDfl);
        let blocked = Signal::iterator().filter(|signal| self.blocked & bit(*signal) != 0).collect();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None).ok();
    }
}

pub(super) fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal as i32 - 1)
}

#[expect(unsafe_code, reason = "the only call that ignores a signal")]
fn set(signal: Signal, how: SigHandler) {
    // SAFETY: `SigIgn` and `SigDfl` are no handlers, so no code of this process runs because of them.
    unsafe { nix::sys::signal::signal(signal, how) }.ok();
}
