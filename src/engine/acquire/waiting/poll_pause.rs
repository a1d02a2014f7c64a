//! Until when a waiter asks nothing.

use crate::time::Moment;

#[derive(Debug, Default)]
pub(super) struct PollPause {
    until: Until,
    /// When the store is asked although a hold of this process exists.
    next_poll: Option<Moment>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Until {
    #[default]
    Now,
    /// The waiter was woken without a reason to ask, and sleeps on; the next wake-up ends the pause.
    Next(Moment),
    Firm(Moment),
}

impl PollPause {
    pub(super) fn sleep_on(&mut self, until: Moment) {
        if !self.is_firm() {
            self.until = Until::Next(until);
        }
    }

    pub(super) fn pause(&mut self, until: Moment) {
        self.until = Until::Firm(until);
    }

    pub(super) fn is_firm(&self) -> bool {
        matches!(self.until, Until::Firm(_))
    }

    pub(super) fn take(&mut self, now: Moment) -> Option<Moment> {
        match self.until {
            Until::Firm(until) if now < until => Some(until),
            Until::Next(until) | Until::Firm(until) => {
                self.until = Until::Now;
                Some(until).filter(|until| now < *until)
            }
            Until::Now => None,
        }
    }

    /// The time at which the waiter polls although this process has a hold: the time already set, or else `first`.
    pub(super) fn poll_by(&mut self, first: Moment) -> Moment {
        *self.next_poll.get_or_insert(first)
    }

    pub(super) fn end_polls(&mut self) {
        self.next_poll = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_a_pause_outlasts_a_wake_up() {
        let now = Moment::from_nanos(1);
        let later = now.plus(Duration::from_millis(20));
        let mut poll_pause = PollPause::default();
        assert_eq!(poll_pause.take(now), None);
        poll_pause.sleep_on(later);
        assert_eq!((poll_pause.take(now), poll_pause.take(now)), (Some(later), None));
        poll_pause.pause(later);
        poll_pause.sleep_on(now);
        assert_eq!((poll_pause.take(now), poll_pause.take(now)), (Some(later), Some(later)));
        assert_eq!((poll_pause.take(later), poll_pause.is_firm()), (None, false));
        poll_pause.sleep_on(now);
        assert_eq!(poll_pause.take(now), None, "that time has come");
    }

    #[test]
    fn a_set_poll_stays_until_the_next_request() {
        let (first, second) = (Moment::from_nanos(1), Moment::from_nanos(2));
        let mut poll_pause = PollPause::default();
        assert_eq!((poll_pause.poll_by(first), poll_pause.poll_by(second)), (first, first));
        poll_pause.end_polls();
        assert_eq!(poll_pause.poll_by(second), second);
    }
}
