//! The waits that the client's entry may tell of, as those who wait have to do with them.

use std::sync::Arc;
use std::time::Duration;

use crate::park::{Parker, Woken};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

pub(crate) struct ToldWaits {
    /// How long a wait lasts before it is looked at.
    pub(crate) after: Duration,
    /// When there is something to look at, as `Moment::nanos`: the maximum while there is nothing.
    pub(super) due: AtomicU64,
    /// The entry may tell of waits.
    pub(super) tells: AtomicBool,
    ended: Mutex<EndedWaits>,
}

/// Waits that are over and have to be taken out of the entry.
#[derive(Default)]
struct EndedWaits {
    waiting: Vec<Arc<EndedWait>>,
    /// Nobody takes them out any more.
    is_closed: bool,
}

pub(super) struct EndedWait {
    is_taken_out: AtomicBool,
    waker: Waker,
}

impl EndedWait {
    pub(super) fn is_done(&self) {
        self.is_taken_out.store(true, Ordering::SeqCst);
        self.waker.wake();
    }
}

impl ToldWaits {
    pub(crate) fn new(after: Duration) -> ToldWaits {
        let (due, tells) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        ToldWaits { after, due, tells, ended: Mutex::default() }
    }

    /// A wait that has lasted since then begins to sleep. `Some`: the watchdog is to look by this moment,
    /// which it does not know of.
    ///
    /// The waiter has noted itself first. Pairs with `Finder::round`, which opens `due` before it looks and
    /// sets it after.
    pub(crate) fn note_wait(&self, since: Moment) -> Option<Moment> {
        let ripe = since.plus(self.after);
        let is_news = ripe.nanos() < self.due.load(Ordering::SeqCst);
        is_news.then(|| {
            self.due.fetch_min(ripe.nanos(), Ordering::SeqCst);
            ripe
        })
    }

    /// Whether the entry tells of waits, so that the finder writes it.
    pub(crate) fn tells(&self) -> bool {
        self.tells.load(Ordering::SeqCst)
    }

    /// Has a wait taken out of the entry that is over and has left its queue. Returns when the entry is
    /// written without it, when it cannot be written, or at `deadline`. `wake` wakes the watchdog.
    pub(crate) fn take_out(&self, clock: &Clock, deadline: Moment, wake: impl FnOnce()) {
        let parker = Parker::new(clock);
        let wait =
            Arc::new(EndedWait { is_taken_out: AtomicBool::new(false), waker: parker.waker().clone() });
        {
            let mut ended = self.ended.lock();
            if ended.is_closed {
                return;
            }
            ended.waiting.push(Arc::clone(&wait));
        }
        self.due.store(0, Ordering::SeqCst);
        wake();
        while !wait.is_taken_out.load(Ordering::SeqCst) {
            if parker.park(deadline, None) == Woken::Time {
                break;
            }
        }
    }

    /// Those that wait for the entry by now.
    pub(super) fn take_ended(&self) -> Vec<Arc<EndedWait>> {
        std::mem::take(&mut self.ended.lock().waiting)
    }

    /// Lets those go on that wait for the entry: it cannot be written now. The client counts as it was when
    /// it was heard last, as one that died does.
    pub(crate) fn let_go(&self) {
        self.take_ended().iter().for_each(|wait| wait.is_done());
    }

    /// The watchdog ends.
    pub(crate) fn close(&self) {
        self.ended.lock().is_closed = true;
        self.let_go();
    }
}
