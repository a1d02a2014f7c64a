//! Stock and orders in Redis, through one connection per thread.

use std::time::Duration;

use leasehold::Fence;
use redis::{Connection, Script, cmd};

use crate::Result;

/// Reads the stock and makes this fence the one that counts.
///
/// The read must be fenced as well as the write. Were only writes compared, a late writer could still get in after the
/// next holder's read and before its write, and the next holder would then overwrite a sale.
///
/// KEYS: stock, fence. ARGV: my fence. Returns the stock, or nil if a newer holder has already been here.
const READ: &str = "
local stock, newest = KEYS[1], KEYS[2]
local mine = ARGV[1]
if tonumber(redis.call('GET', newest) or '0') > tonumber(mine) then return false end
redis.call('SET', newest, mine)
return redis.call('GET', stock)";

/// Writes the stock and records the order, both or neither.
///
/// KEYS: stock, fence, orders. ARGV: my fence, the new stock, the order. Returns 1, or 0 if a newer holder was here.
const WRITE: &str = "
local stock, newest, orders = KEYS[1], KEYS[2], KEYS[3]
local mine, left, order = ARGV[1], ARGV[2], ARGV[3]
if tonumber(redis.call('GET', newest) or '0') > tonumber(mine) then return 0 end
redis.call('SET', newest, mine)
redis.call('SET', stock, left)
redis.call('RPUSH', orders, order)
return 1";

/// The item, its orders and its lock.
pub(crate) struct Shop {
    pub(crate) conn: Connection,
    prefix: String,
    fenced_read: Script,
    fenced_write: Script,
}

impl Shop {
    pub(crate) fn open(url: &str, prefix: &str) -> Result<Shop> {
        let limit = Duration::from_secs(3);
        let conn = redis::Client::open(url)?.get_connection_with_timeout(limit)?;
        conn.set_read_timeout(Some(limit))?;
        conn.set_write_timeout(Some(limit))?;
        Ok(Shop {
            conn,
            prefix: prefix.to_owned(),
            fenced_read: Script::new(READ),
            fenced_write: Script::new(WRITE),
        })
    }

    fn key(&self, what: &str) -> String {
        format!("{}:{what}", self.prefix)
    }

    pub(crate) fn lock_name(&self) -> String {
        self.key("lock")
    }

    // -- the seller's three steps

    pub(crate) fn read(&mut self) -> Result<i64> {
        Ok(cmd("GET").arg(self.key("stock")).query(&mut self.conn)?)
    }

    pub(crate) fn write_back(&mut self, left: i64) -> Result<()> {
        Ok(cmd("SET").arg(self.key("stock")).arg(left).query(&mut self.conn)?)
    }

    pub(crate) fn record(&mut self, order: &str) -> Result<()> {
        Ok(cmd("RPUSH").arg(self.key("orders")).arg(order).query(&mut self.conn)?)
    }

    // -- the same with a fence

    pub(crate) fn read_fenced(&mut self, fence: Fence) -> Result<Option<i64>> {
        let (stock, newest) = (self.key("stock"), self.key("fence"));
        Ok(self.fenced_read.key(stock).key(newest).arg(fence.get()).invoke(&mut self.conn)?)
    }

    /// `false`: refused, nothing changed.
    pub(crate) fn sell_fenced(&mut self, fence: Fence, left: i64, order: &str) -> Result<bool> {
        let (stock, newest, orders) = (self.key("stock"), self.key("fence"), self.key("orders"));
        let mut call = self.fenced_write.key(stock);
        Ok(call.key(newest).key(orders).arg(fence.get()).arg(left).arg(order).invoke(&mut self.conn)?)
    }

    // -- special moments, each dealt out once per row

    /// `true` for the one worker that claims this moment.
    pub(crate) fn claim(&mut self, moment: &str) -> Result<bool> {
        Ok(cmd("SETNX").arg(self.key(moment)).arg(1).query(&mut self.conn)?)
    }

    // -- the parent's part

    pub(crate) fn fill(&mut self, stock: i64) -> Result<()> {
        self.clear()?;
        self.write_back(stock)
    }

    /// Stock left and orders recorded.
    pub(crate) fn count(&mut self) -> Result<(i64, u64)> {
        let (stock, orders) = (self.key("stock"), self.key("orders"));
        Ok(redis::pipe().cmd("GET").arg(stock).cmd("LLEN").arg(orders).query(&mut self.conn)?)
    }

    /// Leaves nothing behind, the counter of the fenced lock included.
    pub(crate) fn clear(&mut self) -> Result<()> {
        let counter = format!("redisson_lock_token:{}", self.lock_name());
        let mut del = cmd("DEL");
        for key in ["stock", "orders", "fence", "lock", "long", "kill", "stop"] {
            del.arg(self.key(key));
        }
        del.arg(counter).query::<i64>(&mut self.conn)?;
        Ok(())
    }
}
