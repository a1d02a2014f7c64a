//! Levels of several holds that are lost or released together, and their guards.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

use crate::config::debug_fields;
use crate::engine::Engine;
use crate::engine::acquire::call::Granted;
use crate::engine::batch::{BatchAnswer, LevelRelease, leave_all, prolong};
use crate::error::{Error, Result};
use crate::ident::{FencingToken, ThreadMarker};
use crate::locks::guard::{BoundToItsThread, HeldLevel, HoldState};
use crate::observe::Loss;
use crate::sync::Mutex;

/// Levels in the order of acquisition; a drop releases them in the opposite order.
#[derive(Default)]
pub(crate) struct Group(Vec<HeldLevel>);

impl Group {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn push(&mut self, engine: &Arc<Engine>, entered: Granted) {
        // The search for deadlocks must know that only this thread can release the hold until `settle`.
        entered.hold.with(|own| own.acquires_more = Some(ThreadMarker::current().id()));
        self.0.push(HeldLevel::new(engine, entered));
    }

    /// Adds the locks granted before the first failure, and returns this failure; `None` if all were granted.
    /// Releases the grants after the failure, because the group acquires its locks in order.
    pub(crate) fn add<'a>(
        &mut self,
        came: impl IntoIterator<Item = (&'a Arc<Engine>, BatchAnswer)>,
    ) -> Option<BatchAnswer> {
        let mut missing = None;
        let mut too_early = Group::default();
        for (engine, came) in came {
            match (came, &missing) {
                (Some(Ok(Some(entered))), None) => self.push(engine, entered),
                (Some(Ok(Some(entered))), Some(_)) => too_early.push(engine, entered),
                (other, None) => missing = Some(other),
                (_, Some(_)) => {}
            }
        }
        missing
    }

    /// Releases the first lost level and all levels after it; `true` if a level was lost.
    pub(crate) fn drop_lost(&mut self) -> bool {
        let lost = self.0.iter().position(|level| level.state() == HoldState::Lost);
        if let Some(lost) = lost {
            self.drop_from(lost);
        }
        lost.is_some()
    }

    fn drop_from(&mut self, left: usize) {
        while self.0.len() > left {
            drop(self.0.pop());
        }
    }

    pub(crate) fn prolong(&self, lease: Duration) {
        prolong(self.0.iter().map(|level| (&level.engine, level.hold())), lease);
    }

    /// Ends the renewal of holds with an explicit lease. Called when all locks are acquired.
    pub(crate) fn settle(&self) {
        for level in &self.0 {
            level.hold().settle_level(level.entered.level, level.engine.options.lease);
            level.hold().with(|own| own.acquires_more = None);
        }
    }

    pub(crate) fn leave_open(mut self) {
        for level in self.0.drain(..) {
            drop(level.into_level());
        }
    }

    fn unlock(mut self) -> Result<()> {
        let refused = |level: &HeldLevel| level.engine.refused_in_observer("unlock");
        self.0.iter().try_for_each(refused).map_err(Error::after_work)?; // on error, the drop releases
        let levels = self.0.drain(..).rev().map(HeldLevel::into_level);
        let leaving = |(engine, Granted { hold, level }): (Arc<Engine>, Granted)| LevelRelease {
            engine,
            hold,
            level: Some(level),
        };
        leave_all("unlock", levels.map(leaving).collect()).map_err(Error::after_work)
    }

    fn state(&self) -> HoldState {
        let mut risk: Option<Instant> = None;
        for level in &self.0 {
            match level.state() {
                HoldState::Held => {}
                HoldState::AtRisk { until } => risk = Some(risk.map_or(until, |other| other.min(until))),
                HoldState::Lost => return HoldState::Lost,
            }
        }
        risk.map_or(HoldState::Held, |until| HoldState::AtRisk { until })
    }

    fn on_lost(&self, callback: impl FnOnce(&Loss) + Send + 'static) {
        let once = Arc::new(Mutex::new(Some(callback)));
        for level in &self.0 {
            let once = Arc::clone(&once);
            level.on_lost(move |loss| {
                let first = once.lock().take();
                if let Some(callback) = first {
                    callback(loss);
                }
            });
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.drop_from(0);
    }
}

/// The locks of a [`MultiLock`](crate::MultiLock), released when dropped, the last acquired first.
///
/// Like a [`Guard`](crate::Guard) it cannot leave its thread. Once one of the locks is lost, all count as
/// lost: [`check`](Self::check) names the lock. The others stay taken until this guard ends.
///
/// ```compile_fail
/// fn send<T: Send>(_: T) {}
/// let client = leasehold::LockClient::in_memory();
/// send(client.get_multi_lock([client.get_lock("a"), client.get_lock("b")]).acquire().unwrap());
/// ```
///
/// # Blocking
/// As dropping each of the locks' guards.
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard {
    group: Group,
    _bound_to_thread: BoundToItsThread,
}

/// The locks of a [`MultiLock`](crate::MultiLock), owned by this value, which may change threads, as an
/// [`OwnedGuard`](crate::OwnedGuard). Otherwise as [`MultiGuard`].
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let both = client.get_multi_lock([client.get_lock("from"), client.get_lock("to")]);
/// let guard = both.acquire_owned()?;
/// std::thread::spawn(move || drop(guard)).join().unwrap();
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct OwnedMultiGuard {
    group: Group,
}

macro_rules! group_guard {
    ($guard:ident { $($field:ident: $value:expr),* }) => {
        impl $guard {
            fn of(group: Group) -> $guard {
                $guard { group, $($field: $value),* }
            }

            /// The names of the locks, as given, in the order in which they were taken.
            pub fn names(&self) -> impl Iterator<Item = &str> {
                self.group.0.iter().map(|level| level.hold().name().given())
            }

            /// The fencing token of the group: the token of its first lock with one, larger than every
            /// earlier token of that lock. `None` if no lock has one, and in a forked child. If holders of a
            /// single lock write the data too, use that lock's token:
            /// [`fencing_token_of`](Self::fencing_token_of).
            #[must_use]
            pub fn fencing_token(&self) -> Option<FencingToken> {
                self.group.0.iter().find_map(HeldLevel::fencing_token)
            }

            /// The fencing token of the first lock of this name; `None` unless that is a
            /// [`FencedLock`](crate::FencedLock).
            #[must_use]
            pub fn fencing_token_of(&self, name: &str) -> Option<FencingToken> {
                self.group.0.iter().find(|level| level.hold().name().given() == name)?.fencing_token()
            }

            /// The state of the holds, without a request: lost if one is lost, and in a forked child.
            #[must_use]
            pub fn state(&self) -> HoldState {
                self.group.state()
            }

            /// Fails once one of the locks is lost.
            ///
            /// # Errors
            /// As [`Guard::check`](crate::Guard::check), about that lock
            /// ([`lock_name`](crate::Error::lock_name)).
            pub fn check(&self) -> Result<()> {
                self.group.0.iter().try_for_each(HeldLevel::check)
            }

            /// The shortest remaining time of the locks; zero once one is lost, and in a forked child.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.group.0.iter().map(HeldLevel::remaining).min().unwrap_or(Duration::ZERO)
            }

            /// As [`Guard::on_lost`](crate::Guard::on_lost): runs `callback` once, at the first loss.
            pub fn on_lost(&self, callback: impl FnOnce(&Loss) + Send + 'static) {
                self.group.on_lost(callback);
            }

            /// A channel for `select!` with the first loss, disconnected when all locks are released.
            #[must_use]
            pub fn lost(&self) -> Receiver<Loss> {
                let (sender, receiver) = bounded(1);
                self.group.0.iter().for_each(|level| level.send_loss(sender.clone()));
                receiver
            }

            /// Releases all locks, the last taken first, and says whether they lasted until then.
            ///
            /// # Blocking
            /// One round trip: all requests are sent before the first answer is read, and locks that one
            /// script can release are one request. While a server does not answer, as
            /// [`Guard::unlock`](crate::Guard::unlock).
            ///
            /// # Errors
            /// As [`Guard::unlock`](crate::Guard::unlock), about the first failure. All others are released.
            pub fn unlock(self) -> Result<()> {
                self.group.unlock()
            }
        }

        debug_fields!($guard, |it| names: it.names().collect::<Vec<_>>());

    };
}

group_guard!(MultiGuard { _bound_to_thread: PhantomData });
group_guard!(OwnedMultiGuard {});

impl Group {
    pub(crate) fn guarded(self) -> MultiGuard {
        self.0.iter().for_each(|level| level.hold().guard_level(level.entered.level));
        MultiGuard::of(self)
    }

    pub(crate) fn owned(self) -> OwnedMultiGuard {
        OwnedMultiGuard::of(self)
    }
}
