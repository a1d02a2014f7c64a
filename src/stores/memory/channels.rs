//! What those who wait in this process listen to.

use std::sync::Arc;

use crate::ident::{LockName, Owner};
use crate::seam::subscription::{Channel, ChannelSource};
use crate::seam::{Claim, Kind};
use crate::stores::memory::MemoryShared;

pub(super) fn topic_of(claim: &Claim) -> String {
    match claim.kind {
        Kind::Fair => fair_topic(&claim.name, claim.owner),
        Kind::Semaphore | Kind::Permits | Kind::Latch => counted_topic(claim.kind, &claim.name),
        Kind::Signal => waiter_topic(claim, claim.owner),
        Kind::Read | Kind::Write => rw_topic(&claim.name),
        Kind::Mutex | Kind::Fenced | Kind::Token => claim.name.key().to_owned(),
    }
}

pub(super) fn counted_topic(kind: Kind, name: &LockName) -> String {
    format!("{}:{kind:?}", name.key())
}

/// Each waiter for a condition listens to a topic of its own.
pub(super) fn waiter_topic(claim: &Claim, owner: Owner) -> String {
    format!("{}:{owner}", counted_topic(claim.kind, &claim.name))
}

/// Those who wait for either half of a read-write lock listen to one topic.
pub(super) fn rw_topic(name: &LockName) -> String {
    format!("{}:rw", name.key())
}

/// Each waiter for a fair lock listens to a topic of its own.
pub(super) fn fair_topic(name: &LockName, owner: Owner) -> String {
    format!("{}:{owner}", name.key())
}

impl ChannelSource for MemoryShared {
    fn left(&self, channel: &Arc<Channel>) {
        let mut channels = self.channels.lock();
        if channel.listeners() == 0
            && channels.get(channel.channel()).is_some_and(|current| Arc::ptr_eq(current, channel))
        {
            channels.remove(channel.channel());
        }
    }
}
