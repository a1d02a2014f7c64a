//! One seller per kind of lock: what people write by hand, step by step. Leasehold's rows are in `leases.rs`.
//!
//! Nothing here is rigged: every row sells with the same three steps, and every count is read from Redis. What the
//! hand-written locks are made to meet is what a real day brings: now and then a job, or the moment between two
//! commands, takes longer than the key lives (a garbage collection, a slow disk, a retransmitted packet, a noisy
//! neighbour). It happens to one job in twenty here and to one in a million in production; the loss is the same.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Script, cmd};

use crate::Result;
use crate::args::Row;
use crate::leases;
use crate::worker::Till;

/// How long deciding takes: price, customer, payment.
pub(crate) const THINK: Duration = Duration::from_millis(1);
/// How long the hand-written locks' keys live: thirty times the usual job.
const KEY_TTL_MS: u64 = 30;
/// A slow moment: longer than a key lives.
const SLOW: Duration = Duration::from_millis(36);
/// One in this many is slow, in each process.
const ONE_IN: u64 = 20;

/// What came of one try to buy.
pub(crate) enum Sale {
    Sold,
    /// Redis refused the write; nothing changed.
    Refused,
    SoldOut,
}

/// A thread's way to buy one piece while keeping others out.
pub(crate) trait Seller {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale>;
}

pub(crate) fn seller(row: Row, till: &Till<'_>) -> Result<Box<dyn Seller>> {
    let key = till.shop.lock_name();
    Ok(match row {
        Row::None => Box::new(NoLock),
        Row::LocalMutex => Box::new(LocalMutex),
        Row::SetnxTtlDel => Box::new(SetnxTtlDel { key }),
        Row::OwnerCheckedDel => Box::new(OwnerCheckedDel { key }),
        Row::LuaNoRenewal => Box::new(LuaNoRenewal { key, release: Script::new(COMPARE_AND_DELETE) }),
        Row::RedisLock => Box::new(leases::Renewed::new(till)?),
        Row::RedisLockFenced => Box::new(leases::Fenced::new(till)?),
    })
}

/// Read, decide, write back. `job` is how long deciding takes this time.
fn sell(till: &mut Till<'_>, job: Duration) -> Result<Sale> {
    let stock = till.shop.read()?;
    if stock <= 0 {
        return Ok(Sale::SoldOut);
    }
    std::thread::sleep(job);
    till.shop.write_back(stock - 1)?;
    let order = till.order();
    till.shop.record(&order)?;
    Ok(Sale::Sold)
}

/// `true` for every twentieth call in this process.
fn is_slow_moment() -> bool {
    static MOMENTS: AtomicU64 = AtomicU64::new(0);
    MOMENTS.fetch_add(1, Ordering::Relaxed) % ONE_IN == ONE_IN / 2
}

fn job() -> Duration {
    if is_slow_moment() { SLOW } else { THINK }
}

/// Fails because two sellers read the same stock before either writes.
struct NoLock;

impl Seller for NoLock {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        sell(till, THINK)
    }
}

/// Fails because the other processes have a mutex of their own.
struct LocalMutex;

impl Seller for LocalMutex {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        static TILL: Mutex<()> = Mutex::new(());
        let _only_here = till.wait(|_| Ok(TILL.lock()))?;
        sell(till, THINK)
    }
}

/// Takes the key or tries again, as the articles have it.
fn take(till: &mut Till<'_>, key: &str, value: &str) -> Result<()> {
    till.wait(|till| {
        loop {
            let mut set = cmd("SET");
            set.arg(key).arg(value).arg("NX").arg("PX").arg(KEY_TTL_MS);
            if set.query::<Option<String>>(&mut till.shop.conn)?.is_some() {
                return Ok(());
            }
            // One to three milliseconds, so that waiters do not march in step.
            std::thread::sleep(Duration::from_micros(
                1_000 + RandomState::new().build_hasher().finish() % 2_000,
            ));
        }
    })
}

/// `SET key 1 NX PX`, then `DEL key`.
///
/// Fails twice when a job outlives its key: the late seller writes back a stock that others have sold from since, and
/// its DEL removes the lock of whoever holds it by then, which lets a third one in beside the second.
struct SetnxTtlDel {
    key: String,
}

impl Seller for SetnxTtlDel {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        take(till, &self.key, "1")?;
        let sale = sell(till, job())?;
        cmd("DEL").arg(&self.key).query::<i64>(&mut till.shop.conn)?;
        Ok(sale)
    }
}

/// The key holds who took it; `GET`, and `DEL` if it is still mine.
///
/// No job outlives its key here: the sale is done and in time. It fails because the key may expire, and another may
/// take it, after GET has answered "mine" and before DEL arrives; DEL then lets a third one in beside the second.
struct OwnerCheckedDel {
    key: String,
}

impl Seller for OwnerCheckedDel {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        let me = till.order();
        take(till, &self.key, &me)?;
        let sale = sell(till, THINK)?;
        let owner: Option<String> = cmd("GET").arg(&self.key).query(&mut till.shop.conn)?;
        if is_slow_moment() {
            std::thread::sleep(SLOW);
        }
        if owner.as_ref() == Some(&me) {
            cmd("DEL").arg(&self.key).query::<i64>(&mut till.shop.conn)?;
        }
        Ok(sale)
    }
}

/// KEYS: lock. ARGV: my value. Returns 1 if the lock was mine and is gone now, else 0.
const COMPARE_AND_DELETE: &str = "
local lock, mine = KEYS[1], ARGV[1]
if redis.call('GET', lock) == mine then return redis.call('DEL', lock) end
return 0";

/// Compare and delete in one script.
///
/// Nobody's lock is removed by another any more. It fails because nothing renews the lease: a slow job outlives it,
/// the next one sells, and the slow one writes back what it read before.
struct LuaNoRenewal {
    key: String,
    release: Script,
}

impl Seller for LuaNoRenewal {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        let me = till.order();
        take(till, &self.key, &me)?;
        let sale = sell(till, job())?;
        self.release.key(&self.key).arg(&me).invoke::<i64>(&mut till.shop.conn)?;
        Ok(sale)
    }
}
