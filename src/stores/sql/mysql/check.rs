//! Whether a server and the tables can keep locks: looked at once, when a client connects.

use mysql::prelude::Queryable;

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind};
use crate::seam::capabilities::TableInUse;
use crate::seam::format::check_format;
use crate::seam::{Answer, Failure};
use crate::stores::sql::mysql::refusal::{NO_SUCH_TABLE, failed};
use crate::stores::sql::mysql::role::{is_read_only, read_only_now};
use crate::stores::sql::mysql::url::{REPEATABLE_READ, limit_in_seconds, settings};
use crate::stores::sql::mysql::{Mysql, MysqlConnection};
use crate::stores::sql::trial::try_one;
use crate::stores::sql::{beside, no_table, query};
use crate::time::Moment;

pub(super) fn server(database: &mut Mysql, link: &mut MysqlConnection) -> Answer<()> {
    let refuse = |kind, words: &str| Err(Failure::Refused(Error::new(kind, "connect", words)));
    let text = concat!("SELECT VERSION(), ", is_read_only!());
    let (version, is_read_only): (String, bool) =
        link.conn.query_first(text).map_err(failed)?.unwrap_or_default();
    if is_too_old(&version) {
        return refuse(ErrorKind::TooOld, "the server is older than MySQL 5.7 or MariaDB 10.3");
    }
    database.least_wait = u64::from(!version.contains("MariaDB"));
    if is_read_only {
        return Err(Failure::Refused(read_only_now()));
    }
    Ok(())
}

/// A server that writes statements to its binary log, not rows, refuses changes at READ COMMITTED; only an
/// administrator may have a session write rows. Each statement is a transaction of its own and finds its row
/// by the key, so that the next stricter isolation is as good, but for gaps that are locked at a name's first
/// use.
pub(super) fn isolation(database: &mut Mysql, link: &mut MysqlConnection) -> Answer<()> {
    let text = "SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')";
    let log: Vec<(String, String)> = match link.conn.query(text) {
        // Then a try finds out.
        Err(mysql::Error::MySqlError(_)) => return Ok(()),
        read => read.map_err(failed)?,
    };
    let is_set = |name: &str, value: &str| {
        log.iter().any(|(known, set)| known == name && set.eq_ignore_ascii_case(value))
    };
    if is_set("log_bin", "ON") && is_set("binlog_format", "STATEMENT") {
        let limit = limit_in_seconds(database.command_timeout);
        database.isolation = REPEATABLE_READ;
        database.opts = database.opts.clone().init(settings(REPEATABLE_READ, limit));
        let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {REPEATABLE_READ}");
        link.conn.query_drop(set).map_err(failed)?;
    }
    Ok(())
}

/// Looks for the table, makes what is missing if the options say so, and tries a lock.
pub(super) fn tables(
    database: &mut Mysql,
    options: &ServerOptions,
    link: &mut MysqlConnection,
    deadline: Moment,
) -> Answer<()> {
    let table = &options.table;
    if !is_there(link, &table.name)? {
        if !table.create {
            return Err(Failure::Refused(no_table(options)));
        }
        let create = query(include_str!("../query/mysql/schema.sql"), &table.name);
        link.conn.query_drop(create).map_err(failed)?;
    }
    if table.create {
        // Without it there is no directory, which is not worth a client.
        let clients = query(include_str!("../query/mysql/clients.sql"), &table.name);
        let made = match is_there(link, &beside(&table.name, "_clients")) {
            Ok(false) => link.conn.query_drop(clients).map_err(failed),
            looked => looked.map(drop),
        };
        if let Err(Failure::Unknown(error)) = made {
            return Err(Failure::Unknown(error));
        }
    }
    let named: Option<String> = link.conn.query_first("SELECT DATABASE()").map_err(failed)?;
    let name = match named {
        Some(named) if !table.name.contains('.') => format!("{named}.{}", table.name),
        _ => table.name.clone(),
    };
    let others = other_spellings(link, &table.name)?;
    database.table = Some(TableInUse { name, others });
    link.conn.query_drop("START TRANSACTION").map_err(failed)?;
    let tried = database.notes.without(|| try_one(database, link, deadline));
    if matches!(tried, Err(Failure::Unknown(_))) {
        return tried;
    }
    link.conn.query_drop("ROLLBACK").map_err(failed)?;
    tried
}

/// Needs no right to make one, unlike CREATE TABLE IF NOT EXISTS.
fn is_there(link: &mut MysqlConnection, table: &str) -> Answer<bool> {
    match link.conn.query_drop(format!("SELECT 1 FROM {table} LIMIT 0")) {
        Err(mysql::Error::MySqlError(error)) if error.code == NO_SUCH_TABLE => Ok(false),
        looked => looked.map(|()| true).map_err(failed),
    }
}

/// The tables of the same name in other letters, which are others where the server tells letters apart; and refuses
/// the table itself if it is of another format. The name is a plain one, as it was given; a prepared statement may
/// be refused.
fn other_spellings(link: &mut MysqlConnection, table: &str) -> Answer<Vec<String>> {
    let (schema, name) = match table.split_once('.') {
        Some((schema, name)) => (format!("'{schema}'"), name),
        None => ("DATABASE()".to_owned(), table),
    };
    let text = format!(
        "SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME), TABLE_COMMENT,
            BINARY TABLE_NAME = '{name}' OR @@lower_case_table_names <> 0 FROM information_schema.TABLES
        WHERE TABLE_SCHEMA = {schema} AND LOWER(TABLE_NAME) = LOWER('{name}') ORDER BY 1"
    );
    let found: Vec<(String, String, bool)> = link.conn.query(text).map_err(failed)?;
    let mut others = Vec::new();
    for (found, comment, is_it) in found {
        if is_it {
            check_format(&comment, &format!("the table {found}")).map_err(Failure::Refused)?;
        } else {
            others.push(found);
        }
    }
    Ok(others)
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
    fn versions_are_told_apart() {
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
