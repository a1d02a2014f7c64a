//! The parent's side: starts the workers of one row, kills or stops some of them, and always ends all.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use hdrhistogram::Histogram;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::args::{Args, Row};
use crate::report::Line;
use crate::shop::{Counts, Shop};
use crate::talk::{Fault, Job, Order, Say, Tally, Task, Trouble, say};
use crate::topology::{Locks, Servers};
use crate::{Result, WORKER};

/// How long a worker is stopped at least: longer than the locks' lease of 1 s.
const PAUSE: Duration = Duration::from_millis(1_200);
/// How often the parent checks progress, Ctrl-C, and whether to resume a stopped worker.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// A shorter time without a sale does not count as a standstill, since the parent checks only now and then.
const STANDSTILL: Duration = Duration::from_millis(200);
/// A row fails if this time passes without progress.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) row: Row,
    pub(crate) runs: Vec<Run>,
    /// How long the sellers waited for the lock, in microseconds.
    pub(crate) waits: Histogram<u64>,
    pub(crate) refused: u64,
    pub(crate) told_lost: u64,
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) trouble: Trouble,
    pub(crate) counts: Counts,
    took: Duration,
    /// The sum of the times, each of at least `STANDSTILL`, in which nothing was sold.
    standstill: Duration,
}

impl Outcome {
    /// The counts of the run with this fault; zeros if there was no such run.
    pub(crate) fn counts(&self, trouble: Trouble) -> Counts {
        self.runs.iter().find(|run| run.trouble == trouble).map(|run| run.counts).unwrap_or_default()
    }

    /// Whether a sale was late or a piece sold twice.
    pub(crate) fn is_wrong(&self) -> bool {
        self.runs.iter().any(|run| run.counts.late + run.counts.twice > 0)
    }

    pub(crate) fn orders(&self) -> u64 {
        self.runs.iter().map(|run| run.counts.orders).sum()
    }

    /// Sales per second, without the standstills.
    pub(crate) fn pace(&self) -> f64 {
        let selling: Duration = self.runs.iter().map(|run| run.took.saturating_sub(run.standstill)).sum();
        self.orders() as f64 / selling.as_secs_f64()
    }
}

/// What a killed holder of a SETNX key without expiry leaves: whether the next SETNX succeeds, and the TTL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leftover {
    pub(crate) next_one_got_it: bool,
    pub(crate) ttl: i64,
}

/// A message from a worker's reader thread.
enum Event {
    Said(Say),
    /// The worker's output ended, so the worker has ended or is about to end.
    Ended,
    Garbled(String),
}

struct Worker {
    child: Child,
    orders: ChildStdin,
    tally: Tally,
    struck_dead: bool,
}

struct Stopped {
    number: usize,
    at: Instant,
    /// How often sellers had read when the worker was stopped. It is resumed only after a further read.
    visitors: u64,
}

/// The worker processes of one run, the keys they use, and the servers of their locks; dropping it ends all.
pub(crate) struct Fleet<'a> {
    stop: &'a AtomicBool,
    servers: Option<Servers>,
    shop: Shop,
    stock: i64,
    workers: Vec<Worker>,
    events: Receiver<(usize, Event)>,
}

impl<'a> Fleet<'a> {
    fn start(args: &Args, url: &str, stop: &'a AtomicBool, task: Task, processes: u32) -> Result<Fleet<'a>> {
        // The braces put all keys of a run into one slot of a cluster.
        let prefix = format!("leasehold-demo:{{{}}}", uuid::Uuid::new_v4());
        let mut shop = Shop::open(url, &prefix)?;
        shop.fill(args.stock)?;
        let (tell, events) = unbounded();
        let keeps_locks = matches!(task, Task::Sell(row, _) if row.is_leasehold());
        let servers = args.topology.filter(|_| keeps_locks).map(Servers::start).transpose()?;
        let locks = match &servers {
            Some(servers) => servers.locks()?,
            None => Locks::Url(url.to_owned()),
        };
        let mut fleet = Fleet { stop, servers, shop, stock: args.stock, workers: Vec::new(), events };
        for worker in 0..processes {
            let job = Job {
                task,
                url: url.to_owned(),
                locks: locks.clone(),
                prefix: prefix.clone(),
                worker,
                threads: args.threads,
                stock: args.stock,
            };
            fleet.add(&job, tell.clone())?;
        }
        Ok(fleet)
    }

    fn add(&mut self, job: &Job, tell: Sender<(usize, Event)>) -> Result<()> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(WORKER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(orders), Some(said)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a worker was started without pipes".into());
        };
        let number = self.workers.len();
        // The worker joins the fleet before the next step can fail, so dropping the fleet ends the worker.
        self.workers.push(Worker { child, orders, tally: Tally::default(), struck_dead: false });
        self.tell(number, job)?;
        std::thread::Builder::new()
            .name(format!("worker {number}"))
            .spawn(move || hear(number, said, &tell))?;
        Ok(())
    }

    /// Runs one row: the same work, once for each fault.
    pub(crate) fn sell_out(
        args: &Args,
        url: &str,
        stop: &'a AtomicBool,
        row: Row,
        line: &Line,
    ) -> Result<Outcome> {
        let (mut refused, mut told_lost) = (0, 0);
        let mut outcome =
            Outcome { row, runs: Vec::new(), waits: Histogram::new(3)?, refused: 0, told_lost: 0 };
        for &trouble in args.troubles(row) {
            let mut fleet = Fleet::start(args, url, stop, Task::Sell(row, trouble), args.processes)?;
            outcome.runs.push(fleet.sell(trouble, line, outcome.orders())?);
            for tally in fleet.workers.iter().map(|worker| &worker.tally) {
                for (value, count) in &tally.waits {
                    outcome.waits.record_n(*value, *count)?;
                }
                refused += tally.refused;
                told_lost += tally.told_lost;
            }
        }
        Ok(Outcome { refused, told_lost, ..outcome })
    }

    fn sell(&mut self, trouble: Trouble, line: &Line, sold_before: u64) -> Result<Run> {
        for _ in 0..self.workers.len() {
            match self.next(PATIENCE)? {
                (_, Event::Said(Say::Ready)) => {}
                (worker, _) => return Err(format!("worker {worker} did not get ready").into()),
            }
        }
        let from = Instant::now();
        for worker in 0..self.workers.len() {
            self.tell(worker, &Order::Go)?;
        }
        let standstill = self.run(trouble, line, sold_before)?;
        let took = from.elapsed();
        let (free, counts) = self.shop.count()?;
        if free != 0 {
            return Err(format!("{free} pieces were left").into());
        }
        Ok(Run { trouble, counts, took, standstill })
    }

    /// Handles the workers' messages until every worker has ended; returns the run's standstill.
    fn run(&mut self, trouble: Trouble, line: &Line, sold_before: u64) -> Result<Duration> {
        let mut standstill = Duration::ZERO;
        let mut stopped: Option<Stopped> = None;
        let mut to_strike = trouble == Trouble::Server;
        let mut mend_at = None;
        let mut working = self.workers.len();
        let (mut last, mut moved) = (0, Instant::now());
        while working > 0 {
            // Until the lock's server is killed, at half the stock, the parent checks the stock more often.
            match self.next(if to_strike { CHECK_EVERY / 10 } else { CHECK_EVERY }) {
                Ok((_, Event::Said(Say::Ready))) => return Err("a worker got ready twice".into()),
                Ok((number, Event::Said(Say::Tally(tally)))) => self.worker(number)?.tally = tally,
                Ok((number, Event::Said(Say::Strike(Fault::Kill)))) => {
                    self.kill(number)?;
                    line.note("one worker killed -9");
                }
                Ok((number, Event::Said(Say::Strike(Fault::Stop)))) => {
                    self.halt(number)?;
                    let visitors = self.shop.count()?.1.visitors;
                    stopped = Some(Stopped { number, at: Instant::now(), visitors });
                    line.note("one worker stopped");
                }
                Ok((number, Event::Ended)) => {
                    let worker = self.worker(number)?;
                    let status = worker.child.wait()?;
                    if !status.success() && !worker.struck_dead {
                        return Err(format!("worker {number} failed ({status})").into());
                    }
                    working -= 1;
                }
                Ok((number, Event::Garbled(what))) => {
                    return Err(format!("worker {number} said {what}").into());
                }
                Err(NoNews::Nothing) => {}
                Err(e) => return Err(e.into()),
            }
            let (free, counts) = self.shop.count()?;
            line.show(sold_before + counts.orders);
            if let Some(Stopped { number, .. }) =
                stopped.take_if(|stopped| stopped.at.elapsed() >= PAUSE && counts.visitors > stopped.visitors)
            {
                kill_process(self.pid(number)?, Signal::CONT)?;
                line.note("the stopped worker runs again");
            }
            if to_strike && free <= self.stock / 2 {
                to_strike = false;
                mend_at = Some(Instant::now() + self.strike_server()?);
                line.note("the lock's server killed -9");
            }
            if mend_at.is_some_and(|at| Instant::now() >= at) {
                mend_at = None;
                self.mend_server()?;
                line.note("the lock can be taken again");
            }
            if counts.orders != last || working == 0 {
                if moved.elapsed() >= STANDSTILL {
                    standstill += moved.elapsed();
                }
                (last, moved) = (counts.orders, Instant::now());
            }
            if moved.elapsed() > PATIENCE {
                return Err(format!("nothing was sold for {} s", PATIENCE.as_secs()).into());
            }
        }
        Ok(standstill)
    }

    /// Kills the holder of a SETNX lock without an expiry, and returns what is left of the lock.
    pub(crate) fn take_and_die(args: &Args, url: &str, stop: &'a AtomicBool) -> Result<Leftover> {
        let mut fleet = Fleet::start(args, url, stop, Task::TakeAndDie, 1)?;
        match fleet.next(PATIENCE)? {
            (number, Event::Said(Say::Strike(Fault::Kill))) => {
                fleet.kill(number)?;
                fleet.worker(number)?.child.wait()?;
            }
            _ => return Err("the worker did not take its lock".into()),
        }
        let name = fleet.shop.lock_name();
        let next_one_got_it = redis::cmd("SETNX").arg(&name).arg("next").query(&mut fleet.shop.conn)?;
        let ttl = redis::cmd("TTL").arg(&name).query(&mut fleet.shop.conn)?;
        Ok(Leftover { next_one_got_it, ttl })
    }

    fn strike_server(&mut self) -> Result<Duration> {
        let lock = self.shop.lock_name();
        self.servers.as_mut().ok_or("there are no servers to strike")?.strike(&lock)
    }

    fn mend_server(&mut self) -> Result<()> {
        let Some(nodes) = self.servers.as_mut().map(Servers::mend).transpose()?.flatten() else {
            return Ok(());
        };
        for number in 0..self.workers.len() {
            if !self.worker(number)?.struck_dead && self.worker(number)?.child.try_wait()?.is_none() {
                self.tell(number, &Order::Ring(nodes.clone()))?;
            }
        }
        Ok(())
    }

    fn next(&self, limit: Duration) -> std::result::Result<(usize, Event), NoNews> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(NoNews::Interrupted);
        }
        self.events.recv_timeout(limit).map_err(|e| match e {
            RecvTimeoutError::Timeout => NoNews::Nothing,
            RecvTimeoutError::Disconnected => NoNews::AllGone,
        })
    }

    fn worker(&mut self, number: usize) -> Result<&mut Worker> {
        self.workers.get_mut(number).ok_or_else(|| format!("there is no worker {number}").into())
    }

    fn pid(&mut self, number: usize) -> Result<Pid> {
        Ok(Pid::from_child(&self.worker(number)?.child))
    }

    fn tell(&mut self, number: usize, order: &impl serde::Serialize) -> Result<()> {
        say(&mut self.worker(number)?.orders, order)
    }

    fn kill(&mut self, number: usize) -> Result<()> {
        let worker = self.worker(number)?;
        worker.struck_dead = true;
        Ok(worker.child.kill()?)
    }

    /// Stops a worker, and then sends `GoOn`, which the worker reads after SIGCONT.
    fn halt(&mut self, number: usize) -> Result<()> {
        let pid = self.pid(number)?;
        kill_process(pid, Signal::STOP)?;
        // The message follows only when the worker has stopped. Otherwise the worker could read it at once.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let from = Instant::now();
        while waitid(WaitId::Pid(pid), options)?.is_none_or(|status| !status.stopped()) {
            if from.elapsed() > PATIENCE {
                return Err(format!("worker {number} did not stop").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.tell(number, &Order::GoOn)
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // This also kills a stopped worker, and does nothing to a worker whose end was already noticed.
            if let Err(e) = worker.child.kill().and_then(|()| worker.child.wait()) {
                eprintln!("stock: worker {} could not be ended: {e}", worker.child.id());
            }
        }
        if let Err(e) = self.shop.clear() {
            eprintln!("stock: the keys of this run could not be removed: {e}");
        }
    }
}

/// Why no message came from the workers.
#[derive(Debug)]
pub(crate) enum NoNews {
    Nothing,
    AllGone,
    Interrupted,
}

impl std::fmt::Display for NoNews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NoNews::Nothing => "the workers say nothing",
            NoNews::AllGone => "the workers are gone",
            NoNews::Interrupted => "interrupted",
        })
    }
}

impl std::error::Error for NoNews {}

/// Turns the lines of a worker's output into events, until the output ends.
fn hear(number: usize, said: ChildStdout, tell: &Sender<(usize, Event)>) {
    for line in BufReader::new(said).lines() {
        let event = match line {
            Ok(line) => serde_json::from_str(&line).map_or(Event::Garbled(line), Event::Said),
            Err(e) => Event::Garbled(e.to_string()),
        };
        if tell.send((number, event)).is_err() {
            return;
        }
    }
    // The send fails while the fleet is being dropped, which is no error.
    drop(tell.send((number, Event::Ended)));
}
