//! The in-process FIFO of one lock: only its head talks to the store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_channel::Sender;

use crate::time::wake;

/// One thread's place in a queue.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    /// Set once the thread has to sleep; a head that never sleeps needs none.
    waker: OnceLock<Sender<()>>,
    is_head: AtomicBool,
    nudged: AtomicBool,
}

impl Ticket {
    /// Whoever sets the waker looks at `is_head` and at the local holds afterwards: what happened before found nobody
    /// to wake. Pairs with `become_head` and `nudge`, which change first and wake second.
    pub(crate) fn set_waker(&self, waker: &Sender<()>) {
        self.waker.get_or_init(|| waker.clone());
    }

    pub(crate) fn is_head(&self) -> bool {
        self.is_head.load(Ordering::SeqCst)
    }

    fn become_head(&self) {
        self.is_head.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Tells the head that the lock was released here: worth an attempt at once.
    pub(crate) fn nudge(&self) {
        self.nudged.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn take_nudge(&self) -> bool {
        self.nudged.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            wake(waker);
        }
    }
}

/// The queue of one lock.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    tickets: VecDeque<Arc<Ticket>>,
}

impl Queue {
    pub(crate) fn join(&mut self) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        if self.tickets.is_empty() {
            ticket.become_head();
        }
        self.tickets.push_back(Arc::clone(&ticket));
        ticket
    }

    /// Leaves, from whatever place; if it was the head's, the next becomes head and is woken. Whoever becomes head
    /// attempts first, so a wake-up that the leaver took and did not use is not lost.
    pub(crate) fn leave(&mut self, ticket: &Arc<Ticket>) {
        self.tickets.retain(|other| !Arc::ptr_eq(other, ticket));
        if ticket.is_head()
            && let Some(next) = self.tickets.front()
        {
            next.become_head();
        }
    }

    pub(crate) fn head(&self) -> Option<&Arc<Ticket>> {
        self.tickets.front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    pub(crate) fn wake_all(&self) {
        self.tickets.iter().for_each(|ticket| ticket.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    #[test]
    fn the_first_to_join_is_head_and_the_rest_follow_in_order() {
        let mut queue = Queue::default();
        let tickets: Vec<_> = (0..3).map(|_| queue.join()).collect();
        assert!(tickets[0].is_head() && !tickets[1].is_head());
        queue.leave(&tickets[0]);
        assert!(tickets[1].is_head() && !tickets[2].is_head());
        queue.leave(&tickets[1]);
        queue.leave(&tickets[2]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_waiter_that_gives_up_in_the_middle_changes_no_heads() {
        let mut queue = Queue::default();
        let tickets: Vec<_> = (0..3).map(|_| queue.join()).collect();
        queue.leave(&tickets[1]);
        assert!(tickets[0].is_head() && !tickets[2].is_head());
        queue.leave(&tickets[0]);
        assert!(tickets[2].is_head());
    }

    #[test]
    fn the_new_head_is_woken() {
        let mut queue = Queue::default();
        let (first, second) = (queue.join(), queue.join());
        let (waker, signal) = bounded(1);
        second.set_waker(&waker);
        queue.leave(&first);
        assert!(signal.try_recv().is_ok() && second.is_head());
        second.nudge();
        assert!(signal.try_recv().is_ok() && second.take_nudge() && !second.take_nudge());
    }
}
