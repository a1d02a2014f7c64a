//! Clocks, moments and leases; nothing else reads the time.
//!
//! Moments count nanoseconds of a clock that never steps and that runs while the machine is suspended
//! (`system::nanos`). The server's TTL runs during that time too, so the hold must end here as well. On Unix
//! `std::time::Instant` stops during a suspension; this crate uses it only for callers' deadlines.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, Waker};

/// A point on a [`Clock`]; also used as a deadline, where `NEVER` means that there is none.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    /// Overflow yields `NEVER`.
    pub(crate) fn plus(self, duration: Duration) -> Moment {
        match u64::try_from(duration.as_nanos()) {
            Ok(nanos) => Moment(self.0.saturating_add(nanos)),
            Err(_overflow) => Moment::NEVER,
        }
    }

    /// The moment that lies `duration` before this one; at the earliest the clock's beginning.
    pub(crate) fn minus(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_sub(nanos(duration)))
    }

    /// Time since `earlier`; zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn nanos(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) enum Clock {
    #[default]
    System,
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn now(&self) -> Moment {
        match self {
            Clock::System => system_now(),
            Clock::Manual(clock) => clock.now(),
        }
    }

    pub(crate) fn halfway(&self, deadline: Moment) -> Moment {
        let now = self.now();
        now.plus(deadline.since(now) / 2)
    }

    pub(crate) fn after(&self, duration: Duration) -> Moment {
        self.now().plus(duration)
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that takes an Instant in")]
    pub(crate) fn at(&self, instant: Instant) -> Moment {
        self.after(instant.saturating_duration_since(Instant::now()))
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that hands an Instant out")]
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        let now = Instant::now();
        now.checked_add(moment.since(self.now())).unwrap_or(now)
    }
}

#[cfg(not(leasehold_shuttle))]
fn system_now() -> Moment {
    Moment(crate::system::nanos())
}

#[cfg(leasehold_shuttle)]
fn system_now() -> Moment {
    Moment(crate::sync::now())
}

/// The wall clock, in milliseconds since 1970; never used for timing.
#[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
pub(crate) fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, millis)
}

/// How a hold's lease ends: when renewals end, or after a fixed time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lease {
    /// The client's lease, renewed until released.
    Renewed,
    /// Ends by itself after this time; not renewed.
    Fixed(Duration),
    /// The explicit lease of a multi-lock: renewed until all its locks are acquired, then `Fixed`.
    Kept(Duration),
}

impl Lease {
    pub(crate) fn is_renewed(self) -> bool {
        !matches!(self, Lease::Fixed(_))
    }
}

/// Shortest lease: stores count milliseconds.
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_millis(1);
/// Longest lease, about 100 years, which every store can hold.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
pub(crate) const LONGEST_IN_WORDS: &str = "100 years";

/// Checks a lease and rounds it up to whole milliseconds.
pub(crate) fn checked_lease(action: &'static str, lease: Duration) -> Result<Duration> {
    checked_span(action, "a lease", lease)
}

pub(crate) fn checked_span(action: &'static str, what: &str, lease: Duration) -> Result<Duration> {
    Error::require(action, lease >= SHORTEST_LEASE, || {
        format!("{what} of {lease:?} is too short: the least is {SHORTEST_LEASE:?}")
    })?;
    Error::require(action, lease <= LONGEST_LEASE, || {
        format!("{what} of {lease:?} is too long: the most is {LONGEST_IN_WORDS}")
    })?;
    let whole = Duration::from_millis(millis(lease));
    Ok(if whole < lease { whole + Duration::from_millis(1) } else { whole })
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The part of a lease that a hold counts on, from the sending of the request: 1 % less, for the drift
/// between this machine's clock and the server's (the margin in Redlock's description).
pub(crate) fn window(lease: Duration) -> Duration {
    lease - lease / 100
}

/// A clock that stands still until a test moves it.
///
/// Give it to a [`MemoryStore`](crate::MemoryStore). Moving the clock runs whatever falls due on the way
/// (renewals, expiries, ends of waits), always in the same order. An hour takes microseconds.
///
/// # Examples
/// ```
/// use leasehold::{LockClient, ManualClock, MemoryStore};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let client = LockClient::in_memory_with(&MemoryStore::with_clock(clock.clone()));
/// let lock = client.get_lock("nightly");
/// let renewed = lock.acquire()?; // no lease given
/// clock.advance(Duration::from_secs(3600));
/// assert!(renewed.check().is_ok());
/// drop(renewed);
///
/// lock.lock_with_lease(Duration::from_secs(5))?; // never renewed
/// clock.advance(Duration::from_secs(6));
/// assert!(!lock.is_locked()?);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct ManualClock {
    shared: Arc<ManualState>,
}

#[derive(Default)]
struct ManualState {
    now: AtomicU64,
    state: Mutex<ClockSleepers>,
    all_asleep: Condvar,
}

#[derive(Default)]
struct ClockSleepers {
    next_id: u64,
    wakers: Vec<(u64, Waker)>,
    /// Clients' threads that act by the clock: id, and until when each sleeps; `None` while it works.
    services: Vec<(u64, Option<Moment>)>,
}

impl ManualClock {
    /// Makes a clock at zero.
    #[must_use]
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    pub(crate) fn now(&self) -> Moment {
        Moment(self.shared.now.load(Ordering::SeqCst))
    }

    /// Moves the clock by `duration`, stopping wherever a client has work, such as a renewal.
    ///
    /// # Blocking
    /// Until every client on this clock has done its work.
    pub fn advance(&self, duration: Duration) {
        let target = self.now().plus(duration);
        loop {
            let mut state = self.shared.state.lock();
            // A working service may still schedule work before `target`.
            while state.services.iter().any(|(_, until)| until.is_none()) {
                self.shared.all_asleep.wait(&mut state);
            }
            let now = self.now();
            if now >= target {
                return;
            }
            let next = state.services.iter().filter_map(|(_, until)| *until).min().unwrap_or(target);
            let step = next.clamp(now, target);
            self.shared.now.store(step.0, Ordering::SeqCst);
            for (_, until) in &mut state.services {
                if until.is_some_and(|until| until <= step) {
                    *until = None; // about to wake
                }
            }
            for (id, waker) in &state.wakers {
                // A service that sleeps beyond this step has nothing to do before, so it is not woken.
                let sleeps_on = |(service, until): &(u64, Option<Moment>)| service == id && until.is_some();
                if !state.services.iter().any(sleeps_on) {
                    waker.wake();
                }
            }
        }
    }

    /// Signals `waker` whenever the clock moves, until [`forget`](Self::forget) gets the returned id.
    pub(crate) fn register(&self, waker: Waker) -> u64 {
        let mut state = self.shared.state.lock();
        state.next_id += 1;
        let id = state.next_id;
        state.wakers.push((id, waker));
        id
    }

    pub(crate) fn forget(&self, id: u64) {
        let mut state = self.shared.state.lock();
        state.wakers.retain(|(other, _)| *other != id);
        state.services.retain(|(other, _)| *other != id);
        self.shared.all_asleep.notify_all();
    }

    /// Signals the service `id`, and counts it as working. The mutex covers both steps, so that the thread
    /// cannot take the signal, work and report itself asleep in between.
    pub(crate) fn wake_service(&self, id: u64, waker: &Waker) {
        let mut state = self.shared.state.lock();
        if let Some((_, until)) = state.services.iter_mut().find(|(other, _)| *other == id) {
            *until = None;
        }
        waker.wake();
    }

    /// The service `id` reports until when it sleeps; `None`: it works. If `wake_service` has signalled it
    /// just before, it counts as working.
    pub(crate) fn service(&self, id: u64, asleep_until: Option<Moment>) {
        let mut state = self.shared.state.lock();
        let signalled = state.wakers.iter().any(|(other, waker)| *other == id && waker.is_set());
        let asleep_until = asleep_until.filter(|_| !signalled);
        match state.services.iter_mut().find(|(other, _)| *other == id) {
            Some((_, until)) => *until = asleep_until,
            None => state.services.push((id, asleep_until)), // its first report
        }
        self.shared.all_asleep.notify_all();
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&Duration::from_nanos(self.now().0)).finish()
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A random duration between the bounds, so that waiters that began together do not stay together.
pub(crate) fn random_between((least, most): (Duration, Duration)) -> Duration {
    let random = RandomState::new().hash_one(0_u8);
    let span = nanos(most.saturating_sub(least));
    least + Duration::from_nanos(random.checked_rem(span).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_pauses_stay_within_their_bounds_and_differ() {
        let bounds = (Duration::from_millis(1_000), Duration::from_millis(1_200));
        let drawn: Vec<_> = (0..1_000).map(|_| random_between(bounds)).collect();
        assert!(drawn.iter().all(|pause| (bounds.0..bounds.1).contains(pause)));
        assert!(drawn.iter().collect::<std::collections::HashSet<_>>().len() > 900);
        assert_eq!(random_between((bounds.0, bounds.0)), bounds.0);
    }

    #[test]
    fn an_overflowing_moment_means_never() {
        assert_eq!(Clock::System.after(Duration::MAX), Moment::NEVER);
        assert_eq!(Moment::NEVER.plus(Duration::from_secs(1)), Moment::NEVER);
    }

    #[test]
    fn leases_are_rounded_up_to_milliseconds_and_bounded() {
        let checked = |d| checked_lease("lock", d);
        assert_eq!(checked(Duration::from_micros(1_001)).unwrap(), Duration::from_millis(2));
        assert_eq!(checked(Duration::from_millis(1)).unwrap(), Duration::from_millis(1));
        for bad in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
            let error = checked(bad).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput, "{bad:?}");
        }
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let mut last = Clock::System.now();
        for _ in 0..10_000 {
            let now = Clock::System.now();
            assert!(now >= last);
            last = now;
        }
    }

    /// The test runs itself again in a time namespace, whose boot clock is a day ahead.
    #[cfg(all(target_os = "linux", not(leasehold_shuttle)))]
    #[test]
    fn the_clock_runs_on_while_the_machine_sleeps() {
        use rustix::time::{ClockId, clock_gettime};
        const INSIDE: &str = "LEASEHOLD_TEST_SLEPT_FOR_A_DAY";
        let seconds = |clock| clock_gettime(clock).tv_sec;
        if std::env::var_os(INSIDE).is_some() {
            assert!(seconds(ClockId::Boottime) - seconds(ClockId::Monotonic) > 80_000);
            let before = seconds(ClockId::Boottime);
            let now = i64::try_from(Clock::System.now().nanos() / 1_000_000_000).unwrap();
            assert!((before..=seconds(ClockId::Boottime)).contains(&now), "{now} is another clock's");
            return;
        }
        let slept = ["--time", "--fork", "--boottime", "86400"];
        let unshare = |program: &std::ffi::OsStr, arguments: &[&str]| {
            let mut command = std::process::Command::new("unshare");
            command.args(slept).arg(program).args(arguments).env(INSIDE, "1").output()
        };
        if !unshare("true".as_ref(), &[]).is_ok_and(|output| output.status.success()) {
            println!("SKIPPED the clock of leases: no time namespace can be made here");
            return;
        }
        let name = std::thread::current().name().unwrap().to_owned();
        let output = unshare(std::env::current_exe().unwrap().as_os_str(), &["--exact", &name]).unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
