//! `GET_LOCK`: a session's locks, of the whole server, by a name made of the lock name's SHA-256.

use std::time::Duration;

use mysql::params;
use mysql::prelude::Queryable;

use crate::error::{Error, ErrorKind};
use crate::ident::LockName;
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Claim, Failure};
use crate::stores::sql::mysql::link::whole_seconds;
use crate::stores::sql::mysql::refusal::{is_read_only, read_only_now};
use crate::stores::sql::mysql::turnstile::TurnstileQueries;
use crate::stores::sql::mysql::{Mysql, MysqlConnection};
use crate::stores::sql::pool::Pool;
use crate::stores::sql::sessions::{LeftSession, SessionDatabase};
use crate::sync::Waker;
use crate::time::{Clock, Moment};

/// At most 64 characters, and their case makes no difference.
const TRY_LOCK: &str = concat!(
    "SELECT IF(",
    is_read_only!(),
    ", -1, GET_LOCK(CONCAT('leasehold:', LEFT(SHA2(:name, 256), 48)), 0))"
);
/// Of a server that takes no writes any more: its successor may have given the lock to another before.
const UNLOCK: &str = concat!(
    "SELECT RELEASE_LOCK(CONCAT('leasehold:', LEFT(SHA2(:name, 256), 48))) = 1 AND NOT ",
    is_read_only!()
);
const HOLDER: &str = "SELECT IS_USED_LOCK(CONCAT('leasehold:', LEFT(SHA2(:name, 256), 48)))";
/// How long the session of this number has been idle, in whole seconds, if it has the lock.
const IDLE_HOLDER: &str = "SELECT time FROM information_schema.processlist \
    WHERE id = :session AND id = IS_USED_LOCK(CONCAT('leasehold:', LEFT(SHA2(:name, 256), 48)))";
const TURN_ENTER: &str = "SELECT GET_LOCK(CONCAT('leasehold-turn:', LEFT(SHA2(CONCAT('/', :name), 256), 40)), 0), \
    LEFT(SHA2(:name, 256), 48)";
const TURN_LEAVE: &str =
    "SELECT RELEASE_LOCK(CONCAT('leasehold-turn:', LEFT(SHA2(CONCAT('/', :name), 256), 40)))";
const TURN_LOOK: &str = concat!(
    "SELECT id FROM (IDS) AS ids WHERE IS_FREE_LOCK(CONCAT('leasehold:', id)) = 0 \
     UNION ALL SELECT 'read-only' FROM DUAL WHERE ",
    is_read_only!()
);

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
    fn of_name(&mut self, sql: &str, name: &LockName) -> Answer<Option<i64>> {
        self.first(sql, params! { "name" => name.key().as_bytes() })
    }

    /// How long the session may idle, in the server's whole seconds; `None`: as the server is set.
    fn set_idle_limit(&mut self, limit: Option<Duration>) -> Answer<()> {
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

/// Whether the host said at once that nobody listens: then a connection that still stands can be asked.
fn is_refused_connection(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<mysql::Error>());
    matches!(
        cause,
        Some(mysql::Error::DriverError(mysql::DriverError::CouldNotConnect(Some((_, _, io)))))
            if *io == std::io::ErrorKind::ConnectionRefused
    )
}

impl SessionDatabase for Mysql {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));
    fn try_lock(&self, link: &mut MysqlConnection, claim: &Claim, _by: Moment) -> Answer<bool> {
        match link.of_name(TRY_LOCK, &claim.name)? {
            Some(1) => {}
            Some(-1) => return Err(Failure::Refused(read_only_now())),
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

    fn prolong(&self, link: &mut MysqlConnection, lease: Duration, _by: Moment) -> Answer<bool> {
        match link.refuse_read_only() {
            Ok(()) => link.set_idle_limit(Some(lease)).map(|()| true),
            Err(failure) if failure.is_read_only() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn unlock(&self, link: &mut MysqlConnection, name: &LockName, _by: Moment) -> Answer<bool> {
        let freed = link.of_name(UNLOCK, name)? == Some(1);
        // It is free; if this fails, only the connection is not used again.
        link.ended |= link.set_idle_limit(None).is_err();
        Ok(freed)
    }

    fn holder(&self, link: &mut MysqlConnection, name: &LockName, _by: Moment) -> Answer<Option<String>> {
        let id = link.of_name(HOLDER, name)?;
        Ok(id.map(|id| format!("connection {id}")))
    }

    fn end(&self, link: &mut MysqlConnection, name: &LockName, _by: Moment) -> Answer<bool> {
        link.refuse_read_only()?;
        let Some(id) = link.of_name(HOLDER, name)? else { return Ok(false) };
        link.kill(u64::try_from(id).unwrap_or(0)).map(|()| true)
    }

    fn session(&self, link: &MysqlConnection) -> u32 {
        link.conn.connection_id()
    }

    /// A server that was started anew gives the same numbers again, but not to a session that was idle
    /// before.
    fn end_left(
        &self,
        link: &mut MysqlConnection,
        claim: &Claim,
        left: &LeftSession,
        _by: Moment,
    ) -> Answer<bool> {
        let params = params! { "session" => left.session, "name" => claim.name.key().as_bytes() };
        let idle: Option<i64> = link.first(IDLE_HOLDER, params).map_err(Failure::of_reading)?;
        let Some(idle) = idle else { return Ok(false) };
        // Whole seconds of two clocks: one more or less.
        if idle.saturating_add(1) >= whole_seconds(Clock::System.now().since(left.asked)) {
            link.kill(u64::from(left.session))?;
        }
        Ok(true)
    }

    /// The driver cannot use a connection any more once an answer over it came too late, so that a server
    /// which stands still for a moment would cost the sessions of all holds. It is asked over a connection
    /// that is none's first.
    fn sound_out(&self, pool: &Pool<Mysql>, deadline: Moment) -> Answer<()> {
        match pool.ask(deadline, |_, link| link.ping()) {
            // A server, or what stands in its place, that has no room for another connection, or wants other
            // credentials, answers; and the session has its connection.
            Err(Failure::Refused(error)) if !error.is_silence() || is_refused_connection(&error) => Ok(()),
            asked => asked,
        }
    }

    fn is_over(&self, link: &mut MysqlConnection) -> bool {
        link.ended
    }

    fn listen(&self, name: &LockName, waker: &Waker) -> Option<Subscription> {
        self.turnstiles.as_ref()?.listen_at(name, waker)
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
