//! The same operations by Java and by Rust leave the same bytes in Redis, and the same messages on channels.
//!
//! After each step all keys (type, content, lifetime) and messages are compared. Parts that differ by nature
//! are replaced if their form is right: an owner by `OWNER`, a token by `TOKEN`, and a lifetime by its lease,
//! if at most two seconds of it are gone.

use leasehold::FencedLock;
use redis::{Commands, Connection, Msg};

use crate::agent::Peer;
use crate::java;
use crate::scene::rust;
use crate::support::prelude::*;

const WATCHDOG: Duration = Duration::from_secs(30);

struct Names {
    lock: &'static str,
    channel: &'static str,
    counter: &'static str,
}

const NAMES: [Names; 4] = [
    Names { lock: "lk", channel: "redisson_lock__channel:{lk}", counter: "redisson_lock_token:{lk}" },
    Names { lock: "a{b}c", channel: "redisson_lock__channel:a{b}c", counter: "redisson_lock_token:a{b}c" },
    Names { lock: "open{", channel: "redisson_lock__channel:open{", counter: "redisson_lock_token:open{" },
    Names {
        lock: "größe:锁 🔒",
        channel: "redisson_lock__channel:{größe:锁 🔒}",
        counter: "redisson_lock_token:{größe:锁 🔒}",
    },
];

#[derive(Clone, Copy, Debug)]
enum Step {
    Lock,
    LockForFiveSeconds,
    Try,
    Unlock,
    ForceUnlock,
}

use Step::{ForceUnlock, Lock, LockForFiveSeconds, Try, Unlock};

test_on!(locks_have_the_same_bytes_from_both_languages, java::set_up(WATCHDOG), |(_alone, server, java)| {
    let client = rust(&server.url(), WATCHDOG);
    for names in &NAMES {
        let held = |count: u32, lease: &str| key(names.lock, &format!("hash OWNER={count}"), lease);
        let freed = message(names.channel, "0");
        let expected = [
            (Lock, vec![held(1, "30 s")]),
            (Lock, vec![held(2, "30 s")]),
            (Try, vec![held(3, "30 s")]),
            (Unlock, vec![held(2, "30 s")]),
            (Unlock, vec![held(1, "30 s")]),
            (Unlock, vec![freed.clone()]),
            (Try, vec![held(1, "30 s")]),
            (Unlock, vec![freed.clone()]),
            (LockForFiveSeconds, vec![held(1, "5 s")]),
            (Unlock, vec![freed.clone()]),
            (Lock, vec![held(1, "30 s")]),
            (Lock, vec![held(2, "30 s")]),
            (ForceUnlock, vec![freed]),
            (ForceUnlock, vec![]),
        ];
        same_bytes("Java", &server, &expected, &Java { peer: &java, lock: names.lock, fenced: false });
        let lock = client.get_lock(names.lock);
        same_bytes("Rust", &server, &expected, &Rust { client: &client, lock: &lock, fenced: None });
    }
});

#[test]
fn fenced_locks_have_the_same_bytes_from_both_languages() {
    let Some((_alone, server, java)) = java::set_up(WATCHDOG) else { return };
    let client = rust(&server.url(), WATCHDOG);
    for names in &NAMES {
        let counter = key(names.counter, "string TOKEN", "for ever");
        let held =
            |count: u32| vec![key(names.lock, &format!("hash OWNER={count}"), "30 s"), counter.clone()];
        let freed = vec![counter.clone(), message(names.channel, "0")];
        let expected = [
            (Lock, held(1)),
            (Lock, held(2)),
            (Unlock, held(1)),
            (Unlock, freed.clone()),
            (Lock, held(1)),
            (ForceUnlock, freed),
            (ForceUnlock, vec![counter.clone()]),
        ];
        same_bytes("Java", &server, &expected, &Java { peer: &java, lock: names.lock, fenced: true });
        let lock = client.get_fenced_lock(names.lock);
        same_bytes("Rust", &server, &expected, &Rust { client: &client, lock: &lock, fenced: Some(&lock) });
    }
}

fn key(name: &str, content: &str, lifetime: &str) -> String {
    format!("key {} {content} {lifetime}", name.as_bytes().escape_ascii())
}

fn message(channel: &str, payload: &str) -> String {
    format!("message {} {payload}", channel.as_bytes().escape_ascii())
}

trait Side {
    fn id(&self) -> String;
    fn owner(&self) -> String;
    /// Runs the step. Returns the fencing token of its grant, if any.
    fn take(&self, step: Step) -> Option<u64>;
}

struct Java<'a> {
    peer: &'a Peer,
    lock: &'a str,
    fenced: bool,
}

impl Side for Java<'_> {
    fn id(&self) -> String {
        self.peer.id.clone()
    }

    fn owner(&self) -> String {
        self.peer.owner("steps")
    }

    fn take(&self, step: Step) -> Option<u64> {
        let (verb, more): (_, &[&str]) = match step {
            Lock if self.fenced => ("lock-token", &[]),
            Lock => ("lock", &[]),
            LockForFiveSeconds => ("lock-lease", &["5000"]),
            Try => ("try", &[]),
            Unlock => ("unlock", &[]),
            ForceUnlock => ("force-unlock", &[]),
        };
        let kind = if self.fenced { "fenced-" } else { "" };
        let said = self.peer.get("steps", &format!("{kind}{verb}"), &[&[self.lock], more].concat());
        (verb == "lock-token").then(|| said.parse().unwrap())
    }
}

struct Rust<'a> {
    client: &'a LockClient,
    lock: &'a RedisLock,
    fenced: Option<&'a FencedLock>,
}

impl Side for Rust<'_> {
    fn id(&self) -> String {
        self.client.id().to_string()
    }

    fn owner(&self) -> String {
        self.client.current_owner().to_string()
    }

    fn take(&self, step: Step) -> Option<u64> {
        match (step, self.fenced) {
            (Lock, Some(fenced)) => return Some(fenced.lock_and_get_token().unwrap().get()),
            (Lock, None) => self.lock.lock().unwrap(),
            (LockForFiveSeconds, _) => self.lock.lock_with_lease(Duration::from_secs(5)).unwrap(),
            (Try, _) => assert!(self.lock.try_lock().unwrap()),
            (Unlock, _) => self.lock.unlock().unwrap(),
            (ForceUnlock, _) => drop(self.lock.force_unlock().unwrap()),
        }
        None
    }
}

fn same_bytes(who: &str, server: &RedisServer, expected: &[(Step, Vec<String>)], side: &impl Side) {
    let mut admin = server.admin();
    let _: () = admin.flushall().unwrap();
    let mut listener = server.admin();
    let mut listener = listener.as_pubsub();
    listener.psubscribe("*").unwrap();
    let mut token = None;
    for (number, (step, expected)) in expected.iter().enumerate() {
        token = side.take(*step).or(token);
        let mut seen = keys(&mut admin, side, token);
        // When this message arrives, all earlier messages have arrived too.
        let _: () = admin.publish("the-step", "is-over").unwrap();
        seen.extend(std::iter::from_fn(|| shown(&listener.get_message().unwrap())));
        let mut expected = expected.clone();
        expected.sort();
        seen.sort();
        assert_eq!(seen, expected, "{who}, after step {number}, {step:?}");
    }
}

/// All keys, except directory entries and the records of releases, which Redisson deletes a moment later.
fn keys(admin: &mut Connection, side: &impl Side, token: Option<u64>) -> Vec<String> {
    let names: Vec<Vec<u8>> = admin.keys("*").unwrap();
    let beside: [&[u8]; 2] = [b"redisson_unlock_latch:", b"leasehold_client:"];
    let names = names.into_iter().filter(|name| !beside.iter().any(|prefix| name.starts_with(prefix)));
    names.map(|name| describe(admin, &name, side, token)).collect()
}

fn describe(admin: &mut Connection, name: &[u8], side: &impl Side, token: Option<u64>) -> String {
    let kind: String = redis::cmd("TYPE").arg(name).query(admin).unwrap();
    let content = match kind.as_str() {
        "hash" => {
            let fields: Vec<(Vec<u8>, Vec<u8>)> = admin.hgetall(name).unwrap();
            let fields = fields.iter().map(|(field, value)| {
                let field =
                    if is_owner(field, side) { "OWNER".to_owned() } else { field.escape_ascii().to_string() };
                format!("{field}={}", value.escape_ascii())
            });
            fields.collect::<Vec<_>>().join(" ")
        }
        "string" => {
            let value: Vec<u8> = admin.get(name).unwrap();
            let is_token = token.is_some_and(|token| token.to_string().as_bytes() == value);
            if is_token { "TOKEN".to_owned() } else { value.escape_ascii().to_string() }
        }
        other => panic!("neither side uses a {other}"),
    };
    let lifetime = match admin.pttl(name).unwrap() {
        -1 => "for ever".to_owned(),
        3_001..=5_000 => "5 s".to_owned(),
        28_001..=30_000 => "30 s".to_owned(),
        other => format!("{other} ms"),
    };
    format!("key {} {kind} {content} {lifetime}", name.escape_ascii())
}

/// Whether the field is this side's owner. Panics if that owner lacks Redisson's form: a UUID and a number.
fn is_owner(field: &[u8], side: &impl Side) -> bool {
    let owner = side.owner();
    let (id, number) = owner.split_once(':').expect("an owner is an id, a colon and a number");
    let uuid = uuid::Uuid::parse_str(id).expect("the id is a UUID");
    assert_eq!(id, uuid.hyphenated().to_string());
    // Java's UUIDs have version 4. Ours have version 8, which says that our releases notify the wait queue.
    assert!(matches!(uuid.get_version_num(), 4 | 8), "{id}");
    assert_eq!(id, side.id());
    assert!(number.bytes().all(|digit| digit.is_ascii_digit()), "{number:?} is no number");
    field == owner.as_bytes()
}

fn shown(message: &Msg) -> Option<String> {
    let channel: Vec<u8> = message.get_channel().unwrap();
    let payload = message.get_payload_bytes();
    (channel != b"the-step").then(|| format!("message {} {}", channel.escape_ascii(), payload.escape_ascii()))
}
