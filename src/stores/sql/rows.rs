//! Locks as rows: what the statements of a database come to.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{FencingToken, LockName, Owner};
use crate::inspect::{Holder, Inspection, Location, ObjectKind};
use crate::seam::capabilities::{Capabilities, KeptLook, TableInUse};
use crate::seam::inspection::Inspect;
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Attempt, Claim, Failure, Kind, Others, Release, Snapshot, Store, named};
use crate::stores::sql::database::Database;
use crate::stores::sql::pool::Pool;
use crate::sync::Waker;
use crate::sync::atomic::AtomicBool;
use crate::time::Moment;

/// The contents of a row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) token: bool,
    pub(super) owner: String,
    pub(super) holds: i64,
    /// Until the lease ends, rounded up; not above zero if the lock is free.
    pub(super) remaining_ms: i64,
}

impl Row {
    pub(super) fn is_live(&self) -> bool {
        self.remaining_ms > 0 && !self.owner.is_empty()
    }

    pub(super) fn remaining(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.remaining_ms).unwrap_or(0))
    }
}

/// A row's description, for people, of its last holder.
#[derive(Debug)]
pub(super) struct Told {
    /// Zero: none was given.
    pub(super) fence: i64,
    pub(super) host: String,
    pub(super) pid: i64,
    pub(super) thread: String,
    pub(super) held_ms: i64,
}

/// A row of a list.
#[derive(Debug)]
pub(super) struct ListedRow {
    /// By which the table is in order.
    pub(super) id: Vec<u8>,
    pub(super) name: Vec<u8>,
    pub(super) row: Row,
    pub(super) told: Told,
}

/// A lock as it is shown to users.
pub(super) fn described(name: &LockName, row: Option<(Row, Told)>) -> Inspection {
    let mut seen = Inspection::new(name.given(), ObjectKind::Absent);
    let Some((row, told)) = row else { return seen };
    seen.fencing_token = u64::try_from(told.fence).ok().filter(|fence| *fence > 0).map(FencingToken::new);
    if seen.fencing_token.is_some() {
        seen.kind = ObjectKind::FencedLock;
    }
    if !row.is_live() {
        return seen;
    }
    match (row.token, seen.fencing_token) {
        (true, _) => seen.kind = ObjectKind::TokenLock,
        (false, None) => seen.kind = ObjectKind::Lock,
        (false, Some(_)) => {}
    }
    let remaining = Some(row.remaining());
    seen.remaining = remaining;
    let place = Location::new(told.host, u32::try_from(told.pid).unwrap_or(0), told.thread);
    seen.holders.push(Holder {
        hold_count: u32::try_from(row.holds).ok(),
        remaining,
        held_for: u64::try_from(told.held_ms).ok().map(Duration::from_millis),
        location: Some(place),
        ..Holder::new(row.owner)
    });
    seen
}

/// A client's entry in the directory.
#[derive(Debug)]
pub(super) struct EntryRow {
    pub(super) client: String,
    pub(super) text: String,
    pub(super) remaining_ms: i64,
}

/// The outcome of a statement that changes a row under a condition.
#[derive(Debug)]
pub(super) enum Change<T> {
    /// The condition held.
    Made(T),
    /// It did not. The row as it was about then, if there is one.
    None(Option<Row>),
}

impl<T> Change<T> {
    pub(super) fn map<U>(self, of: impl FnOnce(T) -> U) -> Change<U> {
        match self {
            Change::Made(made) => Change::Made(of(made)),
            Change::None(row) => Change::None(row),
        }
    }
}

/// The statements of a database. Each but `renew` is one on the row of one lock.
pub(super) trait Rows: Database {
    /// How long a waiter may sleep without being woken: at least, at most.
    const POLL_EVERY: (Duration, Duration);
    /// Whether releases elsewhere wake waiters here.
    const WAKES: bool = false;
    /// Whether clients that wait for a lock may stand in a line, and ask who keeps it for it.
    const HAS_LINE: bool = false;

    /// Asks once for the lock with count one.
    fn acquire(&self, link: &mut Self::Link, claim: &Claim, deadline: Moment) -> Answer<Attempt> {
        acquire_by_row(self, link, claim, deadline)
    }

    /// Takes the lock with count one if it is free or the owner's; the fence then.
    fn take(
        &self,
        link: &mut Self::Link,
        claim: &Claim,
        fenced: bool,
        deadline: Moment,
    ) -> Answer<Change<u64>>;

    /// Sets the count of a lock that is the owner's, which is not to end before its lease from now on; the
    /// fence then.
    fn retake(
        &self,
        link: &mut Self::Link,
        claim: &Claim,
        count: u32,
        fenced: bool,
        deadline: Moment,
    ) -> Answer<Change<u64>>;

    /// Leaves `left` holds of a lock that is the owner's; none frees it and notifies waiters.
    fn leave(&self, link: &mut Self::Link, claim: &Claim, left: u32, deadline: Moment) -> Answer<Change<()>>;

    /// Frees a lock that is the owner's; which other clients were notified, as far as is known.
    fn free(&self, link: &mut Self::Link, claim: &Claim, deadline: Moment) -> Answer<Change<Others>> {
        Ok(self.leave(link, claim, 0, deadline)?.map(|()| Others::Nobody))
    }

    /// Whether releases of this client's tell no line, although there may be one.
    fn is_line_refused(&self) -> bool {
        false
    }

    /// Takes the claim's client out of the lock's line.
    fn leave_line(&self, link: &mut Self::Link, claim: &Claim, deadline: Moment) -> Answer<()> {
        let _ = (link, claim, deadline);
        Ok(())
    }

    /// Has each claim's lock run for its lease from now on if it is its owner's.
    fn renew(&self, link: &mut Self::Link, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>>;

    /// Has statements over the connection wait hardly at all, or as long as a request may, for a row that another
    /// transaction has locked.
    fn wait_for_rows(&self, link: &mut Self::Link, briefly: bool, deadline: Moment) -> Answer<()> {
        let _ = (link, briefly, deadline);
        Ok(())
    }

    /// Whether others want locks that their client keeps until they ask. What cannot be seen counts as asked for.
    fn look_kept(&self, link: &mut Self::Link, claims: &[Claim], deadline: Moment) -> Vec<Answer<KeptLook>> {
        let _ = (link, deadline);
        claims.iter().map(|_| Ok(KeptLook::Wanted)).collect()
    }

    /// Has the lock end when `rest` has passed, if it is its owner's.
    fn expire_in(
        &self,
        link: &mut Self::Link,
        claim: &Claim,
        rest: Duration,
        deadline: Moment,
    ) -> Answer<bool>;

    fn look(&self, link: &mut Self::Link, name: &LockName, deadline: Moment) -> Answer<Option<Row>>;

    /// The same, with what the row says for people.
    fn show(&self, link: &mut Self::Link, name: &LockName, deadline: Moment) -> Answer<Option<(Row, Told)>>;

    /// The first rows behind the one with the id `after`, of locks that are held or free.
    fn list(&self, link: &mut Self::Link, after: &[u8], deadline: Moment) -> Answer<Vec<ListedRow>>;

    /// Frees the lock, for any holder, if it is of this kind.
    fn force(
        &self,
        link: &mut Self::Link,
        name: &LockName,
        token: bool,
        deadline: Moment,
    ) -> Answer<Change<()>>;

    /// Writes a client's entry in the directory.
    fn post(
        &self,
        link: &mut Self::Link,
        client: &str,
        entry: &str,
        lease: Duration,
        deadline: Moment,
    ) -> Answer<()>;

    /// Removes a client's entry.
    fn unpost(&self, link: &mut Self::Link, client: &str, deadline: Moment) -> Answer<()>;

    /// Removes the entries that have ended.
    fn tidy_entries(&self, link: &mut Self::Link, deadline: Moment) -> Answer<()>;

    /// A client's entry.
    fn entry(&self, link: &mut Self::Link, client: &str, deadline: Moment) -> Answer<Option<EntryRow>>;

    /// The first entries of clients behind this one.
    fn entries(&self, link: &mut Self::Link, after: &str, deadline: Moment) -> Answer<Vec<EntryRow>>;

    /// Removes rows whose lease ended longer ago than `age`, and says how many.
    fn sweep(&self, link: &mut Self::Link, age: Duration, deadline: Moment) -> Answer<u64>;

    /// The causes for which old versions of rows are kept, in words, as far as this user may see them.
    fn old_versions(&self, link: &mut Self::Link, age: Duration, deadline: Moment) -> Answer<Vec<String>>;

    /// The table of the locks.
    fn table(&self) -> Option<&TableInUse> {
        None
    }

    /// Whether what kept the locks is there no more, with all that were held.
    fn is_gone(&self) -> bool {
        false
    }

    /// See [`ConnectionWatch::hung_up`](crate::seam::capabilities::ConnectionWatch::hung_up).
    fn hung_up(&self) -> Option<bool> {
        None
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        let _ = (claim, waker);
        None
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        let _ = claim;
        None
    }

    fn close(&self) {}
}

/// Keeps locks in a table.
#[derive(Debug)]
pub(super) struct RowStore<D: Rows> {
    pool: Pool<D>,
    /// The client has removed what clients that were killed have left in the directory.
    pub(super) has_tidied: AtomicBool,
}

impl<D: Rows> RowStore<D> {
    pub(super) fn new(pool: Pool<D>) -> RowStore<D> {
        RowStore { pool, has_tidied: AtomicBool::new(false) }
    }

    pub(super) fn pool(&self) -> &Pool<D> {
        &self.pool
    }

    fn leave_one(
        database: &D,
        link: &mut D::Link,
        claim: &Claim,
        left: u32,
        deadline: Moment,
    ) -> Answer<Release> {
        let change = match left {
            0 => database.free(link, claim, deadline)?.map(|others| Release::Freed { others }),
            _ => database.leave(link, claim, left, deadline)?.map(|()| Release::StillHeld),
        };
        match change {
            Change::Made(release) => Ok(release),
            Change::None(row) => {
                let row = of_kind(row, claim.kind)?;
                Ok(Release::NotHeld { holder: row.map(|row| row.owner) })
            }
        }
    }
}

/// Asks once for a lock, without a line.
pub(super) fn acquire_by_row<D: Rows + ?Sized>(
    database: &D,
    link: &mut D::Link,
    claim: &Claim,
    deadline: Moment,
) -> Answer<Attempt> {
    match database.take(link, claim, claim.wants_fence, deadline)? {
        Change::Made(fence) => Ok(granted(claim, fence)),
        // None: another was quicker, and gone again from what this statement saw.
        Change::None(row) => Ok(Attempt::Busy {
            retry_after: Some(of_kind(row, claim.kind)?.map_or(Duration::ZERO, |row| row.remaining())),
        }),
    }
}

pub(super) fn granted(claim: &Claim, fence: u64) -> Attempt {
    Attempt::granted(claim.wants_fence.then(|| FencingToken::new(fence)))
}

/// The row if its lock is held, and by a lock of this kind.
pub(super) fn of_kind(row: Option<Row>, kind: Kind) -> Answer<Option<Row>> {
    match row.filter(Row::is_live) {
        Some(row) if row.token != kind.is_token() => {
            let detail = "the name is in use by another kind of lock";
            Err(Failure::Refused(Error::new(ErrorKind::WrongType, "use", detail)))
        }
        row => Ok(row),
    }
}

impl<D: Rows> Store for RowStore<D> {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            wakes: D::WAKES,
            can_expire_in: true,
            poll_every: |_| D::POLL_EVERY,
            connections: Some(self),
            sweeping: Some(self),
            lines: if D::HAS_LINE { Some(self) } else { None },
            keeping: if D::HAS_LINE { Some(self) } else { None },
            directory: Some(self),
            listing: Some(self),
            table: self.pool.database().table(),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        if kind.is_one_record() {
            return Ok(());
        }
        let words = "a database keeps plain, fenced and token locks, and what is made of those: get_lock(), get_fenced_lock(), \
                     get_token_lock(), groups of them, run_once() and leader(); no fair and read-write locks, semaphores, latches or \
                     conditions";
        Err(Error::new(ErrorKind::Unsupported, "lock", words).on(name.given()))
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        let outcome = self.pool.with(deadline, |database, link| {
            if count == 1 {
                return database.acquire(link, claim, deadline);
            }
            match database.retake(link, claim, count, claim.wants_fence, deadline)? {
                Change::Made(fence) => Ok(granted(claim, fence)),
                Change::None(row) => of_kind(row, claim.kind).map(|_others| Attempt::Lost),
            }
        });
        named(outcome, "lock", claim.name.given())
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        if self.pool.database().is_gone() {
            return Ok(Release::NotHeld { holder: None });
        }
        let outcome =
            self.pool.with(deadline, |database, link| Self::leave_one(database, link, claim, left, deadline));
        named(outcome, "unlock", claim.name.given())
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        if self.pool.database().is_gone() {
            return claims.iter().map(|_| Ok(false)).collect();
        }
        let outcomes = self
            .pool
            .with_renewals(claims.len(), deadline, |database, link| database.renew(link, claims, deadline));
        let outcomes = claims.iter().zip(outcomes);
        outcomes.map(|(claim, outcome)| named(outcome, "renew", claim.name.given())).collect()
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        let outcomes = self.pool.with_renewals(claims.len(), deadline, |database, link| {
            // Renewals wait for this connection, so nothing here waits for a row that another transaction has locked.
            let mut broken = database.wait_for_rows(link, true, deadline).err().map(Failure::into_error);
            let mut one = |claim| {
                if let Some(error) = &broken {
                    return Err(Failure::Refused(error.copy()));
                }
                let outcome = Self::leave_one(database, link, claim, 0, deadline);
                if let Err(Failure::Unknown(error)) = &outcome {
                    broken = Some(error.copy());
                }
                outcome
            };
            let mut outcomes: Vec<_> = claims.iter().map(&mut one).collect();
            if broken.is_none()
                && let (Err(Failure::Unknown(error)), Some(last)) =
                    (database.wait_for_rows(link, false, deadline), outcomes.last_mut())
            {
                *last = Err(Failure::Unknown(error));
            }
            outcomes
        });
        let outcomes = claims.iter().zip(outcomes);
        outcomes.map(|(claim, outcome)| named(outcome, "unlock", claim.name.given())).collect()
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        let outcome =
            self.pool.with(deadline, |database, link| database.expire_in(link, claim, rest, deadline));
        named(outcome, "unlock", claim.name.given())
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        let outcome = self.pool.with(deadline, |database, link| {
            match database.force(link, name, kind.is_token(), deadline)? {
                Change::Made(()) => Ok(true),
                Change::None(row) => of_kind(row, kind).map(|_free| false),
            }
        });
        named(outcome, "force_unlock", name.given())
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.pool.database().listen(claim, waker)
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        self.pool.database().message_count(claim)
    }

    /// No answer is ever left to be read: only connections that have been idle for long end here.
    fn poll_completions(&self) -> bool {
        self.pool.tidy();
        false
    }

    fn close(&self) {
        self.pool.database().close();
        self.pool.close();
    }
}

impl<D: Rows> Inspect for RowStore<D> {
    fn inspect(
        &self,
        kind: Kind,
        name: &LockName,
        owner: Owner,
        deadline: Moment,
    ) -> Answer<Option<Snapshot>> {
        let outcome = self.pool.with(deadline, |database, link| {
            let row = of_kind(database.look(link, name, deadline)?, kind)?;
            Ok(row.map(|row| Snapshot {
                count: if row.owner == owner.to_string() { u32::try_from(row.holds).unwrap_or(0) } else { 0 },
                remaining: Some(row.remaining()),
                holder: row.owner,
            }))
        });
        named(outcome.map_err(Failure::of_reading), "inspect", name.given())
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        let outcome = self.pool.with(deadline, |database, link| database.show(link, name, deadline));
        let outcome = outcome.map(|row| described(name, row)).map_err(Failure::of_reading);
        named(outcome, "inspect", name.given())
    }
}
