//! The rounds: every workload with every peer in turn, repeatedly, and the results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::kept::Kept;
use crate::link;
use crate::load::{Kind, Sort};
use crate::machine::Machine;
use crate::monitor::Monitor;
use crate::pin::Pinned;
use crate::process::Driver;
use crate::quiet::{Disturbance, Watch, process};
use crate::report;
use crate::server::{Control, Counters};
use crate::tally::{Outcome, Waits};
use crate::workload::{WORKLOADS, Workload, smaller_crowd};

#[derive(Args, Debug)]
pub struct Options {
    /// The server to load; all its data is deleted.
    #[arg(long)]
    url: String,
    /// How many rounds are measured, besides round 0.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long one run of a workload lasts.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// One short round of everything, which shows that the benchmark works, not how fast the peers are.
    #[arg(long)]
    quick: bool,
    /// Only these workloads.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these peers.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// The file for all results as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The file for finished runs, one line each.
    #[arg(long)]
    runs: Option<PathBuf>,
    /// Skips the runs that `--runs` already has, if commit, settings and machine are the same.
    #[arg(long, requires = "runs", requires = "commit")]
    resume: bool,
    /// The commit that is measured.
    #[arg(long)]
    commit: Option<String>,
    /// The folder of figures/ and charts/.
    #[arg(long)]
    docs: Option<PathBuf>,
    /// The Go peers' program.
    #[arg(long)]
    go: Option<String>,
    /// The Java peer's jar.
    #[arg(long)]
    jar: Option<String>,
    /// A Python that has redis-py.
    #[arg(long)]
    python: Option<String>,
    /// The Python peer's script.
    #[arg(long)]
    script: Option<String>,
    /// A peer that cannot run here, and why: `name: reason`.
    #[arg(long)]
    left_out: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    pub rounds: usize,
    pub seconds: f64,
    pub quick: bool,
    pub held_seconds: f64,
    pub held_locks: usize,
    pub waiting_seconds: f64,
    pub waiting_threads: usize,
    pub crowd: usize,
}

pub type Metrics = BTreeMap<String, f64>;

/// One peer under one workload in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub workload: String,
    pub peer: String,
    /// The number of the round. Round 0 is under MONITOR; only its numbers of requests are used.
    pub round: usize,
    pub metrics: Metrics,
    pub version: String,
    /// What failed during the run.
    pub note: Option<String>,
    /// `None` if it cannot be measured, as on all systems but Linux.
    pub disturbance: Option<Disturbance>,
}

impl Run {
    /// Whether this is a counted run during which the machine was not quiet.
    pub fn is_disturbed(&self) -> bool {
        self.round > 0 && self.disturbance.is_some_and(|disturbance| disturbance.is_too_much())
    }
}

struct Bench<'a> {
    options: &'a Options,
    settings: Settings,
    control: Control,
    /// The server's process id.
    server: u32,
    counter: PathBuf,
    kept: Kept,
}

/// How long a driver may take beyond its time before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(15);

pub fn run(options: &Options) -> Result<()> {
    let quick = options.quick;
    let settings = Settings {
        rounds: if quick { 1 } else { options.rounds },
        seconds: if quick { 0.4 } else { options.seconds },
        quick,
        held_seconds: if quick { 3.0 } else { 30.0 },
        held_locks: if quick { 1000 } else { 10_000 },
        waiting_seconds: if quick { 1.0 } else { 5.0 },
        waiting_threads: if quick { 100 } else { 1000 },
        crowd: if quick { 50 } else { 500 },
    };
    for name in &options.only {
        if !WORKLOADS.iter().any(|workload| workload.id == name) {
            let known: Vec<_> = WORKLOADS.iter().map(|workload| workload.id).collect();
            bail!("no workload {name}; there are {}", known.join(", "));
        }
    }
    for name in &options.peers {
        if !WORKLOADS.iter().any(|workload| workload.peers.contains(&name.as_str())) {
            bail!("no peer {name}");
        }
    }
    let mut control = Control::connect(&options.url)?;
    let machine = Machine::look(control.version()?, options.python.as_deref());
    let counter = std::env::temp_dir().join(format!("leasehold-bench-{}", std::process::id()));
    let kept = match &options.runs {
        Some(path) => {
            let machine = Machine { load: String::new(), ..machine.clone() };
            Kept::open(path, &(&options.commit, &settings, machine), options.resume)?
        }
        None => Kept::default(),
    };
    let server = control.pid()?;
    let mut bench = Bench { options, settings, control, server, counter, kept };
    let runs = bench.rounds();
    drop(std::fs::remove_file(&bench.counter));
    let report = report::Report::new(machine, bench.settings, options.left_out.clone(), runs?);
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)?;
    }
    let disturbed = report.disturbed();
    if let Some(docs) = &options.docs
        && disturbed.is_empty()
    {
        report.write(docs)?;
    }
    print!("{}", report.text());
    let violations = report.violations();
    if !violations.is_empty() {
        bail!("two holders at once: {}", violations.join(", "));
    }
    let failures = report.failures();
    if !failures.is_empty() {
        bail!("calls failed: {}", failures.join(", "));
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

impl Bench<'_> {
    fn rounds(&mut self) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        for round in 0..=self.settings.rounds {
            for workload in WORKLOADS {
                if !self.options.only.is_empty() && !self.options.only.iter().any(|id| id == workload.id) {
                    continue;
                }
                // These workloads use MONITOR in every round, so they need no round 0, which is for MONITOR.
                if round == 0 && matches!(workload.kind, Kind::Held | Kind::Waiters) {
                    continue;
                }
                let is_wanted = |peer: &str| {
                    let failed = runs.iter().filter(|run| {
                        run.workload == workload.id && run.peer == peer && run.metrics.is_empty()
                    });
                    let asked = &self.options.peers;
                    (asked.is_empty() || asked.iter().any(|name| name == peer)) && failed.count() < 2
                };
                let peers = workload.peers.iter().filter(|peer| is_wanted(peer));
                let peers: Vec<_> = peers.filter_map(|peer| Some((*peer, self.program(peer)?))).collect();
                // Ratios compare peers of the same round, and the machine may have changed since a kept run.
                // So if one peer's run is missing, all peers run again.
                let kept = peers.iter().map(|(peer, _)| self.kept.find(workload.id, peer, round));
                if let Some(kept) = kept.collect::<Option<Vec<_>>>() {
                    runs.extend(kept);
                    continue;
                }
                for (peer, program) in peers {
                    let run = self.run(workload, peer, &program, round)?;
                    eprintln!("{}", report::progress(&run));
                    self.kept.add(&run)?;
                    runs.push(run);
                }
            }
        }
        Ok(runs)
    }

    fn program(&self, peer: &str) -> Option<Vec<String>> {
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        match peer {
            "redsync" | "rueidislock" => words(&[self.options.go.as_deref()?]),
            // With UsePerfData a JVM may print a warning on standard output, where "ready" is expected.
            "redisson" => words(&["java", "-XX:-UsePerfData", "-jar", self.options.jar.as_deref()?]),
            "redis-py" => words(&[self.options.python.as_deref()?, self.options.script.as_deref()?]),
            _ => words(&[std::env::current_exe().ok()?.to_str()?, "drive"]),
        }
    }

    fn run(&mut self, workload: &Workload, peer: &str, program: &[String], round: usize) -> Result<Run> {
        self.control.flush()?;
        std::fs::write(&self.counter, 0_u64.to_le_bytes())?;
        let seconds = if round == 0 { self.settings.seconds.min(0.5) } else { self.settings.seconds };
        let seconds = if self.settings.quick { seconds } else { seconds.max(workload.least_seconds()) };
        let warmup = match (self.settings.quick, peer) {
            (true, _) => 0.2,
            (false, "redisson") => 2.0,
            (false, _) => 0.5,
        };
        let (threads, keys) = match workload.kind {
            Kind::Held => (1, self.settings.held_locks),
            Kind::Waiters => (self.settings.waiting_threads, 1),
            Kind::Crowd => (self.crowd(peer), 1),
            Kind::Cycles | Kind::Handoff | Kind::Holder => (workload.threads, workload.keys),
        };
        // Only the holder starts here; the waiting process starts when the lock is held.
        let (kind, processes) = match workload.kind {
            Kind::Waiters | Kind::Crowd => (Kind::Holder, 1),
            kind => (kind, workload.processes),
        };
        let kind = format!("{kind:?}").to_lowercase();
        let url = match workload.link_ms {
            0 => self.options.url.clone(),
            _ => link::far(&self.options.url, workload.link())?,
        };
        let mut arguments: Vec<String> = Vec::new();
        for (flag, value) in [
            ("--peer", peer.to_owned()),
            ("--kind", kind),
            ("--threads", threads.to_string()),
            ("--keys", keys.to_string()),
            ("--seconds", seconds.to_string()),
            ("--warmup", warmup.to_string()),
            ("--url", url),
            ("--name", format!("bench:{}:{round}", workload.id)),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        if workload.processes > 1 {
            arguments.extend(["--counter".to_owned(), path(&self.counter)?]);
        }
        // Only peers that have other locks than plain ones know the argument `--sort`.
        let sort = match workload.sort {
            Sort::Plain => None,
            Sort::Permits => Some("permits"),
            Sort::ReadWrite => Some("read-write"),
        };
        arguments.extend(sort.into_iter().flat_map(|sort| ["--sort".to_owned(), sort.to_owned()]));
        if workload.work_us > 0 {
            arguments.extend(["--work-us".to_owned(), workload.work_us.to_string()]);
        }
        let server = self.server.to_string();
        let watch = Watch::start(move || Some(process(&server)?.own));
        let pinned = workload.cores.map(|cores| Pinned::new(self.server, cores)).transpose();
        let (pinned, not_pinned) = match pinned {
            Ok(pinned) => (pinned, None),
            Err(error) => (None, Some(format!("not pinned to cores: {error:#}"))),
        };
        let program = &pinned.as_ref().map_or(program.to_vec(), |pinned| pinned.command(program));
        let measured = (0..processes)
            .map(|_| Driver::start(program, &arguments))
            .collect::<Result<Vec<_>>>()
            .and_then(|drivers| {
                let patience = Duration::from_secs_f64(seconds + warmup + processes as f64) + PATIENCE;
                match workload.kind {
                    Kind::Cycles => self.cycles(drivers, patience, round == 0),
                    Kind::Handoff => self.handoff(drivers, patience, round == 0),
                    Kind::Held => self.held(drivers),
                    Kind::Waiters => self.waiters(drivers, program, &arguments),
                    Kind::Crowd => self.crowd_of(threads, drivers, program, &arguments, round == 0),
                    Kind::Holder => bail!("not a load of its own"),
                }
            });
        let (metrics, version, note) = match measured {
            Ok((metrics, version, note)) => (metrics, version, note),
            Err(error) => (Metrics::new(), String::new(), Some(format!("{error:#}"))),
        };
        drop(pinned);
        let notes: Vec<String> = not_pinned.into_iter().chain(note).collect();
        Ok(Run {
            workload: workload.id.to_owned(),
            peer: peer.to_owned(),
            round,
            metrics,
            version,
            note: (!notes.is_empty()).then(|| notes.join("; ")),
            disturbance: watch.end(),
        })
    }

    /// Tells all drivers to go at once; returns their answers, and the server's counters before and after.
    fn race(&mut self, drivers: &mut [Driver], patience: Duration, monitored: bool) -> Result<Race> {
        let race = self.race_of(drivers, patience, monitored);
        if race.is_err() {
            // Dropping a driver gives it 2 s to end, one driver after the other, so all are killed first.
            drivers.iter_mut().for_each(Driver::kill);
        }
        race
    }

    fn race_of(&mut self, drivers: &mut [Driver], patience: Duration, monitored: bool) -> Result<Race> {
        let deadline = Instant::now() + patience;
        for driver in drivers.iter_mut() {
            if !driver.hear("ready", deadline)? {
                bail!("hung before the start");
            }
        }
        let mut monitor = if monitored { Some(Monitor::start(&self.options.url)?) } else { None };
        if let Some(monitor) = &mut monitor {
            monitor.count(&mut self.control)?;
        }
        let before = self.control.counters()?;
        for driver in drivers.iter_mut() {
            driver.tell("go")?;
        }
        let deadline = Instant::now() + patience;
        let mut outcomes = Vec::new();
        for driver in drivers.iter_mut() {
            let Some(line) = driver.line(deadline)? else { bail!("hung") };
            outcomes.push(outcome(&line)?);
        }
        let after = self.control.counters()?;
        let sent = match &mut monitor {
            Some(monitor) => Some(monitor.count(&mut self.control)?),
            None => None,
        };
        Ok(Race { outcomes, before, after, sent })
    }

    fn cycles(&mut self, mut drivers: Vec<Driver>, patience: Duration, monitored: bool) -> Result<Measured> {
        let race = self.race(&mut drivers, patience, monitored)?;
        if monitored {
            return race.sent_only();
        }
        let mut metrics = race.common();
        let Some(first) = race.outcomes.first() else { bail!("nobody ran") };
        let by_process: Vec<u64> = race.outcomes.iter().map(|outcome| outcome.cycles.iter().sum()).collect();
        let by_thread: Vec<u64> =
            race.outcomes.iter().flat_map(|outcome| outcome.cycles.iter().copied()).collect();
        put(&mut metrics, "cycles_per_s", by_process.iter().sum::<u64>() as f64 / first.seconds);
        if by_thread.len() > 1 {
            put(&mut metrics, "threads_evenness", evenness(&by_thread));
        }
        if by_process.len() > 1 {
            put(&mut metrics, "processes_evenness", evenness(&by_process));
            put(&mut metrics, "violations", self.violations(&race)?);
        }
        let mut waits = Waits::default();
        for outcome in &race.outcomes {
            waits.merge(&outcome.waits);
        }
        for (name, share) in [("wait_p50_us", 0.5), ("wait_p99_us", 0.99)] {
            put(&mut metrics, name, waits.quantile_us(share).unwrap_or(f64::NAN));
        }
        put(&mut metrics, "wait_max_us", waits.max_us());
        race.done(metrics)
    }

    /// Lost updates: inside the processes, or of the number that the processes share, whichever are more.
    fn violations(&self, race: &Race) -> Result<f64> {
        let bytes = std::fs::read(&self.counter)?;
        let counted = u64::from_le_bytes(bytes.as_slice().try_into().context("the counter's file")?);
        let entered: u64 = race.outcomes.iter().map(|outcome| outcome.entered).sum();
        let inside: u64 = race.outcomes.iter().map(|outcome| outcome.violations).sum();
        Ok(entered.abs_diff(counted).max(inside) as f64)
    }

    fn handoff(&mut self, mut drivers: Vec<Driver>, patience: Duration, monitored: bool) -> Result<Measured> {
        let race = self.race(&mut drivers, patience, monitored)?;
        if monitored {
            return race.sent_only();
        }
        let mut metrics = race.common();
        let mut holds: Vec<Hold> = Vec::new();
        for (process, outcome) in race.outcomes.iter().enumerate() {
            holds.extend(outcome.events.iter().map(|[asked, got, left]| Hold {
                got: *got,
                left: *left,
                asked: *asked,
                process,
            }));
        }
        let overlaps = overlaps(&mut holds);
        let mut latencies = Waits::default();
        let mut counted = 0;
        for ns in hand_overs(&holds) {
            latencies.record(ns);
            counted += 1;
        }
        let by_process: Vec<u64> = race.outcomes.iter().map(|outcome| outcome.cycles.iter().sum()).collect();
        put(&mut metrics, "processes_evenness", evenness(&by_process));
        put(&mut metrics, "violations", self.violations(&race)? + overlaps as f64);
        put(&mut metrics, "handoffs", f64::from(counted));
        for (name, share) in [("handoff_p50_us", 0.5), ("handoff_p99_us", 0.99)] {
            put(&mut metrics, name, latencies.quantile_us(share).unwrap_or(f64::NAN));
        }
        put(&mut metrics, "handoff_max_us", latencies.max_us());
        race.done(metrics)
    }

    fn held(&mut self, mut drivers: Vec<Driver>) -> Result<Measured> {
        let Some(driver) = drivers.first_mut() else { bail!("nobody runs") };
        let locks = self.settings.held_locks as f64;
        if !driver.hear("ready", Instant::now() + PATIENCE)? {
            bail!("hung before the start");
        }
        driver.tell("go")?;
        if !driver.hear("holding", Instant::now() + PATIENCE * 4)? {
            bail!("hung while taking the locks");
        }
        let mut monitor = Monitor::start(&self.options.url)?;
        monitor.count(&mut self.control)?;
        let before = self.control.counters()?;
        let begun = Instant::now();
        sleep(Duration::from_secs_f64(self.settings.held_seconds));
        let after = self.control.counters()?;
        let sent = monitor.count(&mut self.control)?;
        let seconds = begun.elapsed().as_secs_f64();
        let memory = driver.memory();
        let gone = (locks - self.control.keys()? as f64).max(0.0);
        driver.tell("check")?;
        let Some(line) = driver.line(Instant::now() + PATIENCE * 4)? else { bail!("hung") };
        let outcome = outcome(&line)?;
        let mut metrics = Metrics::new();
        put(&mut metrics, "cpu_ms_per_s", outcome.cpu_s / outcome.seconds * 1e3);
        put(&mut metrics, "server_cpu_ms_per_s", (after.cpu_s - before.cpu_s) / seconds * 1e3);
        put(&mut metrics, "sent_per_s", sent as f64 / seconds);
        put(&mut metrics, "reads_per_s", (after.reads - before.reads) / seconds);
        put(&mut metrics, "commands_per_s", (after.commands - before.commands) / seconds);
        put(&mut metrics, "threads", memory.threads);
        // A Rust driver itself has one thread. For Redisson this number includes the threads of the JVM.
        put(&mut metrics, "library_threads", memory.threads - 1.0);
        put(&mut metrics, "connections", after.clients);
        put(&mut metrics, "rss_mib", memory.rss_kib / 1024.0);
        put(&mut metrics, "fill_per_s", locks / outcome.fill_s.unwrap_or(f64::NAN));
        put(&mut metrics, "lost", (outcome.lost.unwrap_or_default() as f64).max(gone));
        put(&mut metrics, "errors", outcome.errors as f64);
        Ok((metrics, outcome.version, outcome.error))
    }

    /// Starts the process that waits for the holder's lock; returns it, and the connection count before.
    fn beside(
        &mut self,
        holder: &mut Driver,
        kind: &str,
        program: &[String],
        arguments: &[String],
    ) -> Result<(Driver, f64)> {
        if !holder.hear("ready", Instant::now() + PATIENCE)? {
            bail!("hung while taking the lock");
        }
        let connections = self.control.counters()?.clients;
        let waiting_instead = |word: &String| if word == "holder" { kind.to_owned() } else { word.clone() };
        let arguments: Vec<String> = arguments.iter().map(waiting_instead).collect();
        let mut waiting = Driver::start(program, &arguments)?;
        if !waiting.hear("ready", Instant::now() + PATIENCE * 4)? {
            bail!("hung before the start");
        }
        Ok((waiting, connections))
    }

    /// How many clients of this peer make a crowd.
    fn crowd(&self, peer: &str) -> usize {
        smaller_crowd(peer).map_or(self.settings.crowd, |(clients, _)| clients.min(self.settings.crowd))
    }

    /// Measures the time from the release of a lock until all waiting clients have had it.
    fn crowd_of(
        &mut self,
        clients: usize,
        mut drivers: Vec<Driver>,
        program: &[String],
        arguments: &[String],
        monitored: bool,
    ) -> Result<Measured> {
        let Some(holder) = drivers.first_mut() else { bail!("nobody runs") };
        let (mut crowd, holders) = self.beside(holder, "crowd", program, arguments)?;
        crowd.tell("go")?;
        if !crowd.hear("waiting", Instant::now() + PATIENCE)? {
            bail!("hung while it began to wait");
        }
        // Long enough for the last waiter to make its attempt and to wait.
        sleep(Duration::from_secs(if self.settings.quick { 1 } else { 3 }));
        let mut monitor = if monitored { Some(Monitor::start(&self.options.url)?) } else { None };
        if let Some(monitor) = &mut monitor {
            monitor.count(&mut self.control)?;
        }
        let before = self.control.counters()?;
        let cpu = holder.cpu_s() + crowd.cpu_s();
        holder.tell("release")?;
        let left = answer(holder)?;
        if !crowd.hear("served", Instant::now() + PATIENCE * 4)? {
            bail!("not all of {clients} were served within {} s", (PATIENCE * 4).as_secs());
        }
        let cpu = holder.cpu_s() + crowd.cpu_s() - cpu;
        let after = self.control.counters()?;
        let sent = monitor.as_mut().map(|monitor| monitor.count(&mut self.control)).transpose()?;
        drop(monitor);
        let outcome = answer(&mut crowd)?;
        let grants = outcome.acquired as f64;
        let mut metrics = Metrics::new();
        if let Some(sent) = sent {
            put(&mut metrics, "sent_per_grant", sent as f64 / grants);
            return Ok((metrics, outcome.version, outcome.error));
        }
        let served = outcome.at_ns.zip(left.at_ns).map(|(done, left)| done.saturating_sub(left) as f64 / 1e9);
        let drained = served.unwrap_or(f64::NAN);
        put(&mut metrics, "clients", clients as f64);
        if outcome.acquired == clients as u64 {
            put(&mut metrics, "drain_s", drained);
            put(&mut metrics, "grants_per_s", grants / drained);
        }
        put(&mut metrics, "cpu_us_per_grant", cpu / grants * 1e6);
        put(&mut metrics, "server_cpu_us_per_grant", (after.cpu_s - before.cpu_s) / grants * 1e6);
        put(&mut metrics, "commands_per_grant", (after.commands - before.commands) / grants);
        put(&mut metrics, "connections", before.clients - holders);
        put(&mut metrics, "missing", clients as f64 - grants);
        put(&mut metrics, "violations", outcome.violations as f64);
        put(&mut metrics, "errors", outcome.errors as f64);
        Ok((metrics, outcome.version, outcome.error))
    }

    fn waiters(
        &mut self,
        mut drivers: Vec<Driver>,
        program: &[String],
        arguments: &[String],
    ) -> Result<Measured> {
        let threads = self.settings.waiting_threads as f64;
        let Some(holder) = drivers.first_mut() else { bail!("nobody runs") };
        let (mut waiting, holders) = self.beside(holder, "waiters", program, arguments)?;
        let driver = &mut waiting;
        let idle = (driver.memory(), self.control.counters()?);
        driver.tell("go")?;
        if !driver.hear("waiting", Instant::now() + PATIENCE)? {
            bail!("hung while it began to wait");
        }
        // Long enough for the last waiter to make its attempt and to subscribe.
        sleep(Duration::from_secs(if self.settings.quick { 1 } else { 2 }));
        let memory = driver.memory();
        let mut monitor = Monitor::start(&self.options.url)?;
        monitor.count(&mut self.control)?;
        let begun = Instant::now();
        sleep(Duration::from_secs_f64(self.settings.waiting_seconds));
        let sent = monitor.count(&mut self.control)?;
        let seconds = begun.elapsed().as_secs_f64();
        let after = self.control.counters()?;
        drop(monitor);
        holder.tell("release")?;
        let (holder, outcome) = (answer(holder)?, answer(driver)?);
        let drained =
            outcome.at_ns.zip(holder.at_ns).map(|(done, left)| done.saturating_sub(left) as f64 / 1e9);
        let beside = |memory: crate::process::Memory| memory.rss_kib - memory.stacks_kib;
        let mut metrics = Metrics::new();
        put(&mut metrics, "sent_per_s", sent as f64 / seconds);
        put(&mut metrics, "connections", after.clients - holders);
        put(&mut metrics, "connections_added", after.clients - idle.1.clients);
        put(&mut metrics, "rss_kib_per_waiter", (memory.rss_kib - idle.0.rss_kib) / threads);
        put(&mut metrics, "beside_stack_kib_per_waiter", (beside(memory) - beside(idle.0)) / threads);
        put(&mut metrics, "threads", memory.threads);
        put(&mut metrics, "drain_s", drained.unwrap_or(f64::NAN));
        put(&mut metrics, "missing", threads - outcome.acquired as f64);
        put(&mut metrics, "violations", outcome.violations as f64);
        put(&mut metrics, "errors", outcome.errors as f64);
        Ok((metrics, outcome.version, outcome.error))
    }
}

type Measured = (Metrics, String, Option<String>);

struct Race {
    outcomes: Vec<Outcome>,
    before: Counters,
    after: Counters,
    sent: Option<u64>,
}

impl Race {
    fn acquired(&self) -> f64 {
        self.outcomes.iter().map(|outcome| outcome.acquired).sum::<u64>() as f64
    }

    fn sent_only(self) -> Result<Measured> {
        let mut metrics = Metrics::new();
        put(&mut metrics, "sent_per_cycle", self.sent.unwrap_or_default() as f64 / self.acquired());
        self.done(metrics)
    }

    fn common(&self) -> Metrics {
        let mut metrics = Metrics::new();
        let acquired = self.acquired();
        let cpu: f64 = self.outcomes.iter().map(|outcome| outcome.cpu_s).sum();
        put(&mut metrics, "commands_per_cycle", (self.after.commands - self.before.commands) / acquired);
        put(&mut metrics, "reads_per_cycle", (self.after.reads - self.before.reads) / acquired);
        put(&mut metrics, "cpu_us_per_cycle", cpu / acquired * 1e6);
        let server = self.after.cpu_s - self.before.cpu_s;
        put(&mut metrics, "server_cpu_us_per_cycle", server / acquired * 1e6);
        let errors: u64 = self.outcomes.iter().map(|outcome| outcome.errors).sum();
        put(&mut metrics, "errors", errors as f64);
        let violations: u64 = self.outcomes.iter().map(|outcome| outcome.violations).sum();
        put(&mut metrics, "violations", violations as f64);
        for (name, calls) in self.after.calls_since(&self.before) {
            if calls > 0.0 && name != "info" && name != "client|list" && name != "client|id" {
                put(&mut metrics, &format!("calls:{name}"), calls / acquired);
            }
        }
        metrics
    }

    fn done(self, metrics: Metrics) -> Result<Measured> {
        let version = self.outcomes.first().map(|outcome| outcome.version.clone()).unwrap_or_default();
        Ok((metrics, version, self.outcomes.into_iter().find_map(|outcome| outcome.error)))
    }
}

/// The times of one hold by a process: CLOCK_MONOTONIC in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hold {
    got: u64,
    left: u64,
    asked: u64,
    process: usize,
}

/// Sorts the holds by time; returns how many began before the previous one had ended.
fn overlaps(holds: &mut [Hold]) -> usize {
    holds.sort_unstable();
    holds.windows(2).filter(|pair| matches!(pair, [before, after] if after.got < before.left)).count()
}

/// The hand-over time of each hold that had to wait: from the first unlock by another process during the wait
/// to the acquisition, even if others had the lock in between.
fn hand_overs(holds: &[Hold]) -> impl Iterator<Item = u64> {
    holds.iter().filter_map(|mine| {
        let others = holds.iter().filter(|hold| hold.process != mine.process);
        let first =
            others.map(|hold| hold.left).filter(|left| (mine.asked..mine.got).contains(left)).min()?;
        Some(mine.got - first)
    })
}

fn answer(driver: &mut Driver) -> Result<Outcome> {
    match driver.line(Instant::now() + PATIENCE * 4)? {
        Some(line) => outcome(&line),
        None => bail!("hung"),
    }
}

fn outcome(line: &str) -> Result<Outcome> {
    serde_json::from_str(line).with_context(|| format!("not a result: {line}"))
}

fn evenness(counts: &[u64]) -> f64 {
    let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
    least.unwrap_or_default() as f64 / most.unwrap_or_default() as f64
}

fn put(metrics: &mut Metrics, name: &str, value: f64) {
    if value.is_finite() {
        metrics.insert(name.to_owned(), value);
    }
}

fn path(path: &Path) -> Result<String> {
    Ok(path.to_str().context("a path that is not text")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Hold, hand_overs, overlaps};

    fn hold(process: usize, asked: u64, got: u64, left: u64) -> Hold {
        Hold { got, left, asked, process }
    }

    #[test]
    fn hand_over_time_starts_at_the_first_unlock_during_the_wait() {
        let mut holds = vec![hold(0, 0, 1, 10), hold(0, 12, 13, 20), hold(1, 5, 25, 30)];
        assert_eq!(overlaps(&mut holds), 0);
        assert_eq!(hand_overs(&holds).collect::<Vec<_>>(), [15]);
    }

    #[test]
    fn an_acquire_without_waiting_is_no_hand_over() {
        let holds = [hold(0, 0, 1, 10), hold(1, 11, 12, 20)];
        assert_eq!(hand_overs(&holds).count(), 0);
    }

    #[test]
    fn overlapping_holds_are_detected() {
        let mut holds = vec![hold(1, 0, 9, 12), hold(0, 0, 1, 10)];
        assert_eq!(overlaps(&mut holds), 1);
    }
}
