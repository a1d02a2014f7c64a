//! Support for all tests: servers, faults, and common checks.
//!
//! Each test program includes this once, by `#[path = "../support/mod.rs"] mod support;`, since it is no
//! crate (`tests/README.md` says why).
#![allow(dead_code, unused_imports, unused_macros, reason = "each test program uses another part of this")]
#![allow(
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    reason = "a module of test binaries, no API"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on shall stop there; clippy.toml exempts test functions only"
)]

pub mod alone;
pub mod caching;
pub mod cluster;
pub mod epilogue;
pub mod etcd;
pub mod heap;
pub mod history;
pub mod load;
#[cfg(feature = "mysql")]
pub mod mysql;
pub mod netns;
pub mod observer;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod processes;
pub mod programs;
pub mod proxy;
#[cfg(feature = "metrics")]
pub mod recorder;
pub mod relay;
pub mod running;
pub mod sentinel;
pub mod server;
pub mod stalls;
pub mod talk;
pub mod threads;
pub mod timing;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use alone::{Process, alone, alone_within, reexecuted, test_command, test_name};
pub use stalls::stalled_since;
pub use threads::{
    Call, Holding, Waiter, all_return, call, call_on, deadlocked, elsewhere, end, quiet_panic, side_by_side,
    start, turn,
};
pub use timing::{
    LONG, RENEWED, SLACK, await_renewal, comes_true_within, comes_within, eventually, in_time, instant_of,
    leased, let_pass, median, mono, ms, now, receive, slack_since, throughout, wait_until, watch_for_stalls,
    within,
};

pub mod prelude {
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub use std::thread;
    pub use std::time::{Duration, Instant};

    pub use leasehold::crossbeam_channel::{Receiver, Sender, bounded, unbounded};
    pub use leasehold::{
        AcquireOptions, ClientBuilder, ErrorKind, Guard, HoldState, Interrupt, LockClient, LossReason,
        ManualClock, MemoryStore, NotHeld, OwnedGuard, RedisLock,
    };
    pub use parking_lot::Mutex;

    pub use super::server::{RedisServer, default_server};
    pub use super::stalls::own_time_since;
    pub(crate) use super::test_on;
    pub use super::{
        Call, Holding, LONG, RENEWED, Raise, SLACK, Waiter, all_return, alone, alone_within, call, call_on,
        comes_true_within, comes_within, connected, elsewhere, end, eventually, fails, fails_saying, fresh,
        in_time, leased, let_pass, listening_clients, may_pass, median, ms, now, quiet_panic, receive, shout,
        side_by_side, slack_since, stalled_since, start, test_command, throughout, turn, wait_until,
        watch_for_stalls, within,
    };
}

/// Defines a test on the server that `$server` starts; without a server the test is skipped. `$alone`, such
/// as a mutex guard that keeps the program's other tests out, lives as long as the test.
macro_rules! test_on {
    ($name:ident, $alone:expr, $server:expr, |$given:pat_param| $body:block) => {
        #[test]
        fn $name() {
            let _alone = $alone;
            let Some($given) = $server else { return };
            $body
        }
    };
    ($name:ident, $server:expr, |$given:pat_param| $body:block) => {
        #[test]
        fn $name() {
            let Some($given) = $server else { return };
            $body
        }
    };
}
pub(crate) use test_on;

/// A name that no other test uses: `label` and random digits.
pub fn fresh(label: &str) -> String {
    format!("{label}-{:012x}", random() >> 16)
}

pub fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Whether this is CI, where a missing server, JDK or privilege fails a test that would otherwise be skipped.
pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !value.is_empty() && value != "false" && value != "0")
}

/// Writes a line to standard error directly, since the test harness would hide a passing test's output.
pub fn shout(line: &str) {
    let mut text = line.to_owned();
    text.push('\n');
    let mut out = std::io::stderr();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).expect("stderr");
}

/// This thread's name as stores show it: they keep 64 characters.
pub fn shown_thread() -> String {
    std::thread::current().name().expect("a test's thread has its name").chars().take(64).collect()
}

/// Reports to `./check` that the test is skipped, because `what` is missing. In CI, panics instead.
#[track_caller]
pub fn missing(what: &str) {
    let line = format!("SKIPPED {}: {what}", std::thread::current().name().unwrap_or("?"));
    assert!(!in_ci(), "{line} (in CI that is a failure)");
    shout(&line);
}

/// Starts a program with empty input. [`stalls`] then counts its waits for a processor.
///
/// A shell waits until this call is over, and then becomes the program, with the same pid. Otherwise a short
/// program might end while the C library, to start it, blocks this thread's signals. The kernel would give
/// SIGCHLD to another thread, where a read with a time-out, in another test, would fail with EINTR.
pub fn spawn<S: AsRef<OsStr>>(program: &[S], configure: impl FnOnce(&mut Command) -> &mut Command) -> Child {
    stalls::watch();
    if cfg!(windows) {
        // On Windows no signal reports a child's end, so the program starts at once.
        let mut command = Command::new(&program[0]);
        return configure(command.args(&program[1..]).stdin(Stdio::null()))
            .spawn()
            .expect("the program starts");
    }
    let mut command = Command::new("sh");
    command.args(["-c", "read -r go && exec \"$@\" </dev/null", "sh"]).args(program).stdin(Stdio::piped());
    let mut child = configure(&mut command).spawn().expect("sh starts");
    let mut gate = child.stdin.take().expect("a pipe");
    gate.write_all(b"go\n").expect("sh waits at the gate");
    child
}

/// Runs a program to its end. Returns whether it succeeded, and its output.
pub fn run<S: AsRef<OsStr>>(
    program: &[S],
    configure: impl FnOnce(&mut Command) -> &mut Command,
) -> (bool, String) {
    let child = spawn(program, |command| configure(command.stdout(Stdio::piped()).stderr(Stdio::piped())));
    let out = child.wait_with_output().expect("a child can be waited for");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.success(), text)
}

/// Builds a client. Retries, because on a busy machine the first attempt may exceed the time-out.
pub fn connected(build: impl Fn() -> leasehold::Result<leasehold::LockClient>) -> leasehold::LockClient {
    let mut built = None;
    let connects = || {
        let outcome = build();
        let is_late = outcome.as_ref().is_err_and(leasehold::Error::is_retryable);
        built = Some(outcome);
        !is_late
    };
    assert!(eventually(timing::LONG, connects), "no connection: {built:?}");
    built.expect("a connect was tried").expect("the client connects")
}

/// The error of this outcome. Panics unless the call failed with this kind of error.
#[track_caller]
pub fn fails<T>(outcome: leasehold::Result<T>, kind: leasehold::ErrorKind) -> leasehold::Error {
    let Err(error) = outcome else { panic!("the call succeeded, and {kind:?} was expected") };
    assert_eq!(error.kind(), kind, "{}", observer::texts(&error));
    error
}

/// As [`fails`], and panics unless the error's text contains `words`.
#[track_caller]
pub fn fails_saying<T>(
    outcome: leasehold::Result<T>,
    kind: leasehold::ErrorKind,
    words: &str,
) -> leasehold::Error {
    let error = fails(outcome, kind);
    assert!(error.to_string().contains(words), "{error}, without {words:?}");
    error
}

/// Whether a temporary fault of the server or the network explains the error. Unlike
/// [`is_retryable`](leasehold::Error::is_retryable), this includes errors of releases.
pub fn may_pass(error: &leasehold::Error) -> bool {
    use leasehold::ErrorKind::{Busy, OutOfMemory, ReadOnly, StaleRing, TimedOut, Unreachable};
    matches!(error.kind(), Busy | OutOfMemory | ReadOnly | StaleRing | TimedOut | Unreachable)
}

pub fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// The number of clients that listen for a lock: for their turns in its queue, or for all releases, whichever
/// is more. `count` is NUMSUB or SHARDNUMSUB. `ask` sends a command to the lock's server.
pub fn listening_clients(name: &str, count: &str, mut ask: impl FnMut(&[&str]) -> redis::Value) -> usize {
    let channels = if count == "NUMSUB" { "CHANNELS" } else { "SHARDCHANNELS" };
    let turns = ask(&["PUBSUB", channels, &format!("leasehold_wake:{{{name}}}:*")]);
    let turns: Vec<String> = redis::from_redis_value(turns).expect("a list of channels");
    let (_, releases): (String, usize) =
        redis::from_redis_value(ask(&["PUBSUB", count, &channel(name)])).expect("a channel and a number");
    turns.len().max(releases)
}

/// How often the server has run these commands, in sum.
pub fn calls(server: &mut redis::Connection, commands: &[&str]) -> u64 {
    let said: String = redis::cmd("INFO").arg("commandstats").query(server).expect("the server answers");
    let count = |command: &&str| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |rest| rest.split(',').next().expect("a number").parse::<u64>().expect("a number"))
    };
    commands.iter().map(count).sum()
}

/// Sends the signal with this name. After `STOP`, waits until every thread has stopped: the kernel stops them
/// one by one, and a thread that still runs could answer a request.
#[track_caller]
pub fn signal(pid: u32, name: &str) {
    let (good, text) = run(&["kill", &format!("-{name}"), &pid.to_string()], |command| command);
    assert!(good, "kill -{name}: {text}");
    if name == "STOP" && cfg!(target_os = "linux") {
        let stands = || {
            let states = thread_states(pid);
            !states.is_empty() && states.iter().all(|state| *state == 'T')
        };
        assert!(
            eventually(Duration::from_secs(10), stands),
            "process {pid} did not stop: {:?}",
            thread_states(pid)
        );
    }
}

fn thread_states(pid: u32) -> Vec<char> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let state = |stat: String| stat.rsplit_once(')')?.1.trim_start().chars().next();
    let stat = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat")).ok();
    threads.filter_map(|thread| state(stat(thread.ok()?)?)).collect()
}

/// Sets a flag when dropped, even in a panic: a scope waits for threads that end by this flag.
pub struct Raise<'a>(pub &'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A command that runs if this process ends without dropping this value, as after a kill. A shell waits for
/// that: for the end of a pipe that only this process holds open.
pub struct LastWill {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl LastWill {
    pub fn new(command: &[&str]) -> LastWill {
        let mut shell = Command::new("sh")
            .args(["-c", "read -r line || \"$@\"", "sh"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let pipe = shell.stdin.take();
        LastWill { shell, pipe }
    }
}

impl Drop for LastWill {
    /// Cancels the command, which is not needed after a drop.
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take()
            && pipe.write_all(b"done\n").is_err()
        {
            shout("a last will ended before it was taken back");
        }
        if let Err(error) = self.shell.wait() {
            shout(&format!("a last will was not reaped: {error}"));
        }
    }
}
