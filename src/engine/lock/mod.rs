//! One lock in one process as a state machine: an event and its inputs go in, effects come out.
//!
//! [`Machine`] decides and does nothing else. The machine has no I/O, no threads, no mutex and no clock. Its driver
//! holds the lock's mutex during [`Machine::on`], releases the mutex, and carries the effects out in their order.
//!
//! | slot         | meaning                                                          | ended by                        |
//! |--------------|------------------------------------------------------------------|---------------------------------|
//! | `Free`       | this process has nothing in the store                            | a grant                         |
//! | `Held`       | a thread has levels of the hold                                  | `End`, a loss                   |
//! | `Cached`     | the store still has the hold; no thread here has a level         | `Want`, `Look`, `Time`, a loss  |
//! | `HandingOff` | a request moves the hold to a waiter's number                    | `HandoffAnswer`, `NotSent`      |
//! | `Returning`  | a release that must go before all later requests of this process | `Sent`, `ReleaseAnswer`         |
//!
//! `table.txt` lists what each event does in each slot. The tests compare that table with the code, and explore all
//! states of small worlds of several machines and a store.
//!
//! The product does not use the machine yet.

mod acquiring;
mod delegation;
mod event;
mod releasing;
mod tests;
mod timing;

use std::time::Duration;

use crate::engine::lock::delegation::{CachedFor, Slice};
pub(crate) use crate::engine::lock::event::{
    Attempt, Checked, Counted, Effect, Event, Handed, Released, Renewed, Reply,
};
use crate::time::Moment;

/// A thread, by the number of its mark.
pub(crate) type Thread = u64;
/// A wait for the lock. A thread can have several at once, by an observer that takes locks.
pub(crate) type TicketId = u64;
/// The number by which the store knows an owner. No retired number is used for another hold.
pub(crate) type Number = u64;

/// The times and limits of a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) lease: Duration,
    pub(crate) renew_after: Duration,
    /// A waiter asks the store without a reason this long after its last attempt.
    pub(crate) poll: Duration,
    /// The pause of a waiter after a failed attempt.
    pub(crate) pause: Duration,
    /// The time slice of a client that got the lock out of the wait queue of the store.
    pub(crate) slice: Duration,
    /// An unused hold is given back so long after its use: cached for a time slice, and cached until a recall.
    pub(crate) unused: [Duration; 2],
    pub(crate) check_after: Duration,
    /// The most hand-offs before other processes get the lock.
    pub(crate) burst: u32,
    /// Every waiter asks the store, which queues waiters itself. Otherwise the first one asks for all.
    pub(crate) all_ask: bool,
}

/// The facts that the driver reads under the mutex, for each event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) now: Moment,
    /// The present owner number of the calling thread.
    pub(crate) number: Number,
    /// The recalls received so far; `None` while none would be received.
    pub(crate) recalls: Option<u64>,
    /// The calling thread is likely to reacquire the lock at once.
    pub(crate) reacquires: bool,
}

/// One grant in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    thread: Thread,
    number: Number,
    levels: u32,
    until: Moment,
    renew_at: Moment,
    is_renewing: bool,
    /// A request under the number ended without an answer, and may still arrive.
    is_in_doubt: bool,
    /// The call asked to cache the hold.
    caches: bool,
    /// The number of recalls at the grant, as long as no other client wants the lock.
    unrecalled: Option<u64>,
    check_at: Moment,
}

/// The one hold of this process, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    Free,
    Held(Hold),
    Cached {
        hold: Hold,
        why: CachedFor,
        since: Moment,
    },
    /// `number` is the waiter's. The waiter reads the answer once the request is `sent`.
    HandingOff {
        from: Hold,
        to: TicketId,
        number: Number,
        waits: bool,
        sent: bool,
    },
    /// If the releaser `waits`, the slot stays so until the answer; otherwise until the request is sent.
    Returning {
        hold: Hold,
        waits: bool,
    },
}

/// The first reason for which a waiter is to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    /// Something changed in this process.
    Here,
    /// Another process released the lock.
    Message,
}

/// A waiting thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Ticket {
    id: TicketId,
    thread: Thread,
    /// The number under which the waiter can be handed the lock.
    number: Number,
    caches: bool,
    /// The call makes one attempt.
    once: bool,
    /// The wait has ended. The ticket stays until the client has left the wait queue of the store.
    leaving: bool,
    /// The number of an attempt without an answer yet.
    asks: Option<Number>,
    /// The recalls before that attempt, if the hold is to be cached.
    recalls: Option<u64>,
    is_asleep: bool,
    word: Option<Word>,
    poll_at: Moment,
}

/// A request to check whether other clients want a cached hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Check {
    None,
    Sent,
    /// The checked hold has ended.
    Stale,
}

/// One lock in one process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Machine {
    slot: Slot,
    /// The waiters in order of arrival.
    queue: Vec<Ticket>,
    /// Hand-offs since the last release in the store.
    handed_off: u32,
    slice: Option<Slice>,
    check: Check,
    /// Releases that block nothing here, and the thread that waits for the answer.
    settling: Vec<(Number, Option<Thread>)>,
    /// Numbers of this lock under which a request may still arrive.
    retired: Vec<Number>,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            slot: Slot::Free,
            queue: Vec::new(),
            handed_off: 0,
            slice: None,
            check: Check::None,
            settling: Vec::new(),
            retired: Vec::new(),
        }
    }
}

impl Machine {
    /// The effects of an event.
    #[must_use = "the state already counts on the effects"]
    pub(crate) fn on(&mut self, event: Event, inputs: Inputs<'_>) -> Vec<Effect> {
        let mut step = Step { lock: self, inputs, effects: Vec::new() };
        step.note_recalls();
        step.on(event);
        step.effects
    }
}

/// One event on its way through the machine.
struct Step<'a> {
    lock: &'a mut Machine,
    inputs: Inputs<'a>,
    effects: Vec<Effect>,
}

impl Step<'_> {
    fn on(&mut self, event: Event) {
        match event {
            Event::Want { ticket, thread, caches, once } => self.want(ticket, thread, caches, once),
            Event::Look { ticket } => self.look(ticket),
            Event::Answer { ticket, number, sent, answer } => self.answered(ticket, number, sent, answer),
            Event::Counted { number, sent, answer } => self.counted(number, sent, answer),
            Event::End { number, dropped } => self.end(number, dropped),
            Event::GiveUp { ticket } => self.give_up(ticket),
            Event::Sent { number } => self.sent(number),
            Event::NotSent { number } => self.not_sent(number),
            Event::LineLeft { ticket } => self.line_left(ticket),
            Event::HandoffAnswer { ticket, sent, answer } => self.handed_off(ticket, sent, answer),
            Event::ReleaseAnswer { number, answer } => self.released(number, answer),
            Event::RenewAnswer { number, sent, answer } => self.renewed(number, sent, answer),
            Event::CheckAnswer { number, answer } => self.checked(number, answer),
            Event::Message => self.tell_waiters(Word::Message),
            Event::Time => self.time(),
        }
    }

    fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    fn reply(&mut self, reply: Reply) {
        self.effect(Effect::Reply(reply));
    }

    fn is_over(&self, hold: &Hold) -> bool {
        self.inputs.now >= hold.until
    }

    fn ticket(&mut self, id: TicketId) -> Option<&mut Ticket> {
        self.lock.queue.iter_mut().find(|ticket| ticket.id == id)
    }

    /// No hold follows under this number.
    fn retire(&mut self, number: Number) {
        if !self.lock.retired.contains(&number) {
            self.lock.retired.push(number);
        }
        self.effect(Effect::Retire { number });
    }

    /// A request under the number may have been carried out, or may still be.
    fn leave_behind(&mut self, number: Number) {
        self.retire(number);
        self.effect(Effect::CleanUp { number });
    }

    /// A renewal on its way would prolong the next hold under the number, or a late request would end it.
    fn retire_if_in_doubt(&mut self, hold: &Hold) {
        if hold.is_in_doubt || hold.is_renewing {
            self.retire(hold.number);
        }
    }

    /// Has the waiters that ask the store look again: all of them, or the first.
    fn tell_waiters(&mut self, word: Word) {
        let most = if self.inputs.rules.all_ask { usize::MAX } else { 1 };
        for ticket in self.lock.queue.iter_mut().take(most) {
            ticket.word.get_or_insert(word);
            if ticket.is_asleep {
                self.effects.push(Effect::Wake { ticket: ticket.id });
            }
        }
    }

    fn tell(&mut self, id: TicketId, word: Word) {
        if let Some(ticket) = self.ticket(id) {
            ticket.word.get_or_insert(word);
            self.effects.push(Effect::Wake { ticket: id });
        }
    }
}
