//! Waits for events, with time limits to which the machine's stalls are added.
//!
//! | to say | use |
//! | --- | --- |
//! | it is true sooner or later | [`eventually`], [`wait_until`] |
//! | it is true within a promised time | [`comes_within`], [`comes_true_within`], [`within`], [`in_time`] |
//! | it is true all the time | [`throughout`] |
//! | a message comes | [`receive`] |
//! | a hold is renewed | [`await_renewal`] |
//! | time has to pass | [`let_pass`] |

use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, RecvTimeoutError, after};

use super::stalls::{stalled_since, watch};

/// How late a test may see an event on a busy machine with two cores: ε in `docs/guarantees.md`.
pub const SLACK: Duration = ms(250);

/// The time limit for what must happen sooner or later. A test that exceeds the limit fails.
pub const LONG: Duration = Duration::from_secs(30);

/// A lease for holds that are renewed. It is so long that a busy machine renews them in time.
pub const RENEWED: Duration = ms(4_000);

pub fn leased(lease: Duration) -> leasehold::AcquireOptions {
    leasehold::AcquireOptions::new().lease(lease)
}

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The present time. Tests read the clock here only; the library, too, has one such place.
#[expect(clippy::disallowed_methods, reason = "tests measure from outside")]
pub fn now() -> Instant {
    Instant::now()
}

/// The time of a clock that all processes of this machine share.
#[cfg(unix)]
pub fn mono() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.expect("the clock begins with the machine's start"), nanos.expect("below a second"))
}

/// The wall clock, since on this system processes share no other clock.
#[cfg(windows)]
#[expect(clippy::disallowed_methods, reason = "tests measure from outside")]
pub fn mono() -> Duration {
    std::time::SystemTime::UNIX_EPOCH.elapsed().expect("the clock is past 1970")
}

pub fn instant_of(time: Duration) -> Instant {
    let now = now();
    now.checked_sub(mono().saturating_sub(time)).unwrap_or(now)
}

/// Starts the stall meter. Stalls before its start are not known.
pub fn watch_for_stalls() {
    watch();
    stalled_since(now());
}

/// The allowed delay of an event since `start`: [`SLACK`] and the machine's stalls.
pub fn slack_since(start: Instant) -> Duration {
    SLACK + stalled_since(start)
}

/// Sleeps. `reason` says why the test cannot wait for a condition instead.
pub fn let_pass(span: Duration, reason: &str) {
    assert!(!reason.is_empty());
    pass(span);
}

fn pass(span: Duration) {
    after(span).recv().expect("a timer fires");
}

/// Evaluates `cond` until it is true or `limit` is over. Returns the last result.
#[must_use = "whether it came true"]
pub fn eventually(limit: Duration, cond: impl FnMut() -> bool) -> bool {
    ask_until(limit, ms(20), cond)
}

/// As [`eventually`]. The pauses between evaluations grow from a millisecond to `longest_pause`.
fn ask_until(limit: Duration, longest_pause: Duration, mut cond: impl FnMut() -> bool) -> bool {
    let end = now() + limit;
    let mut pause = ms(1);
    loop {
        if cond() {
            return true;
        }
        let left = end.saturating_duration_since(now());
        if left.is_zero() {
            return false;
        }
        pass(pause.min(left));
        pause = (pause * 2).min(longest_pause);
    }
}

#[track_caller]
pub fn wait_until(what: &str, limit: Duration, cond: impl FnMut() -> bool) {
    assert!(eventually(limit, cond), "not within {limit:?}: {what}");
}

/// Waits until `cond` is true, and returns how long that took: at most `limit` and all stalls, or it panics.
#[track_caller]
pub fn comes_true_within(limit: Duration, cond: impl FnMut() -> bool) -> Duration {
    let start = now();
    let came = ask_until(limit + LONG, ms(10), cond);
    let (took, stalled) = (start.elapsed(), stalled_since(start));
    assert!(came, "this has not come about within {limit:?}");
    assert!(
        took <= limit + stalled,
        "this took {took:?}, not {limit:?}; the machine stood still for {stalled:?}"
    );
    took
}

/// Panics if the time since `start` is longer than `promised`, [`SLACK`] and the machine's stalls.
#[track_caller]
pub fn within(start: Instant, promised: Duration, what: &str) {
    let (took, stalled) = (start.elapsed(), stalled_since(start));
    assert!(
        took <= promised + SLACK + stalled,
        "{what} took {took:?}, promised are {promised:?} and {SLACK:?} (the machine itself stalled {stalled:?})"
    );
}

/// Runs `work` and returns its result. Panics if that takes longer than `promised`, as [`within`] measures.
#[track_caller]
pub fn in_time<T>(promised: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let start = now();
    let value = work();
    within(start, promised, what);
    value
}

/// Waits until `cond` is true. Panics if that is later than `promised` after `start`, as [`within`] measures.
#[track_caller]
pub fn comes_within(start: Instant, promised: Duration, what: &str, cond: impl FnMut() -> bool) {
    let came = eventually(promised + SLACK + LONG, cond);
    within(start, promised, what);
    assert!(came, "{what} did not come");
}

/// Checks `condition` every 20 ms, and panics if it is false within `span`.
#[track_caller]
pub fn throughout(span: Duration, mut condition: impl FnMut() -> bool) {
    let start = now();
    loop {
        let holds = condition();
        // A check that ends after the span proves nothing about the span.
        let is_over = start.elapsed() >= span;
        assert!(
            holds || is_over,
            "this did not stay so: it changed after {:?} of {span:?}; the machine stood still for {:?} of that",
            start.elapsed(),
            stalled_since(start)
        );
        if is_over {
            return;
        }
        // The checks pause, because they may be requests, and many tests may check at the same time.
        pass(ms(20));
    }
}

/// The message, if it arrives within `limit` and the machine's stalls. The wait itself is longer, because the
/// stalls are known only afterwards.
pub fn receive<T>(from: &Receiver<T>, limit: Duration) -> Result<T, RecvTimeoutError> {
    let start = now();
    let received = from.recv_timeout(limit + LONG);
    let took = start.elapsed();
    if took <= limit + stalled_since(start) { received } else { Err(RecvTimeoutError::Timeout) }
}

/// Waits until a hold's remaining time grows: the store has then confirmed a renewal.
#[track_caller]
pub fn await_renewal(remaining: impl Fn() -> Duration) {
    let mut last = remaining();
    wait_until("a renewal", LONG, || remaining() > std::mem::replace(&mut last, remaining()));
}

pub fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 2]
}
