//! `doctor` finds and names each fault of a set-up.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::world::{Server, ends, eventually, leasehold, outcome, pause};

#[track_caller]
pub(crate) fn doctor(url: &str, arguments: &[&str]) -> (i32, HashMap<String, Value>) {
    let mut command = command(url, &["--format", "json", "-q"]);
    let (code, said) = outcome(command.args(arguments));
    let findings = said.lines().map(|line| {
        let finding: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no object: {line}"));
        (finding["check"].as_str().unwrap().to_owned(), finding)
    });
    let findings: HashMap<String, Value> = findings.collect();
    assert_eq!(findings.len(), said.lines().count(), "a check is listed twice: {said}");
    (code, findings)
}

fn command(url: &str, arguments: &[&str]) -> Command {
    let mut command = leasehold(&["doctor"]);
    command.args(arguments).env("LEASEHOLD_URL", url);
    command
}

#[track_caller]
fn is(findings: &HashMap<String, Value>, check: &str, result: &str, words: &str) {
    let finding = &findings[check];
    assert_eq!(finding["result"], result, "{finding}");
    let said = format!("{} {}", finding["message"], finding["advice"]);
    assert!(said.contains(words), "{said}");
}

#[test]
fn a_healthy_server_has_no_faults_or_warnings() {
    let server = Server::start_with(&["--appendonly", "yes"]);
    server.ask(&["ACL", "SETUSER", "me", "on", ">S3CR3T", "~*", "&*", "+@all"]);
    let url = server.url().replace("redis://", "redis://me:S3CR3T@");
    let (code, findings) = doctor(&url, &["--strict"]);
    let results: Vec<_> = findings.iter().map(|(check, finding)| (check, &finding["result"])).collect();
    assert!(results.iter().all(|(_, result)| *result == "ok"), "{findings:?}");
    assert_eq!((code, findings.len()), (0, 15), "{results:?}");
    assert_eq!(findings["latency"]["round_trips"], 50);
    for format in ["text", "json"] {
        let said =
            ends(&mut command(&url, &["--strict", "-v", "--format", format]), 0, "0 faults, 0 warnings");
        assert!(!said.contains("S3CR3T") && !said.contains("redis://"), "{said}");
    }
    assert_eq!(server.ask(&["DBSIZE"]), ":0\r\n", "{}", server.ask(&["KEYS", "*"]));
}

fn old_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer_as_old(&stream));
        }
    });
    port
}

fn answer_as_old(mut stream: &TcpStream) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    loop {
        let count: usize = lines.next()?.ok()?.strip_prefix('*')?.parse().ok()?;
        let mut words = Vec::new();
        for _ in 0..count {
            lines.next()?.ok()?;
            words.push(lines.next()?.ok()?);
        }
        let answer = match words[0].as_str() {
            "INFO" => "$20\r\nredis_version:4.0.14\r\n".to_owned(),
            "AUTH" => "+OK\r\n".to_owned(),
            _ => format!("-ERR unknown command '{}', with args beginning with: 'S3CR3T'\r\n", words[0]),
        };
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

#[test]
fn an_old_server_is_a_fault() {
    let url = format!("redis://:S3CR3T@127.0.0.1:{}", old_server());
    let (code, findings) = doctor(&url, &[]);
    assert_eq!(code, 1);
    is(&findings, "version", "fault", "4.0.14");
    is(&findings, "rights", "not checked", "too old");
    is(&findings, "lock", "fault", "6.2");
    assert!(!format!("{findings:?}").contains("S3CR3T"), "{findings:?}");
}

#[test]
fn a_replica_is_a_fault() {
    let primary = Server::start();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let (code, findings) = doctor(&replica.url(), &[]);
    assert_eq!(code, 1);
    is(&findings, "role", "fault", "replica");
    is(&findings, "lock", "fault", "replica");
    let count = || doctor(&primary.url(), &[]).1["replicas"]["replicas"].clone();
    eventually("the primary counts its replica", || count() == 1);
    let (_, findings) = doctor(&primary.url(), &[]);
    assert!(findings["replicas"]["message"].as_str().unwrap().contains("failover"), "{findings:?}");
}

#[test]
fn doctor_finds_a_server_that_may_evict_locks() {
    let server = Server::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let (code, findings) = doctor(&server.url(), &[]);
    assert_eq!(code, 1);
    is(&findings, "eviction", "fault", "allkeys-lru");
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    let (code, findings) = doctor(&server.url(), &[]);
    assert_eq!(code, 0);
    is(&findings, "eviction", "warning", "noeviction");
}

#[test]
fn missing_persistence_is_a_warning_and_fails_strict_checks() {
    let server = Server::start();
    let (code, findings) = doctor(&server.url(), &[]);
    assert_eq!(code, 0);
    is(&findings, "persistence", "warning", "a restart forgets all locks");
    assert_eq!(doctor(&server.url(), &["--strict"]).0, 1);
    server.ask(&["CONFIG", "SET", "save", "3600 1"]);
    is(&doctor(&server.url(), &[]).1, "persistence", "warning", "snapshots");
}

fn user(server: &Server, less: &[&str]) -> String {
    let rights = "reset resetchannels on >S3CR3T ~leasehold_client:* ~app:* \
                  ~redisson_lock_token:{app:* &redisson_lock__channel:{app:* ~leasehold_lock_queue:{app:* \
                  ~leasehold_lock_next:{app:* &leasehold_wake:{app:* +eval +evalsha +hexists +hget +hset +hdel +hkeys \
                  +pexpire +pttl +get +set +del +incr +time +zadd +zpopmin +zrange +zrem +publish +subscribe +unsubscribe";
    let words: Vec<&str> = ["ACL", "SETUSER", "me"].into_iter().chain(rights.split_whitespace()).collect();
    let answer = server.ask(&[&words, less].concat());
    assert!(!answer.starts_with('-'), "{answer}");
    server.url().replace("redis://", "redis://me:S3CR3T@")
}

#[test]
fn doctor_names_a_missing_right() {
    rights_on(&Server::start());
}

/// Redis 6.2 has no ACL DRYRUN, so `doctor` tries each command, and must leave no key.
#[test]
fn doctor_names_a_missing_right_on_redis_6_2() {
    let all = std::env::var("LEASEHOLD_SERVERS").unwrap_or_default();
    let Some(program) = all.split(':').find_map(|one| one.strip_prefix("redis-6.2=")) else {
        crate::world::skipped("LEASEHOLD_SERVERS has no redis-6.2");
        return;
    };
    rights_on(&Server::start_program(program.as_ref(), &[]));
}

fn rights_on(server: &Server) {
    let (code, findings) = doctor(&user(server, &[]), &["--name", "app:x"]);
    is(&findings, "rights", "ok", "app:x");
    is(&findings, "lock", "ok", "");
    is(&findings, "eviction", "not checked", "INFO");
    is(&findings, "leftovers", "not checked", "'scan'");
    assert_eq!(code, 0, "{findings:?}");
    let (code, findings) = doctor(&user(server, &["-hset", "-zadd"]), &["--name", "app:x"]);
    assert_eq!(code, 1);
    is(&findings, "rights", "fault", "HSET");
    let missing = findings["rights"]["missing"].as_array().unwrap();
    assert!(
        missing.len() == 2 && missing[1].as_str().unwrap().starts_with("ZADD leasehold_lock_queue:{app:x"),
        "{missing:?}"
    );
    assert!(!format!("{findings:?}").contains("S3CR3T"), "{findings:?}");
    let (code, findings) = doctor(&user(server, &["-zadd"]), &["--name", "app:x"]);
    is(&findings, "rights", "warning", "wakes all");
    assert_eq!(code, 0);
    let (code, findings) = doctor(&user(server, &["-del"]), &["--name", "app:x"]);
    is(&findings, "rights", "fault", "DEL");
    assert_eq!(code, 1);
    let (code, findings) = doctor(&user(server, &[]), &["--name", "theirs"]);
    is(&findings, "rights", "fault", "nothing");
    assert_eq!(code, 77);
    eventually("nothing is left", || server.ask(&["DBSIZE"]) == ":0\r\n");
}

#[test]
fn doctor_exits_69_without_server_and_77_with_wrong_password() {
    let (code, findings) = doctor("redis://:S3CR3T@127.0.0.1:1", &[]);
    assert_eq!(code, 69);
    is(&findings, "reach", "fault", "no server listens");
    let server = Server::start();
    server.ask(&["CONFIG", "SET", "requirepass", "right"]);
    let url = server.url().replace("redis://", "redis://:S3CR3T@");
    let (code, findings) = doctor(&url, &[]);
    assert_eq!(code, 77);
    is(&findings, "reach", "fault", "");
    assert!(!format!("{findings:?}").contains("S3CR3T"), "{findings:?}");
    assert_eq!(outcome(&mut command("carrier-pigeon://", &[])).0, 64);
}

#[test]
fn doctor_names_locks_without_an_expiry_among_other_keys() {
    let server = Server::start();
    let owner = "0b7a5a9e-9c55-4f0a-8d6c-1f0f5d0c7a11:42";
    for number in 0..2000 {
        server.ask(&["HSET", &format!("customer:{number}"), "name", "1"]);
    }
    server.ask(&["HSET", "held", owner, "1"]);
    server.ask(&["PEXPIRE", "held", "60000"]);
    is(&doctor(&server.url(), &[]).1, "leftovers", "ok", "among 2001 keys");
    server.ask(&["HSET", "forgotten", owner, "1"]);
    server.ask(&["HSET", "read", "mode", "read", owner, "1"]);
    let (code, findings) = doctor(&server.url(), &[]);
    assert_eq!(code, 0);
    is(&findings, "leftovers", "warning", "2 locks without an end");
    let mut names: Vec<_> = findings["leftovers"]["names"].as_array().unwrap().clone();
    names.sort_by_key(Value::to_string);
    assert_eq!(names, ["forgotten", "read"]);
    let (_, said) = outcome(command(&server.url(), &[]).env("LEASEHOLD_KEY_PREFIX", "for"));
    assert!(said.contains("1 lock without an end: gotten"), "{said}");
}

fn proxy(server: &Server, delay: u64, change: fn(&mut [u8])) -> String {
    let (listener, port) = (TcpListener::bind("127.0.0.1:0").unwrap(), server.port());
    let url = format!("redis://127.0.0.1:{}", listener.local_addr().unwrap().port());
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (near_read, far_write) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || pass(near_read, far_write, 0, |_| {}));
            thread::spawn(move || pass(far, near, delay, change));
        }
    });
    url
}

fn pass(mut from: TcpStream, mut to: TcpStream, delay: u64, change: fn(&mut [u8])) {
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if delay > 0 {
            pause(delay);
        }
        change(&mut bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
}

fn ahead(answer: &mut [u8]) {
    if answer.starts_with(b"*2\r\n$10\r\n1") {
        answer[13] = if answer[13] == b'9' { b'0' } else { answer[13] + 1 };
    }
}

#[test]
fn a_wrong_server_clock_is_a_warning() {
    let server = Server::start();
    let (code, findings) = doctor(&proxy(&server, 0, ahead), &[]);
    assert_eq!(code, 0);
    is(&findings, "clock", "warning", "NTP");
    assert!(findings["clock"]["seconds"].as_f64().unwrap().abs() > 9_000.0, "{findings:?}");
    let (_, findings) = doctor(&proxy(&server, 20, |_| {}), &[]);
    is(&findings, "clock", "ok", "");
    assert!(findings["clock"]["seconds"].as_f64().unwrap().abs() < 0.5, "{findings:?}");
}

#[test]
fn a_lease_that_is_short_for_the_latency_is_reported() {
    let server = Server::start();
    let url = proxy(&server, 40, |_| {});
    let with = |lease: &str| {
        let mut command = command(&url, &["-q", "--format", "json", "--lease", lease]);
        let (code, said) = outcome(command.env("LEASEHOLD_COMMAND_TIMEOUT", "300ms"));
        let find =
            |line: &str| serde_json::from_str::<Value>(line).ok().filter(|one| one["check"] == "lease");
        (code, said.lines().find_map(find).unwrap())
    };
    let (code, finding) = with("1s");
    assert!(code == 0 && finding["result"] == "warning", "{finding}");
    assert!(finding["advice"].as_str().unwrap().contains("30 times"), "{finding}");
    let (code, finding) = with("100ms");
    assert!(code == 1 && finding["result"] == "fault", "{finding}");
    let (code, finding) = with("60s");
    assert!(code == 0 && finding["result"] == "ok", "{finding}");
}

#[test]
fn a_silent_server_does_not_block_doctor() {
    let server = Server::start();
    crate::world::signal(server.pid(), rustix::process::Signal::STOP);
    let begun = crate::world::now();
    let mut command = command(&server.url(), &[]);
    let (code, said) =
        outcome(command.env("LEASEHOLD_COMMAND_TIMEOUT", "300ms").env("LEASEHOLD_CONNECT_TIMEOUT", "300ms"));
    crate::world::signal(server.pid(), rustix::process::Signal::CONT);
    assert_eq!(code, 69, "{said}");
    assert!(Duration::from_nanos(crate::world::now() - begun) < Duration::from_secs(30));
}

#[test]
fn doctor_skips_server_checks_for_a_sqlite_file() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("locks.db").display());
    let (code, findings) = doctor(&url, &[]);
    assert_eq!(code, 0);
    for check in ["reach", "version", "old versions", "role", "rights", "lock", "latency", "lease"] {
        is(&findings, check, "ok", "");
    }
    for check in ["persistence", "eviction", "replicas", "clock", "scripts", "pub/sub", "leftovers"] {
        is(&findings, check, "not checked", "");
    }
    is(&doctor(&url, &[]).1, "lock", "ok", "");
}
