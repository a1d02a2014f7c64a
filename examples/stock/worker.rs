//! A worker process: its threads sell pieces until all are sold.

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use hdrhistogram::Histogram;
use leasehold::LockClient;
use parking_lot::Mutex;

use crate::Result;
use crate::rows::{Sale, seller};
use crate::shop::Shop;
use crate::talk::{Fault, Job, Order, Say, Tally, Task, Trouble, say};

/// The lease in every row: short, so that the demo does not wait long for a dead holder. (Default: 30 s.)
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// How long a seller decides, as if it checked price, customer and payment.
const THINK: Duration = Duration::from_millis(1);
/// How long a slow job or release takes, as by a garbage collection, a slow disk or a retransmitted packet.
const SLOW: Duration = Duration::from_millis(1_150);

/// The shared state of one worker's threads.
struct Floor {
    job: Job,
    client: Option<LockClient>,
    waits: Mutex<Histogram<u64>>,
    refused: AtomicU64,
    told_lost: AtomicU64,
    /// The number of owner ids handed out.
    tickets: AtomicU64,
    go_on: Receiver<()>,
}

/// What one selling thread uses.
pub(crate) struct Till<'a> {
    floor: &'a Floor,
    pub(crate) shop: Shop,
    thread: u32,
}

pub(crate) fn run() -> ExitCode {
    // The kernel kills this process when the parent ends, even while this process is stopped.
    #[cfg(target_os = "linux")]
    if let Err(e) = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)) {
        eprintln!("stock worker: {e}");
        return ExitCode::FAILURE;
    }
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("stock worker: {e}");
            ExitCode::FAILURE
        }
    }
}

fn work() -> Result<()> {
    // The terminal sends Ctrl-C to the workers too. They ignore it, because the parent ends them.
    ctrlc::set_handler(|| {})?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let job: Job = serde_json::from_str(&line)?;
    let (started, start) = unbounded();
    let (resumed, go_on) = unbounded();
    let client = match job.task {
        Task::Sell(row, _) if row.is_leasehold() => {
            Some(job.locks.connect(LockClient::builder().lease(LEASE))?)
        }
        _ => None,
    };
    let told = client.clone();
    let listening = move || listen(&started, &resumed, told.as_ref());
    std::thread::Builder::new().name("orders".into()).spawn(listening)?;

    match job.task {
        Task::Sell(..) => {
            let floor = Floor {
                client,
                waits: Mutex::new(Histogram::new(3)?),
                refused: AtomicU64::new(0),
                told_lost: AtomicU64::new(0),
                tickets: AtomicU64::new(0),
                go_on,
                job,
            };
            floor.sell_out(&start)
        }
        Task::TakeAndDie => {
            let mut shop = Shop::open(&job.url, &job.prefix)?;
            let name = shop.lock_name();
            redis::cmd("SETNX").arg(name).arg("me").query::<bool>(&mut shop.conn)?;
            say(&mut std::io::stdout(), &Say::Strike(Fault::Kill))?;
            go_on.recv()?;
            Ok(())
        }
    }
}

/// Passes on the parent's messages; ends the process when the parent is gone.
fn listen(started: &Sender<()>, resumed: &Sender<()>, client: Option<&LockClient>) {
    for line in std::io::stdin().lines() {
        let Ok(order) = line.map_err(drop).and_then(|line| serde_json::from_str(&line).map_err(drop)) else {
            break;
        };
        let sent = match order {
            Order::Go => started.send(()),
            Order::GoOn => resumed.send(()),
            Order::Ring(nodes) => {
                if let Some(client) = client
                    && let Err(e) = nodes.tell(client)
                {
                    eprintln!("stock worker: {e}");
                    break;
                }
                Ok(())
            }
        };
        if sent.is_err() {
            return;
        }
    }
    std::process::exit(1);
}

impl Floor {
    fn sell_out(&self, start: &Receiver<()>) -> Result<()> {
        let mut tills = Vec::new();
        for thread in 0..self.job.threads {
            tills.push(Till { floor: self, shop: Shop::open(&self.job.url, &self.job.prefix)?, thread });
        }
        say(&mut std::io::stdout(), &Say::Ready)?;
        start.recv()?;
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for till in tills {
                threads.push(std::thread::Builder::new().spawn_scoped(scope, move || till.sell_out())?);
            }
            for thread in threads {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        })?;
        if let Some(client) = &self.client {
            client.shutdown()?;
        }
        say(&mut std::io::stdout(), &Say::Tally(self.tally()))
    }

    fn tally(&self) -> Tally {
        let waits = self.waits.lock();
        Tally {
            waits: waits
                .iter_recorded()
                .map(|step| (step.value_iterated_to(), step.count_at_value()))
                .collect(),
            refused: self.refused.load(Ordering::Relaxed),
            told_lost: self.told_lost.load(Ordering::Relaxed),
        }
    }
}

impl Till<'_> {
    fn sell_out(mut self) -> Result<()> {
        let Task::Sell(row, _) = self.floor.job.task else { return Ok(()) };
        let mut seller = seller(row, &self)?;
        loop {
            match seller.buy_one(&mut self)? {
                Sale::Sold => {}
                Sale::Refused => {
                    self.floor.refused.fetch_add(1, Ordering::Relaxed);
                }
                Sale::SoldOut => return Ok(()),
            }
        }
    }

    pub(crate) fn client(&self) -> Result<&LockClient> {
        self.floor.client.as_ref().ok_or_else(|| "this row has no lock client".into())
    }

    /// An owner's id, different each time.
    pub(crate) fn ticket(&self) -> String {
        let number = self.floor.tickets.fetch_add(1, Ordering::Relaxed);
        format!("worker {} thread {} ticket {number}", self.floor.job.worker, self.thread)
    }

    /// Runs `take` and counts how long it took.
    pub(crate) fn wait<T>(&mut self, take: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let from = Instant::now();
        let taken = take(self)?;
        let waited = u64::try_from(from.elapsed().as_micros())?;
        self.floor.waits.lock().record(waited)?;
        Ok(taken)
    }

    /// Decides about a sale. In the run with slow moments, one job takes longer than the lease.
    pub(crate) fn decide(&mut self, piece: i64) -> Result<()> {
        let slow = self.meets(Trouble::Slow, "job", piece == self.floor.job.stock / 4)?;
        std::thread::sleep(if slow { SLOW } else { THINK });
        Ok(())
    }

    /// Delays one release beyond the lease, in the run with slow moments. Called between write and release.
    pub(crate) fn before_release(&mut self, sold: Option<i64>) -> Result<()> {
        if self.meets(Trouble::Slow, "release", sold == Some(self.floor.job.stock / 2))? {
            std::thread::sleep(SLOW);
        }
        Ok(())
    }

    /// Lets the parent kill or stop one worker, if that is the run's fault. Called between read and write.
    pub(crate) fn be_struck(&mut self, piece: i64) -> Result<()> {
        let now = piece == self.floor.job.stock / 4;
        let fault = if self.meets(Trouble::Killed, "strike", now)? {
            Fault::Kill
        } else if self.meets(Trouble::Stopped, "strike", now)? {
            Fault::Stop
        } else {
            return Ok(());
        };
        let mut out = std::io::stdout().lock();
        say(&mut out, &Say::Tally(self.floor.tally()))?;
        say(&mut out, &Say::Strike(fault))?;
        drop(out);
        // A killed worker does not get beyond this wait. A stopped worker gets the message when it continues.
        self.floor.go_on.recv()?;
        Ok(())
    }

    /// Whether the run's fault strikes this seller now. Only the first seller that claims `moment` is struck.
    fn meets(&mut self, trouble: Trouble, moment: &str, now: bool) -> Result<bool> {
        let Task::Sell(_, about) = self.floor.job.task else { return Ok(false) };
        Ok(now && about == trouble && self.shop.claim(moment)?)
    }

    /// Tolerates a failed release, and counts it if the lock was lost, as after a stop of this process.
    pub(crate) fn released(&self, result: leasehold::Result<()>) -> Result<()> {
        match result {
            Err(e) if e.work_ran() => {
                self.floor.told_lost.fetch_add(u64::from(e.is_lost()), Ordering::Relaxed);
                Ok(())
            }
            other => Ok(other?),
        }
    }
}
