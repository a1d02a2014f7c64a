//! A run's messages: who holds the lock while the run waits, and how long its wait and its hold took.

use std::io::IsTerminal;
use std::time::Duration;

use leasehold::crossbeam_channel::{RecvTimeoutError, Sender, TryRecvError, bounded};
use leasehold::{Inspection, LockClient, OwnedGuard};
use serde_json::{Value, json};

use crate::args::Want;
use crate::clock::Moment;
use crate::job::span;
use crate::say::{Exit, Say};
use crate::show::{self, holder_as_json, who};

const FIRST: Duration = Duration::from_secs(1);
/// The pause before the holder is read again. Only a changed holder is printed.
const AGAIN: Duration = Duration::from_secs(10);

pub(super) struct Waiting {
    _stop: Sender<()>,
}

impl Waiting {
    pub(super) fn begin(client: &LockClient, name: &str, want: &Want, say: Say) -> Option<Waiting> {
        let is_read = say.is_verbose() || !say.is_quiet() && std::io::stderr().is_terminal();
        if want.patience.no_wait || !is_read {
            return None;
        }
        let (stop, stopped) = bounded::<()>(0);
        let (client, name) = (client.clone(), name.to_owned());
        let tell = move || {
            let (mut said, mut pause) = (None, FIRST);
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = AGAIN;
                let Ok(shown) = client.inspect(&name) else { continue };
                let owners: Vec<String> = shown.holders.iter().map(|one| one.owner.clone()).collect();
                if said.as_ref() == Some(&owners) || stopped.try_recv() != Err(TryRecvError::Empty) {
                    continue;
                }
                let words = format!("waiting for {name}: {}", state(&shown));
                say.notice("waiting", &words, &fields(&shown));
                said = Some(owners);
            }
        };
        std::thread::Builder::new().name("waiting".to_owned()).spawn(tell).ok()?;
        Some(Waiting { _stop: stop })
    }
}

fn state(shown: &Inspection) -> String {
    let more = match shown.holders.len() {
        0 | 1 => String::new(),
        all => format!(" and {} more", all - 1),
    };
    match shown.holders.first() {
        Some(first) => format!("held by {}{more}", who(first)),
        None if show::is_foreign(shown) => format!("it is {}, and is free once that is deleted", shown.kind),
        None if shown.permits_out > 0 => format!("{} permits are out", shown.permits_out),
        None => "held by nobody just now".to_owned(),
    }
}

fn fields(shown: &Inspection) -> Value {
    json!({
        "name": shown.name,
        "kind": shown.kind.to_string(),
        "holder": shown.holders.first().map(holder_as_json),
        "holders": shown.holders.len(),
    })
}

pub(super) fn acquired(name: &str, guard: &OwnedGuard, waited: Duration, say: Say) {
    let fields = json!({
        "name": name,
        "owner": guard.owner().to_string(),
        "fence": guard.fencing_token().map(|fence| fence.get()),
        "waited_seconds": waited.as_secs_f64(),
    });
    say.detail("acquired", &format!("acquired {name} after {}", span(waited)), &fields);
}

pub(super) fn ended(name: &str, waited: Duration, granted: Moment, exit: Exit, say: Say) {
    let held = Moment::now().since(granted);
    let fields = json!({
        "name": name,
        "waited_seconds": waited.as_secs_f64(),
        "held_seconds": held.as_secs_f64(),
        "exit_code": exit.code(),
    });
    say.detail("ended", &format!("{name}: waited {}, held {}", span(waited), span(held)), &fields);
}

pub(super) fn busy(client: &LockClient, name: &str, how: &str, code: u8, say: Say) -> Exit {
    if !say.is_quiet() {
        let shown = client.inspect(name).ok();
        let words = match &shown {
            Some(shown) if shown.is_held() || show::is_foreign(shown) || shown.permits_out > 0 => {
                format!("{name} {how}: {}", state(shown))
            }
            _ => format!("{name} {how}"),
        };
        let mut fields = shown.map_or_else(|| json!({"name": name}), |shown| fields(&shown));
        if let Some(object) = fields.as_object_mut() {
            object.insert("exit_code".to_owned(), json!(code));
        }
        say.notice("busy", &words, &fields);
    }
    Exit::Busy(code)
}
