//! From the end of a level to a free lock: hand-offs sent, releases, and their answers.

use crate::engine::tests::machine::{Effect, Hold, Number, Reply, Said, Slot, Step, Ticket, Word};
use crate::time::Moment;

impl Step<'_> {
    pub(super) fn end(&mut self, number: Number, dropped: bool) {
        let Slot::Held(mut hold) = self.lock.slot else { return self.reply(Reply::Lost) };
        if hold.number != number {
            return self.reply(Reply::Lost);
        }
        if self.is_over(&hold) {
            self.lose(hold, true);
            return self.reply(Reply::Lost);
        }
        hold.levels -= 1;
        if hold.levels > 0 {
            self.lock.slot = Slot::Held(hold);
            self.effect(Effect::Release { number, left: hold.levels, waits: true, reports: false });
            return self.reply(Reply::Ending);
        }
        if let Some(why) = self.caches(&hold, dropped) {
            self.lock.slot = Slot::Cached { hold, why, since: self.inputs.now };
            return self.reply(Reply::Ended);
        }
        self.retire_if_in_doubt(&hold);
        if let Some(head) = self.next_here() {
            self.hand_off(hold, head, !dropped);
        } else if dropped && self.lock.queue.is_empty() {
            // The same thread sends the release next, so all that it asks later goes behind the release.
            self.lock.settling.push((number, None));
            self.free();
            self.effect(Effect::Release { number, left: 0, waits: false, reports: false });
        } else {
            self.begin_return(hold, !dropped);
        }
        self.reply(if dropped { Reply::Ended } else { Reply::Ending });
    }

    /// The first waiter, if that sleeps and a sibling may have the lock.
    fn next_here(&self) -> Option<Ticket> {
        self.lock.queue.first().filter(|ticket| ticket.is_asleep && self.may_pass()).copied()
    }

    pub(super) fn hand_off(&mut self, from: Hold, ticket: Ticket, waits: bool) {
        let (to, number) = (ticket.id, ticket.number);
        self.lock.handed_off += 1;
        if let Some(slice) = &mut self.lock.slice {
            slice.began = self.inputs.now;
        }
        self.lock.slot = Slot::HandingOff { from, to, number, waits, sent: false };
        self.effect(Effect::HandOff { from: from.number, to: number, ticket: to });
    }

    pub(super) fn begin_return(&mut self, hold: Hold, waits: bool) {
        self.lock.slot = Slot::Returning { hold, waits };
        self.effect(Effect::Release { number: hold.number, left: 0, waits, reports: !waits });
    }

    /// Ends a cached hold. The calling thread sends the request.
    pub(super) fn give_back(&mut self, hold: Hold) {
        self.retire_if_in_doubt(&hold);
        match self.next_here() {
            Some(head) => self.hand_off(hold, head, false),
            None => self.begin_return(hold, false),
        }
    }

    pub(super) fn sent(&mut self, number: Number) {
        match &mut self.lock.slot {
            Slot::HandingOff { from, to, sent, .. } if from.number == number => {
                *sent = true;
                let to = *to;
                self.tell(to, Word::Here);
            }
            Slot::Returning { hold, waits: false } if hold.number == number => {
                self.lock.settling.push((number, None));
                self.free();
            }
            _ => {}
        }
    }

    pub(super) fn not_sent(&mut self, number: Number) {
        match self.lock.slot {
            Slot::HandingOff { from, to, waits, .. } if from.number == number => {
                self.begin_return(from, waits);
                // The sender is the receiver, which waits for the end of the release from now on.
                if self.ticket(to).is_some_and(|ticket| !ticket.is_asleep) {
                    self.sleep(to, Moment::NEVER);
                }
            }
            _ => self.released(number, Said::Unknown), // the clean-up frees the lock in the store
        }
    }

    /// No hold of this process stands in the way any more.
    pub(super) fn free(&mut self) {
        self.lock.slot = Slot::Free;
        (self.lock.handed_off, self.lock.slice) = (0, None);
        self.notify_waiters(Word::Here);
    }

    pub(super) fn released(&mut self, number: Number, answer: Said) {
        if let Slot::Held(hold) = &mut self.lock.slot
            && hold.number == number
        {
            hold.is_in_doubt |= answer == Said::Unknown; // the count of an inner level
            return;
        }
        let returning = match self.lock.slot {
            Slot::Returning { hold, waits } if hold.number == number => Some(waits.then_some(hold.thread)),
            _ => None,
        };
        let settling = self.lock.settling.iter().position(|(other, _)| *other == number);
        let waits = match (returning, settling) {
            (Some(waits), _) => waits,
            (None, Some(place)) => self.lock.settling.remove(place).1,
            (None, None) => return,
        };
        match answer {
            Said::Yes => {}
            Said::No => self.effect(Effect::Lost { number }),
            Said::Refused | Said::Unknown => self.leave_behind(number),
        }
        if returning.is_some() {
            self.free();
        } else if self.lock.slot == Slot::Free {
            self.notify_waiters(Word::Here); // an attempt meanwhile may have come before the release
        }
        if let Some(thread) = waits {
            self.effect(Effect::Settled { thread });
        }
    }
}
