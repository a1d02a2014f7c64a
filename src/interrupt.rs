//! Ending waits from another thread.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Waker};

/// A token by which another thread ends waits: each wait with this token returns an error that
/// [`is_interrupted`](crate::Error::is_interrupted).
///
/// A clone is the same token. A token stays interrupted: make a new one for later waits.
///
/// # Examples
/// ```
/// use leasehold::{Interrupt, LockClient};
///
/// let client = LockClient::in_memory();
/// let interrupt = Interrupt::new();
/// let holder = client.get_lock("report").acquire_owned()?;
/// let waiter = std::thread::spawn({
///     let (lock, interrupt) = (client.get_lock("report"), interrupt.clone());
///     move || lock.lock_interruptibly(&interrupt)
/// });
/// interrupt.interrupt();
/// assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
/// drop(holder);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Interrupt {
    shared: Arc<InterruptState>,
}

#[derive(Default)]
struct InterruptState {
    is_set: AtomicBool,
    sleepers: Mutex<InterruptSleepers>,
}

#[derive(Default)]
struct InterruptSleepers {
    next_id: u64,
    wakers: HashMap<u64, Waker>,
}

/// The registration of a sleeper, which the interrupt wakes while this value lives.
pub(crate) struct Wakes<'a> {
    shared: &'a InterruptState,
    id: u64,
}

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        self.shared.sleepers.lock().wakers.remove(&self.id);
    }
}

impl Interrupt {
    /// Makes a token that is not interrupted.
    #[must_use]
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Interrupts all waits with this token, now and in future. Repeating it does nothing.
    pub fn interrupt(&self) {
        // Sets the flag first, then wakes sleepers. `wakes` registers a sleeper first, then checks the flag:
        // in any interleaving one of the two wakes the sleeper.
        self.shared.is_set.store(true, Ordering::SeqCst);
        for waker in self.shared.sleepers.lock().wakers.values() {
            waker.wake();
        }
    }

    /// Whether [`interrupt`](Self::interrupt) was called.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.shared.is_set.load(Ordering::SeqCst)
    }

    /// Called in a forked child, which must not drop what it inherited: see `Engine`'s `Drop`.
    pub(crate) fn leak(&self) {
        crate::fork::leak(&self.shared);
    }

    /// Makes the interrupt wake `waker`, even if the interrupt has come already.
    pub(crate) fn wakes(&self, waker: &Waker) -> Wakes<'_> {
        let mut sleepers = self.shared.sleepers.lock();
        sleepers.next_id += 1;
        let id = sleepers.next_id;
        sleepers.wakers.insert(id, waker.clone());
        drop(sleepers);
        if self.is_interrupted() {
            waker.wake();
        }
        Wakes { shared: &self.shared, id }
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt").field("interrupted", &self.is_interrupted()).finish()
    }
}
