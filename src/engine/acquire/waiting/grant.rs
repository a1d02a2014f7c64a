//! The hold that follows a waiter's grant.

use std::sync::Arc;

use super::Waiting;
use super::report::Report;
use crate::engine::acquire::call::Granted;
use crate::engine::acquire::request::Request;
use crate::engine::hold::Hold;
use crate::ident::FencingToken;
use crate::observe::{Loss, LossReason};
use crate::seam::{Bound, Claim, Kind};
use crate::time::Moment;

impl Waiting<'_> {
    pub(super) fn enter(
        &mut self,
        (op, sent): (&'static str, Moment),
        (claim, since): (&Claim, Moment),
        in_line: u32,
        fence: Option<FencingToken>,
        bound: Option<Arc<dyn Bound>>,
    ) -> Granted {
        let Request { engine, call, thread, begun, .. } = self.request;
        let keep = self.request.keep_terms(claim, in_line);
        let granted = engine.enter(call, thread, (claim, since), keep, (fence, bound), None);
        if engine.writes_here(call, thread) {
            self.end_writing_in_time(&granted.hold);
        }
        self.tell_asked(op, sent, None);
        let Report { attempts, coming, span, .. } = &self.report;
        engine.tell_granted(call, &granted.hold, (begun, *attempts, *coming), span);
        granted
    }

    /// Sees to it that what this thread writes ends in the store when its own time is over, not with its
    /// reading: the two may share what has the time.
    pub(super) fn end_writing_in_time(&self, reading: &Arc<Hold>) {
        let engine = self.request.engine;
        let Some(writing) =
            engine.registry.of_thread(Kind::Write, self.request.call.name, self.request.thread.id())
        else {
            return;
        };
        if !writing.note_reading() {
            return;
        }
        // The core has the hold, and with it this.
        let (claim, reading, core) = (writing.claim(), Arc::clone(reading), Arc::downgrade(&engine.core));
        let end = move |loss: &Loss| {
            if let (LossReason::Expired | LossReason::HeldTooLong, Some(core)) = (loss.reason, core.upgrade())
            {
                let now = core.clock.now();
                let until = now.plus(core.options.lease).max(reading.until());
                core.clean_up(claim, until, now);
            }
        };
        writing.on_lost(Box::new(end), &engine.reporter);
        engine.watch(&writing);
    }
}
