//! The alerts of `docs/operating/alerts.yml` for a hold at risk and a lost hold, in simulated outages of the
//! store. Prometheus scrapes the client each 15 s or each 60 s. `fleet.rs` tests all alerts in a fleet.
//!
//! The series of an outage come from a real client, whose clock the test moves. Outages begin at eight
//! instants between two scrapes. `LEASEHOLD_BLESS=1` writes the series to `docs/operating/alerts_test.yml`,
//! which Prometheus's `promtool` judges.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold::{Event, Fault, Metrics, Observer};
use metrics::{Key, with_local_recorder};
use yaml_rust2::{Yaml, YamlLoader};

use crate::support::prelude::*;
use crate::support::recorder::Kept;

pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operating");
/// The length of an outage in seconds. The lease is 30 s, so the hold is lost meanwhile.
const OUTAGE: u64 = 45;
/// The second at which a scrape takes place and the first outage begins.
pub(crate) const BEGINS: u64 = 300;
const PHASES: u64 = 8;
const WHOLE: u64 = 900;

fn series_of(key: &Key) -> String {
    let own = key.labels().map(|label| format!(", {}=\"{}\"", label.key(), label.value()));
    format!("{}{{job=\"shop\", instance=\"a\"{}}}", key.name(), own.collect::<String>())
}

#[derive(Clone)]
struct Watched {
    metrics: Metrics,
    kept: Kept,
    renewed: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl Observer for Watched {
    fn event(&self, event: &Event<'_>) {
        with_local_recorder(&self.kept, || self.metrics.event(event));
        match *event {
            Event::Renewed { holds, .. } => drop(self.renewed.fetch_add(holds, Ordering::SeqCst)),
            Event::Lost { .. } => drop(self.lost.fetch_add(1, Ordering::SeqCst)),
            _ => {}
        }
    }
}

/// The values that were scraped before, during and after an outage, and when the client's hold was lost.
struct Outage {
    scraped: BTreeMap<String, Vec<f64>>,
    lost_at: u64,
}

fn outage(every: u64, begins: u64) -> Outage {
    let (clock, kept) = (ManualClock::new(), Kept::naming(series_of));
    let store = MemoryStore::with_clock(clock.clone());
    let watched = Watched {
        metrics: Metrics::new(),
        kept: kept.clone(),
        renewed: Arc::default(),
        lost: Arc::default(),
    };
    let client = LockClient::builder().observer(watched.clone()).build_in_memory(&store).unwrap();
    let mut held = Some(client.get_lock("nightly").acquire_owned().unwrap());
    let (mut scraped, mut lost_at) = (BTreeMap::<String, Vec<f64>>::new(), 0);
    for second in 0..=WHOLE {
        if second == begins {
            store.fail(Fault::RequestLost);
        }
        if second == begins + OUTAGE {
            store.heal();
            drop(held.take());
            held = Some(client.get_lock("nightly").acquire_owned().unwrap());
        }
        let stats = client.stats();
        let has_come = || {
            let seen = [&watched.renewed, &watched.lost].map(|count| count.load(Ordering::SeqCst));
            seen == [stats.renewals, stats.lost()]
        };
        assert!(eventually(LONG, has_come), "{second}: {stats:?}");
        if stats.lost() > 0 && lost_at == 0 {
            lost_at = second;
        }
        if second.is_multiple_of(every) {
            with_local_recorder(&kept, || watched.metrics.sample(&stats));
            for (series, value) in &*kept.values.lock() {
                scraped.entry(series.clone()).or_default().push(*value);
            }
        }
        clock.advance(Duration::from_secs(1));
    }
    drop(held);
    Outage { scraped, lost_at }
}

fn phases(every: u64) -> impl Iterator<Item = u64> {
    (0..PHASES).map(move |phase| BEGINS + phase * every / PHASES)
}

fn values(values: &[f64]) -> String {
    let mut text = String::new();
    let mut rest = values;
    while let Some(first) = rest.first() {
        let same = rest.iter().take_while(|value| *value == first).count();
        let value = if first.is_infinite() { "+Inf".to_owned() } else { format!("{first:.3}") };
        let value = value.strip_suffix(".000").unwrap_or(&value);
        write!(text, " {value}").unwrap();
        if same > 1 {
            write!(text, "x{}", same - 1).unwrap();
        }
        rest = &rest[same..];
    }
    text.trim_start().to_owned()
}

pub(crate) struct Rules(pub(crate) BTreeMap<String, Yaml>);

impl Rules {
    pub(crate) fn read() -> Rules {
        let text = std::fs::read_to_string(Path::new(FOLDER).join("alerts.yml")).unwrap();
        let loaded = YamlLoader::load_from_str(&text).unwrap();
        let groups = loaded[0]["groups"].as_vec().unwrap();
        let rules = groups.iter().flat_map(|group| group["rules"].as_vec().unwrap());
        Rules(rules.map(|rule| (rule["alert"].as_str().unwrap().to_owned(), rule.clone())).collect())
    }

    fn ask_for(&self, series: &str) -> bool {
        let name = series.split('{').next().unwrap();
        self.0.values().any(|rule| rule["expr"].as_str().unwrap().contains(name))
    }

    /// What `promtool` should expect at this time: the alert fires with these labels, or it does not fire.
    pub(crate) fn expects(&self, alert: &str, seconds: u64, labels: Option<&str>) -> String {
        let rule = &self.0[alert];
        let mut text = format!("      - eval_time: {seconds}s\n        alertname: {alert}\n");
        let Some(labels) = labels else { return text };
        let severity = rule["labels"]["severity"].as_str().unwrap();
        let [summary, runbook] =
            ["summary", "runbook_url"].map(|field| rule["annotations"][field].as_str().unwrap());
        let labels = if labels.is_empty() { String::new() } else { format!("{labels}, ") };
        write!(
            text,
            "        exp_alerts:\n          - exp_labels: {{{labels}severity: {severity}}}\n            exp_annotations:\n              \
             summary: {summary:?}\n              runbook_url: {runbook}\n"
        )
        .unwrap();
        text
    }
}

const SHOP: &str = "job: shop, instance: a";

/// An alert, series in which its fault begins at minute 5, and the labels that the alert must have.
pub(crate) struct Case {
    pub(crate) alert: &'static str,
    pub(crate) series: Vec<(&'static str, Shape)>,
    pub(crate) labels: &'static str,
    /// The alert must fire within this many seconds of the fault, with a scrape every minute.
    pub(crate) within: u64,
}

impl Case {
    pub(crate) fn read(text: &'static str) -> Vec<Case> {
        let case = |text: &'static str| {
            let (head, series) = text.trim().split_once('\n').unwrap();
            let mut words = head.splitn(3, ' ');
            Case {
                alert: words.next().unwrap(),
                within: words.next().unwrap().parse().unwrap(),
                labels: words.next().unwrap_or_default(),
                series: series.lines().map(parted).map(|(name, shape)| (name, Shape::read(shape))).collect(),
            }
        };
        text.split("\n\n").map(case).collect()
    }
}

/// Splits a line into the series and what follows it.
pub(crate) fn parted(line: &'static str) -> (&'static str, &'static str) {
    let (series, rest) = line.split_at(line.find("} ").unwrap() + 1);
    (series.trim(), rest.trim())
}

#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// The value is the first number until the fault, and the second number from then on.
    Step(i32, i32),
    /// The value grows with each scrape: by the first number until the fault, and then by the second number.
    Grows(i32, i32),
    Ends(i32),
}

impl Shape {
    fn read(text: &str) -> Shape {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words[at].parse().unwrap();
        match words[0] {
            "step" => Shape::Step(number(1), number(2)),
            "grows" => Shape::Grows(number(1), number(2)),
            "ends" => Shape::Ends(number(1)),
            other => panic!("no shape: {other}"),
        }
    }
}

/// Each case begins with the alert, the seconds within which it must fire, and its labels; its series follow.
/// For five minutes Prometheus still counts a series that `ends`. `promtool` begins at time 0, so a negative
/// value of a series of timestamps is a time long ago.
pub(crate) const CASES: &str = r#"
LeaseholdRenewalsFail 420 job: shop, instance: a
leasehold_renewals_total{job="shop", instance="a", result="ok"} grows 5 5
leasehold_renewals_total{job="shop", instance="a", result="error"} grows 0 1

LeaseholdWaitsEndWithoutLock 960 job: shop, kind: lock
leasehold_acquire_wait_seconds_count{job="shop", instance="a", kind="lock", outcome="granted"} grows 90 60
leasehold_acquire_wait_seconds_count{job="shop", instance="a", kind="lock", outcome="timeout"} grows 1 30

LeaseholdWaitsWithoutMessages 240 job: shop, instance: a
leasehold_subscription_up{job="shop", instance="a"} step 1 0

LeaseholdThreadsEndWithoutRelease 60 job: shop, instance: a
leasehold_abandoned_total{job="shop", instance="a"} step 0 1

LeaseholdDeadlock 60 job: shop
leasehold_deadlocks_total{job="shop", instance="a"} step 0 1

LeaseholdReleasesFail 780 job: shop, instance: a
leasehold_release_failures_total{job="shop", instance="a"} grows 0 1

LeaseholdStoreIsAway 180 job: locks, instance: s
leasehold_store_up{job="locks", instance="s"} step 1 0

LeaseholdStoreIsNotWatched 720
leasehold_store_up{job="locks", instance="s"} ends 1

LeaseholdLockWithoutEnd 720 job: locks, instance: s, group: orders
leasehold_store_locks_without_end{job="locks", instance="s", group="orders", kind="lock"} step 0 1

LeaseholdHoldIsLong 240 job: locks, instance: s, group: orders
leasehold_store_oldest_hold_seconds{job="locks", instance="s", group="orders", kind="lock"} step 40 3700

LeaseholdManyWait 720 job: locks, instance: s, group: orders
leasehold_store_waiters{job="locks", instance="s", group="orders", kind="lock"} step 3 140

LeaseholdThreadsWaitForEachOther 180 job: locks, instance: s
leasehold_store_deadlocks{job="locks", instance="s", certain="true"} step 0 1

LeaseholdJobIsLate 420 job: locks, name: nightly
leasehold_store_job_last_success_timestamp_seconds{job="locks", instance="s", name="nightly"} step 0 -100000
"#;

fn simulated(rules: &Rules) -> String {
    let mut text =
        "# Written by tests/meta/alerts.rs. See there, and docs/operating.md.\nrule_files: [alerts.yml]\n\
                    evaluation_interval: 15s\ntests:\n"
            .to_owned();
    for every in [15, 60] {
        for begins in phases(every) {
            let Outage { scraped, lost_at } = outage(every, begins);
            assert!((begins + 18..begins + 31).contains(&lost_at), "lost at {lost_at}, of {begins}");
            writeln!(text, "  - name: the store is away from {begins} s on, for {OUTAGE} s, with scrapes each {every} s; lost at {lost_at} s").unwrap();
            writeln!(text, "    interval: {every}s\n    input_series:").unwrap();
            for (series, numbers) in scraped.iter().filter(|(series, _)| rules.ask_for(series)) {
                writeln!(text, "      - series: '{series}'\n        values: '{}'", values(numbers)).unwrap();
            }
            writeln!(text, "    alert_rule_test:").unwrap();
            let next_scrape = |at: u64| at.div_ceil(every) * every;
            for alert in ["LeaseholdLockLost", "LeaseholdHoldAtRisk"] {
                text += &rules.expects(alert, begins - 1, None);
            }
            text += &rules.expects("LeaseholdHoldAtRisk", next_scrape(lost_at), Some(SHOP));
            let labels = format!("{SHOP}, reason: expired");
            text += &rules.expects("LeaseholdLockLost", next_scrape(lost_at), Some(&labels));
            // A renewal that is due after 10 s and is 4 s late fires the alert. That is 16 s before the loss,
            // so scrapes each 15 s warn in time.
            if every == 15 {
                text += &rules.expects("LeaseholdHoldAtRisk", lost_at, Some(SHOP));
            }
            text += &rules.expects("LeaseholdHoldAtRisk", WHOLE, None);
        }
    }
    text
}

#[test]
fn a_simulated_outage_fires_the_alerts_for_risk_and_loss() {
    let rules = Rules::read();
    let cases = Case::read(CASES).into_iter().map(|case| case.alert);
    let tried: std::collections::BTreeSet<&str> =
        cases.chain(["LeaseholdLockLost", "LeaseholdHoldAtRisk"]).collect();
    assert_eq!(tried, rules.0.keys().map(String::as_str).collect(), "not each rule is tried");
    let text = simulated(&rules);
    crate::docs::is_listed("docs/operating/alerts_test.yml", &text);
    let Some(promtool) = promtool() else { return };
    let output =
        Command::new(promtool).args(["test", "rules", "alerts_test.yml"]).current_dir(FOLDER).output();
    let output = output.unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{said}");
}

/// The tool `promtool`. Without it the test is skipped; in CI it fails.
pub(crate) fn promtool() -> Option<PathBuf> {
    let named = std::env::var_os("LEASEHOLD_PROMTOOL").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = named.or_else(|| {
        std::env::split_paths(&path).map(|folder| folder.join("promtool")).find(|path| path.is_file())
    });
    if found.is_none() {
        let line = "SKIPPED alerts: no promtool: scripts/servers.sh promtool fetches it";
        assert!(std::env::var_os("CI").is_none(), "{line} (in CI that is a failure)");
        std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes()).unwrap();
    }
    found
}
