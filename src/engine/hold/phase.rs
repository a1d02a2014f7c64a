//! The phase of a hold: held, being released, or lost.
//!
//! | `phase`     | meaning                                             | who may set it, from what               |
//! |-------------|-----------------------------------------------------|-----------------------------------------|
//! | `LIVE`      | held, as long as `until` is ahead                   | the grant                               |
//! | `RELEASING` | its owner is giving it up; not renewed, not "lost"  | the releasing caller, from `LIVE`       |
//! | `EXPIRED`   | `until` passed unconfirmed                          | the first to see it, from `LIVE`        |
//! | `GONE`      | the store said that the owner holds nothing         | the first to learn it, from `LIVE` or `RELEASING` |
//! | `SHUT_DOWN` | the client ended it                                 | `shutdown`, from `LIVE`                 |
//! | `TOO_LONG`  | `until` passed, and no renewal may move it any more | as `EXPIRED`                            |
//!
//! The last four are lost, and stay so.

use crate::observe::LossReason;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::time::Moment;

const LIVE: u8 = 0;
const RELEASING: u8 = 1;
const EXPIRED: u8 = 2;
const GONE: u8 = 3;
const SHUT_DOWN: u8 = 4;
const TOO_LONG: u8 = 5;

/// Whether a hold still stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Held,
    /// Held until then, but a renewal is overdue.
    AtRisk(Moment),
    Lost(LossReason),
}

/// Starts live. A loss is final.
#[derive(Debug)]
pub(super) struct Phase(AtomicU8);

impl Phase {
    pub(super) fn live() -> Phase {
        Phase(AtomicU8::new(LIVE))
    }

    pub(super) fn is_live(&self) -> bool {
        self.0.load(Ordering::SeqCst) == LIVE
    }

    pub(super) fn is_releasing(&self) -> bool {
        self.0.load(Ordering::Acquire) == RELEASING
    }

    /// The reason of the loss, if it is lost.
    pub(super) fn loss(&self) -> Option<LossReason> {
        match self.0.load(Ordering::Acquire) {
            EXPIRED => Some(LossReason::Expired),
            GONE => Some(LossReason::Gone),
            SHUT_DOWN => Some(LossReason::ShutDown),
            TOO_LONG => Some(LossReason::HeldTooLong),
            _live_or_releasing => None,
        }
    }

    /// From live to releasing; whether this call did it.
    pub(super) fn begin_release(&self) -> bool {
        self.change(LIVE, RELEASING)
    }

    /// From live to lost; whether this call did it.
    pub(super) fn lose(&self, reason: LossReason) -> bool {
        self.change(LIVE, lost(reason))
    }

    /// From releasing to lost, which only the store can say; whether this call did it.
    pub(super) fn lose_while_releasing(&self, reason: LossReason) -> bool {
        reason == LossReason::Gone && self.change(RELEASING, GONE)
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

fn lost(reason: LossReason) -> u8 {
    match reason {
        LossReason::Expired => EXPIRED,
        LossReason::Gone => GONE,
        LossReason::ShutDown => SHUT_DOWN,
        LossReason::HeldTooLong => TOO_LONG,
    }
}
