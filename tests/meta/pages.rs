//! The code of the pages, run on a server.
//!
//! The test sends each command of `docs/from-setnx-to-leases.md`, and compares the answer with the printed
//! one. Each user of `docs/permissions.md` can do what its kind of lock needs, and nothing else.

use std::collections::HashMap;

use leasehold::Result;
use redis::Value;

use crate::support::prelude::*;

const ROAD: &str = include_str!("../../docs/from-setnx-to-leases.md");

test_on!(each_command_of_the_setnx_page_gets_its_printed_answer, RedisServer::start_default(), |server| {
    let mut people = HashMap::new();
    let mut commands = 0;
    for step in ROAD.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
        let mut lines = step.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some(seconds) = line.strip_prefix("$ sleep ") {
                pass(Duration::from_secs_f64(seconds.parse().unwrap()));
                continue;
            }
            let (who, command) = said(line).unwrap_or_else(|| panic!("no user sends {line:?}"));
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
    assert!(commands > 35, "only {commands} commands were found");
});

fn users() -> Vec<(&'static str, Vec<&'static str>)> {
    let page = include_str!("../../docs/permissions.md");
    let blocks = page.split("```text\nACL SETUSER ").skip(1);
    let users = blocks.map(|rest| {
        let mut words = rest.split("```").next().unwrap().split_whitespace();
        let name = words.next().unwrap();
        let begin: Vec<&str> = words.by_ref().take(NEW_USER.len()).collect();
        assert_eq!(begin, NEW_USER, "{name}");
        (name, words.collect())
    });
    users.collect()
}

const NEW_USER: [&str; 4] = ["reset", "resetchannels", "on", ">PASSWORD"];

fn set_user(server: &RedisServer, name: &str, rules: &[&str]) {
    redis::cmd("ACL").arg("SETUSER").arg(name).arg(rules).exec(&mut server.admin()).unwrap();
}

const LONG: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_millis(10);

struct Pair<'a> {
    server: &'a RedisServer,
    one: LockClient,
    other: LockClient,
}

impl Pair<'_> {
    fn of<'a>(server: &'a RedisServer, user: &str) -> Result<Pair<'a>> {
        let client = || {
            let client = LockClient::builder().url(server.url()).username(user).password("PASSWORD");
            client.unsubscribe_delay(Duration::ZERO).build()
        };
        Ok(Pair { server, one: client()?, other: client()? })
    }

    fn nobody_listens(&self) -> bool {
        let channels = redis::cmd("PUBSUB").arg("CHANNELS").query::<Vec<String>>(&mut self.server.admin());
        channels.unwrap().is_empty()
    }

    /// Runs `wait` on another thread, and `wake` once `wait` listens, has ended, or 300 ms have passed.
    fn woken<T: Send>(
        &self,
        wait: impl FnOnce() -> Result<T> + Send,
        wake: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let soon = Duration::from_millis(300);
        let _quiet = eventually(soon, || self.nobody_listens());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait().map(drop));
            let _listens = eventually(soon, || waiter.is_finished() || !self.nobody_listens());
            let woken = wake();
            if woken.is_err() {
                self.other.shutdown()?; // no release will end the wait
            }
            let waited = waiter.join().unwrap();
            woken.and(waited)
        })
    }
}

fn refused(outcome: Result<()>) -> Result<()> {
    outcome.or_else(|error| if error.is_not_held() { Ok(()) } else { Err(error) })
}

/// Makes the calls for which the page defines this user, so that the client needs each of the user's rights.
fn of_kind(user: &str, pair: &Pair<'_>) -> Result<()> {
    let (one, other) = (&pair.one, &pair.other);
    // Java can set a token counter ahead of the clock. The script then reads it by GET, which needs a right.
    let ahead_of_the_clock = |counter: &str| {
        redis::cmd("SET").arg(counter).arg(9_000_000_000_000_000_u64).exec(&mut pair.server.admin()).unwrap();
    };
    match user {
        "locks" => {
            let (lock, theirs) = (one.get_fenced_lock("app:a"), other.get_fenced_lock("app:a"));
            lock.lock()?;
            lock.lock()?;
            lock.hold_count()?;
            refused(theirs.unlock())?;
            lock.unlock()?;
            // A waiter that gives up leaves the queue, which needs rights too.
            theirs.try_lock_for(SHORT)?;
            pair.woken(|| theirs.try_lock_for(LONG), || lock.unlock())?;
            lock.force_unlock()?;
            one.run_once("app:job", LONG / 3, LONG / 3, |_| ())?;
            one.get_token_lock("app:t").lock()?;
            one.get_token_lock("app:t").unlock()
        }
        "fair" => {
            ahead_of_the_clock("redisson_lock_token:{app:f}");
            let lock = one.lock_builder("app:f").fair().build_fenced();
            let theirs = other.get_fair_lock("app:f");
            lock.lock()?;
            lock.lock()?;
            lock.hold_count()?;
            refused(theirs.unlock())?;
            lock.unlock()?;
            // This waiter queues behind a waiter of Java, as in a service that also runs Java.
            let mut java = redis::pipe();
            java.rpush("redisson_lock_queue:{app:f}", "java:1");
            java.zadd("redisson_lock_timeout:{app:f}", "java:1", "9000000000000");
            java.exec(&mut pair.server.admin()).unwrap();
            let waited = theirs.try_lock_for(SHORT);
            let places = ["redisson_lock_queue:{app:f}", "redisson_lock_timeout:{app:f}"];
            redis::cmd("DEL").arg(&places).exec(&mut pair.server.admin()).unwrap();
            waited?;
            pair.woken(|| theirs.acquire_owned()?.unlock(), || lock.unlock())?;
            lock.force_unlock().map(drop)
        }
        "readwrite" => {
            ahead_of_the_clock("redisson_lock_token:{app:rw}");
            let (lock, theirs) = (one.get_read_write_lock("app:rw"), other.get_read_write_lock("app:rw"));
            lock.write_fenced().lock()?;
            lock.read().lock()?;
            lock.read().hold_count()?;
            refused(theirs.write().unlock())?;
            theirs.read().try_lock_for(SHORT)?;
            let reads = || theirs.read().try_lock_for(LONG).and_then(|_| theirs.read().unlock());
            pair.woken(reads, || lock.write().unlock())?;
            let first = other.get_read_write_lock("app:rw").writers_first();
            first.read().try_lock()?;
            first.read().unlock().or_else(|_not_held| Ok(()))?;
            first.write().try_lock_for(SHORT)?;
            pair.woken(|| first.write().acquire_owned()?.unlock(), || lock.read().unlock())?;
            lock.write().is_locked()?;
            lock.read().force_unlock().map(drop)
        }
        "semaphore" => {
            let (permits, theirs) = (one.get_semaphore("app:s"), other.get_semaphore("app:s"));
            permits.try_set_permits(1)?;
            let permit = permits.acquire(1)?;
            pair.woken(|| theirs.try_acquire_for(1, LONG), || permit.unlock())?;
            permits.add_permits(2)?;
            theirs.try_acquire_for(9, SHORT)?;
            permits.drain_permits()?;
            permits.release_if_exists(1)?;
            permits.delete().map(drop)
        }
        "permits" => {
            let (permits, theirs) =
                (one.get_expirable_semaphore("app:p"), other.get_expirable_semaphore("app:p"));
            permits.try_set_permits(1)?;
            // A semaphore with an expiry gives its permits the same expiry, which needs rights too.
            redis::cmd("PEXPIRE").arg(&["app:p", "100000"]).exec(&mut pair.server.admin()).unwrap();
            let permit = permits.acquire()?;
            pair.woken(|| theirs.try_acquire_for(LONG), || permit.unlock())?;
            permits.available_permits()?;
            permits.acquired_permits()?;
            permits.set_permits(2)?;
            theirs.acquire_with(9, &AcquireOptions::new().wait(SHORT))?;
            let permit = permits.acquire()?;
            let id = permit.ids().remove(0);
            permits.update_lease_time(&id, LONG)?;
            permits.remaining_lease(&id)?;
            permits.permits()?;
            permit.forget();
            permits.release_many(&[id])?;
            permits.delete().map(drop)
        }
        "latch" => {
            let (latch, theirs) = (one.get_count_down_latch("app:l"), other.get_count_down_latch("app:l"));
            latch.wait()?;
            latch.try_set_count(2)?;
            latch.count_down()?;
            pair.woken(|| theirs.wait_for(LONG), || latch.count_down().map(drop))?;
            latch.try_set_count(1)?;
            latch.delete().map(drop)
        }
        "condition" => {
            let (lock, theirs) = (one.get_lock("app:c"), other.get_lock("app:c"));
            let mut guard = lock.acquire()?;
            theirs.try_lock()?;
            theirs.try_lock_for(SHORT)?;
            lock.condition("changed").wait_for(&mut guard, SHORT)?;
            pair.woken(|| theirs.lock().and_then(|()| theirs.unlock()), || guard.unlock())?;
            pair.woken(
                || {
                    let mut guard = theirs.acquire()?;
                    let notified = theirs.condition("changed").wait_for(&mut guard, LONG);
                    guard.unlock()?;
                    notified
                },
                || {
                    lock.lock()?;
                    lock.condition("changed").notify_all()?;
                    lock.unlock()
                },
            )
        }
        "inspect" => {
            for words in [
                &["HSET", "app:i", "mode", "read", "8a3f0e0e-0000-4000-8000-000000000001:1", "1"][..],
                &["ZADD", "leasehold_lock_queue:{app:i}", "1", "java"],
                &["RPUSH", "redisson_lock_queue:{app:i}", "java:2"],
                &["SET", "app:n", "3"],
            ] {
                redis::cmd(words[0]).arg(&words[1..]).exec(&mut pair.server.admin()).unwrap();
            }
            one.inspect("app:i")?;
            one.inspect("app:n")?;
            one.list("app:*").chain(other.list("app:*")).try_for_each(|lock| lock.map(drop))
        }
        other => panic!("the test does not know the page's user {other}"),
    }
}

test_on!(each_lock_kind_needs_exactly_its_documented_redis_rights, RedisServer::start_default(), |server| {
    let does = |words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut server.admin()).unwrap();
    };
    let refused = || {
        let log = redis::cmd("ACL").arg("LOG").query::<Vec<Value>>(&mut server.admin()).unwrap();
        (!log.is_empty()).then(|| format!("{log:?}"))
    };
    let with = |user: &str, rights: &[&str]| {
        does(&["FLUSHALL"]);
        // Without this key the client would try to write it, for which the user has no right.
        does(&["SET", "leasehold_client:format", "leasehold format 1"]);
        set_user(&server, user, &[&NEW_USER, rights].concat());
        does(&["ACL", "LOG", "RESET"]);
        Pair::of(&server, user).and_then(|pair| {
            let outcome = of_kind(user, &pair);
            // The client unsubscribes some time later, which needs a right too, so the test waits for that.
            let _over = eventually(crate::support::LONG, || pair.nobody_listens() || refused().is_some());
            outcome
        })
    };
    let users = users();
    assert_eq!(users.len(), 8);
    for (user, rights) in users {
        with(user, &rights).unwrap_or_else(|error| panic!("{user}: {error}"));
        assert_eq!(refused(), None, "{user}");
        if user == "locks" {
            let one = Pair::of(&server, user).unwrap().one;
            for error in [one.get_lock("other:a").lock(), one.get_fair_lock("app:f").lock()] {
                fails(error, ErrorKind::NoPermission);
            }
        }
        for missing in &rights {
            let fewer: Vec<&str> = rights.iter().copied().filter(|right| right != missing).collect();
            let outcome = with(user, &fewer);
            assert!(refused().is_some(), "{user} does not need {missing}: {outcome:?}");
            if let Err(error) = outcome {
                assert_eq!(error.kind(), ErrorKind::NoPermission, "{user} without {missing}: {error}");
            }
        }
    }
});

/// Splits a line such as `alice> GET key`.
fn said(line: &str) -> Option<(&str, &str)> {
    let (who, command) = line.split_once("> ")?;
    (!who.is_empty() && who.bytes().all(|b| b.is_ascii_lowercase())).then_some((who, command))
}

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
        other => panic!("the page has no such answer: {other:?}"),
    }
}

/// Sleeps where the page tells its reader to wait until a lease ends.
#[expect(clippy::disallowed_methods, reason = "the page says sleep")]
fn pass(time: Duration) {
    std::thread::sleep(time);
}
