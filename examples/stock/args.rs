//! The command line.

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::talk::Trouble;
use crate::topology::Topology;

/// Sells numbered pieces with many processes and threads, once for each kind of lock, and counts wrong sales.
#[derive(Debug, Parser)]
#[command(name = "stock")]
pub(crate) struct Args {
    /// Worker processes (one is killed and one is stopped, so at least two)
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) processes: u32,
    /// Threads in each process
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// Pieces in stock at the start of each run; a row has one run for each fault
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(i64).range(10..=1_000_000))]
    pub(crate) stock: i64,
    /// The Redis to use, `redis://…`; without it the environment's REDIS_URL
    #[arg(long)]
    url: Option<String>,
    /// Prints one JSON object per row and nothing else
    #[arg(long)]
    pub(crate) json: bool,
    /// How often to run everything
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,
    /// Keeps the locks of the last two rows on servers of their own, one of which an additional run kills
    #[arg(long, value_enum)]
    pub(crate) topology: Option<Topology>,
    /// Only these rows, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    rows: Vec<Row>,
    /// Reads the command line and does nothing
    #[arg(long, hide = true)]
    pub(crate) parse_only: bool,
}

impl Args {
    pub(crate) fn url(&self) -> Result<String> {
        let from_env = || std::env::var("REDIS_URL").ok().filter(|url| !url.is_empty());
        self.url.clone().or_else(from_env).ok_or_else(|| {
            "no Redis given: pass --url redis://…, set REDIS_URL, or start ./demo, which brings one".into()
        })
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        if self.rows.is_empty() { Row::value_variants().to_vec() } else { self.rows.clone() }
    }

    /// This row's faults, one per run. With `--topology` leasehold's rows also have the kill of a server.
    pub(crate) fn troubles(&self, row: Row) -> &'static [Trouble] {
        if self.topology.is_some() && row.is_leasehold() {
            &[Trouble::Slow, Trouble::Killed, Trouble::Stopped, Trouble::Server]
        } else {
            &[Trouble::Slow, Trouble::Killed, Trouble::Stopped]
        }
    }

    /// Whether to show what a SETNX lock without an expiry leaves behind: only if all rows are shown.
    pub(crate) fn shows_deadlock(&self) -> bool {
        self.rows.is_empty()
    }
}

/// The kinds of lock, from none to a fenced lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub(crate) enum Row {
    None,
    LocalMutex,
    SetnxTtlDel,
    OwnerCheckedDel,
    LuaNoRenewal,
    RedisLock,
    RedisLockFenced,
}

impl Row {
    /// The rows whose lock comes from a `LockClient`.
    pub(crate) fn is_leasehold(self) -> bool {
        matches!(self, Row::RedisLock | Row::RedisLockFenced)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Row::None => "none",
            Row::LocalMutex => "local_mutex",
            Row::SetnxTtlDel => "setnx_ttl_del",
            Row::OwnerCheckedDel => "owner_checked_del",
            Row::LuaNoRenewal => "lua_no_renewal",
            Row::RedisLock => "redis_lock",
            Row::RedisLockFenced => "redis_lock_fenced",
        }
    }

    /// Why this row has late or double sales, or has none.
    pub(crate) fn story(self) -> &'static str {
        match self {
            Row::None => "nobody waits: sellers read the same free piece and each sells it",
            Row::LocalMutex => "one mutex per process: the threads of one process wait, the processes do not",
            Row::SetnxTtlDel => {
                "a slow job outlives its key; its DEL then removes the next holder's lock, and so on"
            }
            Row::OwnerCheckedDel => {
                "a slow job outlives its key; GET says \"mine\", the key expires, DEL removes the next holder's lock"
            }
            Row::LuaNoRenewal => "the release is atomic, but a slow job outlives its lease and writes late",
            Row::RedisLock => {
                "slow jobs are renewed, a killed holder's lease ends; a stopped holder writes late"
            }
            Row::RedisLockFenced => "the same, and Redis refuses the late write by its older fence",
        }
    }
}
