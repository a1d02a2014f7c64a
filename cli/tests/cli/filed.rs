//! Every other subcommand on a store that is a file.

use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::world::{Run, eventually, leasehold, outcome, signal};

struct File {
    dir: tempfile::TempDir,
}

impl File {
    fn new() -> File {
        File { dir: tempfile::tempdir().unwrap() }
    }

    fn leasehold(&self, arguments: &[&str]) -> Command {
        let mut command = leasehold(arguments);
        command.env("LEASEHOLD_URL", format!("sqlite://{}", self.dir.path().join("locks.db").display()));
        command
    }

    fn holder(&self) -> Run {
        let run = ["run", "-q", "--lease", "3s", "--label", "nightly", "filed", "--", "sleep", "60"];
        let run = Run::start(&mut self.leasehold(&run));
        eventually("it is held", || self.shown()["held"] == true);
        run
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (code, said) = outcome(&mut self.leasehold(&[&["-q", "--format", "json"], arguments].concat()));
        assert_eq!(code, 0, "{said}");
        serde_json::from_str(&said).unwrap_or(Value::Null)
    }

    fn shown(&self) -> Value {
        self.json(&["show", "filed"])
    }
}

#[test]
fn a_file_shows_and_lists_who_holds() {
    let file = File::new();
    let holder = file.holder();
    let pid = Value::from(holder.pid());
    eventually("the holder has said where it is", || file.shown()["holders"][0]["pid"] == pid);
    let listed = file.json(&["ls", "file*"]);
    assert_eq!((&listed["name"], &listed["holders"][0]["pid"]), (&"filed".into(), &pid), "{listed}");
    assert_eq!(file.json(&["ls", "other*"]), Value::Null);
    eventually("it is a client", || file.json(&["clients"])["pid"] == pid);
}

#[test]
fn a_file_is_watched() {
    let file = File::new();
    let printed = file.dir.path().join("watched");
    let mut watch = file.leasehold(&["watch", "--format", "json", "--interval", "100ms", "filed"]);
    let mut watch = Run(watch.stdout(std::fs::File::create(&printed).unwrap()).spawn().unwrap());
    let prints = |event: &str| {
        eventually(&format!("{event} is printed"), || {
            std::fs::read_to_string(&printed).unwrap().contains(&format!("\"event\":\"{event}\""))
        });
    };
    prints("state");
    let mut holder = file.holder();
    prints("acquired");
    signal(holder.pid(), Signal::TERM);
    holder.wait();
    prints("released");
    signal(watch.pid(), Signal::TERM);
    assert_eq!(watch.wait().code(), Some(128 + 15));
}

#[test]
fn a_hold_in_a_file_is_ended_by_force() {
    let file = File::new();
    let mut holder = file.holder();
    assert_eq!(outcome(&mut file.leasehold(&["force", "filed"])).0, 64);
    assert_eq!(file.shown()["held"], true);
    let (code, said) = outcome(&mut file.leasehold(&["force", "filed", "--yes"]));
    assert!(code == 0 && said.contains("filed was released by force"), "{said}");
    assert_eq!(holder.wait().code(), Some(79));
}

#[test]
fn candidates_stand_in_a_file() {
    let file = File::new();
    let elect =
        |command: &[&str]| file.leasehold(&[&["elect", "--lease", "3s", "filed", "--"], command].concat());
    let mut first = Run::start(&mut elect(&["sleep", "60"]));
    eventually("it leads", || file.shown()["held"] == true);
    assert_eq!(outcome(&mut file.leasehold(&["elect", "-n", "filed", "--", "true"])).0, 75);
    let mut second = Run::start(elect(&["sh", "-c", "exit 6"]).stderr(Stdio::null()));
    signal(first.pid(), Signal::TERM);
    assert_eq!(first.wait().code(), Some(128 + 15));
    assert_eq!(second.wait().code(), Some(6));
}

#[test]
fn a_signal_ends_the_wait_for_a_file() {
    let file = File::new();
    let mut holder = file.holder();
    let owner = |shown: &Value| shown["holders"][0]["owner"].clone();
    let held = file.shown();
    for (sent, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
        let errors = file.dir.path().join("errors");
        let mut waiter = file.leasehold(&["run", "-v", "filed", "--", "true"]);
        let mut waiter = Run(waiter.stderr(std::fs::File::create(&errors).unwrap()).spawn().unwrap());
        eventually("it waits", || std::fs::read_to_string(&errors).unwrap().contains("asking for filed"));
        signal(waiter.pid(), sent);
        assert_eq!(waiter.wait().code(), Some(128 + number));
        assert_eq!((owner(&file.shown()), file.shown()["waiting"].clone()), (owner(&held), 0.into()));
    }
    signal(holder.pid(), Signal::TERM);
    holder.wait();
    assert_eq!(file.shown()["held"], false);
}
