//! Tests of grants that wait for replicas, on a server with scripted answers.

use std::collections::VecDeque;

use crossbeam_channel::Receiver;
use crossbeam_channel::unbounded;

use super::prelude::*;
use crate::stores::redis::acks::Acks;

const GRANTED: &str = "*1\r\n$7\r\ngranted\r\n";
const FREED: &str = "*1\r\n$5\r\nfreed\r\n";

/// The commands that the server expects, by their first words, each with its answer.
type Script = Arc<Mutex<VecDeque<(&'static str, &'static str)>>>;

/// A fake server that expects these commands, and closes the connection at any other.
fn scripted(answers: &[(&'static str, &'static str)]) -> (Fake, Opened, Script) {
    let script: Script = Arc::new(Mutex::new(answers.iter().copied().collect()));
    let to_come = Arc::clone(&script);
    let fake = Fake::start(move |command| {
        let next = to_come.lock().pop_front();
        match next {
            Some((word, answer)) if command.split(' ').next() == Some(word) => Act::Say(answer),
            _ => Act::HangUp,
        }
    });
    let store = open(&ServerOptions { replicas: required(Duration::from_millis(20)), ..fake.options() });
    (fake, store, script)
}

/// Whether a script is a grant, not `touch.lua`, which the client sends before WAIT.
fn is_grant(command: &str) -> bool {
    !command.contains("writes a lock's expiry again")
}

fn required(within: Duration) -> ReplicaRule {
    ReplicaRule::Required(Replicas { count: 1, within })
}

#[test]
fn a_grant_on_too_few_replicas_has_an_unknown_outcome() {
    let granted_alone = [("eval", GRANTED), ("hexists", ":1\r\n"), ("eval", ":1\r\n"), ("wait", ":0\r\n")];
    let undoing: [&[_]; 3] = [
        &[("eval", "-LOADING Redis is loading the dataset in memory\r\n")],
        // The clean-up may have reached another server, which lacks the grant, so the grant may still exist.
        &[("eval", "*1\r\n$8\r\nnot_held\r\n")],
        &[],
    ];
    for undoing in undoing {
        let (_fake, store, script) = scripted(&[&granted_alone, undoing].concat());
        let answer = store.attempt(&claim(Kind::Mutex, "lk", 30_000), 1, soon());
        let Err(Failure::Unknown(error)) = answer else { panic!("{undoing:?}: not in doubt but {answer:?}") };
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        assert!(script.lock().is_empty());
    }
}

/// No replica acknowledges the grant, so the store undoes it. The undo finds that `b` is no longer held.
#[test]
fn unreplicated_multi_lock_with_one_lock_gone_has_unknown_outcome() {
    let (_fake, store, script) = scripted(&[
        ("eval", "*3\r\n$7\r\ngranted\r\n$-1\r\n$-1\r\n"),
        ("hexists", ":1\r\n"),
        ("eval", ":1\r\n"),
        ("wait", ":0\r\n"),
        ("eval", "*3\r\n$5\r\nfreed\r\n:0\r\n:-2\r\n"),
    ]);
    let claims = ["a", "b"].map(|key| claim(Kind::Mutex, key, 30_000));
    let answer = store.begin_attempts(&claims, true, soon()).wait();
    assert!(matches!(answer, Err(Failure::Unknown(_))), "not in doubt but {answer:?}");
    assert!(script.lock().is_empty());
}

/// The server loses the slot by a failover during WAIT, or because the slot moves between grant and WAIT.
#[test]
fn a_grant_whose_server_loses_the_slot_has_unknown_outcome() {
    let moved = "-MOVED 5 127.0.0.1:1\r\n";
    let demoted =
        "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n";
    for (held, waited) in [(":1\r\n", demoted), (moved, ":1\r\n")] {
        let (_fake, store, script) = scripted(&[
            ("eval", GRANTED),
            ("hexists", held),
            ("eval", ":1\r\n"),
            ("wait", waited),
            ("eval", moved),
        ]);
        let answer = store.attempt(&claim(Kind::Mutex, "lk", 30_000), 1, soon());
        let Err(Failure::Unknown(error)) = answer else { panic!("{held}: not in doubt but {answer:?}") };
        assert!(error.is_retryable(), "{error}");
        assert!(script.lock().is_empty());
    }
}

/// After a failover, the connection may lead to a server that never had the grant.
#[test]
fn an_acknowledgement_is_ignored_if_the_server_lacks_the_grant() {
    for (held, touched) in [(":0\r\n", ":1\r\n"), (":1\r\n", ":0\r\n")] {
        let (_fake, store, script) = scripted(&[
            ("eval", GRANTED),
            ("hexists", held),
            ("eval", touched),
            ("wait", ":1\r\n"),
            ("eval", FREED),
        ]);
        let error = store.attempt(&claim(Kind::Mutex, "lk", 30_000), 1, soon()).refused();
        assert!(error.to_string().contains("no longer had the grant"), "{error}");
        assert!(script.lock().is_empty());
    }
}

/// A server that answers WAIT when the test tells it to.
fn waiting() -> (Fake, Opened, Receiver<()>, Sender<&'static str>) {
    let ((came, waits), (answer, answers)) = (unbounded(), unbounded());
    let fake = Fake::start(move |command| match command.split(' ').next() {
        Some("eval" | "evalsha") if is_grant(command) => Act::Say(GRANTED),
        Some("wait") => {
            came.send(()).ok();
            answers.recv().map_or(Act::HangUp, Act::Say)
        }
        _ => Act::Say(":1\r\n"),
    });
    let options =
        ServerOptions { replicas: required(Duration::from_secs(5)), command_timeout: LONG, ..fake.options() };
    let store = open(&options);
    (fake, store, waits, answer)
}

const LONG: Duration = Duration::from_secs(60);

/// Answers the first grant's WAIT when `others` further grants wait for the next WAIT. Then `round` answers
/// each later WAIT. Returns for each further grant whether its attempt succeeded.
fn while_others_gather(others: usize, round: impl FnOnce(&dyn Fn(&'static str))) -> Vec<bool> {
    let (_fake, store, waits, answer) = waiting();
    let acks = store.server.acks.clone().unwrap();
    let attempt =
        |number: usize| store.attempt(&claim(Kind::Mutex, &format!("lk{number}"), 30_000), 1, soon());
    let attempt = &attempt;
    let counted = std::thread::scope(|scope| {
        let first = scope.spawn(move || attempt(0));
        waits.recv_timeout(LONG).unwrap();
        let others: Vec<_> = (1..=others).map(|number| scope.spawn(move || attempt(number))).collect();
        eventually(|| acks.gathered() == others.len());
        answer.send(":1\r\n").unwrap();
        first.join().unwrap().granted();
        round(&|said| {
            waits.recv_timeout(LONG).unwrap();
            answer.send(said).unwrap();
        });
        others.into_iter().map(|other| other.join().unwrap().is_ok()).collect()
    });
    assert!(waits.is_empty());
    counted
}

#[test]
fn one_wait_command_covers_all_earlier_grants() {
    let counted = while_others_gather(4, |wait| wait(":1\r\n"));
    assert_eq!(counted, [true; 4]);
}

#[test]
fn a_failed_replica_wait_fails_only_one_of_two_grants() {
    // One thread sends a WAIT for both grants. When it fails, the other thread sends its own WAIT.
    let counted = while_others_gather(2, |wait| [":0\r\n", ":1\r\n"].into_iter().for_each(wait));
    assert_eq!(counted.into_iter().filter(|is| *is).count(), 1);
}

/// Replies to ROLE: without a replica; with one that has acknowledged nothing yet; with one that has.
const ALONE: &str = "*3\r\n$6\r\nmaster\r\n:7\r\n*0\r\n";
const LOADS: &str = "*3\r\n$6\r\nmaster\r\n:7\r\n*1\r\n*3\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\n0\r\n";
const ONE: &str = "*3\r\n$6\r\nmaster\r\n:7\r\n*1\r\n*3\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\n7\r\n";

#[test]
fn grants_without_a_replica_are_valid_and_cause_one_report() {
    let (role, waits) = (Arc::new(Mutex::new((ALONE, ":0\r\n"))), Arc::new(Mutex::new(0)));
    let (says, counter) = (Arc::clone(&role), Arc::clone(&waits));
    let fake = Fake::start(move |command| match command.split(' ').next() {
        Some("eval" | "evalsha") if is_grant(command) => Act::Say(GRANTED),
        Some("role") => Act::Say(says.lock().0),
        Some("wait") => {
            *counter.lock() += 1;
            Act::Say(says.lock().1)
        }
        _ => Act::Say(":1\r\n"),
    });
    let (sender, told) = bounded(10);
    let observer = move |event: &Event<'_>| {
        if let Event::NoReplica { .. } | Event::ReplicaBack { .. } = event {
            sender.send(matches!(event, Event::ReplicaBack { .. })).unwrap();
        }
    };
    let reporter = Arc::new(Reporter::new(Some(Arc::new(observer))));
    let store = reporting(&fake.options(), Arc::clone(&reporter));
    let wanted = ServerOptions::default().copies(true).unwrap();
    let connections = &store.server.connections;
    let acks = Acks::new(connections, wanted, &reporter, "here");
    let grant = kinds::of(Kind::Mutex).grant(&claim(Kind::Mutex, "lk", 30_000));
    let confirm = || acks.confirm(&grant, soon());
    // The queue of reports is full, so ordinary reports are dropped. `NoReplica` must not be dropped.
    let (free, blocked) = bounded::<()>(0);
    reporter.run_later(move || assert!(blocked.recv().is_err()));
    (0..2_000).for_each(|_| reporter.observe_news(|_| ()));
    confirm().done();
    confirm().done();
    drop(free);
    assert_eq!((told.recv_timeout(LONG), *waits.lock()), (Ok(false), 0));
    *role.lock() = (LOADS, ":0\r\n");
    confirm().done();
    assert_eq!(*waits.lock(), 1);
    *role.lock() = (LOADS, ":1\r\n");
    confirm().done();
    assert_eq!((told.recv_timeout(LONG), *waits.lock()), (Ok(true), 2));
    // The replica disconnects during a WAIT, so WAIT counts none, and ROLE then lists none.
    *role.lock() = (ALONE, ":0\r\n");
    confirm().done();
    confirm().done();
    assert_eq!((told.recv_timeout(LONG), *waits.lock()), (Ok(false), 3));
    *role.lock() = (ONE, ":0\r\n");
    confirm().unwrap_err();
    assert_eq!(*waits.lock(), 5);
    assert!(told.is_empty());
}
