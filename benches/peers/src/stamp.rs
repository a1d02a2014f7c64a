//! Two clocks: one that all processes share, and one of this process's processor time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    u64::try_from(read(ClockId::Monotonic).as_nanos()).unwrap_or(u64::MAX)
}

pub fn cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}
