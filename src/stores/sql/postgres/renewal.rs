//! Renewals of rows that another transaction has locked: they come after all others, so that no hold waits for the
//! row of another.

use std::time::Duration;

use crate::error::Error;
use crate::seam::{Answer, Claim, Failure};
use crate::stores::sql::lease_ms;
use crate::stores::sql::postgres::link::{Params, longest_wait};
use crate::stores::sql::postgres::{Postgres, PostgresConnection};
use crate::stores::sql::timed_out;
use crate::time::{Clock, Moment, millis};

/// The most time for which one request waits for locked rows, all together. Who locks a row to use a lock has it
/// for milliseconds; behind any other transaction a renewal waits in the engine, which asks again soon.
const WAITS: Duration = Duration::from_millis(500);

/// The wait for one row where others wait for the connection.
const BRIEFLY: Duration = Duration::from_millis(20);

impl Postgres {
    /// Carries out a statement that writes, and that finds no row.
    pub(super) fn write_nothing(&self, link: &mut PostgresConnection, deadline: Moment) -> Answer<()> {
        let nobody: &[u8] = b"";
        let params: Params<'_> = &[&nobody, &false, &"", &0_i64, &1_i64];
        link.rows(&self.queries.renew, params, deadline).map(drop)
    }

    /// Renews those that a request which passes over locked rows found nothing of: their rows are locked, or they
    /// are lost. Each waits for its share of the time.
    pub(super) fn ask_again<T>(
        &self,
        link: &mut PostgresConnection,
        (claims, answers): (&[Claim], &mut Vec<Answer<T>>),
        read: impl Fn(bool) -> T,
        is_open: impl Fn(&T) -> bool,
        deadline: Moment,
    ) {
        let open: Vec<_> = answers
            .iter_mut()
            .zip(claims)
            .filter(|(answer, _)| answer.as_ref().is_ok_and(&is_open))
            .collect();
        let now = Clock::System.now();
        let until = now.plus((deadline.since(now) / 2).min(WAITS));
        let mut ahead = u32::try_from(open.len()).unwrap_or(u32::MAX);
        let mut broken: Option<Error> = None;
        for (answer, claim) in open {
            if let Some(error) = &broken {
                *answer = Err(Failure::Refused(error.copy()));
                continue;
            }
            let share = until.since(Clock::System.now()) / ahead;
            ahead = ahead.saturating_sub(1).max(1);
            let asked = self.renew_one(link, claim, share, deadline);
            if let Err(Failure::Unknown(error)) = &asked {
                broken = Some(error.copy());
            }
            *answer = asked.map(&read);
        }
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

    fn renew_one(
        &self,
        link: &mut PostgresConnection,
        claim: &Claim,
        wait: Duration,
        deadline: Moment,
    ) -> Answer<bool> {
        if deadline.since(Clock::System.now()).is_zero() {
            return Err(Failure::Refused(timed_out("those before took all the time")));
        }
        let wait = lease_ms(wait).max(1); // zero is no limit
        let rows = link.rows(
            &self.queries.renew,
            &[
                &claim.name.key().as_bytes(),
                &claim.kind.is_token(),
                &claim.owner.to_string(),
                &lease_ms(claim.lease),
                &wait,
            ],
            deadline,
        )?;
        Ok(!rows.is_empty())
    }
}
