//! What people and programs read of a run while it waits and when it ends.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::world::{Run, Server, eventually, outcome};

/// A run in the background that holds `name`, once it does.
fn holding(server: &Server, arguments: &[&str], name: &str) -> Run {
    let holder = Run::start(&mut server.leasehold(arguments));
    eventually("it is held", || outcome(&mut server.leasehold(&["show", name])).1.contains(" on "));
    holder
}

/// The lines of a run's standard error, until the first that has this text.
#[track_caller]
fn lines_until(run: &mut Run, text: &str) -> Vec<String> {
    let mut said = Vec::new();
    for line in BufReader::new(run.0.stderr.take().unwrap()).lines() {
        said.push(line.unwrap());
        if said.last().unwrap().contains(text) {
            return said;
        }
    }
    panic!("{text:?} was not said: {said:?}");
}

#[test]
fn a_waiter_says_who_has_the_lock_and_at_the_end_how_long_it_waited_and_held() {
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
    let (code, said) = outcome(&mut server.leasehold(&["-v", "run", "free", "--", "sh", "-c", "exit 3"]));
    assert_eq!(code, 3);
    assert!(said.contains("acquired free after 0.") && said.contains("free: waited 0."), "{said}");
    assert!(said.trim_end().ends_with(" s") && said.contains(", held 0."), "{said}");
}

#[test]
fn a_waiter_without_a_terminal_and_without_v_is_mute() {
    let server = Server::start();
    let _holder = holding(&server, &["run", "job", "--", "sleep", "60"], "job");
    let (code, said) = outcome(&mut server.leasehold(&["run", "-w", "1.5", "job", "--", "true"]));
    assert_eq!((code, said.lines().count()), (75, 1), "{said}");
}

#[test]
fn a_writer_that_readers_keep_out_is_told_of_writers_first_and_with_it_later_readers_wait() {
    let server = Server::start();
    let _reader = holding(&server, &["run", "-s", "--writers-first", "book", "--", "sleep", "60"], "book");
    let mut writer =
        Run::start(server.leasehold(&["-v", "run", "-x", "book", "--", "true"]).stderr(Stdio::piped()));
    lines_until(&mut writer, "unless all use --writers-first");
    drop(writer);
    let writer = Run::start(&mut server.leasehold(&["run", "-x", "--writers-first", "book", "--", "true"]));
    let read = |option: &[&str]| {
        let words = [&["run", "-n", "-s"], option, &["book", "--", "true"]].concat();
        outcome(&mut server.leasehold(&words)).0
    };
    eventually("a later reader goes behind the writer", || read(&["--writers-first"]) == 75);
    assert_eq!(read(&[]), 0);
    drop(writer);
    assert_eq!(outcome(&mut server.leasehold(&["run", "--writers-first", "book", "--", "true"])).0, 64);
}
