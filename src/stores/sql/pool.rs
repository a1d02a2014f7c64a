//! Connections to one database: a pool for requests, and a connection for renewals that no crowd can occupy.
//!
//! A connection ends with a request in doubt; at the end of its `Lifetime`; and, once its server proves
//! read-only, together with every connection of its age. The connections of session locks are outside the
//! pool and have no age: their locks would end with them.
//!
//! If no new connection can be opened, all threads share the open ones: a request waits for one of them, and
//! a renewal gets the next free one. Source: docs/decisions/0035.

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{LEAST_AGE, Lifetime, REPLACE_AGAIN};
use crate::seam::{Answer, Failure};
use crate::stores::sql::database::{Database, Link, Outcome, PooledLink, Shown};
use crate::stores::sql::timed_out;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::time::{Clock, Moment};

struct PoolState<L> {
    is_closed: bool,
    idle: Vec<PooledLink<L>>,
    placed: u32,
    /// Connections in use that will return, including those lent to renewals.
    busy: usize,
    /// Renewals waiting for a connection; requests leave this many connections to them.
    urgent: usize,
    /// Connections made before this moment lead to a server that takes no writes.
    stale_before: Moment,
}

type OwnPlace<'a, D> = MutexGuard<'a, Option<PooledLink<<D as Database>::Link>>>;

pub(super) struct Pool<D: Database> {
    database: D,
    size: u32,
    lifetime: Lifetime,
    state: Mutex<PoolState<D::Link>>,
    changed: Condvar,
    renewals: Mutex<Option<PooledLink<D::Link>>>,
    /// For requests with less time than the driver's time-out on the other connections.
    brief: Mutex<Option<PooledLink<D::Link>>>,
}

impl<D: Database> Pool<D> {
    pub(super) fn new(database: D, size: u32, first: D::Link) -> Pool<D> {
        Pool::within(Lifetime::default(), database, size, first)
    }

    fn within(lifetime: Lifetime, database: D, size: u32, first: D::Link) -> Pool<D> {
        let now = Clock::System.now();
        let first =
            PooledLink { link: first, made: now, replace_at: now.plus(lifetime.some_age()), used: now };
        let (idle, stale_before) = (vec![first], Moment::from_nanos(0));
        let state = PoolState { is_closed: false, idle, placed: 0, busy: 0, urgent: 0, stale_before };
        let (state, changed, renewals) = (Mutex::new(state), Condvar::new(), Mutex::new(None));
        Pool { database, size, lifetime, state, changed, renewals, brief: Mutex::new(None) }
    }

    pub(super) fn database(&self) -> &D {
        &self.database
    }

    pub(super) fn with<T>(
        &self,
        deadline: Moment,
        talk: impl FnOnce(&D, &mut D::Link) -> Answer<T>,
    ) -> Answer<T> {
        let (mut place, link) = self.lend(deadline)?;
        self.over(&mut place.link, link, deadline, talk)
    }

    pub(super) fn lend(&self, deadline: Moment) -> Answer<(Place<'_, D>, PooledLink<D::Link>)> {
        let mut place = self.place(deadline)?;
        let mut link = place.standing(deadline)?;
        *link.deadline() = deadline;
        Ok((place, link))
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn give(&self, link: PooledLink<D::Link>) {
        let Some(link) = self.kept(link, Shown::Sound) else { return };
        let mut state = self.state.lock();
        let has_room = state.idle.len() + state.busy < usize::try_from(self.size).unwrap_or(usize::MAX);
        if !state.is_closed && has_room {
            state.idle.push(link);
            self.changed.notify_all();
        }
    }

    /// Runs `talk` over a connection that no request waits for: for the directory and the records of runs.
    ///
    /// Without a connection for renewals, takes an idle one if the next request still finds a place, so that
    /// a client that only waits needs no further session. Otherwise takes the connection for renewals,
    /// opening it if need be; or one of its own if renewals cannot wait that long.
    pub(super) fn with_another<T>(
        &self,
        deadline: Moment,
        talk: impl FnOnce(&D, &mut D::Link) -> Answer<T>,
    ) -> Answer<T> {
        if !self.database.ends_within(deadline.since(Clock::System.now())) {
            return self.with_brief(deadline, talk);
        }
        let has_none_for_renewals = || self.renewals.try_lock().is_some_and(|own| own.is_none());
        if D::HAS_SERVERS
            && has_none_for_renewals()
            && let Some((mut place, link)) = self.idle()
        {
            return self.over(&mut place.link, link, deadline, talk);
        }
        self.over_renewals(Clock::System.now(), deadline, talk)?
    }

    fn with_brief<T>(&self, deadline: Moment, talk: impl FnOnce(&D, &mut D::Link) -> Answer<T>) -> Answer<T> {
        let mut own = self.brief.try_lock_for(deadline.since(Clock::System.now())).ok_or_else(in_use)?;
        let now = Clock::System.now(); // another thread may have used it in between
        let left = deadline.since(now);
        let is_fit = |link: &PooledLink<_>| !self.is_old(link, now) && self.database.is_brief(link, left);
        let link = match own.take().filter(is_fit).and_then(|link| self.alive(link)) {
            Some(link) => link,
            None => self.connected(|| self.database.connect_briefly(deadline))?,
        };
        self.over_own(own, link, deadline, talk)
    }

    pub(super) fn with_renewals<T>(
        &self,
        count: usize,
        deadline: Moment,
        talk: impl FnOnce(&D, &mut D::Link) -> Vec<Answer<T>>,
    ) -> Vec<Answer<T>> {
        self.over_renewals(deadline, deadline, talk).unwrap_or_else(|failure| failure.each(count))
    }

    /// Runs `talk` over the connection for renewals. If that connection cannot be opened, waits until
    /// `patience` is over for one of the connections for requests, ahead of all requests: a server without
    /// capacity for a new connection may still serve the holds.
    pub(super) fn over_renewals<T: Outcome>(
        &self,
        patience: Moment,
        deadline: Moment,
        talk: impl FnOnce(&D, &mut D::Link) -> T,
    ) -> Answer<T> {
        let mut own = self.renewals.try_lock_for(deadline.since(Clock::System.now())).ok_or_else(in_use)?;
        match self.standing(own.take(), true, self.connects_by(deadline)) {
            Ok(link) => Ok(self.over_own(own, link, deadline, talk)),
            Err(failure) => {
                let mut place = Place { pool: self, link: None, is_counted: false, is_open: false };
                let link = place.borrow(failure, patience, true)?;
                Ok(self.over(&mut place.link, link, deadline, talk))
            }
        }
    }

    fn over<T: Outcome>(
        &self,
        place: &mut Option<PooledLink<D::Link>>,
        mut link: PooledLink<D::Link>,
        deadline: Moment,
        talk: impl FnOnce(&D, &mut D::Link) -> T,
    ) -> T {
        *link.deadline() = deadline;
        let outcome = talk(&self.database, &mut link);
        *place = self.kept(link, outcome.shown());
        outcome
    }

    /// As [`over`](Self::over), with a connection outside the pool. Races with `close`, which marks the pool
    /// closed first and skips connections in use; here the connection returns first, then the mark is read.
    fn over_own<T: Outcome>(
        &self,
        mut own: OwnPlace<'_, D>,
        link: PooledLink<D::Link>,
        deadline: Moment,
        talk: impl FnOnce(&D, &mut D::Link) -> T,
    ) -> T {
        let outcome = self.over(&mut own, link, deadline, talk);
        drop(own);
        if self.state.lock().is_closed {
            self.end_own(|_| true);
        }
        outcome
    }

    fn connects_by(&self, deadline: Moment) -> Moment {
        let state = self.state.lock();
        if state.busy == 0 && state.idle.is_empty() { deadline } else { Clock::System.halfway(deadline) }
    }

    fn place(&self, deadline: Moment) -> Answer<Place<'_, D>> {
        let mut state = self.state.lock();
        while !state.is_closed && state.placed >= self.size {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                return Err(Failure::Refused(timed_out("all connections of the pool are in use")));
            }
            self.changed.wait_for(&mut state, left);
        }
        if state.is_closed {
            return Err(Failure::Refused(shut_down()));
        }
        state.placed += 1;
        let link = state.take_idle(false);
        Ok(Place { pool: self, is_open: link.is_some(), link, is_counted: true })
    }

    /// An idle connection that still works, and a place for it that is not the last one.
    fn idle(&self) -> Option<(Place<'_, D>, PooledLink<D::Link>)> {
        let mut state = self.state.lock();
        if state.is_closed || state.placed.saturating_add(1) >= self.size {
            return None;
        }
        let link = state.take_idle(false)?;
        state.placed += 1;
        drop(state);
        let mut place = Place { pool: self, link: None, is_counted: true, is_open: true };
        if self.is_old(&link, Clock::System.now()) {
            place.link = Some(link); // the next request replaces it
            return None;
        }
        Some((place, self.alive(link)?))
    }

    fn is_old(&self, link: &PooledLink<D::Link>, now: Moment) -> bool {
        D::HAS_SERVERS && self.lifetime.is_over(link.replace_at, link.used, now)
    }

    /// The connection, or a new one if it should be replaced. Does not ping an old connection while a new one
    /// can be opened: if a middlebox has forgotten the old one, no answer comes.
    fn standing(
        &self,
        link: Option<PooledLink<D::Link>>,
        is_for_renewals: bool,
        deadline: Moment,
    ) -> Answer<PooledLink<D::Link>> {
        let now = Clock::System.now();
        let Some(mut link) = link else { return self.connect(deadline) };
        if !self.is_old(&link, now) {
            return self.alive(link).map_or_else(|| self.connect(deadline), Ok);
        }
        match self.connect(Clock::System.halfway(deadline)) {
            Ok(new) => Ok(new),
            // A revoked password ends requests, but no holds.
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::Authentication && !is_for_renewals => {
                Err(Failure::Refused(error))
            }
            Err(no_other) => {
                link.replace_at = now.plus(REPLACE_AGAIN);
                self.alive(link).ok_or(no_other)
            }
        }
    }

    fn alive(&self, mut link: PooledLink<D::Link>) -> Option<PooledLink<D::Link>> {
        let is_stale = link.made < self.state.lock().stale_before;
        (!is_stale && self.database.is_alive(&mut link)).then_some(link)
    }

    fn connect(&self, deadline: Moment) -> Answer<PooledLink<D::Link>> {
        self.connected(|| self.database.connect(deadline))
    }

    fn connected(&self, connect: impl FnOnce() -> Result<D::Link>) -> Answer<PooledLink<D::Link>> {
        if self.state.lock().is_closed {
            return Err(Failure::Refused(shut_down()));
        }
        let made = Clock::System.now();
        let link = connect().map_err(Failure::Refused)?;
        let (replace_at, used) = (made.plus(self.lifetime.some_age()), Clock::System.now());
        Ok(PooledLink { link, made, replace_at, used })
    }

    fn kept(&self, mut link: PooledLink<D::Link>, shown: Shown) -> Option<PooledLink<D::Link>> {
        link.used = Clock::System.now();
        if shown == Shown::InDoubt || self.database.is_silent(&link) {
            self.database.give_up(link.link);
            return None;
        }
        let mut state = self.state.lock();
        if state.is_closed || link.made < state.stale_before {
            return None;
        }
        if !D::HAS_SERVERS || shown == Shown::Sound || link.used.since(link.made) < LEAST_AGE {
            return Some(link);
        }
        state.stale_before = link.used;
        let stale = std::mem::take(&mut state.idle);
        drop(state);
        drop(stale);
        self.database.note_read_only();
        None
    }

    pub(super) fn tidy(&self) {
        let now = Clock::System.now();
        let is_over = |link: &mut PooledLink<D::Link>| {
            D::HAS_SERVERS && self.lifetime.is_over(Moment::NEVER, link.used, now)
        };
        let over: Vec<_> = self.state.lock().idle.extract_if(.., is_over).collect();
        drop(over);
        self.end_own(is_over);
    }

    pub(super) fn close(&self) {
        self.database.close();
        let mut state = self.state.lock();
        state.is_closed = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        self.changed.notify_all();
        drop(idle);
        self.end_own(|_| true);
    }

    fn end_own(&self, is_meant: impl Fn(&mut PooledLink<D::Link>) -> bool) {
        for own in [&self.renewals, &self.brief] {
            drop(own.try_lock().and_then(|mut link| link.take_if(&is_meant)));
        }
    }
}

impl<L> PoolState<L> {
    fn take_idle(&mut self, is_urgent: bool) -> Option<PooledLink<L>> {
        if !is_urgent && self.idle.len() <= self.urgent {
            return None;
        }
        let link = self.idle.pop()?;
        self.busy += 1;
        Some(link)
    }
}

pub(super) struct Place<'a, D: Database> {
    pool: &'a Pool<D>,
    /// Returns to the pool with the place; taken out while in use, so that a panic ends it.
    link: Option<PooledLink<D::Link>>,
    is_counted: bool,
    /// Whether others may wait for the connection in use here.
    is_open: bool,
}

impl<D: Database> Place<'_, D> {
    fn standing(&mut self, deadline: Moment) -> Answer<PooledLink<D::Link>> {
        let connected = match self.link.take() {
            link @ Some(_) => self.pool.standing(link, false, deadline),
            None => self.pool.connect(self.pool.connects_by(deadline)),
        };
        match connected {
            Ok(link) => {
                self.set_open(true);
                Ok(link)
            }
            Err(failure) => self.borrow(failure, deadline, false),
        }
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn put(&mut self, link: PooledLink<D::Link>, shown: Shown) {
        self.link = self.pool.kept(link, shown);
    }

    fn borrow(&mut self, failure: Failure, deadline: Moment, is_urgent: bool) -> Answer<PooledLink<D::Link>> {
        self.set_open(false);
        let mut state = self.pool.state.lock();
        loop {
            if let Some(link) = state.take_idle(is_urgent) {
                drop(state);
                self.is_open = true;
                if let Some(link) = self.pool.alive(link) {
                    return Ok(link);
                }
                self.set_open(false);
                state = self.pool.state.lock();
                continue;
            }
            let left = deadline.since(Clock::System.now());
            if state.busy == 0 && state.idle.is_empty() || left.is_zero() || state.is_closed {
                return Err(failure);
            }
            state.urgent += usize::from(is_urgent);
            self.pool.changed.wait_for(&mut state, left);
            state.urgent -= usize::from(is_urgent);
        }
    }

    /// Races with `borrow`, which waits only while connections are in use elsewhere.
    fn set_open(&mut self, is_open: bool) {
        if std::mem::replace(&mut self.is_open, is_open) == is_open {
            return;
        }
        let mut state = self.pool.state.lock();
        state.busy = if is_open { state.busy + 1 } else { state.busy.saturating_sub(1) };
        drop(state);
        self.pool.changed.notify_all();
    }
}

impl<D: Database> Drop for Place<'_, D> {
    fn drop(&mut self) {
        let link = self.link.take();
        let mut state = self.pool.state.lock();
        state.placed -= u32::from(self.is_counted);
        state.busy -= usize::from(self.is_open);
        let mut left_over = None;
        match link {
            Some(link) if !state.is_closed && link.made >= state.stale_before => state.idle.push(link),
            link => left_over = link,
        }
        drop(state);
        self.pool.changed.notify_all();
        drop(left_over);
    }
}

fn in_use() -> Failure {
    Failure::Refused(timed_out("the connection for this is in use"))
}

pub(super) fn shut_down() -> Error {
    Error::new(ErrorKind::ShutDown, "use", "the client was shut down")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::sql::statement::{Args, Record, Statement};
    use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    /// A database that numbers its connections; all of them work.
    #[derive(Default)]
    struct Numbered {
        made: AtomicUsize,
        /// Why there is no new connection.
        refuses: Mutex<Option<ErrorKind>>,
        was_told: AtomicBool,
    }

    impl Link for (usize, Moment) {
        fn deadline(&mut self) -> &mut Moment {
            &mut self.1
        }

        fn run(&mut self, _: &Statement, _: &Args) -> Answer<Vec<Record>> {
            Ok(Vec::new())
        }
    }

    impl Database for Numbered {
        type Link = (usize, Moment);

        fn connect(&self, _by: Moment) -> Result<(usize, Moment)> {
            let refuses = *self.refuses.lock();
            match refuses {
                Some(kind) => Err(Error::new(kind, "connect", "no more")),
                None => Ok((self.made.fetch_add(1, Ordering::SeqCst), Moment::NEVER)),
            }
        }

        fn is_alive(&self, _link: &mut (usize, Moment)) -> bool {
            true
        }

        fn note_read_only(&self) {
            self.was_told.store(true, Ordering::SeqCst);
        }
    }

    const LASTING: Lifetime = Lifetime { age: LONG, idle: LONG };
    const LONG: Duration = Duration::from_secs(3_600);
    const NO_TIME: Duration = Duration::ZERO;

    fn pool(lifetime: Lifetime, size: u32) -> Pool<Numbered> {
        let database = Numbered::default();
        let first = database.connect(soon()).unwrap();
        Pool::within(lifetime, database, size, first)
    }

    fn soon() -> Moment {
        Clock::System.after(Duration::from_secs(30))
    }

    /// Makes a request that ends as `ended`; returns the number of its connection.
    fn used(pool: &Pool<Numbered>, ended: Answer<()>) -> Option<usize> {
        let mut number = None;
        drop(pool.with(soon(), |_, link| {
            number = Some(link.0);
            ended
        }));
        number
    }

    fn renewed(pool: &Pool<Numbered>) -> Option<usize> {
        let answers = pool.with_renewals(1, soon(), |_, link| vec![Ok(link.0)]);
        answers.into_iter().next().and_then(|answer| answer.ok())
    }

    fn read_only() -> Answer<()> {
        Err(Failure::Refused(Error::new(ErrorKind::ReadOnly, "request", "no writes")))
    }

    fn make_older(pool: &Pool<Numbered>, by: Duration) {
        let mut state = pool.state.lock();
        state.idle.iter_mut().chain(pool.renewals.lock().iter_mut()).for_each(|link| {
            link.made = Moment::from_nanos(link.made.nanos() - crate::time::nanos(by));
        });
    }

    /// The connection leads to a former master, as does every connection of its age.
    #[test]
    fn a_read_only_answer_renews_all_connections() {
        let pool = pool(LASTING, 2);
        assert_eq!((used(&pool, Ok(())), renewed(&pool)), (Some(0), Some(1)));
        let beside = pool.with(soon(), |_, _| Ok(used(&pool, Ok(()))));
        assert_eq!(beside.unwrap(), Some(2));
        make_older(&pool, Duration::from_secs(1));
        assert_eq!(used(&pool, read_only()), Some(0), "two are idle");
        assert!(pool.database.was_told.load(Ordering::SeqCst));
        assert_eq!((used(&pool, Ok(())), renewed(&pool)), (Some(3), Some(4)));
        // A new connection is not replaced again at once, since another would reach the same server.
        assert_eq!((used(&pool, read_only()), used(&pool, Ok(()))), (Some(3), Some(3)));
    }

    #[test]
    fn an_old_or_idle_connection_is_replaced() {
        for lifetime in [Lifetime { age: NO_TIME, ..LASTING }, Lifetime { idle: NO_TIME, ..LASTING }] {
            let pool = pool(lifetime, 1);
            assert_eq!((used(&pool, Ok(())), used(&pool, Ok(()))), (Some(1), Some(2)), "{lifetime:?}");
            assert_eq!((renewed(&pool), renewed(&pool)), (Some(3), Some(4)), "{lifetime:?}");
        }
        // `tidy` closes idle connections without a request.
        let pool = pool(Lifetime { idle: NO_TIME, ..LASTING }, 1);
        renewed(&pool).unwrap();
        pool.tidy();
        assert!(pool.state.lock().idle.is_empty() && pool.renewals.lock().is_none());
    }

    /// An old connection is used if no new one can be opened; after a revoked password, for renewals only.
    #[test]
    fn an_old_connection_serves_without_another() {
        let pool = pool(Lifetime { age: NO_TIME, ..LASTING }, 1);
        assert_eq!((used(&pool, Ok(())), renewed(&pool)), (Some(1), Some(2)));
        *pool.database.refuses.lock() = Some(ErrorKind::Busy);
        assert_eq!((used(&pool, Ok(())), renewed(&pool)), (Some(1), Some(2)));
        let pool = self::pool(Lifetime { age: NO_TIME, ..LASTING }, 1);
        assert_eq!(renewed(&pool), Some(1));
        *pool.database.refuses.lock() = Some(ErrorKind::Authentication);
        assert_eq!((used(&pool, Ok(())), renewed(&pool)), (None, Some(1)));
    }

    #[test]
    fn open_connections_are_shared_without_new_ones() {
        let pool = pool(LASTING, 3);
        *pool.database.refuses.lock() = Some(ErrorKind::Busy);
        assert_eq!(renewed(&pool), Some(0), "the requests' only one");
        let (begun, has_begun) = crate::sync::channel::bounded(1);
        let (end, ended) = crate::sync::channel::bounded(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pool.with(soon(), |_, _| {
                    begun.send(()).unwrap();
                    ended.recv().unwrap();
                    Ok(())
                })
                .unwrap();
            });
            has_begun.recv().unwrap();
            let others = [
                scope.spawn(|| renewed(&pool)),
                scope.spawn(|| used(&pool, Ok(()))),
                scope.spawn(|| used(&pool, Ok(()))),
            ];
            let soonest = Clock::System.after(Duration::from_millis(1));
            let directory = pool.with_another(soonest, |_, link| Ok(link.0));
            assert!(matches!(directory, Err(Failure::Refused(_))), "it waits for none of the requests'");
            end.send(()).unwrap();
            for other in others {
                assert_eq!(other.join().unwrap(), Some(0));
            }
        });
        // After the last connection has broken, no request waits for it.
        let in_doubt = Err(Failure::Unknown(timed_out("no answer")));
        assert_eq!((used(&pool, in_doubt), used(&pool, Ok(())), renewed(&pool)), (Some(0), None, None));
    }

    fn of_directory(pool: &Pool<Numbered>, ended: Answer<()>) -> Option<usize> {
        let mut number = None;
        drop(pool.with_another(soon(), |_, link| {
            number = Some(link.0);
            ended
        }));
        number
    }

    #[test]
    fn the_directory_prefers_an_idle_connection() {
        let pool = pool(LASTING, 3);
        assert_eq!(of_directory(&pool, Ok(())), Some(0), "the requests'");
        let beside = pool.with(soon(), |_, _| Ok(of_directory(&pool, Ok(()))));
        assert_eq!(beside.unwrap(), Some(1), "a request has it: one for renewals");
        assert_eq!((of_directory(&pool, Ok(())), renewed(&pool)), (Some(1), Some(1)));
        let pool = self::pool(LASTING, 2);
        let in_doubt = Err(Failure::Unknown(timed_out("no answer")));
        assert_eq!(of_directory(&pool, in_doubt), Some(0));
        assert_eq!(used(&pool, Ok(())), Some(1), "one in doubt is not used again");
        let state = pool.state.lock();
        assert_eq!((state.placed, state.busy, state.idle.len()), (0, 0, 1));
    }

    /// No request may wait behind the directory's.
    #[test]
    fn directory_writes_never_take_a_requests_connection() {
        assert_eq!(of_directory(&pool(LASTING, 1), Ok(())), Some(1), "the only place is for requests");
        let pool = pool(LASTING, 2);
        let two = pool.with(soon(), |_, first| Ok((first.0, used(&pool, Ok(())))));
        assert_eq!(two.unwrap(), (0, Some(1)), "both are idle now");
        let last = pool.with(soon(), |_, _| Ok(of_directory(&pool, Ok(()))));
        assert_eq!(last.unwrap(), Some(2), "the last place is for requests");
        for lifetime in [Lifetime { age: NO_TIME, ..LASTING }, Lifetime { idle: NO_TIME, ..LASTING }] {
            let pool = self::pool(lifetime, 2);
            assert_eq!(
                of_directory(&pool, Ok(())),
                Some(1),
                "it is not the one to replace another: {lifetime:?}"
            );
        }
    }

    /// The thread of a run writes the record while the watchdog may renew.
    #[test]
    fn requests_wait_for_the_renewals_connection() {
        let pool = pool(LASTING, 1);
        let (begins, has_begun) = crate::sync::channel::bounded(1);
        let (ends, has_ended) = crate::sync::channel::bounded(1);
        std::thread::scope(|scope| {
            let renewed = pool.with_renewals(1, soon(), |_, link| {
                scope.spawn(|| {
                    begins.send(()).unwrap();
                    ends.send(of_directory(&pool, Ok(()))).unwrap();
                });
                has_begun.recv().unwrap();
                assert!(has_ended.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
                vec![Ok(link.0)]
            });
            assert!(matches!(renewed.as_slice(), [Ok(1)]));
            assert_eq!(has_ended.recv().unwrap(), Some(1));
        });
    }

    /// Makes a request with this outcome; returns the number of its connection.
    type Use<'a> = &'a dyn Fn(Answer<()>) -> usize;

    /// An answer could be read as the next request's, or the next request could queue behind this one.
    #[test]
    fn only_connections_in_doubt_are_discarded() {
        let pool = pool(LASTING, 1);
        let deadline = soon;
        let with: Use<'_> = &|ended| {
            let mut number = None;
            let used = pool.with(deadline(), |_, link| {
                number = Some(link.0);
                ended
            });
            drop(used);
            number.unwrap()
        };
        let with_another: Use<'_> = &|ended| {
            let mut number = None;
            let used = pool.with_another(deadline(), |_, link| {
                number = Some(link.0);
                ended
            });
            drop(used);
            number.unwrap()
        };
        let with_renewals: Use<'_> = &|ended| {
            let mut number = None;
            let used = pool.with_renewals(2, deadline(), |_, link| {
                number = Some(link.0);
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
