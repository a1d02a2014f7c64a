//! The protocol between parent and workers: JSON lines on the worker's standard input and output.

use std::io::Write;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::args::Row;
use crate::topology::{Locks, Nodes};

/// The first line a worker reads. Not on its command line, where anyone could read a password in the URL.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) task: Task,
    pub(crate) url: String,
    pub(crate) locks: Locks,
    /// Start of all key names of this row.
    pub(crate) prefix: String,
    pub(crate) worker: u32,
    pub(crate) threads: u32,
    pub(crate) stock: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    Sell(Row, Trouble),
    /// Takes a SETNX lock without expiry and waits to be killed.
    TakeAndDie,
}

/// The faults of one run of a row; the same for every row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Trouble {
    /// One job and one release take longer than the lease.
    Slow,
    /// A worker is killed between its read and its write.
    Killed,
    /// A worker is stopped there until its lease has run out and others have come in.
    Stopped,
    /// The lock's own server is killed.
    Server,
}

/// Parent to worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    Go,
    /// Read by a stopped worker once it runs again.
    GoOn,
    /// The ring has changed.
    Ring(Nodes),
}

/// Worker to parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Say {
    /// Connected, waiting for `Go`.
    Ready,
    /// "I stand between read and write-back: do it to me now."
    Strike(Fault),
    /// Once before a strike and once at the end; the later one counts.
    Tally(Tally),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// kill -9.
    Kill,
    /// SIGSTOP for longer than the lease, then SIGCONT.
    Stop,
}

/// A worker's counts. A worker says it when it ends and just before it is struck, so that a killed one's
/// waits are not missing from the percentiles.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Waits for the lock: microseconds, how often.
    pub(crate) waits: Vec<(u64, u64)>,
    /// Writes that Redis refused because of an older fence.
    pub(crate) refused: u64,
    /// Releases that reported the lock as lost.
    pub(crate) told_lost: u64,
}

/// Writes one message and its line end in one go.
pub(crate) fn say(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()?;
    Ok(())
}
