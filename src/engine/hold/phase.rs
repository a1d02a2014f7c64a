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
//! The last four are final.

use crate::observe::LossReason;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::time::Moment;

const LIVE: u8 = 0;
const RELEASING: u8 = 1;
const EXPIRED: u8 = 2;
const GONE: u8 = 3;
const SHUT_DOWN: u8 = 4;
const TOO_LONG: u8 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Held,
    /// Held until then, but a renewal is overdue.
    AtRisk(Moment),
    Lost(LossReason),
}

/// No thread has the hold: it is cached, or was when its release or loss began.
const UNUSED: u8 = 0x10;

/// Starts live. A loss is final.
#[derive(Debug)]
pub(super) struct Phase(AtomicU8);

impl Phase {
    pub(super) fn live() -> Phase {
        Phase(AtomicU8::new(LIVE))
    }

    fn stage(&self) -> u8 {
        self.0.load(Ordering::SeqCst) & !UNUSED
    }

    pub(super) fn is_live(&self) -> bool {
        self.stage() == LIVE
    }

    pub(super) fn is_releasing(&self) -> bool {
        self.stage() == RELEASING
    }

    pub(super) fn is_unused(&self) -> bool {
        self.0.load(Ordering::SeqCst) & UNUSED != 0
    }

    pub(super) fn loss(&self) -> Option<LossReason> {
        match self.stage() {
            EXPIRED => Some(LossReason::Expired),
            GONE => Some(LossReason::Gone),
            SHUT_DOWN => Some(LossReason::ShutDown),
            TOO_LONG => Some(LossReason::HeldTooLong),
            _live_or_releasing => None,
        }
    }

    /// From live to releasing; whether this call did it.
    pub(super) fn begin_release(&self) -> bool {
        self.change(LIVE, RELEASING).is_some()
    }

    /// From live to lost, or from releasing to gone, which only the store can say. Returns whether no thread
    /// had the hold, if this call did it.
    pub(super) fn lose(&self, reason: LossReason) -> Option<bool> {
        let from_live = self.change(LIVE, lost(reason));
        from_live.or_else(|| (reason == LossReason::Gone).then(|| self.change(RELEASING, GONE))?)
    }

    /// Whether this call did it.
    pub(super) fn set_unused(&self, is_unused: bool) -> bool {
        let (from, to) = if is_unused { (LIVE, LIVE | UNUSED) } else { (LIVE | UNUSED, LIVE) };
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether no thread has the hold, if this call did it.
    fn change(&self, from: u8, to: u8) -> Option<bool> {
        let change = |now: u8| (now & !UNUSED == from).then_some(to | now & UNUSED);
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).ok()?;
        Some(before & UNUSED != 0)
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
