//! For how long the machine stood still: a paused guest, a full run queue. That is not the library being late.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::after;
use parking_lot::Mutex;

use super::now;

/// A thread that has nothing to do but wake up.
struct Meter {
    last_look: Instant,
    /// When they ended, and how long they were.
    stalls: Vec<(Instant, Duration)>,
}

const NAP: Duration = Duration::from_millis(5);
const NOTABLE: Duration = Duration::from_millis(25);

/// How long this process has been kept from running since `start`: what a meter's naps took too long. The first call starts
/// the meter.
pub fn stalled_since(start: Instant) -> Duration {
    static METER: OnceLock<Mutex<Meter>> = OnceLock::new();
    let mut is_new = false;
    let meter = METER.get_or_init(|| {
        is_new = true;
        Mutex::new(Meter { last_look: now(), stalls: Vec::new() })
    });
    if is_new {
        let work = move || {
            loop {
                after(NAP).recv().expect("a timer fires");
                let mut meter = meter.lock();
                if let Some(stall) = over(meter.last_look) {
                    meter.stalls.push((now(), stall));
                }
                meter.last_look = now();
            }
        };
        drop(thread::Builder::new().name("meter".to_owned()).spawn(work).expect("a thread can be started"));
    }
    let meter = meter.lock();
    let past = meter.stalls.iter().rev().take_while(|(ended, _)| *ended >= start).map(|(_, stall)| *stall);
    // Also of one that this thread has outlasted before the meter.
    past.chain(over(meter.last_look)).sum()
}

fn over(since: Instant) -> Option<Duration> {
    Some(since.elapsed().saturating_sub(NAP)).filter(|over| *over > NOTABLE)
}
