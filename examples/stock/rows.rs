//! One seller per kind of lock: what people write by hand, step by step. Leasehold's rows are in `leases.rs`.
//!
//! The comparison is fair: every row sells with the same steps and the same lease, and has the same slow job,
//! slow release, kill -9 and stop at the same pieces (`worker.rs`). Redis makes every count (`shop.rs`).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Script, cmd};

use crate::Result;
use crate::args::Row;
use crate::leases;
use crate::worker::{LEASE, Till};

pub(crate) enum Sale {
    Sold,
    /// Nothing was written: Redis saw a newer token, or the guard's check failed.
    Refused,
    SoldOut,
}

/// What a thread uses to sell pieces under one kind of lock.
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

/// Reads, decides and writes; returns the sold piece, or `None` if all pieces are sold.
fn sell(till: &mut Till<'_>) -> Result<Option<i64>> {
    let visit = till.shop.read()?;
    let Some(piece) = visit.piece else { return Ok(None) };
    till.decide(piece)?;
    till.be_struck(piece)?;
    till.shop.write(visit)?;
    Ok(Some(piece))
}

impl From<Option<i64>> for Sale {
    fn from(sold: Option<i64>) -> Sale {
        sold.map_or(Sale::SoldOut, |_| Sale::Sold)
    }
}

/// No lock: two sellers can read the same free piece before either writes.
struct NoLock;

impl Seller for NoLock {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        let sold = sell(till)?;
        till.before_release(sold)?;
        Ok(sold.into())
    }
}

/// A mutex in each process, which does not exclude sellers of other processes.
struct LocalMutex;

impl Seller for LocalMutex {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        static TILL: Mutex<()> = Mutex::new(());
        let _only_here = till.wait(|_| Ok(TILL.lock()))?;
        let sold = sell(till)?;
        till.before_release(sold)?;
        Ok(sold.into())
    }
}

/// Sets the key. While another seller has the key, pauses and tries again, as articles show it.
fn take(till: &mut Till<'_>, key: &str, value: &str) -> Result<()> {
    till.wait(|till| {
        loop {
            let mut set = cmd("SET");
            set.arg(key).arg(value).arg("NX").arg("PX").arg(u64::try_from(LEASE.as_millis())?);
            if set.query::<Option<String>>(&mut till.shop.conn)?.is_some() {
                return Ok(());
            }
            // A random pause of one to three milliseconds, so that waiters do not all try at the same time.
            std::thread::sleep(Duration::from_micros(
                1_000 + RandomState::new().build_hasher().finish() % 2_000,
            ));
        }
    })
}

/// `SET key 1 NX PX`, then `DEL key`.
///
/// If seller A's job takes longer than its key lives, seller B gets the lock and sells the same piece. Then
/// A's DEL removes B's lock, so seller C works beside B. B's DEL removes C's lock, and so on.
struct SetnxTtlDel {
    key: String,
}

impl Seller for SetnxTtlDel {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        take(till, &self.key, "1")?;
        let sold = sell(till)?;
        till.before_release(sold)?;
        cmd("DEL").arg(&self.key).query::<i64>(&mut till.shop.conn)?;
        Ok(sold.into())
    }
}

/// The key holds the owner's id; the release is `GET`, and `DEL` if the id is still the owner's.
///
/// If a job takes longer than its key lives, a second seller comes in. If that happens between the first
/// seller's GET and DEL, the DEL removes the second seller's lock, and a third seller comes in too.
struct OwnerCheckedDel {
    key: String,
}

impl Seller for OwnerCheckedDel {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        let me = till.ticket();
        take(till, &self.key, &me)?;
        let sold = sell(till)?;
        let owner: Option<String> = cmd("GET").arg(&self.key).query(&mut till.shop.conn)?;
        till.before_release(sold)?;
        if owner.as_ref() == Some(&me) {
            cmd("DEL").arg(&self.key).query::<i64>(&mut till.shop.conn)?;
        }
        Ok(sold.into())
    }
}

/// KEYS: lock. ARGV: my value. Returns 1 if the lock was mine and is now deleted, else 0.
const COMPARE_AND_DELETE: &str = "
local lock, mine = KEYS[1], ARGV[1]
if redis.call('GET', lock) == mine then return redis.call('DEL', lock) end
return 0";

/// Compare and delete in one script.
///
/// No release removes another seller's lock. But nothing renews the lease: while a slow job outlives it, the
/// next seller sells the piece, and then the slow seller sells it too.
struct LuaNoRenewal {
    key: String,
    release: Script,
}

impl Seller for LuaNoRenewal {
    fn buy_one(&mut self, till: &mut Till<'_>) -> Result<Sale> {
        let me = till.ticket();
        take(till, &self.key, &me)?;
        let sold = sell(till)?;
        till.before_release(sold)?;
        self.release.key(&self.key).arg(&me).invoke::<i64>(&mut till.shop.conn)?;
        Ok(sold.into())
    }
}
