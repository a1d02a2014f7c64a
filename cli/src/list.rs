//! `ls` and `clients`: the held locks, and the clients.

use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use leasehold::{ClientInfo, Holder, ListCost, ListedLock, ObjectKind};
use serde_json::{Value, json};

use crate::args::{Common, Format, LsArgs};
use crate::job::span;
use crate::say::{Ended, Exit, Say, fitted, json_text, narrow_terminal, plain, print_line};
use crate::show::{holder_as_json, place, seconds};
use crate::store::{self, explained};

pub(crate) fn locks(common: &Common, args: &LsArgs) -> Ended {
    store::asked(common, |client, say| {
        let mut list = client.list(&args.pattern);
        let locks = list.by_ref().collect::<leasehold::Result<Vec<ListedLock>>>();
        let mut locks = locks.map_err(explained(say))?;
        if let Some(host) = &args.host {
            let is_there = |one: &Holder| one.location.as_ref().is_some_and(|place| place.host == *host);
            locks.retain(|lock| lock.holders.iter().any(is_there));
        }
        locks.sort_by(|one, other| one.name.cmp(&other.name));
        match common.format {
            Format::Text => table(&locks),
            Format::Json => locks.iter().for_each(|lock| print_line(&json_text(&lock_as_json(lock)))),
        }
        cost(say, locks.len(), "locks", list.cost());
        Ok(Exit::Success)
    })
}

pub(crate) fn clients(common: &Common) -> Ended {
    store::asked(common, |client, say| {
        let mut clients = client.clients();
        let mut found = 0_usize;
        for one in clients.by_ref() {
            let one = one.map_err(explained(say))?;
            if one.by_this_client {
                continue;
            }
            print_line(&match common.format {
                Format::Text => fitted(&client_lines(&one)),
                Format::Json => json_text(&client_as_json(&one)),
            });
            found += 1;
        }
        cost(say, found, "clients", clients.cost());
        Ok(Exit::Success)
    })
}

fn cost(say: Say, found: usize, what: &str, cost: ListCost) {
    let ListCost { requests, keys, .. } = cost;
    let count = |number: u64, what: &str| {
        let what = if number == 1 { what.trim_end_matches('s') } else { what };
        format!("{number} {what}")
    };
    let found = u64::try_from(found).unwrap_or(u64::MAX);
    let words =
        format!("{} among {}, by {}", count(found, what), count(keys, "keys"), count(requests, "requests"));
    say.notice("listed", &words, &json!({"found": found, "keys": keys, "requests": requests}));
}

fn table(locks: &[ListedLock]) {
    if locks.is_empty() {
        return;
    }
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["NAME", "KIND", "HELD BY", "FOR", "ENDS IN", "WAITING"]);
    table.add_rows(locks.iter().map(row));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    if let Some(width) = narrow_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    print_line(&table.trim_fmt());
}

fn row(lock: &ListedLock) -> [String; 6] {
    let kind = lock.kind.to_string();
    let holder = lock.holders.first();
    let more = lock.holders.len().saturating_sub(1);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let ends = match lock.remaining {
        _ if has_no_end(lock) => "no end".to_owned(),
        Some(left) if left != Duration::MAX => span(left),
        _ => "-".to_owned(),
    };
    [
        lock.name.clone(),
        kind.trim_start_matches("a ").to_owned(),
        holder.map_or_else(|| "-".to_owned(), |one| place(one) + &more),
        holder.and_then(|one| one.held_for).map_or_else(|| "-".to_owned(), span),
        ends,
        lock.waiting.to_string(),
    ]
    .map(|text| plain(&text))
}

/// Whether the lock has no expiry. An expirable semaphore does not count, since its permits expire.
pub(crate) fn has_no_end(lock: &ListedLock) -> bool {
    lock.remaining == Some(Duration::MAX) && lock.kind != ObjectKind::ExpirableSemaphore
}

pub(crate) fn lock_as_json(lock: &ListedLock) -> Value {
    let holders = lock.holders.iter().map(holder_as_json);
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
        let what = if one.is_waiting { "waits for" } else { "holds" };
        let thread = if one.thread.is_empty() { String::new() } else { format!(", thread {}", one.thread) };
        let line = format!("  {what} {} for {:.1} s{thread}", one.name, one.lasted.as_secs_f64());
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
            "for_seconds": one.lasted.as_secs_f64(),
            "waits": one.is_waiting,
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
        "written_seconds_ago": client.written_ago.as_secs_f64(),
        "uses": uses.collect::<Vec<_>>(),
        "unlisted": client.unlisted,
    })
}
