//! `GET_LOCK`: a session's locks, of the whole server, by a name made of the lock name's SHA-256.

use std::time::Duration;

use mysql::params;
use mysql::prelude::Queryable;

use crate::error::{Error, ErrorKind};
use crate::ident::LockName;
use crate::seam::subscription::Subscription;
use crate::seam::{Claim, Failure, Outcome};
use crate::stores::sql::mysql::turnstile::TurnstileQueries;
use crate::stores::sql::mysql::{Mysql, MysqlConnection};
use crate::stores::sql::pool::Pool;
use crate::stores::sql::sessions::SessionDatabase;
use crate::sync::Waker;
use crate::time::Moment;

/// At most 64 characters, and their case makes no difference.
const TRY_LOCK: &str = "SELECT GET_LOCK(CONCAT('leasehold:', LEFT(SHA2(:name, 256), 48)), 0)";
const UNLOCK: &str = "SELECT RELEASE_LOCK(CONCAT('leasehold:', LEFT(SHA2(:name, 256), 48)))";
const HOLDER: &str = "SELECT IS_USED_LOCK(CONCAT('leasehold:', LEFT(SHA2(:name, 256), 48)))";
const TURN_ENTER: &str = "SELECT GET_LOCK(CONCAT('leasehold-turn:', LEFT(SHA2(CONCAT('/', :name), 256), 40)), 0), \
    LEFT(SHA2(:name, 256), 48)";
const TURN_LEAVE: &str =
    "SELECT RELEASE_LOCK(CONCAT('leasehold-turn:', LEFT(SHA2(CONCAT('/', :name), 256), 40)))";
const TURN_LOOK: &str = "SELECT id FROM (IDS) AS ids WHERE IS_FREE_LOCK(CONCAT('leasehold:', id)) = 0";

/// The turnstiles of session locks.
pub(super) fn turnstile() -> TurnstileQueries {
    TurnstileQueries {
        enter: TURN_ENTER.to_owned(),
        leave: TURN_LEAVE.to_owned(),
        look: TURN_LOOK.to_owned(),
        list: ("SELECT 'ID' AS id", " UNION ALL "),
    }
}

impl MysqlConnection {
    /// Asks something of a name.
    fn ask<T: mysql::prelude::FromValue>(&mut self, sql: &str, name: &LockName) -> Outcome<Option<T>> {
        let params = params! { "name" => name.key().as_bytes() };
        Ok(self.first::<Option<T>>(sql, params)?.flatten())
    }

    /// How long the session may idle, in the server's whole seconds; `None`: as the server is set.
    fn set_idle_limit(&mut self, limit: Option<Duration>) -> Outcome<()> {
        let limit = limit.map_or_else(|| "DEFAULT".to_owned(), |limit| seconds(limit).to_string());
        let set = self.conn.query_drop(format!("SET SESSION wait_timeout = {limit}"));
        self.judge(set)
    }
}

/// Rounded up, within what the server takes: a year.
fn seconds(limit: Duration) -> u64 {
    let up = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
    up.clamp(1, 31_536_000)
}

impl SessionDatabase for Mysql {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));
    fn try_lock(&self, link: &mut MysqlConnection, claim: &Claim, _by: Moment) -> Outcome<bool> {
        match link.ask::<i64>(TRY_LOCK, &claim.name)? {
            Some(1) => {}
            Some(_) => return Ok(false),
            None => {
                let words = "the server could not tell whether it gave the lock";
                return Err(Failure::Unknown(Error::new(ErrorKind::Refused, "lock", words)));
            }
        }
        // If this fails the session has a lock without an end: its connection is not kept.
        link.set_idle_limit(Some(claim.lease)).map_err(|failure| Failure::Unknown(failure.into_error()))?;
        Ok(true)
    }

    fn prolong(&self, link: &mut MysqlConnection, lease: Duration, _by: Moment) -> Outcome<()> {
        link.set_idle_limit(Some(lease))
    }

    fn unlock(&self, link: &mut MysqlConnection, name: &LockName, _by: Moment) -> Outcome<bool> {
        let freed = link.ask::<i64>(UNLOCK, name)? == Some(1);
        // It is free; if this fails, only the connection is not used again.
        link.ended |= link.set_idle_limit(None).is_err();
        Ok(freed)
    }

    fn holder(&self, link: &mut MysqlConnection, name: &LockName, _by: Moment) -> Outcome<Option<String>> {
        let id = link.ask::<u64>(HOLDER, name)?;
        Ok(id.map(|id| format!("connection {id}")))
    }

    fn end(&self, link: &mut MysqlConnection, name: &LockName, _by: Moment) -> Outcome<bool> {
        let Some(id) = link.ask::<u64>(HOLDER, name)? else { return Ok(false) };
        let killed = link.conn.query_drop(format!("KILL {id}"));
        link.judge(killed).map(|()| true)
    }

    /// The driver cannot use a connection any more once an answer over it came too late, so that a server which stands
    /// still for a moment would cost the sessions of all holds. It is asked over a connection that is none's first.
    fn sound_out(&self, pool: &Pool<Mysql>, deadline: Moment) -> Outcome<()> {
        pool.with_renewals(1, deadline, |_, link| vec![link.ping()]).into_iter().collect()
    }

    fn is_over(&self, link: &mut MysqlConnection) -> bool {
        link.ended
    }

    fn listen(&self, name: &LockName, waker: &Waker) -> Option<Subscription> {
        self.turnstiles.as_ref()?.listen(name, waker)
    }

    fn close(&self) {
        self.turnstiles.iter().for_each(|turnstiles| turnstiles.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_rounded_up_to_seconds() {
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(2)), 2);
        assert_eq!(seconds(Duration::from_millis(2_001)), 3);
        assert_eq!(seconds(Duration::MAX.min(crate::time::LONGEST_LEASE)), 31_536_000);
    }
}
