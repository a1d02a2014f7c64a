//! `watch`: a line for each change between two polls. A change that is undone between two polls is not seen.

use std::io::{ErrorKind as Io, Write};
use std::time::Duration;

use leasehold::crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use leasehold::{Holder, Inspection, LockClient, ObjectKind};
use serde_json::{Value, json};

use crate::args::{Common, Format, WatchArgs};
use crate::clock::{Moment, stamp, wall};
use crate::run::signals::Caught;
use crate::say::{Ended, Exit, Say, json_text, line, plain};
use crate::show::{placed, seconds};
use crate::store::{self, explain};
use crate::system;

pub(crate) fn watch(common: &Common, args: &WatchArgs) -> Ended {
    let say = Say::new(common);
    let caught = Caught::start().map_err(|error| say.internal("signals cannot be caught", &error))?;
    let end = args.duration.map_or(Moment::NEVER, |duration| Moment::now().plus(duration));
    let (stop, stopped) = bounded::<()>(0);
    let (common, args) = (common.clone(), args.clone());
    // A poll may take as long as the store needs, and a signal must not wait for it.
    let ended = say.on_thread("polls", move || poll(&common, &args, &stopped))?;
    let exit = wait(&caught, &ended, end);
    drop(stop);
    exit
}

fn wait(caught: &Caught, ended: &Receiver<Ended>, end: Moment) -> Ended {
    // The time-out of `select!` may stop while the machine sleeps, so look at the clock once a second.
    const CHECK_EVERY: Duration = Duration::from_secs(1);
    loop {
        let left = end.since(Moment::now());
        if left.is_zero() {
            return Ok(Exit::Success);
        }
        leasehold::crossbeam_channel::select! {
            recv(caught.signals) -> signal => return Ok(signal.map_or(Exit::Internal, Exit::Signal)),
            recv(ended) -> ended => return ended.unwrap_or(Err(Exit::Internal)),
            default(left.min(CHECK_EVERY)) => {}
        }
    }
}

fn poll(common: &Common, args: &WatchArgs, stopped: &Receiver<()>) -> Ended {
    let say = Say::new(common);
    let client = store::open(common, None, say, |builder| store::patient(builder, args.interval));
    let client = client.map_err(|error| store::unconnected(common, &error, say))?;
    let mut watch = Watch { common, away: false };
    let mut locks: Vec<Watched> =
        args.names.iter().map(|name| Watched { name: name.clone(), last: None }).collect();
    loop {
        let begun = Moment::now();
        for lock in &mut locks {
            match watch.poll(&client, lock) {
                Ok(()) => {}
                Err(End::NobodyReads) => return Ok(Exit::Success),
                Err(End::Refused(error)) => return Err(explain(&error, say)),
            }
        }
        if system::is_unread() {
            return Ok(Exit::Success);
        }
        let rest = args.interval.saturating_sub(Moment::now().since(begun));
        if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
            return Ok(Exit::Success);
        }
    }
}

enum End {
    NobodyReads,
    Refused(leasehold::Error),
}

struct Watch<'a> {
    common: &'a Common,
    away: bool,
}

struct Watched {
    name: String,
    last: Option<(Inspection, Moment)>,
}

impl Watch<'_> {
    fn poll(&mut self, client: &LockClient, lock: &mut Watched) -> Result<(), End> {
        let begun = Moment::now();
        let seen = match client.inspect(&lock.name) {
            Ok(seen) => seen,
            Err(error) if error.is_retryable() => {
                if !self.away {
                    self.away = true;
                    let words = format!("the store cannot be used: {}", store::text(&error));
                    self.print(&Change::new("away", words, json!({})))?;
                }
                return Ok(());
            }
            Err(error) => return Err(End::Refused(error)),
        };
        if self.away {
            self.away = false;
            self.print(&Change::new("back", "the store can be used again".to_owned(), json!({})))?;
        }
        let changes = match &lock.last {
            None => vec![first(&seen)],
            Some((last, at)) => changes(last, &seen, Moment::now().since(*at)),
        };
        for change in &changes {
            self.print(change)?;
        }
        lock.last = Some((seen, begun));
        Ok(())
    }

    fn print(&self, change: &Change) -> Result<(), End> {
        let time = stamp(wall());
        let text = match self.common.format {
            Format::Text => format!("{time} {}\n", plain(&change.words)),
            Format::Json => {
                let object = line(change.event, &change.words, &change.fields);
                format!("{}\n", json_text(&Value::Object(object)))
            }
        };
        let mut output = std::io::stdout();
        match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
            Err(error) if error.kind() == Io::BrokenPipe => Err(End::NobodyReads),
            // Other errors are ignored: a full disk, for example, may have space again later.
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

struct Change {
    event: &'static str,
    words: String,
    fields: Value,
}

impl Change {
    fn new(event: &'static str, words: String, fields: Value) -> Change {
        Change { event, words, fields }
    }

    fn of_holder(event: &'static str, name: &str, verb: &str, holder: &Holder) -> Change {
        let mode = holder.mode.map(|mode| mode.to_string());
        let fields = json!({"name": name, "owner": holder.owner, "mode": mode});
        let words = format!("{name}: {verb} {}", who(holder));
        Change::new(event, words, placed(holder.location.as_ref(), fields))
    }
}

fn who(holder: &Holder) -> String {
    let mut words = holder.owner.clone();
    if let Some(mode) = holder.mode {
        words += &format!(", {mode}");
    }
    if let Some(place) = &holder.location {
        words += &format!(", {place}");
    }
    words
}

fn first(seen: &Inspection) -> Change {
    let name = &seen.name;
    let mut words = format!("{name}: {}", state(seen));
    for holder in &seen.holders {
        words += &format!(", held by {}", who(holder));
    }
    if seen.waiting > 0 {
        words += &format!(", {} waiting", seen.waiting);
    }
    let owners: Vec<&str> = seen.holders.iter().map(|holder| holder.owner.as_str()).collect();
    let fields = json!({
        "name": name,
        "kind": seen.kind.to_string(),
        "owners": owners,
        "waiting": seen.waiting,
        "count": seen.count,
        "permits_out": seen.permits_out,
        "remaining_seconds": seconds(seen.remaining),
    });
    Change::new("state", words, fields)
}

fn state(seen: &Inspection) -> String {
    match (&seen.kind, seen.count) {
        (ObjectKind::Absent, _) => "free".to_owned(),
        (ObjectKind::Foreign { .. }, _) => seen.kind.to_string(),
        (kind, Some(count)) => format!("{kind}, at {count}"),
        (kind, None) if seen.is_held() => kind.to_string(),
        (kind, None) => format!("{kind}, free"),
    }
}

fn changes(last: &Inspection, seen: &Inspection, passed: Duration) -> Vec<Change> {
    let name = &seen.name;
    let is_in = |holders: &[Holder], one: &Holder| {
        holders.iter().any(|other| other.owner == one.owner && other.mode == one.mode)
    };
    let mut changes = Vec::new();
    for gone in last.holders.iter().filter(|one| !is_in(&seen.holders, one)) {
        let left = gone.remaining.or(last.remaining);
        changes.push(if left.is_some_and(|left| left <= passed) {
            Change::of_holder("expired", name, "the lease has run out of", gone)
        } else {
            Change::of_holder("released", name, "released by", gone)
        });
    }
    for new in seen.holders.iter().filter(|one| !is_in(&last.holders, one)) {
        changes.push(Change::of_holder("acquired", name, "acquired by", new));
    }
    let amounts = [
        ("waiting", "waiting", last.waiting, seen.waiting),
        ("permits", "permits out", last.permits_out, seen.permits_out),
    ];
    for (event, noun, before, now) in amounts.into_iter().filter(|(_, _, before, now)| before != now) {
        let words = format!("{name}: {now} {noun}, after {before}");
        changes.push(Change::new(event, words, json!({"name": name, "now": now, "before": before})));
    }
    if last.count != seen.count {
        let number = |count: Option<i64>| count.map_or("nothing".to_owned(), |count| count.to_string());
        let words = format!("{name}: at {}, after {}", number(seen.count), number(last.count));
        changes.push(Change::new(
            "count",
            words,
            json!({"name": name, "now": seen.count, "before": last.count}),
        ));
    }
    changes
}
