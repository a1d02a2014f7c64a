//! The usual case: nobody else wants the lock, and one request acquires it.
//!
//! A thread that would wait asks as the head of the local queue. If it is not granted, it goes on as a waiter
//! whose first attempt has been answered.

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted};
use crate::engine::acquire::outcome::AttemptOutcome;
use crate::engine::acquire::request::Request;
use crate::engine::acquire::waiting::{Asked, Waiting};
use crate::engine::hold::QueuePlace;
use crate::error::Result;
use crate::observe::spans::WaitSpan;
use crate::seam::{Family, ListensFor, Turn};

impl Engine {
    /// Whether a call asks before there is a waiter. Else it goes straight to the waiting loop, as its
    /// kind, its terms or its store needs more than one plain request.
    pub(super) fn asks_first(&self, call: &AcquireCall<'_>) -> bool {
        let capabilities = self.store.capabilities();
        let is_plain = matches!(call.kind.family(), Family::Lock | Family::Token);
        is_plain
            && call.terms.backoff.is_none()
            && call.terms.max_hold.is_none()
            && capabilities.majority.is_none()
            && capabilities.sessions.is_none()
            && !(capabilities.queues)(call.kind)
    }

    /// Asks once. All but a grant is for a waiter.
    pub(super) fn ask_first(
        &self,
        mut request: Request<'_>,
        place: Option<QueuePlace>,
    ) -> Result<Option<Granted>> {
        let (call, begun) = (request.call, request.begun);
        let span = WaitSpan::open(call.name.given(), call.kind.label());
        let waits = place.is_some();
        let turn = if waits { Turn::Waits } else { Turn::Barges };
        let claim = request.claim(waits, turn, ListensFor::OwnTurn);
        // Counted first, asked second, as by a waiter: see `Waiting::ask`.
        let message_count = if waits { self.store.message_count(&claim) } else { None };
        let sent = self.clock.now();
        let answer = self.store.attempt(&claim, 1, request.deadline(sent));
        match request.judge(&claim, sent, answer) {
            AttemptOutcome::Granted { fence, since, bound, in_line } => {
                let keep = request.keep_terms(&claim, in_line);
                let granted = self.enter(call, request.thread, (&claim, since), keep, (fence, bound), place);
                // Told last: an observer takes time, and the number may be given up meanwhile.
                self.reporter.tell_request("acquire", sent, &self.clock, None);
                self.tell_granted(call, &granted.hold, (begun, 1, None), &span);
                self.unless_shut_down(call, granted).map(Some)
            }
            outcome => {
                Waiting::new(request, span).run(Some(Asked { place, claim, message_count, sent, outcome }))
            }
        }
    }

    /// Gives back what was granted while the client was shut down: it may have come too late for `shutdown`
    /// to see.
    pub(crate) fn unless_shut_down(&self, call: &AcquireCall<'_>, granted: Granted) -> Result<Granted> {
        if let Err(error) = self.open(call.action) {
            self.drop_level(&granted.hold, granted.level);
            return Err(error);
        }
        Ok(granted)
    }
}
