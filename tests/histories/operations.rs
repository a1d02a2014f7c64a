//! The operations on locks, one a line, as docs/proof.md describes it. Both checkers read this.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The model that a lock is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Model {
    Mutex,
    ReadWrite,
    Semaphore,
    Latch,
}

/// The request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Doing {
    /// The hold begins. With `mode` read or write, or a number of `units`.
    Acquire,
    /// The hold was entered once more.
    Reenter,
    /// The hold ends: by an unlock; or, as far as its holder knows, at some time after it was promised no
    /// longer.
    End,
    /// The lock was seen free; of a read-write lock, of its writer.
    Free,
    /// The units that were seen available.
    Available,
    /// One less to count down; without a value it is unknown whether.
    CountDown,
    /// The number that was left to count down.
    Count,
}

/// One operation on one lock, which took effect at one moment between `call` and `ret`, in nanoseconds of a
/// clock that all share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Operation {
    pub(crate) lock: String,
    pub(crate) model: Model,
    pub(crate) f: Doing,
    /// Of one hold, or of an operation that belongs to none.
    pub(crate) hold: u64,
    #[serde(default)]
    pub(crate) owner: String,
    #[serde(default)]
    pub(crate) mode: String,
    #[serde(default)]
    pub(crate) units: i64,
    /// The units of a semaphore in all; where a latch begins.
    #[serde(default)]
    pub(crate) limit: i64,
    pub(crate) fence: Option<u64>,
    pub(crate) call: u64,
    /// `None`: it may take effect at any later time.
    pub(crate) ret: Option<u64>,
    pub(crate) value: Option<i64>,
}

impl Operation {
    pub(crate) fn new(lock: &str, model: Model, f: Doing, hold: u64, time: (u64, Option<u64>)) -> Operation {
        Operation {
            lock: lock.to_owned(),
            model,
            f,
            hold,
            owner: String::new(),
            mode: String::new(),
            units: 0,
            limit: 0,
            fence: None,
            call: time.0,
            ret: time.1,
            value: None,
        }
    }

    /// When it has taken effect at the latest.
    pub(crate) fn done(&self) -> u64 {
        self.ret.unwrap_or(u64::MAX)
    }
}

/// The operations of each lock.
pub(crate) fn by_lock(operations: &[Operation]) -> BTreeMap<&str, Vec<&Operation>> {
    let mut of: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    operations.iter().for_each(|operation| of.entry(&operation.lock).or_default().push(operation));
    of
}

pub(crate) fn write(path: &Path, operations: &[Operation]) {
    let mut text = String::new();
    for operation in operations {
        text.push_str(&serde_json::to_string(operation).unwrap());
        text.push('\n');
    }
    std::fs::write(path, text).unwrap();
}
