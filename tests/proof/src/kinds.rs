//! The kinds of lock: the script of each request, the meaning of its answer, and which owners exclude others.

use crate::server::{Reply, Server, Value};

/// How long a lease lasts, and after which time an unrenewed place in a fair lock's queue expires.
pub const LEASE_MS: u64 = 1000;
pub const ALIVE_MS: u64 = 600;
/// How long the server keeps the outcome of a semaphore's request.
const LASTS_MS: u64 = 5000;

const LOCK: &str = "{l}";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Acquires or re-enters the lock, so that the owner has this hold count. `Turn` says how the attempt
    /// treats the queue of waiting clients.
    Acquire(u8, Turn),
    Renew,
    /// Releases levels until this number is left.
    Release(u8),
    /// Releases the lock to another owner of the same client: its index, and the owner number to grant.
    HandOff(usize, u32),
    Leave,
    /// Undoes an acquire that was answered too late or not at all.
    Undo,
    /// Deletes the key that has a release's outcome. Only Redisson sends this request.
    Forget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Turn {
    Wait,
    Stand,
    Next,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    Granted(Option<u64>),
    /// The lock is busy. The value is the holder's remaining time, if known.
    Busy(Option<u64>),
    InLine(Option<u64>, Why),
    /// The owner does not hold the lock.
    Lost,
    Freed,
    StillHeld,
    Renewed,
    Left,
    /// The user lacks a permission, memory is full, or the server has lost the semaphore.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    Ours,
    Foreign,
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Fenced,
    Fair,
    /// Owners with even indexes read, the others write.
    ReadWrite,
    /// A semaphore with this number of permits.
    Semaphore(u8),
}

pub struct Call {
    pub script: String,
    pub keys: Vec<String>,
    pub arguments: Vec<String>,
}

/// The number of the client that runs Redisson.
pub const FOREIGN: usize = 9;

/// A client's UUID: version 8 if the client's releases notify the wait queue, version 4 for Redisson.
#[must_use]
pub fn client_id(client: usize) -> String {
    let version = if client == FOREIGN { 4 } else { 8 };
    format!("00000000-0000-{version}000-8000-00000000000{client}")
}

/// A thread of a client, and its owner number, which changes after a request whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Who {
    pub owner: usize,
    pub client: usize,
    pub number: u32,
}

impl Who {
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.client == FOREIGN
    }

    #[must_use]
    pub fn id(&self) -> String {
        format!("{}:{}", client_id(self.client), self.owner * 100 + self.number as usize)
    }
}

fn texts(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn request(who: &Who) -> String {
    format!("leasehold_request:{LOCK}:{}", who.id())
}

impl Kind {
    /// Creates the keys that must exist before the first step: a semaphore's permits.
    pub fn prepare(self, server: &mut Server) {
        if let Kind::Semaphore(permits) = self {
            server.call(&texts(&["set", LOCK, &permits.to_string()]));
        }
    }

    /// Whether the threads of one client queue locally, so that only the first of them sends requests.
    #[must_use]
    pub fn queues_here(self) -> bool {
        matches!(self, Kind::Plain | Kind::Fenced)
    }

    /// Whether the owner's client joins the store's wait queue when the owner waits.
    #[must_use]
    pub fn has_wait_queue(self, who: &Who) -> bool {
        match self {
            Kind::Plain | Kind::Fenced | Kind::Semaphore(_) => true,
            Kind::ReadWrite => !Kind::reads(who),
            Kind::Fair => false,
        }
    }

    fn is_fenced(self) -> bool {
        matches!(self, Kind::Fenced | Kind::Fair)
    }

    #[must_use]
    pub fn reads(who: &Who) -> bool {
        who.owner.is_multiple_of(2)
    }

    #[must_use]
    pub fn excludes(self, one: usize, other: usize) -> bool {
        match self {
            Kind::ReadWrite => one % 2 == 1 || other % 2 == 1,
            Kind::Semaphore(permits) => permits < 2,
            _ => true,
        }
    }

    #[must_use]
    pub fn has_renewals(self) -> bool {
        !matches!(self, Kind::Semaphore(_))
    }

    /// The channel to which a waiter subscribes: with `own_turn` its client's, for the message that the
    /// client is next in the queue, and otherwise Redisson's, for releases.
    #[must_use]
    pub fn channel(self, who: &Who, own_turn: bool) -> String {
        match self {
            _ if own_turn => {
                format!("leasehold_wake:{LOCK}:{}", client_id(who.client))
            }
            Kind::Plain | Kind::Fenced => format!("redisson_lock__channel:{LOCK}"),
            Kind::Fair => format!("redisson_lock__channel:{LOCK}:{}", who.id()),
            Kind::ReadWrite => format!("redisson_rwlock:{LOCK}"),
            Kind::Semaphore(_) => format!("redisson_sc:{LOCK}"),
        }
    }

    /// The script call for a request. `to` is the owner to which a hand-off releases the lock.
    #[must_use]
    pub fn call(self, op: Op, who: &Who, to: Option<&Who>, waited_ms: u64) -> Call {
        let id = who.id();
        let (client, waited) = (client_id(who.client), waited_ms.to_string());
        let lease = LEASE_MS.to_string();
        let counter = format!("redisson_lock_token:{LOCK}");
        let call = |script: &str, keys: &[&str], arguments: &[&str]| Call {
            script: script.to_owned(),
            keys: texts(keys),
            arguments: texts(arguments),
        };
        let with_counter = |keys: &[&str]| {
            let mut keys = keys.to_vec();
            if self.is_fenced() {
                keys.push(&counter);
            }
            texts(&keys)
        };
        match self {
            Kind::Plain | Kind::Fenced => {
                let channel = self.channel(who, false);
                match op {
                    Op::Acquire(count, turn) => {
                        let turn = turn.word();
                        let keys = with_counter(&[LOCK]);
                        Call { keys, ..call("ACQUIRE", &[], &[&id, &count.to_string(), &lease, turn]) }
                    }
                    Op::Renew => call("RENEW", &[LOCK], &[&id, &lease]),
                    Op::Release(left) => {
                        call("RELEASE", &[LOCK], &[&id, &left.to_string(), &lease, "0", &channel])
                    }
                    Op::Undo => call("RELEASE", &[LOCK], &[&id, "0", &lease, "0", &channel]),
                    Op::HandOff(..) => {
                        let to = to.expect("somebody").id();
                        Call { keys: with_counter(&[LOCK]), ..call("HAND_OFF", &[], &[&id, &to, &lease]) }
                    }
                    Op::Leave => call("LEAVE_WAIT_QUEUE", &[LOCK], &[&client_id(who.client)]),
                    Op::Forget => panic!("no lock of ours has {op:?}"),
                }
            }
            Kind::Fair => {
                let parts =
                    ["redisson_lock_queue:{l}", "redisson_lock_timeout:{l}", "leasehold_lock_heartbeat:{l}"];
                let keys = [&[LOCK], &parts[..]].concat();
                let (alive, channels) = (ALIVE_MS.to_string(), format!("redisson_lock__channel:{LOCK}:"));
                let ending =
                    |left: &str, way: &str| call("FAIR_RELEASE", &keys, &[&id, left, &lease, way, &channels]);
                match op {
                    Op::Acquire(count, _) => {
                        let arguments = [&*id, &count.to_string(), &lease, "1", &alive, &channels];
                        Call { keys: with_counter(&keys), ..call("FAIR_ACQUIRE", &[], &arguments) }
                    }
                    Op::Renew => call("RENEW", &[LOCK], &[&id, &lease]),
                    Op::Release(left) => ending(&left.to_string(), "release"),
                    Op::Leave | Op::Undo => ending("0", "leave"),
                    Op::HandOff(..) | Op::Forget => panic!("a fair lock has no {op:?}"),
                }
            }
            Kind::ReadWrite => {
                let half = if Kind::reads(who) { "read" } else { "write" };
                let markers = format!("{LOCK}:{id}:rwlock_timeout:");
                let channel = self.channel(who, false);
                match op {
                    Op::Acquire(count, turn) => {
                        let marker = format!("{markers}{count}");
                        call(
                            "RW_ACQUIRE",
                            &[LOCK, &marker, LOCK],
                            &[half, &id, &count.to_string(), &lease, "6000", turn.word(), &waited],
                        )
                    }
                    Op::Renew if Kind::reads(who) => call("RW_RENEW", &[LOCK], &[&id, &lease, &markers]),
                    Op::Renew => call("RENEW", &[LOCK], &[&format!("{id}:write"), &lease]),
                    Op::Release(left) => call(
                        "RW_RELEASE",
                        &[LOCK],
                        &[half, &id, &left.to_string(), &lease, LOCK, "", &channel],
                    ),
                    Op::Undo => call("RW_RELEASE", &[LOCK], &[half, &id, "0", &lease, LOCK, "", &channel]),
                    Op::Leave => call("RW_LEAVE", &[LOCK], &[&client, &channel]),
                    Op::HandOff(..) | Op::Forget => panic!("a read-write lock has no {op:?}"),
                }
            }
            Kind::Semaphore(_) => {
                let (request, lasts) = (request(who), LASTS_MS.to_string());
                let channel = self.channel(who, false);
                let release =
                    |way: &str| call("SEMAPHORE_RELEASE", &[LOCK, &request], &["1", &lasts, way, &channel]);
                match op {
                    Op::Acquire(_, turn) => call(
                        "SEMAPHORE_ACQUIRE",
                        &[LOCK, &request],
                        &["1", &lasts, &client, turn.word(), &waited],
                    ),
                    Op::Leave => call("PERMITS_LEAVE", &[LOCK], &[&client]),
                    Op::Release(_) => release("release"),
                    Op::Undo => release("undo"),
                    Op::Renew | Op::HandOff(..) | Op::Forget => panic!("permits have no {op:?}"),
                }
            }
        }
    }

    #[must_use]
    pub fn scripts(self) -> &'static [&'static str] {
        match self {
            Kind::Plain | Kind::Fenced => &["ACQUIRE", "RENEW", "RELEASE", "HAND_OFF", "LEAVE_WAIT_QUEUE"],
            Kind::Fair => &["FAIR_ACQUIRE", "RENEW", "FAIR_RELEASE"],
            Kind::ReadWrite => &["RW_ACQUIRE", "RW_RENEW", "RENEW", "RW_RELEASE", "RW_LEAVE"],
            Kind::Semaphore(_) => &["SEMAPHORE_ACQUIRE", "SEMAPHORE_RELEASE", "PERMITS_LEAVE"],
        }
    }

    /// The meaning of an answer.
    ///
    /// # Errors
    ///
    /// If the library would not understand the answer.
    pub fn read(self, op: Op, reply: &Reply) -> Result<Answer, String> {
        let text = |reply: &Reply| match reply {
            Reply::Text(text) => Some(text.clone()),
            _ => None,
        };
        let (word, rest) = match reply {
            Reply::Error(text) if text.starts_with("NOPERM") || text.starts_with("OOM") => {
                return Ok(Answer::Refused);
            }
            Reply::Text(word) => (word.clone(), &[][..]),
            Reply::Array(items) => match items.split_first() {
                Some((Reply::Text(word), rest)) => (word.clone(), rest),
                _ => return Err(format!("{op:?}: {reply:?}")),
            },
            _ => return Err(format!("{op:?}: {reply:?}")),
        };
        let ttl = || match rest.first() {
            Some(Reply::Number(-1)) => Ok(None),
            Some(Reply::Number(ms)) if *ms >= 0 => Ok(Some(ms.unsigned_abs())),
            other => Err(format!("{op:?}: no time: {other:?}")),
        };
        let fence = rest.first().and_then(text).filter(|text| !text.is_empty());
        Ok(match (op, word.as_str()) {
            (Op::Acquire(..) | Op::HandOff(..), "granted") => {
                let fence = match fence {
                    Some(fence) => Some(fence.parse().map_err(|_| format!("no fence: {fence}"))?),
                    None => None,
                };
                if fence.is_some() != self.is_fenced() {
                    return Err(format!("{op:?}: a fence too many or too few: {reply:?}"));
                }
                Answer::Granted(fence)
            }
            (Op::Acquire(..), "busy") => Answer::Busy(ttl()?),
            // The semaphore is missing because the server lost its data, so the caller gets an error.
            (Op::Acquire(..), "none") if matches!(self, Kind::Semaphore(_)) => Answer::Refused,
            (Op::Acquire(..), "queued") => {
                let is_first = rest.get(2).and_then(text).as_deref() == Some("first");
                let why = match rest.get(1).and_then(text).as_deref() {
                    // The last release may be that of a Redisson reader, which does not notify our queue. So
                    // the first waiter also listens to all releases: in the library after 25 ms
                    // (`Waiting::release_watch`), in this model at once.
                    Some("soon") if is_first && self == Kind::ReadWrite => Why::Foreign,
                    Some("ours" | "soon") => Why::Ours,
                    Some("foreign" | "any") => Why::Foreign,
                    Some("reserved") => Why::Kept,
                    other => return Err(format!("in line, and why: {other:?}")),
                };
                Answer::InLine(ttl()?, why)
            }
            (Op::Acquire(..) | Op::Renew | Op::HandOff(..), "lost") => Answer::Lost,
            (Op::Renew, "renewed") => Answer::Renewed,
            (Op::Release(_) | Op::Undo | Op::Leave, "freed") => Answer::Freed,
            (Op::Release(_), "still_held") => Answer::StillHeld,
            (Op::Release(_) | Op::Undo | Op::Leave, "not_held") => Answer::Lost,
            (Op::Leave, "left") => Answer::Left,
            _ => return Err(format!("{op:?}: {reply:?}")),
        })
    }

    #[must_use]
    pub fn count(self, server: &Server, who: &Who) -> u8 {
        if let Kind::Semaphore(_) = self {
            let is_granted = server
                .keys
                .get(&request(who))
                .is_some_and(|entry| entry.value == Value::Text("granted".to_owned()));
            return u8::from(is_granted);
        }
        let field = if self == Kind::ReadWrite && !Kind::reads(who) {
            format!("{}:write", who.id())
        } else {
            who.id()
        };
        let Some(Value::Hash(fields)) = server.keys.get(LOCK).map(|entry| &entry.value) else { return 0 };
        let count = fields.iter().find(|(name, _)| *name == field).map(|(_, count)| count);
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Whether all calls still work for a user who may not run this command: the scripts then do without the
    /// wait queue, the names of holders, or the waking of waiters.
    #[must_use]
    pub fn does_without(self, command: &str) -> bool {
        let for_line = ["zadd", "zcard", "zpopmin", "zrange", "zrem", "hkeys", "publish"];
        match self {
            Kind::Plain => for_line.contains(&command) || ["time", "get"].contains(&command),
            Kind::Fenced => for_line.contains(&command),
            Kind::Fair | Kind::ReadWrite | Kind::Semaphore(_) => false,
        }
    }

    /// Whether a key may lack an expiry: a counter, a semaphore, or a fair lock's queue, whose places have
    /// expiry times.
    #[must_use]
    pub fn may_stay(self, key: &str) -> bool {
        let is_queue = key.starts_with("redisson_lock_queue:") || key.starts_with("redisson_lock_timeout:");
        is_queue || self.may_be_left(key) && !key.starts_with("leasehold_")
    }

    /// Whether a key may exist after all owners have finished: a semaphore, a counter, a request's
    /// outcome, or a read-write lock's set of readers. The last two expire.
    #[must_use]
    pub fn may_be_left(self, key: &str) -> bool {
        let is_semaphore = matches!(self, Kind::Semaphore(_)) && key == LOCK;
        is_semaphore
            || key.starts_with("redisson_lock_token:")
            || key.starts_with("leasehold_request:")
            || key.starts_with("leasehold_rwlock_readers:")
    }

    #[must_use]
    pub fn permits(self, server: &Server) -> Option<i64> {
        let Value::Text(text) = &server.keys.get(LOCK)?.value else { return None };
        text.parse().ok()
    }

    #[must_use]
    pub fn is_free(server: &Server) -> bool {
        !server.keys.contains_key(LOCK)
    }

    /// Whether the server would grant the lock to this owner.
    #[must_use]
    pub fn is_free_for(self, server: &Server, who: &Who) -> bool {
        let is_absent = Kind::is_free(server);
        match self {
            Kind::Plain | Kind::Fenced => {
                // Redisson ignores our reservation of a free lock for the next waiter.
                is_absent && (who.is_foreign() || !server.keys.contains_key("leasehold_lock_next:{l}"))
            }
            Kind::Fair => {
                let value = |key: &str| server.keys.get(key).map(|entry| &entry.value);
                let lives = |(until, waiter): &(i64, String)| {
                    *waiter == who.id() && u64::try_from(*until).is_ok_and(|until| until > server.now_ms())
                };
                is_absent
                    && match value("redisson_lock_queue:{l}") {
                        Some(Value::List(queue)) => queue.front() == Some(&who.id()),
                        // Redisson can remove a living waiter from the queue. While its heartbeat remains,
                        // the waiter can still acquire.
                        _ => match value("leasehold_lock_heartbeat:{l}") {
                            Some(Value::Sorted(heartbeats)) => {
                                heartbeats.iter().any(lives) || who.is_foreign()
                            }
                            _ => who.is_foreign(),
                        },
                    }
            }
            Kind::ReadWrite => {
                let reads = Kind::reads(who);
                // Redisson ignores our reservations, and our turns of readers and writers.
                if who.is_foreign() {
                    return is_absent || reads && is_read(server);
                }
                let is_kept = server.keys.contains_key("leasehold_lock_next:{l}");
                if reads {
                    (is_absent && !is_kept || is_read(server)) && !a_writer_waits_long(server)
                } else {
                    is_absent && !is_kept && !are_readers_expected(server)
                }
            }
            Kind::Semaphore(_) => {
                let kept = match server.keys.get("leasehold_lock_next:{l}").map(|entry| &entry.value) {
                    Some(Value::Sorted(next)) => {
                        next.iter().filter(|(until, _)| *until > now(server)).count()
                    }
                    _ => 0,
                };
                self.permits(server).is_some_and(|permits| permits > i64::try_from(kept).unwrap_or(0))
            }
        }
    }
}

impl Turn {
    fn word(self) -> &'static str {
        match self {
            Turn::Wait => "wait",
            Turn::Stand => "stand",
            Turn::Next => "next",
        }
    }
}

fn now(server: &Server) -> i64 {
    i64::try_from(server.now_ms()).unwrap_or(i64::MAX)
}

fn is_read(server: &Server) -> bool {
    match server.keys.get(LOCK).map(|entry| &entry.value) {
        Some(Value::Hash(fields)) => fields.iter().any(|(name, value)| name == "mode" && value == "read"),
        _ => false,
    }
}

/// Whether the first writer in the wait queue has waited so long that new readers must wait for this writer.
fn a_writer_waits_long(server: &Server) -> bool {
    match server.keys.get("leasehold_lock_queue:{l}").map(|entry| &entry.value) {
        Some(Value::Sorted(line)) => {
            line.first().is_some_and(|(joined, _)| 1_700_000_000_000 + joined / 10_000 + 50 <= now(server))
        }
        _ => false,
    }
}

/// Whether writers must wait because readers that waited during the last write may enter first.
fn are_readers_expected(server: &Server) -> bool {
    let Some(Value::Sorted(readers)) =
        server.keys.get("leasehold_rwlock_readers:{l}").map(|entry| &entry.value)
    else {
        return false;
    };
    let Some(phase) = readers.iter().find(|(_, member)| member == "phase").map(|(at, _)| *at) else {
        return false;
    };
    let awaited = |(at, member): &&(i64, String)| member != "phase" && member != "link" && *at <= phase;
    now(server) < phase + 20 && readers.iter().any(|one| awaited(&one))
}
