//! The mutexes, atomics, channels and threads that all other modules use.
//!
//! With `--cfg leasehold_shuttle` (`./check model`) they come from `model`, and shuttle runs the code under
//! thousands of schedules. Process-wide counters, and the channels that report lost holds, stay real, because
//! no thread of a model waits for them.

#[cfg(leasehold_shuttle)]
#[cfg(test)]
mod model;
mod outbox;
mod waker;

#[cfg(not(leasehold_shuttle))]
mod real {
    pub(crate) use std::sync::{OnceLock, atomic};
    pub(crate) use std::{thread, thread_local};

    pub(crate) use crossbeam_channel as channel;
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

    pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
        scope: &'scope thread::Scope<'scope, '_>,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> std::io::Result<thread::ScopedJoinHandle<'scope, T>> {
        thread::Builder::new().name("leasehold-member".to_owned()).spawn_scoped(scope, body)
    }
}

#[cfg(leasehold_shuttle)]
pub(crate) use model::{
    Condvar, Mutex, MutexGuard, OnceLock, atomic, channel, spawn_scoped, thread, thread_local,
};
#[cfg(leasehold_shuttle)]
pub(crate) use model::{check, move_time, now, spawn, toss};
pub(crate) use outbox::Outbox;
#[cfg(not(leasehold_shuttle))]
pub(crate) use real::*;
pub(crate) use waker::Waker;

/// Runs `ask` for all items at the same time, the first on the caller's thread. Returns the results in the
/// order of the items; `None`: the item's thread panicked.
pub(crate) fn at_once<I: Sync, T: Send>(items: &[I], ask: impl Fn(&I) -> T + Sync) -> Vec<Option<T>> {
    let Some((first, others)) = items.split_first() else { return Vec::new() };
    thread::scope(|scope| {
        let ask = &ask;
        let begin = |item| (item, spawn_scoped(scope, move || ask(item)));
        let begun: Vec<_> = others.iter().map(begin).collect();
        let first = Some(ask(first));
        let others = begun.into_iter().map(|(item, thread)| match thread {
            Ok(thread) => thread.join().ok(),
            Err(_no_thread) => Some(ask(item)),
        });
        std::iter::once(first).chain(others).collect()
    })
}
