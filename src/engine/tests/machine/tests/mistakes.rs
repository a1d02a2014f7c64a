//! Deliberate mistakes: each breaks one rule of the machine or of its driver, from outside.

use super::world::NOW;
use crate::engine::tests::machine::*;

/// A rule of the machine or its driver that a world breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {
    /// A cached hold counts as released before its release is sent.
    FreeBeforeSent,
    /// The number of a release without an answer is used again.
    NumberUsedAgain,
    /// A grant under a number counts under which a release had no answer.
    RetiredCounts,
    /// A waiter goes to sleep after a busy answer whatever came meanwhile.
    WordIgnored,
    /// The time of a renewal's answer is read before the answer.
    RenewalJudgedEarly,
    /// The time of a grant is read before the answer.
    GrantJudgedEarly,
    /// The waiter keeps its number after a hand-off without an answer.
    ReceiverKeepsNumber,
    /// A renewal that is under way at the release leaves the number to the thread.
    RenewalForgotten,
    EndlessHandoffs,
    /// A waiter leaves the queue before its client has left the one of the store.
    LeavesBeforeSent,
    NobodyGivesBack,
    /// A recall during the use of a hold is not noticed at its end.
    RecallMissed,
    /// The answer of a check counts for the hold that follows under the number.
    StaleCheckCounts,
}

impl Mistake {
    pub(super) fn before(self, machine: &mut Machine, event: &Event, inputs: &mut Inputs<'_>) {
        let ticket = |machine: &mut Machine, id: TicketId, change: fn(&mut Ticket)| {
            machine.queue.iter_mut().filter(|ticket| ticket.id == id).for_each(change);
        };
        match (self, event) {
            (Mistake::RetiredCounts, Event::Answer { .. }) => machine.retired.clear(),
            (Mistake::WordIgnored, Event::Answer { ticket: id, answer: Attempt::Busy, .. }) => {
                ticket(machine, *id, |ticket| ticket.word = None);
            }
            (Mistake::RenewalJudgedEarly, Event::RenewAnswer { sent, .. }) => inputs.now = *sent,
            (Mistake::GrantJudgedEarly, Event::Answer { sent, .. } | Event::HandoffAnswer { sent, .. }) => {
                inputs.now = *sent;
            }
            (Mistake::EndlessHandoffs, _) => machine.handed_off = 0,
            (Mistake::NobodyGivesBack, Event::Time | Event::CheckAnswer { .. }) => {
                if let Slot::Cached { hold, since, .. } = &mut machine.slot {
                    (*since, hold.unrecalled) = (NOW, inputs.recalls);
                }
            }
            (Mistake::RecallMissed, Event::End { .. }) => {
                if let Slot::Held(hold) = &mut machine.slot {
                    hold.unrecalled = inputs.recalls;
                }
            }
            (Mistake::RenewalForgotten, Event::End { .. }) => {
                if let Slot::Held(hold) = &mut machine.slot {
                    hold.is_renewing = false;
                }
            }
            (Mistake::StaleCheckCounts, Event::CheckAnswer { .. }) => machine.check = Check::Sent,
            _ => {}
        }
    }

    pub(super) fn after(self, machine: &mut Machine, event: &Event, effects: &mut Vec<Effect>) {
        match (self, event) {
            (Mistake::FreeBeforeSent, _) => {
                if let Slot::Returning { hold, waits: false } = machine.slot {
                    machine.settling.push((hold.number, None));
                    machine.slot = Slot::Free;
                }
            }
            (Mistake::NumberUsedAgain, Event::ReleaseAnswer { .. }) => {
                effects.retain(|effect| !matches!(effect, Effect::Retire { .. }));
                machine.retired.clear();
            }
            (Mistake::ReceiverKeepsNumber, Event::HandoffAnswer { answer: Said::Unknown, .. }) => {
                let is_retired = |effect: &Effect| matches!(effect, Effect::Retire { .. });
                if let Some(last) = effects.iter().rposition(is_retired) {
                    effects.remove(last);
                    machine.retired.pop();
                }
            }
            (Mistake::LeavesBeforeSent, Event::GiveUp { .. }) => {
                machine.queue.retain(|ticket| !ticket.leaving)
            }
            _ => {}
        }
    }
}
