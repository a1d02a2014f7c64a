//! From the wish for a lock to a hold: waiters, attempts, and hand-offs received.

use crate::engine::tests::machine::{
    Attempt, CachedFor, Check, Effect, Hold, Number, Reply, Said, Slice, Slot, Step, Thread, Ticket,
    TicketId, Word,
};
use crate::time::Moment;

impl Step<'_> {
    pub(super) fn want(&mut self, id: TicketId, thread: Thread, caches: bool, once: bool) {
        match self.lock.slot {
            Slot::Held(hold) if hold.thread == thread && !self.is_over(&hold) => {
                self.effect(Effect::AskCount { number: hold.number, count: hold.levels + 1 });
                return self.reply(Reply::Asked);
            }
            Slot::Held(hold) if self.is_over(&hold) => self.lose(hold, true),
            Slot::Cached { hold, why, .. } if hold.thread == thread && self.may_reuse(&hold, why, caches) => {
                self.lock.slot = Slot::Held(Hold { levels: 1, caches, ..hold });
                return self.reply(Reply::Entered(hold.number));
            }
            _ => {}
        }
        let is_first = self.inputs.rules.all_ask || self.lock.queue.iter().all(|ticket| ticket.leaving);
        let is_in_use = matches!(self.lock.slot, Slot::Held(_) | Slot::HandingOff { .. });
        if once && (is_in_use || !is_first) {
            return self.reply(Reply::Left);
        }
        self.lock.queue.push(Ticket {
            id,
            thread,
            number: self.inputs.number,
            caches,
            once,
            leaving: false,
            asks: None,
            recalls: None,
            is_asleep: false,
            word: is_first.then_some(Word::Here),
            poll_at: Moment::NEVER,
        });
        self.look(id);
    }

    /// Whether the thread of a cached hold has it again without a request. A call that does not cache ends
    /// the caching until a recall.
    fn may_reuse(&self, hold: &Hold, why: CachedFor, caches: bool) -> bool {
        !self.is_over(hold) && (why == CachedFor::TimeSlice || caches && hold.unrecalled.is_some())
    }

    /// The next step of a waiter, the first one too.
    pub(super) fn look(&mut self, id: TicketId) {
        let is_first = self.lock.queue.first().is_some_and(|first| first.id == id);
        let Some(ticket) = self.ticket(id) else { return };
        ticket.is_asleep = false;
        let ticket = *ticket;
        if let Slot::HandingOff { to, sent: true, .. } = self.lock.slot
            && to == id
        {
            return self.reply(Reply::Receive);
        }
        // A request of this client to leave the wait queue of the store goes before all that join it again.
        let is_held_up = self.lock.queue.iter().any(|ticket| ticket.leaving && ticket.id != id);
        if is_held_up || !is_first && !self.inputs.rules.all_ask {
            return self.sleep(id, Moment::NEVER);
        }
        match self.lock.slot {
            Slot::Held(hold) if self.is_over(&hold) => self.lose(hold, true),
            Slot::Cached { hold, .. } if self.is_over(&hold) => self.lose(hold, false),
            Slot::Cached { hold, why, .. } if self.takes_cached(&ticket, &hold, why) => {
                self.retire_if_in_doubt(&hold);
                self.hand_off(hold, ticket, false);
                return self.reply(Reply::Receive);
            }
            Slot::Cached { hold, why, .. } if why == CachedFor::UntilRecall || !self.may_pass() => {
                self.give_back(hold);
            }
            _ => {}
        }
        let is_told = self.ticket(id).is_some_and(|ticket| ticket.word.is_some());
        let is_due = ticket.poll_at <= self.inputs.now;
        let all_ask = self.inputs.rules.all_ask;
        let asks = match self.lock.slot {
            Slot::Free => is_told || is_due,
            // The hold may be gone in the store, unknown to this process.
            Slot::Held(_) => is_due || is_told && all_ask,
            // A store that queues waiters is asked whoever has the lock, but under no number whose end is not
            // sent.
            Slot::Returning { hold, .. } => all_ask && hold.thread != ticket.thread && (is_told || is_due),
            Slot::Cached { .. } | Slot::HandingOff { .. } => false,
        };
        if asks {
            return self.ask(id);
        }
        let until = match self.lock.slot {
            Slot::Held(_) if ticket.poll_at == Moment::NEVER => self.inputs.now.plus(self.inputs.rules.poll),
            Slot::Held(_) | Slot::Free => ticket.poll_at,
            _ => Moment::NEVER, // the event that ends this slot leaves a word
        };
        self.sleep(id, until);
    }

    /// Whether the waiter takes a sibling's cached hold by a hand-off to itself. In a time slice the sibling
    /// has its part first.
    fn takes_cached(&self, ticket: &Ticket, hold: &Hold, why: CachedFor) -> bool {
        hold.thread != ticket.thread && self.may_pass() && (why == CachedFor::UntilRecall || ticket.once)
    }

    fn ask(&mut self, id: TicketId) {
        let (number, recalls) = (self.inputs.number, self.inputs.recalls);
        let Some(ticket) = self.ticket(id) else { return };
        (ticket.word, ticket.poll_at, ticket.is_asleep) = (None, Moment::NEVER, false);
        ticket.asks = Some(number);
        ticket.recalls = recalls.filter(|_| ticket.caches);
        let caches = ticket.recalls.is_some();
        self.effect(Effect::Ask { ticket: id, number, caches });
        self.reply(Reply::Asked);
    }

    pub(super) fn sleep(&mut self, id: TicketId, until: Moment) {
        let number = self.inputs.number;
        let Some(ticket) = self.ticket(id) else { return };
        (ticket.is_asleep, ticket.word, ticket.poll_at, ticket.number) = (true, None, until, number);
        self.reply(Reply::Sleep(until));
    }

    /// Asks again after a pause, or ends a call that makes one attempt.
    fn pause(&mut self, ticket: Ticket) {
        if ticket.once {
            return self.give_up(ticket.id);
        }
        self.sleep(ticket.id, self.inputs.now.plus(self.inputs.rules.pause));
    }

    pub(super) fn give_up(&mut self, id: TicketId) {
        // The lock may be this waiter's in a moment.
        match self.lock.slot {
            Slot::HandingOff { to, sent: false, .. } if to == id => return self.sleep(id, Moment::NEVER),
            Slot::HandingOff { to, .. } if to == id => return self.reply(Reply::Receive),
            _ => {}
        }
        let is_first = self.lock.queue.first().is_some_and(|first| first.id == id);
        let is_last = self.lock.queue.len() == 1;
        let Some(ticket) = self.ticket(id) else { return };
        if is_last {
            (ticket.leaving, ticket.is_asleep, ticket.poll_at) = (true, false, Moment::NEVER);
            self.effect(Effect::LeaveWaitQueue { ticket: id });
        } else {
            self.leave(id);
            if is_first {
                self.notify_waiters(Word::Here);
            }
        }
        self.reply(Reply::Left);
    }

    fn leave(&mut self, id: TicketId) {
        self.lock.queue.retain(|ticket| ticket.id != id);
    }

    pub(super) fn wait_queue_left(&mut self, id: TicketId) {
        self.lock.queue.retain(|ticket| !(ticket.leaving && ticket.id == id));
        self.notify_waiters(Word::Here);
    }

    pub(super) fn answered(&mut self, id: TicketId, number: Number, sent: Moment, answer: Attempt) {
        let Some(ticket) = self.ticket(id) else { return };
        if ticket.asks.take() != Some(number) {
            return;
        }
        let ticket = *ticket;
        match answer {
            Attempt::Granted { queued } if self.counts(number, sent) => {
                self.leave(id);
                self.make_room();
                if queued > 1 && !self.inputs.rules.slice.is_zero() {
                    let began = self.inputs.now;
                    self.lock.slice = Some(Slice { began, ends: began.plus(self.inputs.rules.slice) });
                }
                let unrecalled =
                    ticket.recalls.filter(|_| queued <= 1 && ticket.recalls == self.inputs.recalls);
                self.enter(ticket, number, sent, unrecalled);
            }
            Attempt::Granted { .. } | Attempt::Unknown => {
                self.leave_behind(number);
                self.pause(ticket);
            }
            // A word that came meanwhile may be newer than the answer.
            Attempt::Busy if ticket.word.is_some() => self.ask(id),
            Attempt::Busy if ticket.once => self.give_up(id),
            Attempt::Busy => self.sleep(id, self.inputs.now.plus(self.inputs.rules.poll)),
            Attempt::Refused => self.pause(ticket),
        }
    }

    /// Whether a grant counts: its lease runs yet, and no earlier request under the number may end it.
    fn counts(&self, number: Number, sent: Moment) -> bool {
        self.inputs.now < sent.plus(self.inputs.rules.lease) && !self.lock.retired.contains(&number)
    }

    /// The store has granted the lock here. So the hold that this process had is gone there, or on its way
    /// back.
    fn make_room(&mut self) {
        match self.lock.slot {
            Slot::Held(hold) => self.lose(hold, true),
            Slot::Cached { hold, .. } => self.lose(hold, false),
            Slot::Returning { hold, waits } => {
                self.lock.settling.push((hold.number, waits.then_some(hold.thread)))
            }
            Slot::Free | Slot::HandingOff { .. } => {}
        }
    }

    fn enter(&mut self, ticket: Ticket, number: Number, sent: Moment, unrecalled: Option<u64>) {
        let (now, rules) = (self.inputs.now, self.inputs.rules);
        if self.lock.check == Check::Sent {
            self.lock.check = Check::Stale;
        }
        self.lock.slot = Slot::Held(Hold {
            thread: ticket.thread,
            number,
            levels: 1,
            until: sent.plus(rules.lease),
            renew_at: now.plus(rules.renew_after),
            is_renewing: false,
            is_in_doubt: false,
            caches: ticket.caches,
            unrecalled,
            check_at: if unrecalled.is_some() { now.plus(rules.check_after) } else { Moment::NEVER },
        });
        self.reply(Reply::Entered(number));
    }

    /// A re-entry was answered. The count is absolute, so the driver repeats a request without an answer.
    pub(super) fn counted(&mut self, number: Number, sent: Moment, answer: Said) {
        let Slot::Held(mut hold) = self.lock.slot else { return self.reply(Reply::Lost) };
        if hold.number != number {
            return self.reply(Reply::Lost);
        }
        if self.is_over(&hold) || answer == Said::No {
            self.lose(hold, true);
            return self.reply(Reply::Lost);
        }
        if answer == Said::Unknown {
            hold.is_in_doubt = true;
            self.lock.slot = Slot::Held(hold);
            return self.reply(Reply::Left);
        }
        hold.until = hold.until.max(sent.plus(self.inputs.rules.lease));
        hold.levels += 1;
        self.lock.slot = Slot::Held(hold);
        self.reply(Reply::Entered(number));
    }

    /// The waiter has read the answer of a hand-off to it.
    pub(super) fn handed_off(&mut self, id: TicketId, sent: Moment, answer: Said) {
        let Slot::HandingOff { from, to, number, waits, .. } = self.lock.slot else { return };
        let Some(ticket) = self.ticket(id).filter(|_| to == id).copied() else { return };
        if answer == Said::Refused {
            self.begin_return(from, waits);
            return self.sleep(id, Moment::NEVER);
        }
        self.lock.slot = Slot::Free;
        if waits {
            self.effect(Effect::Settled { thread: from.thread });
        }
        match answer {
            Said::Yes if self.counts(number, sent) => {
                self.leave(id);
                self.enter(ticket, number, sent, None);
            }
            Said::Yes => {
                self.leave_behind(number);
                self.pause(ticket);
            }
            Said::No => {
                self.effect(Effect::Lost { number: from.number });
                self.ask(id);
            }
            Said::Refused | Said::Unknown => {
                self.leave_behind(from.number);
                self.leave_behind(number);
                self.pause(ticket);
            }
        }
    }
}
