//! Ending somebody's wait from outside.

use std::fmt;
use std::sync::Arc;

use crate::sync::Mutex;
use crate::sync::channel::{Receiver, Sender, TryRecvError, bounded};

/// Ends waits from another thread: every wait that was given it returns an error that
/// [`is_interrupted`](crate::Error::is_interrupted).
///
/// Cheap to clone; all clones are one token. It stays interrupted for good: make a new one for new waits.
///
/// # Examples
///
/// ```
/// use leasehold::{Interrupt, LockClient};
///
/// let client = LockClient::in_memory();
/// let interrupt = Interrupt::new();
/// let holder = client.lock("report").acquire_owned()?;
/// let waiter = std::thread::spawn({
///     let (lock, interrupt) = (client.lock("report"), interrupt.clone());
///     move || lock.lock_interruptibly(&interrupt)
/// });
/// interrupt.interrupt();
/// assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
/// holder.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Interrupt {
    shared: Arc<Shared>,
}

struct Shared {
    /// Nothing is ever sent: dropping the sender is the interrupt, seen by any number of waiting `select!`s.
    sender: Mutex<Option<Sender<()>>>,
    receiver: Receiver<()>,
}

impl Interrupt {
    /// Makes a token that is not interrupted.
    #[must_use]
    pub fn new() -> Interrupt {
        let (sender, receiver) = bounded(0);
        Interrupt { shared: Arc::new(Shared { sender: Mutex::new(Some(sender)), receiver }) }
    }

    /// Interrupts all waits that have this token, now and in future. Repeating it does nothing.
    pub fn interrupt(&self) {
        drop(self.shared.sender.lock().take());
    }

    /// Whether [`interrupt`](Self::interrupt) was called.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.shared.receiver.try_recv() == Err(TryRecvError::Disconnected)
    }

    pub(crate) fn receiver(&self) -> &Receiver<()> {
        &self.shared.receiver
    }
}

impl Default for Interrupt {
    fn default() -> Interrupt {
        Interrupt::new()
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt").field("interrupted", &self.is_interrupted()).finish()
    }
}
