//! A driver's input, and its protocol. The programs in the other languages take the same flags and speak the
//! same lines:
//!
//! | kind      | standard output, one line each | standard input |
//! |-----------|--------------------------------|----------------|
//! | `cycles`  | `ready` (connected, warmed up), then the result | `go` |
//! | `handoff` | the same | `go` |
//! | `held`    | `ready`, `holding` (all keys locked), then the result | `go`, `check` (what is still held) |
//! | `holder`  | `ready` (the lock held), then the result | `release` |
//! | `waiters` | `ready` (the threads started), `waiting` (all ask for the lock), then the result | `go` |
//! | `crowd`   | `ready` (the clients made), `waiting`, `served` (each had it), then the result | `go` |
//!
//! The result is one JSON object, see [`crate::tally::Outcome`]. A driver whose standard input ends gives up.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

/// The work of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The threads lock and unlock without a pause; thread i uses key i mod keys.
    Cycles,
    /// One thread locks, holds for a few ms, unlocks and pauses. It records the time of each step.
    Handoff,
    /// One thread locks every key and keeps them.
    Held,
    /// One thread holds the lock for which another process's threads wait.
    Holder,
    /// All threads wait for one lock, until each has had it once.
    Waiters,
    /// As `Waiters`, but each thread has its own client, as if the thread were a process.
    Crowd,
}

/// The kind of lock under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// A lock with one holder.
    Plain,
    /// A semaphore with [`PERMITS`] permits, of which each cycle acquires one.
    Permits,
    /// A read-write lock; one cycle in [`WRITES_EVERY`] acquires the write half.
    ReadWrite,
}

#[derive(Args, Clone, Debug)]
pub struct Load {
    #[arg(long)]
    pub peer: String,
    #[arg(long)]
    pub kind: Kind,
    #[arg(long, default_value = "plain")]
    pub sort: Sort,
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    #[arg(long, default_value_t = 1)]
    pub keys: usize,
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Seconds of warm-up under the same load.
    #[arg(long, default_value_t = 0.5)]
    pub warmup: f64,
    #[arg(long)]
    pub url: String,
    /// The prefix of the keys' names.
    #[arg(long, default_value = "bench")]
    pub name: String,
    /// Microseconds of work between lock and unlock; for the peers in Rust.
    #[arg(long, default_value_t = 0)]
    pub work_us: u64,
    /// A file with a number in eight bytes, which several processes change under the same lock.
    #[arg(long)]
    pub counter: Option<PathBuf>,
}

impl Load {
    pub fn names(&self) -> Vec<String> {
        (0..self.keys).map(|key| format!("{}:{key}", self.name)).collect()
    }

    pub fn seconds(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    pub fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup)
    }
}

/// The number of permits of the semaphore under load.
pub const PERMITS: u32 = 4;
/// One in this many cycles on a read-write lock writes; the other cycles read.
pub const WRITES_EVERY: u64 = 10;
/// How long `handoff` holds the lock: long enough for the other process to wait.
pub const HOLD: Duration = Duration::from_millis(3);
/// How long `handoff` pauses after its unlock: long enough for the other process to get the lock.
pub const PAUSE: Duration = Duration::from_millis(2);
/// The stack size of a waiting thread. No other mapping has this size, so stacks can be found in smaps.
pub const STACK: usize = 272 * 1024;

pub fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

pub fn expect(word: &str) -> Result<()> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    if line.trim() != word {
        bail!("told {:?} instead of {word:?}", line.trim());
    }
    Ok(())
}
