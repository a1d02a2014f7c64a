//! Exit codes, what a command inherits, `show`, `ls`, `force`, help pages and completions.

use std::fs;
use std::process::Command;
use std::thread;

use rustix::process::Signal;

use crate::world::{Run, Server, ends, eventually, leasehold, outcome, signal, stock};

#[test]
fn run_exits_with_the_exit_code_of_its_command() {
    let server = Server::start();
    for code in [0, 1, 3, 79, 255] {
        let script = format!("exit {code}");
        assert_eq!(server.outcome(&["run", "codes", "--", "sh", "-c", &script]).0, code);
    }
    let (code, _) = server.outcome(&["run", "codes", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code, 137);
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn a_busy_lock_has_its_own_exit_code() {
    let server = Server::start();
    let _holder = server.begin(&["run", "busy", "--", "sleep", "60"]);
    eventually("the lock is held", || server.keys() == ["busy"]);
    server.ends(&["run", "-n", "busy", "--", "true"], 75, "busy: held by");
    assert_eq!(server.outcome(&["run", "-w", "0.2", "busy", "--", "true"]).0, 75);
    assert_eq!(server.outcome(&["run", "-w", "0", "-E", "9", "busy", "--", "true"]).0, 9);
    let (code, said) = server.outcome(&["run", "-qn", "busy", "--", "true"]);
    assert_eq!((code, said.as_str()), (75, ""));
    let (code, said) = server.outcome(&["--format", "json", "run", "-n", "busy", "--", "true"]);
    let line: serde_json::Value = serde_json::from_str(said.trim()).unwrap();
    assert_eq!((code, line["event"].as_str(), line["name"].as_str()), (75, Some("busy"), Some("busy")));
}

#[test]
fn usage_errors_exit_64_and_unstartable_commands_126_or_127() {
    let server = Server::start();
    for wrong in [
        vec!["run"],
        vec!["run", "name"],
        vec!["run", "-n", "-w", "1", "name", "--", "true"],
        vec!["run", "--lease", "soon", "name", "--", "true"],
        vec!["run", "--on-lost", "signal:NONE", "name", "--", "true"],
        vec!["run", "--lost-exit-code", "0", "name", "--", "true"],
        vec!["run", "--lease", "3s", "--kill-grace", "2s", "name", "--", "true"],
        vec!["run", "--lease", "100ms", "name", "--", "true"],
        vec!["run", "", "--", "true"],
        vec!["dance"],
    ] {
        let said = server.ends(&wrong, 64, "");
        assert!(!said.is_empty());
    }
    assert_eq!(server.outcome(&["run", "name", "--", "/no/such/program"]).0, 127);
    assert_eq!(server.outcome(&["run", "name", "--", "/etc/passwd"]).0, 126);
    assert_eq!(server.outcome(&["--help"]).0, 0);
    assert_eq!(server.outcome(&["--version"]).0, 0);
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn an_absent_store_exits_69_and_a_wrong_password_77() {
    let away = |words: &[&str]| {
        let mut command = leasehold(words);
        command.env("LEASEHOLD_URL", "redis://127.0.0.1:1").env("LEASEHOLD_RETRY_TIMEOUT", "2s");
        ends(&mut command, 69, "")
    };
    assert!(!away(&["run", "-n", "name", "--", "true"]).contains("is waited for"), "it is asked once");
    assert!(away(&["run", "name", "--", "true"]).contains("is waited for"));
    let server = Server::start();
    server.ask(&["CONFIG", "SET", "requirepass", "right"]);
    let url = server.url().replace("redis://", "redis://:S3CR3T@");
    let said = ends(leasehold(&["run", "name", "--", "true"]).env("LEASEHOLD_URL", url), 77, "");
    assert!(!said.contains("S3CR3T"), "{said}");
    ends(&mut leasehold(&["run", "name", "--", "true"]), 64, "LEASEHOLD_URL");
}

#[test]
fn run_elect_and_once_wait_for_a_restarting_store() {
    for words in [
        &["once", "--at-least", "1s", "--at-most", "1m", "job", "--", "sh", "-c", "exit 6"][..],
        &["run", "name", "--", "sh", "-c", "exit 6"],
        &["run", "-w", "60", "name", "--", "sh", "-c", "exit 6"],
        &["elect", "led", "--", "sh", "-c", "exit 6"],
        &["elect", "-w", "60", "--one-term", "led", "--", "sh", "-c", "exit 6"],
    ] {
        let mut server = Server::start();
        server.stop();
        let errors = server.path("errors");
        let said = || std::fs::read_to_string(&errors).unwrap();
        let waits = || {
            let mut run = server.leasehold(words);
            // `-w` limits the wait for the store too, so a retry time-out of 1 ms must not end that wait.
            run.env("LEASEHOLD_RETRY_TIMEOUT", if words.contains(&"-w") { "1ms" } else { "50s" });
            let run = Run(run.stderr(fs::File::create(&errors).unwrap()).spawn().unwrap());
            eventually("the run waits", || said().contains("the store is waited for"));
            run
        };
        assert_eq!(waits().terminate(), Some(128 + 15), "{words:?}: {}", said());
        let mut run = waits();
        server.start_again();
        assert_eq!(run.wait().code(), Some(6), "{words:?}: {}", said());
        assert_eq!(said().matches("is waited for").count(), 1, "{}", said());
    }
}

#[test]
fn max_hold_ends_the_command() {
    let server = Server::start();
    for arguments in [
        vec!["run", "--max-hold", "1s", "long", "--", "sleep", "60"],
        vec!["run", "--max-hold", "1s", "-x", "halves", "--", "sleep", "60"],
        vec!["run", "--max-hold", "1s", "long", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"],
    ] {
        assert_eq!(server.outcome(&arguments).0, 124, "{arguments:?}");
    }
    assert_eq!(server.outcome(&["run", "--max-hold", "30s", "long", "--", "true"]).0, 0);
    eventually("nothing is left", || server.keys().is_empty());
}

#[test]
fn a_run_that_loses_its_lock_never_exits_0() {
    let server = Server::start();
    let wait = "echo > \"$0\"; cat <&$LEASEHOLD_LOST_FD";
    let catch = "trap 'exit 0' USR1; echo > \"$0\"; while :; do sleep 0.01; done";
    for (how, script, given, code) in [
        ("ignore", wait, "79", 79),
        ("signal:USR1", catch, "8", 8),
        ("kill", "echo > \"$0\"; sleep 60", "9", 9),
    ] {
        let file = server.path(how);
        let arguments = ["run", "--lease", "2s", "--on-lost", how, "--lost-exit-code", given, "gone", "--"];
        let mut run = server.leasehold(&arguments);
        let mut run = Run::start(run.args(["sh", "-c", script]).arg(&file));
        eventually("the command runs", || file.exists());
        server.ask(&["DEL", "gone"]);
        assert_eq!(run.wait().code(), Some(code), "{how}");
    }
}

#[test]
fn run_strict_exits_80_after_a_release_of_unknown_outcome() {
    let server = Server::start();
    for (strict, code) in [(true, 80), (false, 0)] {
        let file = server.path(&format!("strict-{strict}"));
        let mut run = server.leasehold(&["run", "--lease", "20s", "unknown"]);
        run.args(strict.then_some("--strict")).args(["--", "sh", "-c"]);
        run.arg("echo > \"$0\"; while [ -e \"$0\" ]; do sleep 0.01; done").arg(&file);
        // The release must give up before the lease ends. Otherwise the lock would count as lost.
        run.env("LEASEHOLD_RETRY_TIMEOUT", "500ms").env("LEASEHOLD_COMMAND_TIMEOUT", "500ms");
        let mut run = Run::start(&mut run);
        eventually("the command runs", || file.exists());
        signal(server.pid(), Signal::STOP);
        fs::remove_file(&file).unwrap();
        let ended = run.wait().code();
        signal(server.pid(), Signal::CONT);
        assert_eq!(ended, Some(code));
        server.ask(&["DEL", "unknown"]);
    }
}

#[test]
fn readers_run_together_and_a_writer_alone() {
    let server = Server::start();
    let inner = env!("CARGO_BIN_EXE_leasehold");
    let arguments = [
        "run", "-s", "halves", "--", inner, "run", "-ns", "halves", "--", inner, "run", "-qnx", "halves",
        "--", "true",
    ];
    assert_eq!(server.outcome(&arguments).0, 75);
    let arguments = ["run", "-x", "halves", "--", inner, "run", "-qns", "halves", "--", "true"];
    assert_eq!(server.outcome(&arguments).0, 75);
    assert_eq!(server.outcome(&["run", "-nx", "halves", "--", "true"]).0, 0);
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn as_many_commands_run_as_there_are_permits() {
    let server = Server::start();
    let inner = env!("CARGO_BIN_EXE_leasehold");
    let one = ["run", "-n", "--permits", "2", "slots", "--", inner];
    let arguments =
        [&one[..], &one[..], &["run", "-q", "-w", "0.2", "--permits", "2", "slots", "--", "true"]].concat();
    assert_eq!(server.outcome(&arguments).0, 75);
    assert_eq!(server.outcome(&["run", "-n", "--permits", "2", "slots", "--", "true"]).0, 0);
}

#[test]
fn run_refuses_a_permit_count_other_than_the_stored_one() {
    let server = Server::start();
    let run = |permits: &str| server.outcome(&["run", "-q", "--permits", permits, "slots", "--", "true"]);
    let permits = |arguments: &[&str]| server.outcome(&[&["permits", "slots"], arguments].concat());
    assert_eq!(run("3").0, 0);
    let (code, said) = run("1");
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("slots has 3 permits") && said.contains("permits slots --set 1"), "{said}");
    assert_eq!(permits(&["--set", "1"]), (0, "slots: 1 permits, 0 of them out\n".to_owned()));
    assert_eq!(run("1").0, 0);
    assert_eq!(run("3").0, 64);
    assert_eq!(permits(&["--remove"]).0, 0);
    assert_eq!(run("3").0, 0);
    let (code, said) = permits(&["--format", "json"]);
    assert_eq!((code, said.contains("\"permits\":3")), (0, true), "{said}");
}

#[test]
fn fifty_runs_of_one_name_run_one_at_a_time() {
    let server = Server::start();
    let (taken, log) = (server.path("taken"), server.path("log"));
    let script = "mkdir \"$0\" || exit 99; echo $LEASEHOLD_FENCE >> \"$1\"; rmdir \"$0\"";
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                let mut run = server.leasehold(&["run", "one", "--", "sh", "-c", script]);
                assert_eq!(outcome(run.args([&taken, &log])), (0, String::new()));
            });
        }
    });
    let fences: Vec<u64> =
        fs::read_to_string(&log).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(fences.len(), 50);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn the_command_inherits_stdin_and_only_one_descriptor_of_leasehold() {
    let server = Server::start();
    // `ls` lists the shell's open files, so the script uses no pipe, which would be listed. Without the
    // `echo` the shell would be replaced by `ls`, whose own open folder would be listed.
    let list = "ls /proc/$$/fd; echo";
    let script =
        format!("cat; echo $LEASEHOLD_NAME $LEASEHOLD_OWNER $LEASEHOLD_FENCE $LEASEHOLD_LOST_FD; {list}");
    let input = server.path("input");
    fs::write(&input, "the input\n").unwrap();
    let mut run = server.leasehold(&["run", "known", "--", "sh", "-c", &script]);
    let said = ends(run.stdin(fs::File::open(&input).unwrap()), 0, "");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "the input");
    let known: Vec<&str> = lines[1].split(' ').collect();
    assert_eq!((known[0], known.len()), ("known", 4), "{said}");
    assert!(known[2].parse::<u64>().is_ok());
    // Any command inherits the test's own open files, so a plain `sh` shows which ones to expect.
    let (_, alone) = outcome(std::process::Command::new("sh").args(["-c", list]));
    let mut expected: Vec<&str> = alone.split_whitespace().chain([known[3]]).collect();
    let mut open: Vec<&str> = said.lines().skip(2).flat_map(str::split_whitespace).collect();
    expected.sort_unstable();
    open.sort_unstable();
    assert_eq!(open, expected, "{said}");
}

#[test]
fn the_command_cannot_find_the_password_of_the_url_option() {
    let server = Server::start();
    let secret = server.url().replace("redis://", "redis://user:S3CR3T@");
    server.ask(&["ACL", "SETUSER", "user", "on", ">S3CR3T", "~*", "&*", "+@all"]);
    let said = ends(
        &mut leasehold(&[
            "--url",
            &secret,
            "run",
            "-v",
            "seen",
            "--",
            "sh",
            "-c",
            "env; tr '\\0' ' ' < /proc/$PPID/cmdline; tr '\\0' ' ' < /proc/$PPID/environ",
        ]),
        0,
        "",
    );
    assert!(said.contains("LEASEHOLD_NAME=seen") && !said.contains("S3CR3T"), "{said}");
}

/// A folder with a SQLite store, and a function that makes commands of the program for that store.
pub(crate) fn in_a_file() -> (tempfile::TempDir, impl Fn(&[&str]) -> Command) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("locks.db").display());
    let program = move |arguments: &[&str]| {
        let mut command = leasehold(arguments);
        command.env("LEASEHOLD_URL", &url);
        command
    };
    (dir, program)
}

#[test]
fn run_and_elect_hold_their_locks_in_a_sqlite_file() {
    let (_dir, program) = in_a_file();
    let inner = env!("CARGO_BIN_EXE_leasehold");
    let run = |arguments: &[&str]| outcome(&mut program(arguments)).0;
    assert_eq!(run(&["run", "filed", "--", "sh", "-c", "exit 3"]), 3);
    assert_eq!(run(&["run", "filed", "--", inner, "run", "-qn", "filed", "--", "true"]), 75);
    assert_eq!(run(&["run", "--lease", "5s", "filed", "--", "sleep", "6"]), 0);
    assert_eq!(run(&["run", "--max-hold", "1s", "filed", "--", "sleep", "60"]), 124);
    let mut first = Run::start(&mut program(&["elect", "--lease", "3s", "led", "--", "sleep", "60"]));
    eventually("the first candidate leads", || run(&["show", "-q", "led"]) == 0);
    assert_eq!(run(&["elect", "-n", "led", "--", "true"]), 75);
    let mut second = Run::start(&mut program(&["elect", "led", "--", "sh", "-c", "exit 6"]));
    assert_eq!((first.terminate(), second.wait().code()), (Some(128 + 15), Some(6)));
}

#[test]
fn a_signal_ends_the_wait_for_a_sqlite_lock() {
    let (dir, program) = in_a_file();
    let mut holder = Run::start(&mut program(&["run", "-q", "filed", "--", "sleep", "60"]));
    eventually("the lock is held", || outcome(&mut program(&["show", "-q", "filed"])).0 == 0);
    let shown = || {
        let (_, said) = outcome(&mut program(&["-q", "--format", "json", "show", "filed"]));
        let shown: serde_json::Value = serde_json::from_str(&said).unwrap();
        (shown["holders"][0]["owner"].clone(), shown["waiting"].clone())
    };
    let held = shown();
    for (sent, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
        let errors = dir.path().join("errors");
        let mut waiter = program(&["run", "-v", "filed", "--", "true"]);
        let mut waiter = Run(waiter.stderr(fs::File::create(&errors).unwrap()).spawn().unwrap());
        eventually("the waiter waits", || fs::read_to_string(&errors).unwrap().contains("asking for filed"));
        signal(waiter.pid(), sent);
        assert_eq!(waiter.wait().code(), Some(128 + number));
        assert_eq!(shown(), (held.0.clone(), 0.into()));
    }
    holder.terminate();
    assert_eq!(outcome(&mut program(&["show", "-q", "filed"])).0, 1);
}

#[test]
fn shell_completions_offer_options_values_and_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, said) = outcome(&mut leasehold(&["completions", shell]));
        assert!(code == 0 && said.contains("max-hold") && !said.contains("become"), "{shell}");
        assert!(said.contains("signal:HUP") || said.contains("signal\\:HUP"), "{shell}");
    }
    let script = r#"source <("$0" completions bash)
        offers() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _leasehold_or_command leasehold "${@: -1}" "${@: -2:1}"; echo "${COMPREPLY[*]}"; }
        offers leasehold run job -- mkfi
        offers leasehold run --on-lost ig
        offers leasehold hold --signal US
        offers leasehold run --ki"#;
    let output = Command::new("bash").args(["-c", script, env!("CARGO_BIN_EXE_leasehold")]).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "mkfifo\nignore\nUSR1 USR2\n--kill-grace\n",
        "{output:?}"
    );
}

#[test]
fn every_command_and_every_cited_page_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("man");
    let (code, said) = outcome(&mut leasehold(&["man", "--to", to.to_str().unwrap()]));
    assert_eq!((code, said.as_str()), (0, ""));
    let (_, help) = outcome(&mut leasehold(&["help"]));
    let commands = help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect(&help);
    let names = commands.lines().filter_map(|line| line.strip_prefix("  "));
    let names = names.filter_map(|line| line.split(' ').next()).filter(|name| !matches!(*name, "" | "help"));
    let pages: Vec<String> =
        names.map(|name| format!("leasehold-{name}")).chain(["leasehold".into()]).collect();
    assert!(pages.len() >= 17, "{help}");
    for page in &pages {
        let text = fs::read_to_string(to.join(format!("{page}.1"))).expect(page);
        for section in ["NAME", "SYNOPSIS", "EXAMPLES", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"] {
            let heading =
                |line: &str| line.strip_prefix(".SH ").is_some_and(|name| name.trim_matches('"') == section);
            assert!(text.lines().any(heading), "{page} lacks {section}");
        }
        assert!(text.contains(&format!(".TH {page} 1")) && !text.contains("become"), "{text}");
        let named = text.replace('\\', "");
        let named = named.split("(1)").filter_map(|before| before.rsplit([' ', '\n', ',']).next());
        for name in named.filter(|name| name.starts_with("leasehold")) {
            assert!(pages.iter().any(|page| page == name), "{page} names {name}");
        }
    }
    assert_eq!(fs::read_dir(&to).unwrap().count(), pages.len());
    let (code, run) = outcome(&mut leasehold(&["man", "run"]));
    assert!(code == 0 && run.contains("max\\-hold") && run.contains("LEASEHOLD_LEASE"), "{run}");
    assert_eq!(outcome(&mut leasehold(&["man", "dance"])).0, 64);
}

#[test]
fn help_of_run_has_headings_for_options_and_for_examples() {
    let (code, help) = outcome(&mut leasehold(&["help", "run"]));
    assert_eq!(code, 0);
    let usage = help.lines().find(|line| line.starts_with("Usage:"));
    assert_eq!(usage, Some("Usage: leasehold run [OPTIONS] <NAME> <COMMAND>..."));
    let headings = help.lines().filter(|line| line.ends_with(':') && !line.starts_with(' '));
    let headings: Vec<&str> = headings.collect();
    let wanted =
        ["Arguments:", "Waiting:", "Lock:", "Lease:", "Command:", "Store and TLS:", "Output:", "Examples:"];
    assert_eq!(headings, wanted);
}

#[test]
fn options_after_the_command_belong_to_the_command() {
    let server = Server::start();
    for run in [&["run", "-n", "job"][..], &["run", "job", "-n"], &["elect", "job"]] {
        let words = [run, &["sh", "-c", "echo $1", "-n", "--format"]].concat();
        assert_eq!(server.outcome(&words), (0, "--format\n".to_owned()), "{words:?}");
    }
    server.ends(&["run", "job"], 64, "<COMMAND>");
}

#[test]
fn show_prints_a_lock_and_force_releases_it() {
    let server = Server::start();
    let said = server.ends(&["show", "held", "free"], 0, "");
    assert!(said.starts_with("held: ") && said.contains("free: "), "{said}");
    let mut holder = server.begin(&["run", "-q", "--lease", "2s", "held", "--", "sleep", "60"]);
    eventually("the lock is held", || server.keys() == ["held"]);
    let show = || server.json(&["show", "held"]);
    let shown = show();
    let owner = shown["holders"][0]["owner"].as_str().unwrap().to_owned();
    assert!(shown["held"] == true && shown["remaining_seconds"].as_f64().unwrap() <= 2.0, "{shown}");
    let said = server.ends(&["force", "held"], 64, &owner);
    assert!(said.contains("--yes"), "{said}");
    assert_eq!(show()["held"], true);
    server.ends(&["force", "held", "--yes"], 0, &owner);
    assert_eq!(holder.wait().code(), Some(79));
    assert_eq!(show()["held"], false);
    assert_eq!(server.outcome(&["force", "held", "--yes"]).0, 0);
}

#[test]
fn locks_and_clients_are_listed_with_host_process_and_label() {
    let server = Server::start();
    let run = ["run", "-q", "--label", "nightly", "--lease", "3s", "job:1", "--", "sleep", "60"];
    let mut holder = server.begin(&run);
    eventually("the lock is held", || server.keys() == ["job:1"]);
    eventually("the holder's entry is written", || {
        server.ask(&["KEYS", "leasehold_client:*-*"]).contains("leasehold_client:")
    });
    let list = |arguments: &[&str]| server.ends(arguments, 0, "");
    let said = list(&["ls"]);
    assert!(said.contains("\njob:1  fenced lock  nightly on "), "{said}");
    assert!(said.contains("1 lock among ") && said.contains(" requests"), "{said}");
    assert!(list(&["ls", "other:*"]).contains("0 locks among "));
    let pid = holder.pid();
    let one = server.json(&["ls", "job:*"]);
    assert_eq!((&one["name"], &one["holders"][0]["pid"]), (&"job:1".into(), &pid.into()), "{one}");
    assert_eq!(one["holders"][0]["label"], "nightly", "{one}");
    let one = server.json(&["clients"]);
    assert_eq!((&one["pid"], &one["label"]), (&pid.into(), &"nightly".into()), "{one}");
    assert_eq!(
        (&one["uses"][0]["name"], &one["uses"][0]["waits"]),
        (&"job:1".into(), &false.into()),
        "{one}"
    );
    assert!(list(&["clients"]).contains("holds job:1 for "));
    holder.terminate();
    assert_eq!(list(&["clients", "-q"]), "");
}

#[test]
fn ls_lists_many_locks_by_short_requests() {
    let locks: u64 = std::env::var("LEASEHOLD_CLI_LOCKS").map_or(10_000, |locks| locks.parse().unwrap());
    let server = Server::start();
    let script = "for n = ARGV[1], ARGV[1] + 999 do local key = 'lock:' .. string.format('%.0f', n) \
                  redis.call('hset', key, '8a3f0e0e-0000-4000-8000-000000000001:1', 1) redis.call('pexpire', key, 600000) end";
    for from in (0..locks).step_by(1_000) {
        server.ask(&["EVAL", script, "0", &from.to_string()]);
    }
    server.ask(&["CONFIG", "RESETSTAT"]);
    let (code, said) = server.outcome(&["ls", "lock:*"]);
    assert_eq!((code, said.matches("\nlock:").count() as u64), (0, locks));
    assert!(said.contains(&format!("{locks} locks among ")), "{}", said.lines().last().unwrap());
    // The test bounds the average and not the maximum, because the system may interrupt a few commands.
    let stats = server.ask(&["INFO", "commandstats"]);
    for (command, least, most_micros) in [("evalsha", locks, 3_000.0), ("scan", locks / 500, 10_000.0)] {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:"))).unwrap();
        let field = |name: &str| -> f64 {
            line.split(',')
                .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
                .unwrap()
                .parse()
                .unwrap()
        };
        assert!(field("calls") >= least as f64, "{command}: {line}");
        assert!(field("usec_per_call") < most_micros, "{command}: {line}");
    }
    let whole = ["keys", "smembers", "sort"].map(|command| format!("cmdstat_{command}:"));
    assert!(!whole.iter().any(|command| stats.contains(command)), "{stats}");
}

#[test]
fn ls_and_show_describe_the_locks_of_the_stock_demo() {
    let Some(stock) = stock() else { return };
    let program = env!("CARGO_BIN_EXE_leasehold");
    let server = Server::start();
    let script = ". scripts/locks_at_work.sh && show_locks_at_work \"$0\" \"$1\"";
    let mut shell = std::process::Command::new("bash");
    shell.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    shell.args(["-euo", "pipefail", "-c", script]).arg(&stock).arg(program).env("REDIS_URL", server.url());
    let said = ends(&mut shell, 0, "");
    let shown: Vec<&str> = said.lines().collect();
    let listed = shown.iter().find(|line| line.contains("  fenced lock  ")).unwrap();
    assert!(listed.contains("stock on ") && !listed.ends_with(" 0"), "{said}");
    assert!(shown.iter().any(|line| line.starts_with("$ leasehold show leasehold-demo:{")), "{said}");
    assert!(shown.iter().any(|line| line.trim_start().starts_with("waits, 1.: ")), "{said}");
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn force_releases_read_and_write_locks() {
    let server = Server::start();
    let run = |half: &str| server.begin(&["run", "-q", "--lease", "2s", half, "halves", "--", "sleep", "60"]);
    let mode = || server.ask(&["HGET", "halves", "mode"]);
    for (half, held) in [("-s", "read"), ("-x", "write")] {
        let mut holder = run(half);
        eventually("the lock is held", || mode().contains(held));
        server.ends(&["force", "halves", "--yes"], 0, "halves was released by force");
        assert!(!mode().contains(held), "{half}: still held");
        assert_eq!(holder.wait().code(), Some(79));
    }
}

#[test]
fn control_characters_of_holders_are_escaped() {
    let server = Server::start();
    let hostile = "\u{1b}[2J\u{9b}31m\nbusy: free\u{202e}";
    let mut run =
        server.leasehold(&["run", "-q", "--label", hostile, "--lease", "3s", "busy", "--", "sleep", "60"]);
    let _holder = Run::start(&mut run);
    let told = |arguments: &[&str]| server.outcome(arguments).1;
    eventually("the holder's entry is written", || {
        told(&["run", "-n", "busy", "--", "true"]).contains("[2J")
    });
    for format in ["text", "json"] {
        for arguments in [
            &["run", "-n", "busy", "--", "true"][..],
            &["show", "busy"],
            &["ls"],
            &["clients"],
            &["force", "busy"],
        ] {
            let said = told(&[&["--format", format], arguments].concat());
            assert!(said.contains("[2J"), "{arguments:?}: {said:?}");
            let acts = |char: char| (char.is_control() && char != '\n') || char == '\u{202e}';
            assert!(
                !said.contains(acts) && !said.lines().any(|line| line.starts_with("busy: free")),
                "{said:?}"
            );
        }
    }
}

#[test]
fn a_delayed_grant_still_runs_a_command_with_max_hold() {
    let server = Server::start();
    let run = ["run", "-n", "--max-hold", "3s", "slow", "--", "sh", "-c", "echo ran >> \"$0\""];
    let mut run = server.leasehold(&run);
    let mut run = Run::start(run.arg(server.path("ran")).env("LEASEHOLD_COMMAND_TIMEOUT", "20s"));
    let ended = std::cell::Cell::new(false);
    eventually("the server has held up a grant", || {
        signal(server.pid(), Signal::STOP);
        crate::world::pause(900);
        signal(server.pid(), Signal::CONT);
        crate::world::pause(100);
        ended.set(run.0.try_wait().unwrap().is_some());
        ended.get()
    });
    assert_eq!(run.wait().code(), Some(0));
    assert_eq!(fs::read_to_string(server.path("ran")).unwrap(), "ran\n");
}

#[test]
fn an_unsupported_lock_kind_is_a_usage_error() {
    let (_dir, program) = in_a_file();
    for (kind, way_out) in [
        (&["--fair"][..], "--fair needs Redis, etcd or ZooKeeper: without it"),
        (&["-s"], "-s and -x need Redis or ZooKeeper: without them"),
        (&["-x"], "-s and -x need Redis or ZooKeeper: without them"),
        (&["--permits", "2"], "--permits needs Redis: without it"),
    ] {
        let arguments = [&["run", "-n"][..], kind, &["other", "--", "true"]].concat();
        ends(&mut program(&arguments), 64, way_out);
    }
}

#[test]
fn run_and_once_exit_77_if_a_right_is_missing() {
    let server = Server::start();
    server.ask(&["ACL", "SETUSER", "poor", "on", ">right", "~*", "&*", "+@all", "-eval", "-evalsha"]);
    let url = server.url().replace("redis://", "redis://poor:right@");
    for arguments in [
        &["run", "-n", "job", "--", "true"][..],
        &["once", "job", "--at-least", "1s", "--at-most", "9s", "--", "true"],
    ] {
        let said = ends(leasehold(arguments).env("LEASEHOLD_URL", &url), 77, "docs/permissions.md");
        assert!(!said.contains("right@"), "{said}");
    }
    assert_eq!(server.keys(), Vec::<String>::new());
}
