//! A ZooKeeper ensemble.
//!
//! Each who wants a lock makes a node that the servers number and that goes with the client's session; the lowest
//! number has the lock, every other watches the one in front. `path` names the nodes, as Curator does; `session` carries
//! requests in the encoding of `jute` over the connections of `link`; `life` is how long a hold can count on a session,
//! and `places` what this client has where, which `keep` looks after; `answer` puts replies into words.

mod address;
mod answer;
mod jute;
mod keep;
mod life;
mod link;
mod path;
mod places;
mod session;
mod show;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::RedisOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{Fence, LockName, Owner};
use crate::inspect::Inspection;
use crate::observe::reporter::Reporter;
use crate::park::ServiceWaker;
use crate::seam::capabilities::{Capabilities, Sessions};
use crate::seam::inspection::Inspect;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::seam::{Answer, Attempt, Bound, Claim, Failure, Family, Kind, Release, Sink, Snapshot, Store};
use crate::sync::Waker;
use crate::time::{Clock, Moment};
use address::ZooKeeperAddress;
use answer::{answer, deleted, described};
use jute::{Access, Mode, Operation, code};
use life::Window;
use path::{NodeLine, QueuedNode};
use places::{HeldNode, LockNode, PlaceKey};
use session::{Found, NoReply, Replied, Session};

/// Keeps locks as nodes of an ensemble.
pub(crate) struct ZooKeeperStore {
    session: Arc<Session>,
    access: Access,
    command_timeout: Duration,
}

/// Between two looks of a waiter that nothing has woken. Watches are as sure as the connection, and when that breaks all
/// look again; this is for what an operator does by hand.
const POLL: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(6));

impl ZooKeeperStore {
    /// Connects, with a session that lasts `lease` if the servers allow that.
    pub(crate) fn connect(
        options: &RedisOptions,
        lease: Duration,
        reporter: Arc<Reporter>,
    ) -> Result<ZooKeeperStore> {
        let address = ZooKeeperAddress::new(options)?;
        let access = if address.login.is_some() { Access::Creator } else { Access::Everyone };
        let session = Session::open(address, lease, options.connect_timeout, reporter)?;
        Ok(ZooKeeperStore { session, access, command_timeout: options.command_timeout })
    }

    /// After how long without a sign of life the servers free what this client holds.
    pub(crate) fn session_timeout(&self) -> Duration {
        self.session.timeout()
    }

    fn key(&self, claim: &Claim) -> Found<PlaceKey> {
        self.key_of(claim.kind, &claim.name, claim.owner)
    }

    fn key_of(&self, kind: Kind, name: &LockName, owner: Owner) -> Found<PlaceKey> {
        Ok(PlaceKey { path: self.path_of(name)?.into(), owner, family: kind.family() })
    }

    fn path_of(&self, name: &LockName) -> Found<String> {
        path::of_lock(&self.session.address.chroot, name.key()).map_err(NoReply::refused)
    }

    /// Those who stand at a lock; nobody if there is no such path.
    fn line(&self, lock: &str, deadline: Moment) -> Found<NodeLine> {
        match self.session.call(&Operation::Children { path: lock }, deadline) {
            Ok(reply) => Ok(NodeLine::new(jute::children(&reply.body)?)),
            Err(NoReply::Code(code::NO_NODE)) => Ok(NodeLine::default()),
            Err(failure) => Err(failure),
        }
    }

    // ---- taking

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Found<Attempt> {
        let key = self.key(claim)?;
        let granted = |node: &LockNode| Attempt::Granted {
            fence: claim.wants_fence.then(|| Fence::new(node.transaction)),
        };
        if let Some((node, _)) = self.session.places.holding(&key) {
            if self.is_there(&key, &node, deadline)? {
                self.session.places.keep(&key, Some(count), Clock::System.after(claim.lease));
                return Ok(granted(&node));
            }
            self.session.places.remove(&key);
        }
        if count > 1 {
            return Ok(Attempt::Lost);
        }
        // Who does not wait makes no node to find the lock busy. A writer may read all the same.
        let may_read = key.family == Family::Read && self.session.places.holding(&writing(&key)).is_some();
        if !claim.waits && !may_read && self.line(&key.path, deadline)?.is_busy_for(key.family) {
            return Ok(Attempt::Busy { retry_after: None });
        }
        loop {
            let node = self.stand(claim, &key, deadline)?;
            let line = self.line(&key.path, deadline)?;
            let Some(waiter) = line.find(&node.name) else {
                // Somebody took it away. Whoever waits for a lock waits on, at the end.
                self.session.places.set_node(&key, None);
                continue;
            };
            if line.is_strange_to(key.family) {
                self.give_up(&key, &node, deadline)?;
                let words = "the path is in use by another kind of lock";
                return Err(NoReply::refused(Error::new(ErrorKind::WrongType, "lock", words)));
            }
            let Some(in_front) = line.in_front_of(waiter) else {
                let until = Clock::System.after(claim.lease);
                self.session.places.set_held(&key, HeldNode::new(count, until, node.life.window()));
                self.session.look_by(until);
                return Ok(granted(&node));
            };
            if !claim.waits {
                self.give_up(&key, &node, deadline)?;
                return Ok(Attempt::Busy { retry_after: None });
            }
            if self.watch(&key, &in_front.name, deadline)? {
                return Ok(Attempt::Busy { retry_after: None });
            }
        }
    }

    /// Takes the owner out of the queue.
    fn give_up(&self, key: &PlaceKey, node: &LockNode, deadline: Moment) -> Found<()> {
        self.delete(&node.path(key), deadline)?;
        self.session.places.remove(key);
        Ok(())
    }

    /// The node in which the owner stands in the queue; made if there is none.
    fn stand(&self, claim: &Claim, key: &PlaceKey, deadline: Moment) -> Found<LockNode> {
        let known = self.session.places.look(key);
        if let Some(node) = known.node {
            return Ok(node);
        }
        if known.in_doubt {
            self.clear(key, deadline)?;
        }
        let mut made = format!("{}/{}", key.path, path::prefix(key.owner, key.family));
        let mut mode = Mode::EphemeralSequential;
        if key.family == Family::Read
            && let Some((node, _)) = self.session.places.holding(&writing(key))
        {
            // As Curator: who writes and reads reads in the writer's place, and keeps it when the writing is over.
            made.push_str(QueuedNode::digits(&node.name, Family::Write));
            mode = Mode::Ephemeral;
        }
        let data = answer::inscription(claim);
        let create = Operation::Create { path: &made, data: &data, mode, access: self.access };
        let mut outcome = self.session.call(&create, deadline);
        if matches!(outcome, Err(NoReply::Code(code::NO_NODE))) {
            self.make_parents(&key.path, deadline)?;
            outcome = self.session.call(&create, deadline);
        }
        let reply = outcome.inspect_err(|failure| {
            if matches!(failure, NoReply::Failed(Failure::Unknown(_))) {
                self.session.places.set_doubt(key);
            }
        })?;
        let (path, transaction) = jute::created(&reply.body)?;
        let name = path.rsplit('/').next().unwrap_or_default().into();
        let node = LockNode { name, transaction, life: reply.life };
        self.session.places.set_node(key, Some(node.clone()));
        Ok(node)
    }

    /// As Curator: what is above the nodes goes some time after the last of them.
    fn make_parents(&self, lock: &str, deadline: Moment) -> Found<()> {
        // Mostly all but the last are there.
        if self.make_container(lock, deadline)? {
            return Ok(());
        }
        for path in path::with_parents(lock) {
            match self.make_container(path, deadline) {
                Ok(_) => {}
                // One above may be closed to us and be there all the same; the last one tells.
                Err(NoReply::Code(code::NO_AUTH)) if path != lock => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Makes a container unless it is there; `false`: what is above it is not.
    fn make_container(&self, path: &str, deadline: Moment) -> Found<bool> {
        let create = |mode| {
            let request = Operation::Create { path, data: &[], mode, access: self.access };
            self.session.call(&request, deadline)
        };
        let outcome = match create(Mode::Container) {
            Err(NoReply::Code(code::UNIMPLEMENTED)) => create(Mode::Persistent),
            outcome => outcome,
        };
        match outcome {
            Ok(_) | Err(NoReply::Code(code::NODE_EXISTS)) => Ok(true),
            Err(NoReply::Code(code::NO_NODE)) => Ok(false),
            // It may have been made or not, which is as well: no lock is in it.
            Err(NoReply::Failed(Failure::Unknown(error))) => {
                Err(NoReply::refused(Error::new(error.kind(), "lock", error.detail())))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Has the owner told when the one in front goes; `false`: it is gone already.
    fn watch(&self, key: &PlaceKey, in_front: &str, deadline: Moment) -> Found<bool> {
        let topic = self.session.places.topic(key);
        let path = format!("{}/{in_front}", key.path);
        self.session.watch(&path, &topic);
        // By reading, not by asking whether it exists: that would leave a watch where nothing comes any more.
        match self.session.call(&Operation::Watch { path: &path }, deadline) {
            Ok(_) => Ok(true),
            failed => {
                self.session.unwatch(&path, &topic);
                match failed {
                    Err(NoReply::Code(code::NO_NODE)) => Ok(false),
                    Err(failure) => Err(failure),
                    Ok(_) => Ok(true),
                }
            }
        }
    }

    fn is_there(&self, key: &PlaceKey, node: &LockNode, deadline: Moment) -> Found<bool> {
        match self.session.call(&Operation::Exists { path: &node.path(key) }, deadline) {
            // Of another session nothing can be said by this one.
            Ok(reply) => Ok(Arc::ptr_eq(&reply.life, &node.life)),
            Err(NoReply::Code(code::NO_NODE)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    // ---- giving back

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Found<Release> {
        let key = self.key(claim)?;
        let Some((node, held)) = self.session.places.holding(&key) else {
            return Ok(Release::NotHeld { holder: self.holder(&key, deadline)? });
        };
        if left > 0 {
            if self.is_there(&key, &node, deadline)? {
                self.session.places.keep(&key, Some(left), held.until);
                return Ok(Release::StillHeld);
            }
        } else if self.delete(&node.path(&key), deadline)? {
            self.session.places.remove(&key);
            return Ok(Release::Freed { others: 0 });
        }
        self.session.places.remove(&key);
        Ok(Release::NotHeld { holder: self.holder(&key, deadline)? })
    }

    /// Takes a node away; `false`: it was not there.
    fn delete(&self, path: &str, deadline: Moment) -> Found<bool> {
        deleted(self.session.call(&Operation::Delete { path }, deadline))
    }

    /// Has the owner stand nowhere.
    fn abandon(&self, claim: &Claim, deadline: Moment) -> Found<Release> {
        let key = self.key(claim)?;
        let freed = match self.session.places.remove(&key) {
            Some((Some(node), _)) => !node.life.is_over() && self.delete(&node.path(&key), deadline)?,
            // It has never got so far as to ask for a node.
            Some((None, false)) => false,
            Some((None, true)) | None => self.clear(&key, deadline)?,
        };
        Ok(if freed { Release::Freed { others: 0 } } else { Release::NotHeld { holder: None } })
    }

    /// Looks for nodes of an owner that it does not know of, and takes them away; whether there were any.
    fn clear(&self, key: &PlaceKey, deadline: Moment) -> Found<bool> {
        // What was sent under this session before is carried out, or never will be, before this is answered.
        match self.session.call(&Operation::Sync { path: &key.path }, deadline) {
            Ok(_) | Err(NoReply::Code(_)) => {}
            Err(failure) => return Err(failure),
        }
        let prefix = path::prefix(key.owner, key.family);
        let mut found = false;
        for waiter in self.line(&key.path, deadline)?.all().filter(|waiter| waiter.name.starts_with(&prefix))
        {
            found |= self.delete(&format!("{}/{}", key.path, waiter.name), deadline)?;
        }
        Ok(found)
    }

    // ---- questions

    /// Who has the lock, as its node says.
    fn holder(&self, key: &PlaceKey, deadline: Moment) -> Found<Option<String>> {
        Ok(self.shown(key, deadline)?.map(|(name, data)| described(&name, &data).0))
    }

    /// The node of a holder, with its data: the owner's own if it is one.
    fn shown(&self, key: &PlaceKey, deadline: Moment) -> Found<Option<(String, Vec<u8>)>> {
        let line = self.line(&key.path, deadline)?;
        let own = self.session.places.holding(key).map(|(node, _)| node.name);
        let mut holders: Vec<_> = line.holders(key.family).collect();
        holders.sort_by_key(|waiter| own.as_deref() != Some(&*waiter.name));
        for waiter in holders {
            match self
                .session
                .call(&Operation::Data { path: &format!("{}/{}", key.path, waiter.name) }, deadline)
            {
                Ok(reply) => return Ok(Some((waiter.name.clone(), jute::data(&reply.body)?))),
                Err(NoReply::Code(code::NO_NODE)) => {} // it has just gone
                Err(failure) => return Err(failure),
            }
        }
        Ok(None)
    }

    fn inspect(
        &self,
        kind: Kind,
        name: &LockName,
        owner: Owner,
        deadline: Moment,
    ) -> Found<Option<Snapshot>> {
        let key = self.key_of(kind, name, owner)?;
        let Some((shown, data)) = self.shown(&key, deadline)? else { return Ok(None) };
        let own = self.session.places.holding(&key).filter(|(node, _)| *node.name == *shown);
        let (holder, lease) = described(&shown, &data);
        let until = self.session.places.until(&key.path, &shown);
        let left = until.map(|until| until.since(Clock::System.now()));
        // This client's own, of which it knows no more, has been taken away since it was looked at.
        let is_over = holder.rsplit_once(':').map(|(client, _)| client)
            == owner.to_string().rsplit_once(':').map(|(client, _)| client);
        Ok(Some(Snapshot {
            holder,
            count: own.map_or(0, |(_, held)| held.count),
            remaining: left.or(if is_over { Some(Duration::ZERO) } else { lease }),
        }))
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Found<bool> {
        let lock = self.path_of(name)?;
        let mut freed = false;
        for waiter in self.line(&lock, deadline)?.holders(kind.family()) {
            freed |= self.delete(&format!("{lock}/{}", waiter.name), deadline)?;
        }
        Ok(freed)
    }
}

/// Where the same owner stands as a writer.
fn writing(key: &PlaceKey) -> PlaceKey {
    PlaceKey { family: Family::Write, ..key.clone() }
}

/// Nothing ends with the last listener: the watch goes with the node in front.
impl ChannelSource for Session {
    fn left(&self, _topic: &Arc<Channel>) {}
}

impl Store for ZooKeeperStore {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            queues: |_| true,
            poll_every: |_| POLL,
            sessions: Some(self),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        if !matches!(kind.family(), Family::Lock | Family::Read | Family::Write) {
            let words = "ZooKeeper supports locks and read-write locks: no token locks, semaphores, latches";
            return Err(Error::new(ErrorKind::Unsupported, "lock", words).on(name.given()));
        }
        path::of_lock(&self.session.address.chroot, name.key())
            .map(drop)
            .map_err(|error| error.on(name.given()))
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        answer(ZooKeeperStore::attempt(self, claim, count, deadline), "lock", &claim.name)
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        answer(ZooKeeperStore::release(self, claim, left, deadline), "unlock", &claim.name)
    }

    fn release_later(&self, claim: &Claim, deadline: Moment, done: Sink) {
        let found = self.key(claim).ok().and_then(|key| Some((self.session.places.holding(&key)?.0, key)));
        let Some((node, key)) = found else { return done(Store::release(self, claim, 0, deadline)) };
        let (session, name, path) = (Arc::clone(&self.session), Arc::clone(&claim.name), node.path(&key));
        let read = move |outcome: Replied| {
            let freed = deleted(outcome).map(|was_there| {
                session.places.remove_node(&key, &node);
                if was_there { Release::Freed { others: 0 } } else { Release::NotHeld { holder: None } }
            });
            done(answer(freed, "unlock", &name));
        };
        self.session.post(&Operation::Delete { path: &path }, deadline, Box::new(read));
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
        // Whether each node is there, and before that a question to the leader, which knows whether the session lives.
        let nodes = held.iter().flatten().map(|(path, _, _)| Operation::Exists { path });
        let requests: Vec<_> = std::iter::once(Operation::Sync { path: "/" }).chain(nodes).collect();
        let mut outcomes = self.session.call_all(&requests, deadline).into_iter();
        let alive = outcomes.next();
        let renew = |(claim, held): (&Claim, &Option<(String, PlaceKey, LockNode)>)| {
            let Some((_, key, node)) = held else { return Ok(false) };
            match (&alive, outcomes.next()) {
                (Some(Ok(_)), Some(Ok(reply))) if Arc::ptr_eq(&reply.life, &node.life) => {
                    self.session.places.keep(key, None, Clock::System.after(claim.lease));
                    Ok(true)
                }
                (Some(Ok(_)), Some(Ok(_) | Err(NoReply::Code(code::NO_NODE)))) => {
                    self.session.places.remove_node(key, node);
                    Ok(false)
                }
                (Some(Ok(_)), Some(Err(failure))) => Err(failure),
                (Some(Err(NoReply::Code(code))), _) => Err(NoReply::Code(*code)),
                (Some(Err(NoReply::Failed(Failure::Refused(error) | Failure::Unknown(error)))), _) => {
                    Err(NoReply::refused(error.copy()))
                }
                (None, _) | (_, None) => Ok(false),
            }
        };
        let answers = claims.iter().zip(&held).map(renew).collect::<Vec<_>>();
        answers.into_iter().zip(claims).map(|(done, claim)| answer(done, "renew", &claim.name)).collect()
    }

    fn abandon(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        let abandon =
            |claim: &Claim| answer(ZooKeeperStore::abandon(self, claim, deadline), "unlock", &claim.name);
        claims.iter().map(abandon).collect()
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        answer(ZooKeeperStore::force(self, kind, name, deadline), "force_unlock", name)
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
    fn inspect(
        &self,
        kind: Kind,
        name: &LockName,
        owner: Owner,
        deadline: Moment,
    ) -> Answer<Option<Snapshot>> {
        answer(ZooKeeperStore::inspect(self, kind, name, owner, deadline), "inspect", name)
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        answer(ZooKeeperStore::describe(self, name, deadline), "inspect", name)
    }
}

impl Sessions for ZooKeeperStore {
    fn attach(&self, watchdog: ServiceWaker) {
        self.session.attach(watchdog);
    }

    fn bound(&self, claim: &Claim) -> Option<Arc<dyn Bound>> {
        let held = self.key(claim).ok().and_then(|key| self.session.places.holding(&key));
        // Gone again already: what is bound to it is over.
        Some(held.map_or_else(|| Arc::new(Window::closed()), |(_, held)| held.window))
    }
}

impl fmt::Debug for ZooKeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperStore").field("address", &self.session.address).finish_non_exhaustive()
    }
}
