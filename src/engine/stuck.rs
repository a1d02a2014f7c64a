//! The threads of this client that have waited for a while and hold something meanwhile, as of one moment.

use std::sync::Arc;

use crate::engine::queue::{Ticket, Told};
use crate::ident::Owner;
use crate::seam::{Family, Kind};
use crate::time::Moment;

/// A wait of a thread that holds something.
#[derive(Debug, Clone)]
pub(crate) struct OwnWait {
    pub(crate) told: Told,
    /// The mark's id of its thread.
    pub(crate) thread: u64,
    pub(crate) thread_name: Box<str>,
    pub(crate) key: String,
    pub(crate) kind: Kind,
    /// The number under which it would be the owner.
    pub(crate) number: u64,
    pub(crate) since: Moment,
    /// It takes a lock again that was given up for a condition: see `Terms`.
    pub(crate) takes_again: bool,
    /// Writers that wait come before it, if it is a reader.
    pub(crate) writers_first: bool,
    pub(crate) ticket: Arc<Ticket>,
}

/// A hold that such a thread has, or that one waits for.
#[derive(Debug, Clone)]
pub(crate) struct OwnHold {
    pub(crate) key: String,
    pub(crate) family: Family,
    pub(crate) number: u64,
    /// The thread that cannot release it while it waits; `None`: any thread may.
    pub(crate) thread: Option<u64>,
    /// Where any thread may: the thread that took it and runs no task.
    pub(crate) taker: Option<u64>,
    pub(crate) thread_name: Box<str>,
    pub(crate) since: Moment,
    pub(crate) leads: bool,
    /// Nobody renews it.
    pub(crate) ends: bool,
}

/// All of it as of one moment.
#[derive(Debug, Default)]
pub(crate) struct Stuck {
    pub(crate) waits: Vec<OwnWait>,
    pub(crate) holds: Vec<OwnHold>,
    /// The holds of other clients for which this process works: each thread's wait keeps them.
    pub(crate) under: Vec<Owner>,
    /// When the next wait will have lasted for as long.
    pub(crate) next: Option<Moment>,
}

impl Stuck {
    pub(crate) fn ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.waits.iter().map(|wait| wait.told.id).collect();
        ids.sort_unstable();
        ids
    }

    pub(crate) fn wait_of(&self, thread: u64) -> Option<&OwnWait> {
        self.waits.iter().find(|wait| wait.thread == thread)
    }
}
