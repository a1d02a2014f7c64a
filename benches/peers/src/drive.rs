//! The loops that put load on a lock library (a *peer*) whose calls block.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::load::{HOLD, Kind, Load, PAUSE, STACK, expect, say};
use crate::peers;
use crate::stamp;
use crate::tally::{Outcome, Tally};

/// A client of the lock library under test.
pub trait Peer: Sync {
    /// Makes the calling thread's session. The `key` of its methods is a position in `names`.
    fn session(&self, names: &[String]) -> Result<Box<dyn Session + '_>>;
}

/// What one thread uses to lock and unlock.
pub trait Session {
    fn lock(&mut self, key: usize) -> Result<()>;
    fn unlock(&mut self, key: usize) -> Result<()>;
    /// Whether the present hold is exclusive: `false` for a read lock or a permit.
    fn is_alone(&self) -> bool {
        true
    }
    /// Whether this thread still holds the lock that it acquired.
    fn holds(&mut self, _key: usize) -> Result<bool> {
        bail!("this peer does not renew, so it cannot hold locks")
    }
}

pub fn drive(load: &Load) -> Result<()> {
    let outcome = if load.peer == "rslock" {
        peers::rslock::drive(load)?
    } else {
        let (peer, version) = peers::open(load)?;
        let outcome = match load.kind {
            Kind::Cycles => cycles(&*peer, load)?,
            Kind::Handoff => handoff(&*peer, load)?,
            Kind::Held => held(&*peer, load)?,
            Kind::Holder => holder(&*peer, load)?,
            Kind::Waiters | Kind::Crowd => waiters(&*peer, load)?,
        };
        Outcome { version, ..outcome }
    };
    say(&serde_json::to_string(&outcome)?)
}

/// The critical section: numbers that are read and then written, so that simultaneous holders lose updates.
///
/// Each key has a number, read and written by separate atomic accesses. Processes share a number in a file.
pub struct Guarded {
    numbers: Vec<AtomicU64>,
    file: Option<File>,
    /// How long `enter` computes under the lock, besides its reads and writes.
    work: Duration,
}

impl Guarded {
    pub fn new(load: &Load) -> Result<Guarded> {
        let file = match &load.counter {
            Some(path) => Some(OpenOptions::new().read(true).write(true).open(path)?),
            None => None,
        };
        let numbers = (0..load.keys).map(|_| AtomicU64::new(0)).collect();
        Ok(Guarded { numbers, file, work: Duration::from_micros(load.work_us) })
    }

    pub fn enter(&self, key: usize) -> Result<()> {
        if let Some(file) = &self.file {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 0)?;
            file.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0)?;
        }
        let number = self.numbers.get(key).context("no such key")?;
        number.store(number.load(Ordering::Acquire) + 1, Ordering::Release);
        if !self.work.is_zero() {
            let begun = Instant::now();
            while begun.elapsed() < self.work {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// How many of the `entered` updates were lost inside this process.
    pub fn violations(&self, entered: u64) -> u64 {
        entered.saturating_sub(self.numbers.iter().map(|number| number.load(Ordering::Acquire)).sum())
    }
}

fn cycles(peer: &dyn Peer, load: &Load) -> Result<Outcome> {
    let names = load.names();
    let guarded = Guarded::new(load)?;
    let (warm, go) = (Barrier::new(load.threads + 1), Barrier::new(load.threads + 1));
    let begun = OnceLock::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|number| {
                let (names, guarded, warm, go, begun) = (&names, &guarded, &warm, &go, &begun);
                scope.spawn(move || -> Result<Tally> {
                    let key = number % names.len();
                    let session = peer.session(names);
                    let mut tally = Tally::default();
                    let session = session.map(|mut session| {
                        spin(&mut *session, key, guarded, Instant::now() + load.warmup(), &mut tally);
                        session
                    });
                    let entered = tally.entered;
                    let warm_errors = (tally.errors, tally.error.take());
                    warm.wait();
                    go.wait();
                    let mut session = session?;
                    tally =
                        Tally { entered, errors: warm_errors.0, error: warm_errors.1, ..Tally::default() };
                    let end = *begun.get_or_init(Instant::now) + load.seconds();
                    spin(&mut *session, key, guarded, end, &mut tally);
                    Ok(tally)
                })
            })
            .collect();
        warm.wait();
        say("ready")?;
        expect("go")?;
        let cpu = stamp::cpu();
        go.wait();
        let tallies: Result<Vec<Tally>> = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
            .collect();
        let mut outcome = Outcome::of(tallies?);
        outcome.seconds = load.seconds;
        outcome.cpu_s = (stamp::cpu() - cpu).as_secs_f64();
        outcome.violations = guarded.violations(outcome.entered);
        Ok(outcome)
    })
}

/// Locks and unlocks until `end`. A wait that ends after `end` counts as a wait, not as a cycle.
fn spin(session: &mut dyn Session, key: usize, guarded: &Guarded, end: Instant, tally: &mut Tally) {
    loop {
        let asked = Instant::now();
        if asked >= end {
            return;
        }
        let done = session.lock(key).and_then(|()| {
            let got = Instant::now();
            tally.waits.record(u64::try_from((got - asked).as_nanos()).unwrap_or(u64::MAX));
            tally.acquired += 1;
            tally.cycles += u64::from(got < end);
            if session.is_alone() {
                tally.entered += 1;
                guarded.enter(key)?;
            }
            session.unlock(key)
        });
        if let Err(error) = done
            && !tally.failed(format!("{error:#}"))
        {
            return;
        }
    }
}

fn handoff(peer: &dyn Peer, load: &Load) -> Result<Outcome> {
    let names = load.names();
    let guarded = Guarded::new(load)?;
    let mut session = peer.session(&names)?;
    let mut tally = Tally::default();
    spin(&mut *session, 0, &guarded, Instant::now() + load.warmup(), &mut tally);
    let mut tally = Tally { entered: tally.entered, errors: tally.errors, ..Tally::default() };
    say("ready")?;
    expect("go")?;
    let cpu = stamp::cpu();
    let end = Instant::now() + load.seconds();
    while Instant::now() < end {
        let asked = stamp::now_ns();
        session.lock(0)?;
        let got = stamp::now_ns();
        guarded.enter(0)?;
        thread::sleep(HOLD);
        let leaving = stamp::now_ns();
        session.unlock(0)?;
        tally.events.push([asked, got, leaving]);
        tally.waits.record(got - asked);
        tally.cycles += 1;
        tally.acquired += 1;
        tally.entered += 1;
        thread::sleep(PAUSE);
    }
    let mut outcome = Outcome::of(vec![tally]);
    outcome.seconds = load.seconds;
    outcome.cpu_s = (stamp::cpu() - cpu).as_secs_f64();
    outcome.violations = guarded.violations(outcome.entered);
    Ok(outcome)
}

fn held(peer: &dyn Peer, load: &Load) -> Result<Outcome> {
    let names = load.names();
    let mut session = peer.session(&names)?;
    say("ready")?;
    expect("go")?;
    let begun = Instant::now();
    for key in 0..names.len() {
        session.lock(key)?;
    }
    let fill_s = begun.elapsed().as_secs_f64();
    let (cpu, begun) = (stamp::cpu(), Instant::now());
    say("holding")?;
    expect("check")?;
    let cpu_s = (stamp::cpu() - cpu).as_secs_f64();
    let seconds = begun.elapsed().as_secs_f64();
    let mut tally = Tally::default();
    let mut lost = 0;
    for key in 0..names.len() {
        let kept = session.holds(key).and_then(|holds| {
            session.unlock(key)?;
            Ok(holds)
        });
        match kept {
            Ok(true) => {}
            Ok(false) => lost += 1,
            Err(error) => {
                lost += 1;
                tally.failed(format!("{error:#}"));
            }
        }
    }
    Ok(Outcome { lost: Some(lost), fill_s: Some(fill_s), seconds, cpu_s, ..Outcome::of(vec![tally]) })
}

fn holder(peer: &dyn Peer, load: &Load) -> Result<Outcome> {
    let mut session = peer.session(&load.names())?;
    session.lock(0)?;
    say("ready")?;
    expect("release")?;
    let at_ns = Some(stamp::now_ns());
    session.unlock(0)?;
    Ok(Outcome { at_ns, ..Outcome::default() })
}

fn waiters(peer: &dyn Peer, load: &Load) -> Result<Outcome> {
    let names = load.names();
    let guarded = Guarded::new(load)?;
    let (parked, go) = (Barrier::new(load.threads + 1), Barrier::new(load.threads + 1));
    let (asking, over) = (AtomicUsize::new(0), Barrier::new(load.threads + 1));
    let own_clients = load.kind == Kind::Crowd;
    let (done, all_done) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..load.threads {
            let (names, guarded, parked, go, asking, over, done) =
                (&names, &guarded, &parked, &go, &asking, &over, done.clone());
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || {
                let own = if own_clients { peers::open(load).map(Some) } else { Ok(None) };
                let session = match &own {
                    Ok(Some((own, _))) => own.session(names),
                    Ok(None) => peer.session(names),
                    Err(error) => Err(anyhow!("{error:#}")),
                };
                parked.wait();
                go.wait();
                let mut tally = Tally::default();
                asking.fetch_add(1, Ordering::AcqRel);
                let result = session.and_then(|mut session| {
                    session.lock(0)?;
                    guarded.enter(0)?;
                    tally.acquired = 1;
                    tally.entered = 1;
                    session.unlock(0)
                });
                if let Err(error) = result {
                    tally.failed(format!("{error:#}"));
                }
                drop(done.send(tally));
                if own_clients {
                    // All clients are dropped together, so that none disconnects during the measurement.
                    over.wait();
                }
            })?;
        }
        parked.wait();
        say("ready")?;
        expect("go")?;
        let cpu = stamp::cpu();
        go.wait();
        while asking.load(Ordering::Acquire) < load.threads {
            thread::yield_now();
        }
        say("waiting")?;
        let mut tallies = Vec::new();
        for _ in 0..load.threads {
            tallies.push(all_done.recv()?);
        }
        let at_ns = Some(stamp::now_ns());
        if own_clients {
            say("served")?;
            over.wait();
        }
        let mut outcome = Outcome::of(tallies);
        outcome.cycles.clear();
        outcome.cpu_s = (stamp::cpu() - cpu).as_secs_f64();
        outcome.violations = guarded.violations(outcome.entered);
        outcome.at_ns = at_ns;
        Ok(outcome)
    })
}
