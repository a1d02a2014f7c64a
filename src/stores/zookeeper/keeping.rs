//! Holds that their client keeps until others ask for them. Others ask by coming to wait: each makes a node, and the
//! server tells who watches the lock's children. So Curator's waiters ask, too.

use std::sync::Arc;

use crate::seam::capabilities::{Keeping, KeptLook};
use crate::seam::subscription::{ChannelSource, Subscription};
use crate::seam::unused::to_be_told;
use crate::seam::{Answer, Claim, Store};
use crate::stores::zookeeper::ZooKeeperStore;
use crate::stores::zookeeper::answer::{answer, with_unused_since};
use crate::stores::zookeeper::jute::{self, Operation, code};
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
        let renewed = self.renew(claims, deadline);
        let paths: Vec<String> =
            claims.iter().map(|claim| self.path_of(&claim.name).unwrap_or_default()).collect();
        let asked: Vec<_> = paths.iter().map(|path| Operation::Children { path }).collect();
        let lines = self.session.call_all(&asked, deadline);
        let looks = claims.iter().zip(&paths).zip(renewed).zip(lines);
        looks
            .map(|(((claim, path), renewed), line)| {
                if !renewed? {
                    return Ok(KeptLook::Lost);
                }
                let look = match self.is_alone(path, line, deadline) {
                    Ok(true) => Ok(KeptLook::Stays),
                    Ok(false) => Ok(KeptLook::Wanted),
                    Err(NoReply::Code(code::NO_NODE)) => Ok(KeptLook::Lost),
                    Err(failure) => Err(failure),
                };
                if matches!(look, Ok(KeptLook::Stays)) {
                    self.show_unused(claim, deadline);
                }
                answer(look, "renew", &claim.name)
            })
            .collect()
    }
}

impl ZooKeeperStore {
    /// Has this client told when somebody comes to wait for a lock that was just granted, to be kept. Those who have
    /// come before, and what cannot be seen, count as told.
    pub(super) fn watch_for_others(&self, key: &PlaceKey, deadline: Moment) {
        let Some(channel) = self.session.places.recalls(&key.path) else { return };
        self.session.watch(&key.path, &channel);
        let line = self.session.call(&Operation::WatchChildren { path: &key.path }, deadline);
        if !self.is_alone(&key.path, line, deadline).unwrap_or(false) {
            channel.notify();
        }
    }

    /// Ends that, before its node is taken away: that it goes asks this client for nothing.
    pub(super) fn watch_no_others(&self, key: &PlaceKey) {
        if let Some(channel) = self.session.places.recalls(&key.path) {
            self.session.unwatch(&key.path, &channel);
        }
    }

    /// Whether only one stands at a lock, given the answer about its children.
    fn is_alone(&self, path: &str, children: Replied, deadline: Moment) -> Found<bool> {
        let line = self.line_of(path, jute::children(&children?.body)?, deadline)?;
        Ok(line.all().count() <= 1)
    }

    /// Writes for people since when a lock is unused, if they are not told that already.
    fn show_unused(&self, claim: &Claim, deadline: Moment) {
        let Ok(key) = self.key(claim) else { return };
        let Some((node, held)) = self.session.places.holding(&key) else { return };
        let Some(since) = to_be_told(claim.keeps.unwrap_or_default(), held.shown_unused_since) else {
            return;
        };
        self.session.places.note_shown(&key, since);
        let data = with_unused_since(node.inscription.to_vec(), since);
        // Nobody waits for it: whether it was written does not matter.
        let write = Operation::SetData { path: &node.path(&key), data: &data };
        self.session.post(&write, deadline, Box::new(drop));
    }
}
