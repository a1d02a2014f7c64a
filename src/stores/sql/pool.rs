//! Connections to one database: a pool for requests, and one connection for renewals that no crowd can take.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use r2d2::{ManageConnection, PooledConnection};
use scheduled_thread_pool::ScheduledThreadPool;

use crate::error::{Error, ErrorKind, Result};
use crate::seam::{Failure, Outcome};
use crate::stores::sql::timed_out;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Moment};

/// So many slots are there before they are needed; of thousands the making would take seconds.
const READY: u32 = 16;

/// How a database is connected to.
pub(super) trait Database: Send + Sync + 'static {
    type Link: Send + 'static;

    fn connect(&self, deadline: Moment) -> Result<Self::Link>;

    /// Whether a request over any connection ends within `span`, by its deadline or by the driver's time-outs.
    fn ends_within(&self, span: Duration) -> bool {
        let _ = span;
        true
    }

    /// A connection for one request, which ends by `deadline`.
    fn connect_briefly(&self, deadline: Moment) -> Result<Self::Link> {
        self.connect(deadline)
    }

    /// Whether a connection that lay idle still stands, as far as can be known without asking the server.
    fn is_alive(&self, link: &mut Self::Link) -> bool;
}

/// The object that r2d2 hands out: a place for a connection. The thread that gets it connects, so that errors are typed
/// and immediate.
struct Slots<D>(std::marker::PhantomData<fn() -> D>);

impl<D: Database> ManageConnection for Slots<D> {
    type Connection = Option<D::Link>;
    type Error = std::convert::Infallible;

    fn connect(&self) -> std::result::Result<Option<D::Link>, Self::Error> {
        Ok(None)
    }

    fn is_valid(&self, _slot: &mut Option<D::Link>) -> std::result::Result<(), Self::Error> {
        Ok(())
    }

    fn has_broken(&self, _slot: &mut Option<D::Link>) -> bool {
        false
    }
}

pub(super) struct Pool<D: Database> {
    database: D,
    slots: Mutex<Option<r2d2::Pool<Slots<D>>>>,
    renewals: Mutex<Option<D::Link>>,
    closed: AtomicBool,
}

impl<D: Database> Pool<D> {
    /// `first` is a connection that stands already.
    pub(super) fn new(database: D, size: u32, first: D::Link) -> Result<Pool<D>> {
        let threads =
            ScheduledThreadPool::builder().num_threads(1).thread_name_pattern("leasehold-pool").build();
        let slots = r2d2::Pool::builder()
            .max_size(size)
            .min_idle(Some(size.min(READY)))
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .thread_pool(Arc::new(threads))
            .build(Slots(std::marker::PhantomData))
            .map_err(|error| Error::new(ErrorKind::Resource, "connect", error.to_string()))?;
        if let Some(mut slot) = slots.try_get() {
            *slot = Some(first);
        }
        let slots = Mutex::new(Some(slots));
        Ok(Pool { database, slots, renewals: Mutex::new(None), closed: AtomicBool::new(false) })
    }

    pub(super) fn database(&self) -> &D {
        &self.database
    }

    /// Has `talk` use one connection alone.
    pub(super) fn with<T>(
        &self,
        deadline: Moment,
        talk: impl FnOnce(&D, &mut D::Link) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut slot = self.slot(deadline)?;
        self.use_link(&mut slot, deadline, |link| {
            let outcome = talk(&self.database, link);
            let is_sound = !matches!(outcome, Err(Failure::Unknown(_)));
            (outcome, is_sound)
        })?
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    /// Has `talk` use one connection alone, which it may keep. One that it leaves in its place is used again.
    pub(super) fn lend<T>(
        &self,
        deadline: Moment,
        talk: impl FnOnce(&D, &mut Option<D::Link>) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut slot = self.slot(deadline)?;
        let mut place = Some(self.standing(slot.take(), deadline)?);
        let outcome = talk(&self.database, &mut place);
        if !self.closed.load(Ordering::Acquire) {
            *slot = place;
        }
        outcome
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    /// Takes a connection that nobody needs any more, if there is an empty place for it.
    pub(super) fn give(&self, link: D::Link) {
        let slots = self.slots.lock().clone();
        if let Some(mut slot) = slots.and_then(|slots| slots.try_get())
            && slot.is_none()
        {
            *slot = Some(link);
        }
    }

    /// Has `talk`, for the watchdog, use the connection for renewals, which it may open; or, where a request over that might take
    /// longer than renewals can wait, one of its own. Callers are not to find theirs in use by what they do not know of.
    pub(super) fn with_another<T>(
        &self,
        deadline: Moment,
        talk: impl FnOnce(&D, &mut D::Link) -> Outcome<T>,
    ) -> Outcome<T> {
        if !self.database.ends_within(deadline.since(Clock::System.now())) {
            let mut link = self.database.connect_briefly(deadline).map_err(Failure::Refused)?;
            return talk(&self.database, &mut link);
        }
        let in_use = || Failure::Refused(timed_out("the connection for renewals is in use"));
        let mut link = self.renewals.try_lock().ok_or_else(in_use)?;
        self.use_link(&mut link, deadline, |link| {
            let outcome = talk(&self.database, link);
            let is_sound = !matches!(outcome, Err(Failure::Unknown(_)));
            (outcome, is_sound)
        })?
    }

    /// Has `talk` answer for each of `count` claims over the connection for renewals.
    pub(super) fn with_renewals<T>(
        &self,
        count: usize,
        deadline: Moment,
        talk: impl FnOnce(&D, &mut D::Link) -> Vec<Outcome<T>>,
    ) -> Vec<Outcome<T>> {
        let answers = match self.renewals.try_lock_for(deadline.since(Clock::System.now())) {
            None => Err(Failure::Refused(timed_out("the connection for renewals is in use"))),
            Some(mut link) => self.use_link(&mut link, deadline, |link| {
                let answers = talk(&self.database, link);
                let is_sound = !answers.iter().any(|answer| matches!(answer, Err(Failure::Unknown(_))));
                (answers, is_sound)
            }),
        };
        answers.unwrap_or_else(|failure| {
            let error = failure.into_error();
            (0..count).map(|_| Err(Failure::Refused(error.copy()))).collect()
        })
    }

    /// A failed request may still be on its way on its connection: the connection is dropped, never reused.
    fn use_link<T>(
        &self,
        place: &mut Option<D::Link>,
        deadline: Moment,
        talk: impl FnOnce(&mut D::Link) -> (T, bool),
    ) -> Outcome<T> {
        let mut link = self.standing(place.take(), deadline)?;
        let (result, is_sound) = talk(&mut link);
        if is_sound && !self.closed.load(Ordering::Acquire) {
            *place = Some(link);
        }
        Ok(result)
    }

    /// The connection, or a new one if it does not stand any more.
    fn standing(&self, link: Option<D::Link>, deadline: Moment) -> Outcome<D::Link> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Failure::Refused(shut_down()));
        }
        match link.and_then(|mut link| self.database.is_alive(&mut link).then_some(link)) {
            Some(link) => Ok(link),
            None => self.database.connect(deadline).map_err(Failure::Refused),
        }
    }

    fn slot(&self, deadline: Moment) -> Outcome<PooledConnection<Slots<D>>> {
        let slots = self.slots.lock().clone();
        slots
            .ok_or_else(|| Failure::Refused(shut_down()))?
            .get_timeout(deadline.since(Clock::System.now()))
            .map_err(|_no_slot| Failure::Refused(timed_out("all connections of the pool are in use")))
    }

    /// Connections that are in use end with their requests.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.slots.lock().take());
        if let Some(mut link) = self.renewals.try_lock() {
            *link = None;
        }
    }
}

pub(super) fn shut_down() -> Error {
    Error::new(ErrorKind::ShutDown, "use", "the client was shut down")
}

impl<D: Database> fmt::Debug for Pool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicUsize;

    /// Numbers its connections, all of which stand.
    #[derive(Default)]
    struct Numbered(AtomicUsize);

    impl Database for Numbered {
        type Link = usize;

        fn connect(&self, _by: Moment) -> Result<usize> {
            Ok(self.0.fetch_add(1, Ordering::SeqCst))
        }

        fn is_alive(&self, _link: &mut usize) -> bool {
            true
        }
    }

    /// A way of using a connection: the number of the one over which a request ended so.
    type Use<'a> = &'a dyn Fn(Outcome<()>) -> usize;

    /// The answer to the one request may be read as that to the next, or the next may stand behind it.
    #[test]
    fn a_connection_is_used_again_unless_a_request_over_it_is_in_doubt() {
        let database = Numbered::default();
        let first = database.connect(Clock::System.now()).unwrap();
        let pool = Pool::new(database, 1, first).unwrap();
        let deadline = || Clock::System.after(Duration::from_secs(30));
        let with: Use<'_> = &|ended| {
            let mut number = None;
            let used = pool.with(deadline(), |_, link| {
                number = Some(*link);
                ended
            });
            drop(used);
            number.unwrap()
        };
        let with_another: Use<'_> = &|ended| {
            let mut number = None;
            let used = pool.with_another(deadline(), |_, link| {
                number = Some(*link);
                ended
            });
            drop(used);
            number.unwrap()
        };
        let with_renewals: Use<'_> = &|ended| {
            let mut number = None;
            let used = pool.with_renewals(2, deadline(), |_, link| {
                number = Some(*link);
                vec![Ok(()), ended]
            });
            drop(used);
            number.unwrap()
        };
        for way in [with, with_another, with_renewals] {
            let link = way(Ok(()));
            assert_eq!(way(Err(Failure::Refused(shut_down()))), link);
            assert_eq!(way(Err(Failure::Unknown(timed_out("no answer")))), link, "a refusal is an answer");
            assert_ne!(way(Ok(())), link, "its last request was in doubt");
        }
    }
}
