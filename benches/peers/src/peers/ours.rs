//! leasehold, used by guards and by `lock` and `unlock`.

use std::collections::HashMap;

use anyhow::{Context, Result};
use leasehold::{Guard, LockClient, Permit, ReadWriteLock, RedisLock, Semaphore};

use crate::drive::{Peer, Session};
use crate::load::{PERMITS, Sort, WRITES_EVERY};

/// Uses `acquire()` and drops the guard.
pub struct Guards(LockClient);

/// Uses `lock()` and `unlock()`; the flag says whether the lock is cached until a recall.
pub struct Calls(LockClient, bool);

/// Uses guards of locks that several owners may hold.
pub struct Shared(LockClient, Sort);

struct PermitSession {
    semaphores: Vec<Semaphore>,
    permit: Option<Permit>,
}

struct ReadWriteSession {
    locks: Vec<ReadWriteLock>,
    guard: Option<Guard>,
    cycles: u64,
}

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
        Ok(Calls(LockClient::connect(url)?, false))
    }

    pub fn keeping(url: &str) -> Result<Calls> {
        Ok(Calls(LockClient::connect(url)?, true))
    }
}

fn locks(client: &LockClient, names: &[String]) -> Vec<RedisLock> {
    names.iter().map(|name| client.get_lock(name)).collect()
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
        let lock = |name: &String| {
            if self.1 { self.0.lock_builder(name).cached().build() } else { self.0.get_lock(name) }
        };
        Ok(Box::new(CallSession { locks: names.iter().map(lock).collect() }))
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

impl Shared {
    pub fn connect(url: &str, sort: Sort) -> Result<Shared> {
        Ok(Shared(LockClient::connect(url)?, sort))
    }
}

impl Peer for Shared {
    fn session(&self, names: &[String]) -> Result<Box<dyn Session + '_>> {
        if self.1 == Sort::Permits {
            let semaphores: Vec<_> = names.iter().map(|name| self.0.get_semaphore(name)).collect();
            for semaphore in &semaphores {
                semaphore.try_set_permits(PERMITS)?;
            }
            return Ok(Box::new(PermitSession { semaphores, permit: None }));
        }
        let locks = names.iter().map(|name| self.0.get_read_write_lock(name)).collect();
        Ok(Box::new(ReadWriteSession { locks, guard: None, cycles: 0 }))
    }
}

impl Session for PermitSession {
    fn lock(&mut self, key: usize) -> Result<()> {
        self.permit = Some(self.semaphores.get(key).context("no such key")?.acquire(1)?);
        Ok(())
    }

    fn unlock(&mut self, _key: usize) -> Result<()> {
        self.permit = None;
        Ok(())
    }

    fn is_alone(&self) -> bool {
        false
    }
}

impl Session for ReadWriteSession {
    fn lock(&mut self, key: usize) -> Result<()> {
        self.cycles += 1;
        let lock = self.locks.get(key).context("no such key")?;
        let half = if self.is_alone() { lock.write() } else { lock.read() };
        self.guard = Some(half.acquire()?);
        Ok(())
    }

    fn unlock(&mut self, _key: usize) -> Result<()> {
        self.guard = None;
        Ok(())
    }

    fn is_alone(&self) -> bool {
        self.cycles.is_multiple_of(WRITES_EVERY)
    }
}
