//! `promtool` runs the rules of `docs/operating/alerts.yml` over two simulated hours of a fleet with all
//! documented uses. Without a fault no alert fires, and each fault fires only its own alert. The test
//! `metrics_of_serve_distinguish_leaders_permits_and_locks` in `cli` shows that `leasehold serve` sends these
//! series.

use std::fmt::Write;
use std::process::Command;

use crate::alerts::{BEGINS, CASES, Case, FOLDER, Rules, Shape, parted, promtool};

const LASTS: u64 = 7_200;

/// The series of the fleet, as `promtool` reads them. `N` is the number of scrapes after the first.
const FLEET: &str = r#"
# Services with the feature `metrics`, one of them on a store without messages.
leasehold_lost_total{job="shop", instance="a", reason="expired"} 0xN
leasehold_renewal_overdue_max_seconds{job="shop", instance="a"} 0.4xN
leasehold_renewals_total{job="shop", instance="a", result="ok"} 0+5xN
leasehold_renewals_total{job="shop", instance="a", result="error"} 0xN
leasehold_acquire_wait_seconds_count{job="shop", instance="a", kind="lock", outcome="granted"} 0+90xN
leasehold_acquire_wait_seconds_count{job="shop", instance="a", kind="lock", outcome="timeout"} 0+1xN
leasehold_subscription_up{job="shop", instance="a"} 1xN
leasehold_subscription_up{job="billing", instance="m"} 0xN
leasehold_abandoned_total{job="shop", instance="a"} 0xN
leasehold_deadlocks_total{job="shop", instance="a"} 0xN
leasehold_release_failures_total{job="shop", instance="a"} 0xN
leasehold_store_up{job="locks", instance="s"} 1xN
# Locks of services, and Redisson's, whose holders do not say since when.
leasehold_store_locks_without_end{job="locks", instance="s", group="orders", kind="lock"} 0xN
leasehold_store_oldest_hold_seconds{job="locks", instance="s", group="orders", kind="lock"} 40xN
leasehold_store_waiters{job="locks", instance="s", group="orders", kind="lock"} 60xN
leasehold_store_waiters{job="locks", instance="s", group="java", kind="lock"} 20xN
leasehold_store_locks_without_end{job="locks", instance="s", group="java", kind="lock"} 0xN
# `run` and `hold`, whose names have no colon.
leasehold_store_oldest_hold_seconds{job="locks", instance="s", group="other", kind="lock"} 3000xN
leasehold_store_waiters{job="locks", instance="s", group="other", kind="lock"} 12xN
# A hundred servers with `elect`, the leader for days.
leasehold_store_oldest_hold_seconds{job="locks", instance="s", group="other", kind="leader"} 500000+15xN
leasehold_store_waiters{job="locks", instance="s", group="other", kind="leader"} 99x1 198xN
# As many with `run --permits 4`, most of which wait.
leasehold_store_waiters{job="locks", instance="s", group="other", kind="permits"} 196xN
leasehold_store_locks_without_end{job="locks", instance="s", group="other", kind="permits"} 0xN
# A nightly job by `once --at-most 2h`, over the last hour and a half.
leasehold_store_oldest_hold_seconds{job="locks", instance="s", group="other", kind="bounded"} 5400xN
# A command under a lock that waits for another's lock is a possible cycle.
leasehold_store_deadlocks{job="locks", instance="s", certain="true"} 0xN
leasehold_store_deadlocks{job="locks", instance="s", certain="false"} 1xN
leasehold_store_job_last_success_timestamp_seconds{job="locks", instance="s", name="nightly"} -70000xN
"#;

/// The faults whose series are not in `CASES`: a hold that is renewed late, and a lost hold.
const MORE: &str = r#"
LeaseholdLockLost 60 job: shop, instance: a, reason: expired
leasehold_lost_total{job="shop", instance="a", reason="expired"} step 0 1

LeaseholdHoldAtRisk 60 job: shop, instance: a
leasehold_renewal_overdue_max_seconds{job="shop", instance="a"} step 0 5
"#;

fn fleet() -> impl Iterator<Item = (&'static str, &'static str)> {
    FLEET.trim().lines().filter(|line| !line.starts_with('#')).map(parted)
}

/// The values of a fault, in the short form of `promtool`.
fn short(shape: Shape, every: u64) -> String {
    let (before, after) = ((BEGINS - 1) / every, (LASTS - BEGINS) / every);
    match shape {
        Shape::Step(one, other) => format!("{one}x{before} {other}x{after}"),
        Shape::Grows(one, other) => {
            let [one, other] = [one, other].map(i64::from);
            let reached = one * i64::try_from(before).unwrap();
            format!("0+{one}x{before} {}+{other}x{after}", reached + other)
        }
        Shape::Ends(value) => format!("{value}x{before}"),
    }
}

fn with_fault(text: &mut String, rules: &Rules, every: u64, fault: Option<&Case>) {
    let name = fault.map_or("no fault", |fault| fault.alert);
    writeln!(text, "  - name: {name} in the fleet, with scrapes each {every} s").unwrap();
    writeln!(text, "    interval: {every}s\n    input_series:").unwrap();
    let changed = fault.map_or(&[][..], |fault| &fault.series[..]);
    for (series, numbers) in fleet() {
        if changed.iter().all(|(other, _)| *other != series) {
            let numbers = numbers.replace('N', &(LASTS / every).to_string());
            writeln!(text, "      - series: '{series}'\n        values: '{numbers}'").unwrap();
        }
    }
    for (series, shape) in changed {
        assert!(fleet().any(|(other, _)| other == *series), "the fleet has no {series}");
        writeln!(text, "      - series: '{series}'\n        values: '{}'", short(*shape, every)).unwrap();
    }
    writeln!(text, "    alert_rule_test:").unwrap();
    let fires_at = fault.map(|fault| (fault.alert, BEGINS + fault.within));
    for alert in rules.0.keys() {
        for at in (0..=LASTS).step_by(600) {
            if fires_at.is_none_or(|(own, _)| own != alert) {
                *text += &rules.expects(alert, at, None);
            }
        }
    }
    if let Some(Case { alert, labels, within, .. }) = fault {
        *text += &rules.expects(alert, BEGINS - 1, None);
        *text += &rules.expects(alert, BEGINS + within, Some(labels));
    }
}

#[test]
fn each_fault_fires_only_its_own_alert() {
    let rules = Rules::read();
    let faults: Vec<Case> = [CASES, MORE].into_iter().flat_map(Case::read).collect();
    let mut text = "rule_files: [alerts.yml]\nevaluation_interval: 15s\ntests:\n".to_owned();
    for every in [15, 60] {
        with_fault(&mut text, &rules, every, None);
        faults.iter().for_each(|fault| with_fault(&mut text, &rules, every, Some(fault)));
    }
    let Some(promtool) = promtool() else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(format!("{FOLDER}/alerts.yml"), folder.path().join("alerts.yml")).unwrap();
    std::fs::write(folder.path().join("fleet.yml"), text).unwrap();
    let output = Command::new(promtool).args(["test", "rules", "fleet.yml"]).current_dir(&folder).output();
    let output = output.unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{said}");
}
