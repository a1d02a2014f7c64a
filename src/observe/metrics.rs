//! A client's events and numbers, for the crate `metrics`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::{
    Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::config::debug_fields;
use crate::observe::Observer;
use crate::observe::event::Event;
use crate::observe::stats::Stats;
use crate::sync::Mutex;

macro_rules! described {
    ($($metric:ident $describe:ident($name:literal $(, $unit:path)?) $help:literal;)*) => {
        $(const $metric: &str = $name;)*

        fn describe() {
            $($describe!($metric, $($unit,)? $help);)*
        }
    };
}

described! {
    ACQUIRE_WAIT describe_histogram("leasehold_acquire_wait_seconds", Unit::Seconds)
        "How long calls took that asked for a lock.";
    HOLD describe_histogram("leasehold_hold_seconds", Unit::Seconds) "How long locks were held.";
    RENEWAL_LAG describe_histogram("leasehold_renewal_lag_seconds", Unit::Seconds)
        "How much later than due renewals were sent.";
    REQUEST describe_histogram("leasehold_request_seconds", Unit::Seconds) "How long the store took to answer.";
    HANDOFF describe_histogram("leasehold_handoff_seconds", Unit::Seconds)
        "From a release to the grant that it made possible.";
    LOST describe_counter("leasehold_lost_total") "Holds that were lost.";
    ABANDONED describe_counter("leasehold_abandoned_total") "Threads that ended without a release.";
    RENEWALS describe_counter("leasehold_renewals_total") "Renewals of holds.";
    WAKEUPS describe_counter("leasehold_wakeups_total") "What woke calls that slept for a lock.";
    UNKNOWN_OUTCOMES describe_counter("leasehold_unknown_outcomes_total")
        "Acquires of which it was not known at first whether they were carried out.";
    RELEASE_FAILURES describe_counter("leasehold_release_failures_total") "Releases that failed.";
    DEADLOCKS describe_counter("leasehold_deadlocks_total") "Deadlocks: cycles of threads that wait for each other.";
    HOLDS describe_gauge("leasehold_holds") "Holds now.";
    WAITERS describe_gauge("leasehold_waiters") "Calls that sleep for a lock.";
    WINDOW describe_gauge("leasehold_window_remaining_min_seconds", Unit::Seconds)
        "How long the hold that ends first is certain still.";
    OVERDUE describe_gauge("leasehold_renewal_overdue_max_seconds", Unit::Seconds)
        "The longest that a renewal was overdue, since four samples ago.";
    SUBSCRIPTION describe_gauge("leasehold_subscription_up") "Whether releases elsewhere wake waiters here.";
}

const MOST_GROUPS: usize = 64;

/// Sends what happens to a client's locks to the recorder installed for the crate
/// [`metrics`](https://docs.rs/metrics); needs the feature `metrics`. Give a clone to
/// [`ClientBuilder::observer`](crate::ClientBuilder::observer), and call [`sample`](Self::sample) before
/// each scrape. One value serves one client. Times are in seconds; no label is a lock's name.
///
/// Give the exporter [`BUCKETS`](Self::BUCKETS): without buckets Prometheus's exporter makes summaries, and
/// dashboards that ask for `…_bucket` stay empty.
///
/// | metric | what |
/// |---|---|
/// | `leasehold_acquire_wait_seconds{kind,outcome}` | histogram: how long calls took that asked for a lock; `granted`, `busy`, `timeout`, `interrupted`, `error` |
/// | `leasehold_hold_seconds{kind,end}` | histogram: how long locks were held; `released`, `lost`, `max_hold`, `abandoned` (by a thread that ended), `shut_down` |
/// | `leasehold_handoff_seconds{scope}` | histogram: from a release to the grant that it made possible; `local`: within the client, `remote`: from a message |
/// | `leasehold_request_seconds{op,result}` | histogram: how long the store took; `acquire`, `release`, `renew`, `hand_off`; `ok`, `error`, `unknown` (it may have been carried out) |
/// | `leasehold_renewal_lag_seconds` | histogram: how much later than due renewals were sent |
/// | `leasehold_lost_total{reason}` | counter: `expired`, `gone`, `shut_down`, `held_too_long` |
/// | `leasehold_abandoned_total` | counter: threads that ended without a release |
/// | `leasehold_renewals_total{result}` | counter: `ok`, `error` |
/// | `leasehold_wakeups_total{cause}` | counter: what woke waiters: `message`, `local`, `poll` |
/// | `leasehold_unknown_outcomes_total`, `leasehold_release_failures_total` | counters |
/// | `leasehold_deadlocks_total` | counter: deadlocks that are certain and include a thread of this client |
/// | `leasehold_holds{state}` | gauge: `held`, `at_risk`, `lost` |
/// | `leasehold_waiters` | gauge: calls that sleep for a lock |
/// | `leasehold_window_remaining_min_seconds` | gauge: for how long all holds are still certain; infinite without holds |
/// | `leasehold_renewal_overdue_max_seconds` | gauge: the longest time, since four samples ago, from a renewal's due time to its confirmation, or to the loss of the hold |
/// | `leasehold_subscription_up` | gauge: 1, or 0 while releases elsewhere wake nobody here |
///
/// # Examples
/// ```
/// use leasehold::{LockClient, MemoryStore, Metrics};
///
/// let metrics = Metrics::new().group_names(|name| name.split(':').next().unwrap_or_default().to_owned());
/// let client = LockClient::builder().observer(metrics.clone()).build_in_memory(&MemoryStore::new())?;
/// client.get_lock("stock:42").acquire()?.unlock()?; // a series of the group "stock"
/// metrics.sample(&client.stats()); // before each scrape
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

type GroupOf = Arc<dyn Fn(&str) -> String + Send + Sync>;

struct Inner {
    labels: Vec<Label>,
    group_of: Option<GroupOf>,
    groups: Mutex<HashSet<String>>,
    last: Mutex<Stats>,
    overdue: Mutex<Overdue>,
}

/// The longest overdue time in each of the last four intervals between samples. A sample reports the longest
/// of all four, so that a second scraper sees a delay too.
#[derive(Default)]
struct Overdue([Duration; 4]);

impl Overdue {
    fn note(&mut self, overdue: Duration) {
        let [now, ..] = &mut self.0;
        *now = overdue.max(*now);
    }

    fn sample(&mut self) -> Duration {
        let longest = self.0.iter().max().copied().unwrap_or_default();
        self.0.rotate_right(1);
        let [now, ..] = &mut self.0;
        *now = Duration::ZERO;
        longest
    }
}

debug_fields!(Metrics, |it| labels: it.0.labels);

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// Upper ends of histogram buckets, in seconds: from a hand-off within the process to the longest wait.
    pub const BUCKETS: &[f64] = &[0.0001, 0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

    /// Makes an observer without groups and without further labels.
    #[must_use]
    pub fn new() -> Metrics {
        describe();
        Metrics::of(Vec::new(), None)
    }

    fn of(labels: Vec<Label>, group_of: Option<GroupOf>) -> Metrics {
        Metrics(Arc::new(Inner {
            labels,
            group_of,
            groups: Mutex::default(),
            last: Mutex::default(),
            overdue: Mutex::default(),
        }))
    }

    /// Adds a label to all series, such as the client's role.
    #[must_use]
    pub fn label(self, key: &'static str, value: impl AsRef<str>) -> Metrics {
        let (mut labels, group_of) = self.parts();
        labels.push(Label::new(key, value.as_ref().to_owned()));
        Metrics::of(labels, group_of)
    }

    /// Adds the label `group`, computed from a lock's name, to the histograms of waits and holds. The first
    /// 64 groups have series of their own; all later ones are `other`.
    #[must_use]
    pub fn group_names(self, group_of: impl Fn(&str) -> String + Send + Sync + 'static) -> Metrics {
        let (labels, _) = self.parts();
        Metrics::of(labels, Some(Arc::new(group_of)))
    }

    fn parts(self) -> (Vec<Label>, Option<GroupOf>) {
        (self.0.labels.clone(), self.0.group_of.clone())
    }

    /// Sets the gauges, and adds to the counters the change since the last call. The numbers come from
    /// [`LockClient::stats`](crate::LockClient::stats) of the observed client.
    ///
    /// # Blocking
    /// Never for I/O.
    pub fn sample(&self, stats: &Stats) {
        let mut last = self.0.last.lock();
        let count =
            |name: &'static str, label: Option<(&'static str, &'static str)>, now: u64, before: u64| {
                counter!(name, self.labels(label.as_slice(), None)).increment(now.saturating_sub(before));
            };
        // Adding zero creates a counter too, so that its rate includes the first event.
        count(LOST, Some(("reason", "expired")), stats.lost_expired, last.lost_expired);
        count(LOST, Some(("reason", "gone")), stats.lost_gone, last.lost_gone);
        count(LOST, Some(("reason", "shut_down")), stats.lost_shut_down, last.lost_shut_down);
        count(LOST, Some(("reason", "held_too_long")), stats.lost_held_too_long, last.lost_held_too_long);
        count(ABANDONED, None, 0, 0);
        count(RENEWALS, Some(("result", "ok")), stats.renewals, last.renewals);
        count(RENEWALS, Some(("result", "error")), stats.renewals_failed, last.renewals_failed);
        count(WAKEUPS, Some(("cause", "message")), stats.woken_by_message, last.woken_by_message);
        count(WAKEUPS, Some(("cause", "local")), stats.woken_locally, last.woken_locally);
        count(WAKEUPS, Some(("cause", "poll")), stats.woken_by_time, last.woken_by_time);
        count(UNKNOWN_OUTCOMES, None, stats.unknown_outcomes, last.unknown_outcomes);
        count(RELEASE_FAILURES, None, stats.releases_failed, last.releases_failed);
        count(DEADLOCKS, None, stats.deadlocks, last.deadlocks);
        let set = |name: &'static str, label: Option<(&'static str, &'static str)>, value: f64| {
            gauge!(name, self.labels(label.as_slice(), None)).set(value);
        };
        set(HOLDS, Some(("state", "held")), real(stats.holds.saturating_sub(stats.holds_at_risk)));
        set(HOLDS, Some(("state", "at_risk")), real(stats.holds_at_risk));
        set(HOLDS, Some(("state", "lost")), real(stats.holds_lost));
        set(WAITERS, None, real(stats.waiters));
        set(WINDOW, None, stats.shortest_window.map_or(f64::INFINITY, |window| window.as_secs_f64()));
        let mut overdue = self.0.overdue.lock();
        overdue.note(stats.longest_overdue);
        set(OVERDUE, None, overdue.sample().as_secs_f64());
        drop(overdue);
        set(SUBSCRIPTION, None, if stats.subscription_up { 1.0 } else { 0.0 });
        last.clone_from(stats);
    }

    fn labels(&self, own: &[(&'static str, &'static str)], name: Option<&str>) -> Vec<Label> {
        let own = own.iter().map(|(key, value)| Label::from_static_parts(key, value));
        let group = name.and_then(|name| self.group(name)).map(|group| Label::new("group", group));
        self.0.labels.iter().cloned().chain(own).chain(group).collect()
    }

    fn group(&self, name: &str) -> Option<String> {
        let group = self.0.group_of.as_ref()?(name);
        let mut groups = self.0.groups.lock();
        if !groups.contains(&group) {
            if groups.len() >= MOST_GROUPS {
                return Some("other".to_owned());
            }
            groups.insert(group.clone());
        }
        Some(group)
    }

    fn waited(&self, name: &str, kind: &'static str, outcome: &'static str, waited: Duration) {
        let labels = self.labels(&[("kind", kind), ("outcome", outcome)], Some(name));
        histogram!(ACQUIRE_WAIT, labels).record(waited);
    }

    fn held(&self, name: &str, kind: &'static str, end: &'static str, held: Duration) {
        histogram!(HOLD, self.labels(&[("kind", kind), ("end", end)], Some(name))).record(held);
    }
}

impl Observer for Metrics {
    fn event(&self, event: &Event<'_>) {
        match *event {
            Event::Acquired { name, kind, waited, .. } => self.waited(name, kind, "granted", waited),
            Event::GaveUp { name, kind, waited, reason, .. } => {
                self.waited(name, kind, reason.label(), waited);
            }
            Event::Released { name, kind, held, .. } => self.held(name, kind, "released", held),
            Event::Lost { loss, kind, held, overdue, is_abandoned } => {
                // The client no longer renews the hold of an ended thread, so no renewal is overdue.
                if !is_abandoned {
                    self.0.overdue.lock().note(overdue);
                }
                self.held(&loss.name, kind, loss.reason.end(is_abandoned), held);
            }
            Event::Renewed { lag, took, .. } => {
                self.0.overdue.lock().note(lag + took);
                histogram!(RENEWAL_LAG, self.labels(&[], None)).record(lag);
            }
            Event::Request { op, took, error, .. } => {
                let result = match error {
                    None => "ok",
                    Some(error) if error.outcome_unknown() => "unknown",
                    Some(_) => "error",
                };
                histogram!(REQUEST, self.labels(&[("op", op), ("result", result)], None)).record(took);
            }
            Event::HandedOff { is_local, took, .. } => {
                let scope = if is_local { "local" } else { "remote" };
                histogram!(HANDOFF, self.labels(&[("scope", scope)], None)).record(took);
            }
            Event::Abandoned { .. } => counter!(ABANDONED, self.labels(&[], None)).increment(1),
            _ => {}
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "nobody holds 2^52 locks")]
fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_overdue_renewal_stays_for_four_metric_samples() {
        let (mut overdue, seconds) = (Overdue::default(), Duration::from_secs);
        overdue.note(seconds(7));
        overdue.note(seconds(3));
        let seen: Vec<u64> = (0..5).map(|_| overdue.sample().as_secs()).collect();
        assert_eq!(seen, [7, 7, 7, 7, 0]);
    }

    #[test]
    fn metrics_have_at_most_64_groups_of_lock_names() {
        let metrics = Metrics::new().label("client", "orders").group_names(str::to_owned);
        for name in 0..10_000 {
            metrics.group(&name.to_string());
        }
        assert_eq!(metrics.0.groups.lock().len(), MOST_GROUPS);
        assert_eq!(metrics.group("63").as_deref(), Some("63"));
        assert_eq!(metrics.group("64").as_deref(), Some("other"));
        let labels = metrics.labels(&[("kind", "lock")], Some("9999"));
        let texts: Vec<String> =
            labels.iter().map(|label| format!("{}={}", label.key(), label.value())).collect();
        assert_eq!(texts, ["client=orders", "kind=lock", "group=other"]);
        assert!(Metrics::new().labels(&[], Some("a")).is_empty(), "without a function no name is in a label");
    }
}
