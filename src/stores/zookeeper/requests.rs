//! The requests that create, check and delete a claim's node, and the meaning of their replies.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ident::{FencingToken, LockName, Owner};
use crate::seam::subscription::{Channel, ChannelSource};
use crate::seam::{Attempt, Claim, Failure, Family, Kind, Others, Release, Snapshot};
use crate::stores::zookeeper::answer::{
    Found, NoReply, Replied, ZooKeeperReply, described, failed, if_there, inscription, line_of,
};
use crate::stores::zookeeper::jute::{Mode, Operation, code};
use crate::stores::zookeeper::path::{NodeLine, QueuedNode};
use crate::stores::zookeeper::places::{HeldNode, KnownNodes, LockNode, PlaceKey};
use crate::stores::zookeeper::session::Session;
use crate::time::{Clock, Moment};

use crate::stores::zookeeper::{ZooKeeperStore, jute, path};

impl ZooKeeperStore {
    pub(super) fn key(&self, claim: &Claim) -> Found<PlaceKey> {
        self.key_of(claim.kind, &claim.name, claim.owner)
    }

    pub(super) fn key_of(&self, kind: Kind, name: &LockName, owner: Owner) -> Found<PlaceKey> {
        Ok(PlaceKey { path: self.path_of(name)?.into(), owner, family: kind.family() })
    }

    pub(super) fn path_of(&self, name: &LockName) -> Found<String> {
        path::of_lock(&self.session.address.chroot, name.key()).map_err(NoReply::refused)
    }

    pub(super) fn line(&self, lock: &str, deadline: Moment) -> Found<NodeLine> {
        match if_there(self.session.call(&Operation::Children(lock), deadline))? {
            Some(reply) => line_of(&reply),
            None => Ok(NodeLine::default()),
        }
    }

    pub(super) fn attempt_now(&self, claim: &Claim, count: u32, deadline: Moment) -> Found<Attempt> {
        let key = self.key(claim)?;
        let granted = |node: &LockNode| {
            Attempt::granted(claim.wants_fence.then(|| FencingToken::new(node.transaction)))
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
        // A call that does not wait creates no node for a busy lock. An owner with the write lock may read.
        let may_read = key.family == Family::Read && self.session.places.holding(&writing(&key)).is_some();
        if !claim.waits && !may_read {
            let line = self.line(&key.path, deadline)?;
            if line.is_strange_to(key.family) {
                return Err(strange());
            }
            if line.is_busy_for(key.family) {
                return Ok(Attempt::Busy { retry_after: None });
            }
        }
        loop {
            let node = self.stand(claim, &key, deadline)?;
            match self.look_ahead(claim, &key, &node, deadline) {
                Ok(Ahead::Nobody) => {
                    let until = Clock::System.after(claim.lease);
                    self.session.places.set_held(&key, HeldNode::new(count, until, node.life.window()));
                    self.session.look_by(until);
                    if claim.caches {
                        self.watch_for_others(&key, deadline);
                    }
                    return Ok(granted(&node));
                }
                Ok(Ahead::Somebody) => return Ok(Attempt::Busy { retry_after: None }),
                Ok(Ahead::Unclear) => {}
                // The node may still exist. An unknown outcome causes a clean-up, which deletes it.
                Err(failure) if !claim.waits && self.session.places.stands(&key) => {
                    let (Failure::Refused(error) | Failure::Unknown(error)) = failed(failure, "lock");
                    return Err(NoReply::Failed(Failure::Unknown(error.with_unknown_outcome())));
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    fn look_ahead(&self, claim: &Claim, key: &PlaceKey, node: &LockNode, deadline: Moment) -> Found<Ahead> {
        let line = self.line(&key.path, deadline)?;
        let Some(waiter) = line.find(&node.name) else {
            // The node was deleted, so a waiter joins the queue again, at its end.
            self.session.places.set_node(key, None);
            return Ok(Ahead::Unclear);
        };
        if line.is_strange_to(key.family) {
            self.give_up(key, node, deadline)?;
            return Err(strange());
        }
        if waiter.is_past_the_last() {
            self.give_up(key, node, deadline)?;
            return Err(used_up(&key.path));
        }
        let Some(in_front) = line.in_front_of(waiter) else { return Ok(Ahead::Nobody) };
        if !claim.waits {
            self.give_up(key, node, deadline)?;
            return Ok(Ahead::Somebody);
        }
        let is_watched = self.watch(key, &in_front.name, deadline)?;
        Ok(if is_watched { Ahead::Somebody } else { Ahead::Unclear })
    }

    pub(super) fn give_up(&self, key: &PlaceKey, node: &LockNode, deadline: Moment) -> Found<()> {
        self.delete(&node.path(key), deadline)?;
        self.session.places.remove(key);
        Ok(())
    }

    pub(super) fn stand(&self, claim: &Claim, key: &PlaceKey, deadline: Moment) -> Found<LockNode> {
        match self.session.places.known(key) {
            Some(KnownNodes { node: Some(node), .. }) => return Ok(node),
            Some(KnownNodes { in_doubt: true, .. }) => drop(self.clear(key, deadline)?),
            Some(_) | None => {}
        }
        let mut made = format!("{}/{}", key.path, path::prefix(key.owner, key.family));
        let mut mode = Mode::EphemeralSequential;
        if key.family == Family::Read
            && let Some((node, _)) = self.session.places.holding(&writing(key))
        {
            // As in Curator, a writer that reads keeps its number, even after its write ends.
            made.push_str(QueuedNode::digits(&node.name, Family::Write));
            mode = Mode::Ephemeral;
        }
        let data = inscription(claim);
        let create = Operation::Create { path: &made, data: &data, mode, access: self.access };
        let reply = self.create_in(&key.path, &create, deadline).inspect_err(|failure| {
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

    pub(super) fn create_in(&self, folder: &str, create: &Operation<'_>, deadline: Moment) -> Replied {
        match self.session.call(create, deadline) {
            Err(NoReply::Code(code::NO_NODE)) => {
                self.make_parents(folder, deadline)?;
                self.session.call(create, deadline)
            }
            outcome => outcome,
        }
    }

    /// Creates a folder and its parents as containers, as Curator does: servers delete a container some time
    /// after the last child was deleted.
    pub(super) fn make_parents(&self, lock: &str, deadline: Moment) -> Found<()> {
        // Usually only the last folder is missing, so it is tried first.
        if self.make_container(lock, deadline)? {
            return Ok(());
        }
        for path in path::with_parents(lock) {
            match self.make_container(path, deadline) {
                Ok(_) => {}
                // A parent that this login may not create may exist, so only a refused last folder counts.
                Err(NoReply::Code(code::NO_AUTH)) if path != lock => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    pub(super) fn make_container(&self, path: &str, deadline: Moment) -> Found<bool> {
        let create = Operation::Create { path, data: &[], mode: Mode::Container, access: self.access };
        match self.session.call(&create, deadline) {
            Ok(_) | Err(NoReply::Code(code::NODE_EXISTS)) => Ok(true),
            Err(NoReply::Code(code::NO_NODE)) => Ok(false),
            // A container holds no lock, so the outcome does not matter, and counts as refused.
            Err(NoReply::Failed(Failure::Unknown(error))) => {
                Err(NoReply::refused(Error::new(error.kind(), "lock", error.detail())))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Watches the node in front. `false` if that node is gone.
    pub(super) fn watch(&self, key: &PlaceKey, in_front: &str, deadline: Moment) -> Found<bool> {
        let topic = self.session.places.topic(key);
        let path = format!("{}/{in_front}", key.path);
        self.session.watch(&path, &topic);
        // Sets the watch with a read, because a watch set by `exists` remains if the node does not exist.
        let watched = self.session.call(&Operation::Watch(&path), deadline);
        if watched.is_err() {
            self.session.unwatch(&path, &topic);
        }
        Ok(if_there(watched)?.is_some())
    }

    pub(super) fn is_there(&self, key: &PlaceKey, node: &LockNode, deadline: Moment) -> Found<bool> {
        let found = if_there(self.session.call(&Operation::Exists(&node.path(key)), deadline))?;
        // The reply counts only if it belongs to the session that created the node.
        Ok(found.is_some_and(|reply| Arc::ptr_eq(&reply.life, &node.life)))
    }

    pub(super) fn release_now(&self, claim: &Claim, left: u32, deadline: Moment) -> Found<Release> {
        let key = self.key(claim)?;
        let Some((node, held)) = self.session.places.holding(&key) else {
            return Ok(Release::NotHeld { holder: self.holder(&key, deadline)? });
        };
        if left > 0 {
            if self.is_there(&key, &node, deadline)? {
                self.session.places.keep(&key, Some(left), held.until);
                return Ok(Release::StillHeld);
            }
        } else if self.delete_own(&key, &node, deadline)? {
            self.session.places.remove(&key);
            return Ok(Release::Freed { others: Others::Nobody });
        }
        self.session.places.remove(&key);
        Ok(Release::NotHeld { holder: self.holder(&key, deadline)? })
    }

    fn delete_own(&self, key: &PlaceKey, node: &LockNode, deadline: Moment) -> Found<bool> {
        self.watch_no_others(key);
        self.delete(&node.path(key), deadline)
    }

    pub(super) fn delete(&self, path: &str, deadline: Moment) -> Found<bool> {
        Ok(if_there(self.session.call(&Operation::Delete(path), deadline))?.is_some())
    }

    pub(super) fn clean_up_now(&self, claim: &Claim, deadline: Moment) -> Found<Release> {
        let key = self.key(claim)?;
        // The node stays in `places` until the answer, so that it is not forgotten if the request fails.
        let freed = match self.session.places.known(&key) {
            Some(KnownNodes { node: Some(node), .. }) => self.delete(&node.path(&key), deadline)?,
            Some(KnownNodes { node: None, in_doubt: false }) => false,
            Some(KnownNodes { node: None, in_doubt: true }) | None => self.clear(&key, deadline)?,
        };
        self.session.places.remove(&key);
        Ok(if freed { Release::Freed { others: Others::Nobody } } else { Release::NotHeld { holder: None } })
    }

    /// Deletes every node with the owner's prefix. Returns whether there were any.
    pub(super) fn clear(&self, key: &PlaceKey, deadline: Moment) -> Found<bool> {
        // After the answer to `sync`, no earlier request of this session can still be carried out.
        match self.session.call(&Operation::Sync(&key.path), deadline) {
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

    pub(super) fn data_of(&self, lock: &str, name: &str, deadline: Moment) -> Found<Option<ZooKeeperReply>> {
        if_there(self.session.call(&Operation::Data(&format!("{lock}/{name}")), deadline))
    }

    pub(super) fn holder(&self, key: &PlaceKey, deadline: Moment) -> Found<Option<String>> {
        Ok(self.shown(key, deadline)?.map(|(name, data)| described(&name, &data).0))
    }

    /// The name and text of a holder's node, if possible of `key`'s owner. `None` if there is no holder.
    pub(super) fn shown(&self, key: &PlaceKey, deadline: Moment) -> Found<Option<(String, Vec<u8>)>> {
        let line = self.line(&key.path, deadline)?;
        let own = self.session.places.holding(key).map(|(node, _)| node.name);
        let mut holders: Vec<_> = line.holders(key.family).collect();
        holders.sort_by_key(|waiter| own.as_deref() != Some(&*waiter.name));
        for waiter in holders {
            if let Some(reply) = self.data_of(&key.path, &waiter.name, deadline)? {
                return Ok(Some((waiter.name.clone(), jute::data(&reply.body)?)));
            }
        }
        Ok(None)
    }

    pub(super) fn inspect_now(
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
        // A node of this client that is not in `places` was deleted meanwhile, so no time is left.
        let is_over = holder.rsplit_once(':').map(|(client, _)| client)
            == owner.to_string().rsplit_once(':').map(|(client, _)| client);
        Ok(Some(Snapshot {
            holder,
            count: own.map_or(0, |(_, held)| held.count),
            remaining: left.or(if is_over { Some(Duration::ZERO) } else { lease }),
        }))
    }

    pub(super) fn force_now(&self, kind: Kind, name: &LockName, deadline: Moment) -> Found<bool> {
        let lock = self.path_of(name)?;
        let mut freed = false;
        for waiter in self.line(&lock, deadline)?.holders(kind.family()) {
            freed |= self.delete(&format!("{lock}/{}", waiter.name), deadline)?;
        }
        Ok(freed)
    }
}

enum Ahead {
    Nobody,
    Somebody,
    /// A node has ended meanwhile, so the caller tries again.
    Unclear,
}

fn strange() -> NoReply {
    let words = "the path is in use by another kind of lock";
    NoReply::refused(Error::new(ErrorKind::WrongType, "lock", words))
}

fn used_up(path: &str) -> NoReply {
    let words = format!(
        "the servers have used all {} numbers below {path}, and would use one twice. They begin anew once the node is deleted, \
         a minute or two after the last use of the lock",
        i32::MAX
    );
    NoReply::refused(Error::new(ErrorKind::Refused, "lock", words))
}

fn writing(key: &PlaceKey) -> PlaceKey {
    PlaceKey { family: Family::Write, ..key.clone() }
}

impl ChannelSource for Session {
    fn left(&self, topic: &Arc<Channel>) {
        self.places.recalls.left(topic);
    }
}
