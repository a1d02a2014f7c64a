//! Operations on locks, and their file format (docs/proof.md): one a line. `checker` and Porcupine read it.

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
    /// A hold begins. It has a `mode` (read or write), or a number of `units` of a semaphore.
    Acquire,
    Reenter,
    /// A hold ends: by an unlock, or by itself at any time after its promised end.
    End,
    /// The lock was seen free (a read-write lock: without a writer).
    Free,
    /// This number of units of a semaphore was seen available.
    Available,
    /// A latch's count goes down by one. Without a value the outcome is unknown.
    CountDown,
    /// This remaining count of a latch was seen.
    Count,
}

/// An operation on one lock, which took effect at one time between `call` and `ret`. All times of a history
/// are nanoseconds of the same clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    pub lock: String,
    pub model: Model,
    pub f: Doing,
    /// The number of the operation's hold; zero if the operation belongs to none.
    pub hold: u64,
    #[serde(default)]
    pub owner: String,
    #[serde(default)]
    pub mode: String,
    #[serde(default)]
    pub units: i64,
    /// The units of a semaphore, or the initial count of a latch.
    #[serde(default)]
    pub limit: i64,
    pub fence: Option<u64>,
    pub call: u64,
    /// `None` if nobody saw the operation return. It may then take effect at any time after `call`.
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
