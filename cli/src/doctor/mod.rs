//! `doctor`: checks a set-up from end to end, by the library and, on Redis, over connections of its own.

mod other;
mod redis;
mod report;
mod rights;
mod wire;

use std::time::Duration;

use leasehold::program::Settings;
use leasehold::{ClientBuilder, Error, ErrorKind, LockClient};

use crate::args::{Common, DoctorArgs};
use crate::clock::Moment;
use crate::cycles;
use crate::doctor::redis::Asked;
use crate::doctor::report::{Finding, Report};
use crate::doctor::wire::Access;
use crate::list::has_no_end;
use crate::run::times;
use crate::say::{Ended, Exit, Say};
use crate::secret;
use crate::store::{self, explain, meaning};

const TRIPS: usize = 50;
const LONGEST_MEASURE: Duration = Duration::from_secs(5);

pub(crate) fn doctor(common: &Common, args: &DoctorArgs) -> Ended {
    let say = Say::new(common);
    let given = store::settings(common);
    let lease = args.lease.unwrap_or(given.lease);
    let begun = Moment::now();
    // `doctor` must leave nothing in the store, so its client writes no entry in the directory of clients.
    let built = store::open(common, None, say, |builder| {
        args.lease.into_iter().fold(builder.directory(false), ClientBuilder::lease)
    });
    let took = Moment::now().since(begun);
    let mut report = Report::new(common, say);
    for warning in secret::warnings(common) {
        report.add(Finding::warning("secrets", warning, ""));
    }
    if let Err(error) = &built {
        let (exit, advice) = meaning(error.kind());
        match (error.kind(), exit) {
            (ErrorKind::InvalidInput, _) => return Err(explain(error, say)),
            // An old server, a replica and a server behind a proxy do answer, so the next checks are made.
            (ErrorKind::TooOld | ErrorKind::ReadOnly | ErrorKind::Unsupported, _) => {}
            (ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Tls, _) | (_, Exit::NoPermission) => {
                let words = store::mismatch(&given.url).unwrap_or_else(|| store::text(error));
                report.add(Finding::fault("reach", words, advice));
                report.close();
                return Err(exit);
            }
            _ => {}
        }
    }
    let has_no_rights = match places(common, &given) {
        Some(places) => on_redis(&mut report, places, &given, args, lease, &built),
        None => other::check(&mut report, &given, &built, took, lease),
    };
    if let Ok(client) = built {
        report.add(deadlocks(&client));
        store::finish(client);
    }
    report.close();
    Ok(match report.faults > 0 || args.strict && report.warnings > 0 {
        _ if has_no_rights => Exit::NoPermission,
        true => Exit::Found,
        false => Exit::Success,
    })
}

fn places(common: &Common, given: &Settings) -> Option<Result<Vec<wire::Place>, wire::Refusal>> {
    let (access, limit) = (Access::of(given.clone()), given.command_timeout);
    if common.url.is_some() || given.urls.is_empty() {
        return wire::places(&given.url, &access, limit);
    }
    let found = given.urls.iter().map(|url| wire::places(url, &access, limit));
    let found = found.collect::<Option<Result<Vec<_>, _>>>()?.map(|lists| lists.into_iter().flatten());
    Some(found.map(|places| places.map(wire::Place::labelled).collect()))
}

fn on_redis(
    report: &mut Report,
    places: Result<Vec<wire::Place>, wire::Refusal>,
    given: &Settings,
    args: &DoctorArgs,
    lease: Duration,
    built: &leasehold::Result<LockClient>,
) -> bool {
    let prefix = &given.key_prefix;
    let own = format!("{}:doctor-{}-{}", args.name, std::process::id(), Moment::now().nanos());
    let asked = Asked {
        name: &format!("{prefix}{}", args.name),
        own_name: format!("{prefix}{own}"),
        lease,
        limit: given.command_timeout,
        is_cluster: given
            .url
            .split_once("://")
            .is_some_and(|(scheme, _)| scheme.to_ascii_lowercase().ends_with("-cluster")),
    };
    let mut has_no_rights = false;
    match places {
        Ok(places) => {
            for place in places {
                report.server.clone_from(&place.label);
                has_no_rights |= redis::check(report, &place, &asked);
            }
        }
        Err(refusal) => {
            let words = format!("doctor itself could not find the servers that keep the locks: {refusal}");
            report.add(Finding::not_checked("servers", words));
        }
    }
    report.server = None;
    report.add(leftovers(built, args.all));
    report.add(trial(built, &own));
    has_no_rights
}

/// Finds held locks without an expiry. Redisson, for example, can acquire such locks.
fn leftovers(built: &leasehold::Result<LockClient>, all: bool) -> Finding {
    const CHECK: &str = "leftovers";
    const ADVICE: &str = "`leasehold show NAME` shows the owner, `leasehold force NAME --yes` ends the lock; Redisson makes such locks with lease -1 and no watchdog";
    const PATIENCE: Duration = Duration::from_secs(10);
    const NAMED: (usize, usize) = (5, 100);
    let Ok(client) = built else { return Finding::not_checked(CHECK, "there is no client") };
    let (end, mut is_cut) = (Moment::now().plus(PATIENCE), false);
    let (mut names, mut count) = (Vec::new(), 0_u64);
    let mut locks = client.list("*");
    while !is_cut && let Some(page) = locks.next_page() {
        match page {
            Ok(page) => {
                // A semaphore normally has no expiry. It has no holders, so the filter skips it.
                for lock in page.into_iter().filter(|lock| has_no_end(lock) && !lock.holders.is_empty()) {
                    count += 1;
                    names.extend(Some(lock.name).filter(|_| names.len() < NAMED.1));
                }
            }
            Err(error) if error.is_retryable() => return refused(CHECK, &error),
            Err(error) => return Finding::not_checked(CHECK, store::text(&error)),
        }
        is_cut = !all && Moment::now() >= end;
    }
    let (keys, requests) = (locks.cost().keys, locks.cost().requests);
    let cost = format!("among {keys} keys, by {requests} requests");
    let found = if count > 0 {
        let shown = names.iter().take(NAMED.0).cloned().collect::<Vec<_>>().join(", ");
        let more = if names.len() > NAMED.0 { ", …" } else { "" };
        let noun = if count == 1 { "lock" } else { "locks" };
        Finding::warning(CHECK, format!("{count} {noun} without an end: {shown}{more} ({cost})"), ADVICE)
    } else if is_cut {
        Finding::not_checked(CHECK, format!("none {cost} in {PATIENCE:?}; --all checks all keys"))
    } else {
        Finding::fine(CHECK, format!("no lock without an end {cost}"))
    };
    found.with("names", names).with("keys", keys).with("requests", requests).with("count", count)
}

fn deadlocks(client: &LockClient) -> Finding {
    const ADVICE: &str = "end one of these programs; docs/troubleshooting.md says how to prevent the next";
    const NONE: &str = "no threads wait for each other, as far as clients say; not seen are Redisson's threads, permits, latches and \
                        conditions, threads with two clients, and clients without a directory";
    match client.deadlocks() {
        Ok(found) if found.is_empty() => Finding::fine("deadlocks", NONE),
        Ok(found) => {
            let words: Vec<String> = found.iter().map(cycles::words).collect();
            let found = cycles::all_as_json(&found);
            Finding::fault("deadlocks", words.join("; and a "), ADVICE).with("deadlocks", found)
        }
        Err(error) => Finding::not_checked("deadlocks", store::text(&error)),
    }
}

fn trial(built: &leasehold::Result<LockClient>, name: &str) -> Finding {
    let client = match built {
        Ok(client) => client,
        Err(error) => return refused("lock", error),
    };
    let begun = Moment::now();
    let done = client.get_lock(name).try_acquire_owned().and_then(|guard| match guard {
        Some(guard) => guard.unlock().map(|()| true),
        None => Ok(false),
    });
    let took = Moment::now().since(begun);
    match done {
        Ok(true) => {
            let words = format!("a lock of its own was acquired and released within {}", spell(took));
            Finding::fine("lock", words).with("seconds", took.as_secs_f64())
        }
        Ok(false) => Finding::not_checked("lock", "another process holds the lock of this check"),
        Err(error) => refused("lock", &error),
    }
}

fn refused(check: &'static str, error: &Error) -> Finding {
    Finding::fault(check, store::text(error), meaning(error.kind()).1)
}

struct Latency {
    count: usize,
    p50: Duration,
    p99: Duration,
    longest: Duration,
}

impl Latency {
    fn measure<E>(mut ask: impl FnMut() -> Result<(), E>) -> Result<Latency, E> {
        let end = Moment::now().plus(LONGEST_MEASURE);
        let mut all = Vec::with_capacity(TRIPS);
        while all.len() < TRIPS && (all.is_empty() || Moment::now() < end) {
            let begun = Moment::now();
            ask()?;
            all.push(Moment::now().since(begun));
        }
        all.sort();
        let at = |percent: usize| {
            all.get((all.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
        };
        Ok(Latency { count: all.len(), p50: at(50), p99: at(99), longest: at(100) })
    }
}

fn reached(took: Duration) -> Finding {
    Finding::fine("reach", format!("connected within {}", spell(took))).with("seconds", took.as_secs_f64())
}

fn add_latency(
    report: &mut Report,
    measured: Result<Latency, Finding>,
    lease: Duration,
    command_timeout: Duration,
) {
    let latency = match measured {
        Ok(latency) => latency,
        Err(finding) => {
            report.add(finding);
            return report.add(Finding::not_checked("lease", "the latency is not known"));
        }
    };
    let Latency { count, p50, p99, longest } = &latency;
    let [p50_words, p99_words, longest_words] = [p50, p99, longest].map(|span| spell(*span));
    let words = format!("p50 {p50_words}, p99 {p99_words}, longest {longest_words}, of {count} round trips");
    report.add(
        Finding::fine("latency", words)
            .with("round_trips", *count)
            .with("p50_seconds", p50.as_secs_f64())
            .with("p99_seconds", p99.as_secs_f64())
            .with("longest_seconds", longest.as_secs_f64()),
    );
    report.add(lease_finding(lease, command_timeout, &latency));
}

/// Judges whether a renewal, due after each third of the lease, has time to fail once and be repeated.
fn lease_finding(lease: Duration, command_timeout: Duration, latency: &Latency) -> Finding {
    const CHECK: &str = "lease";
    const ADVICE: &str = "The rule: a lease of at least 30 times the p99 of a round trip, and 3 times the command time-out (LEASEHOLD_LEASE, LEASEHOLD_COMMAND_TIMEOUT)";
    let (p99, outlasts) = (latency.p99, times::outlasts(lease, None));
    let (asked, trip) = (spell(lease), spell(p99));
    let found = if lease < p99.saturating_mul(3) {
        let words = format!("a lease of {asked} is over before renewals come back: a p99 of {trip}");
        Finding::fault(CHECK, words, ADVICE)
    } else if lease < p99.saturating_mul(30) {
        let words = format!("a lease of {asked} is short for a p99 of {trip}: a few late answers end a hold");
        Finding::warning(CHECK, words, ADVICE)
    } else if lease < command_timeout.saturating_mul(3) {
        let limit = spell(command_timeout);
        let words =
            format!("a lease of {asked} ends if one renewal hangs for the command time-out of {limit}");
        Finding::warning(CHECK, words, ADVICE)
    } else {
        let away = spell(outlasts);
        let words = format!(
            "{asked}, far more than a round trip: a command goes on while the store is away for up to {away}"
        );
        Finding::fine(CHECK, words)
    };
    found.with("lease_seconds", lease.as_secs_f64()).with("outlasts_seconds", outlasts.as_secs_f64())
}

fn spell(span: Duration) -> String {
    let millis = span.as_secs_f64() * 1000.0;
    match millis {
        _ if millis < 10.0 => format!("{millis:.2} ms"),
        _ if millis < 1000.0 => format!("{millis:.0} ms"),
        _ => format!("{:.1} s", span.as_secs_f64()),
    }
}
