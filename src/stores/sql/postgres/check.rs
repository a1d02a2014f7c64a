//! Whether a server, its sessions and the tables can keep locks: looked at once, when a client connects.

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind};
use crate::seam::{Answer, Failure};
use crate::stores::sql::postgres::link::{Dial, PostgresConnection};
use crate::stores::sql::postgres::place::{Place, create_beside};
use crate::stores::sql::postgres::refusal::is_of_protocol;
use crate::stores::sql::postgres::{Postgres, column};
use crate::stores::sql::trial::try_one;
use crate::time::Moment;

/// Version 11 has `sha256`; 14 ends idle sessions, on which session locks' leases are built.
const OLDEST: i32 = 120_000;
const OLDEST_FOR_SESSIONS: i32 = 140_000;

fn refuse<T>(kind: ErrorKind, words: &str) -> Answer<T> {
    Err(Failure::Refused(Error::new(kind, "connect", words)))
}

/// A connection is to be one session of the server. A pooler may give each transaction whichever is free,
/// which keeps neither settings nor prepared statements, neither what is listened to nor a session's locks.
/// Then one of two connections has the session of the other, or another after it.
pub(super) fn session(
    (dial, setup): (&Dial, &str),
    link: &mut PostgresConnection,
    deadline: Moment,
) -> Answer<()> {
    let pooled = || {
        let words = "a pooler gives each transaction another session, as PgBouncer does in transaction mode: connect \
                     past it, or have it pool sessions";
        refuse(ErrorKind::Unsupported, words)
    };
    if link.backend_after("", deadline)? != link.backend {
        return pooled();
    }
    let mut other = match PostgresConnection::open(dial, setup, deadline) {
        Ok(other) => other,
        // A server without room says so at once. A pooler lets those wait for whom its pool has no session.
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            let words = "a second connection was neither given nor refused while the first was open: a pooler such as \
                         PgBouncer has too small a pool for this user and database (default_pool_size, pool_size), or the \
                         server is very slow; a client has pool_size connections, one for renewals and one to listen on";
            return Err(Failure::Refused(Error::new(ErrorKind::Busy, "connect", words).with_source(error)));
        }
        // Without room for a second one, nothing more can be found out.
        Err(_) => return Ok(()),
    };
    // In a transaction it keeps what it was given. If none may begin, the pooler pools statements.
    match other.backend_after("BEGIN; ", deadline) {
        Ok(taken) if taken != link.backend => {}
        Ok(_) | Err(Failure::Refused(_)) => return pooled(),
        Err(Failure::Unknown(error)) if is_of_protocol(&error) => return pooled(),
        Err(failure) => return Err(failure),
    }
    if link.backend_after("", deadline)? == link.backend { Ok(()) } else { pooled() }
}

pub(super) fn server(options: &ServerOptions, link: &mut PostgresConnection, deadline: Moment) -> Answer<()> {
    let server = "SELECT current_setting('server_version_num')::integer, pg_is_in_recovery()";
    let row = link.one(server, &[], deadline)?;
    let version: i32 = column(&row, 0)?;
    if version < OLDEST {
        return refuse(ErrorKind::TooOld, "the server is older than PostgreSQL 12");
    }
    if column::<bool>(&row, 1)? {
        return refuse(ErrorKind::ReadOnly, "the server is a standby: grants come from the primary");
    }
    if options.table.session_locks && version < OLDEST_FOR_SESSIONS {
        return refuse(ErrorKind::TooOld, "session locks need PostgreSQL 14");
    }
    Ok(())
}

/// Each statement is to be a transaction of its own. A pooler may begin one before a statement that writes, which
/// nobody ends: a release would be answered, and nobody see it.
fn transactions(database: &Postgres, link: &mut PostgresConnection, deadline: Moment) -> Answer<()> {
    // A refusal is the trial's to judge: a user who may only read is let in.
    if let Err(Failure::Unknown(error)) = database.write_nothing(link, deadline) {
        return Err(Failure::Unknown(error));
    }
    if link.is_in_transaction(deadline)? {
        let words = "a transaction was open after a statement, which nothing here had begun: a pooler does that, as pgpool-II \
                     in raw mode, or the server; connect past it";
        return refuse(ErrorKind::Unsupported, words);
    }
    Ok(())
}

/// Makes the tables beside that of the locks where they are not there and the options say so, and tries a
/// lock.
pub(super) fn tables(
    database: &Postgres,
    (place, options): (&Place, &ServerOptions),
    link: &mut PostgresConnection,
    deadline: Moment,
) -> Answer<()> {
    if options.table.create {
        // Without it there is no directory, which is not worth a client.
        create_beside(link, place, include_str!("../query/postgres/clients.sql"), "_clients", deadline)?;
    }
    database.check_line(place, options, link, deadline)?;
    transactions(database, link, deadline)?;
    link.execute("BEGIN", deadline)?;
    let tried = database.notes.without(|| try_one(database, link, deadline));
    if matches!(tried, Err(Failure::Unknown(_))) {
        return tried;
    }
    link.execute("ROLLBACK", deadline)?;
    tried
}
