//! In which schema the table of the locks is. It is looked for once, when the client connects, and named with
//! its schema from then on: roles of one program may have search paths of their own.

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind};
use crate::seam::capabilities::TableInUse;
use crate::seam::format::check_format;
use crate::seam::{Answer, Failure};
use crate::stores::sql::postgres::link::{PostgresConnection, column};
use crate::stores::sql::{beside, query};
use crate::time::Moment;

/// The table of the locks.
pub(super) struct Place {
    /// As it stands in statements.
    pub(super) quoted: String,
    /// As people see it.
    pub(super) shown: TableInUse,
}

/// Finds the table, having made it if the options say so and none is in sight.
pub(super) fn find(
    options: &ServerOptions,
    link: &mut PostgresConnection,
    deadline: Moment,
) -> Answer<Place> {
    let table = quoted(&options.table.name);
    if let Some(place) = look(&table, link, deadline)? {
        return Ok(place);
    }
    if options.table.create {
        let create = query(include_str!("../query/postgres/schema.sql"), &table);
        link.execute(&unless_in_sight(&create, &table), deadline)?;
        if let Some(place) = look(&table, link, deadline)? {
            return Ok(place);
        }
    }
    let path = link.one("SELECT array_to_string(current_schemas(false), ', ')", &[], deadline)?;
    let words = format!(
        "there is no table {:?} in the schemas of the search path ({}): make it once by create_schema(), or with the \
         statements in docs/stores.md; or name it with its schema",
        options.table.name,
        column::<String>(&path, 0)?
    );
    Err(Failure::Refused(Error::new(ErrorKind::Unsupported, "connect", words)))
}

fn look(table: &str, link: &mut PostgresConnection, deadline: Moment) -> Answer<Option<Place>> {
    let text = "SELECT n.nspname::text, c.relname::text, ARRAY(
            SELECT other.relnamespace::regnamespace::text || '.' || quote_ident(other.relname) FROM pg_class AS other
            WHERE other.relname = c.relname AND other.oid <> c.oid AND other.relkind IN ('r', 'p', 'v')
                AND other.relpersistence <> 't' ORDER BY 1
        ), coalesce(obj_description(c.oid, 'pg_class'), '')
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)";
    let rows = link.rows(text, &[&table], deadline)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (schema, name): (String, String) = (column(row, 0)?, column(row, 1)?);
    let shown = TableInUse { name: format!("{schema}.{name}"), others: column(row, 2)? };
    check_format(&column::<String>(row, 3)?, &format!("the table {}", shown.name))
        .map_err(Failure::Refused)?;
    Ok(Some(Place { quoted: format!("{}.{}", identifier(&schema), identifier(&name)), shown }))
}

/// Makes a table beside that of the locks unless it is there. Without it locks work, so the server may
/// refuse.
pub(super) fn create_beside(
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
