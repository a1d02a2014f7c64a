//! The local queue of one lock: only its head asks the store.
//!
//! Waiters that [spin](crate::LockClient::get_spin_lock) have a head of their own: it sleeps as its back-off
//! says, and waiters that are notified of releases must not wait for that. A hand-off goes to the first
//! waiter of both.

use std::collections::VecDeque;

use crate::engine::lock::Waits;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TicketId(pub(crate) u64);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ticket<W> {
    pub(crate) id: TicketId,
    pub(crate) waiter: W,
    spins: bool,
    /// The first of those who spin, or of those who do not.
    pub(crate) is_head: bool,
    /// The waiter sleeps, and the lock may be handed to it.
    pub(crate) is_asleep: bool,
    /// The waiter looks again when the hand-off to another is settled.
    pub(crate) follows: bool,
    /// Something has changed for the waiter since it looked: looked at before each sleep, forgotten before
    /// each attempt.
    pub(crate) word: bool,
}

impl<W: Waits> Ticket<W> {
    pub(super) fn tell(&mut self) {
        self.word = true;
        self.waiter.wake();
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Queue<W> {
    tickets: VecDeque<Ticket<W>>,
    spinning: usize,
}

impl<W> Default for Queue<W> {
    fn default() -> Queue<W> {
        Queue { tickets: VecDeque::new(), spinning: 0 }
    }
}

impl<W: Waits> Queue<W> {
    pub(crate) fn join(&mut self, id: TicketId, waiter: W, spins: bool) {
        let alike = if spins { self.spinning } else { self.tickets.len() - self.spinning };
        self.spinning += usize::from(spins);
        let (is_head, is_asleep, follows, word) = (alike == 0, false, false, false);
        self.tickets.push_back(Ticket { id, waiter, spins, is_head, is_asleep, follows, word });
    }

    /// Returns the leaver. If it was a head, the next of its kind becomes head and is woken. A new head
    /// attempts first, so a wake-up that the leaver did not use is not lost.
    pub(crate) fn leave(&mut self, id: TicketId) -> Option<Ticket<W>> {
        let at = self.tickets.iter().position(|ticket| ticket.id == id)?;
        let left = self.tickets.remove(at)?;
        self.spinning -= usize::from(left.spins);
        if left.is_head
            && let Some(next) = self.tickets.iter_mut().find(|other| other.spins == left.spins)
        {
            next.is_head = true;
            next.tell();
        }
        // The head of the other kind may sleep until the hand-off to the leaver is settled.
        if at == 0
            && let Some(first) = self.tickets.front_mut()
            && first.spins != left.spins
        {
            first.tell();
        }
        Some(left)
    }

    /// A hand-off goes to it.
    pub(crate) fn head(&mut self) -> Option<&mut Ticket<W>> {
        self.tickets.front_mut()
    }

    pub(crate) fn get(&self, id: TicketId) -> Option<&Ticket<W>> {
        self.tickets.iter().find(|ticket| ticket.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: TicketId) -> Option<&mut Ticket<W>> {
        self.tickets.iter_mut().find(|ticket| ticket.id == id)
    }

    /// The lock may be free: worth an attempt at once.
    pub(crate) fn nudge(&mut self) {
        let Some(first) = self.tickets.front_mut() else { return };
        first.tell();
        let spins = first.spins;
        if (1..self.tickets.len()).contains(&self.spinning)
            && let Some(other) = self.tickets.iter_mut().find(|other| other.spins != spins)
        {
            other.tell();
        }
    }

    /// The place of its client in the store's queue is gone, which waiters of both kinds counted on.
    pub(crate) fn nudge_apart(&mut self) {
        if self.spinning > 0 {
            let asking = |ticket: &&mut Ticket<W>| ticket.spins || ticket.is_head;
            self.tickets.iter_mut().filter(asking).for_each(Ticket::tell);
        }
    }

    pub(super) fn tell_followers(&mut self) {
        for ticket in self.tickets.iter_mut().filter(|ticket| ticket.follows) {
            ticket.follows = false;
            ticket.tell();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Ticket<W>> {
        self.tickets.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.tickets.len()
    }

    pub(crate) fn wake_all(&mut self) {
        self.tickets.iter_mut().for_each(|ticket| ticket.waiter.wake());
    }
}
