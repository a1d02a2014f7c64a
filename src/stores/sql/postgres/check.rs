//! Checks when a client connects whether server, sessions and tables can keep locks.
//!
//! Later statements name the table with its schema, because the user may change with new credentials, and the
//! search path with the user.

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind};
use crate::seam::capabilities::TableInUse;
use crate::seam::format::check_format;
use crate::seam::{Answer, Failure};
use crate::stores::sql::database::Link;
use crate::stores::sql::postgres::Postgres;
use crate::stores::sql::postgres::link::{Dial, PostgresConnection};
use crate::stores::sql::postgres::refusal::{POOLED, is_protocol_violation};
use crate::stores::sql::rows::try_one;
use crate::stores::sql::statement::Args;
use crate::stores::sql::{beside, query};

/// The oldest version accepted: 12, because each session sets `plan_cache_mode`. Session locks need version
/// 14, which can end idle sessions.
const OLDEST: i32 = 120_000;
const OLDEST_FOR_SESSIONS: i32 = 140_000;

const QUEUE: &str = "_wait_queue";

pub(super) struct Place {
    pub(super) quoted: String,
    pub(super) shown: TableInUse,
    comment: String,
    has_queue: bool,
    /// Whether this user may use the queue's table, or may not acquire locks, and so needs no queue.
    is_queue_usable: bool,
}

pub(super) struct Seen {
    pub(super) backend: String,
    pub(super) version: i32,
    pub(super) is_standby: bool,
    pub(super) place: Option<Place>,
    has_clients: bool,
    schemas: String,
}

fn refuse<T>(kind: ErrorKind, words: impl Into<String>) -> Answer<T> {
    Err(Failure::Refused(Error::new(kind, "connect", words)))
}

/// Refuses a pooler that gives each transaction any free session, because settings, prepared statements and
/// session locks would get lost. To find out, opens a second connection, and begins a transaction there.
/// Behind such a pooler either the second connection gets the first one's session, or the next statement on
/// the first connection gets another session.
pub(super) fn session(
    (dial, setup): (&Dial, &str),
    link: &mut PostgresConnection,
    table: &str,
) -> Answer<Seen> {
    let pooled = || refuse(ErrorKind::Unsupported, POOLED);
    // The open transaction binds the second connection to a session. A pooler that gives each statement
    // another session refuses BEGIN as a violation of the protocol.
    let other = match PostgresConnection::open(Vec::new(), dial, &format!("{setup}; BEGIN"), *link.deadline())
    {
        Ok(other) => Some(other),
        // A full server refuses at once, but a pooler without a free session lets the client wait.
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            let words = "a second connection neither opened nor was refused while the first was open: a pooler such as \
                         PgBouncer has too small a pool for this user and database (default_pool_size, pool_size), or the \
                         server is very slow; a client has pool_size connections, one for renewals and one to listen on";
            return Err(Failure::Refused(Error::new(ErrorKind::Busy, "connect", words).with_source(error)));
        }
        Err(error) if is_protocol_violation(&error) => return pooled(),
        // If the server refuses a second connection, the check is not possible, and the session is accepted.
        Err(_) => None,
    };
    if other.as_ref().is_some_and(|other| other.backend == link.backend) {
        return pooled();
    }
    let seen = look(table, link)?;
    if seen.backend == link.backend { Ok(seen) } else { pooled() }
}

/// Runs `seen.sql` as text, which every pooler supports.
fn look(table: &str, link: &mut PostgresConnection) -> Answer<Seen> {
    let text = query(include_str!("../query/postgres/seen.sql"), &quoted(table));
    let mut said = link.words(&text)?.into_iter();
    let mut next = || said.next().unwrap_or_default();
    let (backend, version, is_standby) = (next(), next().parse().unwrap_or(0), next() == "t");
    let (schema, name, others, comment) = (next(), next(), next(), next());
    let (has_clients, has_queue, is_queue_usable) = (next() == "t", next() == "t", next() == "t");
    let place = (!name.is_empty()).then(|| Place {
        quoted: format!("{}.{}", identifier(&schema), identifier(&name)),
        shown: TableInUse {
            name: format!("{schema}.{name}"),
            others: others.lines().map(str::to_owned).collect(),
        },
        comment,
        has_queue,
        is_queue_usable,
    });
    Ok(Seen { backend, version, is_standby, place, has_clients, schemas: next() })
}

pub(super) fn server(options: &ServerOptions, seen: &Seen) -> Answer<()> {
    if seen.version < OLDEST {
        return refuse(ErrorKind::TooOld, "the server is older than PostgreSQL 12");
    }
    if seen.is_standby {
        return refuse(ErrorKind::ReadOnly, "the server is a standby: connect to the primary");
    }
    if options.table.session_locks && seen.version < OLDEST_FOR_SESSIONS {
        return refuse(ErrorKind::TooOld, "session locks need PostgreSQL 14");
    }
    Ok(())
}

pub(super) fn find(mut seen: Seen, options: &ServerOptions, link: &mut PostgresConnection) -> Answer<Place> {
    let check = |place: &Place| check_format(&place.comment, &format!("the table {}", place.shown.name));
    seen.place.as_ref().map_or(Ok(()), check)?;
    let has_queue = seen.place.as_ref().is_some_and(|place| place.has_queue);
    if options.table.create && !(seen.has_clients && has_queue) {
        if seen.place.is_none() {
            let table = quoted(&options.table.name);
            let create = query(include_str!("../query/postgres/schema.sql"), &table);
            link.execute(&unless_in_sight(&create, &table))?;
            seen = look(&options.table.name, link)?;
        }
        if let Some(place) = &seen.place {
            create_beside(link, place, include_str!("../query/postgres/clients.sql"), "_clients")?;
            create_beside(link, place, include_str!("../query/postgres/wait_queue.sql"), QUEUE)?;
            seen = look(&options.table.name, link)?;
        }
    }
    if let Some(place) = seen.place {
        check(&place)?;
        return Ok(place);
    }
    let words = format!(
        "there is no table {:?} in the schemas of the search path ({}): make it once by create_schema(), or with the \
         statements in docs/stores.md; or name it with its schema",
        options.table.name, seen.schemas
    );
    refuse(ErrorKind::Unsupported, words)
}

/// Creates the table of clients or of the wait queue. Ignores a refusal: only the wait queue is necessary,
/// and `queue` checks it later.
fn create_beside(link: &mut PostgresConnection, place: &Place, create: &str, suffix: &str) -> Answer<()> {
    let create = unless_in_sight(&query(create, &place.quoted), &beside(&place.quoted, suffix));
    match link.execute(&create) {
        Err(Failure::Refused(_)) => Ok(()),
        made => made,
    }
}

/// Refuses a wait queue that this user may not use, and a store without one: clients with and without the
/// queue would not agree which client is next.
pub(super) fn queue(place: &Place) -> Answer<()> {
    let (kind, what) = match (place.has_queue, place.is_queue_usable) {
        (_, true) => return Ok(()),
        (true, false) => (ErrorKind::NoPermission, "this user may not use the table"),
        (false, false) => (ErrorKind::Unsupported, "there is no table"),
    };
    let words = format!(
        "{what} {}, the queue of waiting clients: connect once with create_schema() as a user who may create it, or run \
         the statements in docs/stores.md",
        beside(&place.shown.name, QUEUE)
    );
    refuse(kind, words)
}

pub(super) fn unless_in_sight(create: &str, table: &str) -> String {
    let (table, has_schema) = (table.replace('\'', "''"), table.contains("\".\""));
    let (_, text) = include_str!("../query/postgres/create.sql").split_once("\nDO").unwrap_or_default();
    let text = text.replace("{table}", &table).replace("{plain}", table.trim_matches('"'));
    format!("DO{}", text.replace("{has_schema}", &has_schema.to_string()).replace("{create}", create))
}

/// The name in quotes, because it may be a keyword of SQL.
pub(super) fn quoted(table: &str) -> String {
    let parts: Vec<_> = table.split('.').map(|part| identifier(&part.to_ascii_lowercase())).collect();
    parts.join(".")
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub(super) fn trial(database: &Postgres, link: &mut PostgresConnection) -> Answer<()> {
    let all = &database.queries.all;
    // A refusal is ignored here, because the statement's first use reports it again.
    drop(link.prepare([&all.renew, &all.take, &all.leave].into_iter().map(|statement| &*statement.text)));
    // After a statement's first use, `run` checks whether a pooler has begun a transaction. This renewal, of
    // no lock, provokes the check. Its refusal is ignored: `try_one` accepts a user who may only read.
    let args = Args::one("name", "".as_bytes()).and("token", false).and("owner", "");
    let args = args.and("lease_ms", 0_i64).and("wait_ms", 1_i64);
    if let Err(Failure::Unknown(error)) = link.run(&all.renew, &args) {
        return Err(Failure::Unknown(error));
    }
    link.begin()?;
    let tried = try_one(database, link);
    if matches!(tried, Err(Failure::Unknown(_))) {
        return tried;
    }
    link.execute("ROLLBACK")?;
    tried
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_table_takes_schema_and_prefix_of_the_lock_table() {
        let table = format!("{}.{}", identifier("Some \"schema\""), identifier("leasehold_locks"));
        let text = "SELECT FROM leasehold_locks, leasehold_locks_wait_queue AS leasehold";
        let expected = "SELECT FROM \"Some \"\"schema\"\"\".\"leasehold_locks\", \
            \"Some \"\"schema\"\"\".\"leasehold_locks_wait_queue\" AS leasehold";
        assert_eq!(query(text, &table), expected);
        assert_eq!(query(text, "shop.locks"), "SELECT FROM shop.locks, shop.locks_wait_queue AS leasehold");
        assert_eq!(quoted("Shop.Order"), "\"shop\".\"order\"");
    }
}
