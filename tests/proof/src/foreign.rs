//! Redisson as another client: templates of its requests, and how it reads the answers. The templates are not
//! in this file, because a test records the requests of a real Redisson.

use std::collections::BTreeMap;

use crate::kinds::{Answer, Call, Kind, LEASE_MS, Op, Who};
use crate::server::Reply;

/// The time after which Redisson removes a waiter from a fair lock's queue. No exploration lasts so long.
const WAIT_MS: u64 = 10_000;
/// How long Redis keeps the outcome of a Redisson release, in a key of its own.
const LASTS_MS: u64 = 5000;

/// Words in a template that [`Filling`] replaces.
pub const OWNER: &str = "<owner>";
pub const LEASE: &str = "<lease>";
pub const WAIT: &str = "<wait>";
pub const NOW: &str = "<now>";
pub const LASTS: &str = "<lasts>";
pub const UNLOCK: &str = "<unlock>";

/// The locks of Redisson that are explored. `Read` and `Write` are those of a read-write lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Plain,
    Fenced,
    Fair,
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Acquire,
    Release,
    Renew,
    /// Leaves the queue of a fair lock.
    Leave,
    /// Deletes the key that has a release's outcome.
    Forget,
    /// Takes a free fair lock without waiting. No exploration has this request.
    Try,
    /// Frees the lock, whoever holds it. No exploration has this request.
    Force,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub script: String,
    pub keys: Vec<String>,
    pub arguments: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Foreign {
    /// The texts of scripts, by the names that templates use for them.
    pub scripts: BTreeMap<String, String>,
    pub requests: BTreeMap<(Part, Verb), Template>,
    pub channels: BTreeMap<Part, String>,
}

#[derive(Debug, Clone, Copy)]
pub struct Filling<'a> {
    pub owner: &'a str,
    pub lease_ms: u64,
    pub wait_ms: u64,
    pub now_ms: u64,
    /// The id of a release: the one that this request sends, or the one whose outcome it deletes.
    pub unlock: u8,
}

impl Filling<'_> {
    fn fill(&self, word: &str) -> String {
        word.replace(OWNER, self.owner)
            .replace(LEASE, &self.lease_ms.to_string())
            .replace(WAIT, &self.wait_ms.to_string())
            .replace(NOW, &self.now_ms.to_string())
            .replace(LASTS, &LASTS_MS.to_string())
            .replace(UNLOCK, &unlock_id(self.unlock))
    }
}

/// The last part of the name of the key that has the outcome of the release with this id.
#[must_use]
pub fn unlock_id(unlock: u8) -> String {
    format!("{unlock:032x}")
}

impl Part {
    /// The lock of Redisson that an owner acquires: for a read-write lock, its read lock or its write lock.
    ///
    /// # Panics
    ///
    /// If the kind is a semaphore, which is not explored with Redisson.
    #[must_use]
    pub fn of(kind: Kind, who: &Who) -> Part {
        match kind {
            Kind::Plain => Part::Plain,
            Kind::Fenced => Part::Fenced,
            Kind::Fair => Part::Fair,
            Kind::ReadWrite if Kind::reads(who) => Part::Read,
            Kind::ReadWrite => Part::Write,
            Kind::Semaphore(_) => panic!("no foreign client has {kind:?}"),
        }
    }
}

impl Foreign {
    /// # Panics
    ///
    /// If no test has recorded the request.
    #[must_use]
    pub fn request(&self, part: Part, verb: Verb, filling: &Filling) -> Call {
        let template =
            self.requests.get(&(part, verb)).unwrap_or_else(|| panic!("nobody heard {part:?} {verb:?}"));
        let filled = |words: &[String]| words.iter().map(|word| filling.fill(word)).collect();
        Call {
            script: template.script.clone(),
            keys: filled(&template.keys),
            arguments: filled(&template.arguments),
        }
    }

    /// The script call for a request of Redisson that was sent at `now_ms`.
    #[must_use]
    pub(crate) fn call(&self, kind: Kind, op: Op, who: &Who, now_ms: u64, unlock: u8) -> Call {
        let verb = match op {
            Op::Acquire(..) => Verb::Acquire,
            Op::Renew => Verb::Renew,
            Op::Release(_) => Verb::Release,
            Op::Leave => Verb::Leave,
            Op::Forget => Verb::Forget,
            Op::HandOff(..) | Op::Undo => panic!("Redisson has no {op:?}"),
        };
        let filling = Filling { owner: &who.id(), lease_ms: LEASE_MS, wait_ms: WAIT_MS, now_ms, unlock };
        self.request(Part::of(kind, who), verb, &filling)
    }

    #[must_use]
    pub(crate) fn channel(&self, kind: Kind, who: &Who) -> String {
        self.channels[&Part::of(kind, who)].replace(OWNER, &who.id())
    }

    /// Redisson's understanding of an answer. An answer that Redisson would not understand is an error.
    pub(crate) fn read(part: Part, op: Op, reply: &Reply) -> Result<Answer, String> {
        let wait = |ms: i64| Answer::Busy(u64::try_from(ms).ok());
        Ok(match (op, reply) {
            (Op::Acquire(..), Reply::Array(items)) if part == Part::Fenced => match items.as_slice() {
                [Reply::Number(-1), Reply::Number(token)] => Answer::Granted(u64::try_from(*token).ok()),
                [Reply::Number(ms), Reply::Number(-1)] => wait(*ms),
                _ => return Err(format!("{op:?}: {reply:?}")),
            },
            (Op::Acquire(..), Reply::Nil) if part != Part::Fenced => Answer::Granted(None),
            (Op::Acquire(..), Reply::Number(ms)) if part != Part::Fenced => wait(*ms),
            (Op::Renew, Reply::Array(items)) => match items.as_slice() {
                [Reply::Number(1)] => Answer::Renewed,
                [Reply::Number(0)] => Answer::Lost,
                _ => return Err(format!("{op:?}: {reply:?}")),
            },
            (Op::Release(_), Reply::Nil) => Answer::Lost,
            // This reader has released its last level; other readers still hold the lock.
            (Op::Release(0), Reply::Number(0)) if part == Part::Read => Answer::Freed,
            (Op::Release(_), Reply::Number(0)) => Answer::StillHeld,
            (Op::Release(_), Reply::Number(1)) => Answer::Freed,
            (Op::Leave, Reply::Nil) | (Op::Forget, Reply::Number(_)) => Answer::Left,
            _ => return Err(format!("{op:?}: {reply:?}")),
        })
    }
}
