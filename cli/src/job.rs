//! A job of `once`: its last run, and whether it runs now, has run already, or may run.

use std::time::Duration;

use leasehold::{Inspection, LastRun};
use serde_json::{Value, json};

use crate::say::plain;
use crate::show::seconds;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Runs,
    /// The last run has ended, but keeps the lock until `--at-least` is over, so that no other run begins.
    HasRun,
    MayRun,
}

impl State {
    pub(crate) fn of(shown: &Inspection, last: &LastRun) -> State {
        let holder = shown.holders.iter().find(|holder| holder.owner == last.owner).or(shown.holders.first());
        State::under(holder.map(|holder| holder.owner.as_str()).or(shown.is_held().then_some("")), last)
    }

    pub(crate) fn under(owner: Option<&str>, last: &LastRun) -> State {
        match owner {
            Some(owner) if owner == last.owner => State::HasRun,
            Some(_) => State::Runs,
            None => State::MayRun,
        }
    }

    fn word(self) -> &'static str {
        match self {
            State::Runs => "runs",
            State::HasRun => "has_run",
            State::MayRun => "may_run",
        }
    }
}

pub(crate) fn line(shown: &Inspection, last: &LastRun) -> String {
    let state = match State::of(shown, last) {
        State::Runs => "runs now; the run before",
        State::HasRun => "has run",
        State::MayRun => "last run",
    };
    format!("{state}: {}", as_text(last))
}

pub(crate) fn as_text(last: &LastRun) -> String {
    let mut words =
        format!("exit code {} after {}, {} ago", last.exit_code, span(last.took), span(last.ended_ago));
    if !last.host.is_empty() {
        words += &format!(" on {}", last.host);
    }
    match last.succeeded_ago {
        _ if last.exit_code == 0 => {}
        Some(ago) => words += &format!("; last success {} ago", span(ago)),
        None => words += "; no success in 40 days",
    }
    plain(&words)
}

pub(crate) fn as_json(state: State, last: &LastRun) -> Value {
    json!({
        "state": state.word(),
        "exit_code": last.exit_code,
        "took_seconds": last.took.as_secs_f64(),
        "ended_seconds_ago": last.ended_ago.as_secs_f64(),
        "succeeded_seconds_ago": seconds(last.succeeded_ago),
        "host": last.host,
        "owner": last.owner,
    })
}

pub(crate) fn span(span: Duration) -> String {
    leasehold::program::SPAN(span)
}
