//! Lists locks and the clients' entries (what each client says of itself), and answers `inspect`.
//!
//! In this store, objects of several kinds may have one name. `inspect` shows a held lock, else the first
//! counted object in the order of `CountedKind::ALL`. On Redis a name has one key, and so one object.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::ident::{ClientId, FencingToken, LockName};
use crate::inspect::{Inspection, ObjectKind, Waiter};
use crate::seam::Answer;
use crate::seam::directory::{Directory, Entry, Page, Place, Posted, Wanted};
use crate::seam::subscription::Channels;
use crate::stores::memory::access::MemoryAccess;
use crate::stores::memory::counted::CountedKind;
use crate::stores::memory::state::{MemoryState, rw_channel};
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
}

/// Faults do not affect the writing of an entry, because a thread of the client does it, not a test's call.
impl Directory for MemoryAccess {
    fn write(&self, entry: Entry<'_>, _deadline: Moment) -> Answer<()> {
        let text = entry.text.to_owned();
        self.directory(|state, now| drop(state.clients.insert(entry.client, (text, now.plus(entry.lease)))))
    }

    fn remove(&self, client: ClientId, _deadline: Moment) -> Answer<()> {
        self.directory(|state, _| drop(state.clients.remove(&client)))
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        let page = |state: &mut MemoryState, now| {
            let found = clients.iter().map(|client| state.posted(*client, now)).collect();
            Page::of(found, None, (1, 0))
        };
        self.ask(deadline, || self.directory(page))
    }

    fn clients(&self, _from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        let page = |state: &mut MemoryState, now| {
            let all = state.clients.keys().filter_map(|id| Some((*id, state.posted(*id, now)?)));
            let found = all.collect();
            Page::of(found, None, (1, state.clients.len()))
        };
        self.ask(deadline, || self.directory(page))
    }

    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        let page = |state: &mut MemoryState, now| {
            let keys = state.locks.keys().chain(state.counted.keys().map(|(_, key)| key));
            let after: BTreeSet<Box<str>> = keys.filter(|key| ***key > *from.cursor).cloned().collect();
            let keys: Vec<_> = after.into_iter().take(PAGE).collect();
            let next = keys.get(PAGE - 1).map(ToString::to_string);
            let names = keys.iter().filter_map(|key| wanted.lock(key.to_string()));
            let found = names.map(|name| state.shown(&name, now, &self.shared.channels)).collect();
            Page::of(found, next, (1, keys.len()))
        };
        self.ask(deadline, || self.directory(page))
    }
}

const MOST: usize = 100;

impl MemoryState {
    pub(super) fn shown(&mut self, name: &LockName, now: Moment, channels: &Channels) -> Inspection {
        let key = name.key();
        let mut seen = Inspection::new(name.given(), ObjectKind::Absent);
        seen.fencing_token = self.fences.get(key).copied().map(FencingToken::new);
        let listeners = |channel: &str| channels.get(channel).map_or(0, |channel| count(channel.listeners()));

        if let Some(lock) = self.locks.get_mut(key) {
            lock.expire(now);
            let waiters = lock.queue.iter().filter(|(_, until)| *until > now);
            seen.waiters = waiters
                .map(|(owner, until)| Waiter::new(owner.to_string(), Some(until.since(now))))
                .collect();
            seen.waiting = count(seen.waiters.len());
            seen.waiters.truncate(MOST);
            if let Some((holders, mode, until)) = lock.shown(now) {
                (seen.holders, seen.remaining) = (holders, Some(until.since(now)));
                (seen.kind, seen.listeners) = match (mode, seen.waiting, seen.fencing_token) {
                    (Some(mode), ..) => {
                        let listeners = listeners(&rw_channel(key)) + count(lock.wait_queue.len());
                        (ObjectKind::ReadWriteLock { mode }, Some(listeners))
                    }
                    _ if lock.is_token() => (ObjectKind::TokenLock, None),
                    (None, 0, None) => (ObjectKind::Lock, Some(listeners(key))),
                    (None, 0, Some(_)) => (ObjectKind::FencedLock, Some(listeners(key))),
                    (None, ..) => (ObjectKind::FairLock, None),
                };
                seen.writers_wait = !lock.waiting.is_empty();
                seen.a_writer_waits_long = lock.a_writer_waits_long(now);
                return seen;
            }
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
            seen.listeners = Some(listeners(&kind.channel(key)) + count(counted.wait_queue.len()));
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
