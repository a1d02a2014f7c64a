//! A hand-written lock as tutorials show it: Lua scripts change a hash with the owner and a count. A waiter
//! sleeps 50 ms and tries again, and each acquire starts a timer thread that renews.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::{Client, Script};
use uuid::Uuid;

use super::LEASE_MS;
use crate::drive::{Peer, Session};

const RETRY: Duration = Duration::from_millis(50);

const LOCK: &str = "
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[1], 1)
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 1
end
return 0";

const UNLOCK: &str = "
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return -1
end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) == 0 then
  return redis.call('del', KEYS[1])
end
return 0";

const RENEW: &str = "
if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
  return redis.call('pexpire', KEYS[1], ARGV[2])
end
return 0";

struct Shared {
    pool: r2d2::Pool<Client>,
    lock: Script,
    unlock: Script,
    renew: Script,
}

pub struct Article(Arc<Shared>);

struct ArticleSession {
    shared: Arc<Shared>,
    names: Vec<String>,
    owner: String,
    /// Dropping this sender ends the timer thread.
    timer: Option<Sender<()>>,
}

impl Article {
    pub fn connect(url: &str, threads: usize) -> Result<Article> {
        let pool = r2d2::Pool::builder()
            .max_size(u32::try_from(threads.clamp(8, 64))?)
            .test_on_check_out(false)
            .build(Client::open(url)?)?;
        let (lock, unlock, renew) = (Script::new(LOCK), Script::new(UNLOCK), Script::new(RENEW));
        Ok(Article(Arc::new(Shared { pool, lock, unlock, renew })))
    }
}

impl Shared {
    fn call(&self, script: &Script, name: &str, owner: &str) -> Result<i64> {
        let mut connection = self.pool.get()?;
        Ok(script.key(name).arg(owner).arg(LEASE_MS).invoke(&mut *connection)?)
    }
}

impl Peer for Article {
    fn session(&self, names: &[String]) -> Result<Box<dyn Session + '_>> {
        let (shared, names, owner) = (Arc::clone(&self.0), names.to_vec(), Uuid::new_v4().to_string());
        Ok(Box::new(ArticleSession { shared, names, owner, timer: None }))
    }
}

impl Session for ArticleSession {
    fn lock(&mut self, key: usize) -> Result<()> {
        let name = self.names.get(key).context("no such key")?;
        while self.shared.call(&self.shared.lock, name, &self.owner)? == 0 {
            thread::sleep(RETRY);
        }
        let (stop, stopped) = channel();
        let (shared, name, owner) = (Arc::clone(&self.shared), name.clone(), self.owner.clone());
        let third = Duration::from_millis(LEASE_MS as u64 / 3);
        thread::Builder::new().spawn(move || {
            while stopped.recv_timeout(third) == Err(RecvTimeoutError::Timeout) {
                if !matches!(shared.call(&shared.renew, &name, &owner), Ok(1)) {
                    return;
                }
            }
        })?;
        self.timer = Some(stop);
        Ok(())
    }

    fn unlock(&mut self, key: usize) -> Result<()> {
        drop(self.timer.take());
        let name = self.names.get(key).context("no such key")?;
        ensure!(self.shared.call(&self.shared.unlock, name, &self.owner)? == 1, "was not held");
        Ok(())
    }
}
