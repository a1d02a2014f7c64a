//! Every example does what its page says. Each runs on a private server and, where possible, without a
//! server. `tests/meta/demo.rs` tests `stock`, and `tests/stores/orders.rs` tests `orders`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::prelude::*;
use crate::support::programs::example;

fn outputs(name: &str, args: &[&str]) -> Vec<String> {
    let program = example(name);
    let run = |url: Option<&str>| {
        let mut words = vec![program.to_str().unwrap()];
        words.extend(args);
        let (success, text) = crate::support::run(&words, |command| match url {
            Some(url) => command.env("REDIS_URL", url),
            None => command.env_remove("REDIS_URL"),
        });
        assert!(success, "{name} failed with {url:?}:\n{text}");
        text
    };
    let mut outputs = vec![run(None)];
    if let Some(server) = RedisServer::start_default() {
        outputs.push(run(Some(&server.url())));
    }
    outputs
}

#[track_caller]
fn says(output: &str, texts: &[&str]) {
    let mut rest = output;
    for text in texts {
        let Some((_, behind)) = rest.split_once(text) else {
            panic!("not (or not there): {text:?}, in\n{output}")
        };
        rest = behind;
    }
}

fn lines<'a>(output: &'a str, text: &str) -> Vec<&'a str> {
    output.lines().filter(|line| line.contains(text)).collect()
}

/// Defines tests of examples, whose output must contain the texts of each list in this order.
macro_rules! outputs_say {
    ($($test:ident: $example:literal $([$($text:literal),+])+;)+) => {
        $(#[test]
        fn $test() {
            for output in outputs($example, &[]) {
                $(says(&output, &[$($text),+]);)+
            }
        })+
    };
}

outputs_say! {
    the_reentrancy_example_acquires_a_held_lock_again: "reentrancy"
        ["held 1 time ", "deposit 10: held 2", "deposit 20: held 2", "held 1 time again"]
        ["afterwards: locked false", "another thread gets it meanwhile: false"];
    the_fencing_example_refuses_a_late_write: "fenced_writes"
        ["slow has it", "written: true", "slow goes on;  written: false", "quick's report"];
    the_transfer_example_loses_no_money: "transfer"
        ["Ada has ", "Ben has ", "Cleo has ", "together 3000"];
    the_rebuild_example_gives_way_to_the_editor: "gives_way"
        ["gave way with parts left: true", "the rest is next"] // the editor's line may come anywhere between
        ["the editor has the catalogue", "the rest is next"];
    the_deadlock_example_reports_and_breaks_a_deadlock: "transfer_wrong_order"
        ["deadlock: 2 threads wait for each other", "a teller holds example:wrong:", "given up: true"]
        ["a transfer was made: true", "ended for a deadlock: 1", "made again, with both locks"];
    the_number_example_reserves_each_block_once: "number_blocks"
        ["invoices 1 to 100", "invoices 701 to 800", "blocks that nobody else has: 8"];
    the_licence_example_counts_its_seats: "licence_seats"
        ["a group of two sits down; seats left: 1", "another two may sit down: false",
         "somebody alone may: true", "who waited for all three got them: true", "seats left: 2",
         "seats left: 3"];
    the_scheduler_example_has_a_second_leader_take_over: "one_scheduler"
        ["the first starts the backup: done", "the second leads: false", "of a later term: true",
         "the second starts the report: done", "starts the backup again: refused, of an old term"];
    the_article_example_locks_with_a_token: "article_lock"
        ["taken; the key's value is ", "a token lock", "again, by the same thread: ", "free: true"];
}

#[test]
fn the_first_lock_example_prints_its_steps() {
    for output in outputs("first_lock", &[]) {
        says(
            &output,
            &[
                "waits for example:first",
                "has it for the next",
                "locked: true, by this thread: true",
                "lock: 42",
            ],
        );
        assert!(output.ends_with("locked: false\n"), "{output}");
    }
}

#[test]
fn the_lost_lease_example_reports_its_loss() {
    for output in outputs("guard_and_lost_lease", &[]) {
        says(&output, &["granted: Held", "eleven seconds later: Lost", "another client gets it: true"]);
        says(&output, &["(lost: true)", "the callback has run: true", "the other client still has it: true"]);
        assert_eq!(lines(&output, "told by").len(), 2, "{output}");
    }
}

#[test]
fn the_path_example_locks_a_path_and_everything_below() {
    for output in outputs("path_locks", &[]) {
        says(&output, &["library/east/shelf/box: locked", "library/east: locked", "library: locked"]);
        says(&output, &["library/east/desk: free", "library/west: free", "and the box within: true"]);
        says(&output, &["afterwards library: free"]);
    }
}

#[test]
fn the_cache_example_rebuilds_once_for_all_readers() {
    for output in outputs("cache_rebuild", &[]) {
        let counts = ["rebuilds", "read version 1", "read version 2"].map(|text| lines(&output, text).len());
        assert_eq!(counts, [2, 6, 6], "{output}");
    }
}

#[test]
fn the_rate_limit_example_stays_below_its_limit() {
    for output in outputs("rate_limit", &[]) {
        let (served, busy) = (lines(&output, "served").len(), lines(&output, "busy, try").len());
        assert!(served >= 3 && served + busy == 12, "{output}");
        assert!(output.ends_with("permits left: 3\n"), "{output}");
    }
}

#[test]
fn the_start_gate_example_opens_when_all_have_loaded() {
    for output in outputs("start_gate", &[]) {
        assert_eq!((lines(&output, "has loaded").len(), lines(&output, "serves").len()), (3, 3), "{output}");
        for to_go in ["2 to go", "1 to go", "0 to go"] {
            says(&output, &[to_go]);
        }
    }
}

#[test]
fn the_work_queue_example_processes_every_item() {
    for output in outputs("work_queue", &[]) {
        assert_eq!(lines(&output, "packs order").len(), 8, "{output}");
        says(&output, &["packed: 8 of 8"]);
    }
}

/// On a busy machine the processes' timers may differ by more than `at_least`. Then a tick may have no job,
/// because a late job of an earlier tick still has the lock, or a second job when `at_least` has passed since
/// the tick. Each job reports its delay, which explains both.
#[test]
fn the_job_example_runs_one_job_per_tick() {
    const TICK: i64 = 500;
    const AT_LEAST: i64 = TICK * 3 / 4;
    // The tolerance in ms: times are rounded, and the example sleeps by another clock than that of the ticks.
    const ROUNDING: i64 = 5;
    for output in outputs("nightly_job", &[&TICK.to_string()]) {
        let job = |line: &&str| {
            let (tick, rest) = line.strip_prefix("tick ")?.split_once(": process ")?;
            let late = rest.split_once("books, ")?.1.split_once(" ms")?.0;
            Some((tick.parse::<i64>().ok()?, late.parse::<i64>().ok()?))
        };
        let jobs: Vec<(i64, i64)> = lines(&output, "has closed the books").iter().filter_map(job).collect();
        for tick in 0..10 {
            let mut late: Vec<i64> = jobs.iter().filter(|job| job.0 == tick).map(|job| job.1).collect();
            late.sort_unstable();
            assert!(
                late.iter().skip(1).all(|late| *late >= AT_LEAST - ROUNDING),
                "twice at {tick}:\n{output}"
            );
            let reaches_here = |&(before, late): &(i64, i64)| {
                before < tick && before * TICK + late + AT_LEAST >= tick * TICK - ROUNDING
            };
            assert!(!late.is_empty() || jobs.iter().any(reaches_here), "nothing at {tick}:\n{output}");
        }
        says(&output, &["5 processes, 10 ticks"]);
    }
}

#[test]
fn the_inspect_example_shows_holder_and_times() {
    for output in outputs("long_import", &[]) {
        says(
            &output,
            &[
                "ada imports, as ",
                "bob is refused: ada (on ",
                // Before this text stands the program's name, if its client has a directory entry.
                "thread ada",
                ") imports, as ",
                "ms more at most",
            ],
        );
        says(&output, &["example:import: a lock, held", "held by ", "ends in ", "at the latest, on "]);
        says(&output, &["held too long: true"]);
        says(&output, &["bob may now"]);
        let held_for = lines(&output, "ms now")[0].split_whitespace().nth(1).unwrap().parse::<u32>().unwrap();
        assert!(held_for < 3_000, "refused at once: {output}");
    }
}

#[test]
fn the_ticket_example_serves_customers_in_order_of_arrival() {
    for output in outputs("ticket_desk", &[]) {
        says(&output, &["they wait: 6"]);
        says(&output, &["who only looks in is served: false"]);
        let served: Vec<_> = lines(&output, "customer ");
        let expected: Vec<_> = (0..6).map(|number| format!("customer {number} is served")).collect();
        assert_eq!(served, expected, "{output}");
    }
}

/// A running example that answers HTTP requests. `drop` kills it.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn ask(port: u16, request: &str) -> String {
    answer(port, request).lines().last().unwrap().to_owned()
}

fn answer(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = "HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    write!(stream, "{request} {head}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

test_on!(the_service_example_sells_and_shuts_down_cleanly, RedisServer::start_default(), |server| {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let mut command = Command::new(example("service"));
    command.args([&port.to_string(), "--stock", "2"]).env("REDIS_URL", server.url());
    let mut service = Service(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut out = BufReader::new(service.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.starts_with("http://127.0.0.1:"), "{line}");
    let answers =
        ["GET /stock", "POST /buy", "POST /buy", "POST /buy", "GET /stock"].map(|what| ask(port, what));
    let expected = [
        r#"{"stock":2,"orders":0}"#,
        r#"{"left":1}"#,
        r#"{"left":0}"#,
        r#"{"error":"sold out"}"#,
        r#"{"stock":0,"orders":2}"#,
    ];
    assert_eq!(answers, expected);
    kill_process(Pid::from_child(&service.0), Signal::INT).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(service.0.wait().unwrap().success() && rest.contains("releasing what is held"), "{rest}");
});

#[cfg(feature = "metrics")]
#[test]
fn the_metrics_example_is_scraped_and_shows_no_lock_name() {
    let server = RedisServer::start_default();
    let urls = std::iter::once(None).chain(server.as_ref().map(|server| Some(server.url())));
    for url in urls {
        let mut command = Command::new(example("metrics"));
        command.arg("0").stdin(Stdio::piped()).stdout(Stdio::piped());
        match &url {
            Some(url) => command.env("REDIS_URL", url),
            None => command.env_remove("REDIS_URL"),
        };
        let mut program = Service(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim_end().trim_end_matches("/metrics").rsplit_once(':').unwrap().1;
        let port: u16 = port.parse().unwrap();
        // Each series appears only after the first event of its sort, so the test scrapes repeatedly.
        let wanted = [
            "leasehold_acquire_wait_seconds_count{kind=\"lock\",outcome=\"granted\",group=\"stock\"} ",
            "leasehold_acquire_wait_seconds_count{kind=\"lock\",outcome=\"busy\",group=\"stock\"} ",
            "leasehold_acquire_wait_seconds_bucket{kind=\"lock\",outcome=\"granted\",group=\"stock\",le=\"0.025\"} ",
            "leasehold_hold_seconds_count{kind=\"lock\",end=\"released\",group=\"stock\"} ",
            "leasehold_request_seconds_count{op=\"acquire\",result=\"ok\"} ",
            "leasehold_request_seconds_count{op=\"release\",result=\"ok\"} ",
            "leasehold_request_seconds_count{op=\"hand_off\",result=\"ok\"} ",
            "leasehold_handoff_seconds_count{scope=\"local\"} ",
            "leasehold_wakeups_total{cause=\"local\"} ",
            "leasehold_wakeups_total{cause=\"message\"} ",
            "leasehold_renewals_total{result=\"error\"} 0",
            "leasehold_lost_total{reason=\"expired\"} 0",
            "leasehold_abandoned_total 0",
            "leasehold_unknown_outcomes_total 0",
            "leasehold_release_failures_total 0",
            "leasehold_holds{state=\"held\"} ",
            "leasehold_waiters ",
            "leasehold_window_remaining_min_seconds ",
            "leasehold_subscription_up 1",
        ];
        let mut text = String::new();
        let are_there = eventually(Duration::from_secs(60), || {
            text = answer(port, "GET /metrics");
            wanted.iter().all(|wanted| text.lines().any(|line| line.starts_with(wanted)))
        });
        assert!(are_there, "of {wanted:#?} not all are in\n{text}");
        assert!(!text.contains("stock:4"), "a lock's name is a label:\n{text}");
        if let Some(promtool) = crate::alerts::promtool() {
            let mut check =
                Command::new(promtool).args(["check", "metrics"]).stdin(Stdio::piped()).spawn().unwrap();
            check.stdin.take().unwrap().write_all(text.split_once("\r\n\r\n").unwrap().1.as_bytes()).unwrap();
            assert!(check.wait().unwrap().success(), "names and units as Prometheus has them");
        }
        drop(program.0.stdin.take());
        assert!(program.0.wait().unwrap().success());
    }
}

#[test]
fn every_example_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let this = std::fs::read_to_string(root.join("tests/meta/examples.rs")).unwrap();
    let entries = std::fs::read_dir(root.join("examples")).unwrap();
    let names = entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
    // `stock` and `orders` have tests in other files, and `./check web` tests the package `web`.
    let elsewhere = BTreeSet::from(["stock", "orders", "web"].map(str::to_owned));
    let missing: Vec<_> =
        names.filter(|name| !elsewhere.contains(name) && !this.contains(&format!("\"{name}\""))).collect();
    assert!(missing.is_empty(), "no test runs {missing:?}");
}
