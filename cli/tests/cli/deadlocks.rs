//! `doctor`, `show`, `top` and the page of `serve` show threads that wait for each other.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use leasehold::{Interrupt, LockClient};
use serde_json::Value;

use crate::browser::{self, Browser};
use crate::doctor::doctor;
use crate::site::Site;
use crate::top::Top;
use crate::world::{Server, eventually};

fn deadlocked(server: &Server, work: impl FnOnce()) {
    ring_of(server, &["orders:1", "stock:2"], work);
}

fn ring_of(server: &Server, locks: &[&str], work: impl FnOnce()) {
    let client = |label: &str| {
        let builder =
            LockClient::builder().url(server.url()).detect_deadlocks_after(Duration::from_millis(100));
        builder.label(label).build().unwrap()
    };
    let (meet, interrupt) = (Barrier::new(locks.len() + 1), Interrupt::new());
    thread::scope(|scope| {
        for (&first, &second) in locks.iter().zip(locks.iter().cycle().skip(1)) {
            let (meet, interrupt, client) = (&meet, &interrupt, client(first));
            let name = format!("takes {first}");
            let takes = move || {
                let _held = client.get_lock(first).acquire().unwrap();
                meet.wait();
                // All threads are interrupted, but the holder of `second` may free it before this wait ends.
                match client.get_lock(second).lock_interruptibly(interrupt) {
                    Ok(()) => client.get_lock(second).unlock().unwrap(),
                    Err(error) => assert!(error.is_interrupted(), "{error}"),
                }
            };
            thread::Builder::new().name(name).spawn_scoped(scope, takes).unwrap();
        }
        meet.wait();
        let asking = LockClient::connect(server.url()).unwrap();
        eventually("the deadlock is found", || !asking.deadlocks().unwrap().is_empty());
        // The threads must end even if the work panics.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        interrupt.interrupt();
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

#[track_caller]
fn faulty(server: &Server) -> Value {
    let (code, mut findings) = doctor(&server.url(), &[]);
    let finding = findings.remove("deadlocks").unwrap();
    assert_eq!((code, &finding["result"]), (1, &"fault".into()), "{finding}");
    finding
}

#[test]
fn doctor_and_show_name_each_thread_of_a_deadlock() {
    let server = Server::start();
    deadlocked(&server, || {
        let finding = faulty(&server);
        let words = finding["message"].as_str().unwrap();
        for part in
            ["orders:1", "stock:2", "takes orders:1", "takes stock:2", &std::process::id().to_string()]
        {
            assert!(words.contains(part), "{part}: {words}");
        }
        let steps = finding["deadlocks"][0]["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 2, "{finding}");
        let waits = |step: &Value| step["pid"] == std::process::id() && step["waiting_for_seconds"].is_f64();
        assert!(steps.iter().all(waits), "{finding}");

        let said = server.ends(&["show", "orders:1"], 0, "");
        assert!(said.contains("deadlock of 2 threads") && said.contains("thread takes stock:2"), "{said}");
        let shown = server.json(&["show", "orders:1"]);
        assert_eq!(shown["deadlocks"][0]["is_certain"], true, "{shown}");
    });
    let (code, said) = server.outcome(&["doctor", "-q"]);
    assert!(said.contains("no threads wait for each other"), "{code} {said}");
}

/// Runs two scripts, each of which acquires a lock and then waits for the other's. They run until both have
/// reported the deadlock and `work` is done.
fn crossed(server: &Server, scripts: [&str; 2], work: impl FnOnce()) {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let mut running = scripts.map(|script| {
        let mut script = script.replace("leasehold", program);
        for (word, line) in [
            ("MEET1", "touch one; until [ -e two ]; do sleep 0.02; done"),
            ("MEET2", "touch two; until [ -e one ]; do sleep 0.02; done"),
        ] {
            script = script.replace(word, line);
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(folder.path()).env("XDG_RUNTIME_DIR", folder.path());
        shell.env("LEASEHOLD_URL", server.url()).stderr(Stdio::piped()).stdout(Stdio::null());
        shell.process_group(0).spawn().unwrap()
    });
    let said = running.each_mut().map(|script| {
        let (sender, said) = std::sync::mpsc::channel();
        let errors = BufReader::new(script.stderr.take().unwrap());
        thread::spawn(move || errors.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        said
    });
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for said in said {
            let line = loop {
                let line = said.recv_timeout(Duration::from_secs(20)).expect("the deadlock is printed");
                if line.contains("deadlock") {
                    break line;
                }
            };
            assert!(line.contains("maybe a deadlock of 2 threads"), "{line}");
            assert!(line.contains("holds a") && line.contains("for b"), "{line}");
        }
        work();
    }));
    for script in &mut running {
        let group = rustix::process::Pid::from_child(script);
        rustix::process::kill_process_group(group, rustix::process::Signal::TERM).ok();
        script.wait().unwrap();
    }
    if let Err(panic) = done {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn doctor_show_and_serve_report_a_deadlock_of_nested_runs() {
    let server = Server::start();
    let scripts = [
        "leasehold run a -- sh -c 'MEET1; leasehold run b -- true'",
        "leasehold run b -- sh -c 'MEET2; leasehold run a -- true'",
    ];
    crossed(&server, scripts, || {
        let finding = faulty(&server);
        assert_eq!(finding["deadlocks"][0]["steps"].as_array().unwrap().len(), 2, "{finding}");
        let (_, said) = server.outcome(&["show", "a"]);
        assert!(said.contains("maybe a deadlock of 2 threads"), "{said}");
        let site = Site::start(&server);
        eventually("`serve` shows the deadlock", || {
            site.get("/locks.json").json()["deadlocks"][0]["steps"]
                .as_array()
                .is_some_and(|steps| steps.len() == 2)
        });
    });
}

#[test]
fn a_deadlock_through_nested_commands_is_reported() {
    let server = Server::start();
    let scripts = [
        "leasehold elect --one-term a -- leasehold run c -- sh -c 'MEET1; leasehold run b -- true'",
        "one=$(leasehold hold b --pid $$) || exit; MEET2; leasehold hold a --pid $$",
    ];
    crossed(&server, scripts, || ());
}

#[test]
fn a_nested_run_of_the_same_lock_is_reported_as_deadlock() {
    let server = Server::start();
    let program = env!("CARGO_BIN_EXE_leasehold");
    server.ends(
        &["run", "a", "--", program, "run", "-w", "4s", "a", "--", "true"],
        75,
        "maybe a deadlock of 1 thread: ",
    );
}

#[test]
fn top_marks_the_locks_of_a_deadlock() {
    let server = Server::start();
    deadlocked(&server, || {
        let mut top = Top::sized(&server.url(), &[], 12, 140);
        top.shows(&["2 locks", "1 deadlock"]);
        top.shows(&["deadlock: orders:1"]);
        top.shows(&["deadlock: stock:2"]);
        top.types("q");
    });
}

#[test]
fn serve_shows_a_deadlock_as_a_picture_and_in_words() {
    let server = Server::start();
    let site = Site::start(&server);
    deadlocked(&server, || {
        eventually("the list has the deadlock", || {
            let listed = site.get("/locks.json").json();
            listed["deadlocks"][0]["steps"].as_array().is_some_and(|steps| steps.len() == 2)
        });
        let Some(program) = browser::find() else { return };
        let mut page = Browser::start(program, &[]);
        page.open(&site.url());
        page.eventually(
            "the deadlock is drawn",
            "document.querySelectorAll('#deadlocks svg rect').length === 2",
        );
        let text = page.value("document.getElementById('deadlocks').textContent");
        let text = text.as_str().unwrap();
        for part in ["2 threads wait for each other", "takes orders:1", "has waited", "for stock:2"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(page.value("document.querySelectorAll('#deadlocks path').length"), 4);
        assert_eq!(page.value("document.querySelectorAll('#deadlocks text.lock').length"), 2);
        assert_eq!(page.complaints, Vec::<String>::new());
    });
    eventually("the deadlock is over", || {
        site.get("/locks.json").json()["deadlocks"] == serde_json::json!([])
    });
}

#[test]
fn the_deadlock_picture_fits_a_phone_and_larger_screens() {
    let Some(program) = browser::find() else { return };
    let server = Server::start();
    let site = Site::start(&server);
    let mut page = Browser::start(program, &[]);
    page.open(&site.url());
    let long = "a-rather-long-name-of-a-tenant:42:nightly-import";
    let locks = ["orders:1", "stock:2", long, "WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW", "mail", "a", "b", "c"];
    for count in [2, 3, 8] {
        ring_of(&server, &locks[..count], || {
            page.eventually(
                "the deadlock is drawn",
                &format!("document.querySelectorAll('#deadlocks svg rect').length === {count}"),
            );
            for (width, scheme) in [(320, "light"), (800, "dark"), (1_400, "light")] {
                page.on_screen(width, 900, scheme);
                let folder = std::env::var("LEASEHOLD_PICTURES");
                if let Ok(folder) = folder {
                    page.picture(&format!("{folder}/ring-{count}-{width}-{scheme}.png"));
                }
                assert_eq!(page.value(UNREADABLE), serde_json::json!([]), "{count} threads, {width} pixels");
            }
        });
        page.eventually("the deadlock is over", "document.getElementById('deadlocks').hidden");
    }
}

/// A script that returns the texts in the picture that are too small, that leave the picture or the screen,
/// or that cover another text.
const UNREADABLE: &str = "{
    const all = [...document.querySelectorAll('#deadlocks svg text')].map(one => [one.textContent, one.getBoundingClientRect()]);
    const drawn = document.querySelector('#deadlocks svg').getBoundingClientRect();
    const meets = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
    all.filter(([, a], at) => a.height < 11 || a.left < drawn.left || a.right > drawn.right || a.right > innerWidth
        || all.some(([, b], other) => other !== at && meets(a, b))).map(([text]) => text)
}";
