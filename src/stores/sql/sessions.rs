//! Locks that belong to a connection: the server frees them when the connection's session ends.
//!
//! Each hold has a connection of its own, whose session ends when it has been idle for the lease. A renewal
//! is a request over this connection. So the server frees the lock of a client that died, hangs or is cut
//! off. A client that still runs learns that the session has ended.
//!
//! A server that has become read-only keeps its sessions' locks, but other clients use the new primary.
//! Therefore each attempt and each renewal checks that the server can write.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::inspect::Inspection;
use crate::seam::capabilities::{Capabilities, ConnectionWatch};
use crate::seam::inspection::Inspect;
use crate::seam::inspection::describe_by_kinds;
use crate::seam::subscription::Subscription;
use crate::seam::{
    Answer, Attempt, Claim, Failure, Kind, Others, Release, Snapshot, Store, named, named_each,
};
use crate::shrink::CrowdMap;
use crate::stores::sql::database::{Database, Link, Outcome, PooledLink, Shown};
use crate::stores::sql::pool::Pool;
use crate::stores::sql::timed_out;
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

pub(super) trait SessionDatabase: Database {
    const POLL_EVERY: (Duration, Duration);
    const WAKES: bool = false;
    /// Whether `is_alive` notices without a request that the server closed the connection.
    const SEES_ENDS: bool = false;

    /// Acquires the lock, and makes the session end once it has been idle for the claim's lease. `false` if
    /// another session has the lock. A read-only server is an error, and the session then holds nothing.
    fn try_lock(&self, link: &mut Self::Link, claim: &Claim) -> Answer<bool>;

    /// Makes the session end once it has been idle for `lease`, from now on. `false` if the server has become
    /// read-only.
    fn prolong(&self, link: &mut Self::Link, lease: Duration) -> Answer<bool>;

    /// Frees the lock, notifies waiters (on PostgreSQL), and removes the limit on idling. `false` if the
    /// session did not hold the lock, or the server has become read-only.
    fn unlock(&self, link: &mut Self::Link, name: &LockName) -> Answer<bool>;

    fn holder(&self, link: &mut Self::Link, name: &LockName) -> Answer<Option<String>>;

    fn end(&self, link: &mut Self::Link, name: &LockName) -> Answer<bool>;

    fn session(&self, link: &Self::Link) -> u32;

    /// Ends the session `left` over the connection `link`. `false`, and no change, if `left` has no lock.
    fn end_left(&self, link: &mut Self::Link, claim: &Claim, left: &LeftSession) -> Answer<bool>;

    fn is_over(&self, link: &mut Self::Link) -> bool {
        !self.is_alive(link)
    }

    /// Called before renewals. MySQL's driver cannot use a connection after a late answer, and would lose the
    /// hold: so MySQL first checks over another connection that the server answers.
    fn sound_out(&self, _pool: &Pool<Self>, _deadline: Moment) -> Answer<()>
    where
        Self: Sized,
    {
        Ok(())
    }
}

type SessionKey = (Box<str>, Owner);

struct HeldSession<L> {
    link: PooledLink<L>,
    count: u32,
    lease: Duration,
    asked: Moment,
}

/// The session of a hold. Empty after the session has ended or the lock was freed.
type SessionPlace<L> = Arc<Mutex<Option<HeldSession<L>>>>;

/// A session whose connection was given up. If the server has not noticed, the session still has the lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeftSession {
    pub(super) session: u32,
    #[cfg_attr(
        not(feature = "mysql"),
        allow(dead_code, reason = "MySQL alone gives a session's number again")
    )]
    pub(super) asked: Moment,
    until: Moment,
}

pub(super) struct SessionStore<D: SessionDatabase> {
    pool: Pool<D>,
    held: Mutex<CrowdMap<SessionKey, SessionPlace<D::Link>>>,
    left: Mutex<CrowdMap<SessionKey, LeftSession>>,
}

impl<D: SessionDatabase> SessionStore<D> {
    pub(super) fn new(pool: Pool<D>) -> SessionStore<D> {
        SessionStore { pool, held: Mutex::default(), left: Mutex::default() }
    }

    fn place(&self, claim: &Claim) -> Option<SessionPlace<D::Link>> {
        self.held.lock().get(&key(claim)).cloned()
    }

    fn remove(&self, claim: &Claim) -> Option<HeldSession<D::Link>> {
        let place = self.held.lock().remove(&key(claim));
        place.and_then(|place| place.lock().take())
    }

    fn forget_ended(&self) {
        let now = Clock::System.now();
        self.held.lock().retain(|_, place| {
            place
                .try_lock()
                .is_none_or(|held| held.as_ref().is_some_and(|held| held.asked.plus(held.lease) > now))
        });
        self.left.lock().retain(|_, left| left.until > now);
    }

    fn note_left(&self, claim: &Claim, link: &D::Link, asked: Moment, lease: Duration) {
        let session = self.pool.database().session(link);
        let until = Clock::System.after(lease.max(claim.lease));
        self.left.lock().insert(key(claim), LeftSession { session, asked, until });
    }

    /// Makes `request` over the hold's connection; `None` if the session has ended, or never existed.
    fn with_session<T>(
        &self,
        claim: &Claim,
        deadline: Moment,
        request: impl FnOnce(&D, &mut HeldSession<D::Link>) -> Answer<T>,
    ) -> Answer<Option<T>> {
        let Some(place) = self.place(claim) else { return Ok(None) };
        let Some(mut place) = place.try_lock_for(deadline.since(Clock::System.now())) else {
            return Err(Failure::Refused(timed_out("the hold's connection is in use")));
        };
        let Some(held) = place.as_mut() else { return Ok(None) };
        *held.link.deadline() = deadline;
        let database = self.pool.database();
        let outcome = if database.is_alive(&mut held.link) { Some(request(database, held)) } else { None };
        match outcome {
            Some(Ok(value)) => return Ok(Some(value)),
            // The session has not ended, so it still has the lock, and only this request has failed.
            Some(Err(failure)) if !database.is_over(&mut held.link) => return Err(failure),
            None if !database.is_over(&mut held.link) => {
                let words = "the hold's connection fell silent, and cannot be used any more";
                return Err(Failure::Refused(timed_out(words)));
            }
            Some(Err(_)) | None => {}
        }
        if let Some(held) = place.take() {
            self.note_left(claim, &held.link, held.asked, held.lease);
        }
        self.held.lock().remove(&key(claim));
        Ok(None)
    }

    fn prolong(&self, claim: &Claim, count: Option<u32>, deadline: Moment) -> Answer<bool> {
        let outcome = self.with_session(claim, deadline, |database, held| {
            let lease = held.lease.max(claim.lease);
            let asked = Clock::System.now();
            if !database.prolong(&mut held.link, lease)? {
                return Ok(false);
            }
            (held.lease, held.asked) = (lease, asked);
            held.count = count.unwrap_or(held.count);
            Ok(true)
        })?;
        if outcome == Some(false) {
            // The server is read-only. The one promoted in its place may grant the lock, so this hold ends.
            drop(self.remove(claim));
        }
        Ok(outcome == Some(true))
    }

    fn take(&self, claim: &Claim, deadline: Moment) -> Answer<Attempt> {
        self.forget_ended();
        // A repeated attempt: an earlier one of this owner has acquired the lock.
        if self.place(claim).is_some() && self.prolong(claim, Some(1), deadline)? {
            return Ok(Attempt::granted(None));
        }
        let (mut place, mut link) = self.pool.lend(deadline)?;
        let (asked, lease) = (Clock::System.now(), claim.lease);
        let outcome = self.pool.database().try_lock(&mut link, claim);
        match outcome {
            Ok(true) => {
                let held = HeldSession { link, count: 1, lease, asked };
                self.held.lock().insert(key(claim), Arc::new(Mutex::new(Some(held))));
                return Ok(Attempt::granted(None));
            }
            // The server may have granted the lock. Dropping `link` frees it; a clean-up verifies this.
            Err(_) if outcome.shown() != Shown::ReadOnly => self.note_left(claim, &link, asked, lease),
            Ok(false) | Err(_) => {
                self.pool.kept(link, outcome.shown()).into_iter().for_each(|link| place.put(link))
            }
        }
        outcome.map(|_others| Attempt::Busy { retry_after: None })
    }

    fn leave(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        if left > 0 {
            // Sends no request, because a request would prolong the lease.
            let outcome = self.with_session(claim, deadline, |_, held| {
                held.count = left;
                Ok(())
            })?;
            return if outcome.is_some() { Ok(Release::StillHeld) } else { self.not_held(claim, deadline) };
        }
        let unlock = |database: &D, held: &mut HeldSession<_>| database.unlock(&mut held.link, &claim.name);
        let outcome = match self.with_session(claim, deadline, unlock) {
            Err(Failure::Refused(error)) if self.can_ask_again(claim, &error) => {
                return Err(Failure::Refused(error));
            }
            outcome => outcome,
        };
        let held = self.remove(claim);
        match outcome {
            Ok(Some(true)) => {
                if let Some(held) = held {
                    self.pool.give(held.link);
                }
                Ok(Release::Freed { others: Others::Nobody })
            }
            Ok(Some(false)) => self.not_held(claim, deadline),
            Ok(None) => self.leave_left(claim, deadline),
            Err(failure) => {
                if let Some(held) = held {
                    self.note_left(claim, &held.link, held.asked, held.lease);
                }
                Err(Failure::Unknown(failure.into_error()))
            }
        }
    }

    /// Whether to keep the connection after a refused release, which can then be repeated. A silent
    /// connection is closed, which frees the lock.
    fn can_ask_again(&self, claim: &Claim, error: &Error) -> bool {
        let place = self.place(claim);
        match place.as_ref().map(|place| place.try_lock()) {
            Some(None) => true, // another thread uses the connection
            _ if error.kind() == ErrorKind::TimedOut => false,
            None => true,
            Some(Some(mut held)) => {
                held.as_mut().is_none_or(|held| self.pool.database().is_alive(&mut held.link))
            }
        }
    }

    /// Releases a lock whose connection is gone: the server ends the connection's session, if it still has
    /// the lock.
    fn leave_left(&self, claim: &Claim, deadline: Moment) -> Answer<Release> {
        let Some(left) = self.left.lock().get(&key(claim)).copied() else {
            return self.not_held(claim, deadline);
        };
        match self.pool.with(deadline, |database, link| database.end_left(link, claim, &left)) {
            Ok(false) => {
                self.left.lock().remove(&key(claim));
                self.not_held(claim, deadline)
            }
            Ok(true) => {
                let words = "the connection broke; the server was told to end the session that has the lock";
                Err(Failure::Unknown(Error::new(ErrorKind::Unreachable, "unlock", words)))
            }
            Err(failure) => Err(Failure::Unknown(failure.into_error())),
        }
    }

    fn not_held(&self, claim: &Claim, deadline: Moment) -> Answer<Release> {
        let holder = self.pool.with(deadline, |database, link| database.holder(link, &claim.name));
        Ok(Release::NotHeld { holder: holder.unwrap_or_default() })
    }
}

fn key(claim: &Claim) -> SessionKey {
    (claim.name.key().into(), claim.owner)
}

/// A deadline after a quarter of the remaining time, so that a request that hangs leaves time for others.
fn share(deadline: Moment) -> Moment {
    let now = Clock::System.now();
    now.plus(deadline.since(now) / 4)
}

impl<D: SessionDatabase> Store for SessionStore<D> {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        Capabilities {
            wakes: D::WAKES,
            poll_every: |_| D::POLL_EVERY,
            connections: Some(self.clone()),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        if kind == Kind::Mutex {
            return Ok(());
        }
        let words =
            "session locks have neither fences nor tokens: use get_lock(), or leave session_locks() out";
        Err(Error::new(ErrorKind::Unsupported, "lock", words).on(name.given()))
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        let outcome = match count {
            1 => self.take(claim, deadline),
            _ => self
                .prolong(claim, Some(count), deadline)
                .map(|is_held| if is_held { Attempt::granted(None) } else { Attempt::Lost }),
        };
        named(outcome, "lock", claim.name.given())
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        named(self.leave(claim, left, deadline), "unlock", claim.name.given())
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        let answers = self.pool.database().sound_out(&self.pool, deadline);
        let renewed = |claim| match &answers {
            Ok(()) => self.prolong(claim, None, share(deadline)),
            Err(silence) => Err(Failure::Refused(silence.error().copy())),
        };
        named_each(claims, claims.iter().map(renewed), "renew")
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        let outcomes = claims.iter().map(|claim| self.leave(claim, 0, share(deadline)));
        named_each(claims, outcomes, "unlock")
    }

    fn force(&self, _kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        let outcome = self.pool.with(deadline, |database, link| database.end(link, name));
        named(outcome, "force_unlock", name.given())
    }

    answered_by_pool!();

    fn close(&self) {
        self.pool.close();
        self.held.lock().clear();
    }
}

impl<D: SessionDatabase> Inspect for SessionStore<D> {
    fn inspect(&self, _kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        let outcome = self.pool.with(by, |database, link| database.holder(link, name));
        let snapshot = |holder| {
            let place = self.held.lock().get(&(name.key().into(), owner)).cloned();
            let count = place.and_then(|place| place.lock().as_ref().map(|held| held.count));
            Snapshot { holder, count: count.unwrap_or(0), remaining: None }
        };
        let outcome = outcome.map_err(Failure::of_reading).map(|holder| holder.map(snapshot));
        named(outcome, "inspect", name.given())
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        describe_by_kinds(self, name, deadline)
    }
}

impl<D: SessionDatabase> ConnectionWatch for SessionStore<D> {
    /// Forgets ended sessions that no thread uses. Returns whether there were any; `None` if the driver does
    /// not notice ends.
    fn hung_up(&self) -> Option<bool> {
        if !D::SEES_ENDS {
            return None;
        }
        let places: Vec<_> = self.held.lock().values().cloned().collect();
        let ended = |place: &SessionPlace<D::Link>| {
            let is_over = |held: &mut HeldSession<_>| !self.pool.database().is_alive(&mut held.link);
            place.try_lock().and_then(|mut place| place.take_if(is_over)).is_some()
        };
        Some(places.iter().filter(|place| ended(place)).count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::sql::statement::{Args, Record, Statement};
    use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use crate::tests::{Attempted, Released, Said, eventually, soon};

    #[derive(Default)]
    struct Server {
        /// Whether answers come too late. The connections are then unusable, but their sessions go on.
        is_silent: AtomicBool,
        is_over: AtomicBool,
        /// The number of requests over connections of holds.
        asked: AtomicUsize,
        /// The failure of the next request to free a lock; `None` if it succeeds.
        unlocks: Mutex<Option<Failure>>,
        is_read_only: AtomicBool,
        /// Answers to the question whether a given-up session has the lock, the last element first. Without
        /// an element, the answer is no.
        left: Mutex<Vec<Answer<bool>>>,
        open: AtomicUsize,
    }

    impl Server {
        fn ask(&self) -> Answer<()> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.is_over.load(Ordering::SeqCst) { Err(Failure::Unknown(over())) } else { Ok(()) }
        }
    }

    fn over() -> Error {
        Error::new(ErrorKind::Unreachable, "request", "the session is over")
    }

    struct Connected(Arc<Server>, Moment);

    impl Link for Connected {
        fn deadline(&mut self) -> &mut Moment {
            &mut self.1
        }

        fn run(&mut self, _: &Statement, _: &Args) -> Answer<Vec<Record>> {
            Ok(Vec::new())
        }
    }

    impl Drop for Connected {
        fn drop(&mut self) {
            self.0.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Database for Arc<Server> {
        type Link = Connected;

        fn connect(&self, _by: Moment) -> Result<Connected> {
            self.open.fetch_add(1, Ordering::SeqCst);
            Ok(Connected(Arc::clone(self), Moment::NEVER))
        }

        fn is_alive(&self, link: &mut Connected) -> bool {
            !self.is_silent.load(Ordering::SeqCst) && !self.is_over(link)
        }
    }

    impl SessionDatabase for Arc<Server> {
        const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(2));

        fn try_lock(&self, _link: &mut Connected, _claim: &Claim) -> Answer<bool> {
            self.ask().map(|()| true)
        }

        fn prolong(&self, _link: &mut Connected, _lease: Duration) -> Answer<bool> {
            self.ask().map(|()| !self.is_read_only.load(Ordering::SeqCst))
        }

        fn unlock(&self, _link: &mut Connected, _name: &LockName) -> Answer<bool> {
            self.ask()?;
            self.unlocks.lock().take().map_or(Ok(true), Err)
        }

        fn holder(&self, _link: &mut Connected, _name: &LockName) -> Answer<Option<String>> {
            Ok(None)
        }

        fn end(&self, _link: &mut Connected, _name: &LockName) -> Answer<bool> {
            Ok(false)
        }

        fn session(&self, _link: &Connected) -> u32 {
            7
        }

        fn end_left(&self, _link: &mut Connected, _claim: &Claim, left: &LeftSession) -> Answer<bool> {
            assert_eq!(left.session, 7);
            self.left.lock().pop().unwrap_or(Ok(false))
        }

        fn is_over(&self, _link: &mut Connected) -> bool {
            self.is_over.load(Ordering::SeqCst)
        }
    }

    fn claim() -> Claim {
        crate::tests::claim(Kind::Mutex, "a", Duration::from_secs(60))
    }

    fn held_twice() -> (Arc<Server>, SessionStore<Arc<Server>>, Claim) {
        let server = Arc::new(Server::default());
        let first = server.connect(soon()).unwrap();
        let store = SessionStore::new(Pool::new(Arc::clone(&server), 2, first));
        let claim = claim();
        for count in 1..=2 {
            let granted = Attempt::granted(None);
            assert!(matches!(store.attempt(&claim, count, soon()), Ok(it) if it == granted));
        }
        (server, store, claim)
    }

    #[test]
    fn releasing_a_re_entry_after_the_session_ended_reports_loss() {
        let (server, store, claim) = held_twice();
        assert!(matches!(store.release(&claim, 1, soon()), Ok(Release::StillHeld)));
        server.is_over.store(true, Ordering::SeqCst);
        let released = store.release(&claim, 1, soon());
        assert!(matches!(released, Ok(Release::NotHeld { holder: None })), "{released:?}");
        assert!(matches!(store.attempt(&claim, 2, soon()), Ok(Attempt::Lost)));
    }

    /// After a late answer, no request is sent over the connection: it could take that answer for its own.
    #[test]
    fn requests_on_a_session_after_a_late_answer_are_refused_unsent() {
        let (server, store, claim) = held_twice();
        server.is_silent.store(true, Ordering::SeqCst);
        let asked = server.asked.load(Ordering::SeqCst);
        for answer in store.renew(&[claim.clone(), claim.clone()], soon()) {
            assert!(matches!(answer, Err(Failure::Refused(_))), "{answer:?}");
        }
        store.attempt(&claim, 3, soon()).refused();
        store.release(&claim, 1, soon()).refused();
        assert_eq!(server.asked.load(Ordering::SeqCst), asked);
    }

    /// Closing the connection frees the lock at an unknown time. A later clean-up asks the server.
    #[test]
    fn a_release_by_closing_the_connection_has_an_unknown_outcome() {
        let in_doubt: fn() -> Option<Failure> = || Some(Failure::Unknown(timed_out("no answer")));
        for (is_silent, failure) in [(false, in_doubt()), (true, None)] {
            let (server, store, claim) = held_twice();
            *server.unlocks.lock() = failure;
            server.is_silent.store(is_silent, Ordering::SeqCst);
            let open = server.open.load(Ordering::SeqCst);
            let released = store.release(&claim, 0, soon());
            let Err(Failure::Unknown(error)) = released else { panic!("{released:?}") };
            assert!(error.outcome_unknown(), "{error}");
            assert_eq!(
                server.open.load(Ordering::SeqCst),
                open - 1,
                "the session's connection is still open"
            );
            server.is_silent.store(false, Ordering::SeqCst);
            let cleaned = store.clean_up(std::slice::from_ref(&claim), soon()).pop();
            assert!(matches!(cleaned, Some(Ok(Release::NotHeld { .. }))), "{cleaned:?}");
        }
    }

    #[test]
    fn a_refused_release_can_be_repeated() {
        let (server, store, claim) = held_twice();
        *server.unlocks.lock() = Some(Failure::Refused(over()));
        let refused = store.release(&claim, 0, soon());
        assert!(matches!(refused, Err(Failure::Refused(_))), "{refused:?}");
        let freed = store.release(&claim, 0, soon());
        assert!(matches!(freed, Ok(Release::Freed { others: Others::Nobody })), "{freed:?}");
    }

    /// The server may not have noticed the end of the connection. Then the session still has the lock.
    #[test]
    fn a_broken_sessions_release_has_an_unknown_outcome_until_confirmed() {
        for breaks_first in [false, true] {
            let (server, store, claim) = held_twice();
            if breaks_first {
                server.is_over.store(true, Ordering::SeqCst);
            } else {
                *server.unlocks.lock() = Some(Failure::Unknown(timed_out("no answer")));
                store.release(&claim, 0, soon()).unknown();
            }
            // Popped from the end: the request fails, the session has the lock, the session lost the lock.
            *server.left.lock() = vec![Ok(false), Ok(true), Err(Failure::Refused(over()))];
            for _ in 0..2 {
                store.release(&claim, 0, soon()).unknown();
            }
            let released = store.release(&claim, 0, soon());
            assert!(matches!(released, Ok(Release::NotHeld { holder: None })), "{released:?}");
        }
    }

    /// The demoted server still answers renewals, which write nothing, but the new one may grant the lock.
    #[test]
    fn a_session_lock_of_a_demoted_server_is_lost() {
        let (server, store, claim) = held_twice();
        let open = server.open.load(Ordering::SeqCst);
        server.is_read_only.store(true, Ordering::SeqCst);
        let renewed = store.renew(std::slice::from_ref(&claim), soon()).pop();
        assert!(matches!(renewed, Some(Ok(false))), "{renewed:?}");
        assert_eq!(server.open.load(Ordering::SeqCst), open - 1, "the session's connection is still open");
        assert!(matches!(store.attempt(&claim, 3, soon()), Ok(Attempt::Lost)));
    }

    #[test]
    fn an_attempt_leaves_sessions_of_other_owners_alone() {
        let (server, store, first) = held_twice();
        let (second, third) = (claim(), claim());
        store.attempt(&second, 1, soon()).granted();
        *server.unlocks.lock() = Some(Failure::Unknown(timed_out("no answer")));
        store.release(&second, 0, soon()).unknown();
        store.attempt(&third, 1, soon()).granted();
        store.release(&first, 0, soon()).freed();
        server.left.lock().push(Ok(true));
        let released = store.release(&second, 0, soon());
        assert!(matches!(released, Err(Failure::Unknown(_))), "the session has the lock: {released:?}");
        // After the server has said that the session holds nothing, the client does not ask about it again.
        assert!(matches!(store.release(&second, 0, soon()), Ok(Release::NotHeld { .. })));
        server.left.lock().push(Ok(true));
        assert!(matches!(store.release(&second, 0, soon()), Ok(Release::NotHeld { .. })));
    }

    #[test]
    fn a_renewed_hold_is_remembered_beyond_its_first_lease() {
        let server = Arc::new(Server::default());
        let first = server.connect(soon()).unwrap();
        let store = SessionStore::new(Pool::new(Arc::clone(&server), 2, first));
        let brief = Claim { lease: Duration::from_millis(20), ..claim() };
        store.attempt(&brief, 1, soon()).granted();
        let over = Clock::System.after(brief.lease);
        let long = Claim { lease: Duration::from_secs(60), ..brief.clone() };
        assert!(matches!(store.renew(std::slice::from_ref(&long), soon()).pop(), Some(Ok(true))));
        eventually(|| Clock::System.now() >= over);
        store.attempt(&claim(), 1, soon()).granted();
        store.release(&brief, 0, soon()).freed();
    }
}
