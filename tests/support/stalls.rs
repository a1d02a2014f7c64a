//! Measures how long the machine kept a test from running, which is not the library's fault.
//!
//! A stall is the sum of two times: how late an idle thread wakes up (a paused guest, a full run queue), and
//! how long the threads of this process, and of all processes that it started, waited for a processor. Steps
//! that wait for each other are delayed by no more than this sum. On an idle machine the sum is zero, so a
//! bound plus the sum is the promise itself.
//!
//! All threads of this process count, since nothing says which ones a step needs. Beside twelve busy tests
//! the sum soon equals the elapsed time, so that no bound can fail. So some tests run in a process of their
//! own. `tests/README.md` says how to judge a bound.

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

/// What the meter's thread measures: how late it wakes up, and how long other threads waited for a processor.
struct Meter {
    woke: Instant,
    queues: Queues,
    /// The times of stalls, each with the sum of all stalls up to then.
    lost: Vec<(Instant, Duration)>,
}

const NAP: Duration = Duration::from_millis(5);
const NOTABLE: Duration = Duration::from_millis(25);
/// The time between readings of the run queues; if readings are slow, [`LOOKING`] times as long as one takes.
const LOOKS_APART: Duration = Duration::from_millis(40);
const LOOKING: u32 = 20;
/// A reading up to this age is not repeated.
const PRESENT: Duration = Duration::from_millis(10);

pub fn watch() {
    meter();
}

/// How long this process, and those that it started, were kept from running since `start`; at most the
/// elapsed time. Stalls before the first call of this function or of [`watch`] are not known.
pub fn stalled_since(start: Instant) -> Duration {
    let mut meter = meter().lock();
    if meter.queues.looked.elapsed() > PRESENT {
        let waited = meter.queues.look();
        meter.lose(waited);
    }
    // This thread may run before the meter's thread does, so the meter's own delay up to now counts too.
    (meter.lost_since(start) + meter.overslept()).min(start.elapsed())
}

/// As [`stalled_since`], for a span that has ended; at most the span's length. Readings soon after the span
/// count too, because a reading shows a wait only when the wait is over.
pub fn stalled_between(start: Instant, end: Instant) -> Duration {
    stalled_since(end); // takes a reading, if the last one is old
    let meter = meter().lock();
    let lost = lost_between(&meter.lost, start, end, meter.queues.looks_apart());
    lost.min(end.saturating_duration_since(start))
}

/// The time since `start`, minus the machine's stalls.
pub fn own_time_since(start: Instant) -> Duration {
    let took = start.elapsed();
    took.saturating_sub(stalled_since(start))
}

/// Adds the calling thread's waits for a processor to the stalls. A thread calls this just before it ends,
/// because the kernel shows no thread that has ended.
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
        let (_, before) = *self.lost.last().expect("the list begins with an entry");
        if !more.is_zero() {
            self.lost.push((now(), before + more));
        }
    }

    fn lost_since(&self, start: Instant) -> Duration {
        let (_, all) = *self.lost.last().expect("the list begins with an entry");
        let before = self.lost.partition_point(|(at, _)| *at < start);
        let (_, before) = self.lost[before.saturating_sub(1)];
        all - before
    }
}

/// The stalls in a span. `lost` has the times of stalls, each with the sum of stalls up to then. `due` is the
/// usual time between readings. Readings up to twice `due` after the span show the waits at its end.
pub fn lost_between(lost: &[(Instant, Duration)], start: Instant, end: Instant, due: Duration) -> Duration {
    let by = |at: Instant| {
        let later = lost.partition_point(|(seen, _)| *seen < at);
        lost[..later].last().or(lost.first()).map_or(Duration::ZERO, |(_, all)| *all)
    };
    by(end + 2 * due) - by(start)
}

/// How long each thread has waited for a processor, as the kernel counts it (Linux only).
struct Queues {
    looked: Instant,
    took: Duration,
    /// The id of the meter's own thread, once known. It is not counted, since no test waits for it.
    meter: Option<u32>,
    waited: HashMap<(u32, u32), Duration>,
}

impl Queues {
    fn new() -> Queues {
        let mut queues = Queues { looked: now(), took: Duration::ZERO, meter: None, waited: HashMap::new() };
        queues.look(); // earlier waits do not count
        queues
    }

    fn are_due(&self) -> bool {
        self.looked.elapsed() >= self.looks_apart()
    }

    fn looks_apart(&self) -> Duration {
        LOOKS_APART.max(self.took * LOOKING)
    }

    /// Reads how long threads waited for a processor, and returns the sum since the last reading. A thread
    /// that has ended since then is missing from the sum.
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
        // A thread that the last reading did not see has started since, so all its waits count.
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

/// This process's id in `/proc` of Linux, which counts the waits. Under wine the process itself sees another.
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

/// A thread's time in a run queue: the second number in the file, in nanoseconds; `None` if unreadable.
fn waited(task: &Path) -> Option<Duration> {
    let numbers = fs::read_to_string(task.join("schedstat")).ok()?;
    numbers.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}
