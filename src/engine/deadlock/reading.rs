//! One reading for a search: this client's registry, the holders in the store, and other clients' entries.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::directory::run::{id_under, read_under};
use crate::directory::{ClientInfo, LockUse};
use crate::engine::deadlock::graph::{Holder, Thread, View, Wait};
use crate::engine::stuck::{OwnHold, Stuck};
use crate::error::{Error, ErrorKind};
use crate::ident::{ClientId, LockName, Owner};
use crate::inspect::{Inspection, Mode, ObjectKind};
use crate::seam::{Answer, Failure, Family, Kind, Store};
use crate::time::{Clock, Moment};

pub(super) struct Asked<'a> {
    pub(super) store: &'a dyn Store,
    /// This client, without its waits and holds.
    pub(super) here: &'a ClientInfo,
    pub(super) clock: &'a Clock,
    pub(super) sees_others: bool,
    pub(super) deadline: Moment,
    pub(super) each: Duration,
}

pub(super) struct Reading<'a> {
    asked: &'a Asked<'a>,
    own: &'a Stuck,
    /// By key, and whether the key is a read-write lock's.
    locks: HashMap<(String, bool), Option<Arc<Inspection>>>,
    pub(super) clients: HashMap<ClientId, Option<ClientInfo>>,
    /// By owner: the longest waiting thread of another client that works under this hold.
    under: HashMap<Holder, Option<Thread>>,
    pub(super) requests: u64,
    most: u64,
    /// Something could not be read, so cycles may have been missed.
    pub(super) has_gaps: bool,
    pub(super) refusal: Option<Error>,
    /// A path was not followed to its end: it had too many threads, or needed too many requests.
    pub(super) is_beyond: bool,
}

impl<'a> Reading<'a> {
    pub(super) fn new(asked: &'a Asked<'a>, own: &'a Stuck) -> Reading<'a> {
        Reading {
            asked,
            own,
            locks: HashMap::new(),
            clients: HashMap::from([(asked.here.id, Some(own.within(asked.here)))]),
            under: HashMap::new(),
            requests: 0,
            most: u64::MAX,
            has_gaps: false,
            refusal: None,
            is_beyond: false,
        }
    }

    pub(super) fn limit(&mut self, more: u64) {
        self.most = self.requests.saturating_add(more);
    }

    /// The deadline for one more request. `None`: no more may be sent.
    fn one_more(&mut self) -> Option<Moment> {
        let now = self.asked.clock.now();
        let may = self.asked.sees_others
            && self.refusal.is_none()
            && self.requests < self.most
            && now < self.asked.deadline;
        self.has_gaps |= !may;
        self.is_beyond |= self.requests >= self.most;
        may.then(|| now.plus(self.asked.each).min(self.asked.deadline))
    }

    fn take<T>(&mut self, answer: Answer<T>) -> Option<T> {
        let error = match answer {
            Ok(value) => return Some(value),
            Err(Failure::Refused(error) | Failure::Unknown(error)) => error,
        };
        self.has_gaps = true;
        if matches!(error.kind(), ErrorKind::NoPermission | ErrorKind::Unsupported) {
            self.refusal = Some(error);
        }
        None
    }

    pub(super) fn read_clients(&mut self, clients: &[ClientId]) {
        let mut wanted: Vec<ClientId> = Vec::new();
        for client in clients {
            if !self.clients.contains_key(client) && !wanted.contains(client) {
                wanted.push(*client);
            }
        }
        if wanted.is_empty() {
            return;
        }
        let Some(deadline) = self.one_more() else { return };
        let Some(directory) = self.asked.store.capabilities().directory else { return };
        self.requests += 1;
        let answer = directory.read(&wanted, deadline);
        let Some(page) = self.take(answer) else { return };
        self.requests += page.requests.saturating_sub(1);
        for (client, posted) in wanted.into_iter().zip(page.found) {
            let info = posted.and_then(|posted| ClientInfo::read(client, &posted.text, posted.remaining));
            self.clients.insert(client, info);
        }
    }

    pub(super) fn client(&mut self, client: ClientId) -> Option<&ClientInfo> {
        self.read_clients(&[client]);
        self.clients.get(&client)?.as_ref()
    }

    fn under(&mut self, holder: Holder) -> Option<Thread> {
        if !self.under.contains_key(&holder)
            && let Some(deadline) = self.one_more()
            && let Some(directory) = self.asked.store.capabilities().directory
        {
            self.requests += 1;
            let owner = Owner::new(holder.client, holder.number);
            let answer = directory.read(&[id_under(owner)], deadline);
            let page = self.take(answer)?;
            let posted = page.found.into_iter().next().flatten();
            let thread = posted.and_then(|posted| read_under(owner, &posted.text));
            self.under.insert(holder, thread.map(|(client, id)| Thread { client, id }));
        }
        self.under.get(&holder).copied().flatten()
    }

    fn hold_of(&mut self, holder: Holder, key: &str) -> Option<&LockUse> {
        let is_it = |one: &&LockUse| !one.is_waiting && one.owner == holder.number && one.name == key;
        self.client(holder.client)?.uses.iter().find(is_it)
    }

    /// The lock as the store describes it. A read-write lock needs the general request, which lists all
    /// holders; for other kinds a request that needs fewer rights is enough.
    fn lock(&mut self, key: &str, kind: Kind) -> Option<Arc<Inspection>> {
        let place = (key.to_owned(), kind.other_half().is_some());
        if !self.locks.contains_key(&place)
            && let Some(deadline) = self.one_more()
        {
            let name = LockName::new(&Arc::from(key), key.to_owned()).ok()?;
            self.requests += 1;
            let Asked { store, here, .. } = *self.asked;
            let answer = match kind.other_half() {
                Some(_) => store.describe(&name, deadline),
                None => store.inspect(kind, &name, Owner::new(here.id, 0), deadline).map(|held| match held {
                    Some(held) => held.described(kind, &name),
                    None => Inspection::new(name.given(), ObjectKind::Absent),
                }),
            };
            let seen = self.take(answer).map(Arc::new);
            self.locks.insert(place.clone(), seen);
        }
        self.locks.get(&place)?.clone()
    }

    fn held_here(&self, wait: &Wait) -> Vec<Holder> {
        let is_it = |hold: &&OwnHold| {
            let mode = hold.family.mode();
            let is_the_lock = mode.is_some() || hold.family == wait.kind.family();
            hold.shown.name == wait.key && is_the_lock && is_in_the_way(wait.kind, mode)
        };
        let held = self.own.holds.iter().filter(is_it);
        held.map(|hold| Holder { client: self.asked.here.id, number: hold.shown.owner }).collect()
    }
}

/// Whether this reader must wait for a waiting writer: it lets writers go first, or the writer has waited
/// long, or the store has one queue, in which the reader is not first.
fn is_behind_a_writer(seen: &Inspection, wait: &Wait) -> bool {
    if wait.writers_first && seen.writers_wait || seen.a_writer_waits_long {
        return true;
    }
    let own = Holder { client: wait.thread.client, number: wait.number };
    let at = seen.waiters.iter().position(|one| holder_of(&one.owner) == Some(own));
    at.is_some_and(|at| at > 0)
}

/// Whether a hold of this mode prevents the grant to a waiter of this kind.
fn is_in_the_way(kind: Kind, mode: Option<Mode>) -> bool {
    match kind.family() {
        Family::Lock | Family::Token => mode.is_none(),
        Family::Read => mode == Some(Mode::Write),
        Family::Write => mode.is_some(),
        Family::Counted => false,
    }
}

pub(super) fn holder_of(owner: &str) -> Option<Holder> {
    let (client, number) = owner.split_once(':')?;
    Some(Holder { client: ClientId::read(client)?, number: number.parse().ok()? })
}

/// The kind with this label, which an entry names. Only kinds with holders.
pub(super) fn kind_of(label: &str) -> Option<Kind> {
    let kinds = [Kind::Mutex, Kind::Fenced, Kind::Fair, Kind::Read, Kind::Write, Kind::Token];
    kinds.into_iter().find(|kind| kind.label() == label)
}

/// A published wait of another client's entry; `None`: a hold, or a wait that is not published.
pub(super) fn entry_wait(client: ClientId, one: &LockUse) -> Option<Wait> {
    let published = one.published.as_ref().filter(|_| one.is_waiting)?;
    Some(Wait {
        thread: Thread { client, id: one.by? },
        id: published.id,
        key: one.name.clone(),
        kind: kind_of(&published.kind)?,
        number: one.owner,
        at_ms: published.at_ms,
        takes_again: published.takes_again,
        writers_first: published.writers_first,
    })
}

impl View for Reading<'_> {
    fn holders(&mut self, wait: &Wait) -> Vec<Holder> {
        let mut holders = self.held_here(wait);
        // Except for writers, a hold of this process excludes all others.
        if !holders.is_empty() && wait.kind.family() != Family::Write {
            return holders;
        }
        let own = self.asked.here.id;
        let Some(seen) = self.lock(&wait.key, wait.kind) else { return holders };
        let shown = |is_it: &dyn Fn(Option<Mode>) -> bool| -> Vec<Holder> {
            let shown = seen.holders.iter().filter(|one| is_it(one.mode));
            shown.filter_map(|one| holder_of(&one.owner)).collect()
        };
        let mut others = shown(&|mode| is_in_the_way(wait.kind, mode));
        // A reader behind a waiting writer must wait for the readers that the writer waits for.
        if others.is_empty() && wait.kind == Kind::Read && is_behind_a_writer(&seen, wait) {
            others = shown(&|mode| mode == Some(Mode::Read));
        }
        // A hold of this client that is not in its registry is being released, and blocks nobody.
        let stands = |one: &Holder| {
            let is_it = |hold: &OwnHold| hold.shown.owner == one.number && hold.shown.name == wait.key;
            self.own.holds.iter().any(is_it)
        };
        others.retain(|one| (one.client != own || stands(one)) && !holders.contains(one));
        holders.append(&mut others);
        holders
    }

    fn thread_of(&mut self, holder: Holder, key: &str) -> Option<Thread> {
        let thread = self.hold_of(holder, key).and_then(|one| one.by);
        thread.map(|id| Thread { client: holder.client, id })
    }

    fn takers_of(&mut self, holder: Holder, key: &str) -> Vec<Thread> {
        let thread = |id| Thread { client: holder.client, id };
        let taker = self.hold_of(holder, key).and_then(|one| one.taker);
        let mut takers: Vec<Thread> = taker.map(thread).into_iter().collect();
        if self.own.under.contains(&Owner::new(holder.client, holder.number)) {
            takers.extend(self.own.waits.iter().map(|own| own.wait.thread));
        } else {
            takers.extend(self.under(holder));
        }
        takers
    }

    fn wait_of(&mut self, thread: Thread) -> Option<Wait> {
        let mut uses = self.client(thread.client)?.uses.iter().filter(|one| one.by == Some(thread.id));
        uses.find_map(|one| entry_wait(thread.client, one))
    }

    fn note_beyond(&mut self) {
        self.is_beyond = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_first_readers_count_as_waiting_for_writers() {
        let mut seen = Inspection::new("a", ObjectKind::ReadWriteLock { mode: Mode::Read });
        seen.writers_wait = true;
        let wait = |writers_first| Wait {
            thread: Thread { client: ClientId::random(), id: 1 },
            id: 1,
            key: "a".to_owned(),
            kind: Kind::Read,
            number: 1,
            at_ms: 0,
            takes_again: false,
            writers_first,
        };
        assert_eq!([false, true].map(|first| is_behind_a_writer(&seen, &wait(first))), [false, true]);
    }
}
