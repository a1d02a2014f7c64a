//! Tests of the checkers that other tests use: each checker finds what is wrong.

use redis::{Commands, Connection};

use crate::support::epilogue::{Baseline, assert_every_hash_has_a_ttl, not_given_back, threads};
use crate::support::prelude::*;
use crate::support::run;
use crate::support::stalls::{lost_between, stalled_between};

fn connect(url: &str) -> Connection {
    let connection = redis::Client::open(url).unwrap().get_connection_with_timeout(LONG).unwrap();
    connection.set_read_timeout(Some(LONG)).unwrap();
    connection
}

#[track_caller]
fn panics(work: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
}

/// Whether a process runs and is no zombie.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Runs a test of this file in a new process, and returns its output; `None` if this is that process.
fn in_child(test: &str) -> Option<String> {
    if std::env::var_os("LEASEHOLD_SELFTEST_CHILD").is_some() {
        return None;
    }
    let program = test_command(&format!("support_selftest::{test}"));
    Some(run(&program, |command| command.env("LEASEHOLD_SELFTEST_CHILD", "1")).1)
}

/// Twice as many processes are busy as there are processors, so a sum of their waits would be too long.
#[test]
fn measured_processor_waits_never_exceed_the_elapsed_time() {
    let busy = || crate::support::spawn(&["sh", "-c", "while :; do :; done"], |command| command);
    let most = std::thread::available_parallelism().unwrap().get();
    let mut children: Vec<_> = (0..2 * most).map(|_| busy()).collect();
    let start = now();
    let counted = eventually(LONG, || stalled_since(start) > Duration::from_millis(500));
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(counted, "{:?}", stalled_since(start));
    let (stalled, took) = (stalled_since(start), start.elapsed());
    assert!(stalled <= took, "{stalled:?} in {took:?}");
}

#[test]
fn stalls_outside_the_measured_span_are_not_counted() {
    let begun = now();
    let ms = Duration::from_millis;
    let lost =
        [(begun, ms(0)), (begun + ms(100), ms(7)), (begun + ms(250), ms(20)), (begun + ms(900), ms(90))];
    let between = |start, end| lost_between(&lost, begun + ms(start), begun + ms(end), ms(20));
    assert_eq!(between(150, 230), ms(13), "the stall was seen after the end");
    assert_eq!(between(150, 500), ms(13), "a later stall was counted");
    assert_eq!((between(0, 50), between(300, 500), between(950, 990)), (ms(0), ms(0), ms(0)));
    assert_eq!(between(0, 1_000), ms(90));
    assert!(stalled_between(begun, begun + ms(1)) <= ms(1), "more than the span was counted");
}

#[test]
fn a_server_dies_with_its_test_process() {
    let Some(output) = in_child("a_server_dies_with_its_test_process") else {
        let server = RedisServer::start_default().unwrap();
        crate::support::shout(&format!("PID {} FOLDER {}", server.pid(), server.folder().display()));
        std::process::abort();
    };
    if default_server().is_none() {
        return;
    }
    let words: Vec<&str> = output.split_whitespace().collect();
    let word = |label: &str| words[words.iter().position(|word| *word == label).unwrap() + 1];
    let (pid, folder) = (word("PID").parse().unwrap(), std::path::Path::new(word("FOLDER")));
    assert!(
        eventually(LONG, || !runs(pid) && !folder.exists()),
        "server {pid} lives on, or {folder:?} stays"
    );
}

test_on!(leftover_connections_and_keys_without_expiry_are_found, RedisServer::start_default(), |server| {
    let before = connect(&server.url());
    let baseline = Baseline::take(&server).within(LONG);
    baseline.assert_clean(&server);
    let finds = |what: &str| baseline.left_behind(&server).iter().any(|line| line.starts_with(what));

    let mut connection = connect(&server.url());
    assert!(finds("connection "), "{:?}", baseline.left_behind(&server));
    let mut pubsub = connection.as_pubsub();
    pubsub.subscribe("news").unwrap();
    assert!(finds("subscription to news"));
    drop(pubsub);
    drop(connection);
    // The server notices the end of a connection a moment later, and the check waits for that.
    baseline.assert_clean(&server);

    let mut third = server.admin();
    redis::cmd("SELECT").arg(3).exec(&mut third).unwrap();
    third.hset::<_, _, _, ()>("lock", "owner", 1).unwrap();
    assert!(finds("hash without TTL: 3:lock"));
    assert!(panics(|| assert_every_hash_has_a_ttl(&server)));
    third.pexpire::<_, ()>("lock", 600_000).unwrap();
    third.set::<_, _, ()>("token counter", 1).unwrap();
    baseline.assert_clean(&server);
    assert_every_hash_has_a_ttl(&server);
    drop(before);
});

test_on!(an_unreleased_lock_is_found, RedisServer::start_default(), |server| {
    let mut admin = server.admin();
    admin.hset::<_, _, _, ()>("kept", "owner", 1).unwrap();
    admin.pexpire::<_, ()>("kept", 10_000).unwrap();
    for _ in 0..2 {
        assert_eq!(not_given_back(&server, ["kept", "another"]), ["kept"]);
        assert_eq!(admin.pttl::<_, i64>("kept").unwrap(), -1, "the key has no expiry");
    }
    admin.hdel::<_, _, ()>("kept", "owner").unwrap();
    assert!(not_given_back(&server, ["kept", "another"]).is_empty());
});

#[test]
fn leftover_threads_and_descriptors_are_found() {
    let name = "leftover_threads_and_descriptors_are_found";
    if let Some(output) = in_child(name) {
        assert!(output.contains("test result: ok. 1 passed"), "{output}");
        return;
    }
    let Some(server) = RedisServer::start_default() else { return };
    let baseline = Baseline::take(&server).alone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    // The stall meter may open this file at any moment, so the check must ignore it.
    let read_by_the_meter = std::fs::File::open("/proc/self/stat").unwrap();
    assert_eq!(baseline.left_behind(&server), [""; 0]);
    let file = std::fs::File::open("/dev/null").unwrap();
    let thread = std::thread::Builder::new()
        .name("leasehold-selftest".to_owned())
        .spawn(move || assert!(stopped.recv().is_err()))
        .unwrap();
    // A thread sets its own name a moment after it has started.
    assert!(eventually(LONG, || threads().unwrap() == ["leasehold-selft"]));
    let left = baseline.left_behind(&server);
    assert!(left.iter().any(|line| line.starts_with("threads: 0 before, now 1")), "{left:?}");
    assert!(left.iter().any(|line| line.starts_with("file descriptors")), "{left:?}");
    drop((stop, file, read_by_the_meter));
    thread.join().unwrap();
    baseline.assert_clean(&server);
}
