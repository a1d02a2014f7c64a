//! The holds of a client that hear of others who want their locks: when each is checked, and its callbacks called.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::Hold;
use crate::observe::reporter::Reporter;
use crate::seam::capabilities::CachedCheck;
use crate::seam::subscription::Subscription;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::{Clock, Moment};

/// Between two checks of a hold, and between two calls of its callbacks.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// A message has a hold checked sooner, this long after its last check. ZooKeeper also sends one for each reader
/// that comes to other readers.
const APART: Duration = Duration::from_millis(50);

/// The holds of a client that hear of others.
#[derive(Default)]
pub(crate) struct Hearers {
    pub(super) list: Mutex<Vec<Hearer>>,
    /// How many there are, in the list or taken out of it for a look.
    count: AtomicU64,
}

impl Hearers {
    pub(super) fn add(&self, hearer: Hearer) {
        // Counted first, looked at second. Pairs with `Core::note_waiter`.
        self.count.fetch_add(1, Ordering::SeqCst);
        self.list.lock().push(hearer);
    }

    pub(super) fn is_any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    pub(super) fn let_go(&self, ended: Vec<Hearer>, reporter: &Reporter) {
        for Hearer { hold, .. } in ended {
            self.count.fetch_sub(1, Ordering::SeqCst);
            if !hold.keeps_listeners() {
                hold.contention.forget(reporter);
            }
        }
    }
}

pub(super) struct Hearer {
    pub(super) hold: Arc<Hold>,
    recalls: Option<Subscription>,
    /// The messages that had come before the last check.
    heard: u64,
    since: Moment,
    last_check: Option<Moment>,
    /// The store was asked to have recalls sent.
    is_marked: bool,
    /// There was a sign of other clients since the last call.
    is_wanted: bool,
    called: Option<Moment>,
    /// A callback of it is yet to run, or runs.
    is_calling: Arc<AtomicBool>,
}

impl Hearer {
    pub(super) fn new(hold: &Arc<Hold>, recalls: Option<Subscription>, since: Moment) -> Hearer {
        Hearer {
            hold: Arc::clone(hold),
            recalls,
            heard: 0,
            since,
            last_check: None,
            is_marked: false,
            is_wanted: false,
            called: None,
            is_calling: Arc::default(),
        }
    }

    fn count(&self) -> u64 {
        self.recalls.as_ref().map(Subscription::message_count).unwrap_or_default()
    }

    /// First when recalls can be heard, so that none is missed. Not before the next call may be made: a crowd
    /// sends many messages.
    pub(super) fn due(&self) -> Moment {
        let Some(last) = self.last_check else {
            let is_heard = |recalls: &Subscription| recalls.is_up() || recalls.is_refused();
            let is_ready = self.recalls.as_ref().is_none_or(is_heard);
            return if is_ready { self.since } else { self.since.plus(EVERY) };
        };
        let latest = last.plus(EVERY);
        if self.heard == self.count() { latest } else { latest.min(last.plus(APART).max(self.next_call())) }
    }

    /// Counted first, asked second: a message that comes from here on has the hold checked again.
    pub(super) fn begin_check(&mut self, now: Moment) {
        (self.heard, self.last_check) = (self.count(), Some(now));
    }

    /// Calls back if there was a sign of others since the last call, or they wait here; when to look next.
    pub(super) fn tell(&mut self, is_waited_for_here: bool, reporter: &Reporter, clock: &Clock) -> Moment {
        let (is_wanted, now) = (self.is_wanted || is_waited_for_here, clock.now());
        if is_wanted && self.next_call() <= now {
            (self.called, self.is_wanted) = (Some(now), false);
            self.call_back(reporter, clock);
        }
        if is_wanted { self.due().min(self.next_call()) } else { self.due() }
    }

    /// Each callback by itself, so that a panic in one does not keep the others. While one still runs, none is
    /// called again.
    fn call_back(&self, reporter: &Reporter, clock: &Clock) {
        let callbacks = self.hold.contention.callbacks();
        if callbacks.is_empty() || self.is_calling.swap(true, Ordering::SeqCst) {
            return;
        }
        for callback in callbacks {
            let (hold, clock) = (Arc::clone(&self.hold), clock.clone());
            reporter.run_later(move || {
                if hold.stands(clock.now()) {
                    callback();
                }
            });
        }
        let is_calling = Arc::clone(&self.is_calling);
        reporter.run_later(move || is_calling.store(false, Ordering::SeqCst));
    }

    fn next_call(&self) -> Moment {
        self.called.map_or(Moment::from_nanos(0), |called| called.plus(EVERY))
    }

    pub(super) fn note(&mut self, answer: CachedCheck, now: Moment) {
        // The first check sets the mark; later a mark that is gone was taken by a recall.
        if answer == CachedCheck::Wanted || answer == CachedCheck::Unmarked && self.is_marked {
            self.hold.contention.note_wanted(now);
            self.is_wanted = true;
        }
        self.is_marked = true;
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::engine::hold::local_lock::{LocalLock, LockKey};
    use crate::engine::hold::{Grant, Holder};
    use crate::ident::{ClientId, LockName, Owner};
    use crate::seam::subscription::{Channel, ChannelSource};
    use crate::seam::{Claim, Kind};
    use crate::sync::Waker;
    use crate::time::{Lease, ManualClock};

    struct Nobody;

    impl ChannelSource for Nobody {
        fn left(&self, _channel: &Arc<Channel>) {}
    }

    struct World {
        time: ManualClock,
        channel: Arc<Channel>,
        hearer: Hearer,
        reporter: Reporter,
        calls: Arc<AtomicU32>,
    }

    impl World {
        /// A hold with a callback, whose recalls are not heard yet.
        fn new() -> World {
            let time = ManualClock::new();
            let name = Arc::new(LockName::new(&"a".into(), "a".to_owned()).unwrap());
            let local = LocalLock::new(LockKey::new(Kind::Mutex, &name), &Arc::default());
            let lease = Duration::from_secs(3_600);
            let grant = Grant {
                claim: Claim::new(Kind::Mutex, &name, Owner::new(ClientId::random(), 1), lease),
                holder: Holder::Guard { taker: None },
                sent: Clock::Manual(time.clone()).now(),
                lease: Lease::Renewed,
                renewed_lease: lease,
                ceiling: None,
                fence: None,
                bound: None,
                may_be_cached: true,
                asks_to_cache: false,
                until_recall: false,
                leads: false,
            };
            let (hold, state, _level) = Hold::new(grant, &local);
            let hold = Arc::new(hold);
            local.state().enter(&hold, state);
            let calls = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&calls);
            hold.contention.begin(Some(Arc::new(move || _ = counted.fetch_add(1, Ordering::SeqCst))));
            let channel = Arc::new(Channel::new("a", false));
            let recalls = Subscription::new(Arc::clone(&channel), Arc::new(Nobody), &Waker::default());
            let hearer = Hearer::new(&hold, Some(recalls), Clock::Manual(time.clone()).now());
            World { time, channel, hearer, reporter: Reporter::new(None), calls }
        }

        fn now(&self) -> Moment {
            Clock::Manual(self.time.clone()).now()
        }

        /// How long it is until the hold is checked.
        fn due_in(&self) -> Duration {
            self.hearer.due().since(self.now())
        }

        fn checked(&mut self, answer: CachedCheck) {
            let now = self.now();
            self.hearer.begin_check(now);
            self.hearer.note(answer, now);
        }

        /// The calls so far, after those that are under way.
        fn calls(&mut self, is_waited_for_here: bool) -> u32 {
            self.hearer.tell(is_waited_for_here, &self.reporter, &Clock::Manual(self.time.clone()));
            let (sender, done) = crossbeam_channel::bounded(1);
            self.reporter.run_later(move || sender.send(()).unwrap());
            done.recv().unwrap();
            self.calls.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn a_hold_is_marked_when_its_recalls_are_heard() {
        let world = World::new();
        assert_eq!(world.due_in(), EVERY, "or else with the first check");
        world.channel.set_up(true);
        assert_eq!(world.due_in(), Duration::ZERO);
    }

    #[test]
    fn a_message_brings_the_check_forward() {
        let mut world = World::new();
        world.channel.set_up(true);
        world.checked(CachedCheck::Unmarked);
        assert_eq!((world.due_in(), world.calls(false)), (EVERY, 0), "the first check is no recall");
        world.channel.take(b"recall");
        assert_eq!(world.due_in(), APART);
        world.time.advance(APART);
        assert_eq!(world.due_in(), Duration::ZERO);
        world.checked(CachedCheck::Unmarked);
        assert_eq!(world.calls(false), 1, "the recall has taken the mark");
        assert!(world.hearer.hold.contention.is_wanted(world.now()));
        world.channel.take(b"recall");
        assert_eq!(world.due_in(), EVERY, "not before the next call");
    }

    #[test]
    fn calls_are_a_second_apart() {
        let mut world = World::new();
        world.checked(CachedCheck::Wanted);
        assert_eq!([world.calls(false), world.calls(true)], [1, 1]);
        world.time.advance(EVERY / 2);
        world.checked(CachedCheck::Wanted);
        assert_eq!(world.calls(false), 1);
        world.time.advance(EVERY / 2);
        assert_eq!([world.calls(false), world.calls(false)], [2, 2]);
        world.time.advance(EVERY);
        world.checked(CachedCheck::Stays);
        assert_eq!([world.calls(false), world.calls(true)], [2, 3], "a thread waits here");
    }

    #[test]
    fn a_callback_runs_for_a_hold_that_stands() {
        let mut world = World::new();
        world.hearer.hold.begin_release();
        world.checked(CachedCheck::Wanted);
        assert_eq!(world.calls(true), 0);
    }

    #[test]
    fn a_slow_callback_is_not_called_again_meanwhile() {
        let mut world = World::new();
        let (go_on, waits) = crossbeam_channel::unbounded::<()>();
        world.hearer.hold.contention.begin(Some(Arc::new(move || waits.recv().unwrap_or_default())));
        let clock = Clock::Manual(world.time.clone());
        for _ in 0..5 {
            world.hearer.tell(true, &world.reporter, &clock);
            world.time.advance(EVERY);
        }
        drop(go_on);
        assert_eq!(world.calls(false), 1);
        assert_eq!(world.calls(true), 2);
    }
}
