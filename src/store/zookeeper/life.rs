//! A session as the servers know it, and how long a hold can count on it.

use std::sync::Arc;
use std::time::Duration;

use crate::lock::store::Bound;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::{Moment, window};

/// One session, from its grant to its expiry. Connections come and go under it.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
    /// After so long without a sign of life the servers end it, and all that it made.
    pub(super) timeout: Duration,
    over: AtomicBool,
    window: Mutex<Arc<Window>>,
}

/// Until when holds can count on the session. One that has closed stays so: the holders were told. What is granted after
/// the session turned out to live has a new one.
#[derive(Debug, Default)]
pub(super) struct Window {
    until: AtomicU64,
    closed: AtomicBool,
}

/// What holds count on of a session that was heard of: three quarters. The servers pass on signs of life, to the one
/// that counts, up to half a tick late; a tick is at most half a session (`minSessionTimeout`), so a quarter covers it.
fn usable(timeout: Duration) -> Duration {
    window(timeout - timeout / 4)
}

impl Life {
    pub(super) fn new(id: i64, password: Vec<u8>, timeout: Duration) -> Life {
        Life { id, password, timeout, over: AtomicBool::new(false), window: Mutex::default() }
    }

    pub(super) fn window(&self) -> Arc<Window> {
        Arc::clone(&self.window.lock())
    }

    /// The leader answered a request that was sent at `sent`.
    pub(super) fn confirm(&self, sent: Moment) {
        let until = sent.plus(usable(self.timeout)).nanos();
        self.window.lock().until.fetch_max(until, Ordering::AcqRel);
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
        let mut current = self.window.lock();
        let lapses = current.until.load(Ordering::Acquire) != 0 && current.until() <= now;
        if lapses {
            current.close();
            *current = Arc::default();
        }
        lapses
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

    #[test]
    fn holds_count_on_three_quarters_of_a_session_from_the_last_request_that_was_answered() {
        let life = Life::new(1, Vec::new(), SECOND * 40);
        let sent = Moment::from_nanos(1).plus(SECOND);
        life.confirm(sent.plus(SECOND));
        life.confirm(sent);
        assert_eq!(life.window().until(), sent.plus(SECOND).plus(Duration::from_millis(29_700)));
    }

    #[test]
    fn a_window_that_has_closed_stays_so_and_the_session_goes_on_with_another() {
        let life = Life::new(1, Vec::new(), SECOND * 40);
        let sent = Moment::from_nanos(1);
        life.confirm(sent);
        let window = life.window();
        assert!(!life.lapse(sent.plus(SECOND * 29)) && life.lapse(life.lapses_at()));
        life.confirm(sent.plus(SECOND * 35));
        assert!(window.is_closed() && window.until() < sent);
        assert!(life.window().until() > sent.plus(SECOND * 60));
        life.end();
        assert!(life.is_over() && life.window().is_closed());
    }
}
