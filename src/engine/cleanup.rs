//! Work for the watchdog, from any thread: claims in doubt, and holds to renew.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::{Hold, Standing};
use crate::park::ServiceWaker;
use crate::seam::{Claim, Store};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::time::Moment;

/// The pause after a failed clean-up: the least at first, then doubled up to a thirtieth of the lease, or the most.
pub(crate) const RETRY_LEAST: Duration = Duration::from_millis(10);
pub(crate) const RETRY_MOST: Duration = Duration::from_secs(1);

/// The state that the watchdog shares with threads that leave it work.
pub(crate) struct WatchdogShared {
    pub(crate) inbox: Mutex<Inbox>,
    /// When the thread looks next, as `Moment::nanos`; the maximum while it is looking.
    pub(crate) next_look: AtomicU64,
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
    /// The request can have no effect that outlives this: what it may have set ends with its lease. Where it does not
    /// ([`outlasts_leases`](crate::seam::capabilities::Capabilities)), the store has to answer as well.
    pub(crate) until: Moment,
    pub(crate) next: Moment,
    /// How long to pause after the next failure. Others may be waiting for just this, so at first not long: what
    /// broke the request in doubt has often broken this connection too, and a new one does it.
    pub(crate) pause: Duration,
}

/// The queue of claims in doubt, for any thread.
#[derive(Clone)]
pub(crate) struct CleanupQueue {
    pub(crate) shared: Arc<WatchdogShared>,
    pub(crate) waker: ServiceWaker,
}

impl CleanupQueue {
    /// Takes over a claim whose acquire or release has an unknown outcome: until it is certain that the owner holds
    /// nothing, or until `until`, when the lease has run out and with it what was left (see [`Cleanup::until`]). The owner number must have been given up.
    pub(crate) fn add(&self, claim: Claim, until: Moment, now: Moment) {
        self.shared.inbox.lock().cleanups.push(Cleanup { claim, until, next: now, pause: RETRY_LEAST });
        self.waker.wake();
    }
}

/// Tells a store of several servers of a hold that was renewed under this claim and has ended meanwhile: the request that ended it may
/// have come to a server before that was given it again. A request that ends it later sees to it itself, since it comes after.
/// Pairs with `Majority::ended_meanwhile`.
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

    /// A hold is lost, but a renewal of it may have had it run on, or may yet: nobody holds it then, until that is
    /// undone.
    pub(crate) fn undo_renewal(&self, hold: &Arc<Hold>, now: Moment) {
        hold.retire_owner();
        let claim = hold.claim();
        let until = now.plus(claim.lease).plus(self.command_timeout);
        self.cleanups.add(claim, until, now);
    }
}
