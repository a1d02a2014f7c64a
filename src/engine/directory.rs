//! This client's entry in the directory: when the watchdog writes it, and what it contains.
//!
//! The entry costs acquires and releases nothing: only the timer, while anything is held, and waiters about
//! to sleep ask for it. The watchdog then writes it, at most once in each third of the lease.

use std::collections::HashMap;
use std::time::Duration;

use crate::config::Options;
use crate::directory::run::{id_under, written_under};
use crate::directory::{ClientInfo, LONGEST_TEXT, LockUse, MOST_USES, clients_of, locate, waiters_of};
use crate::engine::pace::{renewal_period, renewal_slack};
use crate::engine::registry::Registry;
use crate::engine::stuck::Stuck;
use crate::error::{Error, ErrorKind};
use crate::ident::ClientId;
use crate::inspect::{Inspection, ObjectKind, Waiter};
use crate::refused::{self, Refused};
use crate::seam::directory::{Directory, Entry, Place};
use crate::seam::{Answer, Kind, Store};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::{Clock, Moment};

/// Maximum number of entries that one request reads. In a cluster each entry takes a request.
const CLIENTS_TOGETHER: usize = 128;

/// Maximum number of pages of the directory that one question reads; the answer says if there are more. On
/// Redis the pages go through all keys, so all of them together keep the server busy for about 50 ms.
const MOST_PAGES: usize = 400;

const MOST_WAITERS: usize = 100;

pub(crate) struct Announcer {
    id: ClientId,
    /// The constant part of the entry.
    identity: ClientInfo,
    lease: Duration,
    began: Moment,
    /// When the entry is due, as `Moment::nanos`; the maximum if the client writes none.
    due: AtomicU64,
    refused: Refused,
    pub(crate) is_wanted: AtomicBool,
    is_written: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Posting {
    Done,
    Never,
    Failed,
}

impl Announcer {
    pub(crate) fn new(id: ClientId, options: &Options, clock: &Clock) -> Announcer {
        let label = options.label.as_ref();
        let label = label.map(|label| label.chars().filter(|c| !c.is_control()).take(LONGEST_TEXT).collect());
        Announcer {
            id,
            identity: ClientInfo::here(id, label),
            lease: options.lease,
            began: clock.now(),
            due: AtomicU64::new(if options.directory { 0 } else { u64::MAX }),
            refused: Refused::default(),
            is_wanted: AtomicBool::new(false),
            is_written: AtomicBool::new(false),
        }
    }

    /// Called while something is held or waited for. `true`: the caller must wake the watchdog to write.
    pub(crate) fn want(&self, now: Moment) -> bool {
        now.nanos() >= self.due.load(Ordering::Relaxed) && !self.is_wanted.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.due.load(Ordering::Relaxed) != u64::MAX
    }

    pub(crate) fn is_seen(&self, now: Moment) -> bool {
        self.is_on() && !self.refused.stands(|| now)
    }

    /// Remembers for a while that this client may not write, because the server would log each try.
    fn note(&self, answer: &Answer<()>, now: Moment) {
        let is_of_rights = |error: &Error| {
            matches!(error.kind(), ErrorKind::NoPermission | ErrorKind::Unsupported | ErrorKind::WrongType)
        };
        if let Err(failure) = answer
            && is_of_rights(failure.error())
        {
            self.refused.note(now);
            self.due.store(now.plus(refused::LASTS).nanos(), Ordering::SeqCst);
            self.is_written.store(false, Ordering::SeqCst);
        }
    }

    /// Writes the entry, which names `uses` first. Runs on the watchdog, which waits for the answer if it is
    /// awaited.
    pub(crate) fn write(
        &self,
        store: &dyn Store,
        registry: &Registry,
        (mut uses, stuck): (Vec<LockUse>, &Stuck),
        is_awaited: bool,
        (now, deadline): (Moment, Moment),
    ) -> Posting {
        let is_seen = self.is_seen(now);
        self.postpone(now);
        let Some(directory) = store.capabilities().directory.filter(|_| is_seen) else {
            return Posting::Never;
        };
        let (rest, unlisted) = registry.uses(MOST_USES, now);
        let is_listed = |one: &LockUse, listed: &[LockUse]| {
            listed.iter().any(|listed| {
                (&listed.name, listed.owner, listed.is_waiting) == (&one.name, one.owner, one.is_waiting)
            })
        };
        let rest: Vec<_> = rest.into_iter().filter(|one| !is_listed(one, &uses)).collect();
        uses.extend(rest);
        let info = self.identity.using(uses, unlisted, now.since(self.began));
        self.is_written.store(true, Ordering::SeqCst);
        let text = info.written(self.lease);
        let entry = Entry { client: self.id, text: &text, lease: self.lease, is_awaited };
        let answer = directory.write(entry, deadline);
        self.note(&answer, now);
        self.write_under(directory, stuck, deadline);
        match answer {
            Ok(()) => Posting::Done,
            Err(_) if !self.is_seen(now) => Posting::Never,
            Err(_) => Posting::Failed,
        }
    }

    /// Writes an entry for each hold of another client under which this process works: which thread here has
    /// waited longest. These entries expire; the wait itself is in this client's own entry.
    fn write_under(&self, directory: &dyn Directory, stuck: &Stuck, deadline: Moment) {
        let Some(first) = stuck.waits.iter().max_by_key(|wait| wait.shown.lasted) else { return };
        for owner in &stuck.under {
            let text = written_under(*owner, self.id, first.wait.thread.id);
            let (client, lease) = (id_under(*owner), self.lease);
            drop(directory.write(Entry { client, text: &text, lease, is_awaited: true }, deadline));
        }
    }

    pub(crate) fn here(&self, now: Moment) -> ClientInfo {
        self.identity.using(Vec::new(), 0, now.since(self.began))
    }

    /// Runs on the watchdog: removes an entry that is not wanted any more, if the store does not expire it.
    pub(crate) fn end(&self, store: &dyn Store, now: Moment, deadline: Moment) {
        let due = self.due.load(Ordering::SeqCst);
        if self.is_written.load(Ordering::SeqCst)
            && now >= Moment::from_nanos(due).plus(self.lease)
            && let Some(directory) = store.capabilities().directory
            && !directory.ends_entries()
            && let Ok(()) = directory.remove(self.id, deadline)
        {
            self.is_written.store(false, Ordering::SeqCst);
        }
    }

    /// `due` is set before `is_wanted` is cleared, so that no waiter sets `is_wanted` again at once.
    fn postpone(&self, now: Moment) {
        if self.is_on() {
            let next = now.plus(renewal_period(self.lease) - renewal_slack(self.lease));
            self.due.store(next.nanos(), Ordering::SeqCst);
        }
        self.is_wanted.store(false, Ordering::SeqCst);
    }

    pub(crate) fn remove(&self, store: &dyn Store, deadline: Moment) {
        if self.is_written.swap(false, Ordering::SeqCst)
            && let Some(directory) = store.capabilities().directory
        {
            drop(directory.remove(self.id, deadline));
        }
    }

    pub(crate) fn own(&self, registry: &Registry, now: Moment) -> ClientInfo {
        let (uses, unlisted) = registry.uses(MOST_USES, now);
        self.identity.using(uses, unlisted, now.since(self.began))
    }

    /// Adds hosts and threads to the holders and waiters in `seen`. Reads the directory for clients that are
    /// not in `known`; returns the number of requests.
    pub(crate) fn locate(
        &self,
        seen: &mut [(String, Inspection)],
        known: &mut HashMap<ClientId, Option<ClientInfo>>,
        (store, registry): (&dyn Store, &Registry),
        (now, deadline): (Moment, Moment),
    ) -> u64 {
        let mut asked: Vec<ClientId> = Vec::new();
        for client in seen.iter().flat_map(|(_, one)| clients_of(one)) {
            if client == self.id {
                known.entry(client).or_insert_with(|| Some(self.own(registry, now)));
            } else if !known.contains_key(&client) && !asked.contains(&client) {
                asked.push(client);
            }
        }
        let mut requests = 0;
        let directory = store.capabilities().directory;
        for together in asked.chunks(CLIENTS_TOGETHER) {
            // If the directory cannot be read, owners are shown by their ids.
            let Some(Ok(page)) = directory.map(|directory| directory.read(together, deadline)) else {
                break;
            };
            requests += page.requests;
            for (client, posted) in together.iter().zip(page.found) {
                let info =
                    posted.and_then(|posted| ClientInfo::read(*client, &posted.text, posted.remaining));
                known.insert(*client, info);
            }
        }
        for (key, one) in seen {
            locate(one, key, known);
        }
        requests
    }

    /// Adds the waiters in clients' entries, the longest wait first, unless the store knows all waiters.
    pub(crate) fn add_waiters(
        &self,
        (key, seen): (&str, &mut Inspection),
        (store, registry): (&dyn Store, &Registry),
        (now, deadline): (Moment, Moment),
    ) {
        let capabilities = store.capabilities();
        // Waiters subscribe, except for token locks. So a lock without subscribers has no waiters.
        let is_known = seen.waiting > 0 || seen.listeners == Some(0) && seen.kind != ObjectKind::TokenLock;
        // A store with queues of its own has shown all waiters.
        let is_known = is_known || seen.listeners.is_none() && (capabilities.queues)(Kind::Mutex);
        // A free lock has no waiters, and entries that name some are out of date.
        let is_free = match seen.kind {
            ObjectKind::Semaphore
            | ObjectKind::ExpirableSemaphore
            | ObjectKind::CountDownLatch
            | ObjectKind::Counter => false,
            _ => !seen.is_held(),
        };
        if is_known || is_free {
            return;
        }
        let own = self.own(registry, now);
        let mut waiters: Vec<Waiter> = waiters_of(&own, key).collect();
        // An entry names some waiters only, and says how many more there are.
        let more_of = |info: &ClientInfo| {
            let its = info.uses.iter().filter(|one| one.is_waiting && one.name == key);
            its.map(|one| one.more_waiters).fold(0, u64::saturating_add)
        };
        let mut unnamed = more_of(&own);
        let mut next = capabilities.directory.map(|directory| (directory, Place::default()));
        let mut pages = 0;
        while let Some((directory, place)) = next.take() {
            if pages == MOST_PAGES {
                seen.waiting_at_least = true;
                break;
            }
            // If the directory cannot be read, no further waiter is named.
            let Ok(page) = directory.clients(&place, deadline) else {
                seen.waiting_at_least = pages > 0;
                break;
            };
            pages += 1;
            for (id, posted) in page.found.into_iter().filter(|(id, _)| *id != self.id) {
                let info = ClientInfo::read(id, &posted.text, posted.remaining);
                unnamed = info.iter().map(more_of).fold(unnamed, u64::saturating_add);
                waiters.extend(info.iter().flat_map(|info| waiters_of(info, key)));
            }
            next = page.next.map(|place| (directory, place));
        }
        waiters.sort_by_key(|one| std::cmp::Reverse(one.waiting_for));
        seen.waiting = u64::try_from(waiters.len()).unwrap_or(u64::MAX).saturating_add(unnamed);
        waiters.truncate(MOST_WAITERS);
        seen.waiters = waiters;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seam::Failure;

    #[test]
    fn a_refused_entry_is_written_again_later() {
        let (clock, id) = (Clock::System, ClientId::random());
        let announcer = Announcer::new(id, &Options::default(), &clock);
        let (at, off) = (clock.now(), Options { directory: false, ..Options::default() });
        assert!(announcer.is_seen(at));
        let refusal = Error::new(ErrorKind::NoPermission, "directory", "not you");
        announcer.note(&Err(Failure::Refused(refusal)), at);
        assert!(!announcer.is_seen(at) && !announcer.want(at));
        let later = at.plus(refused::LASTS);
        assert!(announcer.is_seen(later) && announcer.want(later));
        assert!(!Announcer::new(id, &off, &clock).want(later), "it is off");
    }
}
