//! The steps that are possible in a state, and the state to which each leads.

use super::{Action, Phase, Request, TICK_US, World};
use crate::explore;
use crate::kinds::{Op, Turn};

impl explore::World for World<'_> {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (index, request) in self.requests.iter().enumerate() {
            let is_before = |earlier: &Request| {
                earlier.who.client == request.who.client && earlier.is_in_order && earlier.answer.is_none()
            };
            let is_first = !request.is_in_order || !self.requests[..index].iter().any(is_before);
            match request.answer {
                None if is_first => actions.push(Action::Serve(index)),
                None => {}
                Some(_) => actions.push(Action::Answer(index)),
            }
            if self.left.faults > 0 && request.is_awaited {
                actions.push(Action::Lose(index));
                if request.answer.is_none() {
                    actions.push(Action::Late(index));
                }
            }
        }
        for (index, owner) in self.owners.iter().enumerate() {
            match owner.phase {
                Phase::Idle if owner.cycles > 0 && !self.stands_behind(index) && !self.is_leaving(index) => {
                    actions.push(Action::Ask(index))
                }
                Phase::Wants if !self.stands_behind(index) => actions.push(Action::Ask(index)),
                Phase::Sleeps { until_ms } => {
                    if owner.heard || until_ms.is_some_and(|until| until <= self.server.now_ms()) {
                        actions.push(Action::Ask(index));
                    }
                    if self.left.gives_up > 0 {
                        actions.push(Action::GiveUp(index));
                    }
                }
                Phase::Holds { levels, .. } => {
                    actions.push(Action::Release(index));
                    if self.kind.queues_here() && levels == 1 && self.successor(index).is_some() {
                        actions.push(Action::HandOff(index));
                    }
                    if self.left.renewals > 0 && self.kind.has_renewals() {
                        actions.push(Action::Renew(index));
                    }
                    if self.left.reentries > 0 && self.kind.has_renewals() {
                        actions.push(Action::Reenter(index));
                    }
                }
                _ => {}
            }
        }
        if self.left.spans > 0 && self.next_end_us().is_some_and(|end| self.may_become(end)) {
            actions.push(Action::Pass);
        }
        if self.left.ticks > 0 && self.may_become(self.server.now_us + TICK_US) {
            actions.push(Action::Tick);
        }
        if self.left.losses > 0 {
            actions.push(Action::LoseData);
        }
        if self.server.is_full {
            actions.push(Action::Drain);
        } else if self.left.fills > 0 {
            actions.push(Action::Fill);
        }
        if self.left.kills > 0 {
            let mut clients: Vec<usize> = self.left.owners.to_vec();
            clients.dedup();
            actions.extend(clients.into_iter().map(Action::Kill));
        }
        actions
    }

    fn act(&self, action: &Action) -> Self {
        let mut next = self.clone();
        match *action {
            Action::Ask(owner) => {
                let now_us = next.server.now_us;
                let one = &mut next.owners[owner];
                if one.phase == Phase::Idle {
                    one.since_us = now_us;
                }
                let turn = match (one.has_asked, one.is_next) {
                    (false, _) => Turn::Wait,
                    (true, false) => Turn::Stand,
                    (true, true) => Turn::Next,
                };
                // Our waiters drop old messages when they attempt. Redisson's waiters keep a message until
                // they would sleep.
                one.heard &= one.who.is_foreign() && one.phase == Phase::Wants;
                one.phase = Phase::Asks;
                (one.is_next, one.standby) = (false, false);
                next.send(owner, Op::Acquire(1, turn), None, true);
            }
            Action::GiveUp(owner) => {
                next.left.gives_up -= 1;
                next.leaves(owner);
                next.end_cycle(owner, false);
            }
            Action::Serve(index) => next.serve(index),
            Action::Answer(index) => next.answered(index),
            Action::Lose(index) | Action::Late(index) => {
                next.left.faults -= 1;
                next.is_calm = false;
                let request = next.requests[index].clone();
                if matches!(action, Action::Lose(_)) {
                    next.requests.remove(index);
                } else {
                    (next.requests[index].is_awaited, next.requests[index].is_in_order) = (false, false);
                }
                next.unknown(&request);
            }
            Action::Renew(owner) | Action::Reenter(owner) => {
                let Phase::Holds { until_us, levels } = next.owners[owner].phase else { return next };
                next.owners[owner].phase = Phase::Extends { until_us, levels };
                let op = if matches!(action, Action::Renew(_)) {
                    next.left.renewals -= 1;
                    Op::Renew
                } else {
                    next.left.reentries -= 1;
                    Op::Acquire(levels + 1, Turn::Wait)
                };
                next.send(owner, op, None, true);
            }
            Action::Release(owner) => {
                let Phase::Holds { until_us, levels } = next.owners[owner].phase else { return next };
                next.owners[owner].phase = Phase::Releases { until_us, levels };
                next.send(owner, Op::Release(levels - 1), None, true);
            }
            Action::HandOff(owner) => {
                let (Phase::Holds { until_us, .. }, Some(to)) =
                    (next.owners[owner].phase, next.successor(owner))
                else {
                    return next;
                };
                let heir = next.owners[to].who;
                next.owners[owner].phase = Phase::HandsOff { until_us, to };
                next.owners[to].phase = Phase::Asks;
                next.send(owner, Op::HandOff(to, heir.number), Some(heir), true);
            }
            Action::Pass => {
                next.left.spans -= 1;
                next.server.now_us = next.next_end_us().unwrap_or(next.server.now_us);
                next.end_windows();
            }
            Action::Tick => {
                next.left.ticks -= 1;
                next.server.now_us += TICK_US;
                next.end_windows();
            }
            Action::Kill(client) => {
                next.left.kills -= 1;
                next.kill(client);
            }
            Action::Fill => {
                next.left.fills -= 1;
                next.server.is_full = true;
            }
            Action::Drain => next.server.is_full = false,
            Action::LoseData => {
                next.left.losses -= 1;
                (next.is_calm, next.is_whole) = (false, false);
                next.server.keys.clear();
                // A server takes at least this long to come back without its data.
                next.server.now_us += TICK_US;
                next.end_windows();
                for owner in &mut next.owners {
                    owner.is_void = !matches!(
                        owner.phase,
                        Phase::Idle | Phase::Wants | Phase::Asks | Phase::Sleeps { .. }
                    );
                }
                for request in &mut next.requests {
                    request.is_void = request.answer.is_some();
                }
            }
        }
        next
    }

    fn wrong(&self) -> Option<String> {
        self.check()
    }

    fn key(&self) -> String {
        self.described()
    }
}
