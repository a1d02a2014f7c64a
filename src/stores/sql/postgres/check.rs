//! Whether a server, its sessions and the tables can keep locks: looked at once, when a client connects.

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind};
use crate::seam::{Answer, Failure};
use crate::stores::sql::postgres::Postgres;
use crate::stores::sql::postgres::link::{Dial, PostgresConnection};
use crate::stores::sql::postgres::place::{Seen, look};
use crate::stores::sql::postgres::refusal::{POOLED, is_of_protocol};
use crate::stores::sql::rows::try_one;
use crate::time::Moment;

/// Version 11 has `sha256`; 14 ends idle sessions, on which session locks' leases are built.
const OLDEST: i32 = 120_000;
const OLDEST_FOR_SESSIONS: i32 = 140_000;

fn refuse<T>(kind: ErrorKind, words: &str) -> Answer<T> {
    Err(Failure::Refused(Error::new(kind, "connect", words)))
}

/// A connection is to be one session of the server. A pooler may give each transaction whichever is free,
/// which keeps neither settings nor prepared statements, neither what is listened to nor a session's locks.
/// Then one of two connections has the session of the other, or another after it. The answer to all that is
/// asked of the server besides.
pub(super) fn session(
    (dial, setup): (&Dial, &str),
    link: &mut PostgresConnection,
    table: &str,
    deadline: Moment,
) -> Answer<Seen> {
    let pooled = || Err(Failure::Refused(Error::new(ErrorKind::Unsupported, "connect", POOLED)));
    // In a transaction it keeps what it was given. If none may begin, the pooler pools statements.
    let other = match PostgresConnection::open(dial, &format!("{setup}; BEGIN"), deadline) {
        Ok(other) => Some(other),
        // A server without room says so at once. A pooler lets those wait for whom its pool has no session.
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            let words = "a second connection was neither given nor refused while the first was open: a pooler such as \
                         PgBouncer has too small a pool for this user and database (default_pool_size, pool_size), or the \
                         server is very slow; a client has pool_size connections, one for renewals and one to listen on";
            return Err(Failure::Refused(Error::new(ErrorKind::Busy, "connect", words).with_source(error)));
        }
        Err(error) if is_of_protocol(&error) => return pooled(),
        // Without room for a second one, nothing more can be found out.
        Err(_) => None,
    };
    if other.as_ref().is_some_and(|other| other.backend == link.backend) {
        return pooled();
    }
    let seen = look(table, link, deadline)?;
    if seen.backend == link.backend { Ok(seen) } else { pooled() }
}

pub(super) fn server(options: &ServerOptions, seen: &Seen) -> Answer<()> {
    if seen.version < OLDEST {
        return refuse(ErrorKind::TooOld, "the server is older than PostgreSQL 12");
    }
    if seen.is_standby {
        return refuse(ErrorKind::ReadOnly, "the server is a standby: grants come from the primary");
    }
    if options.table.session_locks && seen.version < OLDEST_FOR_SESSIONS {
        return refuse(ErrorKind::TooOld, "session locks need PostgreSQL 14");
    }
    Ok(())
}

/// Tries a lock.
pub(super) fn trial(database: &Postgres, link: &mut PostgresConnection, deadline: Moment) -> Answer<()> {
    let queries = &database.queries;
    link.prepare(&[&queries.all.renew.text, &queries.all.take.text, &queries.all.leave.text], deadline)?;
    // Its first use, which looks for a transaction that a pooler leaves open. A refusal is the trial's to
    // judge: a user who may only read is let in.
    if let Err(Failure::Unknown(error)) = database.write_nothing(link, deadline) {
        return Err(Failure::Unknown(error));
    }
    link.begin(deadline)?;
    let tried = database.notes.without(|| try_one(database, link, deadline));
    if matches!(tried, Err(Failure::Unknown(_))) {
        return tried;
    }
    link.execute("ROLLBACK", deadline)?;
    tried
}
