//! The subcommands that run no program, on every operating system. The store is a SQLite file or the Redis of
//! `LEASEHOLD_TEST_REDIS`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use leasehold::LockClient;
use serde_json::Value;
use tempfile::TempDir;

struct World {
    url: String,
    client: LockClient,
    _folder: TempDir,
}

fn worlds() -> Vec<World> {
    let folder = || tempfile::tempdir().unwrap();
    let mut worlds = Vec::new();
    let file = folder();
    let path = file.path().join("locks.db").to_str().unwrap().replace('\\', "/");
    let url = format!("sqlite:///{}", path.trim_start_matches('/'));
    worlds.push(World::at(url, file));
    if let Ok(urls) = std::env::var("LEASEHOLD_TEST_REDIS") {
        worlds.push(World::at(urls.split(' ').next().unwrap().to_owned(), folder()));
    }
    worlds
}

impl World {
    fn at(url: String, folder: TempDir) -> World {
        let options = LockClient::builder().url(&url).create_schema(true);
        let client = options.command_timeout(Duration::from_secs(20)).build().unwrap();
        World { url, client, _folder: folder }
    }

    fn leasehold(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args(arguments).env("LEASEHOLD_URL", &self.url).env("LEASEHOLD_COMMAND_TIMEOUT", "20s");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn runs(&self, arguments: &[&str]) -> (i32, String) {
        let Output { status, stdout, stderr } = self.leasehold(arguments).output().unwrap();
        (status.code().unwrap(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
    }

    fn says_json(&self, arguments: &[&str]) -> Value {
        let (code, text) = self.runs(&[&["--format", "json"], arguments].concat());
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(text.lines().next().unwrap_or_default())
            .unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

fn fresh(label: &str) -> String {
    format!("{label}-{:x}", std::process::id())
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_hold_is_shown_listed_and_ended_by_force() {
    for world in worlds() {
        let name = fresh("shown");
        let guard = world.client.get_lock(&name).acquire().unwrap();
        let (code, text) = world.runs(&["show", &name]);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains(&name) && text.contains("held by"), "{text}");
        let shown = world.says_json(&["show", &name]);
        assert_eq!(shown["name"], name.as_str(), "{shown}");
        assert_eq!(shown["holders"][0]["pid"], std::process::id(), "{shown}");
        let (code, text) = world.runs(&["ls", &format!("{name}*")]);
        assert!(code == 0 && text.contains(&name), "{code}: {text}");
        let (code, text) = world.runs(&["force", &name]);
        assert!(guard.check().is_ok() && text.contains(&name), "{code}: {text}");
        let (code, text) = world.runs(&["force", &name, "--yes"]);
        assert_eq!(code, 0, "{text}");
        assert!(!world.client.get_lock(&name).is_locked().unwrap());
        assert!(guard.unlock().unwrap_err().is_lost());
    }
}

#[test]
fn clients_that_hold_locks_are_listed_with_their_pid() {
    for world in worlds() {
        let name = fresh("listed");
        let guard = world.client.get_lock(&name).acquire().unwrap();
        let own = std::process::id().to_string();
        let mut seen = String::new();
        let is_listed = (0..600).any(|_| {
            seen = world.runs(&["clients"]).1;
            seen.contains(&own)
        });
        assert!(is_listed, "{seen}");
        drop(guard);
    }
}

#[test]
fn watch_prints_a_line_for_each_change() {
    for world in worlds() {
        let name = fresh("watched");
        let mut watch = Killed(
            world.leasehold(&["watch", &name, "--interval", "100ms", "--for", "60s"]).spawn().unwrap(),
        );
        let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        let first = lines.next().unwrap();
        assert!(first.contains(&name), "{first}");
        let guard = world.client.get_lock(&name).acquire().unwrap();
        assert!(lines.any(|line| line.contains("acquired")));
        guard.unlock().unwrap();
        assert!(lines.any(|line| line.contains("released")));
        let (code, text) = world.runs(&["watch", &name, "--for", "200ms"]);
        assert_eq!(code, 0, "{text}");
    }
}

#[test]
fn doctor_exits_0_or_1_and_prints_its_findings() {
    for world in worlds() {
        let (code, text) = world.runs(&["doctor"]);
        assert!(code == 0 || code == 1, "{code}: {text}");
        assert!(text.contains("ok"), "{text}");
    }
}

#[test]
fn serve_answers_a_request_for_metrics() {
    for world in worlds() {
        let name = fresh("served");
        let guard = world.client.get_lock(&name).acquire().unwrap();
        let mut serve = Killed(world.leasehold(&["serve", "--listen", "127.0.0.1:0"]).spawn().unwrap());
        let mut said = String::new();
        let mut words = BufReader::new(serve.0.stderr.take().unwrap());
        words.read_line(&mut said).unwrap();
        let address = said.split("http://").nth(1).unwrap_or_else(|| panic!("{said}"));
        let address: String =
            address.chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect();
        let mut socket = TcpStream::connect(address.trim_end_matches('.')).unwrap();
        write!(socket, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("leasehold_"), "{answer}");
        guard.unlock().unwrap();
    }
}

#[test]
fn top_needs_a_terminal() {
    let (code, text) = worlds()[0].runs(&["top"]);
    assert_eq!(code, 64, "{text}");
}

#[cfg(windows)]
#[test]
fn unix_only_commands_explain_their_refusal_on_windows() {
    let world = &worlds()[0];
    for arguments in [
        &["run", "a", "--", "cmd"][..],
        &["once", "a", "--at-least", "1m", "--at-most", "1m", "--", "cmd"],
        &["elect", "a", "--", "cmd"],
        &["hold", "a"],
        &["release", "a"],
    ] {
        let (code, text) = world.runs(arguments);
        assert!(code == 64 && text.contains("is for Unix only"), "{arguments:?}: {code}: {text}");
    }
}

#[test]
fn the_help_lists_the_unix_only_commands() {
    let (code, text) = worlds()[0].runs(&["--help"]);
    assert!(code == 0 && text.contains("run, once, elect, hold and release are for Unix only"), "{text}");
}
