//! For how long the machine kept those who take part in a test from running. That is not the library being
//! late.
//!
//! Two things are measured and added up: how late a thread wakes up that does nothing else (a paused guest, a
//! full run queue), and how long the threads of this process, and of all processes that it started, waited
//! for a processor. The servers are among those. A chain of steps, from thread to thread and to a server and
//! back, is delayed by no more than the sum of these waits. On an idle machine the sum is nothing: then a
//! bound that it is added to is the promise itself.
//!
//! The sum is an upper limit, of all tests that run in this process at a time: nothing says which threads a
//! step needs. On a machine that twelve tests keep busy it soon is as much as the time itself, and a promised
//! bound cannot fail there. A test in a process of its own counts its own threads and servers alone.
//! `tests/README.md` says how to judge a bound.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::after;
use parking_lot::Mutex;

use super::now;

/// A thread that has nothing to do but wake up, and to look at the others.
struct Meter {
    /// When it woke up last.
    woke: Instant,
    queues: Queues,
    /// When something was lost, and how much had been lost by then in all.
    lost: Vec<(Instant, Duration)>,
}

const NAP: Duration = Duration::from_millis(5);
const NOTABLE: Duration = Duration::from_millis(25);
/// The run queues are looked at no more often than this, and so seldom that looking takes a twentieth of the
/// time.
const LOOKS_APART: Duration = Duration::from_millis(40);
const LOOKING: u32 = 20;
/// The age up to which a look counts as the present.
const PRESENT: Duration = Duration::from_millis(10);

/// Starts the meter, if it does not run yet.
pub fn watch() {
    meter();
}

/// For how long this process and those that it started have been kept from running since `start`; no longer
/// than it has been since. The time before the first call, or the first [`watch`], is not known.
pub fn stalled_since(start: Instant) -> Duration {
    let mut meter = meter().lock();
    if meter.queues.looked.elapsed() > PRESENT {
        let waited = meter.queues.look();
        meter.lose(waited);
    }
    // Also of a stall that this thread has outlasted before the meter.
    (meter.lost_since(start) + meter.overslept()).min(start.elapsed())
}

/// The same of a span that has ended; no longer than the span. A wait is seen at the first look after it has
/// ended, so that look counts too.
pub fn stalled_between(start: Instant, end: Instant) -> Duration {
    stalled_since(end); // a look, so that there is one after it
    let meter = meter().lock();
    let lost = lost_between(&meter.lost, start, end, meter.queues.looks_apart());
    lost.min(end.saturating_duration_since(start))
}

/// The part of the time since `start` that the machine is not to blame for.
pub fn own_time_since(start: Instant) -> Duration {
    let took = start.elapsed();
    took.saturating_sub(stalled_since(start))
}

/// Counts what the calling thread has waited so far: of a thread that has ended nothing can be seen.
pub fn about_to_end() {
    let Ok(task) = fs::read_link("/proc/thread-self") else { return };
    let Some(waited) = waited(&Path::new("/proc").join(&task)) else { return };
    let Some(thread) = number_in(task.file_name()) else { return };
    let mut meter = meter().lock();
    let before = meter.queues.waited.insert((own_id(), thread), waited);
    meter.lose(waited.saturating_sub(before.unwrap_or_default()));
}

fn meter() -> &'static Mutex<Meter> {
    static METER: OnceLock<Mutex<Meter>> = OnceLock::new();
    let mut is_new = false;
    let meter = METER.get_or_init(|| {
        is_new = true;
        Mutex::new(Meter { woke: now(), queues: Queues::new(), lost: vec![(now(), Duration::ZERO)] })
    });
    if is_new {
        let work = move || {
            meter.lock().queues.meter = this_thread();
            loop {
                after(NAP).recv().expect("a timer fires");
                let mut meter = meter.lock();
                let stalled = meter.overslept();
                meter.lose(stalled);
                meter.woke = now();
                if meter.queues.are_due() {
                    let waited = meter.queues.look();
                    meter.lose(waited);
                    meter.woke = now();
                }
            }
        };
        drop(thread::Builder::new().name("meter".to_owned()).spawn(work).expect("a thread can be started"));
    }
    meter
}

impl Meter {
    fn overslept(&self) -> Duration {
        let over = self.woke.elapsed().saturating_sub(NAP);
        if over > NOTABLE { over } else { Duration::ZERO }
    }

    fn lose(&mut self, more: Duration) {
        let (_, before) = *self.lost.last().expect("it begins with one");
        if !more.is_zero() {
            self.lost.push((now(), before + more));
        }
    }

    fn lost_since(&self, start: Instant) -> Duration {
        let (_, all) = *self.lost.last().expect("it begins with one");
        let before = self.lost.partition_point(|(at, _)| *at < start);
        let (_, before) = self.lost[before.saturating_sub(1)];
        all - before
    }
}

/// The time lost in a span, where `lost` says when something was seen to be lost, and how much by then in
/// all. Waits in the span's last moments are seen when the next look is due.
pub fn lost_between(lost: &[(Instant, Duration)], start: Instant, end: Instant, due: Duration) -> Duration {
    let by = |at: Instant| {
        let later = lost.partition_point(|(seen, _)| *seen < at);
        lost[..later].last().or(lost.first()).map_or(Duration::ZERO, |(_, all)| *all)
    };
    by(end + 2 * due) - by(start)
}

/// How long threads have waited in the run queues, by what the kernel counts for each (Linux; elsewhere none
/// are seen).
struct Queues {
    looked: Instant,
    took: Duration,
    /// The thread of the meter, for which nothing waits.
    meter: Option<u32>,
    /// By process and thread.
    waited: HashMap<(u32, u32), Duration>,
}

impl Queues {
    fn new() -> Queues {
        let mut queues = Queues { looked: now(), took: Duration::ZERO, meter: None, waited: HashMap::new() };
        queues.look(); // what was before does not count
        queues
    }

    fn are_due(&self) -> bool {
        self.looked.elapsed() >= self.looks_apart()
    }

    fn looks_apart(&self) -> Duration {
        LOOKS_APART.max(self.took * LOOKING)
    }

    /// How long they have waited since the last look, all together. The wait of a thread that has ended since
    /// is not seen.
    fn look(&mut self) -> Duration {
        let begun = now();
        let mut seen = HashMap::with_capacity(self.waited.len());
        let mut processes = vec![own_id()];
        while let Some(process) = processes.pop() {
            let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
            for task in tasks.flatten() {
                if let (Some(thread), Some(waited)) =
                    (number_in(Some(&task.file_name())), waited(&task.path()))
                {
                    seen.insert((process, thread), waited);
                }
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                processes.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
            }
        }
        if let Some(meter) = self.meter {
            seen.remove(&(own_id(), meter));
        }
        // A new thread has waited since it began.
        let grown = |(task, waited): (&(u32, u32), &Duration)| {
            waited.saturating_sub(self.waited.get(task).copied().unwrap_or_default())
        };
        let more = seen.iter().map(grown).sum();
        self.waited = seen;
        self.looked = now();
        self.took = begun.elapsed();
        more
    }
}

/// This process's number to the kernel that counts: under wine that is Linux, with numbers of its own.
fn own_id() -> u32 {
    let of_linux = || fs::read_to_string("/proc/self/stat").ok()?.split(' ').next()?.parse().ok();
    cfg!(windows).then(of_linux).flatten().unwrap_or_else(std::process::id)
}

fn this_thread() -> Option<u32> {
    number_in(fs::read_link("/proc/thread-self").ok()?.file_name())
}

fn number_in(name: Option<&OsStr>) -> Option<u32> {
    name?.to_str()?.parse().ok()
}

/// The second number is nanoseconds in a run queue.
fn waited(task: &Path) -> Option<Duration> {
    let numbers = fs::read_to_string(task.join("schedstat")).ok()?;
    numbers.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}
