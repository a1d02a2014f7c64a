//! `top` on a terminal that the test creates: what the screen shows, and what keys do.

use std::fs::File;
use std::io::Write;
use std::num::NonZeroU16;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex};

use crate::terminal::{on_terminal, resize};
use crate::world::{Run, Server, eventually, in_a_session_of_its_own};

const ROWS: u16 = 16;
const COLUMNS: u16 = 110;

pub(crate) struct Top {
    process: Run,
    terminal: File,
    pub(crate) screen: Arc<Mutex<vt100::Parser>>,
}

impl Top {
    pub(crate) fn start(url: &str, arguments: &[&str]) -> Top {
        Top::sized(url, arguments, ROWS, COLUMNS)
    }

    pub(crate) fn sized(url: &str, arguments: &[&str], rows: u16, columns: u16) -> Top {
        let mut command = in_a_session_of_its_own(&[&["top"], arguments].concat());
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(rows), size(columns), 0)));
        let shows = Arc::clone(&screen);
        let (process, terminal) =
            on_terminal(command.env("LEASEHOLD_URL", url), (rows, columns), move |bytes| {
                shows.lock().unwrap().process(bytes);
            });
        Top { process, terminal, screen }
    }

    fn becomes(&self, rows: u16, columns: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(size(rows), size(columns));
        resize(&self.terminal, rows, columns);
    }

    pub(crate) fn types(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let screen = self.screen.lock().unwrap();
        let lines = screen.screen().rows(0, screen.screen().size().1.get());
        lines.map(|line| line.trim_end().to_owned()).collect()
    }

    #[track_caller]
    pub(crate) fn shows(&self, words: &[&str]) -> String {
        let mut found = None;
        eventually(&format!("a line has {words:?}"), || {
            found = self.lines().into_iter().find(|line| {
                let mut rest = line.as_str();
                words.iter().all(|word| rest.split_once(word).map(|(_, behind)| rest = behind).is_some())
            });
            found.is_some()
        });
        found.unwrap()
    }

    #[track_caller]
    fn asks(&self, label: &str) {
        let is_asked = |text: String| {
            text.contains("release it by force?") && {
                text.split_once("held by").is_some_and(|(_, behind)| behind.contains(label))
            }
        };
        eventually(&format!("the program asks about {label}"), || is_asked(self.lines().join(" ")));
    }

    #[track_caller]
    fn shows_no_more(&self, word: &str) {
        eventually(&format!("{word:?} is not shown"), || {
            !self.lines().iter().any(|line| line.contains(word))
        });
    }

    #[track_caller]
    fn ends(&mut self) -> i32 {
        let status = self.process.wait();
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }
}

fn size(cells: u16) -> NonZeroU16 {
    NonZeroU16::new(cells).unwrap()
}

impl Drop for Top {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:#?}", self.lines());
        }
    }
}

/// The fencing token at a line's end; 0 if the line ends with the number of waiters, which is below 1000.
fn token(line: &str) -> u64 {
    let last = line.rsplit_once(' ').and_then(|(_, last)| last.parse().ok()).unwrap_or(0);
    if last < 1000 { 0 } else { last }
}

pub(crate) fn run(server: &Server, label: &str, arguments: &[&str]) -> Run {
    let mut command = server.leasehold(&["run", "-q", "--lease", "3s", "--label", label]);
    Run::start(command.args(arguments).args(["--", "sleep", "600"]))
}

#[test]
fn the_screen_shows_holders_tokens_and_the_number_of_waiters() {
    let server = Server::start();
    let mut top = Top::start(&server.url(), &["--interval", "100ms"]);
    top.shows(&["0 locks, 0 waiting, most waiters first"]);
    top.shows(&["NAME", "KIND", "HOLDER", "SINCE", "LEFT", "WAITERS", "FENCE"]);
    let holder = run(&server, "nightly", &["import"]);
    let pid = holder.pid().to_string();
    // `top` reads a lock's token only in the poll after the one that found the lock.
    let mut first = 0;
    eventually("the token is shown", || {
        let line = top.shows(&["import", "fenced lock", "nightly ", &pid, "s ", "s ", "0"]);
        first = token(&line);
        first > 0
    });
    let waiter = run(&server, "second", &["import"]);
    top.shows(&["import", "nightly", "s ", "1  "]);
    let readers = [run(&server, "one", &["-s", "report"]), run(&server, "two", &["-s", "report"])];
    top.shows(&["report", "read-write lock", " and 1 more"]);
    top.shows(&["2 locks, 1 waiting"]);
    drop(readers);
    top.shows_no_more("report");
    drop(holder);
    eventually("the next token is shown", || {
        let next = token(&top.shows(&["import", "second"]));
        assert_ne!(next, first);
        next > first
    });
    drop(waiter);
    top.shows(&["0 locks, 0 waiting"]);
    top.shows_no_more("import");
    top.types("q");
    assert_eq!(top.ends(), 0);
    eventually("the terminal's earlier text and cursor are back", || {
        let screen = top.screen.lock().unwrap();
        !screen.screen().alternate_screen() && !screen.screen().hide_cursor()
    });
}

#[test]
fn a_key_ends_a_hold_only_after_confirmation() {
    let server = Server::start();
    let _keeps = run(&server, "other", &["a"]);
    let mut holder = run(&server, "nightly", &["b"]);
    let mut top = Top::start(&server.url(), &["--interval", "100ms"]);
    top.shows(&["a ", "other"]);
    top.shows(&["b ", "nightly"]);
    top.types("sss"); // sorts by name
    top.shows(&["by name"]);
    top.types("jf");
    top.asks("nightly");
    top.types("n");
    top.shows(&["b: nothing was done"]);
    assert!(holder.0.try_wait().unwrap().is_none());
    top.types("f");
    top.shows(&["release it by force?"]);
    top.types("y");
    top.shows(&["b was released by force"]);
    assert_eq!(holder.wait().code(), Some(79));
    top.shows_no_more("nightly");
    top.shows(&["a ", "other"]);
}

#[test]
fn forcing_a_hold_already_released_spares_the_next_holder() {
    let server = Server::start();
    let holder = run(&server, "first", &["import"]);
    let mut top = Top::start(&server.url(), &["--interval", "100ms"]);
    top.shows(&["import", "first"]);
    top.types("f");
    top.asks("first");
    let mut next = run(&server, "second", &["import"]);
    drop(holder);
    top.shows(&["import", "second"]);
    top.types("y");
    top.shows(&["import has another holder by now: nothing was done"]);
    assert!(next.0.try_wait().unwrap().is_none());
}

#[test]
fn keys_filter_sort_and_scroll_the_list_of_locks() {
    let server = Server::start();
    let owner = "5c1fd2e7-1f2a-4b0c-9d3e-000000000001:1";
    // The leases end 3 s apart, and a listing takes less time than that, so each poll sorts the locks alike.
    let script = "for i = 1, 1000 do local key = string.format('job:%04d', i) redis.call('hset', key, ARGV[1], 1) \
                  redis.call('pexpire', key, 3590000 - 3000 * i) end";
    server.ask(&["EVAL", script, "0", owner]);
    server.ask(&["HSET", "a\u{1b}[2Jb", owner, "1"]);
    let mut top = Top::start(&server.url(), &["--interval", "200ms"]);
    top.shows(&["1001 locks"]);
    top.types("sss");
    top.shows(&["job:0001", "9m"]);
    top.shows(&["a\\u{1b}[2Jb", "no end"]);
    top.types("G");
    top.shows(&["job:1000"]);
    top.shows_no_more("job:0001");
    top.types("g");
    top.shows(&["job:0001"]);
    top.types("/0999");
    top.shows(&["filter: 0999"]);
    top.types("\r");
    top.shows(&["1 with “0999”"]);
    top.shows(&["job:0999"]);
    top.shows_no_more("job:0001");
    top.types("\x1b");
    top.shows(&["job:0001"]);
    top.types("r");
    top.shows(&["by name, reversed"]);
    top.types("ssssr"); // once through all orders, then reversed
    top.types("sss");
    top.shows(&["soonest end first"]);
    top.types("g");
    top.shows(&["job:1000"]);
    top.becomes(6, 80);
    top.shows_no_more("KIND");
    top.shows(&["job:0998"]);
    top.shows_no_more("job:0997");
    drop(top);
    let top = Top::start(&server.url(), &["job:00*"]);
    top.shows(&["99 locks"]);
}

#[test]
fn top_outlives_a_store_that_goes_away() {
    let mut server = Server::start();
    server.ask(&["HSET", "import", "5c1fd2e7-1f2a-4b0c-9d3e-000000000001:1", "1"]);
    let mut top = Top::start(&server.url(), &["--interval", "100ms"]);
    top.shows(&["import"]);
    server.stop();
    top.shows(&["no answer for "]);
    top.shows(&["import"]);
    top.shows(&["1 lock, ", " ago"]);
    server.start_again();
    top.shows(&["0 locks, 0 waiting"]);
    top.types("\x03");
    assert_eq!(top.ends(), 130);
}

#[test]
fn top_fails_without_a_terminal_or_a_reachable_store() {
    let server = Server::start();
    for arguments in [&["top"][..], &["--format", "json", "top"]] {
        server.ends(arguments, 64, "ls, show and watch");
    }
    let mut away = Top::start("redis://127.0.0.1:1", &[]);
    assert_eq!(away.ends(), 69);
    away.shows(&["leasehold: "]);
}

#[test]
fn the_selected_lock_and_the_force_question_fit_40_columns() {
    let server = Server::start();
    let _holder = run(&server, "nightly-import-of-all-the-orders", &["import-of-orders"]);
    let mut top = Top::sized(&server.url(), &["--interval", "100ms"], 14, 40);
    top.shows(&["NAME", "HOLDER", "SINCE", "WAITERS"]);
    top.shows_no_more("FENCE");
    let whole = |words: &str| {
        eventually(words, || {
            top.lines().join(" ").split_whitespace().collect::<Vec<_>>().join(" ").contains(words)
        });
    };
    whole("import-of-orders: fenced lock, held by");
    whole("nightly-import-of-all-the-orders");
    top.types("f");
    top.shows(&["release it by force? y: yes, else: no"]);
    top.types("n");
    top.shows(&["nothing was done"]);
}
