//! The feature `tracing`: spans of waits and holds, and events about risks and losses.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, OnceLock};

use leasehold::Fault;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::deadlocked;
use crate::support::prelude::*;

/// A recorded span or event.
#[derive(Debug, Clone, Default)]
struct Told {
    name: String,
    level: String,
    fields: HashMap<String, String>,
    /// The name of the span in which an event came.
    within: Option<String>,
    is_closed: bool,
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        self.fields.insert(field.name().to_owned(), text.trim_matches('"').to_owned());
    }
}

/// The library's spans and events in this process. [`Keeps`], the subscriber of all threads, records them.
#[derive(Default)]
struct Kept {
    spans: Mutex<Vec<(Told, u64)>>,
    lines: Mutex<Vec<Told>>,
}

static KEPT: OnceLock<Kept> = OnceLock::new();

thread_local! {
    static ENTERED: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) };
}

struct Keeps(AtomicU64);

fn kept() -> &'static Kept {
    let is_first = KEPT.get().is_none();
    let kept = KEPT.get_or_init(Kept::default);
    if is_first {
        // fails if another test has just set its subscriber, which records into the same `KEPT`
        drop(tracing::subscriber::set_global_default(Keeps(AtomicU64::new(0))));
    }
    kept
}

fn index(id: &Id) -> usize {
    usize::try_from(id.into_u64() - 1).unwrap()
}

fn told(metadata: &Metadata<'_>) -> Told {
    Told { name: metadata.name().to_owned(), level: metadata.level().to_string(), ..Told::default() }
}

impl Subscriber for Keeps {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut span = told(attributes.metadata());
        attributes.record(&mut span);
        let mut spans = KEPT.get().unwrap().spans.lock().unwrap();
        spans.push((span, 1));
        self.0.fetch_add(1, Ordering::Relaxed);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut KEPT.get().unwrap().spans.lock().unwrap()[index(id)].0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = told(event.metadata());
        event.record(&mut line);
        let within = ENTERED.with_borrow(|entered| entered.last().copied());
        let spans = KEPT.get().unwrap().spans.lock().unwrap();
        line.within = within.map(|id| spans[usize::try_from(id - 1).unwrap()].0.name.clone());
        drop(spans);
        KEPT.get().unwrap().lines.lock().unwrap().push(line);
    }

    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(Vec::pop);
    }

    fn clone_span(&self, id: &Id) -> Id {
        KEPT.get().unwrap().spans.lock().unwrap()[index(id)].1 += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut spans = KEPT.get().unwrap().spans.lock().unwrap();
        let (span, handles) = &mut spans[index(&id)];
        *handles -= 1;
        span.is_closed = *handles == 0;
        span.is_closed
    }
}

impl Kept {
    /// A lock's spans in order of creation, each as name, level, these fields, and `open` until it ends.
    fn spans(&self, lock: &str, fields: &[&str]) -> Vec<String> {
        let spans = self.spans.lock().unwrap();
        let of_it =
            spans.iter().filter(|(span, _)| span.fields.get("lock.name").is_some_and(|name| name == lock));
        of_it
            .map(|(span, _)| {
                let mut text = format!("{} {}", span.name, span.level);
                for field in fields {
                    if let Some(value) = span.fields.get(*field) {
                        write!(text, " {value}").unwrap();
                    }
                }
                if span.is_closed { text } else { text + " open" }
            })
            .collect()
    }

    fn line(&self, lock: &str, name: &str) -> Option<Told> {
        let lines = self.lines.lock().unwrap();
        let is_it =
            |line: &&Told| line.name == name && line.fields.get("lock.name").is_some_and(|name| name == lock);
        lines.iter().find(is_it).cloned()
    }
}

const ALL: [&str; 4] = ["lock.kind", "lock.outcome", "lock.attempts", "lock.end"];

fn client(store: &MemoryStore) -> LockClient {
    ClientBuilder::default().retry_timeout(Duration::ZERO).build_in_memory(store).unwrap()
}

#[test]
fn waits_and_holds_have_spans() {
    let (kept, store, name) = (kept(), MemoryStore::new(), fresh("span"));
    let (holder, other) = (client(&store), client(&store));
    let guard = holder.get_fenced_lock(&name).acquire().unwrap();
    let acquired = "lock.acquire DEBUG fenced granted 1";
    assert_eq!(kept.spans(&name, &ALL), [acquired, "lock.hold DEBUG fenced open"]);
    let (owner, fence) = (guard.owner().to_string(), guard.fencing_token().unwrap().get().to_string());
    for (span, _) in &*kept.spans.lock().unwrap() {
        if span.fields.get("lock.name") == Some(&name) {
            assert_eq!(
                (&span.fields["lock.owner"], &span.fields["lock.fence"]),
                (&owner, &fence),
                "{span:?}"
            );
        }
    }
    assert!(!other.get_fenced_lock(&name).try_lock().unwrap());
    guard.unlock().unwrap();
    let ended = "lock.hold DEBUG fenced released";
    assert_eq!(kept.spans(&name, &ALL), [acquired, ended, "lock.acquire DEBUG fenced busy 1"]);
    drop(holder.get_fenced_lock(&name).acquire().unwrap());
    assert!(eventually(LONG, || kept.spans(&name, &ALL).iter().filter(|span| *span == ended).count() == 2));
}

#[test]
fn risk_and_loss_events_come_inside_the_hold_span() {
    let (kept, clock, name) = (kept(), ManualClock::new(), fresh("at risk"));
    let store = MemoryStore::with_clock(clock.clone());
    let guard = client(&store).get_lock(&name).acquire().unwrap();
    store.fail(Fault::Refused);
    clock.advance(ms(15_000));
    assert!(eventually(LONG, || kept.line(&name, "lock.at_risk").is_some()));
    let risk = kept.line(&name, "lock.at_risk").unwrap();
    assert_eq!((risk.level.as_str(), risk.within.as_deref()), ("WARN", Some("lock.hold")));
    clock.advance(ms(20_000));
    assert!(eventually(LONG, || kept.line(&name, "lock.lost").is_some()));
    let loss = kept.line(&name, "lock.lost").unwrap();
    assert_eq!((loss.level.as_str(), loss.within.as_deref()), ("ERROR", Some("lock.hold")));
    assert_eq!(
        (loss.fields["lock.owner"].clone(), &*loss.fields["reason"]),
        (guard.owner().to_string(), "Expired")
    );
    assert!(eventually(LONG, || kept.spans(&name, &ALL).contains(&"lock.hold DEBUG lock lost".to_owned())));
}

#[test]
fn a_failed_acquire_is_traced_and_an_unknown_outcome_logged() {
    let (kept, store, name) = (kept(), MemoryStore::new(), fresh("fails"));
    let client = client(&store);
    store.fail(Fault::AnswerLost);
    let error = client.get_lock(&name).try_lock().unwrap_err();
    let failed = format!("lock.acquire DEBUG error {:?}", error.kind());
    assert_eq!(kept.spans(&name, &["lock.outcome", "error.type"]), [failed]);
    let unknown = kept.lines.lock().unwrap().iter().any(|line| {
        line.level == "WARN"
            && line.fields.get("lock.name") == Some(&name)
            && line.fields["message"].contains("not known whether")
    });
    assert!(unknown);
    store.heal();
}

#[test]
fn a_deadlock_logs_a_warning_that_names_the_locks() {
    let (kept, a, b) = (kept(), fresh("a"), fresh("b"));
    let builder = ClientBuilder::default().detect_deadlocks_after(ms(50));
    let client = builder.build_in_memory(&MemoryStore::new()).unwrap();
    let line = || {
        let lines = kept.lines.lock().unwrap();
        let says =
            |line: &Told, name: &str| line.fields.get("message").is_some_and(|text| text.contains(name));
        lines.iter().find(|line| line.name == "lock.deadlock" && says(line, &a) && says(line, &b)).cloned()
    };
    assert!(deadlocked(&client, [&a, &b], || line().is_some()), "{:#?}", kept.lines.lock().unwrap());
    let line = line().unwrap();
    assert_eq!((&*line.level, &*line.fields["threads"]), ("WARN", "2"), "{line:?}");
}
