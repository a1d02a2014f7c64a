//! Session locks by `GET_LOCK`. The server knows a lock by a part of the SHA-256 of its name. All databases
//! of a server share these locks.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ident::LockName;
use crate::seam::pool::Rank;
use crate::seam::{Answer, Claim, Failure};
use crate::stores::sql::mysql::refusal::{is_refused_connection, read_only_now};
use crate::stores::sql::mysql::{Mysql, MysqlConnection, has_lasted_since};
use crate::stores::sql::pool::Pool;
use crate::stores::sql::rows::Rows;
use crate::stores::sql::sessions::{LeftSession, SessionDatabase};
use crate::stores::sql::statement::Args;
use crate::time::Moment;

impl MysqlConnection {
    /// Sets for how long the session may be idle. `None` restores the server's setting.
    fn set_idle_limit(&mut self, limit: Option<Duration>) -> Answer<()> {
        let limit = limit.map_or_else(|| "DEFAULT".to_owned(), |limit| seconds(limit).to_string());
        self.command(format!("SET SESSION wait_timeout = {limit}"))
    }
}

/// The limit in whole seconds, rounded up, and at most a year, which is the server's maximum.
fn seconds(limit: Duration) -> u64 {
    let up = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
    up.clamp(1, 31_536_000)
}

impl SessionDatabase for Mysql {
    const POLL_EVERY: (Duration, Duration) = <Mysql as Rows>::POLL_EVERY;

    fn try_lock(&self, link: &mut MysqlConnection, claim: &Claim) -> Answer<bool> {
        match link.number(&self.queries.session_take, &Args::one("name", &*claim.name))? {
            Some(1) => {}
            Some(-1) => return Err(Failure::Refused(read_only_now())),
            Some(_) => return Ok(false),
            None => {
                let words = "the server did not say whether it granted the lock";
                return Err(Failure::Unknown(Error::new(ErrorKind::Refused, "lock", words)));
            }
        }
        // Without the limit the lock would never expire, so after a failure the connection is dropped.
        link.set_idle_limit(Some(claim.lease)).map_err(|failure| Failure::Unknown(failure.into_error()))?;
        Ok(true)
    }

    fn prolong(&self, link: &mut MysqlConnection, lease: Duration) -> Answer<bool> {
        match self.refuse_read_only(link) {
            Ok(()) => link.set_idle_limit(Some(lease)).map(|()| true),
            Err(failure) if failure.is_read_only() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn unlock(&self, link: &mut MysqlConnection, name: &LockName) -> Answer<bool> {
        let freed = link.number(&self.queries.session_free, &Args::one("name", name))? == Some(1);
        // The lock is free, so a failed reset of the limit is no error, but the connection is not used again.
        link.ended |= link.set_idle_limit(None).is_err();
        Ok(freed)
    }

    fn holder(&self, link: &mut MysqlConnection, name: &LockName) -> Answer<Option<String>> {
        let id = link.number(&self.queries.session_holder, &Args::one("name", name))?;
        Ok(id.map(|id| format!("connection {id}")))
    }

    fn end(&self, link: &mut MysqlConnection, name: &LockName) -> Answer<bool> {
        self.refuse_read_only(link)?;
        match link.number(&self.queries.session_holder, &Args::one("name", name))? {
            Some(id) => link.command(format!("KILL {id}")).map(|()| true),
            None => Ok(false),
        }
    }

    fn session(&self, link: &MysqlConnection) -> u32 {
        link.conn.connection_id()
    }

    /// Ends the session `left`, unless its present state began after `left.asked`: then it is a session of
    /// another client, to which a restarted server gave the same number.
    fn end_left(&self, link: &mut MysqlConnection, claim: &Claim, left: &LeftSession) -> Answer<bool> {
        let args = Args::of(claim).and("session", left.session);
        let idle = link.number(&self.queries.session_idle, &args).map_err(Failure::of_reading)?;
        if idle.is_some_and(|idle| has_lasted_since(left.asked, idle)) {
            link.command(format!("KILL {}", left.session))?;
        }
        Ok(idle.is_some())
    }

    /// Pings over the renewals' connection. After a late answer the driver cannot use a connection any more,
    /// and a hold would end with its own connection. So if the server stalls, the ping must notice it first.
    fn sound_out(&self, pool: &Pool<Mysql>, deadline: Moment) -> Answer<()> {
        let asked = pool.over(Rank::Renewal, deadline, |_, link| link.ping());
        match asked.and_then(|asked| asked) {
            // A server that refuses another connection, or the login, has answered, so it is not silent.
            Err(Failure::Refused(error)) if !error.is_silence() || is_refused_connection(&error) => Ok(()),
            asked => asked,
        }
    }

    fn is_over(&self, link: &mut MysqlConnection) -> bool {
        link.ended
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
