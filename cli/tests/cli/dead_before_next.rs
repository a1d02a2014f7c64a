//! A command and all its processes are dead before another client is granted the lock, whatever happens to
//! the supervisor (the process `leasehold run`, which holds the lock) and to the helper (its child, which
//! starts the command), and whatever group, session or parent the processes have.

use std::ffi::OsString;
use std::process::Command;
use std::thread;

use rustix::process::Signal;

use crate::world::{Run, Server, Stamper, children, eventually, now, pause, signal, stamps};

fn rounds() -> usize {
    std::env::var("LEASEHOLD_CLI_ROUNDS").map_or(5, |rounds| rounds.parse().unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Child {
    Itself,
    IgnoresTerm,
    /// The command runs in its own session, and its parent waits for its end.
    Setsid,
    Su,
    Script,
    Nohup,
    DoubleFork,
    /// The command becomes a daemon: it has its own session and another folder, forks once more, closes
    /// inherited files, and ignores HUP.
    Daemon,
}

pub(crate) const DESCENDANTS: [Child; 6] =
    [Child::Setsid, Child::Su, Child::Script, Child::Nohup, Child::DoubleFork, Child::Daemon];

impl Child {
    fn words(self, work: &[OsString]) -> Vec<OsString> {
        let before: &[&str] = match self {
            Child::Itself | Child::IgnoresTerm => &[],
            Child::Setsid => &["setsid", "--wait"],
            Child::Nohup => &["nohup"],
            Child::DoubleFork => &["sh", "-c", "(setsid \"$@\" &); exec sleep 600", "sh"],
            Child::Daemon => &[
                "sh",
                "-c",
                "setsid sh -c 'cd /; trap \"\" HUP; \"$@\" <&- & ' sh \"$@\" >&- 2>&- & exec sleep 600",
                "sh",
            ],
            Child::Su | Child::Script => {
                let line = work.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ");
                let words: &[&str] = match self {
                    Child::Su => &["su", "root", "--command", &line],
                    _ => &["script", "--quiet", "--return", "--command", &line, "/dev/null"],
                };
                return words.iter().map(OsString::from).collect();
            }
        };
        before.iter().map(OsString::from).chain(work.iter().cloned()).collect()
    }

    pub(crate) fn under<'c>(self, stamper: &Stamper<'_>, run: &'c mut Command) -> &'c mut Command {
        let words = self.words(&stamper.words(run));
        run.arg("--").args(words)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    SupervisorStopped,
    SupervisorKilled,
    BothStopped,
    HelperStoppedAndSupervisorKilled,
    ServerStopped,
    KeyDeleted,
}

/// The lease is so long that the test passes even if a busy machine stalls for half of it.
const LEASE_NANOS: u64 = 6_000_000_000;
/// How long the command may run after `KeyDeleted`, where the lease is 15 s. The next renewal, within 5 s (a
/// third), finds the loss. Without it the command would run for 9 s at least, almost until the window ends.
const UNNOTICED: u64 = 8_500_000_000;
const TOGETHER: usize = 14;

/// Starts pairs of commands: the first writes time stamps until it is ended, the second waits and writes one.
/// The first must be dead before the second is granted the lock. After `KeyDeleted`: soon after the deletion.
fn compare(fault: Fault, kinds: &[Child]) {
    let server = Server::start();
    let all: Vec<(usize, Child)> =
        (0..rounds()).flat_map(|round| kinds.iter().map(move |child| (round, *child))).collect();
    for batch in all.chunks(TOGETHER) {
        together(&server, fault, batch);
    }
    eventually("nothing is left in the store", || server.keys().is_empty());
}

fn together(server: &Server, fault: Fault, batch: &[(usize, Child)]) {
    let mut pairs = Vec::new();
    for (round, child) in batch {
        let name = format!("{child:?}-{round}");
        let (first_file, second_file) =
            (server.path(&format!("{name}.1")), server.path(&format!("{name}.2")));
        let terms: &[&str] = match fault {
            Fault::KeyDeleted => &["run", "-q", "--lease", "15s", "--kill-grace", "100ms"],
            _ => &["run", "-q", "--lease", "6s"],
        };
        let ignores_term = *child == Child::IgnoresTerm;
        let stamper = Stamper { file: &first_file, ignores_term, once: false };
        let mut first = Run::start(child.under(&stamper, &mut server.connected(&[terms, &[&name]].concat())));
        eventually(&format!("the first command of {name} runs"), || {
            assert_eq!(first.ended(), None, "the first command of {name} ended before it wrote a time");
            !stamps(&first_file).is_empty()
        });
        // A run that meets a stopped server exits with code 69, so the second run connects before the fault.
        let stamper = Stamper { file: &second_file, ignores_term: false, once: true };
        let second =
            Run::start(stamper.under(&mut server.connected(&["run", "-q", "--lease", "30s", &name])));
        eventually("the second waits", || server.queue_length(&name) == 1);
        pairs.push((name, first, second, first_file, second_file));
    }
    let struck_at = now();
    for (name, first, ..) in &pairs {
        match fault {
            Fault::SupervisorStopped => signal(first.pid(), Signal::STOP),
            Fault::SupervisorKilled => signal(first.pid(), Signal::KILL),
            Fault::BothStopped | Fault::HelperStoppedAndSupervisorKilled => {
                let helper = children(first.pid())[0];
                // The supervisor is stopped first, because a running supervisor would resume the helper.
                signal(first.pid(), Signal::STOP);
                signal(helper, Signal::STOP);
                if fault == Fault::HelperStoppedAndSupervisorKilled {
                    signal(first.pid(), Signal::KILL);
                }
            }
            Fault::KeyDeleted => assert!(server.ask(&["DEL", name]).starts_with(":1")),
            Fault::ServerStopped => {}
        }
    }
    if fault == Fault::ServerStopped {
        signal(server.pid(), Signal::STOP);
        while now() < struck_at + LEASE_NANOS + LEASE_NANOS / 2 {
            pause(20);
        }
        signal(server.pid(), Signal::CONT);
    }
    for (name, mut first, mut second, first_file, second_file) in pairs {
        assert_eq!(second.wait().code(), Some(0), "{name}");
        let (start, mut last) = (stamps(&second_file)[0], *stamps(&first_file).last().unwrap());
        // A lock whose key was deleted is granted at once, so the two commands may overlap.
        if fault != Fault::KeyDeleted {
            assert!(last < start, "{name}: {} ns after the second's start", last - start);
        }
        if matches!(fault, Fault::SupervisorStopped | Fault::BothStopped) {
            signal(first.pid(), Signal::CONT);
        }
        let is_killed = matches!(fault, Fault::SupervisorKilled | Fault::HelperStoppedAndSupervisorKilled);
        assert_eq!(first.wait().code(), if is_killed { None } else { Some(79) }, "{name}");
        if fault == Fault::KeyDeleted {
            last = *stamps(&first_file).last().unwrap();
            assert!(last < struck_at + UNNOTICED, "{name}: {} ns after the deletion", last - struck_at);
        }
        pause(20);
        assert_eq!(*stamps(&first_file).last().unwrap(), last, "{name}: the command wrote again");
    }
}

fn compare_all(fault: Fault) {
    compare(fault, &[&[Child::Itself, Child::IgnoresTerm][..], &DESCENDANTS].concat());
}

#[test]
fn command_dies_before_the_next_command_begins_if_leasehold_is_stopped() {
    compare_all(Fault::SupervisorStopped);
}

#[test]
fn command_dies_before_the_next_command_begins_if_leasehold_is_killed() {
    compare_all(Fault::SupervisorKilled);
}

#[test]
fn commands_do_not_overlap_if_supervisor_and_helper_are_stopped() {
    compare(Fault::BothStopped, &[Child::IgnoresTerm]);
}

#[test]
fn commands_do_not_overlap_after_helper_stop_and_supervisor_kill() {
    compare(Fault::HelperStoppedAndSupervisorKilled, &[Child::IgnoresTerm]);
}

#[test]
fn command_dies_before_the_next_command_begins_if_redis_is_stopped() {
    compare_all(Fault::ServerStopped);
}

#[test]
fn command_dies_soon_after_its_lock_is_deleted_in_redis() {
    compare_all(Fault::KeyDeleted);
}

/// The helper is started from a file in /proc named `exe`, but the process list must not show that name.
#[test]
fn the_helper_process_is_named_leasehold() {
    let server = Server::start();
    let run = server.begin(&["run", "-q", "any", "--", "sleep", "60"]);
    let helper = || children(run.pid()).first().copied();
    eventually("the command runs", || helper().is_some_and(|helper| !children(helper).is_empty()));
    let name = std::fs::read_to_string(format!("/proc/{}/comm", helper().unwrap())).unwrap();
    assert_eq!(name, "leasehold\n");
}

#[test]
fn a_command_gets_term_and_grace_before_kill() {
    // Half of the grace period is a margin for busy machines.
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
                let (last, term) = (*all.last().unwrap(), *term.first().expect("the command got SIGTERM"));
                assert!(last > term + HALF_OF_GRACE, "{how}: killed {} ns after TERM", last - term);
                let begun = if how == "--lease" { stopped_at } else { before };
                let end = if how == "--lease" { begun } else { all[0] } + MOST;
                assert!(last < end, "{how}: the command lived {} ns too long", last - end);
                assert!(begun < term, "{how}");
            });
        }
    });
}
