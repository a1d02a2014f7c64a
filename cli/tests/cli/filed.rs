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
fn candidates_stand_in_a_file() {
    let file = File::new();
    let elect =
        |command: &[&str]| file.leasehold(&[&["elect", "--lease", "3s", "filed", "--"], command].concat());
    let mut first = Run::start(&mut elect(&["sleep", "60"]));
    eventually("it leads", || file.shown()["held"] == true);
    assert_eq!(outcome(&mut file.leasehold(&["elect", "-n", "filed", "--", "true"])).0, 75);
    let mut second = Run::start(elect(&["sh", "-c", "exit 6"]).stderr(Stdio::null()));
    assert_eq!(first.terminate(), Some(128 + 15));
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
    holder.terminate();
    assert_eq!(file.shown()["held"], false);
}
