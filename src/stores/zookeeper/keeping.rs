//! Cached holds. A waiter asks for a lock by making a node, and the server tells the client that watches the
//! lock's children; so Curator's waiters ask, too.

use std::sync::Arc;

use crate::seam::capabilities::{Keeping, KeptLook};
use crate::seam::subscription::{ChannelSource, Subscription};
use crate::seam::{Answer, Claim};
use crate::stores::zookeeper::ZooKeeperStore;
use crate::stores::zookeeper::answer::answer;
use crate::stores::zookeeper::jute::{self, Operation, code};
use crate::stores::zookeeper::path::NodeLine;
use crate::stores::zookeeper::places::PlaceKey;
use crate::stores::zookeeper::session::{Found, NoReply, Replied, Session};
use crate::sync::Waker;
use crate::time::Moment;

impl Keeping for ZooKeeperStore {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        let source: Arc<dyn ChannelSource> = Arc::<Session>::clone(&self.session);
        Some(self.session.places.hear(&self.path_of(&claim.name).ok()?, source, waker))
    }

    fn look(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<KeptLook>> {
        let paths: Vec<String> =
            claims.iter().map(|claim| self.path_of(&claim.name).unwrap_or_default()).collect();
        let asked: Vec<_> = paths.iter().map(|path| Operation::Children { path }).collect();
        let lines = self.session.call_all(&asked, deadline);
        let looks = claims.iter().zip(&paths).zip(lines);
        looks
            .map(|((claim, path), line)| {
                let look = match self.standing(path, line, deadline) {
                    Ok(line) => self.key(claim).map(|key| {
                        let own = self.session.places.holding(&key).map(|(node, _)| node.path(&key));
                        let is_own = |name: &str| own.as_deref() == Some(&format!("{path}/{name}"));
                        match (line.all().any(|one| is_own(&one.name)), line.all().count()) {
                            (false, _) => KeptLook::Lost,
                            (true, 1) => KeptLook::Stays,
                            (true, _) => KeptLook::Wanted,
                        }
                    }),
                    Err(NoReply::Code(code::NO_NODE)) => Ok(KeptLook::Lost),
                    Err(failure) => Err(failure),
                };
                answer(look, "renew", &claim.name)
            })
            .collect()
    }
}

impl ZooKeeperStore {
    /// Has this client notified when a waiter comes for a lock that was just granted. Waiters that came
    /// before count as notified.
    pub(super) fn watch_for_others(&self, key: &PlaceKey, deadline: Moment) {
        let Some(channel) = self.session.places.recalls(&key.path) else { return };
        self.session.watch(&key.path, &channel);
        let line = self.session.call(&Operation::WatchChildren { path: &key.path }, deadline);
        if !self.standing(&key.path, line, deadline).is_ok_and(|line| line.all().count() <= 1) {
            channel.notify();
        }
    }

    /// Must precede the deletion of our node, which is no other's request.
    pub(super) fn watch_no_others(&self, key: &PlaceKey) {
        if let Some(channel) = self.session.places.recalls(&key.path) {
            self.session.unwatch(&key.path, &channel);
        }
    }

    fn standing(&self, path: &str, children: Replied, deadline: Moment) -> Found<NodeLine> {
        self.line_of(path, jute::children(&children?.body)?, deadline)
    }
}
