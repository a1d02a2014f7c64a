//! A memory store whose requests a test makes fail: refused, lost, or answered late.

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
    /// Makes every request of every client fail like this until [`heal`](Self::heal).
    ///
    /// Calls that wait try again for the client's `retry_timeout`, which a
    /// [`ManualClock`](crate::ManualClock) that stands still does not end: in tests with one thread, make the
    /// client by [`build_in_memory`](crate::ClientBuilder::build_in_memory) with a
    /// [`retry_timeout`](crate::ClientBuilder::retry_timeout) of zero, or use calls that do not wait.
    /// Messages to waiters are not affected.
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

    /// Delays every answer by this much until [`heal`](Self::heal). An answer that would come after the
    /// client's command time-out is lost: the store carries out the request, and its outcome is unknown.
    ///
    /// With a [`ManualClock`](crate::ManualClock) each call moves the clock on by the delay, so that tests
    /// with one thread do not wait. The watchdog's requests move no clock.
    pub fn slow_down(&self, delay: Duration) {
        self.shared.faults.lock().delay = delay;
    }

    /// Ends what [`fail`](Self::fail), [`fail_client`](Self::fail_client) and [`slow_down`](Self::slow_down)
    /// began.
    pub fn heal(&self) {
        *self.shared.faults.lock() = Faults::default();
    }

    /// Forgets everything under this key, as a server that lost its data does, and returns whether there was
    /// anything. No client is notified: a holder finds out when it renews or releases. Fencing tokens go on
    /// from where they were.
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
    pub(crate) fn fail(&self, fault: Fault) {
        let mut faults = self.shared.faults.lock();
        faults.of_some.retain(|(id, _)| !Arc::ptr_eq(id, &self.id));
        faults.of_some.push((Arc::clone(&self.id), fault));
    }

    pub(crate) fn is_of(&self, store: &MemoryStore) -> bool {
        Arc::ptr_eq(&self.shared, &store.shared)
    }

    /// Carries out one request, or not. `ask` is called at most once, as one round trip.
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
        // The store carries the request out at once; only the answer takes time.
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
