//! What our client does after an answer arrives, and when no answer arrives.

use super::{Phase, Request, SOON_MS, World};
use crate::kinds::{ALIVE_MS, Answer, Kind, LEASE_MS, Op, Why};

impl World<'_> {
    pub(super) fn answered(&mut self, index: usize) {
        let request = self.requests.remove(index);
        let owner = request.who.owner;
        let until_us = request.sent_us + LEASE_MS * 1000;
        let answer = request.answer.clone().expect("it was served");
        if answer == Answer::Refused {
            if let Some(command) = self.server.refused.as_deref().filter(|it| self.kind.does_without(it)) {
                self.wrong = Some(format!("{:?} was refused for want of {command}", request.op));
            }
            return self.refused(&request);
        }
        if request.who.is_foreign() && matches!(request.op, Op::Release(_)) {
            self.forgets(&request);
        }
        match (request.op, self.owners[owner].phase, answer) {
            (Op::Acquire(1, _), Phase::Asks, Answer::Granted(_)) => {
                self.granted(owner, until_us, request.is_void)
            }
            (Op::Acquire(1, _), Phase::Asks, Answer::Busy(left)) => self.is_to_wait(owner, left, true),
            (Op::Acquire(1, _), Phase::Asks, Answer::InLine(left, why)) => {
                self.is_to_wait(owner, left, why == Why::Foreign)
            }
            (Op::Acquire(..), Phase::Extends { levels, .. }, Answer::Granted(_)) => {
                // The store had the hold when it answered, so only a later data loss makes the hold void.
                self.owners[owner].phase = Phase::Holds { until_us, levels: levels + 1 };
                self.owners[owner].is_void = request.is_void;
            }
            (Op::Renew, Phase::Extends { levels, .. }, Answer::Renewed) => {
                self.owners[owner].phase = Phase::Holds { until_us, levels };
                self.owners[owner].is_void = request.is_void;
            }
            // The store no longer has the hold, so the owner has lost it.
            (_, Phase::Extends { .. }, _) => self.end_cycle(owner, true),
            (Op::Release(0), Phase::Releases { .. }, Answer::StillHeld) => {
                if self.is_calm {
                    self.wrong = Some(format!("owner {owner} released its last level, and holds more"));
                }
                self.end_cycle(owner, true);
            }
            (Op::Release(left), Phase::Releases { until_us, .. }, Answer::StillHeld) => {
                self.owners[owner].phase = Phase::Holds { until_us, levels: left };
            }
            (Op::Release(_), Phase::Releases { .. }, answer) => {
                if answer == Answer::Lost && self.is_calm && !self.owners[owner].is_void {
                    self.wrong =
                        Some(format!("owner {owner} released what it held, and was told that it did not"));
                }
                self.end_cycle(owner, answer == Answer::Lost);
            }
            (Op::HandOff(to, _), Phase::HandsOff { .. }, Answer::Granted(_)) => {
                self.end_cycle(owner, false);
                self.owners[to].phase = Phase::Asks;
                self.granted(to, until_us, request.is_void);
            }
            (Op::HandOff(to, _), Phase::HandsOff { .. }, _) => {
                self.end_cycle(owner, true);
                self.owners[to].phase = Phase::Wants;
            }
            _ => {}
        }
    }

    /// Processes the answer "refused": the caller gets an error. A hold whose renewal was refused lasts until
    /// its window ends.
    pub(super) fn refused(&mut self, request: &Request) {
        let owner = request.who.owner;
        match (request.op, self.owners[owner].phase) {
            (_, Phase::Extends { until_us, levels }) => {
                self.owners[owner].phase = Phase::Holds { until_us, levels }
            }
            (Op::HandOff(to, _), Phase::HandsOff { until_us, .. }) => {
                self.owners[to].phase = Phase::Wants;
                self.owners[owner].phase = Phase::Releases { until_us, levels: 1 };
                self.send(owner, Op::Release(0), None, true);
            }
            (_, Phase::Asks) => {
                self.leaves(owner);
                self.end_cycle(owner, false);
            }
            (_, Phase::Releases { .. }) => self.end_cycle(owner, true),
            _ => {}
        }
    }

    pub(super) fn granted(&mut self, owner: usize, until_us: u64, is_void: bool) {
        if self.server.now_us >= until_us {
            // The grant came too late: it is released under its number, which is then retired.
            self.is_calm = false;
            if self.owners[owner].who.is_foreign() {
                return self.foreign_is_too_late(owner);
            }
            self.send(owner, Op::Undo, None, false);
            self.owners[owner].who.number += 1;
            self.owners[owner].phase = Phase::Wants;
            return;
        }
        let owner = &mut self.owners[owner];
        owner.phase = Phase::Holds { until_us, levels: 1 };
        owner.is_void = is_void;
        (owner.has_asked, owner.own_turn, owner.releases) = (false, false, false);
        (owner.heard, owner.is_next, owner.standby) = (false, false, false);
    }

    /// Processes the answer "busy". A new subscriber attempts once more, since it may have missed a release,
    /// and then sleeps.
    pub(super) fn is_to_wait(&mut self, owner: usize, left_ms: Option<u64>, all_releases: bool) {
        if self.owners[owner].who.is_foreign() {
            return self.foreign_is_to_wait(owner, left_ms);
        }
        let now = self.server.now_ms();
        let lined = self.kind.has_wait_queue(&self.owners[owner].who);
        let fair = self.kind == Kind::Fair;
        let owner = &mut self.owners[owner];
        owner.has_asked = true;
        let (wants_turn, wants_releases) = if lined { (true, all_releases) } else { (false, true) };
        let is_new = wants_turn && !owner.own_turn || wants_releases && !owner.releases;
        owner.own_turn |= wants_turn;
        owner.releases |= wants_releases;
        if is_new || owner.heard {
            owner.phase = Phase::Wants;
            return;
        }
        let mut until_ms = left_ms.map(|left| now + left + 1);
        if owner.standby {
            let soon = now + SOON_MS - 1;
            until_ms = Some(until_ms.map_or(soon, |until| until.min(soon)));
        }
        if fair {
            // A fair waiter's place expires after `ALIVE_MS`, so the waiter attempts again sooner.
            let keeps = now + ALIVE_MS / 2;
            until_ms = Some(until_ms.map_or(keeps, |until| until.min(keeps)));
        }
        owner.standby = false;
        owner.phase = Phase::Sleeps { until_ms };
    }

    /// Ends the owner's wait for an answer that is late or lost. The request may still arrive.
    pub(super) fn unknown(&mut self, request: &Request) {
        if request.who.is_foreign() {
            return self.foreign_knows_nothing(request);
        }
        let owner = request.who.owner;
        match (request.op, self.owners[owner].phase) {
            (Op::Acquire(1, _), Phase::Asks) => {
                self.send(owner, Op::Undo, None, false);
                self.owners[owner].who.number += 1;
                self.owners[owner].phase = Phase::Wants;
            }
            (Op::Acquire(..) | Op::Renew, Phase::Extends { until_us, levels }) => {
                self.owners[owner].is_spent = true;
                self.owners[owner].phase = Phase::Holds { until_us, levels };
            }
            (Op::Release(left), Phase::Releases { .. }) => {
                self.owners[owner].is_spent = true;
                self.send(owner, Op::Release(left), None, true);
            }
            (Op::HandOff(to, _), Phase::HandsOff { until_us, .. }) => {
                self.owners[owner].is_spent = true;
                self.owners[owner].phase = Phase::Releases { until_us, levels: 1 };
                self.send(owner, Op::Release(0), None, true);
                self.owners[to].who.number += 1;
                self.owners[to].phase = Phase::Wants;
            }
            _ => {}
        }
    }
}
