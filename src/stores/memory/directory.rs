//! The directory of clients, the list of locks, and the answers of `inspect`.
//!
//! Here several objects may share a name; on Redis their key would be one. `inspect` shows the first that
//! exists, in this file's order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::ident::{ClientId, FencingToken, LockName};
use crate::inspect::{Inspection, ObjectKind, Waiter};
use crate::seam::Answer;
use crate::seam::directory::{Directory, Listing, Page, Place, Posted, Wanted, Written};
use crate::stores::memory::access::MemoryAccess;
use crate::stores::memory::counted::CountedKind;
use crate::stores::memory::state::{Channels, MemoryState, rw_channel};
use crate::time::Moment;

const PAGE: usize = 250;

impl MemoryAccess {
    pub(super) fn directory<T>(&self, ask: impl FnOnce(&mut MemoryState, Moment) -> T) -> Answer<T> {
        self.check_open()?;
        let mut state = self.shared.state.lock();
        Ok(ask(&mut state, self.shared.clock.now()))
    }
}

impl MemoryState {
    fn posted(&self, client: ClientId, now: Moment) -> Option<Posted> {
        let (text, until) = self.clients.get(&client).filter(|(_, until)| *until > now)?;
        Some(Posted { text: text.clone(), remaining: until.since(now) })
    }

    fn keys_after(&self, after: &str) -> BTreeSet<&str> {
        let keys = self.locks.keys().chain(self.read_writes.keys());
        let keys = keys.chain(self.counted.keys().map(|(_, key)| key));
        keys.map(|key| &**key).filter(|key| *key > after).collect()
    }
}

/// Faults spare a client's own entry: no caller waits for it, and tests do not mean it.
impl Directory for MemoryAccess {
    fn write(&self, client: ClientId, text: &str, lease: Duration, _deadline: Moment, done: Written) {
        let entry = |now: Moment| (text.to_owned(), now.plus(lease));
        done(self.directory(|state, now| drop(state.clients.insert(client, entry(now)))));
    }

    fn remove(&self, client: ClientId, _deadline: Moment) -> Answer<()> {
        self.directory(|state, _| drop(state.clients.remove(&client)))
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        let page = |state: &mut MemoryState, now| {
            let found = clients.iter().map(|client| state.posted(*client, now)).collect();
            Page { found, next: None, requests: 1, examined: 0 }
        };
        self.ask(deadline, || self.directory(page))
    }

    fn clients(&self, _from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        let page = |state: &mut MemoryState, now| {
            let all = state.clients.keys().filter_map(|id| Some((*id, state.posted(*id, now)?)));
            let found: Vec<_> = all.collect();
            let examined = count(state.clients.len());
            Page { found, next: None, requests: 1, examined }
        };
        self.ask(deadline, || self.directory(page))
    }
}

impl Listing for MemoryAccess {
    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        let page = |state: &mut MemoryState, now| {
            let channels = self.shared.channels.lock();
            let keys: Vec<&str> = state.keys_after(&from.cursor).into_iter().take(PAGE).collect();
            let next = keys.get(PAGE - 1).map(|last| Place { servers: None, cursor: (*last).to_owned() });
            let found = keys.iter().filter_map(|key| {
                let name = LockName::new(&Arc::from(wanted.name(key)?), (*key).to_owned()).ok()?;
                Some(state.shown(&name, now, &channels))
            });
            let found = found.collect();
            Page { found, next, requests: 1, examined: count(keys.len()) }
        };
        self.ask(deadline, || self.directory(page))
    }
}

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
            let parties = self.read_writes.get(key);
            let writers = parties.map_or(0, |parties| count(parties.line.len()));
            seen.listeners = Some(listeners(&rw_channel(key)) + writers);
            seen.writers_wait = parties.is_some_and(|parties| parties.have_writers_waiting(now));
            seen.a_writer_waits_long = parties.is_some_and(|parties| parties.a_writer_waits_long(now));
            return seen;
        }
        for kind in CountedKind::ALL {
            let Some(shown) = kind.shown_as() else { continue };
            let Some(counted) = self.counted.get(&(kind, key.into())) else { continue };
            let Some((number, ends)) = counted.shown(now) else { continue };
            seen.kind = shown;
            seen.count = Some(number);
            seen.remaining = Some(ends.map_or(Duration::MAX, |ends| ends.since(now)));
            seen.permits = counted.lent(now);
            seen.permits_out = count(seen.permits.len());
            seen.permits.truncate(MOST);
            seen.listeners = Some(listeners(&kind.channel(key)) + count(counted.line.len()));
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
