//! A memory store that a test has fail: requests are refused, answers are lost or slow.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::park::take_time;
use crate::seam::{Answer, Claim, Failure};
use crate::stores::memory::access::MemoryAccess;
use crate::stores::memory::fault::{Fault, Faults};
use crate::stores::memory::store::MemoryStore;
use crate::time::Moment;

impl MemoryStore {
    /// Has every request of every client fail like this until [`heal`](Self::heal).
    ///
    /// Calls that wait try again for the client's `retry_timeout`, which a [`ManualClock`](crate::ManualClock)
    /// that stands still does not end: in tests with one thread, make the client by
    /// [`build_in_memory`](crate::ClientBuilder::build_in_memory) with a
    /// [`retry_timeout`](crate::ClientBuilder::retry_timeout) of zero, or use calls that do not wait. Messages to
    /// waiters are not affected.
    ///
    /// # Examples
    /// ```
    /// use leasehold::{Fault, LockClient, MemoryStore};
    ///
    /// let store = MemoryStore::new();
    /// let client = LockClient::in_memory_with(&store);
    /// store.fail(Fault::Refused);
    /// assert!(client.get_lock("a").try_lock().unwrap_err().is_retryable());
    /// store.heal();
    /// assert!(client.get_lock("a").try_lock()?);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fail(&self, fault: Fault) {
        self.shared.faults.lock().of_all = Some(fault);
    }

    /// Has every answer come so much later, until [`heal`](Self::heal). One that comes later than the
    /// client's command time-out does not come at all: the request is carried out, and its outcome is
    /// unknown.
    ///
    /// With a [`ManualClock`](crate::ManualClock) a call moves the clock on by as much, so that tests with
    /// one thread do not wait. The watchdog's requests take the time that the test lets pass.
    pub fn slow_down(&self, delay: Duration) {
        self.shared.faults.lock().delay = delay;
    }

    /// Ends what [`fail`](Self::fail), [`fail_client`](Self::fail_client) and [`slow_down`](Self::slow_down)
    /// began.
    pub fn heal(&self) {
        *self.shared.faults.lock() = Faults::default();
    }

    /// Forgets all that is kept under this key, as a server does that lost its data; whether there was
    /// anything. Nobody is notified: a holder finds out when it renews or releases. Fencing tokens go on from
    /// where they were.
    ///
    /// The key is the lock's name after prefix and mapping.
    ///
    /// # Examples
    /// ```
    /// use leasehold::{LockClient, ManualClock, MemoryStore};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let store = MemoryStore::with_clock(clock.clone());
    /// let guard = LockClient::in_memory_with(&store).get_lock("a").acquire()?;
    /// assert!(store.forget("a"));
    /// clock.advance(Duration::from_secs(10)); // the watchdog renews a lease of 30 s by then
    /// assert!(guard.check().unwrap_err().is_lost());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn forget(&self, key: impl AsRef<str>) -> bool {
        self.shared.state.lock().forget(key.as_ref())
    }
}

impl MemoryAccess {
    /// Has this client's requests fail until the store is healed.
    pub(crate) fn fail(&self, fault: Fault) {
        let mut faults = self.shared.faults.lock();
        faults.of_some.retain(|(id, _)| !Arc::ptr_eq(id, &self.id));
        faults.of_some.push((Arc::clone(&self.id), fault));
    }

    pub(crate) fn is_of(&self, store: &MemoryStore) -> bool {
        Arc::ptr_eq(&self.shared, &store.shared)
    }

    /// Carries out one request, or not. `ask` is asked at most once, and all that it does belongs to one
    /// round trip.
    pub(super) fn ask<T>(&self, deadline: Moment, ask: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let (fault, delay) = self.shared.faults.lock().of(&self.id);
        match fault {
            Some(Fault::Refused) => return Failure::refused(Fault::Refused.error()),
            Some(Fault::RequestLost) => return Err(Failure::Unknown(Fault::RequestLost.error())),
            Some(Fault::AnswerLost) => {
                drop(ask());
                return Err(Failure::Unknown(Fault::AnswerLost.error()));
            }
            None if delay.is_zero() => return ask(),
            None => {}
        }
        // Carried out at once; only its answer takes time.
        let answer = ask();
        let clock = &self.shared.clock;
        let left = deadline.since(clock.now());
        take_time(clock, delay.min(left));
        if delay < left {
            return answer;
        }
        let words = "the memory store was made slower than the command time-out";
        Err(Failure::Unknown(Error::new(ErrorKind::TimedOut, "use", words).with_unknown_outcome()))
    }

    /// The same for several claims that fail as one.
    pub(super) fn ask_all<T>(
        &self,
        claims: &[Claim],
        deadline: Moment,
        ask: impl Fn(&Claim) -> Answer<T>,
    ) -> Vec<Answer<T>> {
        match self.ask(deadline, || Ok(claims.iter().map(ask).collect())) {
            Ok(answers) => answers,
            Err(failure) => claims.iter().map(|_| Err(failure.copy())).collect(),
        }
    }
}
