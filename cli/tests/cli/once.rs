//! `once`: a job that timers of many machines fire, and one of them runs.

use crate::world::{Run, Server, eventually, outcome, stamps};

/// Appends a line to the file of its first argument.
const NOTE: &str = "echo $$ >> \"$0\"; ";

fn runs(server: &Server) -> usize {
    std::fs::read_to_string(server.path("ran")).unwrap_or_default().lines().count()
}

fn once<'a>(server: &Server, times: [&'a str; 2], script: &'a str) -> std::process::Command {
    let mut command = server.leasehold(&["once", "job", "--at-least", times[0], "--at-most", times[1]]);
    command.args(["--", "sh", "-c", &format!("{NOTE}{script}")]).arg(server.path("ran"));
    command
}

#[test]
fn of_three_machines_one_runs_the_job() {
    let server = Server::start();
    let mut machines: Vec<Run> =
        (0..3).map(|_| Run::start(&mut once(&server, ["30s", "60s"], "sleep 0.2"))).collect();
    let mut codes: Vec<_> = machines.iter_mut().map(|one| one.wait().code()).collect();
    codes.sort_unstable();
    assert_eq!((codes, runs(&server)), (vec![Some(0), Some(75), Some(75)], 1));
    // Over long ago, and not again so soon. The lock says so.
    let (code, said) = outcome(&mut once(&server, ["30s", "60s"], ""));
    assert_eq!((code, runs(&server)), (75, 1));
    assert!(said.contains("job is run by another, or was within --at-least: held by "), "{said}");
}

#[test]
fn a_job_is_run_again_after_its_least_time_and_no_sooner() {
    let server = Server::start();
    assert_eq!(outcome(&mut once(&server, ["1s", "5s"], "")).0, 0);
    let left_ms = server.ask(&["PTTL", "job"]);
    let left_ms: i64 = left_ms.trim_start_matches(':').trim().parse().unwrap();
    assert!((1..=1000).contains(&left_ms), "{left_ms}");
    eventually("the least time is over", || server.keys().is_empty());
    assert_eq!(outcome(&mut once(&server, ["1s", "5s"], "")).0, 0);
    assert_eq!(runs(&server), 2);
}

/// Otherwise one that fails at once would be run by each machine in turn.
#[test]
fn a_job_that_fails_or_is_killed_counts_as_run() {
    for (script, code) in [("exit 3", 3), ("kill -9 $$", 137)] {
        let server = Server::start();
        assert_eq!(outcome(&mut once(&server, ["30s", "60s"], script)).0, code);
        assert_eq!(outcome(&mut once(&server, ["30s", "60s"], script)).0, 75);
        assert_eq!(runs(&server), 1);
    }
}

#[test]
fn a_job_ends_with_its_most_time() {
    let server = Server::start();
    let script = "trap '' TERM; while :; do sleep 0.05; done";
    let (code, said) = outcome(&mut once(&server, ["1s", "2s"], script));
    assert_eq!(code, 124, "{said}");
    // Dead before the lock ended, so before another could begin.
    assert!(runs(&server) == 1 && stamps(&server.path("ran")).len() == 1);
}

#[test]
fn times_that_make_no_sense_are_refused_before_anything_is_asked() {
    // Nothing listens there.
    for (times, words) in [
        (["10s", "5s"], "--at-least (10s) is longer than --at-most (5s)"),
        (["0", "500ms"], "too short"),
        (["1s", "x"], "invalid value"),
    ] {
        let arguments = ["once", "job", "--at-least", times[0], "--at-most", times[1], "--", "true"];
        let mut command = crate::world::leasehold(&arguments);
        let (code, said) = outcome(command.env("LEASEHOLD_URL", "redis://127.0.0.1:1"));
        assert!(code == 64 && said.contains(words), "{code}: {said}");
    }
    let (code, _) = outcome(&mut crate::world::leasehold(&["once", "job", "--", "true"]));
    assert_eq!(code, 64);
}

#[test]
fn once_works_on_a_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("locks.db").display());
    let arguments = ["once", "job", "--at-least", "30s", "--at-most", "60s", "--", "true"];
    let run = || outcome(crate::world::leasehold(&arguments).env("LEASEHOLD_URL", &url)).0;
    assert_eq!((run(), run()), (0, 75));
}

/// Judged by what was asked for, and not by what a slow answer left of it.
#[test]
fn a_grace_of_a_third_is_given_and_a_longer_one_refused_before_anything_is_asked() {
    let server = Server::start();
    let with = |grace: &str| {
        let arguments = ["once", "job", "--at-least", "1s", "--at-most", "15s", "--kill-grace", grace, "--"];
        let mut command = server.leasehold(&arguments);
        command.args(["sh", "-c", NOTE]).arg(server.path("ran"));
        outcome(&mut command)
    };
    let (code, said) = with("5100ms");
    assert!(code == 64 && said.contains("--kill-grace 5.1s is more than a third"), "{said}");
    assert_eq!((runs(&server), server.keys()), (0, Vec::new()));
    let (code, said) = with("5s");
    assert_eq!((code, runs(&server)), (0, 1), "{said}");
}

/// With so few open files that this process can hold the lock, and cannot start another.
#[test]
fn a_job_that_could_not_be_started_is_left_to_other_machines() {
    let server = Server::start();
    let (made, mut unstarted) = (server.path("made"), 0);
    for files in 3..40 {
        let mut limited = server.leasehold(&["once", "job", "--at-least", "50s", "--at-most", "60s"]);
        limited.args(["--", "mkdir"]).arg(&made);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"]).arg(limited.get_program());
        shell
            .args(limited.get_args())
            .envs(limited.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = shell.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if made.exists() {
            assert_eq!(output.status.code(), Some(0), "{files}: {said}");
            break;
        }
        unstarted += usize::from(said.contains("the helper process cannot be started"));
        assert_ne!(output.status.code(), Some(0), "{files}: {said}");
        assert_eq!(server.keys(), Vec::<String>::new(), "{files}: {said}");
    }
    assert!(unstarted > 0 && made.exists(), "{unstarted}");
}
