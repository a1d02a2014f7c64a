//! The command is dead before another is granted the lock, whatever becomes of the process that holds it.

use std::thread;

use rustix::process::Signal;

use crate::world::{Run, Server, Stamper, children, eventually, now, pause, signal, stamps};

/// How often each is done, side by side. More of them, one after the other: `LEASEHOLD_CLI_ROUNDS`.
pub(crate) fn rounds() -> usize {
    std::env::var("LEASEHOLD_CLI_ROUNDS").map_or(5, |rounds| rounds.parse().unwrap())
}

/// A busy machine may stand still for half of it.
const LEASE: &str = "6s";
const LEASE_NANOS: u64 = 6_000_000_000;

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    SupervisorStopped,
    SupervisorKilled,
    BothStopped,
    HelperStoppedAndSupervisorKilled,
    ServerStopped,
}

/// One round for each name at a time: the first command stamps until it is ended, the second once.
fn compare(fault: Fault, ignores_term: bool) {
    let (server, mut left) = (Server::start(), rounds());
    while left > 0 {
        let now = left.min(10);
        together(&server, fault, ignores_term, left, now);
        left -= now;
    }
}

fn together(server: &Server, fault: Fault, ignores_term: bool, from: usize, count: usize) {
    let mut pairs = Vec::new();
    for at in 0..count {
        let name = format!("round-{from}-{at}");
        let (first_file, second_file) =
            (server.path(&format!("{name}.1")), server.path(&format!("{name}.2")));
        // The second is not struck, and has to keep its lock however busy the machine is.
        let arguments = |lease| ["run", "-q", "--lease", lease, &name];
        let stamper = Stamper { file: &first_file, ignores_term, once: false };
        let mut first = Run::start(stamper.under(&mut server.connected(&arguments(LEASE))));
        eventually("the first command runs", || {
            assert_eq!(first.ended(), None, "the first has ended before it stamped");
            !stamps(&first_file).is_empty()
        });
        let stamper = Stamper { file: &second_file, ignores_term: false, once: true };
        let second = Run::start(stamper.under(&mut server.connected(&arguments("30s"))));
        // One that still connects when the server stops ends with 69.
        let line = format!("leasehold_lock_line:{{{name}}}");
        eventually("the second waits", || server.ask(&["ZCARD", &line]).starts_with(":1"));
        pairs.push((first, second, first_file, second_file));
    }
    match fault {
        Fault::SupervisorStopped => pairs.iter().for_each(|pair| signal(pair.0.pid(), Signal::STOP)),
        Fault::SupervisorKilled => pairs.iter().for_each(|pair| signal(pair.0.pid(), Signal::KILL)),
        Fault::BothStopped | Fault::HelperStoppedAndSupervisorKilled => {
            let then = if fault == Fault::BothStopped { Signal::STOP } else { Signal::KILL };
            for (first, ..) in &pairs {
                let helper = children(first.pid())[0];
                // The supervisor first: running, it would continue the helper.
                signal(first.pid(), Signal::STOP);
                signal(helper, Signal::STOP);
                signal(first.pid(), then);
            }
        }
        Fault::ServerStopped => {
            signal(server.pid(), Signal::STOP);
            let end = now() + LEASE_NANOS + LEASE_NANOS / 2;
            while now() < end {
                pause(20);
            }
            signal(server.pid(), Signal::CONT);
        }
    }
    for (mut first, mut second, first_file, second_file) in pairs {
        assert_eq!(second.wait().code(), Some(0));
        let start = stamps(&second_file)[0];
        let last = *stamps(&first_file).last().unwrap();
        assert!(last < start, "{} ns after the second's start", last - start);
        if matches!(fault, Fault::SupervisorStopped | Fault::BothStopped) {
            signal(first.pid(), Signal::CONT);
        }
        let code = first.wait().code();
        let is_killed = matches!(fault, Fault::SupervisorKilled | Fault::HelperStoppedAndSupervisorKilled);
        let expected = if is_killed { None } else { Some(79) };
        assert_eq!(code, expected);
        assert_eq!(*stamps(&first_file).last().unwrap(), last, "it wrote on");
    }
    eventually("nothing is left in the store", || server.keys().is_empty());
}

#[test]
fn when_the_supervisor_is_stopped() {
    compare(Fault::SupervisorStopped, false);
}

#[test]
fn when_the_supervisor_is_killed() {
    compare(Fault::SupervisorKilled, false);
}

#[test]
fn when_supervisor_and_helper_are_stopped() {
    compare(Fault::BothStopped, true);
}

#[test]
fn when_the_helper_is_stopped_and_the_supervisor_killed() {
    compare(Fault::HelperStoppedAndSupervisorKilled, true);
}

/// Not `exe`, by which it is started.
#[test]
fn the_helper_has_the_programs_name_in_lists_of_processes() {
    let server = Server::start();
    let run = Run::start(&mut server.leasehold(&["run", "-q", "any", "--", "sleep", "60"]));
    let helper = || children(run.pid()).first().copied();
    eventually("the command runs", || helper().is_some_and(|helper| !children(helper).is_empty()));
    let name = std::fs::read_to_string(format!("/proc/{}/comm", helper().unwrap())).unwrap();
    assert_eq!(name, "leasehold\n");
}

#[test]
fn when_the_server_is_stopped() {
    compare(Fault::ServerStopped, false);
}

#[test]
fn when_the_supervisor_is_stopped_and_the_command_ignores_term() {
    compare(Fault::SupervisorStopped, true);
}

#[test]
fn when_the_supervisor_is_killed_and_the_command_ignores_term() {
    compare(Fault::SupervisorKilled, true);
}

#[test]
fn when_the_server_is_stopped_and_the_command_ignores_term() {
    compare(Fault::ServerStopped, true);
}

/// A server that does not keep the lock can grant it to another at once. The command is killed with the
/// renewal that finds out, which is a third of the lease later at most, and never waits for a grace.
///
/// Only that ends it so soon: the window goes on for two thirds of the lease at least, less a margin of 1 s
/// and the grace.
#[test]
fn a_command_whose_lock_is_deleted_is_killed_by_the_next_renewal() {
    const LEASE: &str = "15s";
    const UNNOTICED: u64 = 8_500_000_000;
    // A third of the lease until a renewal finds out, and as much as a busy machine may need.
    const TOGETHER: u64 = 5_000_000_000 + 3_000_000_000;
    let (server, all) = (Server::start(), (0..rounds()).collect::<Vec<_>>());
    for batch in all.chunks(10) {
        thread::scope(|scope| {
            for at in batch {
                let server = &server;
                scope.spawn(move || {
                    let name = format!("deleted-{at}");
                    let (file, next_file) = (server.path(&name), server.path(&format!("{name}.2")));
                    let stamper = Stamper { file: &file, ignores_term: at % 2 == 0, once: false };
                    let arguments = ["run", "-q", "--lease", LEASE, "--kill-grace", "100ms", &name];
                    let mut run = Run::start(stamper.under(&mut server.leasehold(&arguments)));
                    eventually("the command runs", || !stamps(&file).is_empty());
                    // It is granted the lock as soon as it asks, which no client can keep the server from.
                    let stamper = Stamper { file: &next_file, ignores_term: false, once: true };
                    let mut next = Run::start(stamper.under(&mut server.leasehold(&arguments)));
                    let line = format!("leasehold_lock_line:{{{name}}}");
                    eventually("the second waits", || server.ask(&["ZCARD", &line]).starts_with(":1"));
                    let deleted_at = now();
                    assert!(server.ask(&["DEL", &name]).starts_with(":1"));
                    assert_eq!(run.wait().code(), Some(79));
                    let last = *stamps(&file).last().unwrap();
                    assert!(last < deleted_at + UNNOTICED, "{} ns after the deletion", last - deleted_at);
                    assert_eq!(next.wait().code(), Some(0));
                    let began = stamps(&next_file)[0];
                    let together = last.saturating_sub(began);
                    assert!(together < TOGETHER, "both were running for {together} ns");
                });
            }
        });
    }
}

/// TERM first, and KILL when the grace is over: for the longest hold, and for a store that is away.
#[test]
fn a_command_has_term_and_its_grace_before_it_is_killed() {
    // Half of the grace is for a machine that is busy.
    const HALF_OF_GRACE: u64 = 1_000_000_000;
    const MOST: u64 = 6_000_000_000;
    thread::scope(|scope| {
        for (how, code) in [("--max-hold", 124), ("--lease", 79)] {
            scope.spawn(move || {
                let server = Server::start();
                let file = server.path("stamps");
                let stamper = Stamper { file: &file, ignores_term: true, once: false };
                let arguments = ["run", "-q", how, "6s", "--kill-grace", "2s", "graced"];
                let before = now();
                let mut run = Run::start(stamper.under(&mut server.leasehold(&arguments)));
                eventually("the command runs", || !stamps(&file).is_empty());
                let stopped_at = now();
                if how == "--lease" {
                    signal(server.pid(), Signal::STOP);
                }
                let ended = run.wait().code();
                signal(server.pid(), Signal::CONT);
                assert_eq!(ended, Some(code), "{how}");
                let (all, term) = (stamps(&file), stamps(&file.with_extension("term")));
                let (last, term) = (*all.last().unwrap(), *term.first().expect("it had TERM"));
                assert!(last > term + HALF_OF_GRACE, "{how}: killed {} ns after TERM", last - term);
                let begun = if how == "--lease" { stopped_at } else { before };
                let end = if how == "--lease" { begun } else { all[0] } + MOST;
                assert!(last < end, "{how}: it lived {} ns too long", last - end);
                assert!(begun < term, "{how}");
            });
        }
    });
}
