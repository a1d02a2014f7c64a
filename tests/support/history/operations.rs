//! The operations on locks, one a line, as docs/proof.md describes it. Both checkers read this.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    Mutex,
    ReadWrite,
    Semaphore,
    Latch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// The hold begins. With `mode` read or write, or a number of `units`.
    Acquire,
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
pub struct Operation {
    pub lock: String,
    pub model: Model,
    pub f: Doing,
    /// Of one hold, or of an operation that belongs to none.
    pub hold: u64,
    #[serde(default)]
    pub owner: String,
    #[serde(default)]
    pub mode: String,
    #[serde(default)]
    pub units: i64,
    /// The units of a semaphore in all; where a latch begins.
    #[serde(default)]
    pub limit: i64,
    pub fence: Option<u64>,
    pub call: u64,
    /// `None`: it may take effect at any later time.
    pub ret: Option<u64>,
    pub value: Option<i64>,
}

impl Operation {
    pub fn new(lock: &str, model: Model, f: Doing, hold: u64, time: (u64, Option<u64>)) -> Operation {
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

    pub fn done(&self) -> u64 {
        self.ret.unwrap_or(u64::MAX)
    }
}

pub fn by_lock(operations: &[Operation]) -> BTreeMap<&str, Vec<&Operation>> {
    let mut of: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    operations.iter().for_each(|operation| of.entry(&operation.lock).or_default().push(operation));
    of
}

pub fn write(path: &Path, operations: &[Operation]) {
    let mut text = String::new();
    for operation in operations {
        text.push_str(&serde_json::to_string(operation).unwrap());
        text.push('\n');
    }
    std::fs::write(path, text).unwrap();
}
