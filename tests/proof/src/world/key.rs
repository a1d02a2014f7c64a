//! The text that identifies a state of a world.

use std::fmt::Write;

use super::{Phase, Request, World};
use crate::kinds::{Answer, Kind};
use crate::server::Value;

impl World<'_> {
    pub(super) fn described(&self) -> String {
        // The fault is part of the text, because two states may differ in nothing else.
        let mut key = self.wrong.clone().unwrap_or_default();
        let now_us = i128::from(self.server.now_us);
        let since = |us: u64| i128::from(us) - now_us;
        for (name, entry) in &self.server.keys {
            let ends = entry.ends_ms.map(|ends| since(ends * 1000));
            write!(key, "{name} {ends:?} ").ok();
            match &entry.value {
                // A fencing counter is shown relative to the clock, since scripts compare it with the clock.
                Value::Text(text) if name.starts_with("redisson_lock_token:") => {
                    write!(key, "{:?};", text.parse().map(since)).ok();
                }
                // The wait queue's scores contain times, so the text has only the queue's order, and the age
                // of each client's last attempt in whole seconds.
                Value::Sorted(members) if name.starts_with("leasehold_lock_queue:") => {
                    let now_s = now_us / 1_000_000;
                    for (score, member) in members {
                        let ago_s = (now_s - i128::from(*score)).rem_euclid(100);
                        write!(key, "{member} {ago_s},").ok();
                        // The time in ms for which the writer has waited: after 50 ms it goes before new readers.
                        if self.kind == Kind::ReadWrite {
                            write!(
                                key,
                                "{} ",
                                now_us / 1000 - 1_700_000_000_000 - i128::from(*score) / 10_000
                            )
                            .ok();
                        }
                    }
                }
                Value::Sorted(members) => {
                    for (by, member) in members {
                        write!(key, "{} {member},", i128::from(*by) * 1000 - now_us).ok();
                    }
                }
                value => {
                    write!(key, "{value:?};").ok();
                }
            }
        }
        for owner in &self.owners {
            let phase = match owner.phase {
                Phase::Sleeps { until_ms } => format!("S{:?}", until_ms.map(|until| since(until * 1000))),
                Phase::Holds { until_us, levels } => format!("H{} {levels}", since(until_us)),
                Phase::Extends { until_us, levels } => format!("E{} {levels}", since(until_us)),
                Phase::Releases { until_us, levels } => format!("R{} {levels}", since(until_us)),
                Phase::HandsOff { until_us, to } => format!("O{} {to}", since(until_us)),
                other => format!("{other:?}"),
            };
            let flags = [
                owner.has_asked,
                owner.own_turn,
                owner.releases,
                owner.heard,
                owner.is_next,
                owner.standby,
                owner.is_spent,
                owner.is_void,
            ];
            let waited = if owner.has_asked { since(owner.since_us) } else { 0 };
            write!(key, "|{} {} {waited} {phase} {flags:?}", owner.who.number, owner.cycles).ok();
        }
        // Requests of different clients may arrive in any order, so the text does not show their order.
        let mut requests: Vec<&Request> = self.requests.iter().collect();
        requests.sort_by_key(|request| (request.who.client, !request.is_in_order));
        let requests: Vec<String> = requests
            .into_iter()
            .map(|request| {
                let answer = match &request.answer {
                    Some(Answer::Granted(_)) => "granted".to_owned(),
                    other => format!("{other:?}"),
                };
                let (who, op, sent) = (request.who, request.op, since(request.sent_us));
                let flags = [request.is_awaited, request.is_in_order, request.is_void];
                format!("{who:?} {op:?} {sent} {} {flags:?} {} {answer}", request.waited_ms, request.unlock)
            })
            .collect();
        let left = &self.left;
        write!(
            key,
            "|{requests:?}|{} {} {} {} {} {} {} {} {}|{}|{} {} {}",
            left.faults,
            left.kills,
            left.losses,
            left.spans,
            left.ticks,
            left.renewals,
            left.reentries,
            left.gives_up,
            left.fills,
            since(self.last_fence),
            self.is_calm,
            self.is_whole,
            self.server.is_full
        )
        .ok();
        key
    }
}
