//! leasehold on each of its stores: `./bench stores`.
//!
//! Each round runs every workload on every store, each run in a separate process. The servers' processor time
//! and memory are read from /proc.

pub mod child;
mod page;
mod transactions;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

use crate::machine::Machine;
use crate::quiet::{Disturbance, TICKS_PER_S, Watch};
use crate::rounds::Metrics;
use child::Kind;

#[derive(Args, Debug)]
pub struct Options {
    /// A store: `name|url|pid of its server|description`.
    #[arg(long = "store", required = true)]
    stores: Vec<Place>,
    /// A store that cannot be measured here, and why: `name: reason`.
    #[arg(long)]
    left_out: Vec<String>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long one run of a workload lasts.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// One short round, which shows that the benchmark works, not how fast the stores are.
    #[arg(long)]
    quick: bool,
    /// The file for all results as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The folder of figures/ and charts/.
    #[arg(long)]
    docs: Option<PathBuf>,
}

/// A running store.
#[derive(Clone, Debug, Serialize)]
struct Place {
    name: String,
    url: String,
    /// The server's process, if the store has a server.
    pid: Option<u32>,
    about: String,
}

impl FromStr for Place {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Place> {
        let mut parts = text.splitn(4, '|');
        let mut part = || parts.next().context("name|url|pid|about").map(str::to_owned);
        let (name, url, pid, about) = (part()?, part()?, part()?, part()?);
        let pid = if pid.is_empty() { None } else { Some(pid.parse()?) };
        Ok(Place { name, url, pid, about })
    }
}

struct Workload {
    id: &'static str,
    title: &'static str,
    kind: Kind,
    contenders: usize,
}

const WORKLOADS: &[Workload] = &[
    Workload { id: "one", title: "Uncontended", kind: Kind::Cycles, contenders: 1 },
    Workload { id: "eight", title: "8 contenders", kind: Kind::Cycles, contenders: 8 },
    Workload { id: "sixtyfour", title: "64 contenders", kind: Kind::Cycles, contenders: 64 },
    Workload { id: "guards64", title: "64 contenders, dropped guards", kind: Kind::Guards, contenders: 64 },
    Workload { id: "handoff", title: "Hand-off", kind: Kind::Handoff, contenders: 2 },
    Workload { id: "crowd", title: "A crowd of 500", kind: Kind::Crowd, contenders: 500 },
];

/// One store under one workload in one round.
#[derive(Debug, Serialize)]
struct Run {
    workload: &'static str,
    store: String,
    round: usize,
    metrics: Metrics,
    note: Option<String>,
    /// `None` if it cannot be measured, as on all systems but Linux.
    disturbance: Option<Disturbance>,
}

pub fn run(options: &Options) -> Result<()> {
    let machine = Machine::look(String::new(), None);
    let (rounds, seconds) = if options.quick { (1, 0.5) } else { (options.rounds, options.seconds) };
    let mut runs: Vec<Run> = Vec::new();
    for round in 1..=rounds {
        for workload in WORKLOADS {
            for place in &options.stores {
                let contenders =
                    if options.quick { workload.contenders.min(50) } else { workload.contenders };
                let before = place.pid.map(usage);
                // All stores' servers belong to the benchmark, so their time is no disturbance.
                let servers: Vec<u32> = options.stores.iter().filter_map(|place| place.pid).collect();
                let all =
                    move || Some(servers.iter().map(|pid| usage(*pid).cpu_s * TICKS_PER_S).sum::<f64>());
                let watch = Watch::start(all);
                let measured = measure(place, workload, contenders, seconds, round);
                let (mut metrics, note) = match measured {
                    Ok(metrics) => (metrics, None),
                    Err(error) => (Metrics::new(), Some(format!("{error:#}"))),
                };
                if let (Some(before), Some(after)) = (before, place.pid.map(usage)) {
                    let cycles = metrics.get("cycles_per_s").map(|rate| rate * seconds);
                    if let Some(cycles) = cycles.filter(|cycles| *cycles > 0.0) {
                        // An upper bound, since the server's time includes the warm-up.
                        metrics.insert("server_cpu_us".into(), (after.cpu_s - before.cpu_s) * 1e6 / cycles);
                    }
                    metrics.insert("server_mib".into(), after.mib);
                }
                eprintln!("{}", page::progress(round, workload.id, &place.name, &metrics, note.as_deref()));
                let store = place.name.clone();
                let disturbance = watch.end();
                runs.push(Run { workload: workload.id, store, round, metrics, note, disturbance });
            }
        }
    }
    let report = page::Report {
        machine,
        rounds,
        seconds,
        quick: options.quick,
        stores: &options.stores,
        left_out: &options.left_out,
        runs: &runs,
    };
    if let Some(file) = &options.json {
        fs::write(file, serde_json::to_string_pretty(&runs)?)?;
    }
    let disturbed = report.disturbed();
    if let Some(docs) = &options.docs
        && disturbed.is_empty()
    {
        report.write(docs)?;
    }
    print!("{}", report.text()?);
    let broken: Vec<_> = runs
        .iter()
        .filter(|run| run.metrics.get("violations").is_some_and(|count| *count > 0.0))
        .map(|run| format!("{} in {}", run.store, run.workload))
        .collect();
    if !broken.is_empty() {
        bail!("two holders at once: {}", broken.join(", "));
    }
    if options.docs.is_some() && !disturbed.is_empty() {
        bail!(
            "the page is not written, the machine was not quiet (more than {}):\n  {}",
            Disturbance::limit(),
            disturbed.join("\n  ")
        );
    }
    Ok(())
}

fn measure(
    place: &Place,
    workload: &Workload,
    contenders: usize,
    seconds: f64,
    round: usize,
) -> Result<Metrics> {
    let kind = format!("{:?}", workload.kind).to_lowercase();
    let output = Command::new(std::env::current_exe()?)
        .args(["store", "--store", &place.name, "--url", &place.url, "--kind", &kind])
        .args(["--contenders", &contenders.to_string(), "--seconds", &seconds.to_string()])
        .args(["--name", &format!("bench-{}-{round}", workload.id)])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("the run ended with {}", output.status);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The resources that a server and the processes it started have used.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    cpu_s: f64,
    mib: f64,
}

fn usage(pid: u32) -> Usage {
    // By process id: the parent's id, clock ticks, resident pages.
    let mut processes: BTreeMap<u32, (u32, f64, f64)> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<f64> = rest.split(' ').map(|field| field.parse().unwrap_or(0.0)).collect();
        // `fields` begins with the process's state. 1 is the parent, 21 resident pages, 11 to 14 are times;
        // the last two times are of ended children (PostgreSQL has a child for each connection).
        if let (Some(parent), Some(ticks), Some(pages)) = (fields.get(1), fields.get(11..15), fields.get(21))
        {
            processes.insert(pid, (*parent as u32, ticks.iter().sum(), *pages));
        }
    }
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(processes.iter().filter(|(_, process)| process.0 == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    let mut usage = Usage::default();
    for (_, ticks, pages) in family.iter().filter_map(|pid| processes.get(pid)) {
        usage.cpu_s += ticks / TICKS_PER_S;
        usage.mib += pages * 4096.0 / 1024.0 / 1024.0;
    }
    usage
}
