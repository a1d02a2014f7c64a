//! Tests each recipe over HTTP: it answers in time with 200, with 409 when another owner has the lock, and
//! with 503 when the locks' server is gone; at SIGTERM it answers the requests under way and leaves no lock
//! behind.
//!
//! `./check web` runs these tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::{LockClient, RedisLock};
use leasehold_web::WAIT;
use rustix::process::{Pid, Signal, kill_process};

/// Time limit for an answer: longer than an answer takes on a busy machine, shorter than a caller's time-out.
const IN_TIME: Duration = Duration::from_secs(8);

/// A Redis server that this test starts.
struct Redis {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Redis {
    /// Starts a server. If there is no server program, returns `None` with a message, and fails in CI.
    fn start() -> Option<Redis> {
        let listed = std::env::var("LEASEHOLD_TEST_SERVER").ok().filter(|path| !path.is_empty());
        let in_path = || {
            let folders: Vec<_> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
            let names = ["redis-server", "valkey-server"];
            names
                .iter()
                .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
                .find(|path| path.is_file())
        };
        let Some(program) = listed.map(PathBuf::from).or_else(in_path) else {
            eprintln!("SKIPPED no redis-server and no valkey-server");
            assert!(std::env::var_os("CI").is_none(), "no server");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        // If another process takes the free port first, another port is tried.
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut server = Command::new(&program);
            server.args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--appendonly",
                "no",
            ]);
            let mut child = server.arg("--dir").arg(folder.path()).stdout(Stdio::null()).spawn().unwrap();
            let url = format!("redis://127.0.0.1:{port}");
            while child.try_wait().unwrap().is_none() {
                if is_of(port, child.id()) {
                    return Some(Redis { child, url, _folder: folder });
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("no Redis could be started");
    }

    fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Whether the server that answers on the port is this process.
fn is_of(port: u16, process: u32) -> bool {
    let mut answer = String::new();
    let asked = TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"INFO server\r\nQUIT\r\n")?;
        stream.read_to_string(&mut answer)
    });
    asked.is_ok() && answer.contains(&format!("process_id:{process}\r\n"))
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A recipe that runs.
struct Program {
    child: Child,
    address: String,
}

impl Program {
    fn start(path: &str, redis: &Redis) -> Program {
        let mut program = Command::new(path);
        let mut child = program.env("REDIS_URL", &redis.url).stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Program { child, address: address.trim().to_owned() }
    }

    /// The status of `POST /report/NAME`, and how long it took.
    fn report(&self, name: &str) -> (u16, Duration) {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let request = format!(
            "POST /report/{name} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (answer.split(' ').nth(1).unwrap_or_else(|| panic!("{answer:?}")).parse().unwrap(), begun.elapsed())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the condition never became true");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The list in `clippy.toml` makes clippy find the guards across an await in these two functions, as
/// expected.
#[expect(clippy::await_holding_invalid_type, reason = "found, as it should be")]
async fn keeps_a_guard_across_an_await(lock: &RedisLock) -> leasehold::Result<()> {
    let guard = lock.acquire()?;
    tokio::task::yield_now().await;
    guard.unlock()
}

#[expect(clippy::await_holding_invalid_type, reason = "found, as it should be")]
async fn keeps_guards_across_an_await(locks: &leasehold::MultiLock) -> leasehold::Result<()> {
    let guard = locks.acquire()?;
    tokio::task::yield_now().await;
    guard.unlock()
}

/// The purpose is clippy's check of the two functions; running them only shows that they compile and work.
#[test]
fn a_guard_across_an_await_is_found_by_clippy() {
    let client = LockClient::in_memory();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(keeps_a_guard_across_an_await(&client.get_lock("a"))).unwrap();
    runtime.block_on(keeps_guards_across_an_await(&client.get_multi_lock([client.get_lock("a")]))).unwrap();
}

fn answers_in_time_and_ends_in_good_order(path: &str) {
    let Some(mut redis) = Redis::start() else { return };
    let mut program = Program::start(path, &redis);
    let client = LockClient::connect(&redis.url).unwrap();

    let (status, _) = program.report("free");
    assert_eq!(status, 200);
    assert!(!client.get_lock("free").is_locked().unwrap(), "a request left its lock");

    let busy = client.get_lock("busy").acquire().unwrap();
    let (status, took) = program.report("busy");
    assert!(status == 409 && took >= WAIT && took < IN_TIME, "{status} after {took:?}");
    busy.unlock().unwrap();
    assert_eq!(program.report("busy").0, 200);

    // The lock is freed by force during the work. The answer is neither a success nor "try again".
    std::thread::scope(|scope| {
        let request = scope.spawn(|| program.report("taken").0);
        eventually(|| client.get_lock("taken").force_unlock().unwrap());
        assert_eq!(request.join().unwrap(), 500);
    });

    std::thread::scope(|scope| {
        let requests: Vec<_> = (0..8).map(|_| scope.spawn(|| program.report("crowd").0)).collect();
        let statuses: Vec<_> = requests.into_iter().map(|request| request.join().unwrap()).collect();
        assert!(statuses.contains(&200), "{statuses:?}");
        assert!(statuses.iter().all(|status| [200, 409].contains(status)), "{statuses:?}");
    });

    redis.end();
    let (status, took) = program.report("gone");
    assert!(status == 503 && took < IN_TIME, "{status} after {took:?}");
    drop(program.child.kill());

    let Some(redis) = Redis::start() else { return };
    let mut program = Program::start(path, &redis);
    let client = LockClient::connect(&redis.url).unwrap();
    let pid = Pid::from_child(&program.child);
    std::thread::scope(|scope| {
        let request = scope.spawn(|| program.report("last").0);
        eventually(|| client.get_lock("last").is_locked().unwrap());
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(request.join().unwrap(), 200);
    });
    assert!(program.child.wait().unwrap().success(), "the program did not end cleanly");
    assert!(!client.get_lock("last").is_locked().unwrap(), "the program left its lock");
}

#[test]
fn axum_answers_in_time_and_shuts_down_cleanly() {
    answers_in_time_and_ends_in_good_order(env!("CARGO_BIN_EXE_axum"));
}

#[test]
fn actix_answers_in_time_and_shuts_down_cleanly() {
    answers_in_time_and_ends_in_good_order(env!("CARGO_BIN_EXE_actix"));
}

#[test]
fn tokio_answers_in_time_and_shuts_down_cleanly() {
    answers_in_time_and_ends_in_good_order(env!("CARGO_BIN_EXE_tokio"));
}
