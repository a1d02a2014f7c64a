//! Advisory locks: a session's, keyed by the first 8 bytes of the name's SHA-256.

use std::time::Duration;

use crate::ident::LockName;
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Claim, Failure};
use crate::stores::sql::lease_ms;
use crate::stores::sql::postgres::refusal::{or_done_unheard, read_only_now};
use crate::stores::sql::postgres::{IS_READ_ONLY, Postgres, PostgresConnection, column};
use crate::stores::sql::sessions::{LeftSession, SessionDatabase};
use crate::sync::Waker;
use crate::time::Moment;

const TRY_LOCK: &str = include_str!("../query/postgres/advisory_try_lock.sql");
const UNLOCK: &str = include_str!("../query/postgres/advisory_unlock.sql");
const HOLDER: &str = include_str!("../query/postgres/advisory_holder.sql");
const PROLONG: &str = include_str!("../query/postgres/advisory_prolong.sql");
const END_LEFT: &str = include_str!("../query/postgres/advisory_end_left.sql");
const END: &str = include_str!("../query/postgres/advisory_end.sql");

impl SessionDatabase for Postgres {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(300));
    const WAKES: bool = true;
    const SEES_ENDS: bool = true;

    fn try_lock(&self, link: &mut PostgresConnection, claim: &Claim, deadline: Moment) -> Answer<bool> {
        let name = claim.name.key().as_bytes();
        let lease = idle_limit(claim.lease);
        let row = link.one(TRY_LOCK, &[&name, &lease, &claim.owner.to_string()], deadline)?;
        column::<Option<bool>>(&row, 0)?.ok_or_else(|| Failure::Refused(read_only_now()))
    }

    fn prolong(&self, link: &mut PostgresConnection, lease: Duration, deadline: Moment) -> Answer<bool> {
        column(&link.one(PROLONG, &[&idle_limit(lease)], deadline)?, 0)
    }

    fn unlock(&self, link: &mut PostgresConnection, name: &LockName, deadline: Moment) -> Answer<bool> {
        let row = link.one(UNLOCK, &[&name.key().as_bytes(), &self.listener.channel(name)], deadline);
        or_done_unheard(row.and_then(|row| column(&row, 0)), || {
            // It is free, and the session would still end with the lease: it is not used again.
            link.ended = true;
            true
        })
    }

    fn holder(
        &self,
        link: &mut PostgresConnection,
        name: &LockName,
        deadline: Moment,
    ) -> Answer<Option<String>> {
        let rows = link.rows(HOLDER, &[&name.key().as_bytes()], deadline)?;
        rows.first().map(|row| column(row, 0)).transpose()
    }

    fn end(&self, link: &mut PostgresConnection, name: &LockName, deadline: Moment) -> Answer<bool> {
        let is_read_only = link.one(&format!("SELECT {IS_READ_ONLY}"), &[], deadline)?;
        if column(&is_read_only, 0)? {
            return Err(Failure::Refused(read_only_now()));
        }
        let rows = link.rows(END, &[&name.key().as_bytes(), &self.listener.channel(name)], deadline);
        or_done_unheard(rows.map(|rows| !rows.is_empty()), || true)
    }

    fn session(&self, link: &PostgresConnection) -> u32 {
        link.backend.parse().unwrap_or(0) // no process's
    }

    fn end_left(
        &self,
        link: &mut PostgresConnection,
        claim: &Claim,
        left: &LeftSession,
        deadline: Moment,
    ) -> Answer<bool> {
        let (name, channel) = (claim.name.key().as_bytes(), self.listener.channel(&claim.name));
        let (pid, owner) = (i64::from(left.session), claim.owner.to_string());
        let ended = link.rows(END_LEFT, &[&name, &channel, &pid, &owner], deadline)?;
        Ok(!ended.is_empty())
    }

    fn listen(&self, name: &LockName, waker: &Waker) -> Option<Subscription> {
        self.listener.listen(&self.listener.channel(name), waker)
    }

    fn message_count(&self, name: &LockName) -> Option<u64> {
        self.listener.message_count(|| Some(self.listener.channel(name)))
    }

    fn close(&self) {
        self.listener.close();
    }
}

/// Milliseconds as a setting, which has 31 bits: 24 days at most.
fn idle_limit(lease: Duration) -> String {
    lease_ms(lease).clamp(1, i64::from(i32::MAX)).to_string()
}
