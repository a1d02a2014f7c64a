//! `show` and `force`: what the store says of a lock, and its end by somebody else's hand.

use std::io::Write;
use std::time::Duration;

use leasehold::{Inspection, LockClient, ObjectKind, Whereabouts};
use serde_json::{Map, Value, json};

use crate::args::{Common, ForceArgs, Format};
use crate::exit::Exit;
use crate::say::{Say, plain};
use crate::store::{self, explain};

/// Prints what each name is in the store.
pub(crate) fn show(common: &Common, names: &[String]) -> Exit {
    let say = Say::new(common);
    let client = match store::connect(common, None, None, say) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let mut exit = Exit::Success;
    for name in names {
        match client.inspect(name) {
            Ok(shown) => print(common, &shown),
            Err(error) => {
                exit = explain(&error, say);
                break;
            }
        }
    }
    store::finish(client);
    exit
}

/// Ends the hold of a lock, whoever has it.
pub(crate) fn force(common: &Common, args: &ForceArgs) -> Exit {
    let say = Say::new(common);
    let client = match store::connect(common, None, None, say) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let exit = match client.inspect(&args.name) {
        Err(error) => explain(&error, say),
        Ok(shown) if !shown.is_held() => {
            say.notice("free", &format!("{} is held by nobody", args.name), &json!({"name": args.name}));
            Exit::Success
        }
        Ok(shown) => {
            print(common, &shown);
            if args.yes {
                say_evicted(&client, &shown, say)
            } else {
                say.error("nothing was done: --yes ends the hold that is shown. A program of the holder that does not notice goes on without it");
                Exit::Usage
            }
        }
    };
    store::finish(client);
    exit
}

fn say_evicted(client: &LockClient, shown: &Inspection, say: Say) -> Exit {
    let name = &shown.name;
    let (event, words) = match evict(client, shown) {
        Ok(Forced::Yes) => ("forced", format!("{name} was released by force")),
        Ok(Forced::WasFree) => ("free", format!("{name} was free already")),
        Ok(Forced::Impossible) => {
            say.error(&impossible(shown));
            return Exit::Usage;
        }
        Err(error) => return explain(&error, say),
    };
    say.notice(event, &words, &json!({"name": name}));
    Exit::Success
}

/// What became of a hold that was to be ended by somebody else's hand.
pub(crate) enum Forced {
    Yes,
    WasFree,
    Impossible,
}

pub(crate) fn evict(client: &LockClient, shown: &Inspection) -> leasehold::Result<Forced> {
    let name = &shown.name;
    let forced = match &shown.kind {
        ObjectKind::Lock | ObjectKind::FencedLock => client.lock(name).force_unlock(),
        ObjectKind::FairLock => client.fair_lock(name).force_unlock(),
        ObjectKind::ReadWriteLock { .. } => client.read_write_lock(name).write().force_unlock(),
        ObjectKind::TokenLock => client.token_lock(name).force_unlock(),
        _ => return Ok(Forced::Impossible),
    };
    Ok(if forced? { Forced::Yes } else { Forced::WasFree })
}

pub(crate) fn impossible(shown: &Inspection) -> String {
    format!("{} is {}, of which nothing can be released by force", shown.name, shown.kind)
}

fn print(common: &Common, shown: &Inspection) {
    let text = match common.format {
        Format::Text => plain(&format!("{shown}\n")),
        Format::Json => format!("{}\n", as_json(shown)),
    };
    // A reader that has seen enough is no failure.
    drop(std::io::stdout().write_all(text.as_bytes()));
}

/// Times in seconds; `null` for what the store does not know, and for an end that there is not.
fn as_json(shown: &Inspection) -> Value {
    let holders = shown.holders.iter().map(|holder| {
        let mut object = place_as_json(holder.whereabouts.as_ref());
        for (field, value) in [
            ("owner", json!(holder.owner)),
            ("mode", json!(holder.mode.map(|mode| mode.to_string()))),
            ("holds", json!(holder.holds)),
            ("remaining_seconds", json!(seconds(holder.remaining))),
            ("held_for_seconds", json!(seconds(holder.held_for))),
            ("ends_within_seconds", json!(seconds(holder.ends_within))),
        ] {
            object.insert(field.to_owned(), value);
        }
        Value::Object(object)
    });
    let waiters = shown.waiters.iter().map(|one| {
        let mut object = place_as_json(one.whereabouts.as_ref());
        object.insert("owner".to_owned(), json!(one.owner));
        object.insert("remaining_seconds".to_owned(), json!(seconds(one.remaining)));
        object.insert("waiting_for_seconds".to_owned(), json!(seconds(one.waiting_for)));
        Value::Object(object)
    });
    let permits = shown.permits.iter();
    json!({
        "name": shown.name,
        "kind": shown.kind.to_string(),
        "held": shown.is_held(),
        "remaining_seconds": seconds(shown.remaining),
        "has_no_end": shown.remaining == Some(Duration::MAX),
        "fence": shown.fence.map(|fence| fence.get()),
        "holders": holders.collect::<Vec<_>>(),
        "waiters": waiters.collect::<Vec<_>>(),
        "waiting": shown.waiting,
        "listeners": shown.listeners,
        "count": shown.count,
        "permits": permits.map(|one| json!({"id": one.id, "remaining_seconds": one.remaining.as_secs_f64()})).collect::<Vec<_>>(),
        "permits_out": shown.out,
    })
}

/// Where an owner is, as far as that is known.
pub(crate) fn place_as_json(place: Option<&Whereabouts>) -> Map<String, Value> {
    let known = |text: fn(&Whereabouts) -> &String| json!(place.map(text).filter(|text| !text.is_empty()));
    let fields = [
        ("host", known(|place| &place.host)),
        ("pid", json!(place.map(|place| place.pid))),
        ("program", known(|place| &place.program)),
        ("label", json!(place.and_then(|place| place.label.as_ref()))),
        ("thread", known(|place| &place.thread)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(crate) fn seconds(span: Option<Duration>) -> Option<f64> {
    span.filter(|span| *span != Duration::MAX).map(|span| span.as_secs_f64())
}
