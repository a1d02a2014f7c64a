//! The hold that follows a grant.

use std::sync::Arc;

use super::Waiting;
use crate::engine::acquire::call::Granted;
use crate::engine::hold::{Grant, Hold, Holder};
use crate::ident::Fence;
use crate::observe::{Loss, LossReason};
use crate::seam::{Claim, Kind};
use crate::task::TaskMark;
use crate::time::{Lease, Moment};

impl Waiting<'_> {
    pub(super) fn enter(&mut self, claim: &Claim, sent: Moment, fence: Option<Fence>) -> Granted {
        let (engine, call) = (self.engine, self.call);
        let holder = if call.by_thread {
            Holder::Thread {
                id: self.thread.id(),
                mark: Arc::downgrade(self.thread),
                task: TaskMark::current(),
            }
        } else {
            Holder::Guard
        };
        let (hold, level) = Hold::new(Grant {
            kind: claim.kind,
            name: Arc::clone(&claim.name),
            owner: claim.owner,
            home: claim.home,
            holder,
            sent,
            lease: call.lease,
            asked: self.asked,
            ceiling: call.terms.max_hold.map(|most| sent.plus(most)),
            renewed_lease: if let Lease::Kept(_) = call.lease { self.asked } else { engine.options.lease },
            fence,
            units: claim.units,
            note: claim.note.clone(),
            bound: self.bound.take(),
        });
        let hold = Arc::new(hold);
        let look = engine.registry.insert(&hold, call.by_thread.then(|| self.thread.id()));
        engine.watchdog.look_at_holds_by(look);
        if engine.writes_here(call, self.thread) {
            self.end_writing_in_time(&hold);
        }
        self.tell_granted(&hold);
        Granted { hold, level }
    }

    /// Sees to it that what this thread writes ends in the store when its own time is over, not with its reading: the two
    /// may share what has the time.
    pub(super) fn end_writing_in_time(&self, reading: &Arc<Hold>) {
        let engine = self.engine;
        let Some(writing) = engine.registry.of_thread(Kind::Write, self.call.name, self.thread.id()) else {
            return;
        };
        if !writing.note_reading() {
            return;
        }
        let (claim, reading, completion) =
            (writing.claim(), Arc::clone(reading), Arc::clone(&engine.completion));
        let end = move |loss: &Loss| {
            if matches!(loss.reason, LossReason::Expired | LossReason::HeldTooLong) {
                let now = completion.clock.now();
                let until = now.plus(completion.lease).max(reading.until());
                completion.cleanups.add(claim, until, now);
            }
        };
        writing.on_lost(Box::new(end), &engine.reporter);
        engine.watch(&writing);
    }
}
