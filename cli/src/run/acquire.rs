//! Chooses the lock, and waits for it.

use std::time::Duration;

use leasehold::{AcquireOptions, ErrorKind, LockClient, OwnedGuard, RedisLock};
use serde_json::json;

use crate::args::RunArgs;
use crate::clock::Moment;
use crate::run::messages::{self, Waiting};
use crate::run::signals::Caught;
use crate::say::{Exit, Say};
use crate::store::{explain, text};

/// Acquires the lock; also returns how long it stays held if no renewal follows. `Err` is an exit code whose
/// reason was printed.
pub(super) fn acquire(
    client: &LockClient,
    args: &RunArgs,
    caught: &Caught,
    say: Say,
) -> Result<(OwnedGuard, Duration), Exit> {
    let (name, patience) = (&args.name, &args.want.patience);
    say.detail("asking", &format!("asking for {name}"), &json!({"name": name}));
    let waiting = Waiting::begin(client, name, &args.want, say);
    let end = patience.wait.map(|most| Moment::now().plus(most));
    loop {
        let wait = end.map(|end| end.since(Moment::now())).or(patience.no_wait.then_some(Duration::ZERO));
        let options = AcquireOptions::new().interrupt(&caught.interrupt);
        let options = wait.into_iter().fold(options, AcquireOptions::wait);
        let outcome = match args.want.permits {
            Some(permits) => match permit(client, name, permits, &options, say) {
                Ok(asked) => Ok(asked?),
                Err(error) => Err(error),
            },
            None => lock(client, args).acquire_owned_with(&options),
        };
        // If a signal came with the grant, the program ends, and the dropped guard releases the lock.
        let outcome = match caught.signals.try_recv() {
            Ok(signal) => return Err(Exit::Signal(signal)),
            Err(_none) => outcome,
        };
        match outcome {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Err(say.error(&format!("{}; {}", text(&error), way_out(args)), Exit::Usage));
            }
            Err(error) => return Err(explain(&error, say)),
            Ok(None) => {
                drop(waiting);
                return Err(messages::busy(client, name, "is busy", patience.conflict_exit_code, say));
            }
            Ok(Some(guard)) => {
                if let Some(window) = full_window(args, &guard) {
                    return Ok((guard, window));
                }
                if patience.no_wait || end.is_some_and(|end| Moment::now() >= end) {
                    let words = format!(
                        "{name} was granted, and lost before the command could start: the store is too slow for this lease"
                    );
                    return Err(say.error(&words, Exit::Unavailable));
                }
            }
        }
    }
}

fn way_out(args: &RunArgs) -> &'static str {
    if args.want.fair {
        "--fair needs Redis, etcd or ZooKeeper: without it the lock also excludes, but serves waiters in no promised order"
    } else if args.want.read || args.want.write {
        "-s and -x need Redis or ZooKeeper: without them one command runs at a time"
    } else if args.want.permits.is_some() {
        "--permits needs Redis: without it one command runs at a time"
    } else {
        "use another store"
    }
}

/// How long the lock stays held if no renewal follows; `None` if it is lost. If the grant came late and the
/// client renews the hold, first waits for a renewal: a command with little time left would end at once.
fn full_window(args: &RunArgs, guard: &OwnedGuard) -> Option<Duration> {
    let lease = args.want.lease.or_default();
    let asked = args.max_hold.map_or(lease, |most| most.min(lease));
    let mut last = guard.remaining();
    if last >= asked.mul_f64(0.8) || (!is_renewed(args) && !last.is_zero()) {
        return Some(last);
    }
    // A renewal makes the window full. A store may grant less time than `asked`, so any growth counts.
    while !last.is_zero() {
        std::thread::park_timeout(Duration::from_millis(10));
        let remaining = guard.remaining();
        if remaining > last {
            return Some(remaining);
        }
        last = remaining;
    }
    None
}

/// Whether the client renews the hold. It need not if `--max-hold` is at most one lease, since the store then
/// ends the hold. But holds of readers, writers and permits are always renewed.
pub(super) fn is_renewed(args: &RunArgs) -> bool {
    let is_ended_by_store = !args.want.read && !args.want.write && args.want.permits.is_none();
    args.max_hold.is_none_or(|most| most > args.want.lease.or_default()) || !is_ended_by_store
}

fn lock(client: &LockClient, args: &RunArgs) -> RedisLock {
    let name = &args.name;
    if args.want.read || args.want.write {
        let lock = client.get_read_write_lock(name);
        let lock = if args.want.writers_first { lock.writers_first() } else { lock };
        return if args.want.read { lock.read().clone() } else { lock.write_fenced().into() };
    }
    let options = client.lock_builder(name);
    let options = if args.want.fair { options.fair() } else { options };
    let options = if args.leads { options.election() } else { options };
    args.max_hold.into_iter().fold(options, leasehold::LockBuilder::max_hold).build_fenced().into()
}

/// Acquires a permit of the semaphore `name`. The inner `Err`: the semaphore has another number of permits
/// than `permits`, and the error was printed.
fn permit(
    client: &LockClient,
    name: &str,
    permits: u32,
    options: &AcquireOptions,
    say: Say,
) -> leasehold::Result<Result<Option<OwnedGuard>, Exit>> {
    let semaphore = client.get_expirable_semaphore(name);
    if !semaphore.try_set_permits(permits)? {
        let there = semaphore.permits()?;
        if there != i64::from(permits) {
            let words = format!(
                "{name} has {there} permits, set up before, and not {permits}: `leasehold permits {name} --set {permits}` \
                 changes the number for all who use it"
            );
            return Ok(Err(say.error(&words, Exit::Usage)));
        }
    }
    Ok(Ok(semaphore.acquire_with(1, options)?.map(OwnedGuard::from)))
}
