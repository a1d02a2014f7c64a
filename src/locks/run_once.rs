//! A job that one of many processes runs at each tick, although the timers of all fire.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted, ONCE};
use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
use crate::locks::guard::OwnedGuard;
use crate::observe::event::Event;
use crate::park::Parker;
use crate::seam::capabilities::SPLIT_PAUSE;
use crate::seam::{Failure, Kind};
use crate::time::{Lease, checked_span, random_between};

pub(crate) fn run_once<R>(
    engine: &Arc<Engine>,
    (kind, name): (Kind, &Arc<LockName>),
    at_least: Duration,
    at_most: Duration,
    job: impl FnOnce(&OwnedGuard) -> R,
) -> Result<Option<R>> {
    const ACTION: &str = "run_once";
    let on_this = |error: Error| error.on(name.given());
    let at_least = checked_span(ACTION, "at_least", at_least).map_err(on_this)?;
    let at_most = checked_span(ACTION, "at_most", at_most).map_err(on_this)?;
    Error::require(ACTION, at_least <= at_most, || {
        format!("at_least ({at_least:?}) is longer than at_most ({at_most:?})")
    })
    .map_err(on_this)?;
    engine.usable(ACTION).map_err(on_this)?; // connects if needed: only then are the capabilities known
    let words = "this store cannot do it: it cannot set when a lock that is held will end";
    Error::when(!engine.store.capabilities.can_expire_in, ErrorKind::Unsupported, ACTION, || words)
        .map_err(on_this)?;
    let local = engine.registry.local(kind, name);
    let want = AcquireCall::new(ACTION, kind, (name, &local), ONCE);
    let want = AcquireCall { lease: Lease::Fixed(at_most), ..want };
    let Some(entered) = enter(engine, &want)? else { return Ok(None) };
    // From here on the job counts as run, even if it panics: `JobLock` keeps the lock for `at_least`.
    let mut ran = JobLock { guard: Some(OwnedGuard::new(engine, entered)), at_least };
    let result = ran.guard.as_ref().map(job);
    match ran.end() {
        Err(error) if was_unprotected(&error) => return Err(error.after_work()),
        // The job was protected and its result counts, so a failed release is only reported as an event.
        Err(error) => {
            let event = Event::ReleaseFailed { name: name.given(), error: &error };
            engine.reporter.report(|observer| observer.event(&event));
        }
        Ok(()) => {}
    }
    Ok(result)
}

fn was_unprotected(error: &Error) -> bool {
    error.is_lost() || error.is_not_held() || matches!(error.kind(), ErrorKind::ShutDown | ErrorKind::Forked)
}

/// Acquires the lock unless somebody has it. One try decides, except on Redlock: its servers may split, each
/// granting the lock to another process, so that none gets a majority.
fn enter(engine: &Engine, want: &AcquireCall<'_>) -> Result<Option<Granted>> {
    for tries_left in (0..SPLIT_TRIES).rev() {
        let entered = engine.acquire(want)?;
        if entered.is_some() || tries_left == 0 {
            return Ok(entered);
        }
        let Some(majority) = &engine.store.capabilities.majority else { return Ok(None) };
        let is_split =
            majority.is_split(want.kind, want.name, engine.one_command()).map_err(Failure::into_read_error);
        if !is_split.map_err(|error| error.during(want.action).on(want.name.given()))? {
            return Ok(None);
        }
        // The pause is random, so that the same processes do not split the servers again.
        Parker::new(&engine.clock).park(engine.clock.after(random_between(SPLIT_PAUSE)), None);
    }
    Ok(None)
}

/// Maximum number of tries while the servers look split. While Redisson's Redlock holds the lock, they always
/// look split, because Redisson uses another owner on each server.
const SPLIT_TRIES: u32 = 12;

struct JobLock {
    guard: Option<OwnedGuard>,
    at_least: Duration,
}

impl JobLock {
    fn end(&mut self) -> Result<()> {
        self.guard.take().map_or(Ok(()), |guard| guard.unlock_after(self.at_least))
    }
}

impl Drop for JobLock {
    fn drop(&mut self) {
        // Does something only if the job panicked. The client repeats a release that fails.
        drop(self.end());
    }
}
