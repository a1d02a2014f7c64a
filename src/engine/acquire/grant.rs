//! The hold that follows a grant.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted};
use crate::engine::hold::{Grant, Hold, Holder, QueuePlace};
use crate::engine::lock::CacheTerms;
use crate::engine::lock::caching::RULES;
use crate::ident::{FencingToken, ThreadMarker};
use crate::observe::event::Event;
use crate::observe::spans::WaitSpan;
use crate::seam::{Bound, Claim};
use crate::task::TaskMarker;
use crate::time::{Lease, Moment};

type BoundedStart = (Moment, Option<Arc<dyn Bound>>);

impl Engine {
    /// Makes the hold of a grant that was asked for under `claim`, whose lease counts from `since` on, and
    /// enters it. `bound`: what ends the hold besides its lease. `place`: to be left with the grant. `None`:
    /// the grant does not count any more.
    pub(super) fn enter(
        &self,
        call: &AcquireCall<'_>,
        thread: &Arc<ThreadMarker>,
        (claim, (since, bound)): (&Claim, BoundedStart),
        cache_terms: Option<CacheTerms>,
        fence: Option<FencingToken>,
        place: &mut Option<QueuePlace>,
    ) -> Option<Granted> {
        let holder = if call.by_thread {
            Holder::Thread { id: thread.id(), mark: Arc::downgrade(thread), task: TaskMarker::current() }
        } else {
            let is_of_task = TaskMarker::current().is_some();
            Holder::Guard { taker: (!is_of_task).then(|| Arc::downgrade(thread)) }
        };
        let grant = Grant {
            claim: claim.clone(),
            holder,
            sent: since,
            lease: call.lease,
            ceiling: call.config.max_hold.map(|most| since.plus(most)),
            renewed_lease: match call.lease {
                Lease::Kept(_) => claim.lease,
                _ => self.options.lease,
            },
            fence,
            bound,
            may_be_cached: call.may_cache_slice(),
            asks_to_cache: call.caches(),
            leads: call.config.leads,
        };
        let (hold, state, level) = Hold::new(grant, call.local);
        let look = self.registry.insert((&hold, state), cache_terms, place, &self.clock)?;
        self.timer.run_by(look);
        if cache_terms.is_some() {
            self.watch_cached_hold(&hold, self.clock.now().plus(RULES.first_check));
        }
        Some(Granted { hold, level })
    }

    /// Tells the observers of a grant: since when the call waited, after how many attempts, and since when
    /// the lock was on its way here, and whether from a thread of this client.
    pub(crate) fn report_granted(
        &self,
        call: &AcquireCall<'_>,
        hold: &Hold,
        (started, attempts, coming): (Moment, u32, Option<(Moment, bool)>),
        span: &WaitSpan,
    ) {
        let (name, kind, owner) = (call.name.given(), call.kind.label(), hold.owner());
        let fence = hold.fencing_token();
        span.granted(owner, fence, attempts);
        hold.span.open(name, kind, owner, fence);
        if !self.reporter.is_observed() {
            return;
        }
        let now = self.clock.now();
        let waited = now.since(started);
        self.reporter
            .report(|observer| observer.event(&Event::Acquired { name, kind, owner, waited, attempts }));
        if let Some((since, is_local)) = coming {
            let took = now.since(since);
            self.reporter
                .report(|observer| observer.event(&Event::HandedOff { name, kind, owner, is_local, took }));
        }
    }
}
