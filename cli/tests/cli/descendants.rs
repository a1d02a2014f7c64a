//! The descendants of a command when the run is told to end, when the *helper* (the process between the run
//! and its command) dies, or when the system hides processes or refuses calls.

use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::process::Signal;

use crate::dead_before_next::{Child, DESCENDANTS};
use crate::world::{
    Run, Server, Stamper, children, container, ends, eventually, is_dead, now, outcome, pause, signal, stamps,
};

/// A Python script that runs a program without the system call pidfd_open (434 on every processor), which
/// older container runtimes refuse.
const REFUSE_PIDFD_OPEN: &str = "import ctypes, os, struct, sys; \
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 434), (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)]; \
    text = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps)); \
    program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(steps), ctypes.addressof(text))); \
    prctl = ctypes.CDLL(None).prctl; \
    assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program) == 0; \
    os.execvp(sys.argv[1], sys.argv[1:])";

#[test]
fn descendants_are_ended_without_pidfd_support() {
    let server = Server::start();
    let file = server.path("filtered");
    let stamper = Stamper { file: &file, ignores_term: false, once: false };
    let mut python = Command::new("python3");
    python.args([
        "-c",
        REFUSE_PIDFD_OPEN,
        env!("CARGO_BIN_EXE_leasehold"),
        "run",
        "-q",
        "--lease",
        "6s",
        "f",
    ]);
    python.env("LEASEHOLD_URL", server.url());
    let mut run = Run::start(Child::Setsid.under(&stamper, &mut python));
    eventually("the work is done", || !stamps(&file).is_empty());
    assert!(server.ask(&["DEL", "f"]).starts_with(":1"));
    assert_eq!(run.wait().code(), Some(79));
    let last = *stamps(&file).last().unwrap();
    pause(50);
    assert_eq!(*stamps(&file).last().unwrap(), last, "the command wrote again");
}

#[test]
fn a_hidden_process_is_not_reported_as_ended() {
    let server = Server::start();
    let raise = server.path("raise");
    // The script copies `setpriv` as a program that makes its user root, like `sudo`. With `hidepid=2` the
    // run cannot see root's processes.
    let script = "set -e; cp \"$(command -v setpriv)\" \"$0\"; chmod 4755 \"$0\"; chmod 755 \"$(dirname \"$0\")\"; \
                  mount -t proc -o hidepid=2 proc /proc; exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
    let mut hidden = Command::new("unshare");
    hidden.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]).arg(&raise);
    let mut trial = Command::new("unshare");
    trial.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]).arg(&raise);
    let become_root = ["--reuid=0", "--regid=0", "--clear-groups"];
    let raised = trial.arg(&raise).args(become_root).args(["id", "-u"]).output();
    if !raised.is_ok_and(|output| output.stdout == b"0\n") {
        crate::world::skipped("this user cannot hide processes, or the folder allows no setuid programs");
        return;
    }
    hidden.args([env!("CARGO_BIN_EXE_leasehold"), "run", "--lease", "3s", "h", "--"]);
    hidden.arg(&raise).args(become_root).args(["sleep", "600"]).env("LEASEHOLD_URL", server.url());
    let deleted = thread::scope(|scope| {
        let run = scope.spawn(|| outcome(&mut hidden));
        eventually("the command runs", || {
            let entries = std::fs::read_dir("/proc").unwrap().flatten();
            let mut lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
            !server.keys().is_empty() && lines.any(|line| line.starts_with(b"sleep\x00600"))
        });
        server.ask(&["DEL", "h"]);
        run.join().unwrap()
    });
    let (code, said) = deleted;
    assert_eq!(code, 81, "{said}");
    assert!(said.contains("could not be ended") && !said.contains("the command was ended"), "{said}");
}

/// A service manager may delegate a control group to a user. Below that group the user may also end the
/// processes of other users.
#[test]
fn a_delegated_cgroup_ends_another_users_process() {
    let server = Server::start();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount =
        mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
    let group = Path::new(mount.unwrap_or("/none")).join(format!("leasehold-test-{}", std::process::id()));
    let script = "set -e; cp \"$(command -v setpriv)\" \"$0\"; chmod 4755 \"$0\"; chmod 755 \"$(dirname \"$0\")\"; \
                  mkdir -p \"$1\"; test -e \"$1/cgroup.kill\"; chown 65534 \"$1\" \"$1/cgroup.procs\"; echo $$ > \"$1/cgroup.procs\"; \
                  shift; exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
    let raise = server.path("raise");
    let in_group = || {
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&raise).arg(&group);
        command
    };
    let become_root = ["--reuid=0", "--regid=0", "--clear-groups"];
    let raised = in_group().arg(&raise).args(become_root).args(["id", "-u"]).output();
    if !raised.is_ok_and(|output| output.stdout == b"0\n") {
        drop(std::fs::remove_dir(&group));
        return crate::world::skipped("this user cannot give another one a control group");
    }
    let file = server.path("pid");
    std::fs::write(&file, "").unwrap();
    let mut run = in_group();
    run.args([env!("CARGO_BIN_EXE_leasehold"), "run", "--lease", "3s", "delegated", "--"]).arg(&raise);
    run.args(become_root).args(["sh", "-c", "echo $$ > \"$0\"; exec sleep 600"]).arg(&file);
    let mut run = Run::start(run.env("LEASEHOLD_URL", server.url()));
    let pid = || std::fs::read_to_string(&file).unwrap().trim().parse::<u32>().ok();
    eventually("the command runs", || pid().is_some());
    server.ask(&["DEL", "delegated"]);
    assert_eq!(run.wait().code(), Some(79));
    assert!(is_dead(pid().unwrap()));
    std::fs::remove_dir(&group).expect("only the run's own group is removed");
}

fn with_a_descendant(server: &Server, name: &str, child: Child, file: &Path) -> (Run, u32) {
    let stamper = Stamper { file, ignores_term: false, once: false };
    let run = Run::start(child.under(&stamper, &mut server.leasehold(&["run", "-q", name])));
    eventually("the work is done", || !stamps(file).is_empty());
    (run, working_on(file))
}

fn working_on(file: &Path) -> u32 {
    let mark = file.to_str().unwrap().to_owned();
    let works = |pid: &u32| {
        let of = |what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        String::from_utf8_lossy(&of("environ")).contains(&mark)
            && String::from_utf8_lossy(&of("cmdline"))
                .starts_with(std::env::current_exe().unwrap().to_str().unwrap())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(works).expect("a process does the work")
}

#[test]
fn descendants_end_when_the_helper_is_killed() {
    let server = Server::start();
    for child in DESCENDANTS {
        let file = server.path(&format!("helped-{child:?}"));
        let (mut run, pid) = with_a_descendant(&server, "helped", child, &file);
        signal(children(run.pid())[0], Signal::KILL);
        assert_eq!(run.wait().code(), Some(70), "{child:?}");
        assert!(is_dead(pid), "{child:?}");
    }
}

#[test]
fn a_terminated_run_leaves_no_descendant_of_its_command() {
    let server = Server::start();
    for child in DESCENDANTS {
        let file = server.path(&format!("asked-{child:?}"));
        let (mut run, pid) = with_a_descendant(&server, "asked", child, &file);
        run.terminate();
        assert!(is_dead(pid), "{child:?}");
        assert_eq!(server.keys(), Vec::<String>::new());
    }
}

/// The helper is stopped for a while, so it may see the command's end before or after the order to end the
/// command.
#[test]
fn descendants_end_with_a_terminated_run_whose_command_ended_first() {
    let server = Server::start();
    for round in 0..16 {
        let file = server.path(&format!("stubborn-{round}"));
        let stamper = Stamper { file: &file, ignores_term: true, once: false };
        let words = ["run", "-q", "--kill-grace", "100ms", "stubborn"];
        let mut run = Run::start(Child::Setsid.under(&stamper, &mut server.leasehold(&words)));
        eventually("the work is done", || !stamps(&file).is_empty());
        let pid = working_on(&file);
        signal(children(run.pid())[0], Signal::STOP);
        run.terminate();
        assert!(is_dead(pid), "{round}");
    }
}

#[test]
fn the_helper_sleeps_while_it_waits_for_descendants() {
    let server = Server::start();
    let file = server.path("slow");
    let stamper = Stamper { file: &file, ignores_term: true, once: false };
    let words = ["run", "-q", "--kill-grace", "2s", "slow"];
    let mut run = Run::start(Child::Setsid.under(&stamper, &mut server.leasehold(&words)));
    eventually("the work is done", || !stamps(&file).is_empty());
    let helper = children(run.pid())[0];
    let (mut used, begun) = (0, now());
    signal(run.pid(), Signal::TERM);
    eventually("the helper ends", || match ticks(helper) {
        Some(ticks) => {
            used = ticks;
            false
        }
        None => true,
    });
    run.wait();
    assert!(now() - begun > 1_000_000_000, "the helper did not wait for the descendant");
    assert!(used < 100, "the helper used {used} ticks of 10 ms");
}

/// The processor time that a process has used, in ticks of 10 ms; `None`: the process has ended.
fn ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
}

#[test]
fn background_processes_outlive_a_command_that_ends_normally() {
    let server = Server::start();
    let file = server.path("left");
    let script = "setsid sleep 600 >/dev/null 2>&1 & echo $! > \"$0\"";
    let mut run = server.leasehold(&["run", "-q", "left", "--", "sh", "-c", script]);
    assert_eq!(outcome(run.arg(&file)).0, 0);
    let pid: u32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    assert!(!is_dead(pid));
    signal(pid, Signal::KILL);
}

/// Some programs start others with SIGCHLD ignored, and then the system reports no child's end.
#[test]
fn a_run_with_sigchld_ignored_ends_with_its_command() {
    let server = Server::start();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let run = |words: &[&str]| {
        let python = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
                      signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1]); \
                      os.execvp(sys.argv[1], sys.argv[1:])";
        let mut command = Command::new("python3");
        command.args(["-c", python, program, "run", "-q", "inherited", "--"]).args(words);
        command.env("LEASEHOLD_URL", server.url());
        command
    };
    thread::scope(|scope| {
        let ended = scope.spawn(|| outcome(&mut run(&["sh", "-c", "exit 5"])).0);
        assert_eq!(ended.join().unwrap(), 5);
    });
    // A shell would reset ignored and blocked signals, so the command is `grep` itself.
    let said = ends(&mut run(&["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"]), 0, "");
    let mask = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{said}"));
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
    };
    let bit = |number: u32| 1_u64 << (number - 1);
    assert_eq!(mask("SigIgn") & bit(17), bit(17), "{said}");
    assert_eq!(mask("SigBlk") & (bit(15) | bit(17) | bit(10)), bit(15) | bit(17) | bit(10), "{said}");
    // A signal that the parent of `leasehold` has blocked still ends the wait for the lock.
    let mut holder = server.begin(&["run", "-q", "inherited", "--", "sleep", "600"]);
    eventually("the lock is held", || !server.keys().is_empty());
    let mut waiting = Run::start(&mut run(&["true"]));
    eventually("the waiter waits", || server.queue_length("inherited") == 1);
    assert_eq!(waiting.terminate(), Some(128 + 15));
    holder.terminate();
}

#[test]
fn run_reaps_orphans_as_the_init_process_of_a_container() {
    let server = Server::start();
    let Some(mut container) = container(&["--mount-proc"]) else { return };
    container.env("LEASEHOLD_URL", server.url());
    // The script starts twenty orphans that end at once, and waits until none of them is a zombie.
    let script = "for i in $(seq 20); do (setsid true &); done; \
                  for i in $(seq 200); do grep -ls '^State:.Z' /proc/[0-9]*/status >/dev/null || exit 7; sleep 0.05; done; \
                  grep -hs '^State' /proc/[0-9]*/status; exit 1";
    container.args([env!("CARGO_BIN_EXE_leasehold"), "run", "-q", "first", "--", "sh", "-c", script]);
    ends(&mut container, 7, "");
}

#[test]
fn a_proc_mount_of_another_container_is_reported() {
    let server = Server::start();
    // The container keeps the outer /proc, in which its own processes have other pids.
    let Some(mut container) = container(&["--mount"]) else { return };
    container.env("LEASEHOLD_URL", server.url());
    container.args([env!("CARGO_BIN_EXE_leasehold"), "run", "hidden", "--", "true"]);
    let said = ends(&mut container, 70, "");
    assert!(said.contains("/proc") && said.contains("mount"), "{said}");
    assert_eq!(server.keys(), Vec::<String>::new());
}

/// The server accepts connections and never answers.
#[test]
fn a_signal_ends_a_run_that_is_still_connecting() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    for (sent, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1), (Signal::QUIT, 3)] {
        let mut run = crate::world::leasehold(&["run", "-q", "hung", "--", "true"]);
        let mut run = Run::start(run.env("LEASEHOLD_URL", &url).env("LEASEHOLD_CONNECT_TIMEOUT", "50s"));
        let (_connection, _) = silent.accept().unwrap();
        let before = now();
        signal(run.pid(), sent);
        assert_eq!(run.wait().code(), Some(128 + number));
        assert!(now() - before < 20_000_000_000, "the signal waited for the connect");
    }
}

/// Where `is_known` is false, the test stops the helper, so that the signal comes after the command's end but
/// before the run notices that end.
#[test]
fn a_signal_ends_an_unanswered_release() {
    let run = &["run", "-q", "--lease", "120s", "hung"][..];
    let once = &["once", "-q", "--at-least", "1ms", "--at-most", "120s", "hung"][..];
    for (words, is_known) in [(run, true), (run, false), (once, true), (once, false)] {
        let server = Server::start();
        let file = server.path("ends");
        let script = "echo > \"$0\"; while [ -e \"$0\" ]; do sleep 0.01; done";
        let mut run = server.leasehold(&[words, &["--", "sh", "-c", script]].concat());
        run.env("LEASEHOLD_COMMAND_TIMEOUT", "40s").env("LEASEHOLD_RETRY_TIMEOUT", "100s");
        let mut run = Run::start(run.arg(&file));
        eventually("the command runs", || file.exists());
        let helper = children(run.pid())[0];
        let command = children(helper)[0];
        signal(server.pid(), Signal::STOP);
        if !is_known {
            signal(helper, Signal::STOP); // the helper resumes by itself
        }
        std::fs::remove_file(&file).unwrap();
        eventually("the command has ended", || {
            if is_known { children(run.pid()).is_empty() } else { is_dead(command) }
        });
        let before = now();
        assert_eq!(run.terminate(), Some(128 + 15), "{words:?}");
        assert!(now() - before < 20_000_000_000, "the signal waited for the release");
        signal(server.pid(), Signal::CONT);
    }
}
