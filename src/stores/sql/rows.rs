//! Locks as rows, and the operations that a database's statements provide.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::ident::{ClientId, Owner, unbound_number};
use crate::ident::{FencingToken, LockName};
use crate::inspect::{Holder, Inspection, Location, ObjectKind};
use crate::seam::capabilities::{CachedCheck, TableInUse};
use crate::seam::{Answer, Attempt, Claim, Failure, Kind, Others};
use crate::stores::sql::database::{Database, Link};
use crate::stores::sql::statement::{Args, Record, Statement, Statements};
use crate::stores::sql::timed_out;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::stores::sql::{OTHER_COLUMNS, other_table};
use crate::time::Clock;

#[derive(Debug)]
pub(super) struct Row {
    pub(super) token: bool,
    pub(super) owner: String,
    pub(super) holds: i64,
    /// The rest of the lease, rounded up. Zero or less if the lock is free.
    pub(super) remaining_ms: i64,
    pub(super) keeper: Option<String>,
}

impl Row {
    pub(super) fn is_live(&self) -> bool {
        self.remaining_ms > 0 && !self.owner.is_empty()
    }

    pub(super) fn remaining(&self) -> Duration {
        milliseconds(self.remaining_ms)
    }

    pub(super) fn is_of_another(&self, claim: &Claim) -> bool {
        self.is_live() && self.owner != claim.owner.to_string()
    }

    pub(super) fn read(record: &Record, first: usize) -> Answer<Row> {
        Ok(Row {
            token: record.flag(first)?,
            owner: record.text(first + 1)?,
            holds: record.int(first + 2)?,
            remaining_ms: record.int(first + 3)?,
            keeper: None,
        })
    }
}

pub(super) fn milliseconds(value: i64) -> Duration {
    Duration::from_millis(u64::try_from(value).unwrap_or(0))
}

/// Reads a lock from the columns of `show.sql`, in which a fencing token of zero means none.
pub(super) fn described(name: &LockName, record: &Record) -> Answer<Inspection> {
    let row = Row::read(record, 0)?;
    let mut seen = Inspection::new(name.given(), ObjectKind::Absent);
    seen.fencing_token = u64::try_from(record.int(4)?).ok().filter(|fence| *fence > 0).map(FencingToken::new);
    if seen.fencing_token.is_some() {
        seen.kind = ObjectKind::FencedLock;
    }
    if !row.is_live() {
        return Ok(seen);
    }
    match (row.token, seen.fencing_token) {
        (true, _) => seen.kind = ObjectKind::TokenLock,
        (false, None) => seen.kind = ObjectKind::Lock,
        (false, Some(_)) => {}
    }
    let remaining = Some(row.remaining());
    seen.remaining = remaining;
    let pid = u32::try_from(record.int(6)?).unwrap_or(0);
    seen.holders.push(Holder {
        hold_count: u32::try_from(row.holds).ok(),
        remaining,
        held_for: u64::try_from(record.int(8)?).ok().map(Duration::from_millis),
        location: Some(Location::new(record.text(5)?, pid, record.text(7)?)),
        ..Holder::new(row.owner)
    });
    Ok(seen)
}

#[derive(Debug)]
pub(super) enum Change<T> {
    Made(T),
    /// Nothing was changed. Contains the row, if there is one, as the same request has read it.
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

/// Reads what a statement changed. `None` if it changed nothing, and did not return the row.
pub(super) fn change_of(records: &[Record]) -> Answer<Option<Change<u64>>> {
    let Some(record) = records.first() else { return Ok(None) };
    if let Some(made) = record.maybe(0, Record::int)? {
        return Ok(Some(Change::Made(u64::try_from(made).unwrap_or(0))));
    }
    if record.is_null(1) {
        return Ok(Some(Change::None(None)));
    }
    let keeper = record.maybe(5, Record::text)?;
    Ok(Some(Change::None(Some(Row { keeper, ..Row::read(record, 1)? }))))
}

/// How long statements wait for a row that another transaction has locked. `Brief` is for the connection that
/// renewals use: a long wait would delay them. `Full` is as long as a request may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowWait {
    Brief,
    Full,
}

pub(super) trait Rows: Database {
    const POLL_EVERY: (Duration, Duration);
    const WAKES: bool = false;
    /// Whether the database has wait queues. Clients that wait in them also recall cached locks.
    const HAS_QUEUE: bool = false;

    fn statements(&self) -> &Statements;

    /// Fails if the server is read-only. MySQL checks this because a privileged user may write all the same.
    fn refuse_read_only(&self, _link: &mut Self::Link) -> Answer<()> {
        Ok(())
    }

    fn look_before(&self, _link: &mut Self::Link, _claim: &Claim) -> Answer<Option<Change<u64>>> {
        Ok(None)
    }

    /// The error if SQLite's file was replaced: other clients then do not see this connection's changes.
    fn displaced(&self, _link: &Self::Link) -> Option<Error> {
        None
    }

    fn change(&self, link: &mut Self::Link, statement: &Statement, args: &Args) -> Answer<Change<u64>> {
        match change_of(&link.run(statement, args)?)? {
            Some(change) => Ok(change),
            // Nothing was changed, so a failure from here on cannot have an unknown outcome.
            None => self.look(link, args).map(Change::None).map_err(Failure::of_reading),
        }
    }

    fn look(&self, link: &mut Self::Link, args: &Args) -> Answer<Option<Row>> {
        let records = link.run(&self.statements().look, args)?;
        records.first().map(|record| Row::read(record, 0)).transpose()
    }

    fn acquire(&self, link: &mut Self::Link, claim: &Claim) -> Answer<Attempt> {
        self.acquire_by_row(link, claim)
    }

    fn acquire_by_row(&self, link: &mut Self::Link, claim: &Claim) -> Answer<Attempt> {
        match self.take(link, claim, claim.wants_fence)? {
            Change::Made(fence) => Ok(granted(claim, fence)),
            // Another client may have inserted the row after this statement's snapshot. Then `row` is `None`,
            // and zero makes the waiter ask again at once.
            Change::None(row) => Ok(Attempt::Busy {
                retry_after: Some(of_kind(row, claim.kind)?.map_or(Duration::ZERO, |row| row.remaining())),
            }),
        }
    }

    fn take(&self, link: &mut Self::Link, claim: &Claim, fenced: bool) -> Answer<Change<u64>> {
        if let Some(seen) = self.look_before(link, claim)? {
            return Ok(seen);
        }
        let taken = self.change(link, &self.statements().take, &self.taking(claim, fenced))?;
        self.see_taken(link, claim, &taken);
        self.in_place(link, taken)
    }

    /// Makes a grant fail if it was written to a file that has been moved away, which no other client reads.
    fn in_place(&self, link: &Self::Link, taken: Change<u64>) -> Answer<Change<u64>> {
        match self.displaced(link) {
            Some(error) if matches!(taken, Change::Made(_)) => Err(Failure::Unknown(error)),
            _ => Ok(taken),
        }
    }

    fn taking(&self, claim: &Claim, fenced: bool) -> Args {
        // The table's character set may lack characters that are not ASCII.
        let plain = |text: String| text.replace(|c: char| !c.is_ascii(), "?");
        let Location { host, pid, thread, .. } = Location::here();
        let args = Args::of(claim).and("fenced", fenced).and("host", plain(host)).and("pid", pid);
        args.and("thread", plain(thread)).and("keeper", self.keeper(claim))
    }

    fn see_taken(&self, _link: &mut Self::Link, _claim: &Claim, _taken: &Change<u64>) {}

    fn keeper(&self, _claim: &Claim) -> Option<String> {
        None
    }

    fn leave(&self, link: &mut Self::Link, claim: &Claim, left: u32) -> Answer<Change<()>> {
        let args = Args::of(claim).and("left", left);
        let left = self.change(link, &self.statements().leave, &args)?.map(drop);
        let is_lost = matches!(left, Change::Made(())) && self.displaced(link).is_some();
        Ok(if is_lost { Change::None(None) } else { left })
    }

    /// Frees the owner's lock. Returns which clients were notified, as far as that is known.
    fn free(&self, link: &mut Self::Link, claim: &Claim) -> Answer<Change<Others>> {
        Ok(self.leave(link, claim, 0)?.map(|()| Others::Nobody))
    }

    fn leave_wait_queue(&self, _link: &mut Self::Link, _claim: &Claim) -> Answer<()> {
        Ok(())
    }

    fn renew(&self, link: &mut Self::Link, claims: &[Claim]) -> Vec<Answer<bool>> {
        // A read-only server must not renew, because other clients may use the server promoted in its place.
        // Waits for locked rows are brief, because they delay the renewals of the claims behind.
        let begun = self.refuse_read_only(link).and_then(|()| self.wait_for_rows(link, RowWait::Brief));
        let renewed = until_broken(link, claims, begun, |link, claim| {
            let renewed = link.run(&self.statements().renew, &Args::of(claim))?;
            Ok(!renewed.is_empty())
        });
        drop(self.wait_for_rows(link, RowWait::Full));
        match self.displaced(link) {
            Some(error) => Failure::Unknown(error).each(claims.len()),
            None => renewed,
        }
    }

    fn wait_for_rows(&self, _link: &mut Self::Link, _wait: RowWait) -> Answer<()> {
        Ok(())
    }

    /// Whether others want these claims' locks, which are cached. In a database that cannot check this, each
    /// lock counts as wanted.
    fn check_cached(&self, _link: &mut Self::Link, claims: &[Claim]) -> Vec<Answer<CachedCheck>> {
        claims.iter().map(|_| Ok(CachedCheck::Wanted)).collect()
    }

    fn force(&self, link: &mut Self::Link, name: &LockName, token: bool) -> Answer<Change<()>> {
        let args = Args::one("name", name).and("token", token);
        Ok(self.change(link, &self.statements().force, &args)?.map(drop))
    }

    fn sweep(&self, link: &mut Self::Link, age: Duration) -> Answer<u64>;

    fn old_versions(&self, link: &mut Self::Link, age: Duration) -> Answer<Vec<String>>;

    fn table(&self) -> Option<&TableInUse> {
        None
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn hung_up(&self) -> Option<bool> {
        None
    }
}

/// Makes a request for each claim, until an outcome is unknown or the deadline has passed; refuses the
/// remaining claims. If `begun` is an error, refuses all.
pub(super) fn until_broken<L: Link, T>(
    link: &mut L,
    claims: &[Claim],
    begun: Answer<()>,
    mut ask: impl FnMut(&mut L, &Claim) -> Answer<T>,
) -> Vec<Answer<T>> {
    let mut broken = begun.err().map(Failure::into_error);
    let one = |claim| {
        if let Some(error) = &broken {
            return Err(Failure::Refused(error.copy()));
        }
        if *link.deadline() <= Clock::System.now() {
            return Err(Failure::Refused(timed_out("earlier requests took all of the time")));
        }
        let outcome = ask(link, claim);
        if let Err(Failure::Unknown(error)) = &outcome {
            broken = Some(error.copy());
        }
        outcome
    };
    claims.iter().map(one).collect()
}

pub(super) fn granted(claim: &Claim, fence: u64) -> Attempt {
    Attempt::granted(claim.wants_fence.then(|| FencingToken::new(fence)))
}

pub(super) fn of_kind(row: Option<Row>, kind: Kind) -> Answer<Option<Row>> {
    match row.filter(Row::is_live) {
        Some(row) if row.token != kind.is_token() => {
            let detail = "the name is in use by another kind of lock";
            Err(Failure::Refused(Error::new(ErrorKind::WrongType, "use", detail)))
        }
        row => Ok(row),
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
/// Acquires and releases a lock in a transaction that is rolled back. This finds settings, triggers and
/// columns that would make every lock fail. A user who may only read is accepted.
pub(super) fn try_one<D: Rows>(database: &D, link: &mut D::Link) -> Answer<()> {
    let key = format!("leasehold-try:{}", ClientId::random());
    let name = LockName::new(&Arc::from(&*key), key).map_err(Failure::Refused)?;
    let owner = Owner::new(ClientId::random(), unbound_number());
    let claim = Claim::new(Kind::Mutex, &Arc::new(name), owner, Duration::from_secs(60));
    let tried = database.take(link, &claim, true).and_then(|change| match change {
        Change::Made(_) => database.leave(link, &claim, 0).map(|change| change.map(|()| 0)),
        Change::None(row) => Ok(Change::None(row)),
    });
    match tried {
        Ok(Change::Made(_)) => Ok(()),
        Ok(Change::None(_)) => {
            let words = "a trial lock could not be acquired and released, although nobody holds it: check the table's triggers and rules";
            Err(Failure::Refused(Error::new(ErrorKind::Protocol, "connect", words)))
        }
        Err(Failure::Refused(error)) if error.is_retryable() || error.kind() == ErrorKind::NoPermission => {
            Ok(())
        }
        Err(Failure::Refused(error)) if error.detail().starts_with(OTHER_COLUMNS) => {
            let table = database.table().map_or_else(String::new, |table| table.name.clone());
            let error = Error::new(error.kind(), "connect", other_table(&table)).with_source(error);
            Err(Failure::Refused(error))
        }
        Err(failure) => Err(failure),
    }
}
