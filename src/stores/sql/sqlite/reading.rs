//! Reads the rows of the file.

use crate::stores::sql::rows::{EntryRow, Row, Told};

pub(super) fn seen(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    Ok(Row { token: row.get(0)?, owner: row.get(1)?, holds: row.get(2)?, remaining_ms: row.get(3)? })
}

pub(super) fn told(row: &rusqlite::Row<'_>) -> rusqlite::Result<Told> {
    let (fence, host, pid, thread) = (row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?);
    Ok(Told { fence, host, pid, thread, held_ms: row.get(8)? })
}

pub(super) fn entry_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<EntryRow> {
    Ok(EntryRow { client: row.get(0)?, text: row.get(1)?, remaining_ms: row.get(2)? })
}
