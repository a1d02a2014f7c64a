//! The blocking API of the crate `rlock`, with its defaults: a thread renews a lease of 10 s, and a waiter
//! sleeps for 100 ms between tries.

use std::collections::HashMap;

use anyhow::{Context, Result};
use rlock::sync_lock::{RLock, RLockGuard};

use crate::drive::{Peer, Session};

pub struct Rlock(RLock);

struct RlockSession<'a> {
    client: &'a RLock,
    names: Vec<String>,
    held: HashMap<usize, RLockGuard>,
}

impl Rlock {
    pub fn connect(url: &str) -> Result<Rlock> {
        Ok(Rlock(RLock::new(url)?))
    }
}

impl Peer for Rlock {
    fn session(&self, names: &[String]) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RlockSession { client: &self.0, names: names.to_vec(), held: HashMap::new() }))
    }
}

impl Session for RlockSession<'_> {
    fn lock(&mut self, key: usize) -> Result<()> {
        let guard = self.client.acquire_mutex(self.names.get(key).context("no such key")?)?;
        self.held.insert(key, guard);
        Ok(())
    }

    fn unlock(&mut self, key: usize) -> Result<()> {
        Ok(self.held.remove(&key).context("not held")?.release()?)
    }
}
