//! `serve`: what it lists and counts, which requests it refuses, and how it behaves without its store.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use prom_text_format_parser::{Label, Scrape, Type};
use rustix::process::Signal;
use serde_json::json;

use crate::site::{Site, answer};
use crate::world::{Run, Server, ends, eventually, leasehold, now, outcome, signal};

const MAKE: &str = "for i = tonumber(ARGV[2]), tonumber(ARGV[3]) do local name = ARGV[1] .. i; \
    redis.call('hset', name, '0a0a0a0a-0000-4000-8000-000000000000:' .. i, 1); redis.call('pexpire', name, 600000) end";

pub(crate) fn make_locks(server: &Server, prefix: &str, from: u32, to: u32) {
    server.ask(&["EVAL", MAKE, "0", prefix, &from.to_string(), &to.to_string()]);
}

pub(crate) fn make_lock(server: &Server, name: &str) {
    server.ask(&["HSET", name, "0a0a0a0a-0000-4000-8000-000000000000:1", "1"]);
}

fn scraped(site: &Site) -> Scrape {
    let answer = site.get("/metrics");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    Scrape::parse(&answer.body).unwrap_or_else(|error| panic!("{error:?}: {}", answer.body))
}

/// The samples of a metric, by the value of their first label.
fn samples(scrape: &Scrape, name: &str) -> BTreeMap<String, f64> {
    by(scrape, name, |labels| labels.first().map_or_else(String::new, |label| label.value.clone()).into())
}

fn by(scrape: &Scrape, name: &str, key: impl Fn(&[Label]) -> Option<String>) -> BTreeMap<String, f64> {
    let name = format!("leasehold_store_{name}");
    let metrics = scrape.metrics.iter().filter(|metric| metric.name == name);
    let samples = metrics.flat_map(|metric| &metric.samples);
    samples.filter_map(|sample| Some((key(&sample.labels)?, sample.value.value.as_f64()))).collect()
}

#[test]
fn twenty_viewers_cost_one_listing_per_second() {
    let server = Server::start();
    make_locks(&server, "orders:", 1, 1000);
    let site = Site::start(&server);
    let lists = || samples(&scraped(&site), "lists_total").get("ok").copied().unwrap_or(0.0);
    eventually("the first list is there", || site.get("/locks.json").json()["found"] != json!(null));
    let (begin, before) = (now(), lists());
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let list = site.get("/locks.json").json();
                    assert_eq!((&list["found"], &list["unlisted"]), (&json!(1000), &json!(0)));
                    assert_eq!(list["locks"].as_array().unwrap().len(), 1000);
                }
            });
        }
    });
    let seconds = (now() - begin).div_ceil(1_000_000_000);
    let lists = lists() - before;
    // At most one list begins per second: n + 1 in n seconds. One that had begun before may be counted too.
    assert!(lists <= seconds as f64 + 2.0, "{lists} lists in {seconds} s for 200 requests");
}

#[test]
fn locks_beyond_ten_thousand_are_counted_but_not_listed() {
    let server = Server::start();
    make_locks(&server, "orders:", 1, 10_500);
    let site = Site::start(&server);
    let mut list = site.get("/locks.json").json();
    eventually("the first list is there", || {
        list = site.get("/locks.json").json();
        list["found"] != json!(null)
    });
    assert_eq!((&list["found"], &list["unlisted"]), (&json!(10_500), &json!(500)));
    assert_eq!(list["locks"].as_array().unwrap().len(), 10_000);
    assert_eq!(samples(&scraped(&site), "locks_held")["orders"], 10_500.0);
}

#[test]
fn metrics_are_grouped_by_the_lock_name_before_the_colon() {
    let server = Server::start();
    make_locks(&server, "orders:", 1, 7);
    make_lock(&server, "we\"ird\\\n}, x=\"y:1"); // this lock has no expiry
    make_lock(&server, "plain");
    let mut run = server.begin(&["run", "--lease", "3s", "import:1", "--", "sleep", "60"]);
    eventually("the lock is held", || server.keys().contains(&"import:1".to_owned()));
    let mut waits = server.begin(&["run", "--lease", "3s", "import:1", "--", "true"]);
    let site = Site::start(&server);
    eventually("the wait and the hold are known", || {
        let scrape = scraped(&site);
        samples(&scrape, "waiters").get("import") == Some(&1.0)
            && samples(&scrape, "oldest_hold_seconds").get("import").is_some_and(|seconds| *seconds > 0.0)
    });
    let scrape = scraped(&site);
    let escaped = r#"we\"ird\\\n}, x=\"y"#;
    let held = samples(&scrape, "locks_held");
    assert_eq!(
        (held["orders"], held["import"], held["other"], held[escaped]),
        (7.0, 1.0, 1.0, 1.0),
        "{held:?}"
    );
    let endless = samples(&scrape, "locks_without_end");
    assert_eq!((endless[escaped], endless["other"], endless["orders"]), (1.0, 1.0, 0.0));
    assert_eq!(samples(&scrape, "oldest_hold_seconds").get("orders"), None);
    assert_eq!(samples(&scrape, "up")[""], 1.0);
    assert!(samples(&scrape, "list_age_seconds")[""] < 5.0);
    assert!(samples(&scrape, "list_duration_seconds")[""] > 0.0);
    assert!(samples(&scrape, "list_requests")[""] >= 1.0 && samples(&scrape, "list_keys")[""] >= 10.0);
    for metric in &scrape.metrics {
        let is_total = metric.name.ends_with("_total");
        assert_eq!(metric.kind, if is_total { Type::Counter } else { Type::Gauge }, "{}", metric.name);
        assert!(metric.help_desc.as_ref().is_some_and(|help| help.ends_with('.')), "{}", metric.name);
    }
    for run in [&mut waits, &mut run] {
        run.terminate();
    }
    eventually("the hold is over", || samples(&scraped(&site), "locks_held")["import"] == 0.0);
}

/// The samples of names without a colon, which are the group `other`, by kind of lock.
fn by_kind(scrape: &Scrape, name: &str) -> BTreeMap<String, f64> {
    let of = |labels: &[Label], key: &str| {
        labels.iter().find(|label| label.key == key).map(|label| label.value.clone())
    };
    by(scrape, name, |labels| of(labels, "kind").filter(|_| of(labels, "group").as_deref() == Some("other")))
}

#[test]
fn metrics_of_serve_distinguish_leaders_permits_and_locks() {
    let server = Server::start();
    let uses: [&[&str]; 7] = [
        &["elect", "scheduler"],
        &["elect", "scheduler"],
        &["run", "--permits", "1", "seats"],
        &["run", "--permits", "1", "seats"],
        &["once", "nightly", "--at-least", "1m", "--at-most", "2h"],
        &["run", "--max-hold", "2h", "deploy"],
        &["run", "import"],
    ];
    let mut runs: Vec<Run> = uses
        .iter()
        .map(|arguments| {
            let arguments: Vec<&str> = arguments.iter().copied().chain(["--", "sleep", "60"]).collect();
            server.begin(&arguments)
        })
        .collect();
    let library = leasehold::LockClient::connect(server.url()).unwrap();
    let candidate = library.leader("own").unwrap();
    let site = Site::start(&server);
    eventually("each lock is counted under its kind", || {
        let scrape = scraped(&site);
        let (held, waiters) = (by_kind(&scrape, "locks_held"), by_kind(&scrape, "waiters"));
        let of = |all: &BTreeMap<String, f64>, kind: &str| all.get(kind).copied();
        let held = ["leader", "permits", "bounded", "lock"].map(|kind| of(&held, kind));
        let waiters = ["leader", "permits", "bounded", "lock"].map(|kind| of(&waiters, kind));
        held == [Some(2.0), Some(1.0), Some(2.0), Some(1.0)]
            && waiters == [Some(1.0), Some(1.0), Some(0.0), Some(0.0)]
            && ["leader", "bounded", "lock"]
                .iter()
                .all(|kind| by_kind(&scrape, "oldest_hold_seconds").contains_key(*kind))
    });
    let scrape = scraped(&site);
    assert!(by_kind(&scrape, "locks_without_end").values().all(|number| *number == 0.0), "permits have ends");
    let seats = site.lock("seats").unwrap();
    assert_eq!((&seats["use"], &seats["has_no_end"]), (&json!("permits"), &json!(false)), "{seats}");
    let scheduler = site.lock("scheduler").unwrap();
    assert_eq!((&scheduler["use"], &scheduler["holders"][0]["leads"]), (&json!("leader"), &json!(true)));
    let (_, said) = server.outcome(&["show", "scheduler"]);
    assert!(said.contains("as the leader"), "{said}");
    candidate.withdraw().unwrap();
    for run in &mut runs {
        run.terminate();
    }
    eventually("all is over", || by_kind(&scraped(&site), "locks_held").get("leader") == Some(&0.0));
}

#[test]
fn a_lock_name_with_html_is_served_only_as_json() {
    let server = Server::start();
    let name = "</script><img src=x onerror=alert(1)>\u{202e}\"&amp;";
    make_lock(&server, name);
    let site = Site::start(&server);
    let answer = site.get("/locks.json");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.json()["locks"][0]["name"], name);
    let page = site.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(!page.body.contains("onerror"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    assert_eq!(page.header("cache-control"), Some("no-store"));
}

#[test]
fn serve_refuses_unknown_paths_and_answers_only_get_and_head() {
    let server = Server::start();
    let site = Site::start(&server);
    let host = site.address.to_string();
    assert_eq!(site.get("/favicon.ico").status, 404);
    assert_eq!(site.get("/../etc/passwd").status, 404);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get"] {
        for path in ["/", "/locks.json", "/metrics", "/healthz", "/none"] {
            let answer = site.ask(method, path, &host);
            assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")), "{method} {path}");
        }
    }
    let body = "x".repeat(20_000);
    let request = format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(site.send(&request).status, 405);
    for (path, kind) in [("/", "text/html"), ("/locks.json", "application/json"), ("/metrics", "text/plain")]
    {
        let got = site.get(path);
        assert!(got.header("content-type").unwrap().starts_with(kind));
        assert_eq!(got.header("content-length").unwrap(), got.body.len().to_string());
    }
    for (path, status) in
        [("/", 200), ("/locks.json", 200), ("/metrics", 200), ("/healthz", 200), ("/none", 404)]
    {
        let head = site.ask("HEAD", path, &host);
        assert_eq!((head.status, &*head.body), (status, ""), "{path}");
        assert!(head.header("content-length").unwrap().parse::<usize>().unwrap() > 0, "{path}");
    }
}

#[test]
fn a_host_header_that_is_not_allowed_is_refused() {
    let server = Server::start();
    let arguments = ["--format", "json", "serve", "--listen", "127.0.0.1:0", "--host", "Locks.example.com"];
    let site = Site::with(&mut server.leasehold(&arguments));
    for host in
        ["localhost", "localhost:80", "127.0.0.1", "[::1]:9477", "locks.example.com", "LOCKS.example.com:443"]
    {
        for path in ["/", "/locks.json", "/metrics", "/healthz"] {
            assert_eq!(site.ask("GET", path, host).status, 200, "{host} {path}");
        }
    }
    for host in
        ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:9477", "10.1.1.1", "", "a b", "::"]
    {
        for (method, path) in
            [("GET", "/"), ("GET", "/locks.json"), ("GET", "/metrics"), ("GET", "/healthz"), ("POST", "/")]
        {
            let answer = site.ask(method, path, host);
            assert_eq!(answer.status, 421, "{host}: {method} {path}");
            assert!(!answer.body.contains("evil"), "{}", answer.body);
        }
    }
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n".to_owned(), 400),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), 400),
        // Browsers always send `Host`, so a request without it comes from no web page, and is answered.
        ("GET /healthz HTTP/1.0\r\n\r\n".to_owned(), 200),
        ("GET /healthz HTTP/1.0\r\nHost: evil.example\r\n\r\n".to_owned(), 421),
    ] {
        assert_eq!(site.send(&request).status, status, "{request:?}");
    }
}

#[test]
fn slow_http_clients_do_not_block_others() {
    let server = Server::start();
    make_locks(&server, "orders:", 1, 1000);
    let site = Site::start(&server);
    eventually("the locks are listed", || site.locks().len() == 1000);
    // More clients than the 64 served at a time: some send half a request, others do not read their answer.
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..10 {
        slow.extend((0..30).map(|number| {
            let mut stream = site.connect();
            let part = if number % 3 == 0 {
                "GET /locks.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
            } else {
                "GET / HT"
            };
            // The server may have closed this connection already, to serve the next client.
            drop(stream.write_all(part.as_bytes()));
            stream
        }));
        assert_eq!(site.get("/locks.json").json()["found"], 1000);
        let last = slow.last().unwrap();
        last.set_nonblocking(true).unwrap();
        let seen = last.peek(&mut [0]).map_err(|error| error.kind());
        assert_eq!(seen, Err(ErrorKind::WouldBlock), "the last connection was answered or closed");
    }
}

#[test]
fn http_requests_are_limited_in_size_and_time() {
    let server = Server::start();
    let site = Site::start(&server);
    let head = |more: &str| format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{more}\r\n");
    assert_eq!(site.send(&head(&format!("X: {}\r\n", "y".repeat(4000)))).status, 200);
    assert_eq!(site.send(&head(&format!("X: {}\r\n", "y".repeat(9000)))).status, 431);
    assert_eq!(site.send(&head(&"X: y\r\n".repeat(100))).status, 431);
    assert_eq!(site.send(&format!("GET /{} HTTP/1.1\r\n", "y".repeat(9000))).status, 431);
    assert_eq!(site.send("\u{16}\u{3}\u{1}\u{2}nothing of HTTP\r\n\r\n").status, 400);
    let (begin, mut drips) = (now(), site.connect());
    let reader = drips.try_clone().unwrap();
    let drip = thread::spawn(move || {
        let request = format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(1000));
        for letter in request.as_bytes() {
            if drips.write_all(&[*letter]).is_err() {
                break;
            }
            thread::park_timeout(Duration::from_millis(200));
        }
    });
    let status = answer(reader).status;
    let took = Duration::from_nanos(now() - begin);
    assert_eq!(status, 408);
    assert!(took > Duration::from_secs(4) && took < Duration::from_secs(30), "{took:?}");
    drip.join().unwrap();
}

#[test]
fn serve_writes_nothing_to_the_store() {
    let server = Server::start();
    make_locks(&server, "orders:", 1, 20);
    let changes = || {
        let info = server.ask(&["INFO", "persistence"]);
        info.lines().find(|line| line.starts_with("rdb_changes_since_last_save:")).unwrap().to_owned()
    };
    let before = changes();
    let mut site = Site::start(&server);
    for _ in 0..3 {
        for path in ["/", "/locks.json", "/metrics", "/healthz"] {
            assert_eq!(site.get(path).status, 200);
        }
        let lists = samples(&scraped(&site), "lists_total")["ok"];
        eventually("the locks are listed again", || samples(&scraped(&site), "lists_total")["ok"] > lists);
    }
    assert_eq!(site.end(Signal::TERM), Some(143));
    assert_eq!(changes(), before);
    assert_eq!(server.ask(&["KEYS", "leasehold_client*"]).trim(), "*0");
}

#[test]
fn serve_outlives_a_store_that_goes_away() {
    let mut server = Server::start();
    make_locks(&server, "orders:", 1, 3);
    let mut site = Site::start(&server);
    eventually("the locks are listed", || site.locks().len() == 3);
    assert_eq!((site.get("/healthz").status, &*site.get("/healthz").body), (200, "ok\n"));

    server.stop();
    eventually("the store's end is noticed", || {
        site.get("/healthz").status == 503 && site.get("/locks.json").status == 503
    });
    let answer = site.get("/locks.json");
    let list = answer.json();
    assert_eq!(list["error"], "the store does not answer");
    assert!(list["error_for_seconds"].as_f64().is_some() && list["age_seconds"].as_f64().is_some());
    assert_eq!(list["locks"].as_array().unwrap().len(), 3, "the last known locks");
    let scrape = scraped(&site);
    assert_eq!(samples(&scrape, "up")[""], 0.0);
    assert_eq!(samples(&scrape, "locks_held"), BTreeMap::new(), "old numbers are still shown");
    eventually("a list failed", || samples(&scraped(&site), "lists_total")["error"] >= 1.0);
    assert_eq!(site.get("/").status, 200);
    site.says("error");

    server.start_again();
    make_locks(&server, "orders:", 1, 2);
    eventually("the store's return is noticed", || {
        site.get("/healthz").status == 200 && site.locks().len() == 2
    });
    site.says("back");
    assert_eq!(samples(&scraped(&site), "up")[""], 1.0);
}

#[test]
fn a_hanging_store_does_not_block_serve() {
    let server = Server::start();
    let site = Site::start(&server);
    assert_eq!(site.get("/healthz").status, 200);
    signal(server.pid(), Signal::STOP);
    eventually("the store's silence is noticed", || {
        let begin = now();
        let all = ["/healthz", "/locks.json"].map(|path| site.get(path).status);
        let took = Duration::from_nanos(now() - begin);
        assert!(took < Duration::from_secs(15), "{took:?}");
        all == [503, 503]
    });
    signal(server.pid(), Signal::CONT);
    eventually("the store's return is noticed", || {
        site.get("/healthz").status == 200 && site.get("/locks.json").status == 200
    });
}

#[test]
fn a_signal_stops_serve_at_once() {
    let server = Server::start();
    for (by, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut site = Site::start(&server);
        let _asks = site.connect();
        let begin = now();
        assert_eq!(site.end(by), Some(code));
        let took = Duration::from_nanos(now() - begin);
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
    let mut site = Site::start(&server);
    signal(server.pid(), Signal::STOP);
    let mut asks = site.connect();
    asks.write_all(b"GET /locks.json HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let begin = now();
    assert_eq!(site.end(Signal::TERM), Some(143));
    let took = Duration::from_nanos(now() - begin);
    assert!(took < Duration::from_secs(3), "{took:?}");
    drop(asks.shutdown(Shutdown::Both));
    signal(server.pid(), Signal::CONT);
}

#[test]
fn no_url_and_no_password_is_shown() {
    let mut server = Server::start();
    server.ask(&["CONFIG", "SET", "requirepass", "S3CR3T"]);
    let (url, port) = (server.url(), server.url().rsplit(':').next().unwrap().to_owned());
    let arguments = ["--format", "json", "serve", "--listen", "127.0.0.1:0"];
    let url = url.replace("redis://", "redis://:S3CR3T@");
    let site = Site::with(leasehold(&arguments).env("LEASEHOLD_URL", url));
    let is_clean = || {
        for path in ["/", "/locks.json", "/metrics", "/healthz", "/none"] {
            let answer = site.get(path);
            let text = format!("{}{}", answer.head, answer.body);
            for secret in ["S3CR3T", "redis:", &format!(":{port}")] {
                assert!(!text.contains(secret), "{path}: {text}");
            }
        }
    };
    is_clean();
    server.stop();
    eventually("the store's end is noticed", || {
        site.get("/healthz").status == 503 && site.get("/locks.json").status == 503
    });
    is_clean();
}

#[test]
fn invalid_serve_arguments_fail_at_once() {
    let server = Server::start();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (arguments, code, words) in [
        (vec!["serve", "--listen", &address], 70, "cannot listen on"),
        (vec!["serve", "--listen", "nonsense"], 64, "an address and a port"),
        (vec!["serve", "--host", "http://x/"], 64, "host"),
    ] {
        let (exit, said) = server.outcome(&arguments);
        assert_eq!(exit, code, "{arguments:?}: {said}");
        assert!(said.contains(words), "{said}");
    }
    ends(leasehold(&["serve"]).env("LEASEHOLD_URL", "redis://127.0.0.1:1"), 69, "");
    server.ask(&["ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-scan"]);
    let url = server.url().replace("redis://", "redis://poor:pw@");
    ends(leasehold(&["serve", "--listen", "127.0.0.1:0"]).env("LEASEHOLD_URL", url), 77, "");
}

#[test]
fn the_last_success_stays_shown_when_a_later_run_fails() {
    let server = Server::start();
    let once = |script: &str, least: &str| {
        let arguments =
            ["once", "-q", "nightly", "--at-least", least, "--at-most", "60s", "--", "sh", "-c", script];
        let mut command = server.leasehold(&arguments);
        command.arg(server.path("go"));
        command
    };
    let serve =
        ["--format", "json", "serve", "--listen", "127.0.0.1:0", "--job", "nightly", "--job", "never"];
    let site = Site::with(&mut server.leasehold(&serve));
    let of = |name: &str| samples(&scraped(&site), name).get("nightly").copied();
    assert_eq!((of("job_runs"), of("job_last_exit_code")), (Some(0.0), None));
    assert_eq!(outcome(&mut once("exit 0", "1ms")).0, 0);
    eventually("the exit code is shown", || of("job_last_exit_code") == Some(0.0));
    let success = of("job_last_success_timestamp_seconds").unwrap();
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((wall - success).abs() < 60.0, "{success} at {wall}");
    let script = "while [ ! -e $0 ]; do sleep 0.05; done; exit 3";
    let mut failing = Run::start(&mut once(script, "50s"));
    eventually("the job is shown as running", || of("job_runs") == Some(1.0));
    let jobs = site.get("/locks.json").json()["jobs"].clone();
    assert_eq!((&jobs[0]["name"], &jobs[0]["runs"]), (&json!("nightly"), &json!(true)), "{jobs}");
    assert_eq!(
        (&jobs[0]["last_run"]["exit_code"], &jobs[1]["last_run"]),
        (&json!(0), &json!(null)),
        "{jobs}"
    );
    std::fs::write(server.path("go"), "").unwrap();
    assert_eq!(failing.wait().code(), Some(3));
    eventually("the job's end is shown", || of("job_last_exit_code") == Some(3.0));
    assert_eq!(of("job_runs"), Some(0.0));
    assert!((of("job_last_success_timestamp_seconds").unwrap() - success).abs() < 2.0);
    let metrics = scraped(&site);
    let at = |name: &str| samples(&metrics, name)["nightly"];
    assert!(at("job_last_run_timestamp_seconds") > at("job_last_success_timestamp_seconds"));
    assert_eq!(samples(&scraped(&site), "job_last_exit_code").len(), 1, "the other job never ran");
}
