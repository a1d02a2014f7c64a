//! The local queue of one lock: only its head asks the store.
//!
//! Waiters that [spin](crate::LockClient::get_spin_lock) have a head of their own: it sleeps as its back-off
//! says, and waiters that are notified of releases must not wait for that. A hand-off goes to the first
//! waiter of both.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::deadlock::Deadlock;
use crate::engine::handoff::PendingHandoff;
use crate::ident::ThreadMarker;
use crate::seam::{Claim, Kind};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, OnceLock, Waker};
use crate::time::Moment;

#[derive(Debug, Default)]
pub(crate) struct Ticket {
    /// Set before the thread sleeps; a head that never sleeps needs none.
    waker: OnceLock<Waker>,
    /// Asks at a pace of its own.
    spins: bool,
    /// The first of those who spin, or of those who do not.
    is_head: AtomicBool,
    nudged: AtomicBool,
    state: Mutex<TicketState>,
}

/// Locked after the local lock's mutex.
#[derive(Debug, Default)]
struct TicketState {
    offer: Offer,
    /// Threads that wait until the hand-off to this one is settled.
    followers: Vec<Waker>,
    /// The thread, once it sleeps: for people.
    sleeper: Option<Sleeper>,
    /// The wait's name for other clients, once it has one.
    published: Option<PublishedWait>,
    /// The deadlock for which this wait is to end.
    ends_for: Option<Arc<Deadlock>>,
}

/// A wait's name for other clients: see [`Ticket::publish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishedWait {
    /// Unique in this process.
    pub(crate) id: u64,
    /// Since when it waits by this machine's wall clock, in milliseconds. Compared with other machines' to
    /// choose one of several waits; any order will do that is the same for all.
    pub(crate) at_ms: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Sleeper {
    /// The number under which it would own the lock.
    pub(crate) number: u64,
    pub(crate) thread: Arc<ThreadMarker>,
    pub(crate) since: Moment,
    pub(crate) kind: Kind,
    /// It reacquires a lock that was given up for a condition.
    pub(crate) takes_again: bool,
    /// For a reader: waiting writers go first.
    pub(crate) writers_first: bool,
}

/// Whether a releasing thread can give the lock to a sleeping waiter.
///
/// | from        | to          | by                                                                     |
/// |-------------|-------------|------------------------------------------------------------------------|
/// | `Closed`    | `Open`      | the waiter, before it sleeps                                           |
/// | `Open`      | `Promised`  | the releaser, under the local lock's mutex; it then sends the hand-off |
/// | `Promised`  | `Given`     | the releaser, when the request is on its way                           |
/// | `Promised`  | `Open`      | the releaser, when it could not be sent                                |
/// | `Open`      | `Closed`    | the waiter, before it tries or goes for itself                         |
/// | `Given`     | `Receiving` | the waiter, which reads the answer                                     |
/// | `Receiving` | `Closed`    | the waiter, when it and the releaser have acted on the answer          |
///
/// While `Promised` the waiter may not leave: it may have the lock in a moment. From `Promised` to `Closed`
/// the lock counts as held here (`LocalLock::held_here`).
#[derive(Debug, Default)]
pub(crate) enum Offer {
    #[default]
    Closed,
    Open(Claim),
    Promised(Claim),
    Given(PendingHandoff),
    Receiving,
}

/// The state that a waiter finds when it withdraws its offer.
pub(crate) enum ClosedOffer {
    Unused,
    /// A releaser has promised the lock and is sending the request: look again when woken.
    Promised,
    /// The lock is on its way.
    Given(PendingHandoff),
}

impl Ticket {
    /// Afterwards the thread looks at `is_head` and at the local holds: an earlier event found nobody to
    /// wake. Pairs with `become_head` and `nudge`, which change first and wake second.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        self.waker.get_or_init(|| waker.clone());
    }

    /// The waiter is about to sleep; whether for the first time under its number.
    pub(crate) fn note_sleeper(&self, sleeper: Sleeper) -> bool {
        let number = sleeper.number;
        let before = self.state.lock().sleeper.replace(sleeper);
        before.is_none_or(|before| before.number != number)
    }

    pub(crate) fn sleeper(&self) -> Option<Sleeper> {
        self.state.lock().sleeper.clone()
    }

    /// The wait's name for other clients, made by `make` the first time. Called under the local lock's mutex,
    /// so that a waiter that has left knows whether others know it. Pairs with `Waiting::take_or_give_up`.
    pub(crate) fn publish(&self, make: impl FnOnce() -> PublishedWait) -> PublishedWait {
        *self.state.lock().published.get_or_insert_with(make)
    }

    pub(crate) fn is_published(&self) -> bool {
        self.state.lock().published.is_some()
    }

    /// The wait is to end because of this deadlock.
    pub(crate) fn end_for(&self, ring: &Arc<Deadlock>) {
        // Sets first, wakes second. Pairs with `Waiting::check_queue`.
        self.state.lock().ends_for.get_or_insert_with(|| Arc::clone(ring));
        self.wake();
    }

    pub(crate) fn ends_for(&self) -> Option<Arc<Deadlock>> {
        self.state.lock().ends_for.clone()
    }

    pub(crate) fn is_head(&self) -> bool {
        self.is_head.load(Ordering::SeqCst)
    }

    fn become_head(&self) {
        self.is_head.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// The lock was released here: worth an attempt at once.
    pub(crate) fn nudge(&self) {
        self.nudged.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn take_nudge(&self) -> bool {
        self.nudged.swap(false, Ordering::SeqCst)
    }

    #[cfg(all(test, not(leasehold_shuttle)))]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state.lock().offer, Offer::Open(_))
    }

    #[cfg(all(test, not(leasehold_shuttle)))]
    pub(crate) fn followers(&self) -> usize {
        self.state.lock().followers.len()
    }

    /// By the waiter: a releaser may give it the lock from now on.
    pub(crate) fn open(&self, claim: Claim) {
        let offer = &mut self.state.lock().offer;
        if matches!(offer, Offer::Closed | Offer::Open(_)) {
            *offer = Offer::Open(claim);
        }
    }

    /// By the waiter: it wants to go on by itself.
    pub(crate) fn close(&self) -> ClosedOffer {
        let offer = &mut self.state.lock().offer;
        match offer {
            Offer::Promised(_) => return ClosedOffer::Promised,
            Offer::Receiving => return ClosedOffer::Unused,
            Offer::Closed | Offer::Open(_) | Offer::Given(_) => {}
        }
        let Offer::Given(handoff) = std::mem::take(offer) else { return ClosedOffer::Unused };
        *offer = Offer::Receiving;
        ClosedOffer::Given(handoff)
    }

    /// By the waiter: what it was given is settled, either way.
    pub(crate) fn received(&self) {
        let mut state = self.state.lock();
        state.offer = Offer::Closed;
        let followers = std::mem::take(&mut state.followers);
        drop(state);
        followers.iter().for_each(Waker::wake);
    }

    /// Wakes `waker` when the hand-off to this waiter is settled; `false`: there is none.
    pub(crate) fn wake_when_settled(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        let is_receiving = state.offer.is_receiving();
        if is_receiving {
            state.followers.push(waker.clone());
        }
        is_receiving
    }

    pub(crate) fn is_given(&self) -> bool {
        matches!(self.state.lock().offer, Offer::Given(_))
    }

    /// By the releaser: promises the lock, if the waiter sleeps for it.
    pub(crate) fn promise(&self) -> Option<Claim> {
        let offer = &mut self.state.lock().offer;
        let Offer::Open(claim) = &*offer else { return None };
        let claim = claim.clone();
        *offer = Offer::Promised(claim.clone());
        Some(claim)
    }

    /// By the releaser: the lock is on its way.
    pub(crate) fn give(&self, handoff: PendingHandoff) {
        self.state.lock().offer = Offer::Given(handoff);
        self.wake();
    }

    /// By the releaser: the request could not be sent.
    pub(crate) fn withdraw(&self) {
        let mut state = self.state.lock();
        if let Offer::Promised(claim) = std::mem::take(&mut state.offer) {
            state.offer = Offer::Open(claim);
        }
        let followers = std::mem::take(&mut state.followers);
        drop(state);
        self.wake(); // it may be waiting to leave
        followers.iter().for_each(Waker::wake);
    }

    /// Whether the lock is promised or on its way to this waiter, and that is not settled.
    pub(crate) fn is_receiving(&self) -> bool {
        self.state.lock().offer.is_receiving()
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

impl Offer {
    fn is_receiving(&self) -> bool {
        matches!(self, Offer::Promised(_) | Offer::Given(_) | Offer::Receiving)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    tickets: VecDeque<Arc<Ticket>>,
    /// How many of them spin: mostly none.
    spinning: usize,
}

impl Queue {
    pub(crate) fn join(&mut self, spins: bool) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket { spins, ..Ticket::default() });
        let alike = if spins { self.spinning } else { self.tickets.len() - self.spinning };
        if alike == 0 {
            ticket.become_head();
        }
        self.spinning += usize::from(spins);
        self.tickets.push_back(Arc::clone(&ticket));
        ticket
    }

    /// If the leaver was a head, the next of its kind becomes head and is woken. A new head attempts first,
    /// so a wake-up that the leaver did not use is not lost.
    pub(crate) fn leave(&mut self, ticket: &Arc<Ticket>) {
        let was_first = self.head().is_some_and(|first| Arc::ptr_eq(first, ticket));
        self.tickets.retain(|other| !Arc::ptr_eq(other, ticket));
        self.spinning -= usize::from(ticket.spins);
        if ticket.is_head()
            && let Some(next) = self.tickets.iter().find(|other| other.spins == ticket.spins)
        {
            next.become_head();
        }
        // The head of the other kind may sleep until the hand-off to the leaver is settled.
        if was_first
            && let Some(first) = self.head()
            && first.spins != ticket.spins
        {
            first.nudge();
        }
    }

    /// A hand-off goes to it.
    pub(crate) fn head(&self) -> Option<&Arc<Ticket>> {
        self.tickets.front()
    }

    /// The lock was released here: worth an attempt at once.
    pub(crate) fn nudge(&self) {
        let Some(first) = self.head() else { return };
        first.nudge();
        if (1..self.tickets.len()).contains(&self.spinning)
            && let Some(other) = self.tickets.iter().find(|other| other.spins != first.spins)
        {
            other.nudge();
        }
    }

    /// The place of its client in the store's queue is gone, which waiters of both kinds counted on.
    pub(crate) fn nudge_apart(&self) {
        if self.spinning > 0 {
            let asking = |ticket: &&Arc<Ticket>| ticket.spins || ticket.is_head();
            self.tickets.iter().filter(asking).for_each(|ticket| ticket.nudge());
        }
    }

    /// The waiters that sleep, or have slept.
    pub(crate) fn sleepers(&self) -> impl Iterator<Item = (&Arc<Ticket>, Sleeper)> {
        self.tickets.iter().filter_map(|ticket| Some((ticket, ticket.sleeper()?)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.tickets.len()
    }

    pub(crate) fn wake_all(&self) {
        self.tickets.iter().for_each(|ticket| ticket.wake());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ident::{ClientId, LockName, Owner, unbound_number};
    use crate::seam::{Kind, QueueMode};

    fn claim() -> Claim {
        Claim {
            waits: true,
            queue_mode: QueueMode::Waits,
            ..Claim::new(
                Kind::Mutex,
                &Arc::new(LockName::new(&Arc::from("a"), "a".to_owned()).unwrap()),
                Owner::new(ClientId::random(), unbound_number()),
                Duration::from_secs(30),
            )
        }
    }

    #[test]
    fn a_withdrawn_promise_leaves_the_offer_open() {
        let ticket = Ticket::default();
        assert!(ticket.promise().is_none(), "it has not asked");
        ticket.open(claim());
        assert!(ticket.promise().is_some());
        assert!(ticket.promise().is_none(), "to one only");
        assert!(matches!(ticket.close(), ClosedOffer::Promised), "it is on its way");
        assert!(ticket.is_receiving());
        let waker = Waker::default();
        assert!(ticket.wake_when_settled(&waker) && !waker.take());
        ticket.withdraw();
        assert!(waker.take() && !ticket.is_receiving());
        assert!(ticket.promise().is_some(), "the next may be told of it");
        assert!(ticket.wake_when_settled(&waker) && !waker.take());
        ticket.received();
        assert!(waker.take());
        assert!(matches!(ticket.close(), ClosedOffer::Unused));
    }

    #[test]
    fn the_first_to_join_is_head() {
        let mut queue = Queue::default();
        let tickets: Vec<_> = (0..3).map(|_| queue.join(false)).collect();
        assert!(tickets[0].is_head() && !tickets[1].is_head());
        queue.leave(&tickets[0]);
        assert!(tickets[1].is_head() && !tickets[2].is_head());
        queue.leave(&tickets[1]);
        queue.leave(&tickets[2]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_leaving_middle_waiter_changes_no_head() {
        let mut queue = Queue::default();
        let tickets: Vec<_> = (0..3).map(|_| queue.join(false)).collect();
        queue.leave(&tickets[1]);
        assert!(tickets[0].is_head() && !tickets[2].is_head());
        queue.leave(&tickets[0]);
        assert!(tickets[2].is_head());
    }

    #[test]
    fn the_new_head_is_woken() {
        let mut queue = Queue::default();
        let (first, second) = (queue.join(false), queue.join(false));
        let waker = Waker::default();
        second.set_waker(&waker);
        queue.leave(&first);
        assert!(waker.take() && second.is_head());
        second.nudge();
        assert!(waker.take() && second.take_nudge() && !second.take_nudge());
    }
    #[test]
    fn a_wait_is_new_once_for_each_number() {
        let ticket = Ticket::default();
        let sleeper = |number| Sleeper {
            number,
            thread: ThreadMarker::current(),
            since: Moment::from_nanos(0),
            kind: Kind::Mutex,
            takes_again: false,
            writers_first: false,
        };
        assert_eq!(
            [1, 1, 2, 2].map(|number| ticket.note_sleeper(sleeper(number))),
            [true, false, true, false]
        );
    }

    #[test]
    fn spinning_waiters_have_their_own_head() {
        let mut queue = Queue::default();
        let tickets = [true, true, false, false].map(|spins| queue.join(spins));
        let heads = || tickets.iter().map(|ticket| ticket.is_head()).collect::<Vec<_>>();
        assert_eq!(heads(), [true, false, true, false]);
        queue.nudge();
        assert_eq!(tickets.each_ref().map(|ticket| ticket.take_nudge()), [true, false, true, false]);
        queue.leave(&tickets[0]);
        assert_eq!(heads()[1..], [true, true, false]);
        // The first of all is now one that was head before.
        queue.leave(&tickets[1]);
        assert!(tickets[2].take_nudge() && Arc::ptr_eq(queue.head().unwrap(), &tickets[2]));
        queue.nudge();
        assert_eq!(tickets.each_ref().map(|ticket| ticket.take_nudge()), [false, false, true, false]);
        queue.leave(&tickets[2]);
        queue.leave(&tickets[3]);
        assert!(queue.is_empty() && queue.join(true).is_head() && queue.join(false).is_head());
    }

    #[test]
    fn a_hand_off_wakes_only_its_followers() {
        let (ticket, waker) = (Ticket::default(), Waker::default());
        for settle in [Ticket::withdraw, Ticket::received] {
            ticket.open(claim());
            assert!(ticket.promise().is_some() && ticket.wake_when_settled(&waker));
            settle(&ticket);
            assert!(waker.take());
        }
        ticket.open(claim());
        assert!(ticket.promise().is_some());
        ticket.received();
        assert!(!waker.take());
    }

    #[test]
    fn a_wait_has_one_name_and_ends_once() {
        let ticket = Ticket::default();
        assert!(!ticket.is_published());
        let published = |id| ticket.publish(|| PublishedWait { id, at_ms: id });
        assert_eq!(
            (published(1), published(2)),
            (PublishedWait { id: 1, at_ms: 1 }, PublishedWait { id: 1, at_ms: 1 })
        );
        assert!(ticket.is_published());
    }
}
