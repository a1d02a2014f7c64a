//! Checks when a client connects whether the server and its tables can keep locks.

use mysql::prelude::Queryable;

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind};
use crate::seam::capabilities::TableInUse;
use crate::seam::format::check_format;
use crate::seam::{Answer, Failure};
use crate::stores::sql::database::Link;
use crate::stores::sql::mysql::refusal::{NO_SUCH_TABLE, failed, read_only_now};
use crate::stores::sql::mysql::{Mysql, MysqlConnection};
use crate::stores::sql::rows::try_one;
use crate::stores::sql::statement::Args;
use crate::stores::sql::{beside, no_table, query};

pub(super) fn server(database: &mut Mysql, link: &mut MysqlConnection) -> Answer<()> {
    let refuse = |kind, words: &str| Err(Failure::Refused(Error::new(kind, "connect", words)));
    let said = link.run(&database.queries.server, &Args::none())?;
    let (version, is_read_only) = match said.first() {
        Some(said) => (said.text(0)?, said.flag(1)?),
        None => Default::default(),
    };
    if is_too_old(&version) {
        return refuse(ErrorKind::TooOld, "the server is older than MySQL 5.7 or MariaDB 10.3");
    }
    database.least_wait = u64::from(!version.contains("MariaDB"));
    if is_read_only {
        return Err(Failure::Refused(read_only_now()));
    }
    Ok(())
}

pub(super) fn tables(
    database: &mut Mysql,
    options: &ServerOptions,
    link: &mut MysqlConnection,
) -> Answer<()> {
    let table = &options.table;
    let check = |seen: &Seen| check_format(&seen.comment, &format!("the table {}", seen.table.name));
    let mut seen = look(link, &table.name)?;
    check(&seen)?;
    if table.create && !(seen.is_there && seen.has_clients) {
        if !seen.is_there {
            let create = query(include_str!("../query/mysql/schema.sql"), &table.name);
            link.command(create)?;
        }
        // Locks work without the directory's table, so a refusal to create it is ignored.
        let clients = query(include_str!("../query/mysql/clients.sql"), &table.name);
        if !seen.has_clients
            && let Err(Failure::Unknown(error)) = link.command(clients)
        {
            return Err(Failure::Unknown(error));
        }
        seen = look(link, &table.name)?;
        check(&seen)?;
    }
    if !seen.is_there {
        // If the table exists, but this user may not use it, the reply is a denial, not NO_SUCH_TABLE.
        return Err(match link.conn.query_drop(format!("SELECT 1 FROM {} LIMIT 0", table.name)) {
            Err(mysql::Error::MySqlError(error)) if error.code != NO_SUCH_TABLE => failed(error.into()),
            _ => Failure::Refused(no_table(options)),
        });
    }
    database.table = Some(seen.table);
    link.command("START TRANSACTION")?;
    let tried = try_one(database, link);
    if matches!(tried, Err(Failure::Unknown(_))) {
        return tried;
    }
    link.command("ROLLBACK")?;
    tried
}

struct Seen {
    /// The table, and tables whose names differ only in case: another client could use one by mistake.
    table: TableInUse,
    is_there: bool,
    comment: String,
    has_clients: bool,
}

/// Reads in one round trip which tables exist. Sends text, because a server may refuse prepared statements.
/// A table that this user may not use counts as missing.
fn look(link: &mut MysqlConnection, table: &str) -> Answer<Seen> {
    let (schema, name) = match table.split_once('.') {
        Some((schema, name)) => (format!("'{schema}'"), name),
        None => ("DATABASE()".to_owned(), table),
    };
    let clients = beside(name, "_clients");
    let text = format!(
        "SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME), LOWER(TABLE_NAME) = LOWER('{name}'),
            BINARY TABLE_NAME IN ('{name}', '{clients}') OR @@lower_case_table_names <> 0, TABLE_COMMENT
        FROM information_schema.TABLES
        WHERE TABLE_SCHEMA = {schema} AND LOWER(TABLE_NAME) IN (LOWER('{name}'), LOWER('{clients}'))
        UNION ALL SELECT COALESCE({schema}, ''), NULL, NULL, '' ORDER BY 1"
    );
    type Found = (String, Option<bool>, Option<bool>, String);
    let found: Vec<Found> = link.conn.query(text).map_err(failed)?;
    let mut seen = Seen {
        table: TableInUse { name: name.to_owned(), others: Vec::new() },
        is_there: false,
        comment: String::new(),
        has_clients: false,
    };
    for (found, is_table, is_it, comment) in found {
        match (is_table, is_it) {
            (Some(true), Some(true)) => (seen.is_there, seen.comment) = (true, comment),
            (Some(true), _) => seen.table.others.push(found),
            (Some(false), is_it) => seen.has_clients |= is_it == Some(true),
            (None, _) => seen.table.name = format!("{found}.{name}"),
        }
    }
    Ok(seen)
}

fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version_is = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let oldest = if version.contains("MariaDB") { (10, 3) } else { (5, 7) };
    version_is < oldest
}

#[cfg(test)]
mod tests {
    use super::is_too_old;

    #[test]
    fn mysql_and_mariadb_versions_below_the_minimum_are_recognised() {
        for new in
            ["5.7.44", "8.0.36-0ubuntu0.22.04.1", "9.1.0", "10.11.6-MariaDB-0+deb12u1", "11.4.2-MariaDB"]
        {
            assert!(!is_too_old(new), "{new}");
        }
        for old in ["5.6.51", "5.5.68-MariaDB", "10.2.44-MariaDB", "?"] {
            assert!(is_too_old(old), "{old}");
        }
    }
}
