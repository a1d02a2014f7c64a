//! Tests of the test tools: each server option works, each fault bites, each checker finds what is wrong.

use std::net::TcpStream;
use std::time::Duration;

use redis::{Commands, Connection, ErrorKind, RedisResult};

use crate::support::epilogue::{Baseline, assert_every_hash_has_a_ttl, not_given_back, threads};
use crate::support::netns::{Lost, Netns};
use crate::support::programs::listens;
use crate::support::proxy::{Direction, Do, Proxy, Then, Which, script_with, verb};
use crate::support::server::{RedisServer, default_server, timed};
use crate::support::stalls::{lost_between, stalled_between};
use crate::support::{LONG, eventually, now, run, stalled_since, test_command};

/// How long a client here waits for an answer that does not come.
const PATIENCE: Duration = Duration::from_millis(300);

fn connect(url: &str) -> Connection {
    let connection = redis::Client::open(url).unwrap().get_connection_with_timeout(LONG).unwrap();
    connection.set_read_timeout(Some(LONG)).unwrap();
    connection
}

fn connect_impatient(url: &str) -> Connection {
    let connection = connect(url);
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection
}

fn incr(connection: &mut Connection, key: &str) -> RedisResult<i64> {
    redis::cmd("INCR").arg(key).query(connection)
}

/// A script, for faults aimed at scripts.
fn incr_by_script(connection: &mut Connection, key: &str) -> RedisResult<i64> {
    redis::cmd("EVAL").arg("return redis.call('incr', KEYS[1])").arg(1).arg(key).query(connection)
}

fn get(server: &RedisServer, key: &str) -> Option<i64> {
    server.admin().get(key).unwrap()
}

#[track_caller]
fn times_out<T: std::fmt::Debug>(result: RedisResult<T>) {
    assert!(matches!(&result, Err(error) if error.is_timeout()), "{result:?}");
}

fn panics(work: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
}

/// Whether a process runs, and is no zombie.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Runs one test of this file in its own process, marked by the environment; returns its output.
fn in_child(test: &str) -> Option<String> {
    if std::env::var_os("LEASEHOLD_SELFTEST_CHILD").is_some() {
        return None;
    }
    let program = test_command(&format!("support_selftest::{test}"));
    Some(run(&program, |command| command.env("LEASEHOLD_SELFTEST_CHILD", "1")).1)
}

/// More busy threads than processors, so some always wait; this process sleeps.
#[test]
fn child_waits_count_up_to_the_elapsed_time() {
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

/// A loss before a span or long after it does not count; one within it does, even if seen later.
#[test]
fn an_ended_span_counts_only_its_own_waits() {
    let begun = now();
    let ms = Duration::from_millis;
    let lost =
        [(begun, ms(0)), (begun + ms(100), ms(7)), (begun + ms(250), ms(20)), (begun + ms(900), ms(90))];
    let between = |start, end| lost_between(&lost, begun + ms(start), begun + ms(end), ms(20));
    assert_eq!(between(150, 230), ms(13), "seen after the end");
    assert_eq!(between(150, 500), ms(13), "not what came later");
    assert_eq!((between(0, 50), between(300, 500), between(950, 990)), (ms(0), ms(0), ms(0)));
    assert_eq!(between(0, 1_000), ms(90));
    assert!(stalled_between(begun, begun + ms(1)) <= ms(1), "never more than the span");
}

#[test]
fn a_port_belongs_to_its_listening_process() {
    let Some(server) = RedisServer::start_default() else { return };
    let other = RedisServer::builder(server.binary()).start();
    assert!(listens(server.pid(), server.port()) && listens(other.pid(), other.port()));
    assert!(!listens(other.pid(), server.port()));
    incr(&mut connect(&server.url()), "an answer").unwrap();
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

/// Whether the other side has aborted the connection; the driver hides the kind of its I/O errors.
fn is_reset(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Io && error.to_string().contains("reset")
}

#[test]
fn a_held_request_arrives_after_its_client_has_gone() {
    let Some(server) = RedisServer::start_default() else { return };
    let proxy = Proxy::before(&server);
    let fault = proxy.next(script_with("late"), Do::HoldRequest);
    let mut connection = connect_impatient(&proxy.url());
    times_out(incr_by_script(&mut connection, "late"));
    drop(connection);
    fault.wait_for(1, LONG);
    assert_eq!(incr(&mut connect(&proxy.url()), "other").unwrap(), 1);
    assert_eq!(get(&server, "late"), None);
    fault.release();
    assert!(eventually(LONG, || get(&server, "late") == Some(1)));
    assert!(eventually(LONG, || proxy.connections() == 0), "the late connection ends in order");
}

#[test]
fn delays_are_long_enough_and_can_end() {
    let Some(server) = RedisServer::start_default() else { return };
    let proxy = Proxy::before(&server);
    let mut connection = connect(&proxy.url());
    let fault = proxy.next(verb("INCR"), Do::DelayReply(PATIENCE));
    let (value, took) = timed(|| incr(&mut connection, "counter").unwrap());
    assert!(value == 1 && took >= PATIENCE && fault.hits() == 1, "{took:?}");
    proxy.delay_replies(PATIENCE);
    // A delay shifts a pipeline once.
    let mut pipeline = redis::pipe();
    for _ in 0..100 {
        pipeline.cmd("INCR").arg("counter");
    }
    let (_, took) = timed(|| pipeline.exec(&mut connection).unwrap());
    assert!(took >= PATIENCE && took < PATIENCE * 20, "{took:?}");
    proxy.delay_replies(Duration::ZERO);
    proxy.delay_requests(PATIENCE);
    let (_, took) = timed(|| incr(&mut connection, "counter").unwrap());
    assert!(took >= PATIENCE, "{took:?}");
    proxy.delay_requests(Duration::ZERO);
    let quick = eventually(LONG, || timed(|| incr(&mut connection, "counter").unwrap()).1 < PATIENCE);
    assert!(quick, "a delay was left");
}

#[test]
fn holding_kills_and_messages_can_be_aimed_at_subscribers() {
    let Some(server) = RedisServer::start_default() else { return };
    let proxy = Proxy::before(&server);
    let mut others = connect(&proxy.url());
    let mut subscriber = connect(&proxy.url());
    let mut pubsub = subscriber.as_pubsub();
    pubsub.subscribe("news").unwrap();
    pubsub.set_read_timeout(Some(LONG)).unwrap();
    let publish = |text: &str| server.admin().publish::<_, _, i64>("news", text).unwrap();

    assert_eq!(publish("one"), 1);
    assert_eq!(pubsub.get_message().unwrap().get_payload::<String>().unwrap(), "one");

    proxy.drop_messages(true);
    assert_eq!(publish("lost"), 1);
    assert!(eventually(LONG, || proxy.messages_dropped() == 1));
    proxy.drop_messages(false);
    publish("two");
    assert_eq!(pubsub.get_message().unwrap().get_payload::<String>().unwrap(), "two");

    proxy.hold(Direction::ToClient, Which::Subscribers);
    publish("three");
    assert_eq!(incr(&mut others, "counter").unwrap(), 1);
    pubsub.set_read_timeout(Some(PATIENCE)).unwrap();
    times_out(pubsub.get_message().map(drop));
    proxy.resume();
    pubsub.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(pubsub.get_message().unwrap().get_payload::<String>().unwrap(), "three");

    assert_eq!(proxy.kill(Which::Subscribers, Then::Reset), 1);
    let error = pubsub.get_message().unwrap_err();
    assert!(is_reset(&error), "{error:?}");
    assert_eq!(incr(&mut others, "counter").unwrap(), 2);
    assert!(eventually(LONG, || publish("nobody") == 0), "the server's side has ended too");
}

#[test]
fn dripping_takes_a_pause_for_each_piece() {
    let Some(server) = RedisServer::start_default() else { return };
    let proxy = Proxy::before(&server);
    let mut connection = connect(&proxy.url());
    proxy.drip(Some((1, Duration::from_millis(10))));
    let (text, took) =
        timed(|| redis::cmd("ECHO").arg("0123456789").query::<String>(&mut connection).unwrap());
    assert_eq!(text, "0123456789");
    // "$10\r\n0123456789\r\n": the pause after the last byte may still run.
    assert!(took >= Duration::from_millis(16 * 10), "{took:?}");
}

#[test]
fn a_repeated_request_is_executed_twice() {
    let Some(server) = RedisServer::start_default() else { return };
    let proxy = Proxy::before(&server);
    let fault = proxy.each(verb("INCR"), Do::Watch);
    incr(&mut connect(&proxy.url()), "counter").unwrap();
    assert_eq!(fault.repeat(0), b":2\r\n");
    assert_eq!((fault.hits(), get(&server, "counter")), (1, Some(2)));
}

fn behind_a_network() -> Option<(RedisServer, Netns)> {
    let binary = default_server()?;
    let net = Netns::new()?;
    Some((net.start(RedisServer::builder(&binary)), net))
}

#[test]
fn the_kernel_delivers_a_request_after_its_connection_was_closed() {
    let Some((server, net)) = behind_a_network() else { return };
    let mut connection = connect_impatient(&server.url());
    let cut = net.cut_connections(&server, Lost::Requests);
    times_out(incr(&mut connection, "late"));
    drop(connection);
    // New connections pass, and nothing has arrived.
    assert_eq!(incr(&mut connect(&server.url()), "other").unwrap(), 1);
    assert_eq!(get(&server, "late"), None);
    cut.heal();
    assert!(eventually(LONG, || get(&server, "late") == Some(1)), "the kernel gave up");
}

#[test]
fn when_replies_are_lost_requests_are_executed() {
    let Some((server, net)) = behind_a_network() else { return };
    let mut connection = connect_impatient(&server.url());
    let cut = net.cut(Lost::Replies);
    times_out(incr(&mut connection, "counter"));
    assert!(eventually(LONG, || get(&server, "counter") == Some(1)));
    cut.heal();
    connection.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(incr(&mut connection, "counter").unwrap(), 2);
}

#[test]
fn a_partition_stops_everything_until_it_is_healed() {
    let Some((server, net)) = behind_a_network() else { return };
    let mut connection = connect_impatient(&server.url());
    let cut = net.cut(Lost::Both);
    times_out(incr(&mut connection, "counter"));
    let address = (server.address(), server.port()).into();
    assert!(TcpStream::connect_timeout(&address, PATIENCE).is_err());
    assert_eq!(get(&server, "counter"), None);
    cut.heal();
    assert!(eventually(LONG, || get(&server, "counter") == Some(1)));
}

#[test]
fn leftovers_are_found_unless_they_go_in_time() {
    let Some(server) = RedisServer::start_default() else { return };
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
    // The server learns of an end a moment later; the check waits for that.
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
}

#[test]
fn an_unreleased_lock_is_found() {
    let Some(server) = RedisServer::start_default() else { return };
    let mut admin = server.admin();
    admin.hset::<_, _, _, ()>("kept", "owner", 1).unwrap();
    admin.pexpire::<_, ()>("kept", 10_000).unwrap();
    for _ in 0..2 {
        assert_eq!(not_given_back(&server, ["kept", "another"]), ["kept"]);
        assert_eq!(admin.pttl::<_, i64>("kept").unwrap(), -1, "it does not end by itself");
    }
    admin.hdel::<_, _, ()>("kept", "owner").unwrap();
    assert!(not_given_back(&server, ["kept", "another"]).is_empty());
}

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
    // The meter of stalls reads system files at any moment: those are not the library's.
    let read_by_the_meter = std::fs::File::open("/proc/self/stat").unwrap();
    assert_eq!(baseline.left_behind(&server), [""; 0]);
    let file = std::fs::File::open("/dev/null").unwrap();
    let thread = std::thread::Builder::new()
        .name("leasehold-selftest".to_owned())
        .spawn(move || assert!(stopped.recv().is_err()))
        .unwrap();
    // A thread names itself when it starts.
    assert!(eventually(LONG, || threads().unwrap() == ["leasehold-selft"]));
    let left = baseline.left_behind(&server);
    assert!(left.iter().any(|line| line.starts_with("threads: 0 before, now 1")), "{left:?}");
    assert!(left.iter().any(|line| line.starts_with("file descriptors")), "{left:?}");
    drop((stop, file, read_by_the_meter));
    thread.join().unwrap();
    baseline.assert_clean(&server);
}
