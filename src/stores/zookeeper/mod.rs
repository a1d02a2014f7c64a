//! Stores locks in a ZooKeeper ensemble.
//!
//! An owner that wants a lock (its *claim*) creates a numbered node, which ends with the client's session.
//! The lowest number holds the lock, and every other owner watches the node before its own. `path` names
//! nodes as Curator does, `session` sends requests, `life` says until when a hold can count on a session, and
//! `places` knows this client's nodes. A client that caches a lock watches the lock's nodes. Each waiter's
//! node, even Curator's, is a *recall*, which asks the client to release the lock. `directory` lists locks
//! and clients; a client's *entry* describes it.

mod address;
mod answer;
mod directory;
#[cfg(test)]
mod fake;
mod jute;
mod keep;
mod life;
mod link;
mod path;
mod places;
mod requests;
mod session;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{FencingToken, LockName, Owner};
use crate::inspect::{Holder, Inspection, ObjectKind, Waiter};
use crate::observe::reporter::Reporter;
use crate::park::ServiceWaker;
use crate::seam::capabilities::{CachedCheck, HoldCaching, Sessions};
use crate::seam::format::{check_format, format_text};
use crate::seam::subscription::{ChannelSource, Subscription};
use crate::seam::{
    Answer, Attempt, Bound, Capabilities, Claim, Family, Inspect, Kind, Others, Release, Sink, Snapshot,
    Store,
};
use crate::stores::zookeeper::answer::{
    Found, NoReply, Replied, answer, described, if_there, line_of, location,
};
use crate::stores::zookeeper::jute::{Access, Mode, Operation, code, data, maker};
use crate::stores::zookeeper::life::Window;
use crate::stores::zookeeper::path::NodeLine;
use crate::stores::zookeeper::places::{LockNode, PlaceKey};
use crate::stores::zookeeper::session::Session;
use crate::sync::Waker;
use crate::time::{Clock, Moment};

pub(crate) struct ZooKeeperStore {
    session: Arc<Session>,
    access: Access,
    command_timeout: Duration,
}

/// The shortest and the longest time between two polls. Waiters wake when the node before theirs ends, and
/// when the connection breaks, so polls matter only to a waiter whose own node an operator deleted.
const POLL: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(6));

impl ZooKeeperStore {
    pub(crate) fn connect(
        options: &ServerOptions,
        lease: Duration,
        reporter: Arc<Reporter>,
    ) -> Result<ZooKeeperStore> {
        let session = Session::open(options, lease, reporter)?;
        let has_login = session.address.login.is_some() || options.credentials.is_some();
        let access = if has_login { Access::Creator } else { Access::Everyone };
        let store = ZooKeeperStore { session, access, command_timeout: options.command_timeout };
        let agreed = store.agree_on_format(options.notes, Clock::System.after(options.connect_timeout));
        agreed.inspect_err(|_| store.close()).map_err(|failure| failure.into_error().during("connect"))?;
        Ok(store)
    }

    /// Fails if another format version is stored. If none is stored and `notes` is set, stores ours. If the
    /// server refuses the read or write, the first lock reports that.
    fn agree_on_format(&self, notes: bool, deadline: Moment) -> Answer<()> {
        let path = path::of_format(&self.session.address.chroot);
        let look = || match self.session.call(&Operation::Data(&path), deadline) {
            Ok(reply) => {
                let found = jute::data(&reply.body).unwrap_or_default();
                check_format(&String::from_utf8_lossy(&found), &format!("the node {path}")).map(|()| true)
            }
            Err(NoReply::Code(code::NO_NODE)) => Ok(false),
            Err(NoReply::Code(_)) => Ok(true),
            Err(NoReply::Failed(failure)) => Err(failure),
        };
        if look()? || !notes {
            return Ok(());
        }
        let text = format_text();
        let (data, mode) = (text.as_bytes(), Mode::Persistent);
        let note = Operation::Create { path: &path, data, mode, access: self.access };
        let noted = self.create_in(path.rsplit_once('/').map_or("", |(folder, _)| folder), &note, deadline);
        // Another client may have stored a format meanwhile, so the stored one is checked.
        if matches!(noted, Err(NoReply::Code(code::NODE_EXISTS))) { look().map(drop) } else { Ok(()) }
    }

    pub(crate) fn session_timeout(&self) -> Duration {
        self.session.timeout()
    }
}

impl Store for ZooKeeperStore {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        Capabilities {
            queues: |_| true,
            // A node ends with its session, and may last longer than its lease.
            outlasts_leases: true,
            poll_every: |_| POLL,
            sessions: Some(self.clone()),
            hold_caching: Some(self.clone()),
            directory: Some(self.clone()),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        match kind.family() {
            Family::Lock | Family::Read | Family::Write => {}
            Family::Token | Family::Counted => {
                let words =
                    "ZooKeeper supports locks and read-write locks: no token locks, semaphores, latches";
                return Err(Error::new(ErrorKind::Unsupported, "lock", words).on(name.given()));
            }
        }
        path::of_lock(&self.session.address.chroot, name.key())
            .map(drop)
            .map_err(|error| error.on(name.given()))
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        answer(self.attempt_now(claim, count, deadline), "lock", &claim.name)
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        answer(self.release_now(claim, left, deadline), "unlock", &claim.name)
    }

    fn release_later(&self, claim: &Claim, deadline: Moment, done: Sink) {
        let key = self.key(claim).ok().filter(|_| !claim.waits);
        let found = key.and_then(|key| Some((self.session.places.holding(&key)?.0, key)));
        let Some((node, key)) = found else { return done.answer(self.release_or_leave(claim, deadline)) };
        self.watch_no_others(&key);
        let (session, name, path) = (Arc::clone(&self.session), Arc::clone(&claim.name), node.path(&key));
        let read = move |outcome: Replied| {
            let freed = if_there(outcome).map(|found| {
                session.places.remove_node(&key, &node);
                if found.is_some() {
                    Release::Freed { others: Others::Nobody }
                } else {
                    Release::NotHeld { holder: None }
                }
            });
            done.answer(answer(freed, "unlock", &name));
        };
        self.session.post(&Operation::Delete(&path), deadline, Box::new(read));
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        let held: Vec<_> = claims
            .iter()
            .map(|claim| {
                let key = self.key(claim).ok()?;
                let (node, _) = self.session.places.holding(&key)?;
                Some((node.path(&key), key, node))
            })
            .collect();
        // A request to the leader goes first, because only the leader knows whether the session lives.
        let nodes = held.iter().flatten().map(|(path, _, _)| Operation::Exists(path));
        let requests: Vec<_> = std::iter::once(Operation::Sync("/")).chain(nodes).collect();
        let mut outcomes = self.session.call_all(&requests, deadline).into_iter();
        let alive = outcomes.next().map_or(Ok(()), |alive| alive.map(drop));
        let renew = |(claim, held): (&Claim, &Option<(String, PlaceKey, LockNode)>)| {
            let Some((_, key, node)) = held else { return Ok(false) };
            match &alive {
                Ok(()) => {}
                Err(NoReply::Code(code)) => return Err(NoReply::Code(*code)),
                Err(NoReply::Failed(failure)) => return Err(NoReply::refused(failure.error().copy())),
            }
            match outcomes.next() {
                Some(Ok(reply)) if Arc::ptr_eq(&reply.life, &node.life) => {
                    self.session.places.keep(key, None, Clock::System.after(claim.lease));
                    Ok(true)
                }
                Some(Ok(_) | Err(NoReply::Code(code::NO_NODE))) => {
                    self.session.places.remove_node(key, node);
                    Ok(false)
                }
                Some(Err(failure)) => Err(failure),
                None => Ok(false),
            }
        };
        let answers = claims.iter().zip(&held).map(renew).collect::<Vec<_>>();
        answers.into_iter().zip(claims).map(|(done, claim)| answer(done, "renew", &claim.name)).collect()
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        let clean_up = |claim: &Claim| answer(self.clean_up_now(claim, deadline), "unlock", &claim.name);
        claims.iter().map(clean_up).collect()
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        answer(self.force_now(kind, name, deadline), "force_unlock", name)
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        let topic = self.session.places.topic(&self.key(claim).ok()?);
        let source: Arc<dyn ChannelSource> = Arc::<Session>::clone(&self.session);
        Some(Subscription::new(topic, source, waker))
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        Some(self.session.places.topic(&self.key(claim).ok()?).message_count())
    }

    fn close(&self) {
        self.session.close(self.command_timeout);
    }
}

impl Inspect for ZooKeeperStore {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        answer(self.inspect_now(kind, name, owner, by), "inspect", name)
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        answer(ZooKeeperStore::describe(self, name, deadline), "inspect", name)
    }
}

impl Sessions for ZooKeeperStore {
    fn attach(&self, watchdog: ServiceWaker) {
        self.session.state.lock().watchdog = Some(watchdog);
    }

    fn bound(&self, claim: &Claim) -> Option<Arc<dyn Bound>> {
        let held = self.key(claim).ok().and_then(|key| self.session.places.holding(&key));
        // A hold that has ended meanwhile gets a closed window, with which the client reports the loss.
        Some(held.map_or_else(|| Arc::new(Window::closed()), |(_, held)| held.window))
    }
}

const MOST_SHOWN: usize = 100;

impl ZooKeeperStore {
    fn describe(&self, name: &LockName, deadline: Moment) -> Found<Inspection> {
        let lock = self.path_of(name)?;
        let line = self.line(&lock, deadline)?;
        self.shown_line(name, &lock, &line, true, deadline)
    }

    fn shown_line(
        &self,
        name: &LockName,
        lock: &str,
        line: &NodeLine,
        with_waiters: bool,
        deadline: Moment,
    ) -> Found<Inspection> {
        let mut seen = Inspection::new(name.given(), ObjectKind::Absent);
        for one in line.all() {
            let has_it = line.in_front_of(one).is_none();
            if !has_it {
                seen.waiting += 1;
            }
            if seen.holders.len() + seen.waiters.len() >= MOST_SHOWN || !has_it && !with_waiters {
                continue;
            }
            let Some(reply) = self.data_of(lock, &one.name, deadline)? else { continue }; // just deleted
            if has_it {
                seen.fencing_token = seen.fencing_token.max(Some(FencingToken::new(maker(&reply.body)?)));
            }
            let said = data(&reply.body)?;
            let (owner, lease) = described(&one.name, &said);
            if !has_it {
                seen.waiters.push(Waiter { location: location(&said), ..Waiter::new(owner, None) });
                continue;
            }
            let mode = one.family.mode();
            // The first holder gives the kind: a writer that also reads is listed as a writer first.
            if !seen.is_held() {
                seen.kind = mode.map_or(ObjectKind::FairLock, |mode| ObjectKind::ReadWriteLock { mode });
            }
            let left =
                self.session.places.until(lock, &one.name).map(|until| until.since(Clock::System.now()));
            let remaining = left.or(lease);
            seen.remaining = seen.remaining.max(remaining);
            let location = location(&said);
            seen.holders.push(Holder { mode, remaining, location, ..Holder::new(owner) });
        }
        Ok(seen)
    }
}

impl HoldCaching for ZooKeeperStore {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        let source: Arc<dyn ChannelSource> = Arc::<Session>::clone(&self.session);
        Some(self.session.places.recalls.listen(&self.path_of(&claim.name).ok()?, source, waker))
    }

    fn check_holds(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<CachedCheck>> {
        let paths: Vec<String> =
            claims.iter().map(|claim| self.path_of(&claim.name).unwrap_or_default()).collect();
        // A watch reports only one change, so each check sets a new one.
        let ask = claims.iter().zip(&paths).map(|(claim, path)| {
            match self.session.places.recalls.get(path).filter(|_| claim.hears) {
                Some(channel) => {
                    self.session.watch(path, &channel);
                    Operation::WatchChildren(path)
                }
                None => Operation::Children(path),
            }
        });
        let asked: Vec<_> = ask.collect();
        let look = |claim: &Claim, children: Replied| -> Found<_> {
            let Some(line) = if_there(children.and_then(|children| line_of(&children)))? else {
                return Ok(CachedCheck::Lost);
            };
            let own = self.session.places.holding(&self.key(claim)?);
            let own = own.and_then(|(node, _)| line.find(&node.name));
            Ok(match own.map(|own| line.all().any(|one| one.waits_for(own))) {
                None => CachedCheck::Lost,
                Some(false) => CachedCheck::Stays,
                Some(true) => CachedCheck::Wanted,
            })
        };
        let lines = self.session.call_all(&asked, deadline);
        let looks = claims.iter().zip(lines);
        looks.map(|(claim, line)| answer(look(claim, line), "renew", &claim.name)).collect()
    }
}

impl ZooKeeperStore {
    /// Watches a lock just granted, so that later waiters recall it. Recalls it now if others may be waiting.
    fn watch_for_others(&self, key: &PlaceKey, deadline: Moment) {
        let Some(channel) = self.session.places.recalls.get(&key.path) else { return };
        self.session.watch(&key.path, &channel);
        let line = self.session.call(&Operation::WatchChildren(&key.path), deadline);
        if !line.and_then(|children| line_of(&children)).is_ok_and(|line| line.all().count() <= 1) {
            channel.notify();
        }
    }

    /// Called before this client deletes its own node, so that the deletion does not count as a recall.
    fn watch_no_others(&self, key: &PlaceKey) {
        if let Some(channel) = self.session.places.recalls.get(&key.path) {
            self.session.unwatch(&key.path, &channel);
        }
    }
}
