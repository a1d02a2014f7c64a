//! The threads that wait and hold something, from the registry.

use std::collections::HashSet;
use std::time::Duration;

use super::{Registry, shown};
use crate::directory::LockUse;
use crate::engine::deadlock::graph::{Thread, Wait};
use crate::engine::hold::Hold;
use crate::engine::hold::State;
use crate::engine::hold::local_lock::LockKey;
use crate::engine::stuck::{OwnHold, OwnWait, Stuck};
use crate::engine::waiter::{PublishedWait, Sleeper};
use crate::ident::{ClientId, Owner, unbound_number};
use crate::seam::Family;
use crate::time::{Moment, millis};

impl Registry {
    /// The waits for locks that have lasted for `least` by now, of threads that hold something meanwhile, and
    /// the holds that these threads have or wait for. Each of the waits is told of from now on. All of it is
    /// as of one moment, but for locks that nobody had or wanted when they were looked at.
    ///
    /// Of a process that works `under` holds of others, each such wait counts.
    ///
    /// Looks at all locks, and at all holds if any wait is as old: called once a second at most while nothing
    /// is stuck.
    pub(crate) fn stuck(
        &self,
        client: ClientId,
        (now, wall_ms): (Moment, u64),
        least: Duration,
        under: &[Owner],
    ) -> Stuck {
        let all = self.all();
        let _alone = self.several.lock();
        let entries: Vec<_> = all
            .iter()
            .filter(|local| local.key.family != Family::Counted)
            .map(|local| (&local.key, local.state()))
            .filter(|(_, local)| !local.holds.is_empty() || !local.queue.is_empty())
            .collect();
        let (mut waits, mut next) = (Vec::new(), None::<Moment>);
        for (key, local) in &entries {
            for ticket in local.queue.iter() {
                let Some(one) = ticket.waiter.sleeper() else { continue };
                // A hold is entered before its waiter leaves the queue: a lock that was granted is waited for
                // no more.
                let is_granted = |state: &State| {
                    let hold = &state.hold;
                    let is_own =
                        hold.kept_by(state) == Some(one.thread.id()) || hold.owner().number() == one.number;
                    is_own && stands(hold, now)
                };
                if local.holds.iter().any(is_granted) {
                    continue;
                }
                let ripe = one.since.plus(least);
                if ripe > now {
                    next = Some(next.map_or(ripe, |next| next.min(ripe)));
                } else {
                    waits.push((*key, &ticket.waiter.wait, one));
                }
            }
        }
        if waits.is_empty() {
            return Stuck { next, ..Stuck::default() };
        }
        let threads: HashSet<u64> = waits.iter().map(|(_, _, one)| one.thread.id()).collect();
        let awaited = waits.iter().map(|(key, ..)| *key);
        let halves: HashSet<&str> = awaited.filter(|key| is_half(key)).map(|key| key.name.key()).collect();
        let (mut holds, mut holding) = (Vec::new(), HashSet::new());
        for (key, local) in &entries {
            let is_awaited = !local.queue.is_empty() || is_half(key) && halves.contains(key.name.key());
            for state in &local.holds {
                let hold = &state.hold;
                let (thread, taker) = (hold.kept_by(state), hold.holder.taker());
                let waiter = thread.or(taker).filter(|thread| threads.contains(thread));
                let is_of_waiter = waiter.is_some();
                if !stands(hold, now) || !is_of_waiter && !is_awaited {
                    continue;
                }
                holding.extend(waiter);
                let shown = LockUse { by: thread, taker, ..shown(key, state, now) };
                holds.push(OwnHold { family: key.family, shown });
            }
        }
        let waits =
            waits.into_iter().filter(|(.., one)| !under.is_empty() || holding.contains(&one.thread.id()));
        let waits = waits.map(|(key, known, one)| {
            let at_ms = wall_ms.saturating_sub(millis(now.since(one.since)));
            let PublishedWait { id, at_ms } = known.publish(|| PublishedWait { id: unbound_number(), at_ms });
            let Sleeper { number, kind, takes_again, writers_first, since, .. } = *one;
            let (thread, key) = (Thread { client, id: one.thread.id() }, key.name.key().to_owned());
            let wait = Wait { thread, id, key, kind, number, at_ms, takes_again, writers_first };
            OwnWait::new(wait, one.thread.name(), now.since(since), known)
        });
        Stuck { waits: waits.collect(), holds, under: under.to_vec(), next }
    }
}

fn is_half(key: &LockKey) -> bool {
    matches!(key.family, Family::Read | Family::Write)
}

fn stands(hold: &Hold, now: Moment) -> bool {
    !hold.is_cached() && !hold.is_releasing() && hold.loss_at(now).is_none()
}
