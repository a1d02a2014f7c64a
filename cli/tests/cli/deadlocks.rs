//! Threads that wait for each other are shown: by `doctor`, `show`, `top` and the page of `serve`.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use leasehold::{Interrupt, LockClient};
use serde_json::Value;

use crate::browser::{self, Browser};
use crate::site::Site;
use crate::top::Top;
use crate::world::{Server, eventually, outcome};

/// Two clients, each of which holds what the other waits for, while `work` runs.
fn deadlocked(server: &Server, work: impl FnOnce()) {
    ring_of(server, &["orders:1", "stock:2"], work);
}

/// A client for each of these locks, which holds it and waits for the next one's, while `work` runs.
fn ring_of(server: &Server, locks: &[&str], work: impl FnOnce()) {
    let client = |label: &str| {
        let builder = LockClient::builder().url(server.url()).deadlocks_after(Duration::from_millis(100));
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
                // Of a larger ring some get the lock of one that has ended before.
                match client.get_lock(second).lock_interruptibly(interrupt) {
                    Ok(()) => client.get_lock(second).unlock().unwrap(),
                    Err(error) => assert!(error.is_interrupted(), "{error}"),
                }
            };
            thread::Builder::new().name(name).spawn_scoped(scope, takes).unwrap();
        }
        meet.wait();
        let asking = LockClient::connect(server.url()).unwrap();
        eventually("it can be seen", || !asking.deadlocks().unwrap().is_empty());
        // Ended whatever the work does.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        interrupt.interrupt();
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn doctor_and_show_name_each_thread_of_a_deadlock() {
    let server = Server::start();
    deadlocked(&server, || {
        let mut doctor = server.leasehold(&["doctor", "-q", "--format", "json"]);
        let (code, said) = outcome(&mut doctor);
        assert_eq!(code, 1, "{said}");
        let findings = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let finding = findings.into_iter().find(|finding| finding["check"] == "deadlocks").unwrap();
        assert_eq!(finding["result"], "fault", "{finding}");
        let words = finding["message"].as_str().unwrap();
        for part in
            ["orders:1", "stock:2", "takes orders:1", "takes stock:2", &std::process::id().to_string()]
        {
            assert!(words.contains(part), "{part}: {words}");
        }
        let steps = finding["deadlocks"][0]["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 2, "{finding}");
        assert!(
            steps
                .iter()
                .all(|step| step["pid"] == std::process::id() && step["waiting_for_seconds"].is_f64())
        );

        let (code, said) = outcome(&mut server.leasehold(&["show", "orders:1"]));
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("deadlock of 2 threads") && said.contains("thread takes stock:2"), "{said}");
        let (_, said) = outcome(&mut server.leasehold(&["show", "orders:1", "--format", "json"]));
        let shown: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!(shown["deadlocks"][0]["is_certain"], true, "{shown}");
    });
    let (code, said) = outcome(&mut server.leasehold(&["doctor", "-q"]));
    assert!(said.contains("no threads wait for each other"), "{code} {said}");
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
        eventually("programs are told", || {
            let listed = site.get("/locks.json").json();
            listed["deadlocks"][0]["steps"].as_array().is_some_and(|steps| steps.len() == 2)
        });
        let Some(program) = browser::find() else { return };
        let mut page = Browser::start(program, &[]);
        page.open(&site.url());
        page.eventually("it is drawn", "document.querySelectorAll('#deadlocks svg rect').length === 2");
        let text = page.value("document.getElementById('deadlocks').textContent");
        let text = text.as_str().unwrap();
        for part in ["2 threads wait for each other", "takes orders:1", "has waited", "for stock:2"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Arrows with their heads, each with the name of a lock.
        assert_eq!(page.value("document.querySelectorAll('#deadlocks path').length"), 4);
        assert_eq!(page.value("document.querySelectorAll('#deadlocks text.lock').length"), 2);
        assert_eq!(page.complaints, Vec::<String>::new());
    });
    eventually("it is over", || site.get("/locks.json").json()["deadlocks"] == serde_json::json!([]));
}

/// Rings of 2, 3 and 8 threads, on a phone and on larger screens.
#[test]
fn the_picture_of_a_deadlock_is_read_on_every_screen() {
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
                "it is drawn",
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
        page.eventually("it is over", "document.getElementById('deadlocks').hidden");
    }
}

/// The texts of the picture that are too small, off the picture or the screen, or over another one.
const UNREADABLE: &str = "{
    const all = [...document.querySelectorAll('#deadlocks svg text')].map(one => [one.textContent, one.getBoundingClientRect()]);
    const drawn = document.querySelector('#deadlocks svg').getBoundingClientRect();
    const meets = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
    all.filter(([, a], at) => a.height < 11 || a.left < drawn.left || a.right > drawn.right || a.right > innerWidth
        || all.some(([, b], other) => other !== at && meets(a, b))).map(([text]) => text)
}";
