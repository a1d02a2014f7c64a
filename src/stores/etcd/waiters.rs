//! The waiters, the keys in front of them, and the notification that those have gone.

use std::sync::Arc;
use std::time::Duration;

use crate::seam::hub::HubChannel;
use crate::seam::subscription::Subscription;
use crate::stores::etcd::message::Front;
use crate::stores::etcd::watched::{EtcdNote, Watch, WatchHub, WatchPlace};
use crate::sync::Waker;
use crate::time::Clock;

/// How long [`Watch::end`] waits for those who wait.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// A waiter is known by its key.
impl Watch {
    /// Has `waker` woken when there is reason to look again.
    pub(super) fn wait_at(self: &Arc<Self>, key: &str, waker: &Waker) -> Option<Subscription> {
        self.state.lock().waiter(key);
        self.listen(key, waker)
    }

    /// How often there was reason to, if it is reported.
    pub(super) fn count_at(&self, key: &str) -> Option<u64> {
        let mut state = self.state.lock();
        let channel = &state.waiter(key).channel;
        channel.is_up().then(|| channel.message_count())
    }

    /// A key is about to be asked for.
    pub(super) fn asks(&self, key: &str) {
        if let Some(entry) = self.state.lock().channels.get_mut(key) {
            entry.note.waiter.has_asked = true;
        }
    }

    /// Whether one is known to have come, and to have left before it asked for a key.
    pub(super) fn left_early(&self, key: &str) -> bool {
        let mut state = self.state.lock();
        let is_early = state.channels.get(key).is_some_and(|entry| !entry.note.waiter.has_asked);
        is_early && state.end(key).is_some()
    }

    /// The place of a waiter, and the key in front of it.
    pub(super) fn place(&self, key: &str) -> Option<(WatchPlace, Option<Front>)> {
        let state = self.state.lock();
        let waiter = &state.channels.get(key)?.note.waiter;
        Some((waiter.place?, waiter.front.clone()))
    }

    /// Has a waiter notified when the key in front has gone. `true`: it may have gone since it was seen, and
    /// nobody will report it. Never waits for the server.
    pub(super) fn follow(self: &Arc<Self>, key: &str, place: WatchPlace, front: Front) -> bool {
        let mut state = self.state.lock();
        let waiter = &mut state.waiter(key).note.waiter;
        (waiter.place, waiter.has_asked) = (Some(place), true);
        if waiter.front.as_ref() == Some(&front) {
            return false;
        }
        waiter.front = Some(front);
        if state.closed {
            return false;
        }
        if state.is_wide() {
            return state.own.is_up;
        }
        self.begin_anew(&mut state);
        false
    }

    /// A key has gone: who stands behind it is to look.
    pub(super) fn gone(&self, key: &str) {
        for entry in self.state.lock().channels.values_mut() {
            if entry.note.waiter.front.take_if(|front| front.key == key).is_some() {
                entry.channel.notify();
            }
        }
    }

    /// One does not wait any more, or has lost the place.
    pub(super) fn leave(&self, key: &str, for_good: bool) {
        let mut state = self.state.lock();
        if for_good {
            if state.end(key).is_none() {
                return; // nor did it wait
            }
        } else if let Some(entry) = state.channels.get_mut(key) {
            (entry.note.waiter.place, entry.note.waiter.front) = (None, None);
        }
        self.changed.notify_all();
    }

    /// Lets those who wait leave, and closes. Waits for that, but not for ever.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        let deadline = Clock::System.after(LAST_WAIT);
        // They have been notified; each takes its key away.
        while state.channels.values().any(|entry| entry.note.waiter.place.is_some()) {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        drop(state);
        self.protocol.wire.close();
        self.close();
    }
}

impl WatchHub {
    /// Up from the beginning: while nobody is in front there is nothing to miss.
    fn waiter(&mut self, key: &str) -> &mut HubChannel<EtcdNote> {
        let is_up = !self.told_down;
        self.enter(key, is_up)
    }
}
