//! The first in a line looks out for what tells no line.
//!
//! The holder's id says whether its release tells the line. Java's `forceUnlock` may end that hold too, and
//! the id may be one that only looks like ours: then a message comes on the channel of all releases, and
//! nobody is told. So one waiter listens to that channel as well: the first in the line.
//!
//! If the answer by which it joins the line names it the first, it looks out after [`AFTER`]; if a later
//! answer does, at once. A client that takes turns often has the subscription to its turn still: it asks once
//! and sleeps, so a line that moves fast has no lookout, and costs nothing more. A client that has to
//! subscribe asks again when the subscription stands, and looks out then. In a slow line the lookout gets a
//! message with each release, which wakes it anyway. Its subscription ends with its wait.
//!
//! Source: docs/decisions/0040.

use std::time::Duration;

use super::Waiting;
use crate::engine::hold::QueuePlace;
use crate::park::Parker;
use crate::seam::{Claim, ListensFor};
use crate::time::Moment;

/// The time after which a waiter looks out that has just joined the line, unless it asks again before.
const AFTER: Duration = Duration::from_millis(25);

impl Waiting<'_> {
    /// Notes whether it is to look out, as the last answer said.
    pub(super) fn note_lookout(&mut self, is_lookout: bool, now: Moment) {
        if !is_lookout {
            self.end_lookout();
        } else if self.lookout.subscription.is_none() && self.request.call.terms.backoff.is_none() {
            let after = if self.manner.stands() { Duration::ZERO } else { AFTER };
            self.lookout.begins_at = Some(now.plus(after));
        }
    }

    /// Begins to look out, and sleeps on, `until` at most. When the subscription stands, that wakes it, and
    /// it asks once: what came before was not heard.
    pub(super) fn look_out(&mut self, place: &QueuePlace, until: Moment) {
        self.lookout.begins_at = None;
        self.rest.sleep_on(until);
        if place.ticket().is_head() {
            let claim = Claim { listens_for: ListensFor::Releases, ..self.claim() };
            let parker = self.parker.get_or_insert_with(|| Parker::new(&self.request.engine.clock));
            self.lookout.subscription = self.request.engine.store.listen(&claim, parker.waker());
        }
    }

    pub(super) fn end_lookout(&mut self) {
        self.lookout.begins_at = None;
        if self.lookout.subscription.take().is_some()
            && let Some(lines) = self.request.engine.store.capabilities().lines
        {
            let claim = self.claim();
            lines.end_lookout(&claim);
        }
    }
}
