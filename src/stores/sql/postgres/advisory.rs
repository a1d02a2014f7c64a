//! Advisory locks: a session's, keyed by the first 8 bytes of the name's SHA-256.

use std::time::Duration;

use crate::ident::LockName;
use crate::seam::subscription::Subscription;
use crate::seam::{Claim, Outcome};
use crate::stores::sql::lease_ms;
use crate::stores::sql::postgres::refusal::or_done_unheard;
use crate::stores::sql::postgres::{Postgres, PostgresConnection, column};
use crate::stores::sql::sessions::SessionDatabase;
use crate::sync::Waker;
use crate::time::Moment;

const TRY_LOCK: &str = include_str!("../query/postgres/advisory_try_lock.sql");
const UNLOCK: &str = include_str!("../query/postgres/advisory_unlock.sql");
const HOLDER: &str = include_str!("../query/postgres/advisory_holder.sql");
const END: &str = include_str!("../query/postgres/advisory_end.sql");

impl SessionDatabase for Postgres {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(300));
    const WAKES: bool = true;
    const SEES_ENDS: bool = true;

    fn try_lock(&self, link: &mut PostgresConnection, claim: &Claim, deadline: Moment) -> Outcome<bool> {
        let name = claim.name.key().as_bytes();
        let lease = idle_limit(claim.lease);
        let row = link.one(TRY_LOCK, &[&name, &lease, &claim.owner.to_string()], deadline)?;
        column(&row, 0)
    }

    fn prolong(&self, link: &mut PostgresConnection, lease: Duration, deadline: Moment) -> Outcome<()> {
        let prolong = "SELECT set_config('idle_session_timeout', $1, false)";
        link.one(prolong, &[&idle_limit(lease)], deadline).map(drop)
    }

    fn unlock(&self, link: &mut PostgresConnection, name: &LockName, deadline: Moment) -> Outcome<bool> {
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
    ) -> Outcome<Option<String>> {
        let rows = link.rows(HOLDER, &[&name.key().as_bytes()], deadline)?;
        rows.first().map(|row| column(row, 0)).transpose()
    }

    fn end(&self, link: &mut PostgresConnection, name: &LockName, deadline: Moment) -> Outcome<bool> {
        let rows = link.rows(END, &[&name.key().as_bytes(), &self.listener.channel(name)], deadline);
        or_done_unheard(rows.map(|rows| !rows.is_empty()), || true)
    }

    fn listen(&self, name: &LockName, waker: &Waker) -> Option<Subscription> {
        self.listener.listen(&self.listener.channel(name), waker)
    }

    fn message_count(&self, name: &LockName) -> Option<u64> {
        self.listener.message_count(&self.listener.channel(name))
    }

    fn close(&self) {
        self.listener.close();
    }
}

/// Milliseconds as a setting, which has 31 bits: 24 days at most.
fn idle_limit(lease: Duration) -> String {
    lease_ms(lease).clamp(1, i64::from(i32::MAX)).to_string()
}
