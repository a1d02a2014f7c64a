//! `show`, `force` and `permits`: print or change what the store has under a name.

use std::time::Duration;

use leasehold::{Deadlock, Holder, Inspection, LastRun, Location, LockClient, Mode, ObjectKind};
use serde_json::{Value, json};

use crate::args::{Common, ForceArgs, Format, PermitsArgs, ShowArgs};
use crate::cycles;
use crate::job::{self, span};
use crate::say::{Ended, Exit, Say, fitted, json_text, plain, print_line};
use crate::store::{self, explained};

pub(crate) fn show(common: &Common, args: &ShowArgs) -> Ended {
    store::asked(common, |client, say| {
        let mut exit = Exit::Success;
        for name in &args.names {
            let shown = inspect(client, name, args.token).map_err(explained(say))?;
            let is_silent = common.quiet && common.format == Format::Text;
            if !is_silent {
                // Not every store keeps a last run, and not every user may read it, so errors are ignored.
                let last = client.last_run(name).ok().flatten();
                let is_waited_for = shown.waiting > 0 || shown.listeners != Some(0);
                let cycles = if shown.is_held() && is_waited_for { cycles::seen(client) } else { Vec::new() };
                print(common, &shown, last.as_ref(), &cycles);
            }
            if is_foreign(&shown) {
                exit = Exit::NotALock;
            } else if is_silent && !shown.is_held() && shown.permits_out == 0 && exit == Exit::Success {
                exit = Exit::Found;
            }
        }
        Ok(exit)
    })
}

pub(crate) fn force(common: &Common, args: &ForceArgs) -> Ended {
    store::asked(common, |client, say| {
        let shown = inspect(client, &args.name, args.token).map_err(explained(say))?;
        if shown.kind == ObjectKind::Absent || is_lock(&shown) && !shown.is_held() {
            say.notice("free", &format!("{} is held by nobody", args.name), &json!({"name": args.name}));
            return Ok(Exit::Success);
        }
        print(common, &shown, None, &[]);
        if !is_lock(&shown) {
            let exit = if is_foreign(&shown) { Exit::NotALock } else { Exit::Usage };
            Err(say.error(&impossible(&shown), exit))
        } else if args.yes {
            say_evicted(client, &shown, say)
        } else {
            const WORDS: &str = "nothing was done: --yes ends the hold that is shown. A program of the holder that does not notice goes on without it";
            Err(say.error(WORDS, Exit::Usage))
        }
    })
}

pub(crate) fn permits(common: &Common, args: &PermitsArgs) -> Ended {
    store::asked(common, |client, say| {
        change(client, common, args, say).map_err(explained(say))?;
        Ok(Exit::Success)
    })
}

fn change(client: &LockClient, common: &Common, args: &PermitsArgs, say: Say) -> leasehold::Result<()> {
    let (name, semaphore) = (&args.name, client.get_expirable_semaphore(&args.name));
    if args.remove {
        let words = if semaphore.delete()? { "was removed" } else { "was not set up" };
        say.notice("removed", &format!("{name} {words}"), &json!({"name": name}));
        return Ok(());
    }
    if let Some(permits) = args.set {
        semaphore.set_permits(permits)?;
    }
    let (all, out) = (semaphore.permits()?, semaphore.acquired_permits()?);
    print_line(&match common.format {
        Format::Text => format!("{}: {all} permits, {out} of them out", plain(name)),
        Format::Json => json_text(&json!({"name": name, "permits": all, "out": out})),
    });
    Ok(())
}

fn inspect(client: &LockClient, name: &str, as_token: bool) -> leasehold::Result<Inspection> {
    let mut shown = client.inspect(name)?;
    if as_token
        && matches!(shown.kind, ObjectKind::Foreign { .. } | ObjectKind::Counter | ObjectKind::Semaphore)
        && let Some(holder) = client.get_token_lock(name).holder()?
    {
        shown.kind = ObjectKind::TokenLock;
        shown.count = None;
        shown.holders.push(holder);
    }
    Ok(shown)
}

pub(crate) fn is_foreign(shown: &Inspection) -> bool {
    matches!(shown.kind, ObjectKind::Foreign { .. })
}

pub(crate) fn is_lock(shown: &Inspection) -> bool {
    use ObjectKind::{FairLock, FencedLock, Lock, ReadWriteLock, TokenLock};
    matches!(shown.kind, Lock | FencedLock | FairLock | ReadWriteLock { .. } | TokenLock)
}

fn say_evicted(client: &LockClient, shown: &Inspection, say: Say) -> Ended {
    let name = &shown.name;
    let forced = evict(client, shown).map_err(explained(say))?;
    let words = forced.words(shown);
    let event = match forced {
        Forced::Yes => "forced",
        Forced::WasFree => "free",
        Forced::IsAnothers => return Err(say.error(&words, Exit::Busy(BUSY))),
        Forced::Impossible => return Err(say.error(&words, Exit::Usage)),
    };
    say.notice(event, &words, &json!({"name": name}));
    Ok(Exit::Success)
}

const BUSY: u8 = 75;

pub(crate) enum Forced {
    Yes,
    WasFree,
    IsAnothers,
    Impossible,
}

impl Forced {
    pub(crate) fn words(&self, shown: &Inspection) -> String {
        let name = &shown.name;
        match self {
            Forced::Yes => format!("{name} was released by force"),
            Forced::WasFree => format!("{name} was free already"),
            Forced::IsAnothers => format!("{name} has another holder by now: nothing was done"),
            Forced::Impossible => impossible(shown),
        }
    }
}

/// Ends the hold that `shown` describes, after a check that no other hold has replaced it.
pub(crate) fn evict(client: &LockClient, shown: &Inspection) -> leasehold::Result<Forced> {
    use ObjectKind::{FairLock, FencedLock, Lock, ReadWriteLock, TokenLock};
    if !is_lock(shown) {
        return Ok(Forced::Impossible);
    }
    let name = &shown.name;
    let now = inspect(client, name, shown.kind == TokenLock)?;
    if !now.is_held() {
        return Ok(Forced::WasFree);
    }
    if owners(&now) != owners(shown) || now.fencing_token != shown.fencing_token {
        return Ok(Forced::IsAnothers);
    }
    let forced = match &now.kind {
        Lock | FencedLock => client.get_lock(name).force_unlock(),
        FairLock => client.get_fair_lock(name).force_unlock(),
        ReadWriteLock { mode: Mode::Read } => client.get_read_write_lock(name).read().force_unlock(),
        ReadWriteLock { .. } => client.get_read_write_lock(name).write().force_unlock(),
        TokenLock => client.get_token_lock(name).force_unlock(),
        _ => return Ok(Forced::Impossible),
    };
    Ok(if forced? { Forced::Yes } else { Forced::WasFree })
}

fn owners(shown: &Inspection) -> Vec<&str> {
    let mut owners: Vec<&str> = shown.holders.iter().map(|one| one.owner.as_str()).collect();
    owners.sort_unstable();
    owners
}

pub(crate) fn impossible(shown: &Inspection) -> String {
    let (name, kind) = (&shown.name, &shown.kind);
    match kind {
        ObjectKind::Foreign { what } => {
            format!(
                "{name} is not a lock, but {what}: nothing was done. --token takes a string for the token lock of another program"
            )
        }
        ObjectKind::ExpirableSemaphore => format!(
            "{name} is {kind}, which has permits and no holder: nothing was done. A permit comes back when its program ends, with its \
             lease at the latest; `leasehold permits {name} --remove` forgets all"
        ),
        _ => format!("{name} is {kind}, which has no holder to be released by force: nothing was done"),
    }
}

fn print(common: &Common, shown: &Inspection, last: Option<&LastRun>, cycles: &[Deadlock]) {
    let cycles: Vec<Deadlock> =
        cycles.iter().filter(|cycle| cycles::has(cycle, &shown.name)).cloned().collect();
    let text = match common.format {
        Format::Text => {
            let mut lines = vec![harmless(shown).to_string()];
            lines.extend(last.map(|last| format!("  {}", job::line(shown, last))));
            lines.extend(cycles.iter().flat_map(cycles::lines).map(|line| format!("  {line}")));
            fitted(&lines.join("\n"))
        }
        Format::Json => {
            let mut object = as_json(shown);
            if let Value::Object(fields) = &mut object {
                if let Some(last) = last {
                    fields.insert("last_run".to_owned(), job::as_json(job::State::of(shown, last), last));
                }
                fields.insert("deadlocks".to_owned(), cycles::all_as_json(&cycles));
            }
            json_text(&object)
        }
    };
    print_line(&text);
}

/// A copy in which text of other programs is made printable; the other text needs no change.
pub(crate) fn harmless(shown: &Inspection) -> Inspection {
    let mut shown = shown.clone();
    let places = shown.holders.iter_mut().map(|one| (&mut one.owner, &mut one.location));
    let places = places.chain(shown.waiters.iter_mut().map(|one| (&mut one.owner, &mut one.location)));
    for (owner, place) in places {
        *owner = plain(owner);
        if let Some(place) = place {
            for text in [&mut place.host, &mut place.program, &mut place.thread] {
                *text = plain(text);
            }
            place.label = place.label.as_deref().map(plain);
        }
    }
    for permit in &mut shown.permits {
        permit.id = plain(&permit.id);
    }
    if let ObjectKind::Foreign { what } = &mut shown.kind {
        *what = plain(what);
    }
    shown.name = plain(&shown.name);
    shown
}

fn as_json(shown: &Inspection) -> Value {
    let holders = shown.holders.iter().map(holder_as_json);
    let waiters = shown.waiters.iter().map(|one| {
        placed(
            one.location.as_ref(),
            json!({
                "owner": one.owner,
                "remaining_seconds": seconds(one.remaining),
                "waiting_for_seconds": seconds(one.waiting_for),
            }),
        )
    });
    let permits = shown.permits.iter();
    json!({
        "name": shown.name,
        "kind": shown.kind.to_string(),
        "held": shown.is_held(),
        "remaining_seconds": seconds(shown.remaining),
        "has_no_end": shown.remaining == Some(Duration::MAX),
        "fence": shown.fencing_token.map(|fence| fence.get()),
        "holders": holders.collect::<Vec<_>>(),
        "waiters": waiters.collect::<Vec<_>>(),
        "waiting": shown.waiting,
        "waiting_at_least": shown.waiting_at_least,
        "listeners": shown.listeners,
        "count": shown.count,
        "permits": permits.map(|one| json!({"id": one.id, "remaining_seconds": one.remaining.as_secs_f64()})).collect::<Vec<_>>(),
        "permits_out": shown.permits_out,
    })
}

pub(crate) fn place(holder: &Holder) -> String {
    let Some(place) = &holder.location else { return holder.owner.clone() };
    let command = place.label.as_ref().unwrap_or(&place.program);
    let gap = if command.is_empty() { "" } else { " " };
    format!("{command}{gap}on {} (process {})", place.host, place.pid)
}

pub(crate) fn who(holder: &Holder) -> String {
    let mut words = place(holder);
    if let Some(mode) = holder.mode {
        words += &format!(", {mode}");
    }
    if let Some(held_for) = holder.held_for {
        words += &format!(", for {} now", span(held_for));
    }
    words
}

pub(crate) fn holder_as_json(holder: &Holder) -> Value {
    placed(
        holder.location.as_ref(),
        json!({
            "owner": holder.owner,
            "mode": holder.mode.map(|mode| mode.to_string()),
            "holds": holder.hold_count,
            "leads": holder.is_leader,
            "remaining_seconds": seconds(holder.remaining),
            "held_for_seconds": seconds(holder.held_for),
            "ends_within_seconds": seconds(holder.ends_within),
        }),
    )
}

pub(crate) fn placed(place: Option<&Location>, fields: Value) -> Value {
    let known = |text: fn(&Location) -> &String| place.map(text).filter(|text| !text.is_empty());
    let mut object = json!({
        "host": known(|place| &place.host),
        "pid": place.map(|place| place.pid),
        "program": known(|place| &place.program),
        "label": place.and_then(|place| place.label.as_ref()),
        "thread": known(|place| &place.thread),
    });
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    object
}

pub(crate) fn seconds(span: Option<Duration>) -> Option<f64> {
    span.filter(|span| *span != Duration::MAX).map(|span| span.as_secs_f64())
}
