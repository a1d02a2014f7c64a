//! What all interop tests use: a mutex, the building of foreign programs, and a clock that processes share.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use parking_lot::MutexGuard;
use redis::{Commands, Connection};

pub(crate) use crate::support::calls;
use crate::support::prelude::*;
use crate::support::stalls::stalled_between;
use crate::support::{self, Process};

/// Lets one test of this program run at a time, because tests start many processes, and some measure times.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    watch_for_stalls();
    RUNNING.lock()
}

/// A Rust client with time-outs that suffice on a busy machine.
pub(crate) fn rust(url: &str, lease: Duration) -> LockClient {
    LockClient::builder().url(url).lease(lease).command_timeout(LONG).connect_timeout(LONG).build().unwrap()
}

/// Waits until a process ends, and panics if it failed.
pub(crate) fn ends_well(process: Process) {
    let (good, text) = process.ends_within(Duration::from_secs(120));
    assert!(good, "a Rust worker failed: {text}");
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of the agents' answers.
pub(crate) fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// Starts a thread that acquires and releases a lock. Its result is the time of the grant.
pub(crate) fn turn(lock: &RedisLock) -> Call<u64> {
    call_on(lock.clone(), |lock| {
        let guard = lock.acquire().unwrap();
        let had = monotonic();
        guard.unlock().unwrap();
        had
    })
}

pub(crate) fn listeners(admin: &mut Connection, channel: &str) -> usize {
    let (_, count): (String, usize) = redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query(admin).unwrap();
    count
}

/// The time between two readings. Panics if they are in the wrong order.
pub(crate) fn between(earlier: u64, later: u64) -> Duration {
    Duration::from_nanos(later.checked_sub(earlier).expect("the effect came before its cause"))
}

/// As [`between`], minus the time for which the machine kept the processes from running.
pub(crate) fn own_time_between(earlier: u64, later: u64) -> Duration {
    let took = between(earlier, later);
    let begun = instant(earlier);
    took.saturating_sub(stalled_between(begun, begun + took))
}

fn instant(reading: u64) -> Instant {
    now() - between(reading, monotonic())
}

pub(crate) fn scripts_run(admin: &mut Connection) -> u64 {
    calls(admin, &["eval", "evalsha"])
}

/// Waits until the lock's first waiter has subscribed and attempted again. `before` is the value of
/// [`scripts_run`] before the waiter started.
pub(crate) fn somebody_waits(admin: &mut Connection, name: &str, before: u64) {
    wait_until("a waiter has subscribed and tried again", LONG, || {
        let ask = |command: &[&str]| redis::cmd(command[0]).arg(&command[1..]).query(admin).unwrap();
        let subscribers = listening_clients(name, "NUMSUB", ask);
        subscribers > 0 && scripts_run(admin) >= before + 2
    });
}

pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name)
}

pub(crate) fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The path of `product`, which `commands` build if it is missing or older than its sources. If the build
/// fails, the test is skipped (`None`), or fails in CI.
pub(crate) fn build_once(
    what: &str,
    product: &Path,
    made_of: &[&Path],
    commands: impl FnOnce() -> Vec<Command>,
) -> Option<PathBuf> {
    // Several runs may share the folder. The lock ends when the file handle is closed.
    let folder = product.parent().unwrap();
    fs::create_dir_all(folder).unwrap();
    let in_use = File::create(folder.join(".building")).unwrap();
    in_use.lock().unwrap();
    let stamp = product.with_extension("built");
    let built = changed(&stamp).filter(|_| product.exists());
    if built.is_some_and(|built| made_of.iter().all(|part| changed(part).is_some_and(|at| at <= built))) {
        return Some(product.to_owned());
    }
    let begun = folder.join(".begun");
    File::create(&begun).unwrap();
    for mut command in commands() {
        match command.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let said =
                    [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
                return missing(what, &format!("{command:?} failed: {}", said.join("\n")));
            }
            Err(problem) => return missing(what, &format!("{command:?}: {problem}")),
        }
    }
    // The product's own time does not count: the product may be a link, or the build may leave it untouched.
    fs::rename(&begun, &stamp).unwrap();
    Some(product.to_owned())
}

fn changed(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|data| data.modified()).ok()
}

#[track_caller]
pub(crate) fn missing<T>(what: &str, why: &str) -> Option<T> {
    support::missing(&format!("no {what}: {why}"));
    None
}

pub(crate) fn keys(admin: &mut Connection) -> Vec<String> {
    let keys: Vec<String> = admin.keys("*").unwrap();
    keys.into_iter().filter(|key| !key.starts_with("leasehold_client:")).collect()
}
