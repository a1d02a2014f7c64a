//! The wait queue of a lock: a table beside that of the locks, with a row for each waiting client.
//!
//! The queue only orders and wakes clients. The lock's row decides whether the lock is free, so a release
//! works even if the server refuses the queue's table. See docs/decisions/0032.
//!
//! If clients wait, a second statement after the release notifies the first of them. No release misses a new
//! waiter, because a client that joins the queue also writes to the lock's row. If that write comes first,
//! the release sees the waiter. If the release comes first, the waiter sees the free lock, and asks again.

use std::collections::HashMap;
use std::time::Duration;

use crate::ident::{FencingToken, LockName};
use crate::seam::capabilities::CachedCheck;
use crate::seam::{
    AFTER_LEASE, AFTER_RESERVATION, Answer, Attempt, Claim, Kind, ListensFor, Others, QueueMode,
};
use crate::stores::sql::database::Link;
use crate::stores::sql::hex;
use crate::stores::sql::postgres::refusal::or_unheard;
use crate::stores::sql::postgres::{Postgres, PostgresConnection};
use crate::stores::sql::rows::{Change, Row, Rows, change_of, granted, milliseconds, of_kind};
use crate::stores::sql::statement::{Args, Record, Statement};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Moment, random_between};

const AT_ONCE: Duration = Duration::from_millis(1);
const TIDY_EVERY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct QueueUse {
    /// Whether this client's last release found a waiter; decides which statement is tried first.
    awaited: AtomicBool,
    tidied: Mutex<Option<Moment>>,
}

impl QueueUse {
    fn is_to_be_tidied(&self, now: Moment) -> bool {
        let mut tidied = self.tidied.lock();
        let is_due = tidied.is_none_or(|at| now.since(at) >= TIDY_EVERY);
        if is_due {
            *tidied = Some(now);
        }
        is_due
    }
}

impl Postgres {
    pub(super) fn has_queue(&self, kind: Kind) -> bool {
        self.place.is_some() && kind.has_queue()
    }

    pub(super) fn channels(&self, claim: &Claim) -> Vec<String> {
        let releases = || self.listener.channel(&claim.name);
        let queue_mode = || self.listener.turn_channel(&claim.name, claim.owner.client());
        match claim.listens_for {
            _ if !self.has_queue(claim.kind) => vec![releases()],
            ListensFor::Releases => vec![releases()],
            ListensFor::OwnTurn => vec![queue_mode()],
            ListensFor::OwnTurnAndReleases => vec![queue_mode(), releases()],
            ListensFor::Nothing => Vec::new(),
        }
    }

    pub(super) fn take_or_join(&self, link: &mut PostgresConnection, claim: &Claim) -> Answer<Attempt> {
        let args = self.taking(claim, claim.wants_fence).and("client", claim.owner.client().to_string());
        let is_probably_free = !self.queue.awaited.load(Ordering::Relaxed);
        let is_candidate = claim.queue_mode == QueueMode::Waits && claim.leads;
        if claim.queue_mode == QueueMode::Yields
            || is_candidate
            || claim.queue_mode == QueueMode::Waits && is_probably_free
        {
            let records = link.run(&self.queries.take_unreserved, &args)?;
            let taken = taken_of(&records)?;
            if claim.queue_mode != QueueMode::Waits {
                self.recall(link, claim, &taken);
            }
            let seen = match taken {
                Change::Made(fence) => return Ok(granted(claim, fence)),
                Change::None(seen) => of_kind(seen, claim.kind)?,
            };
            if claim.queue_mode != QueueMode::Waits {
                return Ok(Attempt::Busy { retry_after: Some(retry(seen.as_ref(), reserved(&records)?).0) });
            }
            if is_candidate {
                let full = link.run(&self.queries.is_queue_full, &Args::one("name", &*claim.name))?;
                if full.first().map(|record| record.flag(0)).transpose()? == Some(true) {
                    let (left, spread) = retry(seen.as_ref(), reserved(&records)?);
                    let retry_after = Some(left + random_between(spread));
                    let listens_for = ListensFor::Nothing;
                    return Ok(Attempt::InWaitQueue { retry_after, listens_for, watches: false });
                }
            }
        }
        let args = args.and("channel", self.listener.turn_channel(&claim.name, claim.owner.client()));
        let args = args.and("reserved_ms", link.reserved_ms());
        let mut has_asked_again = false;
        loop {
            let records = link.run(&self.queries.take_in_queue, &args)?;
            let taken = taken_of(&records)?;
            self.recall(link, claim, &taken);
            let column = |at| records.first().map_or(Ok(None), |record| record.maybe(at, Record::int));
            let seen = match taken {
                Change::Made(fence) => {
                    let queued = u32::try_from(column(9)?.unwrap_or(0)).unwrap_or(u32::MAX);
                    let fence = claim.wants_fence.then(|| FencingToken::new(fence));
                    return Ok(Attempt::Granted { fence, queued });
                }
                Change::None(seen) => of_kind(seen, claim.kind)?,
            };
            let was_freed = column(7)? == Some(1);
            if was_freed && !has_asked_again {
                has_asked_again = true;
                continue;
            }
            if self.queue.is_to_be_tidied(Clock::System.now()) {
                link.run(&self.queries.tidy_queue, &Args::none())?;
            }
            let (left, spread) = retry(seen.as_ref(), reserved(&records)?);
            let retry_after = if was_freed { AT_ONCE } else { left + random_between(spread) };
            let retry_after = Some(retry_after);
            return Ok(Attempt::InWaitQueue {
                retry_after,
                listens_for: ListensFor::OwnTurn,
                watches: false,
            });
        }
    }

    /// If the claim waits for a cached lock, asks the caching client to release it. If the message is lost,
    /// that client's next check finds the waiter.
    pub(super) fn recall(&self, link: &mut PostgresConnection, claim: &Claim, taken: &Change<u64>) {
        if let Change::None(Some(seen)) = taken
            && claim.waits
            && seen.is_live()
            && let Some(keeper) = &seen.keeper
        {
            let args = Args::one("name", &*claim.name).and("keeper", &**keeper);
            drop(link.run(&self.queries.recall, &args));
        }
    }

    /// Writes this client's channel into the rows of claims that want recalls (`hears`). Returns for each
    /// claim whether the channel was missing until now, so that earlier waiters could send no recall.
    pub(super) fn mark(&self, link: &mut PostgresConnection, claims: &[Claim]) -> Vec<bool> {
        let args = |claim: &Claim| {
            let keeper = self.listener.turn_channel(&claim.name, claim.owner.client());
            Args::of(claim).and("keeper", keeper)
        };
        let hearing: Vec<_> = claims.iter().filter(|claim| claim.hears).map(args).collect();
        if hearing.is_empty() {
            return vec![false; claims.len()];
        }
        // A failure is ignored, because the next check writes the channels again.
        let mut marked = link.each(&self.queries.mark, &hearing).into_iter();
        claims.iter().map(|claim| claim.hears && matches!(marked.next(), Some(Ok(true)))).collect()
    }

    pub(super) fn look_in_queue(
        &self,
        link: &mut PostgresConnection,
        claims: &[Claim],
        unmarked: &[bool],
    ) -> Vec<Answer<CachedCheck>> {
        let list = |of: &dyn Fn(&Claim) -> String| claims.iter().map(of).collect::<Vec<_>>().join(",");
        let client = claims.first().map(|claim| claim.owner.client().to_string());
        let args = Args::one("names", list(&|claim| hex(claim.name.key().as_bytes())))
            .and("tokens", list(&|claim| claim.kind.is_token().to_string()))
            .and("owners", list(&|claim| claim.owner.to_string()))
            .and("client", client);
        let looked = link.run(&self.queries.check_cached, &args).and_then(|records| {
            let of_one = |record: &Record| Ok((record.int(0)?, (record.flag(1)?, record.flag(2)?)));
            records.iter().map(of_one).collect::<Answer<HashMap<_, _>>>()
        });
        let look = |at: i64, hears: bool, is_new: bool| match looked.as_ref().map(|found| found.get(&at)) {
            Ok(Some((_, true))) => Ok(CachedCheck::Wanted),
            // No channel: a recall removed it (or, if the claim `hears`, `mark` may have failed to write it).
            Ok(Some((true, _))) if !hears => Ok(CachedCheck::Wanted),
            Ok(Some(_)) => Ok(if is_new { CachedCheck::Unmarked } else { CachedCheck::Stays }),
            Ok(None) => Ok(CachedCheck::Lost),
            Err(failure) => Err(failure.copy()),
        };
        (1..).zip(claims).zip(unmarked).map(|((at, claim), new)| look(at, claim.hears, *new)).collect()
    }

    pub(super) fn change_and_notify(
        &self,
        link: &mut PostgresConnection,
        statement: &Statement,
        name: &LockName,
        mut args: Args,
    ) -> Answer<Change<u64>> {
        or_unheard(&self.listener.channel(name), |channel| {
            args.set("channel", channel);
            self.change(link, statement, &args)
        })
    }

    pub(super) fn free_in_queue(
        &self,
        link: &mut PostgresConnection,
        claim: &Claim,
    ) -> Answer<Change<Others>> {
        let (token, owner) = (claim.kind.is_token(), claim.owner.to_string());
        if !self.queue.awaited.load(Ordering::Relaxed) {
            let statement = &self.queries.free_unawaited;
            match self.change_and_notify(link, statement, &claim.name, Args::of(claim))? {
                Change::Made(_) => return Ok(Change::Made(Others::Nobody)),
                Change::None(Some(seen)) if seen.is_live() && seen.token == token && seen.owner == owner => {}
                Change::None(seen) => return Ok(Change::None(seen)),
            }
        }
        let args = Args::of(claim).and("left", 0_i64);
        self.change_and_tell(link, &self.queries.all.leave, &claim.name, args)
    }

    pub(super) fn change_and_tell(
        &self,
        link: &mut PostgresConnection,
        statement: &Statement,
        name: &LockName,
        args: Args,
    ) -> Answer<Change<Others>> {
        let args = args.and("channel", "").and("listeners", self.listener.channel(name));
        let (freed, told) = link.one_then((statement, &self.queries.tell), &args)?;
        let freed = taken_of(&freed)?;
        if matches!(freed, Change::None(_)) {
            return Ok(freed.map(|_| Others::Nobody));
        }
        let others = match told {
            Ok(records) if records.first().is_some_and(|record| !record.is_null(0)) => Others::Next,
            // The lock is free, and waiters without a notification find out by polling.
            Ok(_) | Err(_) => Others::Nobody,
        };
        self.queue.awaited.store(others == Others::Next, Ordering::Relaxed);
        Ok(Change::Made(others))
    }

    /// Removes the client from the wait queue. If it had been notified, notifies its successor.
    pub(super) fn leave_the_queue(&self, link: &mut PostgresConnection, claim: &Claim) -> Answer<()> {
        let args = Args::one("name", &*claim.name).and("client", claim.owner.client().to_string());
        let gone = link.run(&self.queries.leave_wait_queue, &args)?;
        if gone.first().map(|record| record.flag(0)).transpose()? == Some(true) {
            let args = args.and("listeners", self.listener.channel(&claim.name));
            link.run(&self.queries.tell, &args)?;
        }
        Ok(())
    }
}

fn taken_of(records: &[Record]) -> Answer<Change<u64>> {
    Ok(change_of(records)?.unwrap_or(Change::None(None)))
}

fn reserved(records: &[Record]) -> Answer<Option<Duration>> {
    let ms = records.first().map(|record| record.maybe(6, Record::int)).transpose()?.flatten();
    Ok(ms.map(milliseconds))
}

/// When a waiter tries to acquire again: the time until then, and the bounds of a random time to add.
fn retry(seen: Option<&Row>, reserved: Option<Duration>) -> (Duration, (Duration, Duration)) {
    match (seen, reserved) {
        (Some(row), _) => (row.remaining(), AFTER_LEASE),
        (None, Some(reserved)) => (reserved, AFTER_RESERVATION),
        // Another client was faster, and this statement's snapshot does not show its row yet.
        (None, None) => (Duration::ZERO, (AT_ONCE, AT_ONCE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_wait_queue_rows_are_removed_once_a_minute() {
        let (queue, begun) = (QueueUse::default(), Moment::from_nanos(0));
        let at = |seconds| queue.is_to_be_tidied(begun.plus(Duration::from_secs(seconds)));
        assert_eq!(
            [at(0), at(59), at(60), at(61), at(119), at(120)],
            [true, false, true, false, false, true]
        );
    }
}
