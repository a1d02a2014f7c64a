//! The list of the locks in a table, a page of rows at a time.

use std::sync::Arc;

use crate::ident::LockName;
use crate::inspect::Inspection;
use crate::seam::Answer;
use crate::seam::directory::{Listing, Page, Place, Wanted};
use crate::stores::sql::rows::{RowStore, Rows, described};
use crate::time::Moment;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

impl<D: Rows> Listing for RowStore<D> {
    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        let after = bytes(&from.cursor);
        let rows = match self.pool().with(deadline, |database, link| database.list(link, &after, deadline)) {
            Ok(rows) => rows,
            Err(failure) => return Answer::Refused(failure.into_error()),
        };
        let looked_at = u64::try_from(rows.len()).unwrap_or(u64::MAX);
        let next = rows.last().map(|last| Place { servers: None, cursor: hex(&last.id) });
        let found = rows.into_iter().filter(|one| one.row.is_live()).filter_map(|one| {
            let key = String::from_utf8(one.name).ok()?;
            let name = LockName::new(&Arc::from(wanted.name(&key)?), key).ok()?;
            Some(described(&name, Some((one.row, one.told))))
        });
        Answer::Done(Page { found: found.collect(), next, requests: 1, looked_at })
    }
}
