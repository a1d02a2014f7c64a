//! Work for the watchdog, from any thread: claims in doubt, and holds to renew.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::agenda::slot_of;
use crate::engine::hold::{Hold, Standing};
use crate::engine::pace::sample;
use crate::engine::policy::renewal_period;
use crate::engine::registry::Registry;
use crate::park::ServiceWaker;
use crate::seam::{Claim, Store};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::Moment;

/// The pause after a failed clean-up: the least at first, then doubled up to a thirtieth of the lease, or the
/// most.
pub(crate) const RETRY_LEAST: Duration = Duration::from_millis(10);
pub(crate) const RETRY_MOST: Duration = Duration::from_secs(1);

/// The state that the watchdog shares with threads that leave it work.
pub(crate) struct WatchdogShared {
    pub(crate) inbox: Mutex<Inbox>,
    /// When the thread looks next, as `Moment::nanos`; the maximum while it is looking.
    pub(crate) next_look: AtomicU64,
    /// Until then, as `Moment::nanos`, the loss of one hold makes all be renewed: a connection has ended, and
    /// only some were asked about.
    pub(crate) sampled_until: AtomicU64,
}

/// The work that waits for the watchdog.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) renewals: Vec<Arc<Hold>>,
    pub(crate) cleanups: Vec<Cleanup>,
    pub(crate) stop: bool,
}

/// A request of unknown outcome, to be undone or repeated until that is certain.
#[derive(Debug)]
pub(crate) struct Cleanup {
    pub(crate) claim: Claim,
    /// The request can have no effect that outlives this: what it may have set ends with its lease. Where it
    /// does not ([`outlasts_leases`](crate::seam::capabilities::Capabilities)), the store has to answer as
    /// well.
    pub(crate) until: Moment,
    /// Before this the owner is to hold what it may hold, also where the client ends sooner.
    pub(crate) from: Moment,
    pub(crate) next: Moment,
    /// How long to pause after the next failure. Others may be waiting for just this, so at first not long:
    /// what broke the request in doubt has often broken this connection too, and a new one does it.
    pub(crate) pause: Duration,
    /// How often the owner was found to hold nothing. Each time the next look is after twice as long: the
    /// longer a request has not come, the less likely it comes, and at worst what it sets ends with its
    /// lease.
    pub(crate) looks: u32,
}

/// The queue of claims in doubt, for any thread.
#[derive(Clone)]
pub(crate) struct CleanupQueue {
    pub(crate) shared: Arc<WatchdogShared>,
    pub(crate) waker: ServiceWaker,
}

impl CleanupQueue {
    /// Takes over a claim whose acquire or release has an unknown outcome: until it is certain that the owner
    /// holds nothing, or until `until`, when the lease has run out and with it what was left (see
    /// [`Cleanup::until`]). The owner number must have been given up.
    pub(crate) fn add(&self, claim: Claim, until: Moment, now: Moment) {
        self.add_from(now, claim, until);
    }

    /// The same, but the owner is to hold what it may hold until `from`.
    pub(crate) fn add_from(&self, from: Moment, claim: Claim, until: Moment) {
        self.shared.inbox.lock().cleanups.push(Cleanup {
            claim,
            until,
            from,
            next: from,
            pause: RETRY_LEAST,
            looks: 0,
        });
        self.waker.wake();
    }
}

/// Tells a store of several servers of a hold that was renewed under this claim and has ended meanwhile: the
/// request that ended it may have come to a server before that was given it again. A request that ends it
/// later sees to it itself, since it comes after. Pairs with `Majority::ended_meanwhile`.
pub(crate) fn tell_if_ended(store: &dyn Store, hold: &Hold, claim: &Claim, now: Moment) {
    if (hold.is_releasing() || matches!(hold.standing(now), Standing::Lost(_)))
        && let Some(majority) = store.capabilities().majority
    {
        majority.ended_meanwhile(claim);
    }
}

/// The work that the timer leaves to the watchdog.
#[derive(Clone)]
pub(crate) struct RenewalOrders {
    pub(crate) cleanups: CleanupQueue,
    pub(crate) command_timeout: Duration,
}

impl RenewalOrders {
    pub(crate) fn renew(&self, mut holds: Vec<Arc<Hold>>) {
        if !holds.is_empty() {
            self.cleanups.shared.inbox.lock().renewals.append(&mut holds);
            self.cleanups.waker.wake();
        }
    }

    /// Has these renewed, wherever they are among those that wait. Until the watchdog has done with them,
    /// only their ends are looked for by the timer.
    pub(crate) fn queue(&self, registry: &Registry, mut holds: Vec<Arc<Hold>>, now: Moment) {
        holds.retain(|hold| {
            let is_new = hold.set_queued(true);
            registry.put(hold, slot_of(hold, now));
            is_new
        });
        self.renew(holds);
    }

    /// A connection has ended, and what is held may be gone with its server: asks about some. If one of them
    /// turns out to be lost, all are asked about (see `Round::renew`); if none, the end of a connection was
    /// all there was.
    pub(crate) fn renew_some(&self, registry: &Registry, lease: Duration, now: Moment) {
        let (some, has_more) = sample(registry.renewed());
        if has_more {
            let until = now.plus(renewal_period(lease)).nanos();
            self.cleanups.shared.sampled_until.store(until, Ordering::SeqCst);
        }
        self.queue(registry, some, now);
    }

    /// A hold is lost, but a renewal of it may have had it run on, or may yet: nobody holds it then, until
    /// that is undone.
    pub(crate) fn undo_renewal(&self, hold: &Arc<Hold>, now: Moment) {
        let claim = hold.claim();
        let until = now.plus(claim.lease).plus(self.command_timeout);
        self.cleanups.add(claim, until, now);
    }
}
