//! The answers of `inspect`.
//!
//! Here several objects may have one name, which on Redis share one key: the first that exists is shown, in
//! this file's order.

use crate::ident::{FencingToken, LockName};
use crate::inspect::{Inspection, ObjectKind, Waiter};
use crate::stores::memory::counted::CountedKind;
use crate::stores::memory::state::{Channels, MemoryState, rw_channel};
use crate::time::Moment;

const MOST: usize = 100;

impl MemoryState {
    pub(super) fn shown(&self, name: &LockName, now: Moment, channels: &Channels) -> Inspection {
        let key = name.key();
        let mut seen = Inspection::new(name.given(), ObjectKind::Absent);
        seen.fencing_token = self.fences.get(key).copied().map(FencingToken::new);
        for (owner, until) in self.queues.get(key).into_iter().flatten().filter(|(_, until)| *until > now) {
            let remaining = Some(until.since(now));
            seen.waiters.push(Waiter::new(owner.to_string(), remaining));
        }
        seen.waiting = count(seen.waiters.len());
        seen.waiters.truncate(MOST);
        let listeners = |channel: &str| channels.get(channel).map_or(0, |channel| count(channel.listeners()));

        if let Some(held) = self.locks.get(key).filter(|held| held.until > now) {
            seen.kind = match (held.is_token, seen.waiting, seen.fencing_token) {
                (true, ..) => ObjectKind::TokenLock,
                (false, 0, None) => ObjectKind::Lock,
                (false, 0, Some(_)) => ObjectKind::FencedLock,
                (false, ..) => ObjectKind::FairLock,
            };
            seen.remaining = Some(held.until.since(now));
            seen.holders.push(held.shown(now));
            seen.listeners =
                matches!(seen.kind, ObjectKind::Lock | ObjectKind::FencedLock).then(|| listeners(key));
            return seen;
        }
        if let Some((mode, holders, until)) = self.read_writes.get(key).and_then(|parties| parties.shown(now))
        {
            seen.kind = ObjectKind::ReadWriteLock { mode };
            (seen.holders, seen.remaining) = (holders, Some(until.since(now)));
            seen.listeners = Some(listeners(&rw_channel(key)));
            seen.writers_wait =
                self.read_writes.get(key).is_some_and(|parties| parties.have_writers_waiting(now));
            return seen;
        }
        for kind in CountedKind::ALL {
            let Some(shown) = kind.shown_as() else { continue };
            let Some(counted) = self.counted.get(&(kind, key.into())) else { continue };
            let Some((number, ends)) = counted.shown(now) else { continue };
            seen.kind = shown;
            seen.count = Some(number);
            seen.remaining = Some(ends.map_or(std::time::Duration::MAX, |ends| ends.since(now)));
            seen.permits = counted.lent(now);
            seen.permits_out = count(seen.permits.len());
            seen.permits.truncate(MOST);
            seen.listeners = Some(listeners(&kind.channel(key)));
            return seen;
        }
        seen.kind = match (seen.waiting, seen.fencing_token) {
            (0, None) => ObjectKind::Absent,
            (0, Some(_)) => ObjectKind::FencedLock,
            _ => ObjectKind::FairLock,
        };
        seen
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
