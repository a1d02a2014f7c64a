//! The messages of a run while it waits and when it ends, for people and for programs.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::world::{Run, Server, eventually, outcome};

fn holding(server: &Server, arguments: &[&str], name: &str) -> Run {
    let holder = server.begin(arguments);
    eventually("the lock is held", || server.outcome(&["show", name]).1.contains(" on "));
    holder
}

#[track_caller]
fn lines_until(run: &mut Run, text: &str) -> Vec<String> {
    let mut said = Vec::new();
    for line in BufReader::new(run.0.stderr.take().unwrap()).lines() {
        said.push(line.unwrap());
        if said.last().unwrap().contains(text) {
            return said;
        }
    }
    panic!("{text:?} was not printed: {said:?}");
}

#[test]
fn a_run_prints_the_holder_and_how_long_it_waited() {
    let server = Server::start();
    let holder = holding(&server, &["run", "job", "--", "sleep", "60"], "job");
    let mut waiter = Run::start(server.leasehold(&["-v", "run", "job", "--", "true"]).stderr(Stdio::piped()));
    let said = lines_until(&mut waiter, "waiting for job: held by ");
    let line = said.last().unwrap();
    assert!(
        line.contains("held by sleep on ") && line.contains(" (process ") && line.contains(", for "),
        "{line}"
    );
    drop(holder);
    let said = server.ends(&["-v", "run", "free", "--", "sh", "-c", "exit 3"], 3, "");
    assert!(said.contains("acquired free after 0.") && said.contains("free: waited 0."), "{said}");
    assert!(said.trim_end().ends_with(" s") && said.contains(", held 0."), "{said}");
}

#[test]
fn a_waiter_without_a_terminal_prints_only_its_final_message() {
    let server = Server::start();
    let _holder = holding(&server, &["run", "job", "--", "sleep", "60"], "job");
    let (code, said) = server.outcome(&["run", "-w", "1.5", "job", "--", "true"]);
    assert_eq!((code, said.lines().count()), (75, 1), "{said}");
}

#[test]
fn later_readers_wait_behind_a_writer() {
    let server = Server::start();
    let _reader = holding(&server, &["run", "-s", "--writers-first", "book", "--", "sleep", "60"], "book");
    let writer = server.begin(&["run", "-x", "--writers-first", "book", "--", "true"]);
    let read = |option: &[&str]| {
        let words = [&["run", "-n", "-s"], option, &["book", "--", "true"]].concat();
        server.outcome(&words).0
    };
    eventually("a later reader goes behind the writer", || read(&["--writers-first"]) == 75);
    eventually("every reader waits behind a long-waiting writer", || read(&[]) == 75);
    drop(writer);
    assert_eq!(server.outcome(&["run", "--writers-first", "book", "--", "true"]).0, 64);
}

const FIELDS: [&str; 10] =
    ["time", "event", "message", "name", "kind", "owner", "pid", "host", "exit_code", "error_kind"];

#[test]
fn every_json_line_has_the_common_fields() {
    let server = Server::start();
    let mut events = Vec::new();
    let mut ask = |command: &mut Command| {
        let (_, said) = outcome(command);
        for line in said.lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
            assert!(FIELDS.iter().all(|field| line.get(field).is_some()), "{line}");
            let time = line["time"].as_str().unwrap();
            assert!(time.len() == 24 && time.ends_with('Z'), "{line}");
            events.push((line["event"].as_str().unwrap().to_owned(), line));
        }
    };
    let json = |words: &[&'static str]| [&["--format", "json"], words].concat();
    ask(&mut server.leasehold(&json(&["-v", "run", "job", "--", "sh", "-c", "exit 3"])));
    let _holder = holding(&server, &["run", "-q", "held", "--", "sleep", "60"], "held");
    ask(&mut server.leasehold(&json(&["run", "-n", "held", "true"])));
    ask(&mut server.leasehold(&json(&["-v", "run", "-w", "1.5", "held", "true"])));
    ask(&mut server.leasehold(&json(&["watch", "held", "--for", "300ms"])));
    ask(&mut server.leasehold(&json(&["run", "--lease", "soon", "job", "true"])));
    ask(server.leasehold(&json(&["ls"])).env("LEASEHOLD_URL", "redis://127.0.0.1:1"));
    ask(&mut server.leasehold(&json(&["run", "job", "/no/such/program"])));
    let of =
        |event: &str| &events.iter().find(|(name, _)| name == event).unwrap_or_else(|| panic!("{event}")).1;
    assert!(of("acquired")["owner"].is_string() && of("acquired")["waited_seconds"].is_number());
    assert_eq!((&of("ended")["exit_code"], &of("ended")["name"]), (&3.into(), &"job".into()));
    for event in ["busy", "waiting"] {
        let holder = &of(event)["holder"];
        assert!(holder["host"].is_string() && holder["pid"].is_number(), "{}", of(event));
        assert_eq!((&holder["label"], &of(event)["kind"]), (&"sleep".into(), &"a fenced lock".into()));
    }
    assert_eq!(of("busy")["exit_code"], 75);
    assert!(of("state")["kind"].is_string(), "{}", of("state"));
    let errors = events.iter().filter(|(event, _)| event == "error");
    let errors: Vec<_> = errors
        .map(|(_, line)| (line["error_kind"].as_str().unwrap(), line["exit_code"].as_u64().unwrap()))
        .collect();
    assert_eq!(errors, [("usage", 64), ("unreachable", 69), ("not_found", 127)]);
}

#[test]
fn ls_prints_columns_and_correct_counts() {
    let server = Server::start();
    let _zeta = holding(&server, &["run", "-q", "zeta", "--", "sleep", "60"], "zeta");
    let _alpha = holding(&server, &["run", "-q", "alpha", "--", "sleep", "60"], "alpha");
    // A lock without an expiry, as Redisson's `lock(-1, …)` may leave it.
    server.ask(&["HSET", "middle", "8a3f0e0e-0000-4000-8000-000000000001:1", "1"]);
    let (code, said) = server.outcome(&["ls"]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((code, lines.len()), (0, 5), "{said}");
    let columns =
        ["NAME", "KIND", "HELD BY", "FOR", "ENDS IN", "WAITING"].map(|head| lines[0].find(head).unwrap());
    assert!(columns.is_sorted(), "{said}");
    let names = lines[1..4].iter().map(|line| line.split(' ').next().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["alpha", "middle", "zeta"]);
    assert!(lines[1][columns[2]..].starts_with("sleep on "), "{said}");
    assert!(lines[2][columns[4]..].starts_with("no end"), "{said}");
    assert!(lines[3][columns[4]..].contains(" s "), "{said}");
    let keys = server.ask(&["DBSIZE"]).trim().trim_start_matches(':').to_owned();
    assert!(lines[4].contains(&format!("3 locks among {keys} keys")), "{keys}: {said}");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for (asked, found) in [(&*host, 2), ("elsewhere", 0)] {
        let (_, said) = server.outcome(&["ls", "--host", asked]);
        assert!(said.contains(&format!("{found} locks among ")), "{said}");
    }
}

#[test]
fn quiet_show_exits_0_only_if_all_named_locks_are_held() {
    let server = Server::start();
    let _holder = holding(&server, &["run", "-q", "job", "--", "sleep", "60"], "job");
    server.ask(&["SET", "cart", "eggs"]);
    for (names, code) in [(&["job"][..], 0), (&["free"], 1), (&["job", "free"], 1), (&["cart", "free"], 65)] {
        let words = [&["show", "-q"], names].concat();
        assert_eq!(server.outcome(&words), (code, String::new()), "{names:?}");
    }
    assert_eq!(server.outcome(&["show", "free"]).0, 0);
}
