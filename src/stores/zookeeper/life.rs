//! A session as the servers know it, and how long a hold can count on it.
//!
//! The leader ends a session without a sign of life for its time-out. It gets one when a client connects: it
//! is asked then. It gets none from a request, even from one that it answers itself: the server that a client
//! is connected to notes whose requests came, and hands that in each time the leader pings it, every half
//! tick. The signs of life that have been handed in follow from the answers on a connection, which [`Trail`]
//! reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::seam::Bound;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::{Moment, window};

/// One session, from its grant to its expiry. Connections come and go under it.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
    /// The time without a sign of life after which the servers end it, and all that it made.
    pub(super) timeout: Duration,
    over: AtomicBool,
    trail: Mutex<Trail>,
    window: Mutex<Arc<Window>>,
}

/// Until when holds can count on the session. One that has closed stays so: the holders were notified. A
/// grant after the session turned out to live has a new one.
#[derive(Debug, Default)]
pub(super) struct Window {
    until: AtomicU64,
    closed: AtomicBool,
}

/// The leader's answers on one connection, in their order, which is also that of all that passes between the
/// leader and the server of that connection.
///
/// If the leader pinged after it gave one answer and before it gave a later one, then the server had handed
/// in the sign of life of the first one's request when it passed the later answer on. It may have died with
/// that still on its way; not if the leader then answers a third request, sent after the second answer came.
#[derive(Debug, Default)]
struct Trail(VecDeque<LifeStep>);

/// An answer of the leader's.
#[derive(Debug, Clone, Copy)]
struct LifeStep {
    /// When the request left, and when the answer came.
    sent: Moment,
    answered: Moment,
    /// For how long the leader has run for certain, since some time before.
    ran: Duration,
    /// When the last request left whose sign of life had been handed in when this answer came.
    handed_in: Option<Moment>,
}

impl Trail {
    /// Takes an answer. Returns when the last request left whose sign of life the leader has received for
    /// certain.
    fn take(&mut self, sent: Moment, answered: Moment, timeout: Duration) -> Option<Moment> {
        // A tick is half a session at most (`minSessionTimeout`), and the leader pings twice in a tick. The
        // rest is for pings that come late.
        let a_ping = timeout / 4 + timeout / 32;
        // Between two answers more may have passed because the leader stood still, and pinged nobody.
        let run = |from: &LifeStep, to: Moment| from.ran + to.since(from.answered).min(timeout / 8);
        let before = self.0.iter().rev().find(|step| step.answered <= sent).copied();
        let ran = before.map_or(Duration::ZERO, |step| run(&step, sent));
        let is_handed_in = |step: &&LifeStep| step.ran + a_ping <= ran;
        let handed_in = self.0.iter().rev().find(is_handed_in).map(|step| step.sent);
        while self.0.get(1).is_some_and(|step| is_handed_in(&step)) {
            self.0.pop_front();
        }
        // Under load not each answer is worth a place.
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

    /// A new connection: the leader was asked for the session after `greeted`; it is there now.
    pub(super) fn connected(&self, greeted: Moment, now: Moment) {
        *self.trail.lock() = Trail::default();
        self.confirm(greeted, now);
    }

    /// On this connection the leader carried out a request that was sent at `sent`; its answer has come now.
    pub(super) fn answered(&self, sent: Moment, now: Moment) {
        let heard_of = self.trail.lock().take(sent, now, self.timeout);
        if let Some(heard_of) = heard_of {
            self.confirm(heard_of, now);
        }
    }

    /// The leader has received a sign of life of the session after `moment`. A window whose time has come is
    /// never made longer: its holders may have been notified, before the keeping thread came to close it.
    fn confirm(&self, moment: Moment, now: Moment) {
        let mut current = self.window.lock();
        close_if_over(&mut current, now);
        current.until.fetch_max(moment.plus(window(self.timeout)).nanos(), Ordering::AcqRel);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The servers have ended it.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.window.lock().close();
    }

    /// Closes the window if its time has come; whether it did.
    pub(super) fn lapse(&self, now: Moment) -> bool {
        close_if_over(&mut self.window.lock(), now)
    }

    /// When [`lapse`](Self::lapse) is due.
    pub(super) fn lapses_at(&self) -> Moment {
        let until = self.window.lock().until.load(Ordering::Acquire);
        match until {
            0 => Moment::NEVER,
            until => Moment::from_nanos(until),
        }
    }
}

/// Closes the window if its time has come, and opens the next; whether it did.
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

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1).plus(SECOND * 100).plus(SECOND * u32::try_from(seconds).unwrap())
    }

    /// When the last request left that holds count on.
    fn counted_from(life: &Life) -> Moment {
        life.window().until().minus(window(life.timeout))
    }

    /// A request each two seconds, as the keeping thread sends them, each answered after `delay`.
    fn beat(life: &Life, seconds: std::ops::Range<u64>, delay: Duration) {
        for second in seconds.step_by(2) {
            life.answered(at(second), at(second).plus(delay));
        }
    }

    #[test]
    fn holds_count_on_a_session_from_the_connection_on() {
        let life = life();
        life.connected(at(0), at(0));
        assert_eq!(life.window().until(), at(0).plus(window(life.timeout)));
    }

    #[test]
    fn an_answer_alone_is_no_sign_that_the_leader_has_heard_of_the_session() {
        let life = life();
        life.connected(at(0), at(0));
        life.answered(at(20), at(20));
        life.answered(at(21), at(21));
        assert_eq!(counted_from(&life), at(0));
    }

    #[test]
    fn a_request_counts_when_a_ping_has_passed_and_the_leader_answered_once_more() {
        let life = life();
        life.connected(at(0), at(0));
        beat(&life, 2..13, SECOND / 2);
        // The first was answered at 2.5 s. One sent more than nine seconds later went out behind a ping, and
        // shows that it was answered; only one sent after that shows that the leader has the reply.
        assert_eq!(counted_from(&life), at(0));
        life.answered(at(14), at(14));
        assert_eq!(counted_from(&life), at(2));
        life.answered(at(16), at(16));
        assert_eq!(counted_from(&life), at(2).plus(SECOND * 2));
    }

    #[test]
    fn while_all_is_well_more_than_half_a_session_is_always_left() {
        let life = life();
        life.connected(at(0), at(0));
        for second in (2..200).step_by(2) {
            let left = life.window().until().since(at(second).plus(SECOND / 2));
            assert!(left > life.timeout / 2, "{left:?} at {second} s");
            life.answered(at(second), at(second).plus(SECOND / 2));
        }
    }

    #[test]
    fn requests_in_a_row_show_no_more_than_one() {
        let life = life();
        life.connected(at(0), at(0));
        beat(&life, 2..13, SECOND / 4);
        // All sent before the answer that shows the ping.
        (0..10).for_each(|_| life.answered(at(12), at(13)));
        assert_eq!(counted_from(&life), at(0));
    }

    #[test]
    fn a_holder_that_stood_still_counts_on_what_was_handed_in_before() {
        let life = life();
        life.connected(at(0), at(0));
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
    fn a_leader_that_stood_still_pinged_nobody() {
        let life = life();
        life.connected(at(0), at(0));
        // It answered at 2 s, and what was sent at 4 to 18 s only at 20 s, before it pinged again.
        life.answered(at(2), at(2));
        for second in (4..20).step_by(2) {
            life.answered(at(second), at(20));
        }
        life.answered(at(21), at(21));
        assert_eq!(counted_from(&life), at(0));
    }

    /// Neither more than on a session's first connection, nor less, however soon its requests follow those on
    /// the last.
    #[test]
    fn what_one_connection_said_shows_nothing_on_the_next() {
        let (life, first) = (life(), life());
        life.connected(at(0), at(0));
        beat(&life, 0..11, Duration::ZERO);
        let again = at(10).plus(SECOND / 4);
        [&life, &first].iter().for_each(|life| life.connected(again, again));
        for sent in std::iter::once(again.plus(SECOND / 8)).chain((12..41).step_by(2).map(at)) {
            [&life, &first].iter().for_each(|life| life.answered(sent, sent));
            assert_eq!(life.window().until(), first.window().until(), "{:?} s", sent.since(at(0)));
        }
        assert!(counted_from(&life) > at(20));
    }

    #[test]
    fn under_load_little_is_remembered() {
        let life = life();
        life.connected(at(0), at(0));
        (0..100_000).for_each(|millis| {
            let sent = at(0).plus(Duration::from_millis(millis));
            life.answered(sent, sent.plus(Duration::from_millis(3)));
        });
        assert!(life.trail.lock().0.len() <= 64, "{}", life.trail.lock().0.len());
        assert!(counted_from(&life) > at(88));
    }

    #[test]
    fn a_window_whose_time_has_come_is_never_made_longer() {
        let life = life();
        life.connected(at(0), at(0));
        let window = life.window();
        let (until, late) = (window.until(), at(33));
        assert!(until < late);
        // Before the keeping thread has come to close it.
        life.connected(late, late);
        assert!(window.is_closed() && life.window().until() > late);
        beat(&life, 34..57, Duration::ZERO);
        let window = life.window();
        assert!(!window.is_closed() && window.until() > at(66));
        // An answer that comes after the window's end, to a request from before.
        life.answered(at(58), window.until().plus(SECOND));
        assert!(window.is_closed());
    }

    #[test]
    fn a_window_that_has_closed_stays_so_and_the_session_goes_on_with_another() {
        let life = life();
        life.connected(at(0), at(0));
        let window = life.window();
        assert!(!life.lapse(at(31)) && life.lapse(life.lapses_at()));
        life.connected(at(33), at(33));
        assert!(window.is_closed() && window.until() < at(0));
        assert!(life.window().until() > at(60));
        life.end();
        assert!(life.is_over() && life.window().is_closed());
    }
}
