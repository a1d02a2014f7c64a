//! One client's access to a memory store that a test has fail: requests are refused, answers are lost or
//! slow.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, LockName, Owner};
use crate::inspect::Inspection;
use crate::park::take_time;
use crate::seam::capabilities::Capabilities;
use crate::seam::directory::{Directory, Listing, Page, Place, Posted, Wanted, Written};
use crate::seam::inspection::Inspect;
use crate::seam::subscription::Subscription;
use crate::seam::{
    Answer, Answered, Attempt, Claim, Counting, Failure, Handoff, Kind, Pending, Release, Snapshot, Store,
};
use crate::stores::memory::access::MemoryAccess;
use crate::stores::memory::fault::{Fault, Wrong};
use crate::stores::memory::store::MemoryStore;
use crate::sync::Waker;
use crate::time::{Clock, Moment};

impl MemoryStore {
    /// Has every request of every client fail like this until [`heal`](Self::heal).
    ///
    /// Calls that wait try again for the client's `patience`, which a [`ManualClock`](crate::ManualClock)
    /// that stands still does not end: in tests with one thread, make the client by
    /// [`build_in_memory`](crate::ClientBuilder::build_in_memory) with a
    /// [`patience`](crate::ClientBuilder::patience) of zero, or use calls that do not wait. Messages to
    /// waiters are not affected.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::{Fault, LockClient, MemoryStore};
    ///
    /// let store = MemoryStore::new();
    /// let client = LockClient::in_memory_with(&store);
    /// store.fail(Fault::Refused);
    /// assert!(client.lock("a").try_lock().unwrap_err().is_retryable());
    /// store.heal();
    /// assert!(client.lock("a").try_lock()?);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fail(&self, fault: Fault) {
        self.shared.wrong.lock().fault = Some(fault);
    }

    /// Has every answer come so much later, until [`heal`](Self::heal). One that comes later than the
    /// client's command time-out does not come at all: the request is carried out, and its outcome is
    /// unknown.
    ///
    /// With a [`ManualClock`](crate::ManualClock) a call moves the clock on by as much, so that tests with
    /// one thread do not wait. The watchdog's requests take the time that the test lets pass.
    pub fn slow_down(&self, delay: Duration) {
        self.shared.wrong.lock().delay = delay;
    }

    /// Ends what [`fail`](Self::fail), [`fail_client`](Self::fail_client) and [`slow_down`](Self::slow_down)
    /// began.
    pub fn heal(&self) {
        *self.shared.wrong.lock() = Wrong::default();
        self.shared.cut_off.lock().clear();
    }

    /// Forgets all that is kept under this key, as a server does that lost its data; whether there was
    /// anything. Nobody is notified: a holder finds out when it renews or releases. Fencing tokens go on from
    /// where they were.
    ///
    /// The key is the lock's name after prefix and mapping.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::{LockClient, ManualClock, MemoryStore};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let store = MemoryStore::with_clock(clock.clone());
    /// let guard = LockClient::in_memory_with(&store).lock("a").acquire()?;
    /// assert!(store.forget("a"));
    /// clock.advance(Duration::from_secs(10)); // the watchdog renews a lease of 30 s by then
    /// assert!(guard.check().unwrap_err().is_lost());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn forget(&self, key: impl AsRef<str>) -> bool {
        self.shared.state.lock().forget(key.as_ref())
    }

    /// One client's access.
    pub(crate) fn open(&self) -> FaultyAccess {
        FaultyAccess { access: self.access(), id: Arc::new(()) }
    }
}

/// One client's access to a store that may do what it should not.
pub(crate) struct FaultyAccess {
    access: MemoryAccess,
    /// Tells this client's faults from others'.
    id: Arc<()>,
}

impl FaultyAccess {
    /// Has this client's requests fail until the store is healed; `None` ends it.
    pub(crate) fn fail(&self, fault: Option<Fault>) {
        let mut cut_off = self.access.shared.cut_off.lock();
        cut_off.retain(|(id, _)| !Arc::ptr_eq(id, &self.id));
        cut_off.extend(fault.map(|fault| (Arc::clone(&self.id), fault)));
    }

    pub(crate) fn is_of(&self, store: &MemoryStore) -> bool {
        Arc::ptr_eq(&self.access.shared, &store.shared)
    }

    /// The fault of a request that begins now.
    fn wrong(&self) -> Wrong {
        let mut wrong = *self.access.shared.wrong.lock();
        let cut_off = self.access.shared.cut_off.lock();
        if let Some((_, fault)) = cut_off.iter().find(|(id, _)| Arc::ptr_eq(id, &self.id)) {
            wrong.fault = Some(*fault);
        }
        wrong
    }

    /// Carries out one request, or not. `ask` is asked at most once, and all that it does belongs to one
    /// round trip.
    fn ask_for<T>(
        &self,
        deadline: Moment,
        ask: impl FnOnce(&MemoryAccess) -> T,
        failed: impl FnOnce(Answer<()>) -> T,
    ) -> T {
        let Wrong { fault, delay } = self.wrong();
        match fault {
            Some(Fault::Refused) => return failed(Err(Failure::Refused(Fault::Refused.error()))),
            Some(Fault::RequestLost) => return failed(Err(Failure::Unknown(Fault::RequestLost.error()))),
            Some(Fault::AnswerLost) => {
                drop(ask(&self.access));
                return failed(Err(Failure::Unknown(Fault::AnswerLost.error())));
            }
            None if delay.is_zero() => return ask(&self.access),
            None => {}
        }
        // Carried out at once; only its answer takes time.
        let answer = ask(&self.access);
        let clock: &Clock = &self.access.shared.clock;
        let left = deadline.since(clock.now());
        take_time(clock, delay.min(left));
        if delay < left {
            return answer;
        }
        let words = "the memory store was made slower than the command time-out";
        failed(Err(Failure::Unknown(Error::new(ErrorKind::TimedOut, "use", words).with_unknown_outcome())))
    }

    fn ask<T>(&self, deadline: Moment, ask: impl FnOnce(&MemoryAccess) -> Answer<T>) -> Answer<T> {
        self.ask_for(deadline, ask, |failed| match failed {
            Err(Failure::Unknown(error)) => Err(Failure::Unknown(error)),
            Err(Failure::Refused(error)) => Err(Failure::Refused(error)),
            Ok(()) => Err(Failure::Refused(Fault::Refused.error())),
        })
    }

    fn ask_all<T>(
        &self,
        claims: &[Claim],
        deadline: Moment,
        ask: impl FnOnce(&MemoryAccess) -> Vec<Answer<T>>,
    ) -> Vec<Answer<T>> {
        self.ask_for(deadline, ask, |failed| {
            let one = |_: &Claim| match &failed {
                Err(Failure::Unknown(error)) => Err(Failure::Unknown(error.copy())),
                Err(Failure::Refused(error)) => Err(Failure::Refused(error.copy())),
                Ok(()) => Err(Failure::Refused(Fault::Refused.error())),
            };
            claims.iter().map(one).collect()
        })
    }
}

impl Store for FaultyAccess {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            itself: Some(self),
            directory: Some(self),
            listing: Some(self),
            ..self.access.capabilities()
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        self.access.check_name(kind, name)
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        self.ask(deadline, |access| access.attempt(claim, count, deadline))
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        self.ask(deadline, |access| access.release(claim, left, deadline))
    }

    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        if !from.kind.is_handed_off() {
            return None;
        }
        let answer: Answer<Handoff> = self.ask(deadline, |access| access.hand_off_now(from, to));
        Some(Box::new(Answered(answer)))
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        self.ask_all(claims, deadline, |access| access.renew(claims, deadline))
    }

    fn abandon(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        self.ask_all(claims, deadline, |access| access.abandon(claims, deadline))
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        self.ask(deadline, |access| access.expire_in(claim, rest, deadline))
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        self.ask(deadline, |access| access.force(kind, name, deadline))
    }

    fn count(&self, claim: &Claim, what: &Counting, deadline: Moment) -> Answer<Option<i64>> {
        self.ask(deadline, |access| access.count(claim, what, deadline))
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.access.listen(claim, waker)
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        self.access.message_count(claim)
    }

    fn poll_completions(&self) -> bool {
        self.access.poll_completions()
    }

    fn close(&self) {
        self.access.close();
    }
}

impl Inspect for FaultyAccess {
    fn inspect(
        &self,
        kind: Kind,
        name: &LockName,
        owner: Owner,
        deadline: Moment,
    ) -> Answer<Option<Snapshot>> {
        self.ask(deadline, |access| access.inspect(kind, name, owner, deadline))
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        self.ask(deadline, |access| access.describe(name, deadline))
    }
}

impl Listing for FaultyAccess {
    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        self.ask(deadline, |access| access.locks(wanted, from, deadline))
    }
}

/// The client's own entry is kept whatever happens: nobody waits for it, and no test asked for it.
impl Directory for FaultyAccess {
    fn write(&self, client: ClientId, text: &str, lease: Duration, deadline: Moment, done: Written) {
        self.access.write(client, text, lease, deadline, done);
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        self.access.remove(client, deadline)
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        self.ask(deadline, |access| access.read(clients, deadline))
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        self.ask(deadline, |access| access.clients(from, deadline))
    }
}

#[cfg(test)]
mod tests {
    use crate::seam::methods_in;

    #[test]
    fn every_call_that_the_memory_store_answers_is_passed_on() {
        let calls = methods_in(include_str!("access.rs"), "impl Store for MemoryAccess ");
        let passed_on = methods_in(include_str!("faults.rs"), "impl Store for FaultyAccess ");
        let missing: Vec<_> = calls.iter().filter(|call| !passed_on.contains(call)).collect();
        assert!(calls.len() > 10 && missing.is_empty(), "{missing:?}");
    }
}
