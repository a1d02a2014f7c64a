//! In which schema the table of the locks is. It is looked for once, when the client connects, and named with
//! its schema from then on: roles of one program may have search paths of their own.

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind};
use crate::seam::capabilities::TableInUse;
use crate::seam::format::check_format;
use crate::seam::{Answer, Failure};
use crate::stores::sql::postgres::link::PostgresConnection;
use crate::stores::sql::{beside, query};
use crate::time::Moment;

/// The table of the locks.
pub(super) struct Place {
    /// As it stands in statements.
    pub(super) quoted: String,
    /// As people see it.
    pub(super) shown: TableInUse,
    comment: String,
}

/// The answer of a server to all that a client asks it when it connects.
pub(super) struct Seen {
    /// The process that answered.
    pub(super) backend: String,
    /// Zero: it did not say.
    pub(super) version: i32,
    pub(super) is_standby: bool,
    /// `None`: no such table is in sight.
    pub(super) place: Option<Place>,
    has_clients: bool,
    has_line: bool,
    /// The line's table is there, and this user may use it.
    pub(super) is_line_usable: bool,
    schemas: String,
}

/// Asks all at once: on a slow link each question would cost a round trip. Not prepared, for poolers.
pub(super) fn look(table: &str, link: &mut PostgresConnection, deadline: Moment) -> Answer<Seen> {
    let table = quoted(table);
    let text = format!(
        "SELECT pg_backend_pid(), current_setting('server_version_num'), pg_is_in_recovery(),
            n.nspname, c.relname, (
                SELECT string_agg(other.relnamespace::regnamespace::text || '.' || quote_ident(other.relname), E'\n' ORDER BY 1)
                FROM pg_class AS other WHERE other.relname = c.relname AND other.oid <> c.oid
                    AND other.relkind IN ('r', 'p', 'v') AND other.relpersistence <> 't'
            ), obj_description(c.oid, 'pg_class'), clients IS NOT NULL, line IS NOT NULL, (
                SELECT bool_and(has_table_privilege(line, word))
                FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS word
            ), array_to_string(current_schemas(false), ', ')
        FROM (SELECT) AS always LEFT JOIN pg_class AS c ON c.oid = to_regclass('{table}')
            LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
            LEFT JOIN LATERAL (SELECT
                to_regclass(quote_ident(n.nspname) || '.' || quote_ident(c.relname || '_clients')) AS clients,
                to_regclass(quote_ident(n.nspname) || '.' || quote_ident(c.relname || '_line')) AS line
            ) AS beside ON true"
    );
    let mut said = link.words(&text, deadline)?.into_iter();
    let mut next = || said.next().unwrap_or_default();
    let (backend, version, is_standby) = (next(), next().parse().unwrap_or(0), next() == "t");
    let (schema, name, others, comment) = (next(), next(), next(), next());
    let place = (!name.is_empty()).then(|| Place {
        quoted: format!("{}.{}", identifier(&schema), identifier(&name)),
        shown: TableInUse {
            name: format!("{schema}.{name}"),
            others: others.lines().map(str::to_owned).collect(),
        },
        comment,
    });
    let (has_clients, has_line, is_line_usable) = (next() == "t", next() == "t", next() == "t");
    Ok(Seen { backend, version, is_standby, place, has_clients, has_line, is_line_usable, schemas: next() })
}

/// The table, and whether there is a line that this user may use. Makes what is not there if the options say
/// so.
pub(super) fn find(
    mut seen: Seen,
    options: &ServerOptions,
    link: &mut PostgresConnection,
    deadline: Moment,
) -> Answer<(Place, bool)> {
    let check = |place: &Place| {
        check_format(&place.comment, &format!("the table {}", place.shown.name)).map_err(Failure::Refused)
    };
    seen.place.as_ref().map_or(Ok(()), check)?;
    if options.table.create && !(seen.has_clients && seen.has_line) {
        if seen.place.is_none() {
            let table = quoted(&options.table.name);
            let create = query(include_str!("../query/postgres/schema.sql"), &table);
            link.execute(&unless_in_sight(&create, &table), deadline)?;
            seen = look(&options.table.name, link, deadline)?;
        }
        if let Some(place) = &seen.place {
            // Without it there is no directory, which is not worth a client.
            create_beside(link, place, include_str!("../query/postgres/clients.sql"), "_clients", deadline)?;
            create_beside(link, place, include_str!("../query/postgres/line.sql"), "_line", deadline)?;
            seen = look(&options.table.name, link, deadline)?;
        }
    }
    if let Some(place) = seen.place {
        check(&place)?;
        return Ok((place, seen.is_line_usable));
    }
    let words = format!(
        "there is no table {:?} in the schemas of the search path ({}): make it once by create_schema(), or with the \
         statements in docs/stores.md; or name it with its schema",
        options.table.name, seen.schemas
    );
    Err(Failure::Refused(Error::new(ErrorKind::Unsupported, "connect", words)))
}

/// Makes a table beside that of the locks unless it is there. Without it locks work, so the server may
/// refuse.
fn create_beside(
    link: &mut PostgresConnection,
    place: &Place,
    create: &str,
    suffix: &str,
    deadline: Moment,
) -> Answer<()> {
    let create = unless_in_sight(&query(create, &place.quoted), &beside(&place.quoted, suffix));
    match link.execute(&create, deadline) {
        Err(Failure::Refused(_)) => Ok(()),
        made => made,
    }
}

/// A statement that makes a table unless it is in sight, which needs no right to make one then. Without a
/// schema's name it makes none beside one of another schema, which others may find by the same name: both
/// would have the lock then.
///
/// One client at a time does: of two that create the same table at once, even with IF NOT EXISTS, one can
/// fail.
pub(super) fn unless_in_sight(create: &str, table: &str) -> String {
    let in_quotes = table.replace('\'', "''");
    let elsewhere = if table.contains("\".\"") {
        String::new()
    } else {
        format!(
            "others := (SELECT string_agg(relnamespace::regnamespace::text, ', ' ORDER BY 1) FROM pg_class
                WHERE relname = '{}' AND relkind IN ('r', 'p', 'v') AND relpersistence <> 't');
            IF others IS NOT NULL THEN
                RAISE duplicate_table USING MESSAGE = format('there is a table %s in: %s', '{in_quotes}', others);
            END IF;",
            in_quotes.trim_matches('"')
        )
    };
    format!(
        "DO $leasehold$ DECLARE others text; BEGIN
            PERFORM pg_advisory_xact_lock(7094372811453);
            PERFORM 1 FROM pg_class LIMIT 1; -- what another has made meanwhile comes in sight
            IF to_regclass('{in_quotes}') IS NULL THEN {elsewhere}
                {create};
            END IF;
        END $leasehold$"
    )
}

/// A name that `check_table` has found plain, as the server reads it without quotes: words of its own may
/// name tables too.
pub(super) fn quoted(table: &str) -> String {
    let parts: Vec<_> = table.split('.').map(|part| identifier(&part.to_ascii_lowercase())).collect();
    parts.join(".")
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_beside_one_are_named_after_it_in_its_schema() {
        let table = format!("{}.{}", identifier("Some \"schema\""), identifier("leasehold_locks"));
        let text = "SELECT FROM leasehold_locks, leasehold_locks_line AS leasehold";
        let expected = "SELECT FROM \"Some \"\"schema\"\"\".\"leasehold_locks\", \
            \"Some \"\"schema\"\"\".\"leasehold_locks_line\" AS leasehold";
        assert_eq!(query(text, &table), expected);
        assert_eq!(query(text, "shop.locks"), "SELECT FROM shop.locks, shop.locks_line AS leasehold");
        assert_eq!(quoted("Shop.Order"), "\"shop\".\"order\"");
    }
}
