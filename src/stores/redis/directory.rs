//! The [directory](crate::seam::directory) of clients on one server, and the list of its locks. Each request
//! reads one page, so that the server can serve other clients between pages.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, LockName, Owner};
use crate::inspect::Inspection;
use crate::seam::directory::{Directory, Entry, Page, Place, Posted, Wanted};
use crate::seam::{Answer, Failure};
use crate::stores::redis::keys::Part;
use crate::stores::redis::reply::{Redirect, decoded, done, list, unexpected};
use crate::stores::redis::script::{Command, ENTRIES, LIST};
use crate::stores::redis::show;
use crate::stores::redis::store::RedisStore;
use crate::time::{Moment, millis};

/// How many slots of its hash table the server scans for a page, which takes it about a millisecond.
const PAGE: u32 = 500;

/// Maximum number of commands in one write, which takes the server one or two milliseconds. The server runs
/// all commands that arrive together before it serves others, so each write waits for all earlier replies.
const TOGETHER: usize = 50;

pub(super) fn entry_key(client: ClientId) -> String {
    format!("{}{client}", Part::ClientEntry.text())
}

struct Scanned {
    keys: Vec<String>,
    /// The cursor of the next page; empty after the last page.
    cursor: String,
    number: u64,
}

impl RedisStore {
    fn ask_plain(&self, command: Command, deadline: Moment) -> Answer<Value> {
        done(self.server.connections.call(command, deadline)?).map_err(Failure::Refused)
    }

    fn scan(&self, pattern: &str, cursor: &str, deadline: Moment) -> Answer<Scanned> {
        let cursor = if cursor.is_empty() { "0" } else { cursor };
        let command = Command::new("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(PAGE);
        decoded(scanned(&self.ask_plain(command, deadline)?))
    }

    /// Scans for keys that may be locks. If the server refuses SCAN in a script, scans for all keys.
    fn scan_locks(&self, pattern: &str, cursor: &str, deadline: Moment) -> Answer<Scanned> {
        let from = if cursor.is_empty() { "0" } else { cursor };
        let command = LIST.on::<&str>(&[]).arg(from).arg(pattern).arg(PAGE);
        match self.ask_plain(command, deadline) {
            Ok(reply) => decoded(scanned(&reply)),
            Err(Failure::Refused(_)) => self.scan(pattern, cursor, deadline),
            Err(unknown) => Err(unknown),
        }
    }

    /// A page of locks. `again` gets each failed inspection; if the slot has moved, it asks the new member.
    pub(super) fn locks_page(
        &self,
        wanted: &Wanted,
        cursor: &str,
        deadline: Moment,
        again: impl Fn(&LockName, &Error) -> Option<Answer<Inspection>>,
    ) -> Answer<Page<Inspection>> {
        let Scanned { keys, cursor, number: examined } =
            self.scan_locks(&wanted.whole(), cursor, deadline)?;
        // Skips keys that are parts of a lock, and keys that no lock name can have.
        let names = keys.into_iter().filter_map(|key| {
            let name = Arc::from(key.strip_prefix(&*wanted.prefix)?);
            LockName::new(&name, key).ok()
        });
        let names: Vec<LockName> = names.collect();
        let mut page = Page { found: Vec::new(), next: goes_on(cursor), requests: 1, examined };
        if names.is_empty() {
            return Ok(page);
        }
        let commands: Vec<Command> = names.iter().map(|name| show::request(name, &[])).collect();
        let (replies, writes) = self.in_groups(&commands, deadline)?;
        page.requests += writes;
        for (name, reply) in names.iter().zip(replies) {
            let mut seen = show::read(name, reply);
            if let Err(failure) = &seen
                && let Some(other) = again(name, failure.error())
            {
                page.requests += 1;
                seen = other;
            }
            page.found.extend(listed(seen)?);
        }
        Ok(page)
    }

    fn in_groups(&self, commands: &[Command], deadline: Moment) -> Answer<(Vec<Value>, u64)> {
        self.server.connections.dialog(deadline, |dialog| {
            let (mut replies, mut writes) = (Vec::with_capacity(commands.len()), 0);
            for group in commands.chunks(TOGETHER) {
                replies.extend(dialog.say(group)?);
                writes += 1;
            }
            Ok((replies, writes))
        })
    }
}

fn goes_on(cursor: String) -> Option<Place> {
    (!cursor.is_empty()).then_some(Place { servers: None, cursor })
}

fn scanned(reply: &Value) -> Result<Scanned> {
    let [Value::BulkString(cursor), Value::Array(keys), rest @ ..] = list(reply)? else {
        return Err(unexpected(reply));
    };
    let cursor = String::from_utf8_lossy(cursor).into_owned();
    let key = |key: &Value| match key {
        Value::BulkString(key) => String::from_utf8(key.clone()).ok(),
        _ => None,
    };
    let cursor = if cursor == "0" { String::new() } else { cursor };
    let number = match rest {
        [Value::Int(number)] => u64::try_from(*number).unwrap_or_default(),
        _ => u64::try_from(keys.len()).unwrap_or(u64::MAX),
    };
    Ok(Scanned { keys: keys.iter().filter_map(key).collect(), cursor, number })
}

fn posted(reply: &Value) -> Result<Vec<Option<Posted>>> {
    let one = |pair: &[Value]| match pair {
        [Value::BulkString(text), Value::Int(left_ms)] => {
            let text = String::from_utf8(text.clone()).ok().filter(|text| !text.is_empty());
            let remaining = Duration::from_millis(u64::try_from(*left_ms).unwrap_or(0));
            Ok(text.map(|text| Posted { text, remaining }))
        }
        _ => Err(unexpected(reply)),
    };
    list(reply)?.chunks(2).map(one).collect()
}

/// The inspection of a key, unless the key is another program's: a holder is no owner in our format, or the
/// name's queue or fence counter has another type.
fn listed(seen: Answer<Inspection>) -> Answer<Option<Inspection>> {
    match seen {
        Ok(seen) => {
            Ok(Some(seen).filter(|seen| seen.holders.iter().all(|holder| Owner::is_one(&holder.owner))))
        }
        Err(failure) if failure.error().kind() == ErrorKind::WrongType => Ok(None),
        Err(failure) => Err(failure),
    }
}

impl Directory for RedisStore {
    /// Writes the client's entry over the shared connection, so that renewals never wait for it. Seldom waits
    /// for the reply, because a wait that times out ends the connection, and with it other threads' requests.
    fn write(&self, entry: Entry<'_>, deadline: Moment) -> Answer<()> {
        let failed = self.failed_entry.lock().take();
        self.agree_once(deadline)?; // a ring's node may not have been asked for its format yet
        let Entry { client, text, lease, is_awaited } = entry;
        let put = Command::new("SET").arg(entry_key(client)).arg(text).arg("PX").arg(millis(lease).max(1));
        // ASKING can precede only requests whose reply is awaited.
        if is_awaited || self.server.connections.asking {
            return self.ask_plain(put, deadline).map(drop);
        }
        if let Some(error) = failed
            && (Redirect::of(&error).is_some() || !error.is_retryable())
        {
            return Err(Failure::Refused(error));
        }
        let failed = Arc::clone(&self.failed_entry);
        let take = move |outcome: Answer<Value>| {
            *failed.lock() = outcome.map_err(Failure::into_error).and_then(done).err();
            None
        };
        self.server.connections.post(put, deadline, None, take);
        Ok(())
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        self.ask_plain(Command::new("DEL").arg(entry_key(client)), deadline).map(drop)
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        let keys: Vec<String> = clients.iter().map(|client| entry_key(*client)).collect();
        let found = decoded(posted(&self.ask_plain(ENTRIES.on(&keys), deadline)?))?;
        Ok(Page::of(found, None, (1, 0)))
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        let prefix = Part::ClientEntry.text();
        let Scanned { keys, cursor, number } = self.scan(&format!("{prefix}*"), &from.cursor, deadline)?;
        let clients = keys.iter().filter_map(|key| ClientId::read(key.strip_prefix(prefix)?));
        let clients: Vec<ClientId> = clients.collect();
        let mut page = Page { found: Vec::new(), next: goes_on(cursor), requests: 1, examined: number };
        if !clients.is_empty() {
            // One command for each entry, because in a cluster the entries have different slots. An entry
            // whose slot has moved is skipped, because the slot's new member lists it.
            let commands = clients.iter().map(|client| ENTRIES.on(&[&entry_key(*client)]));
            let commands: Vec<Command> = commands.collect();
            let (replies, writes) = self.in_groups(&commands, deadline)?;
            page.requests += writes;
            for (client, reply) in clients.into_iter().zip(replies) {
                match done(reply) {
                    Ok(reply) => {
                        let posted = decoded(posted(&reply))?.into_iter().flatten();
                        page.found.extend(posted.map(|posted| (client, posted)));
                    }
                    Err(error) if Redirect::of(&error).is_some() => {}
                    Err(error) => return Err(Failure::Refused(error)),
                }
            }
        }
        Ok(page)
    }

    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        self.locks_page(wanted, &from.cursor, deadline, |_, _| None)
    }
}
