//! A session on the servers, and until when a hold can count on it.
//!
//! The leader ends a session without a sign of life for the session's time-out. Connecting is a sign of life.
//! An answered request may not be one yet: the client's server notes which sessions sent requests, and
//! reports them to the leader when the leader pings it, twice a tick. [`Trail`] derives from a connection's
//! answers which requests have certainly been reported.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::seam::Bound;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::{Moment, window};

/// A session, from its grant to its end. It can use several connections one after the other.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
    /// The servers end the session, with its nodes, after this time without a sign of life.
    pub(super) timeout: Duration,
    over: AtomicBool,
    trail: Mutex<Trail>,
    window: Mutex<Arc<Window>>,
}

/// The time until which holds can count on the session. A closed window stays closed, because its holders
/// were notified. Later grants get a new window.
#[derive(Debug, Default)]
pub(super) struct Window {
    until: AtomicU64,
    closed: AtomicBool,
}

/// The leader's answers on one connection. The client's server gets them, and the leader's pings, in order.
///
/// Three requests, A, B and C, prove that A counts as a sign of life. If the leader pings the server between
/// its answers to A and B, the server has reported A before it passes on the answer to B. The report can
/// still be lost. But C, sent after the answer to B, follows the report on the same connection to the leader:
/// once the leader answers C, it has the report.
#[derive(Debug, Default)]
struct Trail(VecDeque<LifeStep>);

#[derive(Debug, Clone, Copy)]
struct LifeStep {
    sent: Moment,
    answered: Moment,
    /// The time from the trail's first answer to this one, without possible pauses of the leader.
    ran: Duration,
    /// The sending time of the latest request that the server had certainly reported before this answer.
    handed_in: Option<Moment>,
}

impl Trail {
    fn take(&mut self, sent: Moment, answered: Moment, timeout: Duration) -> Option<Moment> {
        // `minSessionTimeout` is two ticks, so a tick is at most half the time-out. The leader pings twice a
        // tick, so in each quarter of the time-out. The added 1/32 allows for late pings.
        let a_ping = timeout / 4 + timeout / 32;
        // Between answers the leader counts as running for 1/8 of the time-out at most: it may have paused.
        let run = |from: &LifeStep, to: Moment| from.ran + to.since(from.answered).min(timeout / 8);
        let before = self.0.iter().rev().find(|step| step.answered <= sent).copied();
        let ran = before.map_or(Duration::ZERO, |step| run(&step, sent));
        let is_handed_in = |step: &&LifeStep| step.ran + a_ping <= ran;
        let handed_in = self.0.iter().rev().find(is_handed_in).map(|step| step.sent);
        while self.0.get(1).is_some_and(|step| is_handed_in(&step)) {
            self.0.pop_front();
        }
        // Kept answers are at least 1/64 of the time-out apart, so that the trail stays short under load.
        let last = self.0.back().copied();
        if last.is_none_or(|last| last.sent.plus(timeout / 64) <= sent) {
            let ran = last.map_or(Duration::ZERO, |last| run(&last, answered));
            self.0.push_back(LifeStep { sent, answered, ran, handed_in });
        }
        before?.handed_in
    }
}

impl Life {
    pub(super) fn new(id: i64, password: Vec<u8>, timeout: Duration) -> Life {
        let (trail, window) = (Mutex::default(), Mutex::default());
        Life { id, password, timeout, over: AtomicBool::new(false), trail, window }
    }

    pub(super) fn window(&self) -> Arc<Window> {
        Arc::clone(&self.window.lock())
    }

    /// Notes a new connection, for which the leader checked the session after `greeted`.
    pub(super) fn connected(&self, greeted: Moment, now: Moment) {
        *self.trail.lock() = Trail::default();
        self.confirm(greeted, now);
    }

    /// Notes that the leader has carried out a request that was sent at `sent`.
    pub(super) fn answered(&self, sent: Moment, now: Moment) {
        let heard_of = self.trail.lock().take(sent, now, self.timeout);
        if let Some(heard_of) = heard_of {
            self.confirm(heard_of, now);
        }
    }

    /// Notes that the leader received a sign of life after `moment`. A window that has ended is not
    /// prolonged, because its holders may have been notified.
    fn confirm(&self, moment: Moment, now: Moment) {
        let mut current = self.window.lock();
        close_if_over(&mut current, now);
        current.until.fetch_max(moment.plus(window(self.timeout)).nanos(), Ordering::AcqRel);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.window.lock().close();
    }

    pub(super) fn lapse(&self, now: Moment) -> bool {
        close_if_over(&mut self.window.lock(), now)
    }

    pub(super) fn lapses_at(&self) -> Moment {
        let until = self.window.lock().until.load(Ordering::Acquire);
        match until {
            0 => Moment::NEVER,
            until => Moment::from_nanos(until),
        }
    }
}

/// If the window has ended, closes it, begins the next, and returns `true`.
fn close_if_over(current: &mut Arc<Window>, now: Moment) -> bool {
    let is_over = current.until.load(Ordering::Acquire) != 0 && current.until() <= now;
    if is_over {
        current.close();
        *current = Arc::default();
    }
    is_over
}

impl Window {
    pub(super) fn closed() -> Window {
        Window { until: AtomicU64::new(0), closed: AtomicBool::new(true) }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Bound for Window {
    fn until(&self) -> Moment {
        let until = if self.is_closed() { 0 } else { self.until.load(Ordering::Acquire) };
        Moment::from_nanos(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn life() -> Life {
        Life::new(1, Vec::new(), SECOND * 32)
    }

    fn connected() -> Life {
        let life = life();
        life.connected(at(0), at(0));
        life
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1).plus(SECOND * 100).plus(SECOND * u32::try_from(seconds).unwrap())
    }

    /// The sending time of the request from which the window counts.
    fn counted_from(life: &Life) -> Moment {
        life.window().until().minus(window(life.timeout))
    }

    /// Requests every two seconds, as the client sends them to keep the session, each answered after `delay`.
    fn beat(life: &Life, seconds: std::ops::Range<u64>, delay: Duration) {
        for second in seconds.step_by(2) {
            life.answered(at(second), at(second).plus(delay));
        }
    }

    #[test]
    fn a_sessions_window_begins_with_its_connection() {
        let life = connected();
        assert_eq!(life.window().until(), at(0).plus(window(life.timeout)));
    }

    #[test]
    fn a_request_answered_but_not_yet_reported_prolongs_no_window() {
        let life = connected();
        life.answered(at(20), at(20));
        life.answered(at(21), at(21));
        assert_eq!(counted_from(&life), at(0));
    }

    #[test]
    fn a_request_prolongs_the_window_once_the_leader_has_its_report() {
        let life = connected();
        beat(&life, 2..13, SECOND / 2);
        // The request of 2 s was answered at 2.5 s. The answer to that of 12 s shows that the leader has
        // pinged the server since. Only a request sent after this answer shows that the report has arrived.
        assert_eq!(counted_from(&life), at(0));
        life.answered(at(14), at(14));
        assert_eq!(counted_from(&life), at(2));
        life.answered(at(16), at(16));
        assert_eq!(counted_from(&life), at(2).plus(SECOND * 2));
    }

    #[test]
    fn requests_every_two_seconds_keep_half_the_session_timeout_left() {
        let life = connected();
        for second in (2..200).step_by(2) {
            let left = life.window().until().since(at(second).plus(SECOND / 2));
            assert!(left > life.timeout / 2, "{left:?} at {second} s");
            life.answered(at(second), at(second).plus(SECOND / 2));
        }
    }

    #[test]
    fn requests_sent_before_a_leader_ping_is_proven_prolong_no_window() {
        let life = connected();
        beat(&life, 2..13, SECOND / 4);
        (0..10).for_each(|_| life.answered(at(12), at(13)));
        assert_eq!(counted_from(&life), at(0));
    }

    #[test]
    fn soon_after_a_pause_the_window_counts_from_requests_before_it() {
        let life = connected();
        beat(&life, 2..41, Duration::ZERO);
        let before = counted_from(&life);
        assert!(before < at(40));
        for second in [56, 57, 58] {
            life.answered(at(second), at(second));
            assert!(counted_from(&life) <= at(40), "{second}");
        }
        beat(&life, 60..81, Duration::ZERO);
        assert!(counted_from(&life) > at(60));
    }

    #[test]
    fn a_paused_leaders_late_answers_prolong_no_window() {
        let life = connected();
        // The leader answers the request of 2 s, then stands still until 20 s. It does not ping the client's
        // server meanwhile, so that server may not have reported the later requests to the leader.
        life.answered(at(2), at(2));
        for second in (4..20).step_by(2) {
            life.answered(at(second), at(20));
        }
        life.answered(at(21), at(21));
        assert_eq!(counted_from(&life), at(0));
    }

    /// The session `fresh` has only the second connection. `life` has both, and must get the same window.
    #[test]
    fn answers_on_an_earlier_connection_prolong_no_window() {
        let (life, fresh) = (connected(), life());
        beat(&life, 0..11, Duration::ZERO);
        let again = at(10).plus(SECOND / 4);
        [&life, &fresh].iter().for_each(|life| life.connected(again, again));
        for sent in std::iter::once(again.plus(SECOND / 8)).chain((12..41).step_by(2).map(at)) {
            [&life, &fresh].iter().for_each(|life| life.answered(sent, sent));
            assert_eq!(life.window().until(), fresh.window().until(), "{:?} s", sent.since(at(0)));
        }
        assert!(counted_from(&life) > at(20));
    }

    #[test]
    fn the_record_of_a_sessions_answers_has_bounded_size() {
        let life = connected();
        (0..100_000).for_each(|millis| {
            let sent = at(0).plus(Duration::from_millis(millis));
            life.answered(sent, sent.plus(Duration::from_millis(3)));
        });
        assert!(life.trail.lock().0.len() <= 64, "{}", life.trail.lock().0.len());
        assert!(counted_from(&life) > at(88));
    }

    #[test]
    fn an_expired_window_is_never_extended() {
        let life = connected();
        let window = life.window();
        let (until, late) = (window.until(), at(33));
        assert!(until < late);
        // The window has ended, but the thread that keeps the session alive has not closed it yet. The new
        // connection must close it, and must not extend it.
        life.connected(late, late);
        assert!(window.is_closed() && life.window().until() > late);
        beat(&life, 34..57, Duration::ZERO);
        let window = life.window();
        assert!(!window.is_closed() && window.until() > at(66));
        life.answered(at(58), window.until().plus(SECOND));
        assert!(window.is_closed());
    }

    #[test]
    fn a_lapsed_sessions_window_stays_closed_after_reconnecting() {
        let life = connected();
        let window = life.window();
        assert!(!life.lapse(at(31)) && life.lapse(life.lapses_at()));
        life.connected(at(33), at(33));
        assert!(window.is_closed() && window.until() < at(0));
        assert!(life.window().until() > at(60));
        life.end();
        assert!(life.is_over() && life.window().is_closed());
    }
}
