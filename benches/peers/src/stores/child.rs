//! Contenders on one store under one load, in a separate process that prints its measurements as JSON.
//!
//! Each contender has one thread and its own client, like a process; locks in transactions share a pool.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use leasehold::{AcquireOptions, Event, LockClient, MemoryStore, Observer, RedisLock};

use super::transactions::Transactions;
use crate::load::{HOLD, PAUSE};
use crate::rounds::Metrics;
use crate::stamp;
use crate::tally::Waits;

/// The work of the contenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Lock and unlock one key without a pause.
    Cycles,
    /// As `Cycles`, with guards that are dropped.
    Guards,
    /// Two contenders: each holds the lock for a few ms, pauses, and acquires it again.
    Handoff,
    /// All contenders wait for a lock that is held; then each acquires it once.
    Crowd,
}

#[derive(Args, Clone, Debug)]
pub struct One {
    #[arg(long)]
    pub store: String,
    #[arg(long)]
    pub url: String,
    #[arg(long)]
    pub kind: Kind,
    #[arg(long)]
    pub contenders: usize,
    #[arg(long)]
    pub seconds: f64,
    #[arg(long)]
    pub name: String,
}

/// How long a crowd may take until each of its members has had the lock.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// How long a crowd waits before the lock is released.
const SETTLE: Duration = Duration::from_secs(3);
/// A small stack, because a crowd has hundreds of threads.
const STACK: usize = 256 * 1024;

pub(super) trait Contender: Send {
    /// Runs the work under the lock; `false` if the lock was not acquired in time.
    fn visit(&mut self, until: Instant, inside: &mut dyn FnMut()) -> Result<bool>;
}

/// How often the contenders acquired a lock, and how many attempts that took.
#[derive(Default)]
struct Asked {
    grants: AtomicU64,
    attempts: AtomicU64,
}

struct Counting(Arc<Asked>);

impl Observer for Counting {
    fn event(&self, event: &Event<'_>) {
        if let Event::Acquired { attempts, .. } = *event {
            self.0.grants.fetch_add(1, Ordering::Relaxed);
            self.0.attempts.fetch_add(u64::from(attempts), Ordering::Relaxed);
        }
    }
}

struct Maker<'a> {
    one: &'a One,
    asked: Arc<Asked>,
    memory: MemoryStore,
    /// The database, if the locks under test belong to its transactions.
    transactions: Option<Transactions>,
    is_first: AtomicBool,
}

struct Leased {
    lock: RedisLock,
    /// Whether the contender drops its guards instead of calling `unlock`.
    drops: bool,
}

impl Contender for Leased {
    fn visit(&mut self, until: Instant, inside: &mut dyn FnMut()) -> Result<bool> {
        let Some(guard) = self.lock.acquire_with(&AcquireOptions::new().deadline(until))? else {
            return Ok(false);
        };
        inside();
        if self.drops {
            drop(guard);
        } else {
            guard.unlock()?;
        }
        Ok(true)
    }
}

impl<'a> Maker<'a> {
    fn new(one: &'a One) -> Result<Maker<'a>> {
        Ok(Maker {
            one,
            asked: Arc::default(),
            memory: MemoryStore::new(),
            transactions: Transactions::open(&one.store, &one.url)?,
            is_first: AtomicBool::new(true),
        })
    }

    /// Makes a contender, with what its store needs besides a URL.
    fn make(&self) -> Result<Box<dyn Contender>> {
        if let Some(transactions) = &self.transactions {
            return Ok(transactions.contender(&self.one.name));
        }
        let builder = LockClient::builder().observer(Counting(Arc::clone(&self.asked)));
        let client = match self.one.store.as_str() {
            "memory" => builder.build_in_memory(&self.memory)?,
            "postgres" | "mariadb" | "sqlite" => {
                let is_first = self.is_first.swap(false, Ordering::Relaxed);
                builder.url(&self.one.url).create_schema(is_first).build()?
            }
            "postgres-session" | "mariadb-session" => builder.url(&self.one.url).session_locks().build()?,
            _ => builder.url(&self.one.url).build()?,
        };
        let name = &self.one.name;
        let lock =
            if self.one.store == "redis-fair" { client.get_fair_lock(name) } else { client.get_lock(name) };
        Ok(Box::new(Leased { lock, drops: self.one.kind == Kind::Guards }))
    }

    /// Adds the attempts per grant to the metrics. Transactions report no attempts: they wait in the server.
    fn note_asked(&self, metrics: &mut Metrics) {
        let grants = self.asked.grants.load(Ordering::Relaxed) as f64;
        if grants > 0.0 {
            let attempts = self.asked.attempts.load(Ordering::Relaxed) as f64;
            metrics.insert("attempts_per_grant".into(), attempts / grants);
        }
    }
}

pub fn run(one: &One) -> Result<()> {
    let maker = Maker::new(one)?;
    let metrics = match one.kind {
        Kind::Cycles | Kind::Guards => cycles(&maker, one)?,
        Kind::Handoff => handoff(&maker, one)?,
        Kind::Crowd => crowd(&maker, one)?,
    };
    println!("{}", serde_json::to_string(&metrics)?);
    Ok(())
}

/// The data that only the lock protects.
#[derive(Default)]
struct Guarded {
    value: AtomicU64,
    inside: AtomicBool,
    violations: AtomicU64,
}

impl Guarded {
    fn visit(&self) {
        if self.inside.swap(true, Ordering::SeqCst) {
            self.violations.fetch_add(1, Ordering::SeqCst);
        }
        let value = self.value.load(Ordering::SeqCst);
        self.value.store(value + 1, Ordering::SeqCst);
        self.inside.store(false, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Part {
    cycles: u64,
    waits: Waits,
    errors: u64,
    error: Option<String>,
}

impl Part {
    fn failed(&mut self, error: &anyhow::Error) -> bool {
        self.errors += 1;
        self.error.get_or_insert_with(|| format!("{error:#}"));
        self.errors < 20
    }
}

fn spawn<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> Result<()> {
    thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)?;
    Ok(())
}

fn cycles(maker: &Maker<'_>, one: &One) -> Result<Metrics> {
    let contenders = (0..one.contenders).map(|_| maker.make()).collect::<Result<Vec<_>>>()?;
    let (guarded, parts) = (Guarded::default(), Mutex::new(Vec::new()));
    let start = Barrier::new(contenders.len() + 1);
    let (warm, span) = (Duration::from_millis(500), Duration::from_secs_f64(one.seconds));
    let mut cpu = Duration::ZERO;
    thread::scope(|scope| -> Result<()> {
        for mut contender in contenders {
            let (guarded, parts, start) = (&guarded, &parts, &start);
            spawn(scope, move || {
                let mut part = Part::default();
                start.wait();
                let counts = Instant::now() + warm;
                let ends = counts + span;
                while Instant::now() < ends {
                    let asked = Instant::now();
                    let mut waited = None;
                    let cycle = contender.visit(ends, &mut || {
                        waited = Some(asked.elapsed());
                        guarded.visit();
                    });
                    match cycle {
                        Ok(had) if asked >= counts => {
                            let waited = waited.unwrap_or_else(|| asked.elapsed());
                            part.waits.record(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
                            part.cycles += u64::from(had && Instant::now() < ends);
                        }
                        Ok(_) => {}
                        Err(error) => {
                            if !part.failed(&error) {
                                break;
                            }
                        }
                    }
                }
                parts.lock().expect("nobody panics").push(part);
            })?;
        }
        start.wait();
        thread::sleep(warm);
        cpu = stamp::cpu();
        thread::sleep(span);
        cpu = stamp::cpu() - cpu;
        Ok(())
    })?;
    let parts = parts.into_inner().expect("nobody panics");
    let mut metrics = Metrics::new();
    let all: u64 = parts.iter().map(|part| part.cycles).sum();
    let (fewest, most) =
        (parts.iter().map(|part| part.cycles).min(), parts.iter().map(|part| part.cycles).max());
    let mut waits = Waits::default();
    parts.iter().for_each(|part| waits.merge(&part.waits));
    metrics.insert("cycles_per_s".into(), all as f64 / one.seconds);
    metrics.insert("wait_p50_ms".into(), waits.quantile_us(0.5).unwrap_or(f64::NAN) / 1e3);
    metrics.insert("wait_p99_ms".into(), waits.quantile_us(0.99).unwrap_or(f64::NAN) / 1e3);
    metrics.insert("wait_max_ms".into(), waits.max_us() / 1e3);
    metrics.insert("evenness".into(), fewest.unwrap_or(0) as f64 / most.unwrap_or(0).max(1) as f64);
    metrics.insert("cpu_us_per_cycle".into(), cpu.as_secs_f64() * 1e6 / all.max(1) as f64);
    maker.note_asked(&mut metrics);
    finish(&mut metrics, &parts, &guarded);
    Ok(metrics)
}

fn finish(metrics: &mut Metrics, parts: &[Part], guarded: &Guarded) {
    metrics.insert("violations".into(), guarded.violations.load(Ordering::SeqCst) as f64);
    metrics.insert("errors".into(), parts.iter().map(|part| part.errors).sum::<u64>() as f64);
    let mut said = BTreeMap::new();
    for error in parts.iter().filter_map(|part| part.error.clone()) {
        *said.entry(error).or_insert(0_u32) += 1;
    }
    for (error, count) in said {
        eprintln!("    {count} × {error}");
    }
}

fn handoff(maker: &Maker<'_>, one: &One) -> Result<Metrics> {
    let contenders = [maker.make()?, maker.make()?];
    let (guarded, parts) = (Guarded::default(), Mutex::new(Vec::new()));
    // When a contender was last about to release the lock, and which contender.
    let released = Mutex::new((Instant::now(), usize::MAX));
    thread::scope(|scope| -> Result<()> {
        for (me, mut contender) in contenders.into_iter().enumerate() {
            let (guarded, parts, released) = (&guarded, &parts, &released);
            spawn(scope, move || {
                let mut part = Part::default();
                let ends = Instant::now() + Duration::from_secs_f64(one.seconds + 0.5);
                while Instant::now() < ends {
                    let asked = Instant::now();
                    let turn = contender.visit(ends, &mut || {
                        let have = Instant::now();
                        let (at, by) = *released.lock().expect("nobody panics");
                        if by != me && at > asked {
                            let ns = have.duration_since(at).as_nanos();
                            part.waits.record(u64::try_from(ns).unwrap_or(u64::MAX));
                            part.cycles += 1;
                        }
                        guarded.visit();
                        thread::sleep(HOLD);
                        *released.lock().expect("nobody panics") = (Instant::now(), me);
                    });
                    if let Err(error) = turn
                        && !part.failed(&error)
                    {
                        break;
                    }
                    thread::sleep(PAUSE);
                }
                parts.lock().expect("nobody panics").push(part);
            })?;
        }
        Ok(())
    })?;
    let parts = parts.into_inner().expect("nobody panics");
    let mut waits = Waits::default();
    parts.iter().for_each(|part| waits.merge(&part.waits));
    let mut metrics = Metrics::new();
    metrics.insert("handoff_p50_ms".into(), waits.quantile_us(0.5).unwrap_or(f64::NAN) / 1e3);
    metrics.insert("handoff_p99_ms".into(), waits.quantile_us(0.99).unwrap_or(f64::NAN) / 1e3);
    metrics.insert("handoffs".into(), parts.iter().map(|part| part.cycles).sum::<u64>() as f64);
    finish(&mut metrics, &parts, &guarded);
    Ok(metrics)
}

fn crowd(maker: &Maker<'_>, one: &One) -> Result<Metrics> {
    let begun = Instant::now();
    let mut holder = maker.make()?;
    let mut refused = Part::default();
    let mut contenders = Vec::new();
    for _ in 0..one.contenders {
        match maker.make() {
            Ok(contender) => contenders.push(contender),
            Err(error) => {
                refused.failed(&error);
            }
        }
    }
    let connected_s = begun.elapsed().as_secs_f64();
    let (guarded, parts, asking) = (Guarded::default(), Mutex::new(Vec::new()), AtomicUsize::new(0));
    let served = AtomicUsize::new(0);
    let last = Mutex::new(Instant::now());
    let (count, mut metrics) = (contenders.len(), Metrics::new());
    let mut released = Instant::now();
    let (have, held) = mpsc::channel();
    let (let_go, is_over) = mpsc::channel::<()>();
    thread::scope(|scope| -> Result<()> {
        let holding = thread::Builder::new().spawn_scoped(scope, move || {
            holder.visit(Instant::now() + DRAIN_LIMIT, &mut || {
                have.send(()).ok();
                is_over.recv().ok();
            })
        })?;
        if held.recv().is_err() {
            let refused = holding.join().expect("nobody panics")?;
            anyhow::bail!("nobody has it, and it is not to be had: {refused}");
        }
        for mut contender in contenders {
            let (guarded, parts, asking, served, last) = (&guarded, &parts, &asking, &served, &last);
            spawn(scope, move || {
                let mut part = Part::default();
                asking.fetch_add(1, Ordering::SeqCst);
                let turn = contender
                    .visit(Instant::now() + SETTLE + DRAIN_LIMIT, &mut || guarded.visit())
                    .and_then(|had| {
                        anyhow::ensure!(had, "not served within {DRAIN_LIMIT:?}");
                        Ok(())
                    });
                match turn {
                    Ok(()) => {
                        served.fetch_add(1, Ordering::SeqCst);
                        *last.lock().expect("nobody panics") = Instant::now();
                    }
                    Err(error) => {
                        part.failed(&error);
                    }
                }
                parts.lock().expect("nobody panics").push(part);
            })?;
        }
        while asking.load(Ordering::SeqCst) < count {
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(SETTLE);
        metrics.insert("connections".into(), sockets() as f64);
        // Subtracts this thread, the holder's thread, and the contenders' threads.
        metrics.insert("client_threads".into(), (threads().saturating_sub(count + 2)) as f64);
        released = Instant::now();
        drop(let_go);
        let had = holding.join().expect("nobody panics")?;
        anyhow::ensure!(had, "the holder had nothing");
        Ok(())
    })?;
    let mut parts = parts.into_inner().expect("nobody panics");
    let served = served.into_inner();
    let drained = last.into_inner().expect("nobody panics").saturating_duration_since(released);
    metrics.insert("connect_s".into(), connected_s);
    metrics.insert("served".into(), served as f64);
    metrics.insert("failures".into(), (one.contenders - served) as f64);
    metrics.insert("drain_s".into(), drained.as_secs_f64());
    metrics.insert("grants_per_s".into(), served as f64 / drained.as_secs_f64().max(1e-9));
    maker.note_asked(&mut metrics);
    parts.push(refused);
    finish(&mut metrics, &parts, &guarded);
    Ok(metrics)
}

/// How many connections this process has, from /proc.
fn sockets() -> usize {
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return 0 };
    let is_socket = |link: std::path::PathBuf| link.to_string_lossy().starts_with("socket:");
    open.flatten().filter(|entry| fs::read_link(entry.path()).is_ok_and(is_socket)).count()
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}
