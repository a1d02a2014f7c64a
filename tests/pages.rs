//! What the pages show, carried out on a server.
//!
//! Of `docs/from-setnx-to-leases.md`: every command is sent, and every answer compared with the one that is printed.
//! Of `docs/guarantees.md`: the user of the last section can do all that locks need.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

mod support;

use std::collections::HashMap;
use std::time::Duration;

use leasehold::crossbeam_channel::{Sender, unbounded};
use leasehold::{Error, LockClient, NotHeld, Observer};
use redis::Value;
use support::eventually;
use support::server::RedisServer;

const ROAD: &str = include_str!("../docs/from-setnx-to-leases.md");

#[test]
fn every_command_of_the_road_is_answered_as_printed() {
    let Some(server) = RedisServer::start_default() else { return };
    let mut people = HashMap::new();
    let mut commands = 0;
    for step in ROAD.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
        let mut lines = step.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some(seconds) = line.strip_prefix("$ sleep ") {
                pass(Duration::from_secs_f64(seconds.parse().unwrap()));
                continue;
            }
            let (who, command) = said(line).unwrap_or_else(|| panic!("nobody says {line:?}"));
            let mut printed = Vec::new();
            while lines.peek().is_some_and(|next| said(next).is_none() && !next.starts_with("$ ")) {
                printed.extend(lines.next());
            }
            let connection = people.entry(who).or_insert_with(|| server.admin());
            let words = words(command);
            let answer = redis::cmd(&words[0]).arg(&words[1..]).query::<Value>(connection);
            let shown = match answer {
                Ok(value) => show(&value),
                Err(error) => {
                    assert!(error.code().is_some(), "{line}\n{error}");
                    vec!["(error) …".to_owned()]
                }
            };
            assert_eq!(shown, printed, "{line}");
            commands += 1;
        }
    }
    assert!(commands > 50, "only {commands} commands were found");
}

/// Passes on what is told of wake-ups.
struct Wakeups(Sender<String>);

impl Observer for Wakeups {
    fn wakeups(&self, down: Option<&Error>) {
        self.0.send(format!("{down:?}")).unwrap();
    }
}

#[test]
fn the_user_of_the_guarantees_can_do_all_that_locks_need() {
    let Some(server) = RedisServer::start_default() else { return };
    let page = include_str!("../docs/guarantees.md");
    let (_, rest) = page.split_once("```text\nACL SETUSER").unwrap();
    let (rules, _) = rest.split_once("```").unwrap();
    let mut setuser = redis::cmd("ACL");
    setuser.arg("SETUSER");
    for word in rules.split_whitespace() {
        setuser.arg(word);
    }
    setuser.exec(&mut server.admin()).unwrap();

    let (tell, told) = unbounded();
    let connect = || {
        let client = LockClient::builder().url(&server.url()).username("locks").password("PASSWORD");
        client.client_name("page").observer(Wakeups(tell.clone())).build().unwrap()
    };
    let (one, other) = (connect(), connect());

    let lock = one.fenced_lock("app:a");
    let first = lock.lock_and_get_token().unwrap();
    lock.lock().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 2);
    let by = other.lock("app:a").unlock().unwrap_err();
    assert_eq!(by.not_held(), Some(&NotHeld::HeldBy(one.current_owner().to_string())));
    lock.unlock().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.fenced_lock("app:a").acquire().unwrap().fence());
        assert!(eventually(Duration::from_secs(5), || {
            let channel = "redisson_lock__channel:{app:a}";
            let counted = redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query(&mut server.admin());
            counted.is_ok_and(|(_, listeners): (String, u64)| listeners > 0)
        }));
        lock.unlock().unwrap();
        assert!(waiter.join().unwrap() > Some(first));
    });
    one.lock("app:a").lock().unwrap();
    assert!(other.lock("app:a").force_unlock().unwrap());
    let token = one.token_lock("app:t").acquire().unwrap();
    assert!(!other.token_lock("app:t").try_lock().unwrap());
    token.unlock().unwrap();

    let elsewhere = one.lock("other:a").lock().unwrap_err();
    assert_eq!(elsewhere.kind(), leasehold::ErrorKind::NoPermission, "{elsewhere}");
    one.shutdown().unwrap();
    other.shutdown().unwrap();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [""; 0]);
}

/// `alice> GET key`
fn said(line: &str) -> Option<(&str, &str)> {
    let (who, command) = line.split_once("> ")?;
    (!who.is_empty() && who.bytes().all(|b| b.is_ascii_lowercase())).then_some((who, command))
}

/// What redis-cli makes of a line; quotes keep words together.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in command.split('"').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// What redis-cli prints on a terminal.
fn show(value: &Value) -> Vec<String> {
    match value {
        Value::Nil => vec!["(nil)".to_owned()],
        Value::Okay => vec!["OK".to_owned()],
        Value::Int(number) => vec![format!("(integer) {number}")],
        Value::BulkString(text) => vec![format!("{:?}", String::from_utf8_lossy(text))],
        Value::Array(items) => {
            let numbered = items.iter().enumerate();
            numbered.map(|(at, item)| format!("{}) {}", at + 1, show(item).join(" "))).collect()
        }
        other => panic!("the road has no such answer: {other:?}"),
    }
}

/// The reader of the page waits here for a lease to end; so does this test.
#[expect(clippy::disallowed_methods, reason = "the page says sleep")]
fn pass(time: Duration) {
    std::thread::sleep(time);
}
