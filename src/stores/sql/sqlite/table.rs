//! Whether a file has the table of the locks, as this version keeps it.

use rusqlite::{Connection, OptionalExtension};

use crate::error::{Error, ErrorKind};
use crate::seam::format::check_format;
use crate::seam::{Answer, Failure};
use crate::stores::sql::other_table;
use crate::stores::sql::sqlite::refusal::failed;

/// The statement that made the table, if the table is there.
pub(super) fn made_by(conn: &Connection, table: &str) -> rusqlite::Result<Option<String>> {
    let made = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
    conn.query_row(made, [table], |row| row.get(0)).optional()
}

/// Whether the table is there. Refuses one of another format, which the statement that made it says, and one of which
/// the statement `take` cannot be made.
pub(super) fn has_table(conn: &Connection, table: &str, take: &str) -> Answer<bool> {
    let Some(made) = made_by(conn, table).map_err(failed)? else { return Ok(false) };
    check_format(&made, &format!("the table {table}")).map_err(Failure::Refused)?;
    match conn.prepare(take) {
        // SQLite has no code for columns that are not there.
        Err(error) if error.to_string().contains("column") => {
            let error = Error::new(ErrorKind::Unsupported, "connect", other_table(table)).with_source(error);
            Err(Failure::Refused(error))
        }
        prepared => prepared.map(|_| true).map_err(failed),
    }
}
