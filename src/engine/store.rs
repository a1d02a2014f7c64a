//! The stand-in for a client's store until the client connects. It holds nothing, and grants nothing.

use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::ident::{LockName, Owner};
use crate::inspect::Inspection;
use crate::seam::inspection::{Inspect, describe_by_kinds};
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Attempt, Claim, Failure, Kind, OpenStore, Release, Snapshot, Store};
use crate::sync::Waker;
use crate::time::Moment;

struct Unopened;

fn unopened<T>() -> Answer<T> {
    Failure::refused(Error::new(ErrorKind::Unreachable, "use", "there is no connection to the store yet"))
}

impl Default for OpenStore {
    fn default() -> OpenStore {
        let unopened: Arc<dyn Store> = Arc::new(Unopened);
        unopened.into()
    }
}

impl Store for Unopened {
    fn attempt(&self, _claim: &Claim, _count: u32, _by: Moment) -> Answer<Attempt> {
        unopened()
    }

    fn release(&self, _claim: &Claim, _left: u32, _by: Moment) -> Answer<Release> {
        Ok(Release::NotHeld { holder: None })
    }

    fn renew(&self, claims: &[Claim], _by: Moment) -> Vec<Answer<bool>> {
        claims.iter().map(|_| Ok(false)).collect()
    }

    fn clean_up(&self, claims: &[Claim], by: Moment) -> Vec<Answer<Release>> {
        claims.iter().map(|claim| self.release(claim, 0, by)).collect()
    }

    fn force(&self, _kind: Kind, _name: &LockName, _by: Moment) -> Answer<bool> {
        unopened()
    }

    fn listen(&self, _claim: &Claim, _waker: &Waker) -> Option<Subscription> {
        None
    }

    fn message_count(&self, _claim: &Claim) -> Option<u64> {
        None
    }

    fn close(&self) {}
}

impl Inspect for Unopened {
    fn inspect(&self, _kind: Kind, _name: &LockName, _owner: Owner, _by: Moment) -> Answer<Option<Snapshot>> {
        unopened()
    }

    fn describe(&self, name: &LockName, by: Moment) -> Answer<Inspection> {
        describe_by_kinds(self, name, by)
    }
}
