//! Lists the locks of the table, and the clients' entries in the directory, page by page. If the directory's
//! table is missing, only the locks' rows describe their holders.

use crate::ident::ClientId;
use crate::inspect::Inspection;
use crate::seam::directory::{Directory, Entry, Page, Place, Posted, Wanted};
use crate::seam::pool::Rank;
use crate::seam::{Answer, Failure};
use crate::stores::sql::database::Link;
use crate::stores::sql::hex;
use crate::stores::sql::row_store::RowStore;
use crate::stores::sql::rows::{RowWait, Rows, described, milliseconds};
use crate::stores::sql::statement::{Args, Record};
use crate::sync::atomic::Ordering;
use crate::time::Moment;

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

const ID: usize = 9;
const NAME: usize = 10;

const PAGE: usize = 250;

impl<D: Rows> RowStore<D> {
    /// Runs `change` over the renewals' connection, and waits only briefly for a locked row, because renewals
    /// need the connection.
    fn change_entry(
        &self,
        deadline: Moment,
        change: impl FnOnce(&D, &mut D::Link) -> Answer<()>,
    ) -> Answer<()> {
        self.pool.over(Rank::Renewal, deadline, |database, link| {
            database.wait_for_rows(link, RowWait::Brief)?;
            let changed = change(database, link);
            if !matches!(changed, Err(Failure::Unknown(_))) {
                database.wait_for_rows(link, RowWait::Full)?;
            }
            changed
        })?
    }
}

/// Reads a client's row. `None` if another program wrote the row, with text that is no client id.
fn read(record: &Record) -> Answer<Option<(ClientId, Posted)>> {
    let posted = Posted { text: record.text(1)?, remaining: milliseconds(record.int(2)?) };
    Ok(ClientId::read(&record.text(0)?).map(|client| (client, posted)))
}

impl<D: Rows> Directory for RowStore<D> {
    fn write(&self, entry: Entry<'_>, deadline: Moment) -> Answer<()> {
        self.change_entry(deadline, |database, link| {
            // A refused `tidy` is ignored: if a transaction has locked an expired entry, another client
            // removes the entry later.
            if !self.has_tidied.swap(true, Ordering::Relaxed)
                && let Err(unknown @ Failure::Unknown(_)) =
                    link.run(&database.statements().tidy, &Args::none())
            {
                self.has_tidied.store(false, Ordering::Relaxed);
                return Err(unknown);
            }
            let args = Args::one("client", entry.client.to_string()).and("entry", entry.text);
            link.run(&database.statements().post, &args.and("lease_ms", entry.lease)).map(drop)
        })
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        let args = Args::one("client", client.to_string());
        self.change_entry(deadline, |database, link| link.run(&database.statements().unpost, &args).map(drop))
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        let found = self.pool.with(deadline, |database, link| {
            let one = |client: &ClientId| {
                let args = Args::one("client", client.to_string());
                let records = link.run(&database.statements().entry, &args)?;
                let entry = records.first().map(read).transpose()?.flatten();
                Ok(entry.map(|(_, posted)| posted))
            };
            clients.iter().map(one).collect()
        });
        found.map(|found| Page::of(found, None, (clients.len(), 0)))
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        let read_all = |records: Vec<Record>| {
            let last = records.last().filter(|_| records.len() >= PAGE);
            page(&records, last.map(|last| last.text(0)).transpose()?, read)
        };
        let args = Args::one("after", &*from.cursor);
        self.run(deadline, &args, |all| &all.entries).and_then(read_all)
    }

    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        let args = Args::one("after", &*bytes(&from.cursor));
        let one = |record: &Record| {
            let key = String::from_utf8(record.bytes(NAME)?).ok();
            let name = key.and_then(|key| wanted.lock(key));
            let seen = name.map(|name| described(&name, record)).transpose()?;
            Ok(seen.filter(|seen| !seen.holders.is_empty()))
        };
        let read_all = |records: Vec<Record>| {
            let last = records.last().map(|last| last.bytes(ID)).transpose()?;
            page(&records, last.map(|id| hex(&id)), one)
        };
        self.run(deadline, &args, |all| &all.list).and_then(read_all)
    }
}

fn page<T>(
    records: &[Record],
    cursor: Option<String>,
    read: impl Fn(&Record) -> Answer<Option<T>>,
) -> Answer<Page<T>> {
    let found = records.iter().filter_map(|record| read(record).transpose()).collect::<Answer<_>>()?;
    Ok(Page::of(found, cursor, (1, records.len())))
}
