//! The connections to one database.
//!
//! A connection is closed after a request of unknown outcome, and at the end of its `Lifetime`. If a server
//! answers that it is read-only, all connections opened before the answer are closed. Connections that hold
//! session locks are outside the pool: closing them would free the locks. See docs/decisions/0035.

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{LEAST_AGE, Lifetime, REPLACE_AGAIN};
use crate::seam::Answer;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::seam::pool::Place;
use crate::seam::pool::{self, Connector, Rank};
use crate::stores::sql::database::{Database, Link, Outcome, PooledLink, Shown};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::{Clock, Moment};

pub(super) struct Pool<D: Database>(pool::Pool<Pooled<D>>);

#[cfg(any(feature = "postgres", feature = "mysql"))]
type Lent<'a, D> = (Place<'a, Pooled<D>>, PooledLink<<D as Database>::Link>);

pub(super) struct Pooled<D> {
    database: D,
    lifetime: Lifetime,
    /// Connections made before this moment (`Moment::nanos`) lead to a server that has become read-only.
    stale_before: AtomicU64,
}

impl<D: Database> Pooled<D> {
    fn is_stale(&self, link: &PooledLink<D::Link>) -> bool {
        link.made.nanos() < self.stale_before.load(Ordering::SeqCst)
    }
}

impl<D: Database> Connector for Pooled<D> {
    type Link = PooledLink<D::Link>;

    fn connect(&self, deadline: Moment) -> Result<Self::Link> {
        let made = Clock::System.now();
        let link = self.database.connect(deadline)?;
        let (replace_at, used) = (made.plus(self.lifetime.some_age()), Clock::System.now());
        Ok(PooledLink { link, made, replace_at, used })
    }

    fn is_alive(&self, link: &mut Self::Link) -> bool {
        !self.is_stale(link) && self.database.is_alive(link)
    }

    fn is_old(&self, link: &Self::Link) -> bool {
        D::HAS_SERVERS && self.lifetime.is_over(link.replace_at, link.used, Clock::System.now())
    }

    /// Whether a connection due for replacement stays in use, because no new one opens. After a refused
    /// login only renewals use it, so a revoked password ends no hold, but permits no new hold.
    fn serves_on(&self, link: &mut Self::Link, rank: Rank, error: &Error) -> bool {
        if error.kind() == ErrorKind::Authentication {
            return rank == Rank::Renewal;
        }
        link.replace_at = Clock::System.after(REPLACE_AGAIN);
        true
    }
}

impl<D: Database> Pool<D> {
    pub(super) fn new(database: D, size: u32, first: D::Link) -> Pool<D> {
        Pool::within(Lifetime::default(), database, size, first)
    }

    fn within(lifetime: Lifetime, database: D, size: u32, first: D::Link) -> Pool<D> {
        let now = Clock::System.now();
        let replace_at = now.plus(lifetime.some_age());
        let first = PooledLink { link: first, made: now, replace_at, used: now };
        let pooled = Pooled { database, lifetime, stale_before: AtomicU64::new(0) };
        Pool(pool::Pool::new(pooled, size, vec![first]))
    }

    pub(super) fn database(&self) -> &D {
        &self.0.connector.database
    }

    pub(super) fn with<T>(
        &self,
        deadline: Moment,
        request: impl FnOnce(&D, &mut D::Link) -> Answer<T>,
    ) -> Answer<T> {
        self.over(Rank::Request, deadline, request)?
    }

    pub(super) fn with_renewals<T>(
        &self,
        count: usize,
        deadline: Moment,
        request: impl FnOnce(&D, &mut D::Link) -> Vec<Answer<T>>,
    ) -> Vec<Answer<T>> {
        self.over(Rank::Renewal, deadline, request).unwrap_or_else(|failure| failure.each(count))
    }

    pub(super) fn over<T: Outcome>(
        &self,
        rank: Rank,
        deadline: Moment,
        request: impl FnOnce(&D, &mut D::Link) -> T,
    ) -> Answer<T> {
        let (mut place, mut link) = self.0.lend(rank, deadline)?;
        *link.deadline() = deadline;
        let outcome = request(self.database(), &mut link);
        self.kept(link, outcome.shown()).into_iter().for_each(|link| place.put(link));
        Ok(outcome)
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn lend(&self, deadline: Moment) -> Answer<Lent<'_, D>> {
        let (place, mut link) = self.0.lend(Rank::Request, deadline)?;
        *link.deadline() = deadline;
        Ok((place, link))
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn give(&self, link: PooledLink<D::Link>) {
        self.kept(link, Shown::Sound).into_iter().for_each(|link| self.0.give(link));
    }

    /// Returns the connection if another request may use it, else closes it.
    pub(super) fn kept(&self, mut link: PooledLink<D::Link>, shown: Shown) -> Option<PooledLink<D::Link>> {
        let pooled = &self.0.connector;
        link.used = Clock::System.now();
        if shown == Shown::InDoubt || pooled.database.is_silent(&link) {
            pooled.database.give_up(link.link);
            return None;
        }
        if pooled.is_stale(&link) {
            return None;
        }
        if !D::HAS_SERVERS || shown == Shown::Sound || link.used.since(link.made) < LEAST_AGE {
            return Some(link);
        }
        pooled.stale_before.fetch_max(link.used.nanos(), Ordering::SeqCst);
        self.0.end_idle(|link| pooled.is_stale(link));
        pooled.database.note_read_only();
        None
    }

    pub(super) fn tidy(&self) {
        let (lifetime, now) = (self.0.connector.lifetime, Clock::System.now());
        self.0.end_idle(|link| D::HAS_SERVERS && lifetime.is_over(Moment::NEVER, link.used, now));
    }

    pub(super) fn close(&self) {
        self.database().close();
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seam::Failure;
    use crate::stores::sql::statement::{Args, Record, Statement};
    use crate::stores::sql::timed_out;
    use crate::sync::Mutex;
    use crate::sync::atomic::{AtomicBool, AtomicUsize};
    use crate::tests::soon;
    use std::cell::RefCell;
    use std::time::Duration;

    #[derive(Default)]
    struct Numbered {
        made: AtomicUsize,
        /// The kind of error with which new connections fail; `None` if they open.
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

    /// Makes a request with the outcome `ended`, and returns the number of its connection.
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
        pool.0.end_idle(|link| {
            link.made = link.made.minus(by);
            false
        });
    }

    fn idle(pool: &Pool<Numbered>) -> Vec<usize> {
        let numbers = RefCell::<Vec<usize>>::default();
        pool.0.end_idle(|link| {
            numbers.borrow_mut().push(link.0);
            false
        });
        numbers.into_inner()
    }

    /// The connection of a read-only answer, and each older one, leads to a former primary.
    #[test]
    fn a_read_only_answer_replaces_all_older_connections() {
        let pool = pool(LASTING, 2);
        assert_eq!((used(&pool, Ok(())), renewed(&pool)), (Some(0), Some(0)));
        let beside = pool.with(soon(), |_, _| Ok((used(&pool, Ok(())), renewed(&pool))));
        assert_eq!(beside.unwrap(), (Some(1), Some(1)));
        make_older(&pool, Duration::from_secs(1));
        assert_eq!(idle(&pool), [1, 0]);
        assert_eq!(used(&pool, read_only()), Some(0));
        assert!(pool.database().was_told.load(Ordering::SeqCst));
        assert_eq!((used(&pool, Ok(())), renewed(&pool)), (Some(2), Some(2)));
        // A new connection is not replaced at once, because another one would reach the same server.
        assert_eq!((used(&pool, read_only()), used(&pool, Ok(()))), (Some(2), Some(2)));
    }

    #[test]
    fn a_read_only_answer_also_closes_connections_in_use() {
        let pool = pool(LASTING, 2);
        let beside = pool.with(soon(), |_, first| {
            used(&pool, Ok(())).unwrap();
            make_older(&pool, Duration::from_secs(1));
            first.1 = Moment::NEVER;
            Ok(used(&pool, read_only()))
        });
        assert_eq!(beside.unwrap(), Some(1));
        assert_eq!((idle(&pool), used(&pool, Ok(()))), (Vec::new(), Some(2)));
    }

    #[test]
    fn an_old_or_idle_connection_is_replaced() {
        for lifetime in [Lifetime { age: NO_TIME, ..LASTING }, Lifetime { idle: NO_TIME, ..LASTING }] {
            let pool = pool(lifetime, 1);
            assert_eq!((used(&pool, Ok(())), used(&pool, Ok(()))), (Some(1), Some(2)), "{lifetime:?}");
            assert_eq!((renewed(&pool), renewed(&pool)), (Some(3), Some(4)), "{lifetime:?}");
        }
        let pool = pool(Lifetime { idle: NO_TIME, ..LASTING }, 1);
        renewed(&pool).unwrap();
        pool.tidy();
        assert!(idle(&pool).is_empty());
    }

    /// After a revoked password only renewals use the old connection.
    #[test]
    fn an_old_connection_is_used_when_no_new_one_opens() {
        let pool = pool(Lifetime { age: NO_TIME, ..LASTING }, 1);
        assert_eq!((used(&pool, Ok(())), renewed(&pool)), (Some(1), Some(2)));
        *pool.database().refuses.lock() = Some(ErrorKind::Busy);
        assert_eq!((used(&pool, Ok(())), renewed(&pool)), (Some(2), Some(2)));
        let pool = self::pool(Lifetime { age: NO_TIME, ..LASTING }, 1);
        assert_eq!(renewed(&pool), Some(1));
        *pool.database().refuses.lock() = Some(ErrorKind::Authentication);
        for _ in 0..2 {
            assert_eq!((used(&pool, Ok(())), renewed(&pool)), (None, Some(1)));
        }
    }

    #[test]
    fn requests_share_open_connections_when_no_new_one_opens() {
        let pool = pool(LASTING, 3);
        *pool.database().refuses.lock() = Some(ErrorKind::Busy);
        assert_eq!(renewed(&pool), Some(0), "the only connection for requests");
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
            let directory = pool.over(Rank::Renewal, soonest, |_, link| Answer::Ok(link.0));
            assert!(
                matches!(directory, Err(Failure::Refused(_))),
                "the directory's request waited for a connection"
            );
            end.send(()).unwrap();
            for other in others {
                assert_eq!(other.join().unwrap(), Some(0));
            }
        });
        // After the last connection has broken, requests fail at once, because no new one opens.
        let in_doubt = Err(Failure::Unknown(timed_out("no answer")));
        assert_eq!((used(&pool, in_doubt), used(&pool, Ok(())), renewed(&pool)), (Some(0), None, None));
    }

    fn of_directory(pool: &Pool<Numbered>, ended: Answer<()>) -> Option<usize> {
        let mut number = None;
        drop(pool.over(Rank::Renewal, soon(), |_, link| {
            number = Some(link.0);
            ended
        }));
        number
    }

    #[test]
    fn directory_writes_prefer_an_idle_connection() {
        let pool = pool(LASTING, 3);
        assert_eq!(of_directory(&pool, Ok(())), Some(0));
        let beside = pool.with(soon(), |_, _| Ok(of_directory(&pool, Ok(()))));
        assert_eq!(beside.unwrap(), Some(1), "a request uses the other connection");
        let in_doubt = Err(Failure::Unknown(timed_out("no answer")));
        assert_eq!(of_directory(&pool, in_doubt), Some(0));
        assert_eq!(idle(&pool), [1], "a connection in doubt was used again");
    }

    #[test]
    fn requests_and_renewals_have_separate_connections() {
        let pool = pool(LASTING, 1);
        let beside = pool.with(soon(), |_, _| Ok((renewed(&pool), of_directory(&pool, Ok(())))));
        assert_eq!(beside.unwrap(), (Some(1), Some(1)));
        let beside = pool.over(Rank::Renewal, soon(), |_, link| Answer::Ok((link.0, used(&pool, Ok(())))));
        assert_eq!(beside.unwrap().unwrap(), (0, Some(1)));
        let late = Clock::System.now();
        let beside = pool.with(soon(), |_, _| Ok(pool.with(late, |_, _| Ok(()))));
        assert!(
            matches!(beside.unwrap(), Err(Failure::Refused(error)) if error.kind() == ErrorKind::TimedOut)
        );
    }

    #[test]
    fn directory_writes_wait_for_the_connection_of_renewals() {
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
                assert!(
                    has_ended.recv_timeout(Duration::from_millis(50)).is_err(),
                    "the request did not wait"
                );
                vec![Ok(link.0)]
            });
            assert!(matches!(renewed.as_slice(), [Ok(0)]));
            assert_eq!(has_ended.recv().unwrap(), Some(0));
        });
    }

    type Use<'a> = &'a dyn Fn(Answer<()>) -> usize;

    /// After an unanswered request, the connection's next request could read the late answer as its own, or
    /// wait until the server has finished the first request.
    #[test]
    fn only_connections_with_an_unanswered_request_are_closed() {
        let pool = pool(LASTING, 1);
        let with: Use<'_> = &|ended| used(&pool, ended).unwrap();
        let of_directory: Use<'_> = &|ended| of_directory(&pool, ended).unwrap();
        let with_renewals: Use<'_> = &|ended| {
            let mut number = None;
            let used = pool.with_renewals(2, soon(), |_, link| {
                number = Some(link.0);
                vec![Ok(()), ended]
            });
            drop(used);
            number.unwrap()
        };
        for way in [with, of_directory, with_renewals] {
            let link = way(Ok(()));
            assert_eq!(way(Err(Failure::Refused(timed_out("a refusal")))), link);
            assert_eq!(
                way(Err(Failure::Unknown(timed_out("no answer")))),
                link,
                "a refusal ended the connection"
            );
            assert_ne!(way(Ok(())), link, "a connection in doubt was used again");
        }
    }
}
