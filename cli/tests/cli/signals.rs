//! Signals and stops while a run waits or its command runs. The *helper* is the process between the run and
//! its command.

use rustix::process::Signal;

use crate::world::{Run, Server, children, container, ends, eventually, is_dead, outcome, signal, stamps};

const SIGNALS: [(Signal, i32); 6] = [
    (Signal::INT, 2),
    (Signal::TERM, 15),
    (Signal::HUP, 1),
    (Signal::QUIT, 3),
    (Signal::USR1, 10),
    (Signal::USR2, 12),
];

#[test]
fn a_signal_ends_the_wait_without_leftovers() {
    // Options of `run`, a Redis command that counts the waiters, and its key. For "" instead of a command,
    // the test counts the subscribers of the channel with the key's name.
    let kinds: [(&[&str], &str, &str); 4] = [
        (&["--fair"], "LLEN", "redisson_lock_queue:{busy}"),
        (&[], "ZCARD", "leasehold_lock_queue:{busy}"),
        (&["-s"], "", "redisson_rwlock:{busy}"),
        (&["--permits", "1"], "", "redisson_sc:{busy}"),
    ];
    for (kind, length, queue) in kinds {
        let server = Server::start();
        let waits = |count: &str| {
            let ask: &[&str] =
                if length.is_empty() { &["PUBSUB", "NUMSUB", queue] } else { &[length, queue] };
            server.ask(ask).trim().ends_with(&format!(":{count}"))
        };
        let holding: &[&str] = if kind == ["-s"] { &["-x"] } else { kind };
        let run = |kind: &[&str], command: &[&str]| {
            let arguments = [&["run", "--lease", "5s"], kind, &["busy", "--"], command].concat();
            server.begin(&arguments)
        };
        let mut holder = run(holding, &["sh", "-c", "sleep 60; :"]);
        let is_running =
            || children(holder.pid()).first().is_some_and(|helper| !children(*helper).is_empty());
        eventually("the lock is held", is_running);
        let keys = server.keys();
        for (sent, number) in SIGNALS {
            let mut waiter = run(kind, &["true"]);
            eventually(&format!("the waiter waits {kind:?}"), || waits("1"));
            signal(waiter.pid(), sent);
            assert_eq!(waiter.wait().code(), Some(128 + number), "{kind:?}");
            eventually("no waiter is left", || waits("0"));
            assert_eq!(server.keys(), keys, "{kind:?}");
        }
        assert_eq!(holder.terminate(), Some(128 + 15));
        let left: &[&str] = if kind.contains(&"--permits") { &["busy"] } else { &[] };
        assert_eq!(server.keys(), left, "{kind:?}");
    }
}

#[test]
fn a_signal_reaches_the_whole_group_of_the_command() {
    let server = Server::start();
    for (sent, number) in SIGNALS {
        let mut run = server.begin(&["run", "-v", "passed", "--", "sh", "-c", "sleep 60; :"]);
        let group = || children(run.pid()).first().and_then(|helper| children(*helper).first().copied());
        // The test waits for the exec, because an interrupt between a shell's fork and exec is lost.
        let is_sleep = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
        };
        eventually("the command runs", || {
            group().is_some_and(|shell| children(shell).first().is_some_and(is_sleep))
        });
        let sleeping = children(group().unwrap())[0];
        signal(run.pid(), sent);
        assert_eq!(run.wait().code(), Some(128 + number));
        eventually("the group is dead", || is_dead(sleeping));
        assert_eq!(server.keys(), Vec::<String>::new());
    }
}

/// The signal comes once, and before the command has finished its work.
#[test]
fn a_command_gets_the_on_contended_signal_when_others_wait() {
    let server = Server::start();
    let file = server.path("said");
    let script = "trap 'echo asked >> \"$0\"; asked=1' \"$LEASEHOLD_CONTENDED_BY\"; echo \"$LEASEHOLD_CONTENDED_BY\" > \"$0\"; \
                  while [ -z \"$asked\" ]; do sleep 0.05; done; \
                  for part in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 0.1; done; exit 7";
    let mut run = server.leasehold(&["run", "--on-contended", "sigusr1", "long", "--", "bash", "-c", script]);
    let mut run = Run::start(run.arg(&file));
    eventually("the command runs", || file.exists());
    let mut waiter = server.begin(&["run", "long", "--", "true"]);
    assert_eq!(run.wait().code(), Some(7));
    assert_eq!(waiter.wait().code(), Some(0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "USR1\nasked\n");
    let inner = ["run", "inner", "--", "sh", "-c", "exit ${LEASEHOLD_CONTENDED_BY:-5}"];
    let mut inner = server.leasehold(&inner);
    ends(inner.env("LEASEHOLD_CONTENDED_BY", "6"), 5, "");
}

#[test]
fn run_exits_with_64_if_on_contended_cannot_work() {
    let server = Server::start();
    server.ends(&["run", "--on-contended", "NONE", "name", "--", "true"], 64, "");
    let mut run = server.leasehold(&["run", "--on-contended", "USR1", "name", "--", "true"]);
    let url = format!("sqlite://{}", server.path("locks.db").display());
    ends(run.env("LEASEHOLD_URL", url).env("LEASEHOLD_CREATE_SCHEMA", "yes"), 64, "--on-contended");
}

#[test]
fn a_signal_ends_a_run_at_any_moment() {
    let server = Server::start();
    for at in 0..60 {
        let mut run = server.begin(&["run", "any", "--", "sleep", "120"]);
        // Before the program has several threads it catches no signal, and TERM would give no exit code.
        let threads = || std::fs::read_dir(format!("/proc/{}/task", run.pid())).map_or(0, Iterator::count);
        eventually("the program has threads", || threads() > 1);
        crate::world::pause(at / 2);
        assert_eq!(run.terminate(), Some(128 + 15), "after {} ms", at / 2);
        assert_eq!(server.keys(), Vec::<String>::new());
    }
}

#[test]
fn a_command_that_catches_term_sets_the_exit_code() {
    let server = Server::start();
    let script = "trap 'exit 7' TERM; echo 1 > \"$0\"; while :; do sleep 0.01; done";
    let file = server.path("ready");
    let mut run = server.leasehold(&["run", "caught", "--", "sh", "-c", script]);
    let mut run = Run::start(run.arg(&file));
    eventually("the command runs", || !stamps(&file).is_empty());
    assert_eq!(run.terminate(), Some(7));
}

#[test]
fn a_signal_ignored_before_the_start_stays_ignored() {
    let server = Server::start();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let mut shell = std::process::Command::new("sh");
    let script =
        format!("trap '' HUP; exec {program} run ignored -- sh -c 'kill -HUP $$; kill -HUP $PPID; exit 5'");
    shell.args(["-c", &script]).env("LEASEHOLD_URL", server.url());
    assert_eq!(outcome(&mut shell).0, 5);
}

#[test]
fn without_job_control_run_resumes_a_stopped_command() {
    let server = Server::start();
    let (code, _) = server.outcome(&["run", "stopped", "--", "sh", "-c", "kill -TSTP $$; exit 4"]);
    assert_eq!(code, 4);
}

/// In a container, a session and a group that began outside read as 0, which must not look like job control.
#[test]
fn in_a_container_run_resumes_a_stopped_command() {
    let server = Server::start();
    let Some(mut container) = container(&["--mount-proc"]) else { return };
    let script =
        format!("{} run contained -- sh -c 'kill -TSTP $$; exit 4'", env!("CARGO_BIN_EXE_leasehold"));
    ends(container.args(["sh", "-c", &script]).env("LEASEHOLD_URL", server.url()), 4, "");
}

#[test]
fn a_command_ends_when_its_helper_is_killed() {
    let server = Server::start();
    let mut run = server.begin(&["run", "helped", "--", "sleep", "60"]);
    let helper = || children(run.pid()).first().copied();
    eventually("the command runs", || helper().is_some_and(|helper| !children(helper).is_empty()));
    let sleeping = children(helper().unwrap())[0];
    signal(helper().unwrap(), Signal::KILL);
    assert_eq!(run.wait().code(), Some(70));
    eventually("the command is dead", || is_dead(sleeping));
    assert_eq!(server.keys(), Vec::<String>::new());
}

/// The helper may be killed before it reports that the command runs.
#[test]
fn killing_the_helper_at_any_moment_leaves_no_command() {
    let server = Server::start();
    for at in 0..40_u32 {
        let mark = format!("{}", 7_700_000 + at);
        let mut run = server.begin(&["run", "-q", "any", "--", "sleep", &mark]);
        eventually("there is a helper", || !children(run.pid()).is_empty());
        crate::world::pause(u64::from(at) / 4);
        signal(children(run.pid())[0], Signal::KILL);
        assert_eq!(run.wait().code(), Some(70));
        // A dying process, or one before its exec, may show the arguments too. Only the running command is
        // named `sleep` and is in the state S.
        let has_mark = |pid: &std::fs::DirEntry| {
            std::fs::read(pid.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&mark))
        };
        let sleeps = |pid: &std::fs::DirEntry| {
            std::fs::read_to_string(pid.path().join("status"))
                .is_ok_and(|status| status.contains("Name:\tsleep\n") && status.contains("State:\tS"))
        };
        let processes = || std::fs::read_dir("/proc").unwrap().flatten();
        let lives = processes().any(|pid| has_mark(&pid) && sleeps(&pid));
        assert!(!lives, "after {at} quarters of a ms");
        eventually("all that was begun ends", || !processes().any(|pid| has_mark(&pid)));
    }
}

#[test]
fn a_run_that_loses_its_lock_ends_although_its_helper_was_stopped() {
    let server = Server::start();
    let file = server.path("stamps");
    let stamper = crate::world::Stamper { file: &file, ignores_term: true, once: false };
    let mut run = Run::start(stamper.under(&mut server.leasehold(&["run", "-q", "--lease", "2s", "frozen"])));
    eventually("the command runs", || !stamps(&file).is_empty());
    signal(children(run.pid())[0], Signal::STOP);
    signal(server.pid(), Signal::STOP);
    let code = run.wait().code();
    signal(server.pid(), Signal::CONT);
    assert_eq!(code, Some(79));
}

#[test]
fn run_resumes_a_stopped_helper() {
    let server = Server::start();
    let file = server.path("ends");
    let script = "echo > \"$0\"; while [ -e \"$0\" ]; do sleep 0.01; done; exit 5";
    let mut run = server.leasehold(&["run", "-q", "--lease", "2s", "kept", "--", "sh", "-c", script]);
    let mut run = Run::start(run.arg(&file));
    eventually("the command runs", || file.exists());
    let helper = children(run.pid())[0];
    signal(helper, Signal::STOP);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(run.wait().code(), Some(5));
    assert_eq!(server.keys(), Vec::<String>::new());
}
