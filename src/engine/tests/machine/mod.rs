//! One lock in one process as a state machine: an event and its inputs go in, effects come out.
//!
//! [`Machine`] decides and does nothing else. The machine has no I/O, no threads, no mutex and no clock. Its
//! driver holds the lock's mutex during [`Machine::on`], releases the mutex, and carries the effects out in
//! their order.
//!
//! | slot         | meaning                                                          | ended by                        |
//! |--------------|------------------------------------------------------------------|---------------------------------|
//! | `Free`       | this process has nothing in the store                            | a grant                         |
//! | `Held`       | a thread has levels of the hold                                  | `End`, a loss                   |
//! | `Cached`     | the store still has the hold; no thread here has a level         | `Want`, `Look`, `Time`, a loss  |
//! | `HandingOff` | a request moves the hold to a waiter's number                    | `HandoffAnswer`, `NotSent`      |
//! | `Returning`  | a release that must go before all later requests of this process | `Sent`, `ReleaseAnswer`         |
//!
//! `table.txt` lists what each event does in each slot, and the events that never came there in an
//! exploration. The tests compare that table with the code, and explore all states of small worlds of several
//! machines and a store.
//!
//! The product does not use the machine: its slot is in `hold/caching.rs`, its queue in `queue.rs`.

mod acquiring;
mod delegation;
mod event;
mod releasing;
mod state;
mod tests;
mod timing;

pub(crate) use crate::engine::tests::machine::event::{Attempt, Checked, Effect, Event, Reply, Said};
use crate::engine::tests::machine::state::{CachedFor, Check, Slice, Slot, Ticket};
pub(crate) use crate::engine::tests::machine::state::{
    Hold, Inputs, Machine, Number, Rules, Thread, TicketId, Word,
};

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
            Event::WaitQueueLeft { ticket } => self.wait_queue_left(ticket),
            Event::HandoffAnswer { ticket, sent, answer } => self.handed_off(ticket, sent, answer),
            Event::ReleaseAnswer { number, answer } => self.released(number, answer),
            Event::RenewAnswer { number, sent, answer } => self.renewed(number, sent, answer),
            Event::CheckAnswer { number, answer } => self.checked(number, answer),
            Event::Message => self.notify_waiters(Word::Message),
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
    fn notify_waiters(&mut self, word: Word) {
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
