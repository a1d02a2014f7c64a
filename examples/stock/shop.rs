//! Pieces and sales in Redis, through one connection per thread.
//!
//! Every piece has a number. A seller reads the first free piece, decides, and writes its sale, which removes
//! the piece from the free ones. Therefore a late write sells at most one piece twice. The scripts that read
//! and write also count: sellers that came in, writes after another seller came in, and pieces sold twice.

use std::time::Duration;

use leasehold::FencingToken;
use redis::{Connection, Script, cmd};

use crate::Result;

/// Reads the first free piece.
///
/// KEYS: free, counts. Returns this seller's number, and the piece or nil.
const READ: &str = "
local free, counts = KEYS[1], KEYS[2]
return {redis.call('HINCRBY', counts, 'visitors', 1), redis.call('LINDEX', free, 0)}";

/// Reads the first free piece, and stores this holder's fencing token as the newest.
///
/// The read must be fenced as well as the write. If only writes were compared, a late writer could write
/// after the next holder's read and before its write, and both would sell the same piece.
///
/// KEYS: free, counts, fence. ARGV: my token. Returns what READ returns, or nil if a newer token was seen.
const READ_FENCED: &str = "
local free, counts, newest = KEYS[1], KEYS[2], KEYS[3]
local mine = ARGV[1]
if tonumber(redis.call('GET', newest) or '0') > tonumber(mine) then return false end
redis.call('SET', newest, mine)
return {redis.call('HINCRBY', counts, 'visitors', 1), redis.call('LINDEX', free, 0)}";

/// Writes the sale of a piece, and counts it if it is late or the piece was sold before.
///
/// KEYS: free, counts, sold, fence. ARGV: the piece, this seller's number, its token or 0. Returns 1; or 0,
/// with nothing changed, if a newer token was seen.
const WRITE: &str = "
local free, counts, sold, newest = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local piece, visitor, mine = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if mine > 0 and tonumber(redis.call('GET', newest) or '0') > mine then return 0 end
if tonumber(redis.call('HGET', counts, 'visitors')) > visitor then redis.call('HINCRBY', counts, 'late', 1) end
redis.call('LREM', free, 1, piece)
redis.call('HINCRBY', counts, 'orders', 1)
if redis.call('HINCRBY', sold, piece, 1) == 2 then redis.call('HINCRBY', counts, 'twice', 1) end
return 1";

/// What a seller read, and the number of this read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    number: u64,
    /// The first free piece; `None` when all are sold.
    pub(crate) piece: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// How often sellers read the first free piece.
    pub(crate) visitors: u64,
    pub(crate) orders: u64,
    /// Sales with another seller's read between their own read and write.
    pub(crate) late: u64,
    /// Pieces sold more than once.
    pub(crate) twice: u64,
}

/// The pieces, their sales and their lock.
pub(crate) struct Shop {
    pub(crate) conn: Connection,
    prefix: String,
    read: Script,
    read_fenced: Script,
    write: Script,
}

impl Shop {
    pub(crate) fn open(url: &str, prefix: &str) -> Result<Shop> {
        // The time-out of 3 s limits only the connecting. Reads have none: with one, Linux would end them
        // with EINTR when a stopped process continues. The parent ends a run without progress.
        let conn = redis::Client::open(url)?.get_connection_with_timeout(Duration::from_secs(3))?;
        Ok(Shop {
            conn,
            prefix: prefix.to_owned(),
            read: Script::new(READ),
            read_fenced: Script::new(READ_FENCED),
            write: Script::new(WRITE),
        })
    }

    fn key(&self, what: &str) -> String {
        format!("{}:{what}", self.prefix)
    }

    pub(crate) fn lock_name(&self) -> String {
        self.key("lock")
    }

    pub(crate) fn read(&mut self) -> Result<Visit> {
        let (free, counts) = (self.key("free"), self.key("counts"));
        let (number, piece) = self.read.key(free).key(counts).invoke(&mut self.conn)?;
        Ok(Visit { number, piece })
    }

    pub(crate) fn write(&mut self, visit: Visit) -> Result<()> {
        self.sell(visit, 0).map(drop)
    }

    /// Reads the first free piece with a fencing token; `None` if a newer token was seen.
    pub(crate) fn read_fenced(&mut self, fence: FencingToken) -> Result<Option<Visit>> {
        let (free, counts, newest) = (self.key("free"), self.key("counts"), self.key("fence"));
        let mut call = self.read_fenced.key(free);
        let read: Option<(u64, Option<i64>)> =
            call.key(counts).key(newest).arg(fence.get()).invoke(&mut self.conn)?;
        Ok(read.map(|(number, piece)| Visit { number, piece }))
    }

    /// Writes the sale with a fencing token; `false` if a newer token was seen, with nothing changed.
    pub(crate) fn write_fenced(&mut self, visit: Visit, fence: FencingToken) -> Result<bool> {
        self.sell(visit, fence.get())
    }

    fn sell(&mut self, visit: Visit, fence: u64) -> Result<bool> {
        let piece = visit.piece.ok_or("there was no piece to sell")?;
        let (free, counts, sold) = (self.key("free"), self.key("counts"), self.key("sold"));
        let newest = self.key("fence");
        let mut call = self.write.key(free);
        call.key(counts).key(sold).key(newest);
        Ok(call.arg(piece).arg(visit.number).arg(fence).invoke(&mut self.conn)?)
    }

    /// Claims a moment at which the run's fault strikes; `true` only for the first claim in all workers.
    pub(crate) fn claim(&mut self, moment: &str) -> Result<bool> {
        Ok(cmd("SETNX").arg(self.key(moment)).arg(1).query(&mut self.conn)?)
    }

    pub(crate) fn fill(&mut self, stock: i64) -> Result<()> {
        self.clear()?;
        let pieces: Vec<i64> = (1..=stock).collect();
        for some in pieces.chunks(10_000) {
            cmd("RPUSH").arg(self.key("free")).arg(some).query::<i64>(&mut self.conn)?;
        }
        Ok(())
    }

    /// The number of free pieces, and the counts.
    pub(crate) fn count(&mut self) -> Result<(i64, Counts)> {
        let fields = ["visitors", "orders", "late", "twice"];
        let (free, [visitors, orders, late, twice]): (i64, [Option<u64>; 4]) = redis::pipe()
            .cmd("LLEN")
            .arg(self.key("free"))
            .cmd("HMGET")
            .arg(self.key("counts"))
            .arg(&fields)
            .query(&mut self.conn)?;
        let [visitors, orders, late, twice] = [visitors, orders, late, twice].map(Option::unwrap_or_default);
        Ok((free, Counts { visitors, orders, late, twice }))
    }

    /// Removes the run's keys, including the fenced lock's counter and the wait queue of killed workers.
    pub(crate) fn clear(&mut self) -> Result<()> {
        let lock = self.lock_name();
        let beside = ["redisson_lock_token", "leasehold_lock_queue", "leasehold_lock_next"];
        let mut del = cmd("DEL");
        for key in ["free", "counts", "sold", "fence", "lock", "job", "release", "strike"] {
            del.arg(self.key(key));
        }
        for part in beside {
            del.arg(format!("{part}:{lock}"));
        }
        del.query::<i64>(&mut self.conn)?;
        Ok(())
    }
}
