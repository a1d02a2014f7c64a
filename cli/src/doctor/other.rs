//! The checks of databases, etcd and ZooKeeper, through the library's client.

use std::time::Duration;

use leasehold::program::Settings;
use leasehold::{ErrorKind, Health, LockClient};

use crate::clock::{Moment, wall};
use crate::doctor::redis::{clock_finding, none_of};
use crate::doctor::report::{Finding, Report};
use crate::doctor::{Latency, add_latency, reached, refused, spell};

/// The name of the test lock, one for all runs: a database keeps the row of a free lock, so each new name
/// would leave a row.
const NAME: &str = "leasehold-doctor";

pub(super) fn check(
    report: &mut Report,
    given: &Settings,
    built: &leasehold::Result<LockClient>,
    took: Duration,
    lease: Duration,
) -> bool {
    let client = match built {
        Ok(client) => client,
        Err(error) => {
            let check = match error.kind() {
                ErrorKind::TooOld => "version",
                ErrorKind::ReadOnly => "role",
                _ => "reach",
            };
            report.add(refused(check, error));
            return false;
        }
    };
    report.add(reached(took));
    let health = client.ping().ok(); // if this fails, later checks say why
    let store = health.as_ref().map_or("", |health| health.store);
    let is_database = !matches!(store, "etcd" | "zookeeper");
    let words = if is_database { "a supported version, and the table exists" } else { "a supported version" };
    report.add(Finding::fine("version", words));
    health.into_iter().for_each(|health| table(report, health));
    if is_database {
        old_versions(report, client);
    }
    let has_no_rights = trial(report, client, store);
    not_here(report, store);
    let latency = Latency::measure(|| client.inspect(NAME).map(drop));
    add_latency(report, latency.map_err(|error| refused("latency", &error)), lease, given.command_timeout);
    has_no_rights
}

/// Warns of tables with the same name in other schemas: programs with different tables share no locks.
fn table(report: &mut Report, health: Health) {
    const ADVICE: &str = "Name the table that is meant with its schema in every program (table(\"schema.name\") in the library), or set one search_path for all roles; drop the others when nobody uses them";
    let Some(name) = health.table else { return };
    let others = health.other_tables;
    let found = if others.is_empty() {
        Finding::fine("table", name.clone())
    } else {
        let words = format!("{name}; other schemas have tables of this name: {}", others.join(", "));
        Finding::warning("table", words, ADVICE)
    };
    report.add(found.with("table", name).with("other_tables", others));
}

fn old_versions(report: &mut Report, client: &LockClient) {
    const ADVICE: &str = "End that transaction or drop the slot, and bound transactions (idle_in_transaction_session_timeout in PostgreSQL): as long as it is there, each use of a lock makes later ones slower";
    const AGE: Duration = Duration::from_secs(60);
    report.add(match client.vacuum_blockers(AGE) {
        Ok(found) if found.is_empty() => {
            Finding::fine("old versions", "nothing that this user may see keeps old versions of rows")
        }
        Ok(found) => Finding::warning("old versions", found.join("; "), ADVICE),
        Err(error) => refused("old versions", &error),
    });
}

fn trial(report: &mut Report, client: &LockClient, store: &str) -> bool {
    let (begun, before) = (Moment::now(), wall());
    let guard = match client.get_fenced_lock(NAME).try_acquire_owned() {
        Ok(guard) => guard,
        Err(error) => {
            let is_refused = error.kind() == ErrorKind::NoPermission;
            report.add(match error.kind() {
                ErrorKind::ReadOnly => refused("role", &error),
                ErrorKind::NoPermission => refused("rights", &error),
                _ => refused("lock", &error),
            });
            report.add(Finding::not_checked("clock", "no lock could be acquired"));
            return is_refused;
        }
    };
    let granted = Moment::now().since(begun);
    report.add(Finding::fine("role", "it takes writes"));
    let Some(guard) = guard else {
        report.add(Finding::not_checked("lock", format!("another process holds the lock {NAME}")));
        report.add(Finding::not_checked("clock", "no lock could be acquired"));
        return false;
    };
    let fence = guard.fencing_token();
    match guard.unlock() {
        Ok(()) => {
            let took = Moment::now().since(begun);
            report.add(Finding::fine("rights", "a lock can be acquired and released"));
            let words = format!("the lock {NAME} was acquired and released within {}", spell(took));
            report.add(Finding::fine("lock", words).with("seconds", took.as_secs_f64()));
        }
        Err(error) => report.add(refused("lock", &error)),
    }
    report.add(match (store, fence) {
        ("postgres" | "mysql", Some(fence)) => {
            // The token is the server's clock in microseconds since 1970, unless the last token was larger.
            let server = Duration::from_micros(fence.get()).as_secs_f64();
            clock_finding(server - before.as_secs_f64() - granted.as_secs_f64() / 2.0, granted / 2)
        }
        ("sqlite", _) => Finding::not_checked("clock", "the store uses this machine's clock"),
        _ => Finding::not_checked("clock", "the servers measure leases, and report no time"),
    });
    false
}

fn not_here(report: &mut Report, store: &str) {
    const MAJORITY: (&str, &str) = ("a majority has each grant on its disk", "a failover forgets nothing");
    let ((persistence, replicas), leftovers) = match store {
        "sqlite" => (
            ("a power cut loses locks only of processes that it ends too", "there are none"),
            "rows end by themselves",
        ),
        "etcd" => (MAJORITY, "keys end with their leases"),
        "zookeeper" => (MAJORITY, "nodes end with their sessions"),
        _ => (
            (
                "as the database is set; docs/stores.md",
                "a failover forgets what the standby has not; replicate synchronously",
            ),
            "rows end by themselves",
        ),
    };
    report.add(Finding::not_checked("persistence", persistence));
    report.add(Finding::not_checked("replicas", replicas));
    none_of(report, &["eviction", "scripts", "pub/sub"], "this store has none");
    report.add(Finding::not_checked("leftovers", leftovers));
}
