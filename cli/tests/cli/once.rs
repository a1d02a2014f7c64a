//! `once`: timers on many machines start a job, and one machine runs it.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::basics::in_a_file;
use crate::secured::{Certificates, Secured};
use crate::world::{Run, Server, ends, eventually, outcome, stamps};

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
    let (code, said) = outcome(&mut once(&server, ["30s", "60s"], ""));
    assert_eq!((code, runs(&server)), (75, 1));
    assert!(said.contains("job has run within --at-least: exit code 0 after "), "{said}");
}

#[test]
fn a_job_runs_again_after_its_minimum_time() {
    let (server, begun) = (Server::start(), Instant::now());
    assert_eq!(outcome(&mut once(&server, ["1s", "5s"], "")).0, 0);
    let left_ms = server.ask(&["PTTL", "job"]);
    let left_ms: i64 = left_ms.trim_start_matches(':').trim().parse().unwrap();
    let is_over = left_ms == -2 && begun.elapsed() >= Duration::from_secs(1);
    assert!(is_over || (1..=1000).contains(&left_ms), "{left_ms}");
    eventually("the least time is over", || server.keys().is_empty());
    assert_eq!(outcome(&mut once(&server, ["1s", "5s"], "")).0, 0);
    assert_eq!(runs(&server), 2);
}

#[test]
fn a_failed_or_killed_job_is_not_repeated_at_once() {
    for (script, code) in [("exit 3", 3), ("kill -9 $$", 137)] {
        let server = Server::start();
        let words = format!("job failed with {code}, and counts as run");
        ends(&mut once(&server, ["30s", "60s"], script), code, &words);
        assert_eq!(outcome(&mut once(&server, ["30s", "60s"], script)).0, 75);
        assert_eq!(runs(&server), 1);
    }
}

#[test]
fn a_job_is_killed_at_its_maximum_time() {
    let server = Server::start();
    let script = "trap '' TERM; while :; do sleep 0.05; done";
    ends(&mut once(&server, ["1s", "2s"], script), 124, "");
    assert!(runs(&server) == 1 && stamps(&server.path("ran")).len() == 1);
}

#[test]
fn impossible_times_are_refused_before_any_request() {
    for (times, words) in [
        (["10s", "5s"], "--at-least (10s) is longer than --at-most (5s)"),
        (["0", "500ms"], "too short"),
        (["1s", "x"], "invalid value"),
    ] {
        let arguments = ["once", "job", "--at-least", times[0], "--at-most", times[1], "--", "true"];
        let mut command = crate::world::leasehold(&arguments);
        ends(command.env("LEASEHOLD_URL", "redis://127.0.0.1:1"), 64, words);
    }
    let (code, _) = outcome(&mut crate::world::leasehold(&["once", "job", "--", "true"]));
    assert_eq!(code, 64);
}

#[test]
fn with_a_sqlite_file_once_does_not_repeat_a_job() {
    let (_dir, program) = in_a_file();
    let arguments = ["once", "job", "--at-least", "30s", "--at-most", "60s", "--", "true"];
    let run = || outcome(&mut program(&arguments)).0;
    assert_eq!((run(), run()), (0, 75));
}

#[test]
fn once_refuses_kill_grace_over_a_third_of_maximum_time() {
    let server = Server::start();
    let with = |grace: &str| {
        let arguments = ["once", "job", "--at-least", "1s", "--at-most", "15s", "--kill-grace", grace, "--"];
        let mut command = server.leasehold(&arguments);
        command.args(["sh", "-c", NOTE]).arg(server.path("ran"));
        outcome(&mut command)
    };
    let (code, said) = with("5100ms");
    assert!(code == 64 && said.contains("--kill-grace 5.1s is over a third"), "{said}");
    assert_eq!((runs(&server), server.keys()), (0, Vec::new()));
    let (code, said) = with("5s");
    assert_eq!((code, runs(&server)), (0, 1), "{said}");
}

/// Under some limits of open files, the program can hold the lock but start no other process.
#[test]
fn a_job_that_cannot_start_can_run_elsewhere() {
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

fn shown(server: &Server, url: &str) -> Value {
    let mut show = server.leasehold(&["-q", "--format", "json", "show", "job"]);
    let said = ends(show.env("LEASEHOLD_URL", url), 0, "");
    serde_json::from_str(said.trim()).unwrap()
}

#[test]
fn a_job_gets_a_fencing_token_and_its_last_run_is_shown() {
    let server = Server::start();
    for url in [server.url(), format!("sqlite://{}", server.path("locks.db").display())] {
        let fences = server.path("fences");
        fs::write(&fences, "").unwrap();
        let job = |script: &str, least: &str| {
            let mut command =
                server.leasehold(&["once", "job", "--at-least", least, "--at-most", "60s", "--"]);
            command.args(["sh", "-c", &format!("echo $LEASEHOLD_FENCE >> $0; {script}")]).arg(&fences);
            command.env("LEASEHOLD_URL", &url);
            command
        };
        assert_eq!(shown(&server, &url)["last_run"], Value::Null);
        assert_eq!(outcome(&mut job("exit 0", "1ms")).0, 0);
        let last = &shown(&server, &url)["last_run"];
        assert_eq!((&last["exit_code"], &last["state"]), (&0.into(), &"may_run".into()), "{last}");
        eventually("the job's least time is over", || outcome(&mut job("sleep 0.1; exit 3", "30s")).0 == 3);
        let last = &shown(&server, &url)["last_run"];
        assert_eq!((&last["exit_code"], &last["state"]), (&3.into(), &"has_run".into()), "{last}");
        let seconds = |field: &str| last[field].as_f64().unwrap();
        assert!(seconds("took_seconds") >= 0.1, "{last}");
        assert!(seconds("succeeded_seconds_ago") >= seconds("ended_seconds_ago") + 0.1, "{last}");
        let (code, said) = outcome(&mut job("exit 0", "30s"));
        assert!(code == 75 && said.contains("job has run within --at-least: exit code 3 after "), "{said}");
        let (_, said) = outcome(server.leasehold(&["show", "job"]).env("LEASEHOLD_URL", &url));
        assert!(
            said.contains("\n  has run: exit code 3 after ") && said.contains("; last success "),
            "{said}"
        );
        assert_eq!(outcome(server.leasehold(&["force", "job", "--yes"]).env("LEASEHOLD_URL", &url)).0, 0);
        let mut running = Run::start(&mut job("while [ -s $0 ]; do sleep 0.05; done", "30s"));
        eventually("the job runs", || shown(&server, &url)["last_run"]["state"] == "runs");
        ends(&mut job("exit 0", "30s"), 75, "job runs already: held by ");
        let told = fs::read_to_string(&fences).unwrap();
        fs::write(&fences, "").unwrap();
        assert_eq!(running.wait().code(), Some(0));
        let told: Vec<u64> = told.lines().map(|fence| fence.parse().unwrap()).collect();
        assert!(told.len() == 3 && told.is_sorted_by(|one, next| one < next), "{told:?}");
    }
    let keys = server.ask(&["KEYS", "leasehold_client:*-*"]);
    let records: Vec<&str> = keys.lines().filter(|line| line.starts_with("leasehold_client:")).collect();
    for record in records {
        assert!(!server.ask(&["PTTL", record]).contains(":-1"), "{record}");
    }
}

#[test]
fn a_killed_run_without_its_lock_does_not_become_last_run() {
    let server = Server::start();
    assert_eq!(outcome(&mut once(&server, ["1ms", "5s"], "")).0, 0);
    let before = shown(&server, &server.url())["last_run"]["owner"].clone();
    let mut lost = once(&server, ["1ms", "60s"], "sleep 60");
    let mut lost = Run::start(&mut lost);
    eventually("the job runs", || runs(&server) == 2);
    server.ask(&["DEL", "job"]);
    drop(lost.0.kill());
    lost.wait();
    assert_eq!(shown(&server, &server.url())["last_run"]["owner"], before);
}

#[test]
fn the_documented_crontab_hides_the_url() {
    for page in ["README.md", "docs/command-line.md", "docs/operating.md"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
        let text = fs::read_to_string(path).unwrap();
        for block in text.split("```crontab\n").skip(1) {
            crontab(page, block.split("```").next().unwrap());
        }
    }
}

/// Runs the lines of a crontab as cron does: an assignment sets the environment, and any other line is a
/// command for a shell.
fn crontab(page: &str, block: &str) {
    let server = Server::start();
    // This script stands in for the job. It writes the arguments of all processes, which any user can read.
    let seen = server.path("seen");
    let script = server.path("report.sh");
    fs::write(&script, format!("#!/bin/sh\nps -eww -o args > {}\n", seen.display())).unwrap();
    outcome(std::process::Command::new("chmod").arg("+x").arg(&script));
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let mut environment =
        vec![("PATH".to_owned(), format!("{}:/usr/bin:/bin", program.parent().unwrap().display()))];
    let mut jobs = 0;
    for line in block.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let first = line.split(' ').next().unwrap();
        if let Some((name, value)) = line.split_once('=').filter(|_| first.contains('=')) {
            let is_url = name == "LEASEHOLD_URL";
            environment.push((name.to_owned(), if is_url { server.url() } else { value.to_owned() }));
            continue;
        }
        let command = line.splitn(6, ' ').nth(5).unwrap().trim_start();
        let (before, _) = command.split_once(" -- ").unwrap_or_else(|| panic!("{page}: {line}"));
        let before = before.replace("redis://locks:6379", &server.url());
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("{before} -- {}", script.display())]).env_clear();
        let (code, said) = outcome(shell.envs(environment.iter().map(|(name, value)| (name, value))));
        assert_eq!(code, 0, "{page}: {line}: {said}");
        let seen = fs::read_to_string(&seen).unwrap();
        assert!(seen.contains("leasehold") && !seen.contains(&server.url()), "{page}: {line} shows the URL");
        jobs += 1;
    }
    assert!(jobs > 0, "{page}: {block}");
}

#[test]
fn an_unsupported_store_makes_once_suggest_an_alternative() {
    let certificates = Certificates::make();
    let Some(etcd) = Secured::etcd(&certificates) else { return };
    let on_etcd = |arguments: &[&str]| outcome(&mut certificates.program(&etcd.url("etcds", ""), arguments));
    eventually("etcd answers", || on_etcd(&["show", "job"]).0 == 0);
    let (code, said) = on_etcd(&["once", "job", "--at-least", "1s", "--at-most", "9s", "--", "true"]);
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("`leasehold run -n` there") && said.contains("`once` needs Redis"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().join("shown");
    let program = env!("CARGO_BIN_EXE_leasehold");
    let script = format!("echo $LEASEHOLD_FENCE; {program} --format json show deploy > {}", shown.display());
    let (code, said) = on_etcd(&["run", "-q", "--fair", "deploy", "--", "sh", "-c", &script]);
    assert_eq!(code, 0, "{said}");
    let shown: Value = serde_json::from_str(&fs::read_to_string(shown).unwrap()).unwrap();
    let fence = said.lines().find_map(|line| line.parse::<u64>().ok());
    assert_eq!(shown["fence"].as_u64(), fence, "{shown}");
    assert!(fence.is_some());
}

#[test]
fn names_that_begin_with_a_dash_are_accepted_after_double_dash() {
    let server = Server::start();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let script = format!(
        "{program} show -- -job && {program} ls -- '-*' && {program} watch --for 1ms -- -job && {program} force --yes -- -job"
    );
    let (code, said) = server.outcome(&["run", "-n", "--", "-job", "--", "sh", "-c", &script]);
    assert!(
        said.contains("-job: a fenced lock, held") && said.contains("-job was released by force"),
        "{said}"
    );
    assert!(code == 0 || code == 79, "{said}");
    let once = ["once", "--at-least", "1ms", "--at-most", "9s", "--", "--job", "--", "true"];
    server.ends(&once, 0, "");
    assert_eq!(server.outcome(&["show", "--", "--job"]).0, 0);
    server.ends(&["run", "--", "true"], 64, "<COMMAND>");
}
