//! The line of the clients that wait for a lock: a table beside the locks', with a row for each of them.
//!
//! If nobody waits, a release is one statement. Else it frees the lock by one and tells the first in the line
//! by the next. A client that writes to the line writes to the lock's row too. So of a release and a client
//! that joins at the same time one sees the other: the release is made by two statements then, or the client
//! asks once more. The line only refuses and wakes: whether a lock is free, its own row says. The
//! client does without the line if the table is missing or of another shape, or the user may not use it.
//!
//! Source: docs/decisions/0032.

use std::collections::HashMap;
use std::time::Duration;

use tokio_postgres::Row as PgRow;

use crate::ident::{FencingToken, LockName};
use crate::seam::capabilities::KeptLook;
use crate::seam::{AFTER_KEPT, AFTER_LEASE, Answer, Attempt, Claim, Failure, Kind, ListensFor, Others, Turn};
use crate::stores::sql::postgres::refusal::{is_of_locked_table, is_of_table, or_unheard};
use crate::stores::sql::postgres::{Postgres, PostgresConnection, column};
use crate::stores::sql::rows::{
    Change, Row, Rows, acquire_by_row, change_of, granted, milliseconds, of_kind,
};
use crate::stores::sql::statement::{Args, Record};
use crate::time::{Clock, Moment, random_between};

/// After an attempt that saw a lock in between two others.
const AT_ONCE: Duration = Duration::from_millis(1);

/// The ids of clients whose releases tell the line are UUIDs of version 8; versions of this crate without a
/// line, and clients that may not use it, have version 4.
fn tells_line(owner: &str) -> bool {
    owner.as_bytes().get(14) == Some(&b'8')
}

impl Postgres {
    /// Whether locks of this kind have a line that this client goes by.
    pub(super) fn has_line(&self, kind: Kind) -> bool {
        kind.has_line() && !self.line.is_refused()
    }

    /// The channels that a waiter under this claim listens to.
    pub(super) fn channels(&self, claim: &Claim) -> Vec<String> {
        let releases = || self.listener.channel(&claim.name);
        let turn = || self.listener.turn_channel(&claim.name, claim.owner.client());
        match claim.listens_for {
            _ if !self.has_line(claim.kind) => vec![releases()],
            ListensFor::Releases => vec![releases()],
            ListensFor::OwnTurn => vec![turn()],
            ListensFor::OwnTurnAndReleases => vec![turn(), releases()],
            ListensFor::Nothing => Vec::new(),
        }
    }

    /// As `attempt`; does without the line if that is what the server refuses, or a table of it that another
    /// transaction has locked.
    fn or_without_line<T>(
        &self,
        link: &mut PostgresConnection,
        attempt: impl FnOnce(&mut PostgresConnection) -> Answer<T>,
        without: impl FnOnce(&mut PostgresConnection) -> Answer<T>,
    ) -> Answer<T> {
        match attempt(link) {
            Err(Failure::Refused(error)) if is_of_table(&error) => {
                let done = without(link)?;
                self.line.note_refused(true);
                Ok(done)
            }
            // Noted only once the other table was found to be open: else it is the locks' own that is locked.
            Err(Failure::Refused(error)) if is_of_locked_table(&error) => {
                let done = without(link)?;
                self.line.note_locked();
                Ok(done)
            }
            outcome => outcome,
        }
    }

    pub(super) fn acquire_in_line(
        &self,
        link: &mut PostgresConnection,
        claim: &Claim,
        deadline: Moment,
    ) -> Answer<Attempt> {
        self.or_without_line(
            link,
            |link| self.take_or_join(link, claim, deadline),
            |link| acquire_by_row(self, link, claim, deadline),
        )
    }

    fn take_or_join(
        &self,
        link: &mut PostgresConnection,
        claim: &Claim,
        deadline: Moment,
    ) -> Answer<Attempt> {
        let here = self.notes.here();
        let args = Args::of(claim).and("fenced", claim.wants_fence).and("host", here.host);
        let args = args.and("pid", here.pid).and("thread", here.thread).and("keeper", self.keeper(claim));
        let args = args.and("client", claim.owner.client().to_string());
        // Most locks are free: the smaller statement does for those.
        let stands_for_election = claim.turn == Turn::Waits && claim.leads;
        if claim.turn == Turn::Yields
            || stands_for_election
            || claim.turn == Turn::Waits && !self.line.was_awaited()
        {
            let records = link.run(&self.queries.take_kept, &args, deadline)?;
            let taken = taken_of(&records)?;
            if claim.turn != Turn::Waits {
                self.recall(link, claim, &taken, deadline);
            }
            let seen = match taken {
                Change::Made(fence) => return Ok(granted(claim, fence)),
                Change::None(seen) => of_kind(seen, claim.kind)?,
            };
            if claim.turn != Turn::Waits {
                return Ok(Attempt::Busy { retry_after: Some(retry(seen.as_ref(), kept(&records)?).0) });
            }
            if stands_for_election {
                let full =
                    link.run(&self.queries.is_line_full, &Args::one("name", &*claim.name), deadline)?;
                if full.first().map(|record| record.flag(0)).transpose()? == Some(true) {
                    let (left, spread, _) = retry(seen.as_ref(), kept(&records)?);
                    let retry_after = Some(left + random_between(spread));
                    let listens_for = ListensFor::Nothing;
                    return Ok(Attempt::InLine { retry_after, listens_for, is_lookout: false });
                }
            }
        }
        let channel = self.listener.turn_channel(&claim.name, claim.owner.client());
        let args = args.and("channel", channel);
        let mut has_asked_again = false;
        loop {
            let records = link.run(&self.queries.take_in_line, &args, deadline)?;
            let taken = taken_of(&records)?;
            // Behind the statement that joins the line: a look of the keeper's saw that, or this makes it
            // give the lock back.
            self.recall(link, claim, &taken, deadline);
            let column = |at| records.first().map_or(Ok(None), |record| record.maybe(at, Record::int));
            let seen = match taken {
                Change::Made(fence) => {
                    let in_line = u32::try_from(column(9)?.unwrap_or(0)).unwrap_or(u32::MAX);
                    let fence = claim.wants_fence.then(|| FencingToken::new(fence));
                    return Ok(Attempt::Granted { fence, in_line });
                }
                Change::None(seen) => of_kind(seen, claim.kind)?,
            };
            let was_freed = column(7)? == Some(1);
            if was_freed && !has_asked_again {
                has_asked_again = true;
                continue;
            }
            if self.line.is_to_be_tidied(Clock::System.now()) {
                link.run(&self.queries.tidy_line, &Args::none(), deadline)?;
            }
            let (left, spread, listens_for) = retry(seen.as_ref(), kept(&records)?);
            let retry_after = if was_freed { AT_ONCE } else { left + random_between(spread) };
            // Nothing else wakes here: who deletes a row notifies nobody.
            return Ok(Attempt::InLine { retry_after: Some(retry_after), listens_for, is_lookout: false });
        }
    }

    /// If the claim's client waits for a lock that its holder keeps until others ask for it, it asks. The
    /// keeper sees by itself what does not come.
    pub(super) fn recall(
        &self,
        link: &mut PostgresConnection,
        claim: &Claim,
        taken: &Change<u64>,
        deadline: Moment,
    ) {
        if let Change::None(Some(seen)) = taken
            && claim.waits
            && seen.is_live()
            && let Some(keeper) = &seen.keeper
        {
            let args = Args::one("name", &*claim.name).and("keeper", &**keeper);
            drop(link.run(&self.queries.recall, &args, deadline));
        }
    }

    /// Whether others than this client stand in each lock's line or have asked for it.
    pub(super) fn look_in_line(
        &self,
        link: &mut PostgresConnection,
        claims: &[Claim],
        deadline: Moment,
    ) -> Vec<Answer<KeptLook>> {
        let Some(client) = claims.first().map(|claim| claim.owner.client().to_string()) else {
            return Vec::new();
        };
        let names: Vec<&[u8]> = claims.iter().map(|claim| claim.name.key().as_bytes()).collect();
        let tokens: Vec<bool> = claims.iter().map(|claim| claim.kind.is_token()).collect();
        let owners: Vec<String> = claims.iter().map(|claim| claim.owner.to_string()).collect();
        let looked = link
            .rows(&self.queries.look_kept.text, &[&names, &tokens, &owners, &client], deadline)
            .and_then(|rows| {
                let of_one = |row: &PgRow| Ok((column::<i64>(row, 0)?, column::<bool>(row, 1)?));
                rows.iter().map(of_one).collect::<Answer<HashMap<_, _>>>()
            });
        let look = |at: i64| match &looked {
            Ok(wanted) => Ok(match wanted.get(&at) {
                Some(true) => KeptLook::Wanted,
                Some(false) => KeptLook::Stays,
                None => KeptLook::Lost,
            }),
            Err(Failure::Refused(error)) => Err(Failure::Refused(error.copy())),
            Err(Failure::Unknown(error)) => Err(Failure::Unknown(error.copy())),
        };
        (1..).zip(claims).map(|(at, _)| look(at)).collect()
    }

    /// Frees a lock whoever holds it, and notifies those who listen to its releases.
    pub(super) fn force_by_row(
        &self,
        link: &mut PostgresConnection,
        name: &LockName,
        token: bool,
        deadline: Moment,
    ) -> Answer<Change<()>> {
        let changed = or_unheard(&self.listener.channel(name), |channel| {
            let args = Args::one("name", name).and("token", token).and("channel", channel);
            self.change(link, &self.queries.all.force, &args, deadline)
        });
        Ok(changed?.map(drop))
    }

    pub(super) fn free_and_tell(
        &self,
        link: &mut PostgresConnection,
        claim: &Claim,
        deadline: Moment,
    ) -> Answer<Change<Others>> {
        self.or_without_line(
            link,
            |link| self.free_in_line(link, claim, deadline),
            |link| Ok(self.leave(link, claim, 0, deadline)?.map(|()| Others::Nobody)),
        )
    }

    fn free_in_line(
        &self,
        link: &mut PostgresConnection,
        claim: &Claim,
        deadline: Moment,
    ) -> Answer<Change<Others>> {
        let channel = self.listener.channel(&claim.name);
        if !self.line.was_awaited() {
            let freed = or_unheard(&channel, |channel| {
                let args = Args::of(claim).and("channel", channel);
                self.change(link, &self.queries.free_unawaited, &args, deadline)
            });
            let (token, owner) = (claim.kind.is_token(), claim.owner.to_string());
            match freed? {
                Change::Made(_) => return Ok(Change::Made(Others::Nobody)),
                Change::None(Some(seen)) if seen.is_live() && seen.token == token && seen.owner == owner => {}
                Change::None(seen) => return Ok(Change::None(seen)),
            }
        }
        let args = Args::of(claim).and("left", 0_i64).and("channel", "").and("listeners", &*channel);
        let statements = (&self.queries.all.leave, &self.queries.tell);
        let (freed, told) = link.one_then(statements, &args, deadline)?;
        Ok(taken_of(&freed)?.map(|_freed| {
            let others = self.others(link, told, &channel, deadline);
            self.line.note_awaited(others == Others::Next);
            others
        }))
    }

    pub(super) fn force_and_tell(
        &self,
        link: &mut PostgresConnection,
        name: &LockName,
        deadline: Moment,
    ) -> Answer<Change<()>> {
        let channel = self.listener.channel(name);
        let args = Args::one("name", name).and("token", false).and("channel", "").and("listeners", &*channel);
        self.or_without_line(
            link,
            |link| {
                let statements = (&self.queries.all.force, &self.queries.tell);
                let (freed, told) = link.one_then(statements, &args, deadline)?;
                Ok(taken_of(&freed)?.map(|_freed| {
                    self.others(link, told, &channel, deadline);
                }))
            },
            |link| self.force_by_row(link, name, false, deadline),
        )
    }

    /// Those who were told that the lock is free. If the line does not work, at least those who listen to
    /// releases are.
    fn others(
        &self,
        link: &mut PostgresConnection,
        told: Answer<Vec<Record>>,
        channel: &str,
        deadline: Moment,
    ) -> Others {
        match told {
            Ok(records) if records.first().is_some_and(|record| !record.is_null(0)) => Others::Next,
            Ok(_) | Err(Failure::Unknown(_)) => Others::Nobody,
            Err(Failure::Refused(error)) => {
                if is_of_table(&error) {
                    self.line.note_refused(true);
                }
                // The lock is free all the same; whom this does not reach either asks before long.
                drop(link.rows("SELECT pg_notify($1, '')::text", &[&channel], deadline));
                Others::Nobody
            }
        }
    }

    /// Takes the claim's client out of the line. If it was told that it is next, the one behind it is told.
    pub(super) fn leave_the_line(
        &self,
        link: &mut PostgresConnection,
        claim: &Claim,
        deadline: Moment,
    ) -> Answer<()> {
        let args = Args::one("name", &*claim.name).and("client", claim.owner.client().to_string());
        let gone = link.run(&self.queries.leave_line, &args, deadline)?;
        if gone.first().map(|record| record.flag(0)).transpose()? == Some(true) {
            let args = args.and("listeners", self.listener.channel(&claim.name));
            link.run(&self.queries.tell, &args, deadline)?;
        }
        Ok(())
    }
}

/// The change of a statement that always returns a row.
fn taken_of(records: &[Record]) -> Answer<Change<u64>> {
    Ok(change_of(records)?.unwrap_or(Change::None(None)))
}

/// For how long a free lock is kept for another client.
fn kept(records: &[Record]) -> Answer<Option<Duration>> {
    let ms = records.first().map(|record| record.maybe(6, Record::int)).transpose()?.flatten();
    Ok(ms.map(milliseconds))
}

/// When a waiter asks again, as a time and the bounds of a random part that is added; and the messages that
/// it listens for.
fn retry(seen: Option<&Row>, kept: Option<Duration>) -> (Duration, (Duration, Duration), ListensFor) {
    match (seen, kept) {
        (Some(row), _) if !tells_line(&row.owner) => {
            (row.remaining(), AFTER_LEASE, ListensFor::OwnTurnAndReleases)
        }
        (Some(row), _) => (row.remaining(), AFTER_LEASE, ListensFor::OwnTurn),
        (None, Some(kept)) => (kept, AFTER_KEPT, ListensFor::OwnTurn),
        // Another was quicker, and gone again from what this statement saw.
        (None, None) => (Duration::ZERO, (AT_ONCE, AT_ONCE), ListensFor::OwnTurn),
    }
}
