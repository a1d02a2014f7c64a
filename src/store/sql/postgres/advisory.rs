//! Advisory locks: a session's, keyed by the first 8 bytes of the name's SHA-256.

use std::time::Duration;

use super::{Link, Postgres, column};
use crate::ident::LockName;
use crate::lock::store::Claim;
use crate::lock::topic::Listening;
use crate::store::sql::sessions::Sessions;
use crate::store::sql::{Outcome, lease_ms};
use crate::sync::Waker;
use crate::time::Moment;

const TRY_LOCK: &str = include_str!("../query/postgres/advisory_try_lock.sql");
const UNLOCK: &str = include_str!("../query/postgres/advisory_unlock.sql");
const HOLDER: &str = include_str!("../query/postgres/advisory_holder.sql");
const END: &str = include_str!("../query/postgres/advisory_end.sql");

impl Sessions for Postgres {
    const SEES_ENDS: bool = true;

    fn try_lock(&self, link: &mut Link, claim: &Claim, by: Moment) -> Outcome<bool> {
        let name = claim.name.key().as_bytes();
        let lease = idle_limit(claim.lease);
        let row = link.one(TRY_LOCK, &[&name, &lease, &claim.owner.to_string()], by)?;
        column(&row, 0)
    }

    fn prolong(&self, link: &mut Link, lease: Duration, by: Moment) -> Outcome<()> {
        let prolong = "SELECT set_config('idle_session_timeout', $1, false)";
        link.one(prolong, &[&idle_limit(lease)], by).map(drop)
    }

    fn unlock(&self, link: &mut Link, name: &LockName, by: Moment) -> Outcome<bool> {
        let row = link.one(UNLOCK, &[&name.key().as_bytes(), &self.hub.channel(name)], by)?;
        column(&row, 0)
    }

    fn holder(&self, link: &mut Link, name: &LockName, by: Moment) -> Outcome<Option<String>> {
        let rows = link.rows(HOLDER, &[&name.key().as_bytes()], by)?;
        rows.first().map(|row| column(row, 0)).transpose()
    }

    fn end(&self, link: &mut Link, name: &LockName, by: Moment) -> Outcome<bool> {
        let rows = link.rows(END, &[&name.key().as_bytes(), &self.hub.channel(name)], by)?;
        Ok(!rows.is_empty())
    }

    /// Of a session that died nobody is told.
    fn poll_every(&self) -> (Duration, Duration) {
        (Duration::from_millis(200), Duration::from_millis(300))
    }

    fn wakes(&self) -> bool {
        true
    }

    fn listen(&self, name: &LockName, waker: &Waker) -> Option<Listening> {
        self.hub.listen(&self.hub.channel(name), waker)
    }

    fn heard(&self, name: &LockName) -> Option<u64> {
        self.hub.heard(&self.hub.channel(name))
    }

    fn close(&self) {
        self.hub.close();
    }
}

/// Milliseconds as a setting, which has 31 bits: 24 days at most.
fn idle_limit(lease: Duration) -> String {
    lease_ms(lease).clamp(1, i64::from(i32::MAX)).to_string()
}
