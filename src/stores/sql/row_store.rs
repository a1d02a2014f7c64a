//! The store that keeps each lock in a row of a table.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::inspect::{Inspection, ObjectKind};
use crate::seam::capabilities::{
    CachedCheck, Capabilities, ConnectionWatch, HoldCaching, Sweeping, WaitQueues,
};
use crate::seam::inspection::Inspect;
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Attempt, Claim, Failure, Kind, Release, Snapshot, Store, named, named_each};
use crate::stores::sql::database::{Link, Outcome, Shown};
use crate::stores::sql::pool::Pool;
use crate::stores::sql::rows::{Change, RowWait, Rows, described, granted, of_kind, until_broken};
use crate::stores::sql::statement::{Args, Record, Statement, Statements};
use crate::sync::Waker;
use crate::sync::atomic::AtomicBool;
use crate::time::Moment;

pub(super) struct RowStore<D: Rows> {
    pub(super) pool: Pool<D>,
    pub(super) has_tidied: AtomicBool,
}

impl<D: Rows> RowStore<D> {
    pub(super) fn new(pool: Pool<D>) -> RowStore<D> {
        RowStore { pool, has_tidied: AtomicBool::new(false) }
    }

    pub(super) fn run(
        &self,
        deadline: Moment,
        args: &Args,
        statement: fn(&Statements) -> &Statement,
    ) -> Answer<Vec<Record>> {
        self.pool.with(deadline, |database, link| link.run(statement(database.statements()), args))
    }

    fn leave_one(database: &D, link: &mut D::Link, claim: &Claim, left: u32) -> Answer<Release> {
        let change = match left {
            0 => database.free(link, claim)?.map(|others| Release::Freed { others }),
            _ => database.leave(link, claim, left)?.map(|()| Release::StillHeld),
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

impl<D: Rows> Store for RowStore<D> {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        Capabilities {
            wakes: D::WAKES,
            can_expire_in: true,
            poll_every: |_| D::POLL_EVERY,
            connections: Some(self.clone()),
            sweeping: Some(self.clone()),
            wait_queues: D::HAS_QUEUE.then(|| self.clone() as _),
            hold_caching: D::HAS_QUEUE.then(|| self.clone() as _),
            directory: Some(self.clone()),
            table: self.pool.database().table().cloned(),
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
                return database.acquire(link, claim);
            }
            let args = Args::of(claim).and("fenced", claim.wants_fence).and("count", count);
            let taken = database.change(link, &database.statements().retake, &args)?;
            match database.in_place(link, taken)? {
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
        let outcome = self.pool.with(deadline, |database, link| Self::leave_one(database, link, claim, left));
        named(outcome, "unlock", claim.name.given())
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        if self.pool.database().is_gone() {
            return claims.iter().map(|_| Ok(false)).collect();
        }
        let outcomes =
            self.pool.with_renewals(claims.len(), deadline, |database, link| database.renew(link, claims));
        named_each(claims, outcomes, "renew")
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        let outcomes = self.pool.with_renewals(claims.len(), deadline, |database, link| {
            // Renewals use this connection too, so the clean-ups wait only briefly for locked rows.
            let begun = database.wait_for_rows(link, RowWait::Brief);
            let mut outcomes =
                until_broken(link, claims, begun, |link, claim| Self::leave_one(database, link, claim, 0));
            if outcomes.shown() != Shown::InDoubt
                && let (Err(Failure::Unknown(error)), Some(last)) =
                    (database.wait_for_rows(link, RowWait::Full), outcomes.last_mut())
            {
                *last = Err(Failure::Unknown(error));
            }
            outcomes
        });
        named_each(claims, outcomes, "unlock")
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        let args = Args::of(claim).and("rest_ms", rest);
        let outcome = self.run(deadline, &args, |all| &all.expire).map(|records| !records.is_empty());
        named(outcome, "unlock", claim.name.given())
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        let outcome =
            self.pool.with(deadline, |database, link| match database.force(link, name, kind.is_token())? {
                Change::Made(()) => Ok(true),
                Change::None(row) => of_kind(row, kind).map(|_free| false),
            });
        named(outcome, "force_unlock", name.given())
    }

    answered_by_pool!();

    fn close(&self) {
        self.pool.close();
    }
}

impl<D: Rows> Inspect for RowStore<D> {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        let outcome = self.pool.with(by, |database, link| {
            let row = of_kind(database.look(link, &Args::one("name", name))?, kind)?;
            Ok(row.map(|row| Snapshot {
                count: if row.owner == owner.to_string() { u32::try_from(row.holds).unwrap_or(0) } else { 0 },
                remaining: Some(row.remaining()),
                holder: row.owner,
            }))
        });
        named(outcome.map_err(Failure::of_reading), "inspect", name.given())
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        let outcome = self.run(deadline, &Args::one("name", name), |all| &all.show).and_then(|records| {
            let absent = || Ok(Inspection::new(name.given(), ObjectKind::Absent));
            records.first().map_or_else(absent, |record| described(name, record))
        });
        named(outcome.map_err(Failure::of_reading), "inspect", name.given())
    }
}

impl<D: Rows> ConnectionWatch for RowStore<D> {
    fn hung_up(&self) -> Option<bool> {
        self.pool.database().hung_up()
    }
}

impl<D: Rows> WaitQueues for RowStore<D> {
    fn leave_wait_queue(&self, claim: &Claim, deadline: Moment) {
        // A failure is ignored: without requests, a client's place in the queue expires.
        drop(self.pool.with(deadline, |database, link| database.leave_wait_queue(link, claim)));
    }
}

impl<D: Rows> HoldCaching for RowStore<D> {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.listen(&claim.by_own_turn(), waker)
    }

    fn check_holds(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<CachedCheck>> {
        let outcomes = self
            .pool
            .with_renewals(claims.len(), deadline, |database, link| database.check_cached(link, claims));
        named_each(claims, outcomes, "renew")
    }
}

impl<D: Rows> Sweeping for RowStore<D> {
    fn old_versions(&self, age: Duration, deadline: Moment) -> Answer<Vec<String>> {
        self.pool.with(deadline, |database, link| database.old_versions(link, age))
    }

    fn sweep(&self, age: Duration, deadline: Moment) -> Answer<u64> {
        let swept = self.pool.with(deadline, |database, link| database.sweep(link, age));
        swept.map_err(|failure| match failure {
            Failure::Refused(error) => Failure::Refused(error.during("sweep")),
            Failure::Unknown(error) => Failure::Unknown(error.during("sweep").with_unknown_outcome()),
        })
    }
}
