//! Deadlocks, as all subcommands show them.

use leasehold::{Deadlock, DeadlockStep, LockClient};
use serde_json::{Value, json};

use crate::job::span;
use crate::say::plain;
use crate::show::placed;

/// The deadlocks among the clients of the store; empty also if the search for them fails.
pub(crate) fn seen(client: &LockClient) -> Vec<Deadlock> {
    client.deadlocks().unwrap_or_default()
}

pub(crate) fn has(cycle: &Deadlock, name: &str) -> bool {
    cycle.steps.iter().any(|step| step.holds == name || step.waits_for == name)
}

fn who(step: &DeadlockStep) -> String {
    let place = &step.location;
    if place.host.is_empty() {
        return step.owner.clone();
    }
    let mut words = format!("{}:{}", place.host, place.pid);
    if !place.program.is_empty() {
        words += &format!(" ({})", place.program);
    }
    if !place.thread.is_empty() {
        words += &format!(" thread {}", place.thread);
    }
    words
}

pub(crate) fn lines(cycle: &Deadlock) -> Vec<String> {
    let first = if cycle.is_certain { "deadlock" } else { "maybe a deadlock" };
    let count = cycle.steps.len();
    let mut lines = vec![format!("{first} of {count} thread{}", if count == 1 { "" } else { "s" })];
    lines.extend(cycle.steps.iter().map(|step| {
        let (who, holds, waited) = (who(step), &step.holds, span(step.waiting_for));
        plain(&format!("  {who} holds {holds} and has waited {waited} for {}", step.waits_for))
    }));
    lines
}

pub(crate) fn words(cycle: &Deadlock) -> String {
    let lines = lines(cycle);
    let (first, steps) = lines.split_first().map_or(("", &[][..]), |(first, steps)| (first.as_str(), steps));
    let steps: Vec<&str> = steps.iter().map(|line| line.trim_start()).collect();
    format!("{first}: {}", steps.join("; "))
}

pub(crate) fn as_json(cycle: &Deadlock) -> Value {
    let steps = cycle.steps.iter().map(|step| {
        placed(
            (!step.location.host.is_empty()).then_some(&step.location),
            json!({
                "owner": step.owner,
                "holds": step.holds,
                "waits_for": step.waits_for,
                "kind": step.kind,
                "waiting_for_seconds": step.waiting_for.as_secs_f64(),
                "is_youngest": step.is_youngest,
            }),
        )
    });
    json!({ "is_certain": cycle.is_certain, "steps": steps.collect::<Vec<_>>() })
}

pub(crate) fn all_as_json(cycles: &[Deadlock]) -> Value {
    cycles.iter().map(as_json).collect()
}
