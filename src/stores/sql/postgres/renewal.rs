//! Renewals of rows that another transaction has locked: they come after all others, so that no hold waits
//! for the row of another.

use std::time::Duration;

use crate::seam::{Answer, Claim};
use crate::stores::sql::postgres::link::longest_wait;
use crate::stores::sql::postgres::{Postgres, PostgresConnection};
use crate::stores::sql::rows::until_broken;
use crate::stores::sql::statement::Args;
use crate::time::{Clock, Moment, millis};

/// The most time for which one request waits for locked rows, all together. Who locks a row to use a lock has
/// it for milliseconds; behind any other transaction a renewal waits in the engine, which asks again soon.
const WAITS: Duration = Duration::from_millis(500);

/// The wait for one row where others wait for the connection.
const BRIEFLY: Duration = Duration::from_millis(20);

impl Postgres {
    /// Carries out a statement that writes, and that finds no row.
    pub(super) fn write_nothing(&self, link: &mut PostgresConnection, deadline: Moment) -> Answer<()> {
        let args = Args::one("name", "".as_bytes()).and("token", false).and("owner", "");
        let args = args.and("lease_ms", 0_i64).and("wait_ms", 1_i64);
        link.run(&self.queries.all.renew, &args, deadline).map(drop)
    }

    /// Renews those that a request which passes over locked rows found nothing of: their rows are locked, or
    /// they are lost. Each waits for its share of the time.
    pub(super) fn ask_again(
        &self,
        link: &mut PostgresConnection,
        (claims, answers): (&[Claim], &mut [Answer<bool>]),
        deadline: Moment,
    ) {
        let open = || answers.iter().zip(claims).filter(|(answer, _)| matches!(answer, Ok(false)));
        let open: Vec<Claim> = open().map(|(_, claim)| claim.clone()).collect();
        let now = Clock::System.now();
        let until = now.plus((deadline.since(now) / 2).min(WAITS));
        let mut ahead = u32::try_from(open.len()).unwrap_or(u32::MAX);
        let asked = until_broken(&open, Ok(()), deadline, |claim| {
            let share = until.since(Clock::System.now()) / ahead;
            ahead = ahead.saturating_sub(1).max(1);
            // Zero is no limit.
            let args = Args::of(claim).and("wait_ms", share.max(Duration::from_millis(1)));
            Ok(!link.run(&self.queries.all.renew, &args, deadline)?.is_empty())
        });
        let answers = answers.iter_mut().filter(|answer| matches!(answer, Ok(false)));
        answers.zip(asked).for_each(|(answer, asked)| *answer = asked);
    }

    /// As `Rows::wait_for_rows`.
    pub(super) fn limit_waits(
        &self,
        link: &mut PostgresConnection,
        briefly: bool,
        deadline: Moment,
    ) -> Answer<()> {
        let limit = longest_wait(self.command_timeout);
        let limit = if briefly { BRIEFLY.min(limit) } else { limit };
        link.execute(&format!("SET lock_timeout = {}", millis(limit)), deadline)
    }
}
