//! The crate `redlock`, on one server. It connects for every request.

use anyhow::{Context, Result};
use redlock::{Lock, RedLock};

use super::LEASE_MS;
use crate::drive::{Peer, Session};

pub struct Redlock(RedLock);

struct RedlockSession<'a> {
    client: &'a RedLock,
    names: Vec<String>,
    held: Option<Lock<'a>>,
}

impl Redlock {
    pub fn connect(url: &str) -> Redlock {
        Redlock(RedLock::new(vec![url]))
    }
}

impl Peer for Redlock {
    fn session(&self, names: &[String]) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RedlockSession { client: &self.0, names: names.to_vec(), held: None }))
    }
}

impl Session for RedlockSession<'_> {
    fn lock(&mut self, key: usize) -> Result<()> {
        let name = self.names.get(key).context("no such key")?.as_bytes();
        // `lock` gives up after three tries, so this loops, as the crate's `acquire` does.
        while self.held.is_none() {
            self.held = self.client.lock(name, LEASE_MS)?;
        }
        Ok(())
    }

    fn unlock(&mut self, _key: usize) -> Result<()> {
        let lock = self.held.take().context("not held")?;
        self.client.unlock(&lock);
        Ok(())
    }
}
