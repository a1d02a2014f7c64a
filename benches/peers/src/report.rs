//! The benchmark's medians and ratios, and the page that shows them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::chart::{self, Bar};
use crate::figures::{self, Figure};
use crate::load::Kind;
use crate::machine::Machine;
use crate::quiet::Disturbance;
use crate::rounds::{Metrics, Run, Settings};
use crate::workload::{Cores, WORKLOADS, Workload, smaller_crowd};

const HEAD: &str = "# The benchmark\n\nWritten by `./bench`, with all tables in `target/figures/benchmark.md`. The page on [performance](../performance.md) says \
    what the words mean.";

#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub machine: Machine,
    pub settings: Settings,
    pub versions: BTreeMap<String, String>,
    pub left_out: Vec<String>,
    pub results: Vec<Summary>,
    pub figures: Vec<Figure>,
    pub runs: Vec<Run>,
}

/// One peer under one workload, over all rounds: medians, longest waits, sums of losses and hand-overs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    pub workload: String,
    pub peer: String,
    pub rounds: usize,
    pub metrics: Metrics,
    /// This peer's rate divided by `raw`'s in the same round; the median. `raw` cannot wait, so workloads
    /// with shared keys are compared with `raw`'s workload `one2`: one thread on two cores.
    pub ratio_to_raw: Option<f64>,
    pub ratio_to_redisson: Option<f64>,
    pub notes: Vec<String>,
    /// Whether a whole run or a call of this peer failed, a hold was lost, or a waiter got no lock.
    pub has_failed: bool,
}

/// The peers in the columns of the page's overview.
const SHOWN: [&str; 7] =
    ["leasehold", "leasehold-lock", "leasehold-keep", "redisson", "rslock", "rslock-threads", "rlock"];

impl Report {
    pub fn new(machine: Machine, settings: Settings, left_out: Vec<String>, runs: Vec<Run>) -> Report {
        let mut results = Vec::new();
        for workload in WORKLOADS {
            for peer in workload.peers {
                results.extend(summary(&runs, workload, peer));
            }
        }
        let mut versions = BTreeMap::new();
        for run in runs.iter().filter(|run| !run.version.is_empty()) {
            versions.insert(run.peer.clone(), run.version.clone());
        }
        let mut report = Report { machine, settings, versions, left_out, results, figures: Vec::new(), runs };
        report.figures = figures::check(&report);
        report
    }

    pub fn find(&self, workload: &str, peer: &str) -> Option<&Summary> {
        self.results.iter().find(|result| result.workload == workload && result.peer == peer)
    }

    pub fn metric(&self, workload: &str, peer: &str, metric: &str) -> Option<f64> {
        self.find(workload, peer)?.metrics.get(metric).copied()
    }

    /// The peers that let two holders in at once, and under which workload.
    pub fn violations(&self) -> Vec<String> {
        self.those(|result| result.metrics.get("violations").is_some_and(|count| *count > 0.0))
    }

    /// The workloads under which a call of leasehold failed.
    pub fn failures(&self) -> Vec<String> {
        self.those(|result| result.peer.starts_with("leasehold") && result.has_failed)
    }

    fn those(&self, wanted: impl Fn(&Summary) -> bool) -> Vec<String> {
        let found = self.results.iter().filter(|result| wanted(result));
        found.map(|result| format!("{} in {}", result.peer, result.workload)).collect()
    }

    /// The counted runs during which the machine was not quiet, each with its disturbance.
    pub fn disturbed(&self) -> Vec<String> {
        let counted = self.runs.iter().filter(|run| run.round > 0 && run.is_disturbed());
        let say = |run: &Run| {
            let disturbance = run.disturbance.unwrap_or_default();
            format!("round {} {} {}: {disturbance}", run.round, run.workload, run.peer)
        };
        counted.map(say).collect()
    }

    /// The greatest shares in the counted runs; `None` if one of these runs has no record of its disturbance.
    fn most_disturbed(&self) -> Option<Disturbance> {
        let mut most = Disturbance::default();
        for run in self.runs.iter().filter(|run| run.round > 0) {
            let disturbance = run.disturbance?;
            most.others = most.others.max(disturbance.others);
            most.steal = most.steal.max(disturbance.steal);
        }
        Some(most)
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        self.write_text(&mut out).ok();
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        self.write_figures(out)?;
        for workload in WORKLOADS {
            let results: Vec<&Summary> =
                self.results.iter().filter(|result| result.workload == workload.id).collect();
            if !results.is_empty() {
                writeln!(out, "## {}\n", self.title(workload))?;
                self.explain(out, workload)?;
                table(out, workload, &results)?;
            }
        }
        Ok(())
    }

    /// Writes the machine, versions and settings, and the figures that the project wants to reach.
    fn write_figures(&self, out: &mut String) -> std::fmt::Result {
        let Machine { cores, cpu, kernel, server, rustc, go, java, python, load } = &self.machine;
        writeln!(out, "## Machine\n")?;
        writeln!(out, "{cores} cores, {cpu}, {kernel}, {server} on loopback TCP without persistence.")?;
        let tools: Vec<&str> = [rustc, go, java, python]
            .into_iter()
            .map(String::as_str)
            .filter(|tool| !tool.is_empty())
            .collect();
        writeln!(out, "{}.", tools.join("; "))?;
        writeln!(out, "Load average at the start: {load}.")?;
        match self.most_disturbed() {
            Some(Disturbance { others, steal }) => writeln!(
                out,
                "During a counted run other processes had at most {:.1} % of the processors' time, other machines of \
                 the same host {:.1} % (steal).\n",
                others * 100.0,
                steal * 100.0
            )?,
            None => writeln!(out, "Whether the machine was quiet cannot be told here.\n")?,
        }
        // leasehold is measured in several ways, but its version is listed once.
        let of_libraries = self.versions.iter().filter(|(peer, _)| !peer.starts_with("leasehold-"));
        let versions: Vec<String> = of_libraries.map(|(peer, version)| format!("{peer} {version}")).collect();
        if !versions.is_empty() {
            writeln!(out, "Versions: {}.\n", versions.join(", "))?;
        }
        for peer in &self.left_out {
            writeln!(out, "Left out: {peer}.\n")?;
        }
        let Settings { rounds, seconds, quick, .. } = &self.settings;
        if *quick {
            writeln!(out, "**A quick run: it shows that everything runs, its figures mean nothing.**\n")?;
        } else {
            writeln!(out, "Medians of {rounds} rounds, {seconds} s each.\n")?;
        }
        if !self.figures.is_empty() {
            writeln!(out, "## Figures to reach\n")?;
            writeln!(out, "| workload | wanted | reached | |\n|---|---|---|---|")?;
            for Figure { workload, wanted, reached, met } in &self.figures {
                let verdict = match met {
                    Some(true) => "yes",
                    Some(false) => "**short**",
                    None => "not measured",
                };
                writeln!(out, "| {workload} | {wanted} | {reached} | {verdict} |")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// Writes the cycles per second and the longest wait of each peer in `SHOWN`.
    fn write_overview(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "## Cycles/s (longest wait in ms)\n")?;
        writeln!(out, "| | {} |\n|---|{}", SHOWN.map(name).join(" | "), "---:|".repeat(SHOWN.len()))?;
        let has_cycles = |workload: &&Workload| {
            workload.kind == Kind::Cycles && self.results.iter().any(|result| result.workload == workload.id)
        };
        for workload in WORKLOADS.iter().filter(has_cycles) {
            let cells = SHOWN.map(|peer| {
                let metric = |metric| self.metric(workload.id, peer, metric);
                let red =
                    if self.find(workload.id, peer).is_some_and(|one| one.has_failed) { RED } else { "" };
                metric("cycles_per_s").zip(metric("wait_max_us")).map_or("–".to_owned(), |(cycles, us)| {
                    format!("{red}{} ({})", grouped(cycles, 0), grouped(us / 1e3, 0))
                })
            });
            writeln!(out, "| {} | {} |", workload.title, cells.join(" | "))?;
        }
        writeln!(out, "\n[The charts](../charts)")
    }

    /// Writes the explanation below a table's title.
    fn explain(&self, out: &mut String, workload: &Workload) -> std::fmt::Result {
        match (workload.kind, workload.cores) {
            (_, Some(Cores::One)) => writeln!(out, "Client and server are pinned to one core.\n"),
            (_, Some(Cores::Two)) => {
                writeln!(
                    out,
                    "The client is pinned to one core, the server to another. This raw is also the one that threads \
                     on one key are compared with.\n"
                )
            }
            (Kind::Crowd, None) => {
                writeln!(
                    out,
                    "One process holds the lock. In another wait many clients, each with one thread and connections \
                     of its own. From the release until all were served: *served in s*, which is the longest wait \
                     too, and requests, commands and CPU for each grant.\n"
                )?;
                for peer in workload.peers {
                    if let (Some((clients, why)), Some(_)) =
                        (smaller_crowd(peer), self.find(workload.id, peer))
                    {
                        writeln!(out, "{}: only {clients} clients; {why}.\n", name(peer))?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn title(&self, workload: &Workload) -> String {
        match workload.kind {
            Kind::Held => {
                format!("{} locks held for {} s", self.settings.held_locks, self.settings.held_seconds)
            }
            Kind::Waiters => format!("{} threads waiting for one lock", self.settings.waiting_threads),
            Kind::Crowd => format!("{} clients waiting for one lock", self.settings.crowd),
            Kind::Cycles | Kind::Handoff | Kind::Holder => workload.title.to_owned(),
        }
    }

    /// Writes `figures/benchmark.md` and the charts, and all tables below `target`.
    pub fn write(&self, docs: &Path) -> Result<()> {
        let charts = docs.join("charts");
        std::fs::create_dir_all(&charts)?;
        for workload in WORKLOADS {
            for (metric, title) in charts_of(workload) {
                let bars: Vec<Bar> = workload
                    .peers
                    .iter()
                    .filter_map(|peer| {
                        let value = self.metric(workload.id, peer, metric)?;
                        let label = chart_name(peer).to_owned();
                        Some(Bar { label, value, ours: peer.starts_with("leasehold") })
                    })
                    .collect();
                if !bars.is_empty() {
                    let title = format!("{}: {title}", self.title(workload));
                    chart::write(&charts.join(format!("{}-{metric}.svg", workload.id)), &title, &bars)?;
                }
            }
        }
        let mut page = String::new();
        self.write_figures(&mut page).and_then(|()| self.write_overview(&mut page)).ok();
        write_both(docs, "benchmark.md", HEAD, &page, &self.text())
    }
}

/// Writes the page in `docs`, and the page with all tables below `target`.
pub fn write_both(docs: &Path, name: &str, head: &str, page: &str, tables: &str) -> Result<()> {
    let folder = docs.join("../target/figures");
    std::fs::create_dir_all(&folder)?;
    for (file, text) in [(docs.join("figures").join(name), page), (folder.join(name), tables)] {
        std::fs::write(&file, format!("{head}\n\n{}\n", text.trim_end()))
            .with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// The mark before a row or a figure in which a call failed.
pub const RED: &str = "🔴 ";

/// The metrics of a workload that get a chart, each with the chart's title.
fn charts_of(workload: &Workload) -> &'static [(&'static str, &'static str)] {
    match workload.kind {
        Kind::Cycles if workload.contended() => {
            &[("cycles_per_s", "cycles/s"), ("wait_p99_us", "p99 of the waits, µs")]
        }
        Kind::Cycles => &[("cycles_per_s", "cycles/s")],
        Kind::Handoff => &[("handoff_p50_us", "p50, µs"), ("handoff_p99_us", "p99, µs")],
        Kind::Held => &[("cpu_ms_per_s", "CPU, ms per s")],
        Kind::Waiters | Kind::Crowd => &[("drain_s", "seconds until all had it")],
        Kind::Holder => &[],
    }
}

/// A table's columns: title, metric, digits after the point.
fn columns(workload: &Workload) -> &'static [(&'static str, &'static str, usize)] {
    const CYCLES: &[(&str, &str, usize)] = &[
        ("cycles/s", "cycles_per_s", 0),
        ("CPU µs per cycle", "cpu_us_per_cycle", 0),
        ("server CPU µs", "server_cpu_us_per_cycle", 0),
        ("× raw", "ratio_to_raw", 2),
        ("× Redisson", "ratio_to_redisson", 2),
        ("wait p50 µs", "wait_p50_us", 0),
        ("p99 µs", "wait_p99_us", 0),
        ("longest ms", "wait_max_ms", 1),
        ("fewest/most per thread", "threads_evenness", 2),
        ("per process", "processes_evenness", 2),
        ("requests per cycle", "sent_per_cycle", 2),
        ("commands", "commands_per_cycle", 1),
        ("server reads", "reads_per_cycle", 2),
        ("violations", "violations", 0),
    ];
    match workload.kind {
        Kind::Cycles => CYCLES,
        Kind::Handoff => &[
            ("p50 µs", "handoff_p50_us", 0),
            ("p99 µs", "handoff_p99_us", 0),
            ("longest ms", "handoff_max_ms", 1),
            ("hand-overs seen", "handoffs", 0),
            ("fewest/most per process", "processes_evenness", 2),
            ("requests per cycle", "sent_per_cycle", 2),
            ("commands", "commands_per_cycle", 1),
            ("CPU µs per cycle", "cpu_us_per_cycle", 0),
            ("server CPU µs", "server_cpu_us_per_cycle", 0),
            ("violations", "violations", 0),
        ],
        Kind::Held => &[
            ("lost", "lost", 0),
            ("CPU ms/s", "cpu_ms_per_s", 2),
            ("server CPU ms/s", "server_cpu_ms_per_s", 2),
            ("requests/s", "sent_per_s", 1),
            ("server reads/s", "reads_per_s", 1),
            ("commands/s", "commands_per_s", 1),
            ("threads", "library_threads", 0),
            ("connections", "connections", 0),
            ("RSS MiB", "rss_mib", 0),
            ("taken per s", "fill_per_s", 0),
        ],
        Kind::Holder => &[],
        Kind::Crowd => &[
            ("clients", "clients", 0),
            ("served in s", "drain_s", 3),
            ("grants/s", "grants_per_s", 0),
            ("CPU µs per grant", "cpu_us_per_grant", 0),
            ("server CPU µs", "server_cpu_us_per_grant", 0),
            ("requests per grant", "sent_per_grant", 2),
            ("commands", "commands_per_grant", 1),
            ("connections", "connections", 0),
            ("missing", "missing", 0),
            ("violations", "violations", 0),
        ],
        Kind::Waiters => &[
            ("requests/s while waiting", "sent_per_s", 2),
            ("connections", "connections", 0),
            ("of them new", "connections_added", 0),
            ("KiB per waiter", "rss_kib_per_waiter", 1),
            ("beside its stack", "beside_stack_kib_per_waiter", 1),
            ("threads", "threads", 0),
            ("drained in s", "drain_s", 3),
            ("missing", "missing", 0),
            ("violations", "violations", 0),
        ],
    }
}

fn table(out: &mut String, workload: &Workload, results: &[&Summary]) -> std::fmt::Result {
    let value = |result: &Summary, metric: &str| match metric {
        "ratio_to_raw" => result.ratio_to_raw,
        "ratio_to_redisson" => result.ratio_to_redisson,
        "wait_max_ms" => result.metrics.get("wait_max_us").map(|us| us / 1e3),
        "handoff_max_ms" => result.metrics.get("handoff_max_us").map(|us| us / 1e3),
        metric => result.metrics.get(metric).copied(),
    };
    let used: Vec<_> = columns(workload)
        .iter()
        .filter(|(_, metric, _)| results.iter().any(|result| value(result, metric).is_some()))
        .collect();
    write!(out, "| |")?;
    for (title, ..) in &used {
        write!(out, " {title} |")?;
    }
    writeln!(out, "\n|---|{}", "---:|".repeat(used.len()))?;
    for result in results {
        write!(out, "| {}{} |", if result.has_failed { RED } else { "" }, name(&result.peer))?;
        for (_, metric, digits) in &used {
            match value(result, metric) {
                Some(value) => write!(out, " {} |", grouped(value, *digits))?,
                None => write!(out, " – |")?,
            }
        }
        writeln!(out)?;
    }
    writeln!(out)?;
    for result in results {
        for note in &result.notes {
            writeln!(out, "{}: {note}.\n", name(&result.peer))?;
        }
    }
    Ok(())
}

fn name(peer: &str) -> &str {
    match peer {
        "leasehold" => "**leasehold**, guards",
        "leasehold-lock" => "**leasehold**, `lock`/`unlock`",
        "leasehold-keep" => "**leasehold**, `lock`/`unlock`, `cached`",
        "redisson" => "Redisson",
        other => other,
    }
}

fn chart_name(peer: &str) -> &str {
    match peer {
        "leasehold" => "leasehold guard",
        "leasehold-lock" => "leasehold lock",
        "leasehold-keep" => "leasehold keep",
        "redisson" => "Redisson",
        other => other,
    }
}

/// A number with commas between the thousands.
pub fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) && digit.is_ascii_digit() && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

fn summary(runs: &[Run], workload: &Workload, peer: &str) -> Option<Summary> {
    let mine: Vec<&Run> = runs.iter().filter(|run| run.workload == workload.id && run.peer == peer).collect();
    if mine.is_empty() {
        return None;
    }
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for run in &mine {
        for (metric, value) in &run.metrics {
            values.entry(metric).or_default().push(*value);
        }
    }
    let metrics = values
        .into_iter()
        .filter_map(|(metric, values)| {
            let value = match metric {
                "violations" | "errors" | "lost" | "missing" | "handoffs" => values.iter().sum(),
                metric if metric.ends_with("_max_us") => values.iter().copied().fold(0.0, f64::max),
                _ => median(values)?,
            };
            Some((metric.to_owned(), value))
        })
        .collect();
    let base = if workload.contended() { "one2" } else { workload.id };
    let ratio = |workload: &str, other: &str| {
        let ratios = mine.iter().filter_map(|run| {
            let same =
                |rival: &&Run| rival.workload == workload && rival.peer == other && rival.round == run.round;
            let rate = |run: &Run| run.metrics.get("cycles_per_s").copied();
            Some(rate(run)? / rate(runs.iter().find(same)?)?)
        });
        median(ratios.collect())
    };
    let failed = |run: &&Run| {
        let lost = ["errors", "missing", "lost"];
        run.metrics.is_empty()
            || lost.iter().any(|name| run.metrics.get(*name).is_some_and(|count| *count > 0.0))
    };
    let has_failed = mine.iter().any(failed);
    let mut rounds_of: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for run in &mine {
        if let Some(note) = &run.note {
            rounds_of.entry(note).or_default().push(run.round.to_string());
        }
    }
    let notes = rounds_of.into_iter().map(|(note, rounds)| format!("round {}: {note}", rounds.join(", ")));
    Some(Summary {
        workload: workload.id.to_owned(),
        peer: peer.to_owned(),
        rounds: mine.iter().filter(|run| run.round > 0 && !run.metrics.is_empty()).count(),
        metrics,
        ratio_to_raw: ratio(base, "raw"),
        ratio_to_redisson: ratio(workload.id, "redisson"),
        notes: notes.collect(),
        has_failed,
    })
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle).copied()?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(*values.get(middle.checked_sub(1)?)?, upper))
}

pub fn progress(run: &Run) -> String {
    let mut line = format!("round {} {:10} {:15}", run.round, run.workload, run.peer);
    for (metric, digits) in [
        ("cycles_per_s", 0),
        ("cpu_us_per_cycle", 0),
        ("server_cpu_us_per_cycle", 0),
        ("wait_p99_us", 0),
        ("wait_max_us", 0),
        ("processes_evenness", 2),
        ("handoff_p50_us", 0),
        ("handoff_p99_us", 0),
        ("sent_per_cycle", 2),
        ("sent_per_grant", 2),
        ("cpu_ms_per_s", 2),
        ("lost", 0),
        ("sent_per_s", 2),
        ("drain_s", 3),
        ("cpu_us_per_grant", 0),
        ("server_cpu_us_per_grant", 0),
        ("violations", 0),
        ("errors", 0),
    ] {
        if let Some(value) = run.metrics.get(metric) {
            write!(line, " {metric} {}", grouped(*value, digits)).ok();
        }
    }
    if let Some(disturbance) = run.disturbance {
        let verdict = if run.is_disturbed() { ": NOT QUIET" } else { "" };
        write!(line, " ({disturbance}{verdict})").ok();
    }
    if let Some(note) = &run.note {
        write!(line, " [{note}]").ok();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::{Metrics, Run, WORKLOADS, grouped, median, summary};

    #[test]
    fn a_failed_call_marks_its_peer_red_in_the_report() {
        let workload = WORKLOADS.first().unwrap();
        let is_red = |errors: f64| {
            let run = Run {
                workload: workload.id.to_owned(),
                peer: "rslock".to_owned(),
                round: 1,
                metrics: Metrics::from([("errors".to_owned(), errors)]),
                version: String::new(),
                note: None,
                disturbance: None,
            };
            summary(&[run], workload, "rslock").unwrap().has_failed
        };
        assert!(is_red(1.0) && !is_red(0.0));
    }

    #[test]
    fn thousands_are_separated_by_commas() {
        assert_eq!(grouped(1_234_567.0, 0), "1,234,567");
        assert_eq!(grouped(999.5, 1), "999.5");
        assert_eq!(grouped(-1000.0, 0), "-1,000");
        assert_eq!(grouped(-100.0, 0), "-100");
    }

    #[test]
    fn median_averages_the_middle_two_of_an_even_count() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
