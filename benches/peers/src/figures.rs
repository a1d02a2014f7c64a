//! The figures that the project wants to reach, and the measured ones.

use serde::{Deserialize, Serialize};

use crate::report::{Report, grouped};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    pub workload: String,
    pub wanted: String,
    pub reached: String,
    /// Whether the figure was reached; `None` if a measurement for it is missing.
    pub met: Option<bool>,
}

const GUARDS: &str = "leasehold";
const CALLS: &str = "leasehold-lock";
const KEPT: &str = "leasehold-keep";
/// leasehold is compared with the fastest of these peers.
const PEERS: &[&str] =
    &["redisson", "redsync", "rueidislock", "rslock", "redlock", "rlock", "redis-py", "article"];
/// The default size of leasehold's pool.
const POOL: f64 = 8.0;

struct Figures<'a> {
    report: &'a Report,
    figures: Vec<Figure>,
}

pub fn check(report: &Report) -> Vec<Figure> {
    let mut all = Figures { report, figures: Vec::new() };
    all.alone("one", 0.9, 1.4);
    all.alone("one2", 1.0, 1.8);
    for id in ["own16", "own64"] {
        all.own(id);
    }
    for (id, threads) in [("key8", 8.0), ("key64", 64.0)] {
        all.one_key(id, threads);
    }
    for (id, redisson) in [("procs4x2", 25.0), ("procs4x8", 23.0)] {
        all.processes(id, redisson);
    }
    for (id, processes, rate) in
        [("procs16x1", 16, Some(4500.0)), ("procs64x1", 64, Some(4000.0)), ("procs500x1", 500, None)]
    {
        all.many_processes(id, processes, rate);
    }
    for (id, processes, rate) in [("work16", 16, 16_000.0), ("work64", 64, 15_000.0)] {
        all.working(id, processes, rate);
    }
    all.comes_back();
    all.handoff();
    all.crowd();
    all.held();
    all.waiters();
    for (ms, queues) in [(1, true), (20, true), (60, false)] {
        all.far(ms, queues);
    }
    let ran = |figure: &Figure| figure.met.is_some();
    if all.figures.iter().any(ran) { all.figures } else { Vec::new() }
}

impl Figures<'_> {
    fn at_least(
        &mut self,
        workload: &str,
        wanted: String,
        value: Option<f64>,
        least: Option<f64>,
        unit: &str,
    ) {
        let met = value.zip(least).map(|(value, least)| value >= least);
        self.push(workload, wanted, reached(value, least, unit), met);
    }

    fn at_most(&mut self, workload: &str, wanted: String, value: Option<f64>, most: Option<f64>, unit: &str) {
        let met = value.zip(most).map(|(value, most)| value <= most);
        self.push(workload, wanted, reached(value, most, unit), met);
    }

    fn push(&mut self, workload: &str, wanted: String, reached: String, met: Option<bool>) {
        self.figures.push(Figure { workload: workload.to_owned(), wanted, reached, met });
    }

    fn metric(&self, workload: &str, peer: &str, metric: &str) -> Option<f64> {
        self.report.metric(workload, peer, metric)
    }

    fn to_raw(&self, workload: &str, peer: &str) -> Option<f64> {
        self.report.find(workload, peer)?.ratio_to_raw
    }

    /// The rate of leasehold with guards, divided by the rate of the fastest of `PEERS`.
    fn to_best(&self, id: &str) -> Option<f64> {
        let rate = |peer: &str| self.metric(id, peer, "cycles_per_s");
        let best = PEERS.iter().filter_map(|peer| rate(peer)).reduce(f64::max);
        rate(GUARDS).zip(best).map(|(ours, best)| ours / best)
    }

    fn alone(&mut self, id: &str, calls: f64, guards: f64) {
        let cores = if id == "one" { "one core" } else { "two cores" };
        let title = &format!("1 thread, {cores}, `lock`/`unlock`");
        self.at_least(title, format!("{calls} × raw"), self.to_raw(id, CALLS), Some(calls), " × raw");
        let p99 = |peer| self.metric(id, peer, "wait_p99_us");
        let ratio = p99(CALLS).zip(p99("raw")).map(|(ours, raw)| ours / raw);
        self.at_most(title, "p99 wait ≤ 1.2 × raw's".into(), ratio, Some(1.2), " × raw's");
        let commands = self.metric(id, CALLS, "commands_per_cycle");
        self.at_most(title, "≤ 9 commands".into(), commands, Some(9.0), " commands");
        let title = &format!("1 thread, {cores}, guards");
        self.at_least(title, format!("{guards} × raw"), self.to_raw(id, GUARDS), Some(guards), " × raw");
    }

    fn own(&mut self, id: &str) {
        let (title, share) = match id {
            "own16" => ("16 threads on their own keys, guards", 0.9),
            _ => ("64 threads on their own keys, guards", 1.0),
        };
        let wanted = format!("{share} × the best peer");
        self.at_least(title, wanted, self.to_best(id), Some(share), " × the best peer");
        let redisson = self.report.find(id, GUARDS).and_then(|found| found.ratio_to_redisson);
        self.at_least(title, "12 × Redisson".into(), redisson, Some(12.0), " × Redisson");
    }

    fn one_key(&mut self, id: &str, threads: f64) {
        let title = format!("{threads} threads, one key, guards");
        self.at_least(&title, "2.2 × raw, 1 thread".into(), self.to_raw(id, GUARDS), Some(2.2), " × raw");
        let even = self.metric(id, GUARDS, "threads_evenness");
        self.at_least(&title, "fewest/most per thread ≥ 0.95".into(), even, Some(0.95), "");
        let turn = self.metric(id, GUARDS, "cycles_per_s").map(|rate| threads / rate * 1e6);
        let ratio = self.metric(id, GUARDS, "wait_p99_us").zip(turn).map(|(wait, turn)| wait / turn);
        let wanted = "p99 wait ≤ 2 × (threads × cycle)".into();
        self.at_most(&title, wanted, ratio, Some(2.0), " × (threads × cycle)");
        let longest = self.metric(id, GUARDS, "wait_max_us").map(|us| us / 1e3);
        self.at_most(&title, "longest wait ≤ 25 ms".into(), longest, Some(25.0), " ms");
    }

    fn processes(&mut self, id: &str, redisson: f64) {
        let title = match id {
            "procs4x2" => "4 × 2 across processes, guards",
            _ => "4 × 8 across processes, guards",
        };
        self.at_least(title, "1.2 × raw, 1 thread".into(), self.to_raw(id, GUARDS), Some(1.2), " × raw");
        if id == "procs4x2" {
            self.at_least(title, "2 × the best peer".into(), self.to_best(id), Some(2.0), " × the best peer");
        }
        let ratio = self.report.find(id, GUARDS).and_then(|found| found.ratio_to_redisson);
        self.at_least(title, format!("{redisson} × Redisson"), ratio, Some(redisson), " × Redisson");
        let even = self.metric(id, GUARDS, "processes_evenness");
        self.at_least(title, "fewest/most per process ≥ 0.75".into(), even, Some(0.75), "");
        let wait = self.metric(id, GUARDS, "wait_p99_us").map(|us| us / 1e3);
        self.at_most(title, "p99 wait ≤ 20 ms".into(), wait, Some(20.0), " ms");
    }

    fn many_processes(&mut self, id: &str, processes: usize, rate: Option<f64>) {
        let title = &format!("{processes} processes × 1, guards");
        if let Some(rate) = rate {
            let reached = self.metric(id, GUARDS, "cycles_per_s");
            self.at_least(title, format!("{} cycles/s", grouped(rate, 0)), reached, Some(rate), " cycles/s");
            let even = self.metric(id, GUARDS, "processes_evenness");
            self.at_least(title, "fewest/most per process ≥ 0.95".into(), even, Some(0.95), "");
        }
        self.at_least(title, "10 × the best peer".into(), self.to_best(id), Some(10.0), " × the best peer");
        let commands = self.metric(id, GUARDS, "commands_per_cycle");
        self.at_most(title, "≤ 1 command".into(), commands, Some(1.0), " commands");
        let most = if processes < 500 { 100.0 } else { 500.0 };
        let longest = self.metric(id, GUARDS, "wait_max_us").map(|us| us / 1e3);
        self.at_most(title, format!("longest wait ≤ {most} ms"), longest, Some(most), " ms");
    }

    fn working(&mut self, id: &str, processes: usize, rate: f64) {
        let title = &format!("{processes} processes × 1 with 50 µs inside, guards");
        let reached = self.metric(id, GUARDS, "cycles_per_s");
        self.at_least(title, format!("{} cycles/s", grouped(rate, 0)), reached, Some(rate), " cycles/s");
        let even = self.metric(id, GUARDS, "processes_evenness");
        self.at_least(title, "fewest/most per process ≥ 0.9".into(), even, Some(0.9), "");
    }

    fn comes_back(&mut self) {
        let rate = self.metric("one2", KEPT, "cycles_per_s");
        let wanted = "1,000,000 cycles/s".into();
        self.at_least("1 thread, two cores, `cached`", wanted, rate, Some(1e6), " cycles/s");
    }

    fn crowd(&mut self) {
        let title = "crowd of 500, guards";
        let served = self.metric("crowd500", GUARDS, "drain_s");
        self.at_most(title, "all served in ≤ 0.6 s".into(), served, Some(0.6), " s");
        let sent = self.metric("crowd500", GUARDS, "sent_per_grant");
        self.at_most(title, "≤ 2.5 requests per grant".into(), sent, Some(2.5), " requests");
    }

    fn handoff(&mut self) {
        let title = "unlock in one process → acquired in another";
        let trip = self.metric("one2", "raw", "wait_p50_us");
        let p50 = self.metric("handoff", CALLS, "handoff_p50_us");
        let trips = p50.zip(trip).map(|(p50, trip)| p50 / trip);
        self.at_most(title, "p50 ≤ 2.3 round trips".into(), trips, Some(2.3), " round trips");
        let p99 = self.metric("handoff", CALLS, "handoff_p99_us").map(|us| us / 1e3);
        self.at_most(title, "p99 ≤ 1 ms".into(), p99, Some(1.0), " ms");
    }

    fn held(&mut self) {
        let title = "10,000 held";
        self.at_most(title, "0 lost".into(), self.metric("held", CALLS, "lost"), Some(0.0), " lost");
        let threads = self.metric("held", CALLS, "library_threads");
        self.at_most(title, "≤ 4 library threads".into(), threads, Some(4.0), " threads");
        let cpu = |peer| self.metric("held", peer, "cpu_ms_per_s");
        let share = cpu(CALLS).zip(cpu("redisson")).map(|(ours, theirs)| ours / theirs);
        self.at_most(title, "≤ 0.1 × Redisson's CPU".into(), share, Some(0.1), " × Redisson's");
    }

    fn waiters(&mut self) {
        let title = "1,000 waiters on one lock";
        let sent = self.metric("waiters", CALLS, "sent_per_s");
        self.at_most(title, "≤ 1.2 requests/s while waiting".into(), sent, Some(1.2), " requests/s");
        let more = self.metric("waiters", CALLS, "connections").map(|all| (all - POOL).max(0.0));
        self.at_most(title, "≤ 2 connections beyond the pool".into(), more, Some(2.0), " beyond");
        let memory = self.metric("waiters", CALLS, "beside_stack_kib_per_waiter");
        self.at_most(title, "≤ 24 KiB each beside the stack".into(), memory, Some(24.0), " KiB");
        let drain = |peer| self.metric("waiters", peer, "drain_s");
        let share = drain(CALLS).zip(drain("redisson")).map(|(ours, theirs)| theirs / ours);
        let wanted = "drained 6 times as fast as Redisson".into();
        self.at_least(title, wanted, share, Some(6.0), " times as fast");
    }
}

impl Figures<'_> {
    /// The figures over a link with a round trip of `ms` milliseconds. A hand-over takes two round trips at
    /// least: the release with its message to the waiter, and the waiter's request.
    fn far(&mut self, ms: u32, has_others: bool) {
        let trip = f64::from(ms);
        for processes in [4.0, 12.0] {
            let (id, title) = (
                format!("far{ms}-procs{processes}"),
                format!("{ms} ms away, {processes} processes, `lock`/`unlock`"),
            );
            let rate = self.metric(&id, CALLS, "cycles_per_s").map(|rate| 1e3 / rate / trip);
            self.at_most(&title, "a cycle ≤ 2.2 round trips".into(), rate, Some(2.2), " round trips");
            let even = self.metric(&id, CALLS, "processes_evenness");
            self.at_least(&title, "fewest/most per process ≥ 0.9".into(), even, Some(0.9), "");
            let turns = self.metric(&id, CALLS, "wait_max_us").map(|us| us / 1e3 / (processes * 2.1 * trip));
            self.at_most(
                &title,
                "longest wait ≤ 1.5 × an even queue".into(),
                turns,
                Some(1.5),
                " × an even queue",
            );
        }
        if has_others {
            let title = format!("{ms} ms away, a recall");
            let p50 =
                self.metric(&format!("far{ms}-handoff"), KEPT, "handoff_p50_us").map(|us| us / 1e3 / trip);
            self.at_most(&title, "≤ 3.1 round trips".into(), p50, Some(3.1), " round trips");
        }
    }
}

/// The value with so many digits that it does not look equal to a bound that it misses: 9.0001, not 9.00.
fn reached(value: Option<f64>, bound: Option<f64>, unit: &str) -> String {
    let Some(value) = value else { return "–".to_owned() };
    let mut digits = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    while digits < 4
        && bound.is_some_and(|bound| bound != value && grouped(bound, digits) == grouped(value, digits))
    {
        digits += 1;
    }
    format!("{}{unit}", grouped(value, digits))
}

#[cfg(test)]
mod tests {
    use super::reached;

    #[test]
    fn rounding_never_shows_a_missed_target_as_reached() {
        assert_eq!(reached(Some(9.0001), Some(9.0), " commands"), "9.0001 commands");
        assert_eq!(reached(Some(20.016), Some(20.0), ""), "20.02");
        assert_eq!(reached(Some(9.0), Some(9.0), ""), "9.00");
        assert_eq!(reached(Some(20.1), Some(20.0), ""), "20.1");
        assert_eq!(reached(None, Some(20.0), ""), "–");
    }
}
