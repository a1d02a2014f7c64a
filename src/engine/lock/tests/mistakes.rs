//! Deliberate mistakes, which the properties must detect. Each breaks one rule of the machine or of its
//! driver.

use super::event::{Effect, Event, Request, Said};
use super::world::{Client, NOW, TICK};
use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {
    /// A hold counts as released before its release is sent, if no thread waits for the answer.
    FreeBeforeSent,
    /// The number of a release without an answer is reused.
    NumberUsedAgain,
    /// A grant counts although a release under its number had no answer.
    RetiredCounts,
    /// A waiter sleeps after a busy answer, although something has changed meanwhile.
    WordIgnored,
    /// A renewal counts although the window ended before the answer was read.
    RenewalJudgedEarly,
    /// The window of a grant begins when the answer is read, not when the request was sent.
    GrantJudgedEarly,
    /// The waiter keeps its number after a hand-off without an answer.
    ReceiverKeepsNumber,
    /// A release does not retire the number although a renewal is under way.
    RenewalForgotten,
    EndlessHandoffs,
    /// A waiter leaves the local queue before it has sent the request that leaves the store's queue.
    LeavesBeforeSent,
    NobodyGivesBack,
    /// A hold is cached although a recall came during its use.
    RecallMissed,
    /// A waiter sleeps until a hold ends, although it was notified of that end before.
    SleepsOverWord,
}

impl Mistake {
    pub(super) fn before(self, client: &mut Client, event: &Event) {
        let lock = &mut client.lock;
        match (self, event) {
            (Mistake::RetiredCounts, Event::Answer(Request { effect: Effect::Ask { .. }, .. }, _)) => {
                lock.retired = Retired::default();
            }
            (Mistake::EndlessHandoffs, _) => lock.local_handoffs = None,
            (
                Mistake::NobodyGivesBack,
                Event::Time | Event::Answer(Request { effect: Effect::Check { .. }, .. }, _),
            ) => {
                for own in &mut lock.holds {
                    if let Stage::Cached(CachedFor::UntilRecall(since)) = &mut own.stage {
                        *since = NOW;
                    }
                    if let Some(recallable) = &mut own.recallable {
                        (recallable.heard, recallable.is_wanted) = (client.recalls, false);
                    }
                }
                client.is_background_woken = false;
            }
            (Mistake::RecallMissed, Event::End { .. }) => {
                for own in &mut lock.holds {
                    if let Some(recallable) = &mut own.recallable {
                        recallable.heard = client.recalls;
                    }
                }
            }
            (Mistake::RenewalForgotten, Event::End { .. }) => {
                lock.holds.iter_mut().for_each(|own| own.is_under_way = false);
            }
            (Mistake::SleepsOverWord, Event::GoOn(thread)) => {
                lock.queue.get_mut(TicketId(*thread as u64)).into_iter().for_each(|ticket| {
                    (ticket.word, ticket.waiter.is_woken) = (false, false);
                });
            }
            (Mistake::RenewalJudgedEarly, Event::Answer(Request { effect: Effect::Renew { id }, .. }, _)) => {
                if let Some(own) = lock.state_of(id.serial).filter(|own| own.until <= NOW) {
                    own.until = NOW.plus(TICK);
                }
            }
            _ => {}
        }
    }

    pub(super) fn event(self, event: Event) -> Event {
        match (self, event) {
            (Mistake::GrantJudgedEarly, Event::Answer(request, answer)) if request.grants().is_some() => {
                Event::Answer(Request { sent: NOW, ..request }, answer)
            }
            _ => event,
        }
    }

    pub(super) fn after(self, client: &mut Client, event: &Event, effects: &[Effect]) {
        let lock = &mut client.lock;
        match (self, event) {
            (Mistake::FreeBeforeSent, _) => {
                let is_unsent = |effect: &&Effect| matches!(effect, Effect::Release { waits: false, .. });
                if effects.iter().any(|effect| is_unsent(&effect)) {
                    lock.holds.retain(|own| own.stage != Stage::Returning);
                    lock.queue.nudge();
                }
            }
            (Mistake::NumberUsedAgain, Event::Answer(Request { effect: Effect::Release { .. }, .. }, _)) => {
                lock.retired = Retired::default();
            }
            (
                Mistake::ReceiverKeepsNumber,
                Event::Answer(Request { effect: Effect::HandOff { to, number, .. }, .. }, (Said::Unknown, _)),
            ) => {
                lock.retired.last.retain(|other| other != number);
                (client.numbers[*to], client.users[*to].number) = (*number, *number);
            }
            (
                Mistake::WordIgnored,
                Event::Answer(Request { effect: Effect::Ask { thread, .. }, .. }, (Said::No, _)),
            ) => {
                let user = &mut client.users[*thread];
                (user.message, user.is_woken) = (false, false);
                lock.queue
                    .get_mut(TicketId(*thread as u64))
                    .into_iter()
                    .for_each(|ticket| ticket.word = false);
            }
            (Mistake::LeavesBeforeSent, Event::GoOn(thread))
                if effects.iter().any(|effect| matches!(effect, Effect::LeaveWaitQueue { .. })) =>
            {
                lock.leave(TicketId(*thread as u64));
            }
            _ => {}
        }
    }
}
