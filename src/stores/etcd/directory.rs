//! Lists the clients' entries and the locks, page by page.
//!
//! A client's entry is a key below `%clients/`, with a lease. No lock's key begins with `%clients/`, because
//! a `%` in a name is written `%25`. An entry's age follows from the remaining time of its lease, which costs
//! one more request for each entry.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::ErrorKind;
use crate::ident::ClientId;
use crate::inspect::Inspection;
use crate::seam::directory::{Directory, Entry, Page, Place, Posted, Wanted};
use crate::seam::{Answer, Failure};
use crate::stores::etcd::lease::{keep_alive, revoke, time_to_live};
use crate::stores::etcd::members::unreadable;
use crate::stores::etcd::message::{self, BATCH, OWNERS, get, name_of, number, txn};
use crate::stores::etcd::{EtcdStore, MOST_SHOWN};
use crate::time::{Clock, Moment};

const PAGE: u32 = 250;

const CLIENTS: &str = "%clients/";

struct KeyRead {
    /// Bytes instead of text, because another program may have written the key.
    key: Vec<u8>,
    value: String,
    lease: i64,
}

impl EtcdStore {
    fn entry(&self, client: ClientId) -> String {
        STANDARD.encode(format!("{}{CLIENTS}{client}", self.members.address.prefix))
    }

    /// An entry with its remaining time, less the second that `ttl_of` adds. `None` if its lease has ended.
    fn posted(&self, text: String, lease: i64, deadline: Moment) -> Answer<Option<Posted>> {
        let left = time_to_live(&self.wire, lease, deadline)?;
        let remaining = left.map(|seconds| Duration::from_secs(seconds.saturating_sub(1)));
        Ok(remaining.map(|remaining| Posted { text, remaining }))
    }

    /// Reads some keys below `folder`, from the cursor on. Returns the keys, and a page with the next cursor,
    /// into which the caller puts what it finds.
    fn keys<T>(
        &self,
        folder: &str,
        from: &Place,
        values: bool,
        deadline: Moment,
    ) -> Answer<(Vec<KeyRead>, Page<T>)> {
        let begin = if from.cursor.is_empty() { STANDARD.encode(folder) } else { from.cursor.clone() };
        let body = json!({
            "key": begin,
            "range_end": message::behind(folder),
            "limit": PAGE.to_string(),
            "keys_only": !values,
        });
        let answer = self.wire.call("/v3/kv/range", &body, deadline)?;
        let pairs = answer.get("kvs").and_then(Value::as_array).into_iter().flatten();
        let bytes = |pair: &Value, part: &str| {
            STANDARD.decode(pair.get(part).and_then(Value::as_str).unwrap_or_default()).ok()
        };
        let read = |pair: &Value| {
            Some(KeyRead {
                key: bytes(pair, "key")?,
                value: String::from_utf8(bytes(pair, "value")?).unwrap_or_default(),
                lease: number(pair, "lease").unwrap_or(0),
            })
        };
        let found: Option<Vec<_>> = pairs.map(read).collect();
        let found = found.ok_or_else(|| Failure::Refused(unreadable()))?;
        let has_more = answer.get("more").and_then(Value::as_bool).unwrap_or(false);
        let next = found.last().filter(|_| has_more).map(|last| goes_on(&last.key, b"\0"));
        let page = Page::of(Vec::new(), next, (1, found.len()));
        Ok((found, page))
    }
}

fn line_of(key: &[u8]) -> Option<&[u8]> {
    let mark = OWNERS.as_bytes();
    let at = key.windows(mark.len()).rposition(|part| part == mark)?;
    key.get(..at)
}

fn goes_on(key: &[u8], behind: &[u8]) -> String {
    STANDARD.encode([key, behind].concat())
}

impl Directory for EtcdStore {
    fn write(&self, entry: Entry<'_>, deadline: Moment) -> Answer<()> {
        // If a request fails, `entry_lease` stays empty: the next call takes a new lease, and this one ends.
        let known = self.entry_lease.lock().take();
        let lease = match known {
            Some(known) if keep_alive(&self.renewals, &[known], deadline)? == [true] => known,
            _ => self.leases.take(&self.renewals, entry.lease, deadline)?.id,
        };
        let put = json!({
            "key": self.entry(entry.client),
            "value": STANDARD.encode(entry.text),
            "lease": lease.to_string(),
        });
        self.renewals.call("/v3/kv/put", &put, deadline)?;
        *self.entry_lease.lock() = Some(lease);
        Ok(())
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        let lease = self.entry_lease.lock().take();
        let key = json!({ "key": self.entry(client) });
        let removed = self.wire.call("/v3/kv/deleterange", &key, deadline).map(drop);
        if let Some(lease) = lease {
            revoke(&self.wire, lease, deadline);
        }
        removed
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        let mut page = Page::of(Vec::with_capacity(clients.len()), None, (0, 0));
        for clients in clients.chunks(BATCH) {
            let looks: Vec<Value> = clients.iter().map(|client| get(&self.entry(*client))).collect();
            let done = self.txn(&self.wire, &txn(&[], &looks, &[]), deadline)?;
            page.requests += 1;
            for at in 0..clients.len() {
                let posted = match done.text(at).map_err(Failure::Refused)? {
                    Some((text, lease)) if deadline > Clock::System.now() => {
                        page.requests += 1;
                        let posted = self.posted(text.clone(), lease, deadline);
                        posted.unwrap_or(Some(Posted { text, remaining: Duration::MAX }))
                    }
                    // Without time to ask for the lease, the entry is shown as new.
                    Some((text, _)) => Some(Posted { text, remaining: Duration::MAX }),
                    None => None,
                };
                page.found.push(posted);
            }
        }
        Ok(page)
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        let folder = format!("{}{CLIENTS}", self.members.address.prefix);
        let (keys, mut page) = self.keys(&folder, from, true, deadline)?;
        let each = deadline.since(Clock::System.now());
        for KeyRead { key, value, lease } in keys {
            let key = String::from_utf8(key).unwrap_or_default();
            let Some(client) = key.strip_prefix(&*folder).and_then(ClientId::read) else { continue };
            page.requests += 1;
            // On a slow link one deadline would be too short for a page, so each request has its own.
            let posted = self.posted(value, lease, Clock::System.after(each))?;
            page.found.extend(posted.map(|posted| (client, posted)));
        }
        Ok(page)
    }

    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        let prefix = &self.members.address.prefix;
        let (keys, mut page) = self.keys(prefix, from, false, deadline)?;
        let mut lines: Vec<&[u8]> = Vec::new();
        for KeyRead { key, .. } in &keys {
            let Some(line) = line_of(key).filter(|line| line.len() >= prefix.len()) else { continue };
            if lines.last() != Some(&line) {
                lines.push(line);
            }
        }
        let last = keys.last().and_then(|last| line_of(&last.key));
        if let (Some(next), Some(line)) = (&mut page.next, lines.last().filter(|line| last == Some(**line))) {
            // Skips this lock's other keys: they begin with `line/%/`, and `line/%0` sorts behind them.
            next.cursor = goes_on(line, b"/%0");
        }
        let each = deadline.since(Clock::System.now());
        for line in lines {
            let line = std::str::from_utf8(line).ok();
            let key = line.and_then(|line| line.strip_prefix(&**prefix)).and_then(name_of);
            let Some(name) = key.and_then(|key| wanted.lock(key)) else { continue };
            page.requests += 2;
            match self.seen(&name, MOST_SHOWN, Clock::System.after(each)) {
                Ok(seen) => page.found.push(seen),
                // Leaves out a key of another program that has the form of an owner's key.
                Err(Failure::Refused(error)) if error.kind() == ErrorKind::WrongType => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(page)
    }
}
