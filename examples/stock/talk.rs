//! The protocol between parent and workers: JSON lines on the worker's standard input and output.

use std::io::Write;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::args::Row;
use crate::topology::{Locks, Nodes};

/// A worker's task, its first input line: on a command line other users could read the URL's password.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) task: Task,
    pub(crate) url: String,
    pub(crate) locks: Locks,
    /// The prefix of all keys of this run.
    pub(crate) prefix: String,
    pub(crate) worker: u32,
    pub(crate) threads: u32,
    pub(crate) stock: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    Sell(Row, Trouble),
    /// Acquires a SETNX lock without an expiry, and waits until it is killed.
    TakeAndDie,
}

/// The fault of one run. Each row has runs with the first three faults; with `--topology` leasehold's rows
/// also have a run with `Server`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Trouble {
    /// One job and one release take longer than the lease.
    Slow,
    /// A worker is killed between its read and its write.
    Killed,
    /// A worker is stopped between its read and its write, until its lease is over and other sellers came in.
    Stopped,
    /// The lock's own server is killed.
    Server,
}

/// Messages from the parent to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    Go,
    /// Sent to a worker that SIGSTOP has stopped: it reads this after SIGCONT, and goes on.
    GoOn,
    /// The new list of the ring's nodes, for the worker's client.
    Ring(Nodes),
}

/// Messages from a worker to the parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Say {
    /// The worker is connected, and waits for `Go`.
    Ready,
    /// The parent shall kill or stop the worker now.
    Strike(Fault),
    /// The worker's counts: sent before it is killed or stopped, and at its end. A later message replaces it.
    Tally(Tally),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    Kill,
    /// SIGSTOP for longer than the lease, then SIGCONT.
    Stop,
}

/// A worker's counts. The worker also sends them just before it is killed or stopped, so that the percentiles
/// include the waits of a killed worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// How long the threads waited for the lock: a time in microseconds, and how often it occurred.
    pub(crate) waits: Vec<(u64, u64)>,
    /// Sales given up, because a newer fencing token was seen or the guard's check failed.
    pub(crate) refused: u64,
    /// Releases that failed because the lock was lost.
    pub(crate) told_lost: u64,
}

pub(crate) fn say(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()?;
    Ok(())
}
