//! `ls` and `clients`: what is held on the store, and by whom.

use std::io::Write;

use leasehold::{ClientInfo, ListCost, ListedLock, LockClient, ObjectKind};
use serde_json::{Value, json};

use crate::args::{Common, Format};
use crate::exit::Exit;
use crate::say::{Say, fitted, json_text, plain};
use crate::show::{place_as_json, seconds};
use crate::store::{self, explain};

/// Prints a line for each lock that is held and whose name has the form of `pattern`.
pub(crate) fn locks(common: &Common, pattern: &str) -> Exit {
    asked(common, |client, say| {
        let mut locks = client.list(pattern);
        let mut found = 0;
        for lock in locks.by_ref() {
            match lock {
                Ok(lock) => print(common, || lock_line(&lock), || lock_as_json(&lock)),
                Err(error) => return explain(&error, say),
            }
            found += 1;
        }
        cost(say, found, "locks", locks.cost());
        Exit::Success
    })
}

/// Prints a line for each client that says that it holds or waits.
pub(crate) fn clients(common: &Common) -> Exit {
    asked(common, |client, say| {
        let mut clients = client.clients();
        let mut found = 0;
        for one in clients.by_ref() {
            match one {
                Ok(one) if one.by_this_client => continue,
                Ok(one) => print(common, || client_lines(&one), || client_as_json(&one)),
                Err(error) => return explain(&error, say),
            }
            found += 1;
        }
        cost(say, found, "clients", clients.cost());
        Exit::Success
    })
}

fn asked(common: &Common, ask: impl FnOnce(&LockClient, Say) -> Exit) -> Exit {
    let say = Say::new(common);
    let client = match store::connect(common, None, None, say) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let exit = ask(&client, say);
    store::finish(client);
    exit
}

/// On standard error: what is read by a program is only the list.
fn cost(say: Say, found: u64, what: &str, cost: ListCost) {
    let ListCost { requests, keys, .. } = cost;
    let what = if found == 1 { what.trim_end_matches('s') } else { what };
    let words = format!("{found} {what} among {keys} keys, by {requests} requests");
    say.notice("listed", &words, &json!({"found": found, "keys": keys, "requests": requests}));
}

fn print(common: &Common, text: impl FnOnce() -> String, object: impl FnOnce() -> Value) {
    let line = match common.format {
        Format::Text => fitted(&text()).trim_end().to_owned(),
        Format::Json => json_text(&object()),
    };
    // A reader that has seen enough is no failure.
    drop(writeln!(std::io::stdout(), "{line}"));
}

fn lock_line(lock: &ListedLock) -> String {
    let mut line = format!("{}: {}", lock.name, lock.kind);
    for holder in &lock.holders {
        line += &format!(", held by {holder}");
    }
    // Each holder says its own.
    match lock.remaining.filter(|_| lock.holders.is_empty()) {
        Some(left) if left == std::time::Duration::MAX => line += ", without an end",
        Some(left) => line += &format!(", lease of {:.1} s left", left.as_secs_f64()),
        None => {}
    }
    if lock.waiting > 0 {
        line += &format!(", {} waiting", lock.waiting);
    }
    plain(&line)
}

/// Whether it lasts until somebody releases it. The number of an expirable semaphore's permits is no hold, and its
/// permits end.
pub(crate) fn has_no_end(lock: &ListedLock) -> bool {
    lock.remaining == Some(std::time::Duration::MAX) && lock.kind != ObjectKind::ExpirableSemaphore
}

pub(crate) fn lock_as_json(lock: &ListedLock) -> Value {
    let holders = lock.holders.iter().map(|holder| {
        let mut object = place_as_json(holder.whereabouts.as_ref());
        object.insert("owner".to_owned(), json!(holder.owner));
        object.insert("mode".to_owned(), json!(holder.mode.map(|mode| mode.to_string())));
        object.insert("leads".to_owned(), json!(holder.leads));
        object.insert("held_for_seconds".to_owned(), json!(seconds(holder.held_for)));
        Value::Object(object)
    });
    json!({
        "name": lock.name,
        "kind": lock.kind.to_string(),
        "holders": holders.collect::<Vec<_>>(),
        "remaining_seconds": seconds(lock.remaining),
        "has_no_end": has_no_end(lock),
        "waiting": lock.waiting,
    })
}

fn client_lines(client: &ClientInfo) -> String {
    let mut lines = vec![plain(&client.to_string())];
    for one in &client.uses {
        let what = if one.waits { "waits for" } else { "holds" };
        let thread = if one.thread.is_empty() { String::new() } else { format!(", thread {}", one.thread) };
        let line = format!("  {what} {} for {:.1} s{thread}", one.name, one.since.as_secs_f64());
        lines.push(plain(&line));
    }
    if client.unlisted > 0 {
        lines.push(format!("  and {} more", client.unlisted));
    }
    lines.join("\n")
}

fn client_as_json(client: &ClientInfo) -> Value {
    let uses = client.uses.iter().map(|one| {
        json!({
            "name": one.name,
            "owner": format!("{}:{}", client.id, one.owner),
            "thread": (!one.thread.is_empty()).then_some(&one.thread),
            "for_seconds": one.since.as_secs_f64(),
            "waits": one.waits,
        })
    });
    json!({
        "id": client.id.to_string(),
        "host": client.host,
        "pid": client.pid,
        "program": client.program,
        "label": client.label,
        "version": client.version,
        "age_seconds": client.age.as_secs_f64(),
        "written_seconds_ago": client.written.as_secs_f64(),
        "uses": uses.collect::<Vec<_>>(),
        "unlisted": client.unlisted,
    })
}
