//! Forked children: which process may use a client, and how an inherited client ends.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::system::pid_namespace;

/// The id of the process that made the first client; 0 before. A forked child inherits the value.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// The PID namespace of the process in `FIRST`; 0 if unknown.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);

/// The first process of each namespace has this id, so a child in a new namespace may have its parent's id.
const FIRST_OF_NAMESPACE: u32 = 1;

/// Refuses a forked child of a process that has made a client.
///
/// parking_lot, and so r2d2, keep a registry of sleeping threads. The child inherits the registry without the
/// threads: locks stay locked, and entries point into stacks that the child reuses. Nothing can clear the
/// registry from here, so clients in the child are refused rather than hang (`docs/decisions/0021-fork.md`).
pub(crate) fn enter_process() -> Result<()> {
    if FIRST.load(Ordering::Acquire) == 0 {
        NAMESPACE.store(pid_namespace(), Ordering::Relaxed);
        FIRST.compare_exchange(0, process::id(), Ordering::AcqRel, Ordering::Relaxed).ok();
    }
    refused_if_forked("connect")
}

/// Whether this process is a forked child of the process that made all existing clients. No such client may
/// be used: threads that do not exist here may hold its mutexes, and the parent uses its sockets.
///
/// The process id decides, at the cost of one system call. A child has its parent's id only in a PID
/// namespace of its own, usually as 1: for this id the namespaces are compared too, which costs some
/// microseconds.
pub(crate) fn is_forked() -> bool {
    let first = FIRST.load(Ordering::Relaxed);
    first != 0 && (first != process::id() || first == FIRST_OF_NAMESPACE && is_elsewhere())
}

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

#[expect(clippy::mem_forget, reason = "the point: see Engine's Drop")]
pub(crate) fn leak<T: ?Sized>(shared: &Arc<T>) {
    std::mem::forget(Arc::clone(shared));
}
