//! The list of the locks in a table, a page of rows at a time, and the directory of clients in a table of its
//! own.
//!
//! A table without that one beside it keeps locks all the same: then a lock's own row is all that is known of
//! its holder.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::directory::lines::escaped;
use crate::ident::{ClientId, LockName};
use crate::inspect::Inspection;
use crate::seam::directory::{Directory, Listing, Page, Place, Posted, Wanted, Written, answered};
use crate::seam::{Answer, Failure};
use crate::stores::sql::rows::{EntryRow, RowStore, Rows, described};
use crate::sync::atomic::Ordering;
use crate::time::Moment;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The same entry for a database without a place for other characters, which stand in its texts alone.
fn in_ascii(entry: &str) -> Cow<'_, str> {
    if entry.is_ascii() {
        return entry.into();
    }
    let mut text = String::with_capacity(entry.len() * 2);
    for character in entry.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            text.push_str(&escaped(character));
        }
    }
    text.into()
}

/// The entries on one page, as the statements return them.
const PAGE: usize = 250;

impl<D: Rows> RowStore<D> {
    fn put_entry(&self, client: &str, text: &str, lease: Duration, deadline: Moment) -> Answer<()> {
        self.pool().with_another(deadline, |database, link| {
            if !self.has_tidied.load(Ordering::Relaxed) {
                // Nobody else would.
                database.tidy_entries(link, deadline)?;
                self.has_tidied.store(true, Ordering::Relaxed);
            }
            database.post(link, client, &in_ascii(text), lease, deadline)
        })
    }
}

fn read(row: EntryRow) -> Option<(ClientId, Posted)> {
    let remaining = Duration::from_millis(u64::try_from(row.remaining_ms).unwrap_or(0));
    Some((ClientId::read(&row.client)?, Posted { text: row.text, remaining }))
}

impl<D: Rows> Directory for RowStore<D> {
    fn write(&self, client: ClientId, text: &str, lease: Duration, deadline: Moment, done: Written) {
        done(answered(self.put_entry(&client.to_string(), text, lease, deadline)));
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        let client = client.to_string();
        answered(
            self.pool().with_another(deadline, |database, link| database.unpost(link, &client, deadline)),
        )
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        let found = self.pool().with(deadline, |database, link| {
            let one = |client: &ClientId| {
                let row = database.entry(link, &client.to_string(), deadline)?;
                Ok(row.and_then(read).map(|(_, posted)| posted))
            };
            clients.iter().map(one).collect()
        });
        let requests = u64::try_from(clients.len()).unwrap_or(u64::MAX);
        answered(found.map(|found| Page { found, next: None, requests, looked_at: 0 }))
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        let rows =
            self.pool().with(deadline, |database, link| database.entries(link, &from.cursor, deadline));
        answered(rows.map(|rows| {
            let last = rows.last().filter(|_| rows.len() >= PAGE);
            let next = last.map(|last| Place { servers: None, cursor: last.client.clone() });
            let looked_at = u64::try_from(rows.len()).unwrap_or(u64::MAX);
            Page { found: rows.into_iter().filter_map(read).collect(), next, requests: 1, looked_at }
        }))
    }
}

impl<D: Rows> Listing for RowStore<D> {
    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        let after = bytes(&from.cursor);
        let rows = match self.pool().with(deadline, |database, link| database.list(link, &after, deadline)) {
            Ok(rows) => rows,
            Err(failure) => return Err(Failure::Refused(failure.into_error())),
        };
        let looked_at = u64::try_from(rows.len()).unwrap_or(u64::MAX);
        let next = rows.last().map(|last| Place { servers: None, cursor: hex(&last.id) });
        let found = rows.into_iter().filter(|one| one.row.is_live()).filter_map(|one| {
            let key = String::from_utf8(one.name).ok()?;
            let name = LockName::new(&Arc::from(wanted.name(&key)?), key).ok()?;
            Some(described(&name, Some((one.row, one.told))))
        });
        Ok(Page { found: found.collect(), next, requests: 1, looked_at })
    }
}
