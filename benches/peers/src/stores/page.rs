//! The file docs/figures/stores.md, and its charts.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use super::child::{DRAIN_LIMIT, Kind};
use super::{Place, Run, WORKLOADS, Workload};
use crate::chart::{self, Bar};
use crate::machine::Machine;
use crate::quiet::Disturbance;
use crate::report::{RED, grouped, write_both};
use crate::rounds::Metrics;

const HEAD: &str = "# The stores, measured\n\nWritten by `./bench stores`, with all tables in `target/figures/stores.md`. The page on \
    [choosing a store](../choosing.md) says what the words mean.";

pub struct Report<'a> {
    pub machine: Machine,
    pub rounds: usize,
    pub seconds: f64,
    pub quick: bool,
    pub stores: &'a [Place],
    pub left_out: &'a [String],
    pub runs: &'a [Run],
}

/// A column: its title, the metric, and how many digits after the point.
type Column = (&'static str, &'static str, usize);

const CYCLES: &[Column] = &[
    ("cycles/s", "cycles_per_s", 0),
    ("wait p50 ms", "wait_p50_ms", 2),
    ("p99 ms", "wait_p99_ms", 1),
    ("longest ms", "wait_max_ms", 0),
    ("fewest/most", "evenness", 2),
    ("asked per grant", "attempts_per_grant", 2),
    ("CPU µs per cycle", "cpu_us_per_cycle", 0),
    ("server CPU µs", "server_cpu_us", 0),
    ("errors", "errors", 0),
    ("violations", "violations", 0),
];
const HANDOFF: &[Column] = &[
    ("p50 ms", "handoff_p50_ms", 2),
    ("p99 ms", "handoff_p99_ms", 2),
    ("counted", "handoffs", 0),
    ("errors", "errors", 0),
    ("violations", "violations", 0),
];
const CROWD: &[Column] = &[
    ("served", "served", 0),
    ("failures", "failures", 0),
    ("all served after s", "drain_s", 2),
    ("grants/s", "grants_per_s", 0),
    ("asked per grant", "attempts_per_grant", 1),
    ("connections", "connections", 0),
    ("threads of the library", "client_threads", 0),
    ("connecting all, s", "connect_s", 1),
    ("server MiB", "server_mib", 0),
    ("violations", "violations", 0),
];

fn columns(kind: Kind) -> &'static [Column] {
    match kind {
        Kind::Cycles | Kind::Guards => CYCLES,
        Kind::Handoff => HANDOFF,
        Kind::Crowd => CROWD,
    }
}

/// The columns of the page's table: title, workload, metric, digits after the point.
const OVERVIEW: &[(&str, &str, &str, usize)] = &[
    ("1 contender, cycles/s", "one", "cycles_per_s", 0),
    ("64, cycles/s", "sixtyfour", "cycles_per_s", 0),
    ("longest ms", "sixtyfour", "wait_max_ms", 0),
    ("fewest/most", "sixtyfour", "evenness", 2),
    ("asked per grant", "sixtyfour", "attempts_per_grant", 1),
    ("64, dropped guards, cycles/s", "guards64", "cycles_per_s", 0),
    ("hand-off p50 ms", "handoff", "handoff_p50_ms", 2),
    ("crowd of 500, s", "crowd", "drain_s", 2),
    ("connections", "crowd", "connections", 0),
];

#[derive(Debug)]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

/// A figure to reach: its name, the store, the workload, the metric, the limit as text, the limit, and how
/// many digits after the point.
type Wanted = (&'static str, &'static str, &'static str, &'static str, &'static str, Limit, usize);

const WANTED: &[Wanted] = &[
    ("crowd of 500, s", "redis", "crowd", "drain_s", "≤ 0.6", Limit::AtMost(0.6), 2),
    ("64 contenders, cycles/s", "postgres", "sixtyfour", "cycles_per_s", "≥ 800", Limit::AtLeast(800.0), 0),
    ("crowd of 500, s", "postgres", "crowd", "drain_s", "≤ 1.5", Limit::AtMost(1.5), 2),
    ("hand-off p50, ms", "mariadb", "handoff", "handoff_p50_ms", "≤ 10", Limit::AtMost(10.0), 2),
    ("hand-off p50, ms", "sqlite", "handoff", "handoff_p50_ms", "≤ 10", Limit::AtMost(10.0), 2),
];

/// The metrics of which the page shows the worst round, not the median.
const WORST: &[&str] = &["wait_max_ms", "failures", "errors", "violations"];

impl Report<'_> {
    fn value(&self, workload: &str, store: &str, metric: &str) -> Option<f64> {
        let runs = self.runs.iter().filter(|run| run.workload == workload && run.store == store);
        let mut values: Vec<f64> = runs
            .filter_map(|run| run.metrics.get(metric))
            .copied()
            .filter(|value| value.is_finite())
            .collect();
        values.sort_unstable_by(f64::total_cmp);
        if WORST.contains(&metric) {
            return values.last().copied();
        }
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some((lower + upper) / 2.0)
    }

    /// The runs during which the machine was not quiet, each with its disturbance.
    pub fn disturbed(&self) -> Vec<String> {
        let disturbed = self.runs.iter().filter_map(|run| {
            let disturbance = run.disturbance.filter(Disturbance::is_too_much)?;
            Some(format!("round {} {} {}: {disturbance}", run.round, run.workload, run.store))
        });
        disturbed.collect()
    }

    /// Writes the figures that the project wants to reach, and the measured ones.
    fn figures(&self, out: &mut String) -> Result<()> {
        writeln!(out, "## Figures to reach\n\n| | wanted | reached | |\n|---|---|---|---|")?;
        for (title, store, workload, metric, wanted, limit, digits) in WANTED {
            let value = self.value(workload, store, metric);
            let met = value.map(|value| match limit {
                Limit::AtLeast(least) => value >= *least,
                Limit::AtMost(most) => value <= *most,
            });
            let reached = value.map_or("–".to_owned(), |value| grouped(value, *digits));
            let verdict = match met {
                Some(true) => "yes",
                Some(false) => "**short**",
                None => "not measured",
            };
            writeln!(out, "| {store}, {title} | {wanted} | {reached} | {verdict} |")?;
        }
        writeln!(out)?;
        Ok(())
    }

    pub fn text(&self) -> Result<String> {
        let mut out = String::new();
        self.head(&mut out)?;
        for workload in WORKLOADS {
            writeln!(out, "## {}\n", workload.title)?;
            self.table(&mut out, workload)?;
        }
        Ok(out)
    }

    /// Writes the machine, the stores, and the figures to reach.
    fn head(&self, out: &mut String) -> Result<()> {
        let Machine { cores, cpu, kernel, rustc, load, .. } = &self.machine;
        writeln!(out, "{cores} cores, {cpu}, {kernel}; {rustc}. Load average at the start: {load}.\n")?;
        writeln!(out, "| store | what ran |\n|---|---|")?;
        for Place { name, about, .. } in self.stores {
            writeln!(out, "| {name} | {about} |")?;
        }
        writeln!(out)?;
        for store in self.left_out {
            writeln!(out, "Left out: {store}.\n")?;
        }
        if self.quick {
            writeln!(out, "**A quick run: it shows that everything runs, its figures mean nothing.**\n")?;
        } else {
            let (rounds, seconds) = (self.rounds, self.seconds);
            writeln!(
                out,
                "Medians of {rounds} rounds, {seconds} s each; longest waits, failures and errors: the worst round.\n"
            )?;
        }
        self.figures(out)
    }

    /// Whether a call or a whole run failed with this workload on this store.
    fn has_failed(&self, workload: &str, store: &str) -> bool {
        let failures = ["errors", "failures"].iter();
        failures.filter_map(|metric| self.value(workload, store, metric)).any(|count| count > 0.0)
            || self
                .runs
                .iter()
                .any(|run| run.workload == workload && run.store == store && run.note.is_some())
    }

    fn overview(&self, out: &mut String) -> Result<()> {
        let titles: Vec<_> = OVERVIEW.iter().map(|column| column.0).collect();
        writeln!(
            out,
            "## All stores\n\n| | {} |\n|---|{}",
            titles.join(" | "),
            "---:|".repeat(titles.len())
        )?;
        for Place { name, .. } in self.stores {
            let cells = OVERVIEW.iter().map(|(_, workload, metric, digits)| {
                let red = if self.has_failed(workload, name) { RED } else { "" };
                let value = self.value(workload, name, metric).map(|value| grouped(value, *digits));
                format!("{red}{}", value.as_deref().unwrap_or("–"))
            });
            writeln!(out, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "))?;
        }
        Ok(writeln!(out, "\n[The charts](../charts)")?)
    }

    fn table(&self, out: &mut String, workload: &Workload) -> Result<()> {
        let columns = columns(workload.kind);
        let titles: Vec<_> = columns.iter().map(|column| column.0).collect();
        writeln!(out, "| | {} |\n|---|{}", titles.join(" | "), "---:|".repeat(columns.len()))?;
        for Place { name, .. } in self.stores {
            let cells = columns.iter().map(|(_, metric, digits)| {
                self.value(workload.id, name, metric)
                    .map_or("–".to_owned(), |value| grouped(value, *digits))
            });
            let red = if self.has_failed(workload.id, name) { RED } else { "" };
            writeln!(out, "| {red}{name} | {} |", cells.collect::<Vec<_>>().join(" | "))?;
        }
        writeln!(out)?;
        for run in self.runs.iter().filter(|run| run.workload == workload.id) {
            if let Some(note) = &run.note {
                writeln!(out, "{}, round {}: {note}.\n", run.store, run.round)?;
            }
        }
        if workload.kind == Kind::Crowd {
            writeln!(
                out,
                "A failure is a client that could not connect, or was not served within {DRAIN_LIMIT:?}.\n"
            )?;
        }
        Ok(())
    }

    pub fn write(&self, docs: &Path) -> Result<()> {
        let mut page = String::new();
        self.head(&mut page)?;
        self.overview(&mut page)?;
        write_both(docs, "stores.md", HEAD, &page, &self.text()?)?;
        let folder = docs.join("charts");
        std::fs::create_dir_all(&folder)?;
        for workload in WORKLOADS {
            for (file, title, metric) in charts(workload) {
                let bars: Vec<_> = self
                    .stores
                    .iter()
                    .filter_map(|place| {
                        let value = self.value(workload.id, &place.name, metric)?;
                        Some(Bar { label: place.name.clone(), value, ours: true })
                    })
                    .collect();
                chart::write(
                    &folder.join(format!("stores-{}-{file}.svg", workload.id)),
                    &format!("{}: {title}", workload.title),
                    &bars,
                )?;
            }
        }
        Ok(())
    }
}

/// A workload's charts: the end of the file's name, the title, the metric.
fn charts(workload: &Workload) -> &'static [(&'static str, &'static str, &'static str)] {
    match workload.kind {
        Kind::Cycles | Kind::Guards => &[("cycles", "cycles/s", "cycles_per_s")],
        Kind::Handoff => &[("p50", "ms from unlock to lock, median", "handoff_p50_ms")],
        Kind::Crowd => &[("drain", "s until all were served", "drain_s")],
    }
}

pub fn progress(round: usize, workload: &str, store: &str, metrics: &Metrics, note: Option<&str>) -> String {
    let shown = ["cycles_per_s", "handoff_p50_ms", "drain_s", "failures", "attempts_per_grant", "violations"];
    let figures: Vec<_> = shown
        .iter()
        .filter_map(|name| Some(format!("{name} {}", grouped(*metrics.get(*name)?, 2))))
        .collect();
    format!("{round} {workload:<10} {store:<12} {} {}", figures.join("  "), note.unwrap_or_default())
}
