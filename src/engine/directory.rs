//! This client's entry in the store's directory of clients: when the watchdog writes it, and what it says.
//!
//! Acquires and releases do not pay for the entry. The watchdog writes it after each third of the lease while
//! anything is held or waited for, and when the waits that it publishes for deadlock searches have changed.

use std::collections::{HashMap, HashSet};

use crate::directory::run::{id_under, written_under};
use crate::directory::{ClientInfo, LockUse, MOST_USES, clients_of, locate, waiters_of};
use crate::engine::core::Core;
use crate::engine::pace::{renewal_period, renewal_slack};
use crate::engine::stuck::Stuck;
use crate::ident::ClientId;
use crate::inspect::{Inspection, ObjectKind, Waiter};
use crate::seam::directory::{Entry, Place};
use crate::seam::{Answer, Kind};
use crate::sync::atomic::Ordering;
use crate::time::Moment;

/// Maximum number of entries read together: by one request, but in a cluster by one for each entry.
const CLIENTS_TOGETHER: usize = 128;

/// Maximum number of pages of the directory that one search for waiters reads; its result says if there are
/// more. On Redis a page is a SCAN of some 500 keys; 400 pages keep the server busy for about 50 ms.
const MOST_PAGES: usize = 400;

const MOST_WAITERS: usize = 100;

impl Core {
    /// Whether the entry is due. If so, makes the next one due in three tenths of the lease.
    pub(crate) fn take_due_entry(&self, now: Moment) -> bool {
        let (lease, is_due) = (self.options.lease, self.announcer.is_due(now));
        if is_due {
            let next = now.plus(renewal_period(lease) - renewal_slack(lease));
            self.announcer.due.store(next.nanos(), Ordering::SeqCst);
        }
        is_due
    }

    /// Writes the entry, which names `uses` first; if `is_awaited`, waits for the answer. `None`: this client
    /// writes no entries.
    pub(crate) fn write_entry(
        &self,
        mut uses: Vec<LockUse>,
        stuck: &Stuck,
        is_awaited: bool,
        (now, deadline): (Moment, Moment),
    ) -> Option<Answer<()>> {
        let (announcer, lease) = (&self.announcer, self.options.lease);
        let directory = self.store.capabilities.directory.as_ref().filter(|_| announcer.is_seen(now))?;
        let (mut rest, unlisted) = self.registry.uses(MOST_USES, now);
        rest.retain(|one| {
            !uses.iter().any(|listed| {
                (&listed.name, listed.owner, listed.is_waiting) == (&one.name, one.owner, one.is_waiting)
            })
        });
        uses.append(&mut rest);
        announcer.is_written.store(true, Ordering::SeqCst);
        let text = announcer.using((uses, unlisted), now).written(lease);
        let answer = directory.write(Entry { client: self.id, text: &text, lease, is_awaited }, deadline);
        announcer.note(&answer, now);
        // If another client holds a lock for this process (see `id_under`), a further entry says which thread
        // here has waited longest. Nothing removes that entry: it expires.
        let first = stuck.waits.iter().max_by_key(|wait| wait.shown.lasted);
        if let Some(thread) = first.and_then(|wait| wait.shown.by) {
            for owner in &stuck.under {
                let text = written_under(*owner, self.id, thread);
                let client = id_under(*owner);
                drop(directory.write(Entry { client, text: &text, lease, is_awaited: true }, deadline));
            }
        }
        announcer.is_seen(now).then_some(answer)
    }

    /// Removes the entry once nothing was held or waited for during a lease, unless the store expires it.
    pub(crate) fn remove_unused_entry(&self, now: Moment, deadline: Moment) {
        let due = Moment::from_nanos(self.announcer.due.load(Ordering::SeqCst));
        if now >= due.plus(self.options.lease)
            && self.store.capabilities.directory.as_ref().is_some_and(|directory| !directory.ends_entries())
        {
            self.remove_entry(deadline);
        }
    }

    pub(crate) fn remove_entry(&self, deadline: Moment) {
        if self.announcer.is_written.load(Ordering::SeqCst)
            && let Some(directory) = &self.store.capabilities.directory
            && directory.remove(self.id, deadline).is_ok()
        {
            self.announcer.is_written.store(false, Ordering::SeqCst);
        }
    }

    fn own_info(&self, now: Moment) -> ClientInfo {
        self.announcer.using(self.registry.uses(MOST_USES, now), now)
    }

    /// Reads the entries of these clients into `known`; returns the number of requests.
    pub(crate) fn read_entries(
        &self,
        clients: &[ClientId],
        known: &mut HashMap<ClientId, Option<ClientInfo>>,
        deadline: Moment,
    ) -> Answer<u64> {
        let Some(directory) = &self.store.capabilities.directory else { return Ok(0) };
        let page = directory.read(clients, deadline)?;
        for (client, posted) in clients.iter().zip(page.found) {
            let info = posted.and_then(|posted| ClientInfo::read(*client, &posted.text, posted.remaining));
            known.insert(*client, info);
        }
        Ok(page.requests)
    }

    pub(crate) fn pages_of_clients(
        &self,
        deadline: impl Fn() -> Moment,
    ) -> impl Iterator<Item = Answer<Vec<ClientInfo>>> {
        let mut next =
            self.store.capabilities.directory.as_ref().map(|directory| (directory, Place::default()));
        std::iter::from_fn(move || {
            let (directory, place) = next.take()?;
            let page = directory.clients(&place, deadline()).map(|page| {
                next = page.next.map(|place| (directory, place));
                let others = page.found.into_iter().filter(|(id, _)| *id != self.id);
                others
                    .filter_map(|(id, posted)| ClientInfo::read(id, &posted.text, posted.remaining))
                    .collect()
            });
            Some(page)
        })
    }

    /// Adds hosts and threads to the holders and waiters in `seen`. Reads the directory for clients that are
    /// not in `known`; returns the number of requests.
    pub(crate) fn locate(
        &self,
        seen: &mut [(String, Inspection)],
        known: &mut HashMap<ClientId, Option<ClientInfo>>,
    ) -> u64 {
        let (now, deadline) = (self.clock.now(), self.clock.after(self.options.command_timeout));
        let clients = || seen.iter().flat_map(|(_, one)| clients_of(one));
        if clients().any(|client| client == self.id) {
            known.entry(self.id).or_insert_with(|| Some(self.own_info(now)));
        }
        let mut requests = 0;
        for together in unknown(clients(), known).chunks(CLIENTS_TOGETHER) {
            // If the directory cannot be read, owners are shown by their ids.
            let Ok(sent) = self.read_entries(together, known, deadline) else { break };
            requests += sent;
        }
        for (key, one) in seen {
            locate(one, key, known);
        }
        requests
    }

    /// Adds the waiters in clients' entries, the longest wait first, unless the store knows all waiters.
    pub(crate) fn add_waiters(&self, key: &str, seen: &mut Inspection) {
        // No subscriber means no waiter (unless one spins), except on token locks, whose waiters only poll.
        let is_known = seen.waiting > 0 || seen.listeners == Some(0) && seen.kind != ObjectKind::TokenLock;
        // On etcd and ZooKeeper each waiter has a key or node in the lock's queue, so `seen` has all waiters.
        let has_queues = || (self.store.capabilities.queues)(Kind::Mutex);
        let is_known = is_known || seen.listeners.is_none() && has_queues();
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
        let (now, deadline) = (self.clock.now(), self.clock.after(self.options.command_timeout));
        let (mut waiters, mut unnamed): (Vec<Waiter>, u64) = (Vec::new(), 0);
        let own = std::iter::once(Ok(vec![self.own_info(now)]));
        for (read, page) in own.chain(self.pages_of_clients(|| deadline)).enumerate() {
            let Some(infos) = page.ok().filter(|_| read <= MOST_PAGES) else {
                seen.waiting_at_least = read > 1;
                break;
            };
            for info in infos {
                let its = info.uses.iter().filter(|one| one.is_waiting && one.name == key);
                unnamed = its.map(|one| one.more_waiters).fold(unnamed, u64::saturating_add);
                waiters.extend(waiters_of(&info, key));
            }
        }
        waiters.sort_by_key(|one| std::cmp::Reverse(one.waiting_for));
        seen.waiting = u64::try_from(waiters.len()).unwrap_or(u64::MAX).saturating_add(unnamed);
        waiters.truncate(MOST_WAITERS);
        seen.waiters = waiters;
    }
}

pub(crate) fn unknown<T>(
    clients: impl Iterator<Item = ClientId>,
    known: &HashMap<ClientId, T>,
) -> Vec<ClientId> {
    let mut seen = HashSet::new();
    clients.filter(|client| !known.contains_key(client) && seen.insert(*client)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::engine::core::Announcer;
    use crate::error::{Error, ErrorKind};
    use crate::refused;
    use crate::seam::Failure;
    use crate::time::Clock;

    #[test]
    fn a_refused_directory_entry_is_written_again_later() {
        let (clock, id) = (Clock::System, ClientId::random());
        let announcer = Announcer::new(id, &Options::default(), &clock);
        let (at, off) = (clock.now(), Options { directory: false, ..Options::default() });
        assert!(announcer.is_seen(at));
        let refusal = Error::new(ErrorKind::NoPermission, "directory", "not you");
        announcer.note(&Err(Failure::Refused(refusal)), at);
        assert!(!announcer.is_seen(at) && !announcer.is_due(at));
        let later = at.plus(refused::LASTS);
        assert!(announcer.is_seen(later) && announcer.is_due(later));
        assert!(!Announcer::new(id, &off, &clock).is_due(later), "the directory of clients is off");
    }
}
