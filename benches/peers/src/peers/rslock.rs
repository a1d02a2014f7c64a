//! The crate `rslock`, used from tasks on a tokio runtime, as intended, and from threads.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rslock::{Lock, LockManager};
use tokio::runtime::Runtime;
use tokio::sync::Barrier;
use tokio::time::sleep;

use super::{LEASE_MS, locked_version};
use crate::drive::{Guarded, Peer, Session};
use crate::load::{HOLD, Kind, Load, PAUSE, expect, say};
use crate::stamp;
use crate::tally::{Outcome, Tally};

const LEASE: std::time::Duration = std::time::Duration::from_millis(LEASE_MS as u64);

/// `rslock` used from threads, each of which blocks on the runtime for its own request.
pub struct Threads {
    runtime: Runtime,
    client: LockManager,
}

struct ThreadSession<'a> {
    from: &'a Threads,
    names: Vec<String>,
    held: Option<Lock>,
}

impl Threads {
    pub fn connect(url: &str) -> Result<Threads> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Threads { runtime, client: LockManager::new(vec![url]) })
    }
}

impl Peer for Threads {
    fn session(&self, names: &[String]) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(ThreadSession { from: self, names: names.to_vec(), held: None }))
    }
}

impl Session for ThreadSession<'_> {
    fn lock(&mut self, key: usize) -> Result<()> {
        let name = self.names.get(key).context("no such key")?.as_str();
        let asked = self.from.client.acquire_no_guard(name, LEASE);
        self.held = Some(self.from.runtime.block_on(asked)?);
        Ok(())
    }

    fn unlock(&mut self, _key: usize) -> Result<()> {
        let lock = self.held.take().context("not held")?;
        self.from.runtime.block_on(self.from.client.unlock(&lock));
        Ok(())
    }
}

pub fn drive(load: &Load) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = match load.kind {
        Kind::Cycles => runtime.block_on(cycles(load))?,
        Kind::Handoff => runtime.block_on(handoff(load))?,
        Kind::Holder => runtime.block_on(holder(load))?,
        Kind::Crowd => runtime.block_on(crowd(load))?,
        Kind::Held | Kind::Waiters => bail!("rslock does not renew and does not wake"),
    };
    Ok(Outcome { version: locked_version("rslock"), ..outcome })
}

async fn cycles(load: &Load) -> Result<Outcome> {
    let client = LockManager::new(vec![load.url.as_str()]);
    let guarded = Arc::new(Guarded::new(load)?);
    let (warm, go) = (Arc::new(Barrier::new(load.threads + 1)), Arc::new(Barrier::new(load.threads + 1)));
    let begun = Arc::new(OnceLock::new());
    let names = load.names();
    let mut tasks = Vec::new();
    for number in 0..load.threads {
        let key = number % names.len();
        let name = names.get(key).context("no such key")?.clone();
        let (client, guarded, load) = (client.clone(), Arc::clone(&guarded), load.clone());
        let (warm, go, begun) = (Arc::clone(&warm), Arc::clone(&go), Arc::clone(&begun));
        tasks.push(tokio::spawn(async move {
            let mut before = Tally::default();
            spin(&client, &name, key, &guarded, Instant::now() + load.warmup(), &mut before).await;
            warm.wait().await;
            go.wait().await;
            let mut tally = Tally {
                entered: before.entered,
                errors: before.errors,
                error: before.error,
                ..Tally::default()
            };
            let end = *begun.get_or_init(Instant::now) + load.seconds();
            spin(&client, &name, key, &guarded, end, &mut tally).await;
            tally
        }));
    }
    warm.wait().await;
    say("ready")?;
    tokio::task::block_in_place(|| expect("go"))?;
    let cpu = stamp::cpu();
    go.wait().await;
    let mut tallies = Vec::new();
    for task in tasks {
        tallies.push(task.await?);
    }
    let mut outcome = Outcome::of(tallies);
    outcome.seconds = load.seconds;
    outcome.cpu_s = (stamp::cpu() - cpu).as_secs_f64();
    outcome.violations = guarded.violations(outcome.entered);
    Ok(outcome)
}

async fn spin(
    client: &LockManager,
    name: &str,
    key: usize,
    guarded: &Guarded,
    end: Instant,
    tally: &mut Tally,
) {
    loop {
        let asked = Instant::now();
        if asked >= end {
            return;
        }
        let held = match client.acquire_no_guard(name, LEASE).await {
            Ok(held) => held,
            Err(error) if tally.failed(&error) => continue,
            Err(_) => return,
        };
        let got = Instant::now();
        tally.waits.record(u64::try_from((got - asked).as_nanos()).unwrap_or(u64::MAX));
        tally.acquired += 1;
        tally.entered += 1;
        tally.cycles += u64::from(got < end);
        if let Err(error) = guarded.enter(key) {
            tally.failed(error);
        }
        client.unlock(&held).await;
    }
}

async fn handoff(load: &Load) -> Result<Outcome> {
    let client = LockManager::new(vec![load.url.as_str()]);
    let guarded = Guarded::new(load)?;
    let name = load.names().first().context("no key")?.clone();
    let mut before = Tally::default();
    spin(&client, &name, 0, &guarded, Instant::now() + load.warmup(), &mut before).await;
    let mut tally = Tally { entered: before.entered, errors: before.errors, ..Tally::default() };
    say("ready")?;
    expect("go")?;
    let cpu = stamp::cpu();
    let end = Instant::now() + load.seconds();
    while Instant::now() < end {
        let asked = stamp::now_ns();
        let held = client.acquire_no_guard(name.as_str(), LEASE).await?;
        let got = stamp::now_ns();
        guarded.enter(0)?;
        sleep(HOLD).await;
        let leaving = stamp::now_ns();
        client.unlock(&held).await;
        tally.events.push([asked, got, leaving]);
        tally.waits.record(got - asked);
        tally.cycles += 1;
        tally.acquired += 1;
        tally.entered += 1;
        sleep(PAUSE).await;
    }
    let mut outcome = Outcome::of(vec![tally]);
    outcome.seconds = load.seconds;
    outcome.cpu_s = (stamp::cpu() - cpu).as_secs_f64();
    outcome.violations = guarded.violations(outcome.entered);
    Ok(outcome)
}

async fn holder(load: &Load) -> Result<Outcome> {
    let client = LockManager::new(vec![load.url.as_str()]);
    let name = load.names().first().context("no key")?.clone();
    let held = client.acquire_no_guard(name.as_str(), LEASE).await?;
    say("ready")?;
    expect("release")?;
    let at_ns = Some(stamp::now_ns());
    client.unlock(&held).await;
    Ok(Outcome { at_ns, ..Outcome::default() })
}

/// Every task has a separate client, which lives until all tasks have had the lock.
async fn crowd(load: &Load) -> Result<Outcome> {
    let guarded = Arc::new(Guarded::new(load)?);
    let name = load.names().first().context("no key")?.clone();
    let go = Arc::new(Barrier::new(load.threads + 1));
    let clients: Vec<LockManager> =
        (0..load.threads).map(|_| LockManager::new(vec![load.url.as_str()])).collect();
    let mut tasks = Vec::new();
    for client in clients.clone() {
        let (guarded, name, go) = (Arc::clone(&guarded), name.clone(), Arc::clone(&go));
        tasks.push(tokio::spawn(async move {
            let mut tally = Tally::default();
            go.wait().await;
            match client.acquire_no_guard(name.as_str(), LEASE).await {
                Ok(held) => {
                    tally.acquired = 1;
                    tally.entered = 1;
                    if let Err(error) = guarded.enter(0) {
                        tally.failed(error);
                    }
                    client.unlock(&held).await;
                }
                Err(error) => {
                    tally.failed(error);
                }
            }
            tally
        }));
    }
    say("ready")?;
    tokio::task::block_in_place(|| expect("go"))?;
    go.wait().await;
    say("waiting")?;
    let mut tallies = Vec::new();
    for task in tasks {
        tallies.push(task.await?);
    }
    let at_ns = Some(stamp::now_ns());
    say("served")?;
    let mut outcome = Outcome::of(tallies);
    outcome.cycles.clear();
    outcome.violations = guarded.violations(outcome.entered);
    Ok(Outcome { at_ns, ..outcome })
}
