//! `hold` and `release`: a lock within a script, in real shells.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::world::{Run, Server, Stamper, children, ends, eventually, is_dead, now, outcome, signal, stamps};

const SHELLS: [&str; 2] = ["sh", "bash"];
const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

fn script(server: &Server, shell: &str, text: &str) -> Command {
    let mut command = server.leasehold(&[]);
    let mut script = Command::new("env");
    script.args(["--default-signal", shell, "-c", &format!("leasehold() {{ {PROGRAM} \"$@\"; }}; {text}")]);
    for (name, value) in command.stdin(Stdio::null()).get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    script.env("LEASEHOLD", PROGRAM).env("DIR", server.dir.path()).env("TMPDIR", server.dir.path());
    script.env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
    script
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[track_caller]
fn held(server: &Server, file: &str) -> Value {
    eventually("the lock is held", || text(&server.path(file)).ends_with('\n'));
    serde_json::from_str(&text(&server.path(file))).unwrap()
}

fn pid(held: &Value, which: &str) -> u32 {
    held[which].as_u64().unwrap().try_into().unwrap()
}

fn sockets(server: &Server) -> usize {
    let folders = std::fs::read_dir(server.dir.path()).unwrap().flatten();
    let is_ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("leasehold-");
    let folders = folders.filter(|entry| is_ours(&entry.file_name()));
    folders.flat_map(|folder| std::fs::read_dir(folder.path()).unwrap()).count()
}

struct Ends(u32);

impl Drop for Ends {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kill_process(Pid::from_raw(self.0.try_into().unwrap()).unwrap(), Signal::KILL).ok();
        }
    }
}

#[test]
fn a_lock_is_held_between_hold_and_release() {
    let server = Server::start();
    for shell in SHELLS {
        let text = "hold=$(leasehold hold job) || exit; echo \"fence ${hold##*:}\"; \
                    leasehold run -q -n job -- true; echo $?; \
                    leasehold release \"$hold\"; echo $?; leasehold run -n job -- true; echo $?; \
                    leasehold release -q \"$hold\"; echo $?";
        let (code, said) = outcome(&mut script(&server, shell, text));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!((code, &lines[1..]), (0, &["75", "0", "0", "79"][..]), "{shell}: {said}");
        assert!(lines[0].strip_prefix("fence ").is_some_and(|fence| fence.parse::<u64>().is_ok()), "{said}");
        assert_eq!(server.keys(), Vec::<String>::new());
    }
}

#[test]
fn a_held_lock_is_released_however_its_shell_ends() {
    let server = Server::start();
    for shell in SHELLS {
        for end in ["exit 3", "kill -KILL $$", "kill -TERM $$; sleep 60", "exec sleep 0"] {
            let text = format!(
                "hold=$(leasehold hold job) || exit; leasehold run -q -n job -- true; [ $? = 75 ] || exit 9; {end}"
            );
            let mut shell = Run::start(&mut script(&server, shell, &text));
            assert_ne!(shell.wait().code(), Some(9), "{end}: the lock was not held");
            let begun = now();
            eventually("the lock is released", || server.keys().is_empty());
            assert!(now() - begun < 20_000_000_000, "only the end of the lease released the lock: {end}");
            eventually("the hold's socket is removed", || sockets(&server) == 0);
        }
    }
}

#[test]
fn hold_in_any_command_substitution_keeps_the_lock_for_the_shell() {
    let server = Server::start();
    for shell in SHELLS {
        for (at, form) in [
            "hold=$(leasehold --format json hold job)",
            "hold=$(leasehold --format json hold job || exit 9; true)",
            "hold=$(leasehold --format json hold job | cat)",
            "hold=`leasehold --format json hold job`",
            "hold=$(\"$LEASEHOLD\" --format json hold job)",
            "leasehold --format json hold job > \"$DIR/here\"; hold=$(cat \"$DIR/here\")",
            "hold=$(\"$LEASEHOLD\" --format json hold --pid $$ job)",
        ]
        .into_iter()
        .enumerate()
        {
            let text = format!(
                "{form}; echo \"$hold\"; echo $$; sleep 0.1; leasehold run -q -n job -- true; echo $?"
            );
            let (_, said) = outcome(&mut script(&server, shell, &text.replace("job", &format!("job{at}"))));
            let lines: Vec<&str> = said.lines().collect();
            let held: Value = serde_json::from_str(lines[0]).unwrap_or_else(|_| panic!("{form}: {said}"));
            assert_eq!(held["pid"].to_string(), lines[1], "{shell}: {form}");
            assert_eq!(lines[2], "75", "{shell}: {form}: it is held still");
        }
    }
}

#[test]
fn hold_started_through_another_program_needs_the_pid_option() {
    let server = Server::start();
    let text = "hold=$(timeout 60 \"$LEASEHOLD\" hold job); echo $?; timeout 60 \"$LEASEHOLD\" hold --pid $$ job >\"$DIR/hold\" && \
                leasehold run -q -n job -- true; echo $?";
    let (_, said) = outcome(&mut script(&server, "bash", text));
    assert!(said.contains("--pid $$"), "{said}");
    let codes: Vec<&str> = said.lines().filter(|line| !line.starts_with("leasehold")).collect();
    assert_eq!(codes, ["64", "75"], "{said}");
}

#[test]
fn no_process_of_hold_keeps_a_pipe_of_the_shell() {
    let server = Server::start();
    let mut other = Command::new("sleep").arg("40").spawn().unwrap();
    let text = format!("exec 7>&1; hold=$(leasehold -v hold --pid {} job 2>&1) && echo held", other.id());
    let (code, said) = outcome(&mut script(&server, "bash", &text));
    let is_held = other.try_wait().unwrap().is_none();
    assert!(is_held, "the output stayed open while the lock was held");
    assert_eq!((code, said.trim(), server.keys().len()), (0, "held", 1));
    other.kill().unwrap();
    other.wait().unwrap();
    eventually("the lock is released", || server.keys().is_empty());
}

#[test]
fn a_lost_lock_signals_the_shell_and_its_children_once() {
    let server = Server::start();
    let text = "trap 'cut -d \" \" -f1 /proc/uptime >>\"$DIR/told\"' USR1; leasehold --format json hold --signal USR1 --lease 12s job >\"$DIR/held\"; \
                sleep 60 & echo $! >\"$DIR/child\"; echo begun >\"$DIR/begun\"; \
                while ! [ -s \"$DIR/told\" ]; do sleep 0.05; done; wait; \
                leasehold release \"$(sed 's/.*\"handle\":\"\\([^\"]*\\)\".*/\\1/' \"$DIR/held\")\"; exit $?";
    let mut shell = Run::start(&mut script(&server, "bash", text));
    eventually("the script works", || !text_of(&server, "begun").is_empty());
    let held = held(&server, "held");
    server.ask(&["DEL", "job"]);
    let gone = now();
    assert_eq!(shell.wait().code(), Some(79));
    let told: Vec<f64> = text_of(&server, "told").lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    // A renewal after a third of the lease finds the loss, long before the window ends.
    let after = Duration::from_secs_f64(told[0]).saturating_sub(Duration::from_nanos(gone));
    assert!(after < Duration::from_millis(5500), "{after:?}");
    assert!(is_dead(text_of(&server, "child").trim().parse().unwrap()));
    eventually("the background process ends", || is_dead(pid(&held, "keeper")));
}

fn text_of(server: &Server, file: &str) -> String {
    text(&server.path(file))
}

#[test]
fn the_shell_of_a_lost_hold_dies_before_the_next_command_begins() {
    std::thread::scope(|scope| {
        for case in ["keeper stopped", "keeper killed", "server stopped"] {
            scope.spawn(move || is_dead_before_the_next(case));
        }
    });
}

/// Checks that a shell's command is dead before another client is granted the lock. With a lease of 6 s the
/// shell is signalled a second before the lease ends, enough time even on a busy machine.
fn is_dead_before_the_next(case: &str) {
    let server = Server::start();
    let stamper = Stamper { file: &server.path("first"), ignores_term: false, once: false };
    let mut command = script(&server, "bash", "");
    let words = stamper.words(&mut command);
    let words: Vec<String> = words.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let text = format!(
        "leasehold --format json hold --lease 6s job >\"$DIR/held\" || exit; {} >/dev/null; exit 0",
        words.join(" ")
    );
    let mut command = script(&server, "bash", &text);
    stamper.words(&mut command);
    let mut shell = Run::start(&mut command);
    let held = held(&server, "held");
    let _ends = Ends(pid(&held, "keeper"));
    eventually("the script works", || !stamps(&server.path("first")).is_empty());
    let next = Stamper { file: &server.path("next"), ignores_term: false, once: true };
    let mut run = server.leasehold(&["run", "job"]);
    let mut run = Run::start(next.under(&mut run));
    match case {
        "keeper stopped" => signal(pid(&held, "keeper"), Signal::STOP),
        "keeper killed" => signal(pid(&held, "keeper"), Signal::KILL),
        _ => signal(server.pid(), Signal::STOP),
    }
    assert_eq!(shell.wait().code(), None, "{case}: a signal ended the shell");
    if case == "server stopped" {
        signal(server.pid(), Signal::CONT);
    }
    assert!(run.wait().success());
    let last = *stamps(&server.path("first")).last().unwrap();
    assert!(last < stamps(&server.path("next"))[0], "{case}: both scripts worked at one time");
    if case == "keeper stopped" {
        signal(pid(&held, "keeper"), Signal::CONT);
    }
    eventually(&format!("the background process ends: {case}"), || is_dead(pid(&held, "keeper")));
    eventually(&format!("the hold's socket is removed: {case}"), || sockets(&server) == 0);
}

#[test]
fn hold_renews_its_lock_beyond_the_first_lease() {
    let server = Server::start();
    let text =
        "hold=$(leasehold hold --lease 3s job) && sleep 4 && leasehold release \"$hold\" && echo whole";
    assert_eq!(outcome(&mut script(&server, "bash", text)), (0, "whole\n".to_owned()));
}

#[test]
fn the_process_that_signals_the_shell_is_replaced_if_killed() {
    let server = Server::start();
    let text = "leasehold --format json hold --lease 3s job >\"$DIR/held\" && sleep 60";
    let mut shell = Run::start(&mut script(&server, "bash", text));
    let held = held(&server, "held");
    let keeper = pid(&held, "keeper");
    let first = children(keeper);
    assert_eq!(first.len(), 1);
    signal(first[0], Signal::KILL);
    // The keeper is blocked until its new child runs `leasehold`. Stopping the child earlier would keep the
    // keeper blocked, so the test waits for that moment.
    eventually(
        "another process that can end the shell runs",
        || matches!(children(keeper)[..], [one] if one != first[0] && words(one).starts_with("leasehold lookout")),
    );
    signal(children(keeper)[0], Signal::STOP);
    eventually("the stopped process goes on", || !is_stopped(children(keeper)[0]));
    server.ask(&["DEL", "job"]);
    assert_eq!(shell.wait().code(), None, "a signal ended the shell");
}

fn is_stopped(pid: u32) -> bool {
    text(Path::new(&format!("/proc/{pid}/status"))).contains("State:\tT")
}

#[test]
fn the_background_process_of_hold_survives_term_hup_and_int() {
    let server = Server::start();
    let text = "leasehold --format json hold job >\"$DIR/held\" && exec sleep 60";
    let shell = Run::start(&mut script(&server, "bash", text));
    let held = held(&server, "held");
    let keeper = pid(&held, "keeper");
    for number in [Signal::TERM, Signal::HUP, Signal::INT] {
        signal(keeper, number);
        // A new lookout that catches no signals so far dies, and is replaced. So `kill_process` may fail.
        for lookout in children(keeper) {
            kill_process(Pid::from_raw(lookout.try_into().unwrap()).unwrap(), number).ok();
        }
    }
    let (code, _) = server.outcome(&["run", "-q", "-w", "1", "job", "--", "true"]);
    assert_eq!((code, is_dead(keeper)), (75, false));
    drop(shell);
    eventually("the lock is released", || server.keys().is_empty());
    eventually("the background process ends", || is_dead(keeper));
}

#[test]
fn the_wait_for_the_lock_ends_when_hold_or_the_shell_dies() {
    let server = Server::start();
    let mut first = server.begin(&["run", "job", "--", "sleep", "60"]);
    eventually("the first run holds the lock", || !server.keys().is_empty());
    for whose in ["hold", "shell"] {
        let text = "sleep 0.01; hold=$(\"$LEASEHOLD\" -q hold job); echo $? >\"$DIR/code\"; sleep 60";
        let mut shell = Run::start(&mut script(&server, "bash", text));
        let keeper = || {
            let holds =
                descendants(shell.pid()).into_iter().find(|pid| words(*pid).starts_with("leasehold keep"))?;
            Some(holds)
        };
        eventually("the hold waits", || {
            keeper().is_some() && server.ask(&["CLIENT", "LIST"]).contains("cmd=subscribe")
        });
        let keeper = keeper().unwrap();
        let hold = descendants(shell.pid()).into_iter().find(|pid| words(*pid).starts_with(PROGRAM)).unwrap();
        if whose == "hold" {
            signal(hold, Signal::TERM);
            eventually("the exit code is the signal's", || text_of(&server, "code") == "143\n");
        } else {
            drop(shell.0.kill());
            shell.wait();
        }
        eventually("the background process ends", || is_dead(keeper));
    }
    first.terminate();
    assert_eq!(server.keys(), Vec::<String>::new());
}

fn descendants(of: u32) -> Vec<u32> {
    let below = children(of);
    let deeper: Vec<u32> = below.iter().flat_map(|pid| descendants(*pid)).collect();
    below.into_iter().chain(deeper).collect()
}

fn words(pid: u32) -> String {
    text(Path::new(&format!("/proc/{pid}/cmdline"))).replace('\0', " ")
}

#[test]
fn hold_and_release_exit_with_their_documented_codes() {
    let server = Server::start();
    let code = |text: &str| {
        let (code, said) = outcome(&mut script(&server, "sh", &format!("{text} >\"$DIR/out\"; exit $?")));
        (code, said)
    };
    let _held = server.begin(&["run", "busy", "--", "sleep", "60"]);
    eventually("the lock is held", || !server.keys().is_empty());
    for (text, wanted) in [
        ("leasehold hold -n busy", 75),
        ("leasehold hold -w 100ms -E 7 busy", 7),
        ("LEASEHOLD_URL=redis://127.0.0.1:1 leasehold hold job", 69),
        ("leasehold hold --lease 10ms job", 64),
        ("leasehold hold --pid 2000000000 job", 64),
        ("leasehold hold --signal NONE job", 64),
        ("leasehold release job", 64),
        ("leasehold release /nothing/is/here:7", 79),
        ("(leasehold hold job >/dev/full)", 70),
    ] {
        let (code, said) = code(text);
        assert_eq!(code, wanted, "{text}: {said}");
        assert!(said.starts_with("leasehold: ") || said.contains("error: "), "{text}: {said}");
    }
    // The folder for sockets in TMPDIR is open to others, as if another user's, so `hold` uses one in /run.
    let taken = "mkdir -m 777 \"$DIR/x\" && chmod 777 \"$DIR/x\" && mkdir -m 755 \"$DIR/x/leasehold-$(id -u)\" && \
          hold=$(TMPDIR=\"$DIR/x\" leasehold hold -q job) && leasehold release \"$hold\" && echo \"$hold\"";
    let (code, said) = code(taken);
    if rustix::process::getuid().is_root() {
        let handle = text(&server.path("out"));
        assert!(code == 0 && handle.starts_with("/run/leasehold/"), "{code}: {said} {handle}");
    } else {
        assert!([0, 70].contains(&code), "{code}: {said}");
    }
    eventually("a handle that nobody has is no hold", || server.keys().len() == 1);
}

#[test]
fn each_kind_of_lock_can_be_held() {
    let server = Server::start();
    for (options, beside) in [("-s", "-x"), ("-x", "-s"), ("--fair", "-n"), ("--permits 1", "--permits 1")] {
        let text = format!(
            "hold=$(leasehold hold {options} job) || exit; leasehold run -q -n {} job -- true; echo $?; \
             leasehold release \"$hold\" || exit; leasehold run -n {} job -- true; echo $?; leasehold -q permits --remove job",
            beside.replace("-n", "--fair"),
            beside.replace("-n", "--fair"),
        );
        let (_, said) = outcome(&mut script(&server, "sh", &text));
        assert_eq!(said.lines().take(2).collect::<Vec<_>>(), ["75", "0"], "{options}: {said}");
    }
    let text = "export LEASEHOLD_URL=sqlite://$DIR/locks.db; hold=$(leasehold hold job) || exit; leasehold run -q -n job -- true; \
                echo $?; leasehold release \"$hold\"; echo $?";
    let (_, said) = outcome(&mut script(&server, "sh", text));
    assert_eq!(said, "75\n0\n");
}

#[test]
fn hold_without_a_socket_fails_and_does_not_signal_the_shell() {
    let server = Server::start();
    // The path of this folder is longer than the path of a socket may be.
    let deep = server.path(&"d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    for shell in SHELLS {
        let text = "leasehold hold --pid $$ job; echo \"code $?\"; sleep 0.5; echo on";
        let mut command = script(&server, shell, text);
        let said = ends(command.env("TMPDIR", &deep), 0, "");
        assert!(said.starts_with("code 70\non\n"), "{shell}: {said}");
        assert_eq!(server.keys(), Vec::<String>::new(), "{shell}: the lock is free");
    }
}

#[test]
fn a_hold_waits_for_a_store_that_restarts() {
    let mut server = Server::start();
    server.stop();
    let mut run = script(
        &server,
        "sh",
        "hold=$(leasehold hold -w 60 --pid $$ held 2>$DIR/errors) || exit 9; leasehold release $hold",
    );
    let mut run = Run(run.env("LEASEHOLD_RETRY_TIMEOUT", "1ms").spawn().unwrap());
    eventually("the hold waits", || text(&server.path("errors")).contains("the store is waited for"));
    server.start_again();
    assert_eq!(run.wait().code(), Some(0), "{}", text(&server.path("errors")));
}
