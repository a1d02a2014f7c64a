//! leasehold, both ways.

use std::collections::HashMap;

use anyhow::{Context, Result};
use leasehold::{Guard, LockClient, RedisLock};

use crate::drive::{Peer, Session};

/// `acquire()`, and the guard dropped.
pub struct Guards(LockClient);

/// `lock()` and `unlock()`.
pub struct Calls(LockClient);

struct GuardSession {
    locks: Vec<RedisLock>,
    guards: HashMap<usize, Guard>,
}

struct CallSession {
    locks: Vec<RedisLock>,
}

impl Guards {
    pub fn connect(url: &str) -> Result<Guards> {
        Ok(Guards(LockClient::connect(url)?))
    }
}

impl Calls {
    pub fn connect(url: &str) -> Result<Calls> {
        Ok(Calls(LockClient::connect(url)?))
    }
}

fn locks(client: &LockClient, names: &[String]) -> Vec<RedisLock> {
    names.iter().map(|name| client.lock(name)).collect()
}

impl Peer for Guards {
    fn session(&self, names: &[String]) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(GuardSession { locks: locks(&self.0, names), guards: HashMap::new() }))
    }
}

impl Session for GuardSession {
    fn lock(&mut self, key: usize) -> Result<()> {
        let guard = self.locks.get(key).context("no such key")?.acquire()?;
        self.guards.insert(key, guard);
        Ok(())
    }

    fn unlock(&mut self, key: usize) -> Result<()> {
        self.guards.remove(&key);
        Ok(())
    }

    fn holds(&mut self, key: usize) -> Result<bool> {
        Ok(self.guards.get(&key).is_some_and(|guard| guard.check().is_ok()))
    }
}

impl Peer for Calls {
    fn session(&self, names: &[String]) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(CallSession { locks: locks(&self.0, names) }))
    }
}

impl Session for CallSession {
    fn lock(&mut self, key: usize) -> Result<()> {
        Ok(self.locks.get(key).context("no such key")?.lock()?)
    }

    fn unlock(&mut self, key: usize) -> Result<()> {
        Ok(self.locks.get(key).context("no such key")?.unlock()?)
    }

    fn holds(&mut self, key: usize) -> Result<bool> {
        Ok(self.locks.get(key).context("no such key")?.is_held_by_current_thread()?)
    }
}
