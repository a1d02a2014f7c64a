//! Guards: values that release a level of a hold when they are dropped.

use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::config::debug_fields;
use crate::engine::Engine;
use crate::engine::acquire::call::Granted;
use crate::engine::hold::{Hold, Listener, Standing};
use crate::error::{Error, ErrorKind, Result};
use crate::fork::is_forked;
use crate::ident::{FencingToken, Owner};
use crate::observe::event::Event;
use crate::observe::{Loss, LossReason};
use crate::seam::{Counting, Kind};
use crate::time::Moment;

/// The state of a hold, as far as is known without asking the server.
///
/// # Examples
/// ```
/// use leasehold::HoldState;
///
/// # let client = leasehold::LockClient::in_memory();
/// match client.get_lock("stock:42").acquire()?.state() {
///     HoldState::Held => println!("go on"),
///     HoldState::AtRisk { until } => println!("begin nothing new; the hold ends at {until:?}"),
///     HoldState::Lost => println!("stop: somebody else may have the lock"),
///     _ => {}
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldState {
    /// The lease is confirmed and not about to end.
    Held,
    /// Held until `until`, but a renewal failed or is overdue: finish, or begin only what can be repeated.
    AtRisk {
        /// The end of the hold, unless a renewal gets through.
        until: Instant,
    },
    /// No longer held, and never again: a lost hold stays lost.
    Lost,
}

/// One acquire of a lock (a *level* of its hold), released when dropped. Bound to its thread, which is the
/// owner in the store; an [`OwnedGuard`] may change threads.
///
/// A drop sends the release and does not wait for the answer; later requests of this client arrive after
/// it. A failed release is reported to the [`Observer`](crate::Observer), and the client repeats it until
/// it is answered or the lease is over. [`unlock`](Guard::unlock) waits for the answer and returns it. A
/// process that exits just after a drop may therefore leave the lock taken until its lease ends, unless it
/// calls [`shutdown`](crate::LockClient::shutdown) or drops the last clone of the client, which wait for the
/// answer. While other clients queue for the lock, a drop may send nothing for some milliseconds: see
/// [`time_slice`](crate::LockBuilder::time_slice).
///
/// # Blocking
/// A drop waits, for about one command time-out at most, if it must connect first, or if the answer decides
/// the next step: for an inner level, for a token lock, and when threads of this process wait although
/// another process is next.
///
/// In async code, do not keep a guard across an `.await`: another task of the thread re-enters the lock. An
/// [`OwnedGuard`] may be kept. See [using it from async
/// code](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/using-from-async.md).
///
/// ```compile_fail
/// fn send<T: Send>(_: T) {}
/// send(leasehold::LockClient::in_memory().get_lock("a").acquire().unwrap());
/// ```
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let guard = client.get_lock("stock:42").acquire()?;
/// // … read, decide …
/// guard.check()?; // still ours? no round trip
/// // … write …
/// if let Err(error) = guard.unlock()
///     && error.is_lost()
/// {
///     return Err(error); // any other error is the release's alone: what was written stays written
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "the lock is released as soon as the guard is dropped: bind it to a name, `let _guard = …`"]
pub struct Guard {
    pub(super) level: HeldLevel,
    _bound_to_thread: BoundToItsThread,
}

/// Makes a guard `!Send`, but `Sync`.
pub(crate) type BoundToItsThread =
    PhantomData<dyn bound_to_its_thread_use_acquire_owned + Sync + Unpin + UnwindSafe + RefUnwindSafe>;

/// No type implements this trait. If a program sends a guard, the compiler's error shows the trait's name,
/// which says what to call instead.
#[expect(non_camel_case_types, reason = "it names the method as it is written")]
pub(crate) trait bound_to_its_thread_use_acquire_owned {}

/// A hold that this value owns, not a thread: it may be sent to another thread and released there. While it
/// lives, no thread holds the lock, so any thread that acquires the lock waits. Otherwise as [`Guard`]. A
/// leaked guard (`mem::forget`) is renewed until the client is shut down.
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let guard = client.get_lock("upload").acquire_owned()?;
/// std::thread::spawn(move || drop(guard)).join().unwrap();
/// assert!(!client.get_lock("upload").is_locked()?);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "the lock is released as soon as the guard is dropped: bind it to a name, `let _guard = …`"]
pub struct OwnedGuard {
    level: HeldLevel,
}

/// Permits that were acquired, released when dropped: an [`OwnedGuard`] of a semaphore. A permit of a
/// [`Semaphore`](crate::Semaphore) never ends by itself; one of an
/// [`ExpirableSemaphore`](crate::ExpirableSemaphore) has a lease, as a lock's hold.
///
/// # Examples
/// ```
/// let seats = leasehold::LockClient::in_memory().get_semaphore("seats");
/// seats.try_set_permits(2)?;
/// let seat: leasehold::Permit = seats.acquire(1)?;
/// std::thread::spawn(move || seat.unlock()).join().unwrap()?; // from any thread
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "the permits are released as soon as this is dropped: bind it to a name, `let _permit = …`"]
pub struct Permit {
    level: HeldLevel,
}

/// The common part of guards: one level of a hold, and the client, which it keeps alive.
pub(crate) struct HeldLevel {
    pub(super) engine: Arc<Engine>,
    pub(super) entered: Granted,
    released: bool,
}

impl HeldLevel {
    pub(crate) fn new(engine: &Arc<Engine>, entered: Granted) -> HeldLevel {
        HeldLevel { engine: Arc::clone(engine), entered, released: false }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.entered.hold
    }

    /// Why the hold is lost; `None` if it is not. In a forked child every hold is lost: it is the parent's.
    fn loss_at(&self, now: Moment) -> Option<LossReason> {
        if is_forked() {
            return Some(LossReason::Gone);
        }
        let hold = self.hold();
        hold.is_live(now, &self.engine.reporter);
        if hold.is_releasing() || hold.has_ended(self.entered.level) {
            return Some(LossReason::Gone); // the lock's `unlock()` released this guard's level
        }
        hold.loss_at(now)
    }

    fn standing(&self) -> Standing {
        let now = self.engine.clock.now();
        self.loss_at(now).map_or_else(|| self.hold().standing(now), Standing::Lost)
    }

    pub(crate) fn state(&self) -> HoldState {
        match self.standing() {
            Standing::Held => HoldState::Held,
            Standing::AtRisk(until) => HoldState::AtRisk { until: self.engine.clock.instant(until) },
            Standing::Lost(_) => HoldState::Lost,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.loss_at(self.engine.clock.now()) {
            None => Ok(()),
            Some(_) if is_forked() => self.engine.usable("check"),
            Some(reason) => {
                let detail =
                    format!("the hold was lost: {}; work under it is no longer protected", reason.words());
                Err(Error::new(ErrorKind::Lost, "check", detail).on(self.hold().name().given()))
            }
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        let now = self.engine.clock.now();
        match self.loss_at(now) {
            None => self.hold().until().since(now),
            Some(_) => Duration::ZERO,
        }
    }

    /// `None` in a forked child: its writes must not count as its parent's.
    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        if is_forked() { None } else { self.hold().fencing_token() }
    }

    pub(crate) fn on_lost(&self, callback: impl FnOnce(&Loss) + Send + 'static) {
        if is_forked() {
            return; // a forked child has no callback thread
        }
        self.hold().listen(Listener::OnLost(Box::new(callback)), &self.engine.reporter);
        self.engine.watch(self.hold());
    }

    pub(crate) fn on_contended(&self, callback: impl Fn() + Send + Sync + 'static) -> Result<()> {
        self.check().map_err(|error| error.during("on_contended"))?;
        self.engine.hear_contenders("on_contended", self.hold(), Some(Arc::new(callback)))
    }

    pub(crate) fn is_contended(&self) -> Result<bool> {
        self.check().map_err(|error| error.during("is_contended"))?;
        self.engine.is_contended("is_contended", self.hold())
    }

    fn lost(&self) -> Receiver<Loss> {
        let (sender, receiver) = bounded(1);
        self.send_loss(sender);
        receiver
    }

    /// Sends the loss to `sender`, which is dropped when the hold ends.
    pub(crate) fn send_loss(&self, sender: Sender<Loss>) {
        if is_forked() {
            let (name, owner) = (self.hold().name().given().to_owned(), self.hold().owner());
            // A full channel has a loss already.
            drop(sender.try_send(Loss { name, owner, reason: LossReason::Gone }));
            return;
        }
        self.hold().listen(Listener::Channel(sender), &self.engine.reporter);
        self.engine.watch(self.hold());
    }

    /// Takes the level out of the guard; the caller must release it.
    pub(crate) fn into_level(mut self) -> (Arc<Engine>, Granted) {
        self.released = true;
        let entered = Granted { hold: Arc::clone(&self.entered.hold), level: self.entered.level };
        (Arc::clone(&self.engine), entered)
    }

    fn unlock(mut self) -> Result<()> {
        self.engine.refused_in_observer("unlock").map_err(Error::after_work)?; // on error, the drop releases
        self.released = true;
        self.engine.end_level("unlock", self.hold(), Some(self.entered.level))
    }

    /// Releases after the caller's work; fails only if the hold was lost before the work ended. Otherwise the
    /// work was protected and its result counts, so a failed release is only reported as an event.
    fn unlock_after_work(self, action: &'static str) -> Result<()> {
        let (engine, hold) = (Arc::clone(&self.engine), Arc::clone(self.hold()));
        let stood = self.check();
        let unlocked = self.unlock();
        stood.map_err(|error| error.during(action).after_work())?;
        match unlocked {
            Ok(()) => Ok(()),
            // The store lost the hold before its lease was over, so the work may have been unprotected.
            Err(error) if error.is_lost() && engine.clock.now() < hold.until() => {
                Err(error.during(action).after_work())
            }
            Err(error) => {
                engine.reporter.observe_news(move |observer| {
                    let event = Event::ReleaseFailed { name: hold.name().given(), error: &error };
                    observer.event(&event);
                });
                Ok(())
            }
        }
    }
}

impl Drop for HeldLevel {
    fn drop(&mut self) {
        if !self.released {
            self.engine.drop_level(&self.entered.hold, self.entered.level);
        }
    }
}

macro_rules! guard {
    ($guard:ident { $($field:ident: $value:expr),* }) => {
        impl $guard {
            pub(crate) fn new(engine: &Arc<Engine>, entered: Granted) -> $guard {
                let level = HeldLevel::new(engine, entered);
                $guard { level, $($field: $value),* }
            }

            /// The lock's name, as it was given.
            #[must_use]
            pub fn name(&self) -> &str {
                self.level.hold().name().given()
            }

            /// The owner, as the store shows it.
            #[must_use]
            pub fn owner(&self) -> Owner {
                self.level.hold().owner()
            }

            /// The hold's fencing token; `None` unless the lock is a [`FencedLock`](crate::FencedLock), and
            /// in a forked child. Re-entries have the hold's token.
            #[must_use]
            pub fn fencing_token(&self) -> Option<FencingToken> {
                self.level.fencing_token()
            }

            /// The state of the hold, without asking the server; [`Lost`](HoldState::Lost) in a forked child.
            #[must_use]
            pub fn state(&self) -> HoldState {
                self.level.state()
            }

            /// Fails once the hold is lost.
            ///
            /// # Blocking
            /// Never: a few atomic loads and one reading of the clock.
            ///
            /// # Errors
            /// An error that [`is_lost`](Error::is_lost), or of kind [`Forked`](ErrorKind::Forked).
            ///
            /// # Guarantees
            /// `Ok` says that the lease, as the server last confirmed it, is not over; it counts from before
            /// the request was sent, by a clock that runs while the process is stopped or the machine sleeps.
            /// A server that lost the lock or gave it away (a failover, `force_unlock`) is noticed at the
            /// next renewal, a third of the lease later at most. `Ok` says nothing about the next moment; see
            /// [fencing](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/fencing.md).
            pub fn check(&self) -> Result<()> {
                self.level.check()
            }

            /// How long the hold lasts without another renewal; zero once lost, and in a forked child.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.level.remaining()
            }

            /// Runs `callback` when the hold is lost: soon if it is lost already, never if it is released
            /// before. The client's callback thread, which a forked child lacks, runs it and catches a panic.
            pub fn on_lost(&self, callback: impl FnOnce(&Loss) + Send + 'static) {
                self.level.on_lost(callback);
            }

            /// A channel for `select!` that gets the loss, and is disconnected when the hold is released. In
            /// a forked child the channel contains a loss.
            #[must_use]
            pub fn lost(&self) -> Receiver<Loss> {
                self.level.lost()
            }

            /// Releases, and says whether the hold lasted until then.
            ///
            /// # Errors
            /// As [`RedisLock::unlock`](crate::RedisLock::unlock). If the hold ended before this call, an
            /// error that [`is_lost`](Error::is_lost): work under the hold may not have been protected. No
            /// error of this call [`is_retryable`](Error::is_retryable), so that no caller repeats the work.
            pub fn unlock(self) -> Result<()> {
                self.level.unlock()
            }
        }

        debug_fields!($guard, |it| name: it.name(), owner: it.owner(), fence: it.fencing_token());
    };
}

impl Permit {
    /// The ids of the permits, 32 hex digits each, by which any process may release them; empty unless they
    /// are of an [`ExpirableSemaphore`](crate::ExpirableSemaphore).
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        let hold = self.level.hold();
        if hold.kind() != Kind::Permits {
            return Vec::new();
        }
        let id = |index| format!("{:032x}", u128::from_be_bytes(hold.owner().permit(index)));
        (0..hold.claim().units).map(id).collect()
    }

    /// Drops this value without a release, and stops renewing: for permits that other code releases.
    pub fn forget(mut self) {
        self.level.released = true;
        if is_forked() {
            return;
        }
        let (engine, hold) = (&self.level.engine, self.level.hold());
        engine.registry.remove(hold);
        if hold.kind() == Kind::Semaphore {
            drop(engine.store.count(&hold.claim(), &Counting::Forget, engine.one_command()));
        }
    }
}

impl From<Permit> for OwnedGuard {
    /// Lets code store guards of locks and of permits in one type.
    fn from(permit: Permit) -> OwnedGuard {
        OwnedGuard { level: permit.level }
    }
}

impl OwnedGuard {
    /// As [`unlock`](Self::unlock), but the lock stays taken for `at_least` after the acquiring request.
    pub(crate) fn unlock_after(mut self, at_least: Duration) -> Result<()> {
        self.level.released = true;
        self.level.engine.end_after("unlock", &self.level.entered, at_least)
    }
}

impl Guard {
    pub(crate) fn unlock_after_work(self, action: &'static str) -> Result<()> {
        self.level.unlock_after_work(action)
    }
}

macro_rules! contention {
    ($guard:ident) => {
        impl $guard {
            /// Runs `callback` when others wait for the lock: another client, or another thread of this one.
            /// A long job can thus give way. For a read hold only writers count.
            ///
            /// The callback runs at most once a second while others wait, until the hold ends, on the
            /// client's callback thread; a panic in it is caught. A hold may have several callbacks.
            ///
            /// # Errors
            /// As [`check`](Self::check), at once; and [`Unsupported`](ErrorKind::Unsupported) if this store
            /// cannot report waiters, or the lock is a token lock.
            ///
            /// # Guarantees
            /// The callback is advice: a hold whose holder does nothing stays. A waiter of this crate is
            /// reported after one message, or within about a second if the message is lost. A call that does
            /// not wait is not reported. See [whose waiters
            /// count](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/kinds.md#somebody-wants-this-lock).
            ///
            /// # Examples
            /// ```
            /// use std::sync::mpsc::channel;
            ///
            /// # let client = leasehold::LockClient::in_memory();
            /// let guard = client.get_lock("import").acquire()?;
            /// let (give_way, asked) = channel();
            /// guard.on_contended(move || drop(give_way.send(())))?;
            /// if asked.try_recv().is_ok() {
            ///     // … at a safe point of the job: give way …
            /// }
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            pub fn on_contended(&self, callback: impl Fn() + Send + Sync + 'static) -> Result<()> {
                self.level.on_contended(callback)
            }

            /// Whether others wait for the lock, as [`on_contended`](Self::on_contended) reports. On the
            /// first call another thread sends a request to listen for waiters; until its answer comes, this
            /// call may return `false`. The result stays `true` for up to three seconds after other clients'
            /// last waiter has left.
            ///
            /// # Errors
            /// As [`on_contended`](Self::on_contended).
            pub fn is_contended(&self) -> Result<bool> {
                self.level.is_contended()
            }
        }
    };
}

contention!(Guard);
contention!(OwnedGuard);
guard!(Guard { _bound_to_thread: PhantomData });
guard!(OwnedGuard {});
guard!(Permit {});
