//! Forked children: which process may use a client, and what becomes of a client that a child inherits.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::system::pid_namespace;

/// The process that made the first client; 0 before. A forked child inherits its parent's value.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// The namespace in which that process has its number; 0 where the system has none, or does not say.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);

/// The first process of each namespace has this number: a child of one may be the first of another.
const FIRST_OF_NAMESPACE: u32 = 1;

/// Asks whether this process may make a client: not if it is a forked child of one that has made one.
///
/// parking_lot, and so r2d2, keep one registry of all threads that sleep. A child has its parent's registry
/// as it just was, but none of the threads in it: their locks stay locked, and their entries are in stacks
/// that the child's own threads get. Nothing can clear it from here, so what would hang or be overwritten is
/// refused (`docs/decisions/0021-fork.md`).
pub(crate) fn enter_process() -> Result<()> {
    if FIRST.load(Ordering::Acquire) == 0 {
        NAMESPACE.store(pid_namespace(), Ordering::Relaxed);
        FIRST.compare_exchange(0, process::id(), Ordering::AcqRel, Ordering::Relaxed).ok();
    }
    refused_if_forked("connect")
}

/// Whether this is a forked child of the process that made all the clients there are. Nothing of them may be
/// used then: their mutexes may be held by threads that do not exist here, and their sockets are the
/// parent's.
///
/// A process number says so, and costs one question to the system. Only the number 1 is had by more than one
/// process of a family, as a rule: there the namespace is compared as well, which takes some microseconds.
pub(crate) fn is_forked() -> bool {
    let first = FIRST.load(Ordering::Relaxed);
    first != 0 && (first != process::id() || first == FIRST_OF_NAMESPACE && is_elsewhere())
}

/// Whether this is another namespace than the first client's.
fn is_elsewhere() -> bool {
    let (first, here) = (NAMESPACE.load(Ordering::Relaxed), pid_namespace());
    first != 0 && here != 0 && first != here
}

pub(crate) fn refused_if_forked(action: &'static str) -> Result<()> {
    if is_forked() {
        let words = "the process was forked after it had made a client: fork before making the first client, or start a new program";
        return Err(Error::new(ErrorKind::Forked, action, words));
    }
    Ok(())
}

/// Keeps what `shared` points to from ever being dropped.
#[expect(clippy::mem_forget, reason = "the point: see Engine's Drop")]
pub(crate) fn leak<T: ?Sized>(shared: &Arc<T>) {
    std::mem::forget(Arc::clone(shared));
}
