//! A model of a Redis server with the commands that our scripts and Redisson's call. `tests/commands.rs`
//! sends random sequences to it and to a real server, and compares all answers.

mod collections;

use std::collections::{BTreeMap, VecDeque};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Number(i64),
    Text(String),
    Status(String),
    Error(String),
    Array(Vec<Reply>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Value {
    Text(String),
    /// Fields in the order of insertion, since Redis returns the fields of a small hash in this order.
    Hash(Vec<(String, String)>),
    List(VecDeque<String>),
    /// Sorted by score, then by member. The scripts use only integers as scores.
    Sorted(Vec<(i64, String)>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    pub value: Value,
    pub ends_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Server {
    pub now_us: u64,
    pub keys: BTreeMap<String, Entry>,
    /// The number of subscribers of each channel.
    pub listeners: BTreeMap<String, i64>,
    /// The messages (channel and text) that were published since the caller last took them.
    pub published: Vec<(String, String)>,
    /// A command that the user may not run.
    pub refused: Option<String>,
    pub is_full: bool,
    /// Whether the running script has written. If so, Redis runs its other commands although memory is full.
    pub has_written: bool,
}

const COMMANDS: &str = "\
    time publish del exists pttl pexpire get set incr incrby decrby hget hset hincrby hdel hexists hkeys \
    hlen lindex llen lpop rpush lrem lpos lrange zadd zincrby zcard zcount zrank zrem zscore zrange \
    zrangebyscore zpopmin zremrangebyscore";

pub fn commands() -> impl Iterator<Item = &'static str> {
    COMMANDS.split(' ')
}

/// Commands that Redis refuses when memory is full. `WRITES` has the other commands that write.
const TAKES_MEMORY: [&str; 9] =
    ["set", "incr", "incrby", "decrby", "hset", "hincrby", "rpush", "zadd", "zincrby"];
const WRITES: [&str; 8] = ["del", "pexpire", "hdel", "lpop", "lrem", "zrem", "zpopmin", "zremrangebyscore"];

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";

fn error(text: &str) -> Reply {
    Reply::Error(text.to_owned())
}

fn integer(text: &str) -> Option<i64> {
    let is_written_so = text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    if is_written_so { text.parse().ok() } else { None }
}

/// The start and the length of a range from its first to its last index; a negative index counts from the
/// end.
fn range(first: i64, last: i64, length: usize) -> (usize, usize) {
    let length = length as i64;
    let from = if first < 0 { (length + first).max(0) } else { first };
    let to = if last < 0 { length + last } else { last.min(length - 1) };
    (from as usize, (to - from + 1).max(0) as usize)
}

/// A score, perhaps in Lua's notation (1e+15); `None` if the text is no integer or is too large.
fn score(text: &str) -> Option<i64> {
    let number: f64 = text.parse().ok()?;
    #[allow(clippy::cast_possible_truncation)]
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

impl Server {
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    /// Removes expired keys. A key still exists in the millisecond in which it expires.
    pub fn expire(&mut self) {
        let now = self.now_ms();
        self.keys.retain(|_, entry| entry.ends_ms.is_none_or(|ends| now <= ends));
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).map(|entry| &entry.value)
    }

    fn write(&mut self, key: &str, value: Value) {
        let ends_ms = self.keys.get(key).and_then(|entry| entry.ends_ms);
        self.keys.insert(key.to_owned(), Entry { value, ends_ms });
    }

    /// Removes the key if its collection is empty, as Redis does.
    fn tidy(&mut self, key: &str) {
        let is_empty = match self.get(key) {
            Some(Value::Hash(fields)) => fields.is_empty(),
            Some(Value::List(items)) => items.is_empty(),
            Some(Value::Sorted(members)) => members.is_empty(),
            _ => false,
        };
        if is_empty {
            self.keys.remove(key);
        }
    }

    /// Runs a command.
    ///
    /// # Panics
    ///
    /// If the command is not modelled. A command that a script begins to use must be added here.
    pub fn call(&mut self, words: &[String]) -> Reply {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let [command, rest @ ..] = words.as_slice() else { return error("ERR no command") };
        let command = command.to_ascii_lowercase();
        if self.refused.as_ref() == Some(&command) {
            return error("NOPERM this user has no permissions to run the command");
        }
        let takes_memory = TAKES_MEMORY.contains(&command.as_str());
        // Redis checks its memory only before a script's first write, so no script stops between writes.
        if takes_memory && self.is_full && !self.has_written {
            return error("OOM command not allowed when used memory > 'maxmemory'.");
        }
        self.has_written |= takes_memory || WRITES.contains(&command.as_str());
        self.expire();
        match (command.as_str(), rest) {
            ("time", []) => {
                let text = |number: u64| Reply::Text(number.to_string());
                Reply::Array(vec![text(self.now_us / 1_000_000), text(self.now_us % 1_000_000)])
            }
            ("publish", [channel, message]) => {
                self.published.push(((*channel).to_owned(), (*message).to_owned()));
                Reply::Number(self.listeners.get(*channel).copied().unwrap_or(0))
            }
            ("del", keys) => {
                Reply::Number(keys.iter().filter(|key| self.keys.remove(**key).is_some()).count() as i64)
            }
            ("exists", keys) => {
                Reply::Number(keys.iter().filter(|key| self.keys.contains_key(**key)).count() as i64)
            }
            ("pttl", [key]) => Reply::Number(match self.keys.get(*key) {
                None => -2,
                Some(Entry { ends_ms: None, .. }) => -1,
                Some(Entry { ends_ms: Some(ends), .. }) => (ends - self.now_ms()) as i64,
            }),
            ("pexpire", [key, ms]) => self.pexpire(key, ms),
            ("get" | "set" | "incr" | "incrby" | "decrby", _) => self.text(&command, rest),
            ("hget" | "hset" | "hincrby" | "hdel" | "hexists" | "hkeys" | "hlen", _) => {
                self.hash(&command, rest)
            }
            ("lindex" | "llen" | "lpop" | "rpush" | "lrem" | "lpos" | "lrange", _) => {
                self.list(&command, rest)
            }
            (
                "zadd" | "zincrby" | "zrem" | "zscore" | "zcard" | "zcount" | "zrank" | "zrange"
                | "zrangebyscore" | "zpopmin" | "zremrangebyscore",
                _,
            ) => self.sorted(&command, rest),
            ("pubsub", ["numsub" | "shardnumsub", channel]) => {
                let listeners = self.listeners.get(*channel).copied().unwrap_or(0);
                Reply::Array(vec![Reply::Text((*channel).to_owned()), Reply::Number(listeners)])
            }
            _ => panic!("not modelled: {command} {rest:?}"),
        }
    }

    fn pexpire(&mut self, key: &str, ms: &str) -> Reply {
        let Some(ms) = integer(ms) else { return error(NO_INTEGER) };
        let now = self.now_ms();
        let Some(entry) = self.keys.get_mut(key) else { return Reply::Number(0) };
        match u64::try_from(ms) {
            Ok(ms) if ms > 0 => entry.ends_ms = Some(now + ms),
            _ => drop(self.keys.remove(key)),
        }
        Reply::Number(1)
    }

    fn text(&mut self, command: &str, words: &[&str]) -> Reply {
        let Some(key) = words.first() else { return error("ERR wrong number of arguments") };
        if command == "set" {
            return self.set(key, &words[1..]);
        }
        let now = match self.get(key) {
            None => None,
            Some(Value::Text(text)) => Some(text.clone()),
            Some(_) => return error(WRONG_TYPE),
        };
        if command == "get" {
            return now.map_or(Reply::Nil, Reply::Text);
        }
        let by = match words.get(1) {
            None => Some(1),
            Some(by) => integer(by).map(|by| if command == "decrby" { -by } else { by }),
        };
        let sum = integer(now.as_deref().unwrap_or("0")).zip(by).and_then(|(now, by)| now.checked_add(by));
        let Some(sum) = sum else { return error(NO_INTEGER) };
        self.write(key, Value::Text(sum.to_string()));
        Reply::Number(sum)
    }

    fn set(&mut self, key: &str, words: &[&str]) -> Reply {
        let Some((value, options)) = words.split_first() else {
            return error("ERR wrong number of arguments");
        };
        let value = Value::Text((*value).to_owned());
        match options {
            [] => {
                self.keys.insert(key.to_owned(), Entry { value, ends_ms: None });
            }
            ["XX"] => {
                if !self.keys.contains_key(key) {
                    return Reply::Nil;
                }
                self.keys.insert(key.to_owned(), Entry { value, ends_ms: None });
            }
            [px, ms] if px.eq_ignore_ascii_case("px") => {
                let Some(ms) = integer(ms) else { return error(NO_INTEGER) };
                let Some(ms) = u64::try_from(ms).ok().filter(|ms| *ms > 0) else {
                    return error("ERR invalid expire time in 'set' command");
                };
                self.keys.insert(key.to_owned(), Entry { value, ends_ms: Some(self.now_ms() + ms) });
            }
            _ => panic!("not modelled: set {options:?}"),
        }
        Reply::Status("OK".to_owned())
    }
}
