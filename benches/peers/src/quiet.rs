//! Whether the machine was quiet: how much time other processes or virtual machines took. Linux only.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Shares of the time of all processors during one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    /// Time of processes that are no part of the benchmark.
    pub others: f64,
    /// Time that the hypervisor gave to other virtual machines.
    pub steal: f64,
}

/// Above these shares the machine is not quiet.
const LIMIT: Disturbance = Disturbance { others: 0.05, steal: 0.02 };

impl Disturbance {
    pub fn is_too_much(&self) -> bool {
        self.others > LIMIT.others || self.steal > LIMIT.steal
    }

    pub fn limit() -> Disturbance {
        LIMIT
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "others {:.1} %, steal {:.1} %", self.others * 100.0, self.steal * 100.0)
    }
}

/// Clock ticks so far: of the processors since the machine started, and of the benchmark (`ours`).
#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    all: f64,
    /// Time in processes. Interrupts do not count, since most are for the benchmark's own packets.
    processes: f64,
    steal: f64,
    ours: f64,
}

/// Watches the machine during a run. Call `end` when the drivers have ended: only then their ticks count.
pub struct Watch<F> {
    /// Reads the clock ticks that the servers have used so far.
    servers: F,
    before: Option<Ticks>,
}

impl<F: Fn() -> Option<f64>> Watch<F> {
    pub fn start(servers: F) -> Watch<F> {
        let before = servers().and_then(ticks);
        Watch { servers, before }
    }

    /// Returns `None` if the ticks cannot be read, as on all systems but Linux.
    pub fn end(self) -> Option<Disturbance> {
        between(self.before?, (self.servers)().and_then(ticks)?)
    }
}

fn between(before: Ticks, after: Ticks) -> Option<Disturbance> {
    let all = after.all - before.all;
    let others = (after.processes - before.processes) - (after.ours - before.ours);
    (all > 0.0)
        .then(|| Disturbance { others: others.max(0.0) / all, steal: (after.steal - before.steal) / all })
}

fn ticks(servers: f64) -> Option<Ticks> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let mut ticks = machine(&text)?;
    let own = process("self")?;
    ticks.ours = own.own + own.children + servers;
    Some(ticks)
}

/// Reads the line `cpu  user nice system idle iowait irq softirq steal …`, in which `user` includes guests.
fn machine(stat: &str) -> Option<Ticks> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<f64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, _irq, _softirq, steal] = *fields.first_chunk::<8>()?;
    let all = fields.iter().take(8).sum();
    Some(Ticks { all, processes: user + nice + system, steal, ours: 0.0 })
}

/// The clock ticks of a process, and of its children that have ended.
pub struct Process {
    pub own: f64,
    pub children: f64,
}

pub fn process(pid: &str) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<f64> = rest.split(' ').map(|field| field.parse().unwrap_or(0.0)).collect();
    // `fields` begins with the process's state; the four times stand at places 11 to 14.
    let [user, system, children_user, children_system] = *fields.get(11..15)?.first_chunk::<4>()?;
    Some(Process { own: user + system, children: children_user + children_system })
}

/// The clock ticks of a second in /proc.
pub const TICKS_PER_S: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::{Disturbance, Ticks, Watch, between, machine, process};

    #[test]
    fn the_benchmarks_own_cpu_time_is_subtracted() {
        let before = machine("cpu  100 10 50 1000 5 0 20 7 0 0\ncpu0 1").unwrap();
        let mut after = machine("cpu  150 10 80 1110 5 0 20 17 0 0\ncpu0 1").unwrap();
        after.ours = 70.0;
        assert_eq!(between(before, after), Some(Disturbance { others: 0.05, steal: 0.05 }));
        after.ours = 100.0;
        assert_eq!(between(before, after).map(|found| found.others), Some(0.0));
        assert_eq!(between(Ticks::default(), Ticks::default()), None);
    }

    #[test]
    fn too_much_foreign_load_or_stolen_time_is_a_disturbance() {
        let disturbed = |others, steal| Disturbance { others, steal }.is_too_much();
        assert!(!disturbed(0.05, 0.02));
        assert!(disturbed(0.051, 0.0));
        assert!(disturbed(0.0, 0.021));
    }

    #[test]
    fn cpu_load_is_watched_on_linux_only() {
        let own = std::process::id().to_string();
        let watch = Watch::start(move || Some(process(&own)?.own));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(watch.end().is_some(), cfg!(target_os = "linux"));
    }
}
