//! The owners at a lock, as the keys there say.

use std::time::Duration;

use crate::ident::{FencingToken, LockName};
use crate::inspect::{Holder, Inspection, ObjectKind, Waiter};
use crate::seam::{Answer, Failure};
use crate::stores::etcd::EtcdStore;
use crate::stores::etcd::lease::time_to_live;
use crate::stores::etcd::members::not_sent;
use crate::stores::etcd::message::txn;
use crate::time::Moment;

/// The most of those who stand at a lock that are shown.
const MOST_SHOWN: u32 = 100;

impl EtcdStore {
    pub(super) fn seen(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        let mut seen = Inspection::new(name.given(), ObjectKind::Absent);
        let looks = [self.line(name).first_of(MOST_SHOWN)];
        let done = self.txn(&self.wire, &txn(&[], &looks, &[]), deadline).map_err(not_sent)?;
        let (stand, all) = done.line(0).map_err(Failure::Refused)?;
        let mut stand = stand.into_iter();
        let Some(held) = stand.next() else { return Ok(seen) };
        let left = match held.lease {
            0 => Some(Duration::MAX), // not put by this crate
            lease => time_to_live(&self.wire, lease, deadline).map_err(not_sent)?.map(Duration::from_secs),
        };
        // A lease that has ended takes its key with it.
        if left.is_some() {
            (seen.kind, seen.remaining) = (ObjectKind::FairLock, left);
            // Whether its holder asked for a token or not, the creation of its key is one.
            seen.fencing_token = u64::try_from(held.created).ok().map(FencingToken::new);
            let holder = Holder::new(held.owner);
            seen.holders.push(Holder { hold_count: Some(held.count), remaining: left, ..holder });
        }
        seen.waiting = all.saturating_sub(1);
        seen.waiters = stand.map(|waiter| Waiter::new(waiter.owner, None)).collect();
        Ok(seen)
    }
}
