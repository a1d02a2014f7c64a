//! `watch` prints a line for each change, until a signal comes, its time ends, or its reader goes away.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::world::{Run, Server, ends, eventually, leasehold, outcome, signal};

struct Watch {
    run: Run,
    file: std::path::PathBuf,
    seen: usize,
}

impl Watch {
    fn start(server: &Server, names: &[&str]) -> Watch {
        let file = server.path("watched");
        let mut command = server.leasehold(&["watch", "--format", "json", "--interval", "100ms"]);
        command
            .args(names)
            .env("LEASEHOLD_COMMAND_TIMEOUT", "300ms")
            .env("LEASEHOLD_CONNECT_TIMEOUT", "300ms");
        let run = Run(command.stdout(File::create(&file).unwrap()).spawn().unwrap());
        Watch { run, file, seen: 0 }
    }

    #[track_caller]
    fn prints(&mut self, event: &str) -> Value {
        let (file, seen) = (self.file.clone(), self.seen);
        let mut found = None;
        eventually(&format!("{event} is printed"), || {
            let text = fs::read_to_string(&file).unwrap();
            let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).enumerate().skip(seen);
            let mut objects = lines.map(|(at, line)| (at, serde_json::from_str::<Value>(line).unwrap()));
            found = objects.find(|(_, object)| object["event"] == event);
            found.is_some()
        });
        let (at, object) = found.unwrap();
        self.seen = at + 1;
        object
    }
}

#[test]
fn a_line_appears_when_others_acquire_wait_and_release() {
    let server = Server::start();
    let mut watch = Watch::start(&server, &["job", "other"]);
    let first = watch.prints("state");
    assert_eq!((&first["name"], &first["owners"].as_array().unwrap().len()), (&"job".into(), &0), "{first}");
    assert_eq!(watch.prints("state")["name"], "other");
    let mut holder = server.begin(&["run", "-q", "job", "--", "sleep", "60"]);
    let acquired = watch.prints("acquired");
    assert_eq!(acquired["name"], "job", "{acquired}");
    assert!(acquired["time"].as_str().unwrap().ends_with('Z'), "{acquired}");
    let mut waiter = server.begin(&["run", "-q", "job", "--", "sleep", "60"]);
    let waiting = watch.prints("waiting");
    assert_eq!((&waiting["now"], &waiting["before"]), (&1.into(), &0.into()), "{waiting}");
    let before = watch.seen;
    holder.terminate();
    assert_eq!(watch.prints("released")["owner"], acquired["owner"]);
    let next = watch.prints("acquired");
    assert_ne!(next["owner"], acquired["owner"]);
    // `watch` may print `waiting` before `acquired`, so the test searches again from the release on.
    let after = std::mem::replace(&mut watch.seen, before);
    assert_eq!(watch.prints("waiting")["now"], 0);
    watch.seen = after;
    waiter.terminate();
    assert_eq!(watch.prints("released")["owner"], next["owner"]);
}

#[test]
fn watch_distinguishes_expiry_from_release() {
    let server = Server::start();
    let mut watch = Watch::start(&server, &["dies"]);
    watch.prints("state");
    let mut holder = server.begin(&["run", "-q", "--lease", "2s", "dies", "--", "sleep", "60"]);
    let acquired = watch.prints("acquired");
    signal(holder.pid(), Signal::KILL);
    holder.wait();
    assert_eq!(watch.prints("expired")["owner"], acquired["owner"]);
}

#[test]
fn watch_reports_an_unreachable_store() {
    let server = Server::start();
    let mut watch = Watch::start(&server, &["kept"]);
    watch.prints("state");
    signal(server.pid(), Signal::STOP);
    watch.prints("away");
    signal(server.pid(), Signal::CONT);
    watch.prints("back");
    let mut holder = server.begin(&["run", "-q", "kept", "--", "sleep", "60"]);
    watch.prints("acquired");
    holder.terminate();
    watch.prints("released");
    let text = fs::read_to_string(&watch.file).unwrap();
    assert_eq!(text.matches("\"away\"").count(), 1, "{text}");
}

#[test]
fn a_signal_or_the_time_limit_stops_watch() {
    let server = Server::start();
    for (sent, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        let mut watch = Watch::start(&server, &["any"]);
        watch.prints("state");
        signal(watch.run.pid(), sent);
        assert_eq!(watch.run.wait().code(), Some(128 + number));
    }
    let mut watch = Watch::start(&server, &["any"]);
    watch.prints("state");
    signal(server.pid(), Signal::STOP);
    watch.prints("away");
    signal(watch.run.pid(), Signal::TERM);
    let code = watch.run.wait().code();
    signal(server.pid(), Signal::CONT);
    assert_eq!(code, Some(128 + 15));
    let said = server.ends(&["watch", "any", "--for", "300ms"], 0, "");
    assert!(said.contains(" any: free\n") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_closed_pipe_stops_watch_silently() {
    let server = Server::start();
    let errors = server.path("errors");
    let mut command = server.leasehold(&["watch", "quiet", "--interval", "100ms"]);
    command.stdout(Stdio::piped()).stderr(File::create(&errors).unwrap());
    let mut run = Run(command.spawn().unwrap());
    let mut reader = BufReader::new(run.0.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    assert_eq!(run.wait().code(), Some(0));
    assert_eq!(fs::read_to_string(errors).unwrap(), "");
}

#[test]
fn watch_refuses_invalid_arguments() {
    for wrong in [&["watch"][..], &["watch", "a", "--interval", "50ms"], &["watch", "a", "--for", "soon"]] {
        // No store listens at this address, so accepted arguments would cause the exit code 69.
        ends(leasehold(wrong).env("LEASEHOLD_URL", "redis://127.0.0.1:1"), 64, "");
    }
    let mut away: Command = leasehold(&["watch", "a"]);
    let (code, said) = outcome(away.env("LEASEHOLD_URL", "redis://:S3CR3T@127.0.0.1:1"));
    assert!(code == 69 && !said.contains("S3CR3T"), "{said}");
}
