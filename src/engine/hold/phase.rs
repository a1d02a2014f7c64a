//! The phase of a hold: held, being released, or lost; and the listeners that are notified.
//!
//! | `phase`     | meaning                                             | who may set it, from what               |
//! |-------------|-----------------------------------------------------|-----------------------------------------|
//! | `LIVE`      | held, as long as `until` is ahead                   | the grant                               |
//! | `RELEASING` | its owner is giving it up; not renewed, not "lost"  | the releasing caller, from `LIVE`       |
//! | `EXPIRED`   | `until` passed without a confirmed renewal          | the first to see it, from `LIVE`        |
//! | `GONE`      | the store said that the owner holds nothing         | the first to learn it, from `LIVE` or `RELEASING` |
//! | `SHUT_DOWN` | the client ended it                                 | `shutdown`, from `LIVE`                 |
//! | `TOO_LONG`  | `until` passed, and `max_hold` allows no renewal    | as `EXPIRED`                            |
//!
//! The last four phases are final.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::engine::lock::Stage;
use crate::observe::reporter::{OnLost, Reporter};
use crate::observe::{Loss, LossReason};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use crate::time::Moment;

const LIVE: u8 = 0;
const RELEASING: u8 = 1;
/// The first of the four lost phases.
const LOST: u8 = 2;
const LOSSES: [LossReason; 4] =
    [LossReason::Expired, LossReason::Gone, LossReason::ShutDown, LossReason::HeldTooLong];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Held,
    /// Held, but the last renewal failed or is late, so the hold may end at this moment.
    AtRisk(Moment),
    Lost(LossReason),
}

/// A flag beside the phase: the hold is cached, or was cached when its release or loss began.
const UNUSED: u8 = 0x10;

/// A hold's phase, with the flag `UNUSED`. `LIVE` at first.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU8);

impl Phase {
    fn stage(&self) -> u8 {
        self.0.load(Ordering::SeqCst) & !UNUSED
    }

    pub(super) fn is_releasing(&self) -> bool {
        self.stage() == RELEASING
    }

    pub(super) fn loss(&self) -> Option<LossReason> {
        let place = self.stage().checked_sub(LOST)?;
        LOSSES.get(usize::from(place)).copied()
    }

    /// Sets the phase for a stage. The caller has the lock's mutex, as for each change of the phase.
    pub(super) fn publish(&self, stage: Stage) {
        let phase = match stage {
            Stage::Held => LIVE,
            Stage::Cached(_) => LIVE | UNUSED,
            Stage::HandingOff { .. } | Stage::Returning => RELEASING | self.unused(),
            Stage::Lost => return,
        };
        self.0.store(phase, Ordering::SeqCst);
    }

    /// Changes the phase from `LIVE` to a loss, or from `RELEASING` to `GONE`. `false`: no change.
    pub(super) fn lose(&self, reason: LossReason) -> bool {
        if self.loss().is_some() || self.is_releasing() && reason != LossReason::Gone {
            return false;
        }
        let phase = (LOST..).zip(LOSSES).find(|(_, one)| *one == reason).map_or(LOST, |(phase, _)| phase);
        self.0.store(phase | self.unused(), Ordering::SeqCst);
        true
    }

    pub(super) fn unused(&self) -> u8 {
        self.0.load(Ordering::SeqCst) & UNUSED
    }
}

pub(crate) type OnContended = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(crate) struct Listeners {
    /// The listeners of the hold, channels before callbacks, because callbacks may hang.
    pub(super) list: Mutex<VecDeque<Listener>>,
    /// Whether `list` may have a listener. Changed under its mutex, which readers of the flag need not take.
    pub(super) are_there: AtomicBool,
    /// Whether the hold was released or lost. Changed under the mutex of `list`.
    pub(super) has_ended: AtomicBool,
    pub(super) are_kept: AtomicBool,
    /// Whether callbacks of contention are queued or running.
    pub(super) is_calling: AtomicBool,
}

pub(crate) enum Listener {
    /// Receives the loss, if there is one, and is dropped when the hold ends.
    Channel(Sender<Loss>),
    OnLost(OnLost),
    /// Runs while others want the lock and the hold stands.
    OnContended(OnContended),
}

impl Listener {
    /// Notifies the listener that the hold has ended, by `loss` or a release. Callbacks are dropped on the
    /// callback thread, because they may own the client, and dropping a client waits.
    pub(super) fn end(self, loss: Option<&Loss>, reporter: &Reporter) {
        match (self, loss.cloned()) {
            (Listener::Channel(_), None) => {}
            // The channel has room for the one message, so an error only means that its receiver is gone.
            (Listener::Channel(sender), Some(loss)) => drop(sender.try_send(loss)),
            (Listener::OnLost(callback), Some(loss)) => reporter.run_later(move || callback(&loss)),
            (Listener::OnLost(callback), None) => reporter.drop_later(callback),
            (Listener::OnContended(callback), _) => reporter.run_later(move || drop(callback)),
        }
    }
}

impl Listeners {
    pub(crate) fn end(&self) -> VecDeque<Listener> {
        let mut list = self.list.lock();
        self.has_ended.store(true, Ordering::SeqCst);
        self.are_there.store(false, Ordering::SeqCst);
        std::mem::take(&mut *list)
    }
}
