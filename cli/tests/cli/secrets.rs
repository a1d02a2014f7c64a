//! No password appears in any output, nor in the arguments of a process other than the one to which it was
//! passed.

use std::process::Command;

use crate::world::{Run, Server, children, eventually, leasehold};

const RIGHT: &str = "S3CR3Tright";
const WRONG: &str = "S3CR3Twrong";

const ALL: [&[&str]; 13] = [
    &["run", "-v", "-w", "1", "job", "--", "sh", "-c", "tr '\\0' ' ' < /proc/$PPID/cmdline"],
    &["once", "-v", "job:once", "--at-least", "1s", "--at-most", "9s", "--", "true"],
    &["elect", "-v", "-n", "--listen", "0", "job:led", "--", "true"],
    &["hold", "-v", "-w", "1", "job:held"],
    &["release", "-v", "/nothing:7"],
    &["show", "job"],
    &["ls", "-v"],
    &["clients"],
    &["watch", "job", "--for", "300ms"],
    &["force", "job", "--yes"],
    &["doctor"],
    &["top"],
    &["serve", "--listen", "192.0.2.1:9477"],
];

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn no_subcommand_prints_a_password() {
    let server = Server::start();
    server.ask(&["ACL", "SETUSER", "user", "on", &format!(">{RIGHT}"), "~*", "&*", "+@all"]);
    let with = |word: &str| server.url().replace("redis://", &format!("redis://user:{word}@"));
    let unreachable = format!("redis://user:{RIGHT}@127.0.0.1:1");
    let unreadable = format!("redis://user:{RIGHT}@[no such host");
    // `hold` keeps its lock for this `sleep`. Otherwise it would keep the lock for the test's own process,
    // and signal the test when the server goes away.
    let mut sleeps = Command::new("sleep").arg("600").spawn().unwrap();
    let own = sleeps.id().to_string();
    for url in [with(RIGHT), with(WRONG), unreachable, unreadable] {
        for arguments in ALL {
            let whose = if arguments[0] == "hold" { &["--pid", &*own][..] } else { &[] };
            for format in ["text", "json"] {
                let mut command = leasehold(&[&["--format", format], arguments, whose].concat());
                let said = said(command.env("LEASEHOLD_URL", &url).env("LEASEHOLD_RETRY_TIMEOUT", "100ms"));
                assert!(!said.contains("S3CR3T"), "{arguments:?}: {said}");
            }
        }
    }
    sleeps.kill().unwrap();
    sleeps.wait().unwrap();
    eventually("nothing is held", || server.keys().iter().all(|key| !key.contains("held")));
}

#[test]
fn no_password_is_passed_to_a_child_by_its_arguments() {
    let server = Server::start();
    server.ask(&["ACL", "SETUSER", "user", "on", &format!(">{RIGHT}"), "~*", "&*", "+@all"]);
    let url = server.url().replace("redis://", &format!("redis://user:{RIGHT}@"));
    for arguments in [
        &["run", "job:run", "--", "sleep", "60"][..],
        &["once", "job:once", "--at-least", "1s", "--at-most", "30s", "--", "sleep", "60"],
        &["elect", "job:led", "--", "sleep", "60"],
    ] {
        // With `--url` the program's own arguments have the password; those of helper and command must not.
        for is_argument in [false, true] {
            let mut command = if is_argument {
                leasehold(&[&["--url", &url], arguments].concat())
            } else {
                leasehold(arguments)
            };
            if !is_argument {
                command.env("LEASEHOLD_URL", &url);
            }
            let mut run = Run::start(&mut command);
            let helper = || children(run.pid()).first().copied();
            let child = || helper().and_then(|helper| children(helper).first().copied());
            eventually("the command runs", || child().is_some_and(|pid| cmdline(pid).starts_with("sleep")));
            let seen =
                [helper().unwrap(), child().unwrap()].into_iter().chain((!is_argument).then(|| run.pid()));
            for pid in seen {
                assert!(!cmdline(pid).contains("S3CR3T"), "{}", cmdline(pid));
            }
            run.terminate();
            // The job counts as run while its lock exists, so the next `once` would not run it.
            server.ask(&["DEL", "job:once"]);
        }
    }
}

#[test]
fn no_background_process_of_hold_has_a_password_argument() {
    let server = Server::start();
    server.ask(&["ACL", "SETUSER", "user", "on", &format!(">{RIGHT}"), "~*", "&*", "+@all"]);
    let url = server.url().replace("redis://", &format!("redis://user:{RIGHT}@"));
    let mut shell = Command::new("sleep").arg("60").spawn().unwrap();
    let own = shell.id().to_string();
    let mut hold = leasehold(&["--url", &url, "--format", "json", "hold", "--pid", &own, "job"]);
    let output = hold.env("TMPDIR", server.dir.path()).env_remove("XDG_RUNTIME_DIR").output().unwrap();
    let held: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let keeper = held["keeper"].as_u64().unwrap().try_into().unwrap();
    let lookout = children(keeper)[0];
    eventually("the second process has its arguments", || cmdline(lookout).starts_with("leasehold\0lookout"));
    assert!(cmdline(keeper).starts_with("leasehold\0keep") && cmdline(keeper).contains("\"job\""));
    for text in [cmdline(keeper), cmdline(lookout), held.to_string()] {
        assert!(!text.contains("S3CR3T"), "{text}");
    }
    shell.kill().unwrap();
    shell.wait().unwrap();
    eventually("the lock is released", || server.keys().is_empty());
}

fn cmdline(pid: u32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
}
