//! Runs parts of `./check` one after the other, or side by side in *lanes* (threads), and sums up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::job::{Job, Run, locked};
use crate::{output, plan, suites};

/// The running process groups, which the gate ends when SIGINT or SIGTERM ends the gate.
#[derive(Default)]
pub struct Groups(Mutex<BTreeSet<u32>>);

/// A process group that is registered until this value is dropped; `None`: the group of the gate itself.
pub struct Group<'a>(&'a Groups, Option<u32>);

impl Groups {
    pub fn enter(&self, group: Option<u32>) -> Group<'_> {
        locked(&self.0).extend(group);
        Group(self, group)
    }

    fn end_all(&self) {
        locked(&self.0).iter().for_each(|group| signal(*group, "TERM"));
    }
}

impl Group<'_> {
    pub fn signal(&self, name: &str) {
        if let Some(group) = self.1 {
            signal(group, name);
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if let Some(group) = self.1 {
            locked(&self.0.0).remove(&group);
        }
    }
}

fn signal(group: u32, name: &str) {
    // `kill` fails if the group has ended by itself.
    Command::new("kill").args([format!("-{name}"), "--".to_owned(), format!("-{group}")]).status().ok();
}

#[derive(Clone)]
struct Outcome {
    part: String,
    seconds: u64,
    processor: u64,
    good: bool,
    skipped: usize,
}

impl Outcome {
    fn verdict(&self) -> String {
        let verdict = if self.good { "ok" } else { "FAILED" };
        if self.skipped == 0 { verdict.to_owned() } else { format!("{verdict}, {} skipped", self.skipped) }
    }

    fn line(&self) -> String {
        format!("{:<16} {:>5} s {:>6} s  {}", self.part, self.seconds, self.processor, self.verdict())
    }
}

pub struct Gate {
    pub target: PathBuf,
    pub logs: PathBuf,
    /// How many tests a test program runs at a time.
    pub threads: usize,
    pub in_ci: bool,
    pub groups: Groups,
    begun: Instant,
    variables: Mutex<BTreeMap<String, String>>,
    outcomes: Mutex<Vec<Outcome>>,
    scratches: AtomicU32,
}

impl Gate {
    /// The gate of this run. Removes the results and temporary files of an earlier run, but not its logs.
    pub fn open() -> &'static Gate {
        let target = std::env::var("CARGO_TARGET_DIR").ok().filter(|folder| !folder.is_empty());
        let gate: &'static Gate =
            Box::leak(Box::new(Gate::at(PathBuf::from(target.as_deref().unwrap_or("target")))));
        if gate.variable("LEASEHOLD_SERVERS_DIR").is_none_or(|folder| folder.is_empty()) {
            let here = std::env::current_dir().unwrap_or_default();
            gate.set("LEASEHOLD_SERVERS_DIR", here.join("target/servers").display().to_string());
        }
        let is_old =
            |name: &str| name.ends_with(".result") || name.starts_with("run.") || name.starts_with("server.");
        for entry in fs::read_dir(&gate.logs).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(is_old) {
                fs::remove_file(entry.path()).ok(); // fails for a folder, which may stay
            }
        }
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).expect("signals can be waited for");
        let end = move || {
            if signals.forever().next().is_some() {
                gate.groups.end_all();
                std::process::exit(130);
            }
        };
        drop(std::thread::Builder::new().spawn(end).expect("a thread"));
        gate
    }

    fn at(target: PathBuf) -> Gate {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let logs = target.join("check");
        fs::create_dir_all(&logs).expect("target/check can be made");
        Gate {
            target,
            logs,
            threads: set("LEASEHOLD_THREADS").and_then(|threads| threads.parse().ok()).unwrap_or_else(|| {
                std::thread::available_parallelism().map_or(1, usize::from) * plan::TESTS_PER_PROCESSOR
            }),
            in_ci: set("CI").is_some_and(|value| value != "0" && value != "false"),
            groups: Groups::default(),
            begun: now(),
            variables: Mutex::default(),
            outcomes: Mutex::default(),
            scratches: AtomicU32::new(0),
        }
    }

    /// A new temporary file's path. The path is absolute, since commands in other folders write the file.
    pub fn scratch(&self) -> PathBuf {
        let name = self.logs.join(format!("run.{}", self.scratches.fetch_add(1, Ordering::Relaxed)));
        std::path::absolute(&name).unwrap_or(name)
    }

    pub fn set(&self, name: &str, value: impl Into<String>) {
        locked(&self.variables).insert(name.to_owned(), value.into());
    }

    pub fn set_default(&self, name: &str, value: &str) {
        if std::env::var(name).is_ok_and(|value| !value.is_empty()) {
            return;
        }
        self.set(name, value);
    }

    /// The limit in seconds that replaces the limits of the parts, if the environment sets one.
    pub fn limit(&self) -> Option<u64> {
        self.variable("LEASEHOLD_LIMIT")?.parse().ok()
    }

    pub fn variables(&self) -> BTreeMap<String, String> {
        locked(&self.variables).clone()
    }

    pub fn variable(&self, name: &str) -> Option<String> {
        locked(&self.variables).get(name).cloned().or_else(|| std::env::var(name).ok())
    }

    /// Finds servers and Python, and prints which are missing; part `tools` decides whether to fail.
    pub fn prepare_servers(&self) {
        let log = File::create(self.logs.join("servers.log")).expect("target/check can be written");
        let job = Job::logged(self, log, true);
        let find = |name: &str, function: &str| {
            let is_told = self.variable(name).is_some_and(|value| !value.is_empty());
            let found = if is_told { None } else { job.answer(&Run::servers(function)) };
            if let Some(found) = found {
                self.set(name, found.lines().collect::<Vec<_>>().join(":"));
            }
        };
        find("LEASEHOLD_SERVERS", "servers_matrix");
        find("LEASEHOLD_PYTHON", "servers_ensure_python");
        find("LEASEHOLD_PROMTOOL", "servers_ensure_promtool");
        let first = self.variable("LEASEHOLD_SERVERS").unwrap_or_default();
        let first = first.split(':').next().unwrap_or_default();
        self.set_default("LEASEHOLD_TEST_SERVER", first.split_once('=').map_or(first, |(_, path)| path));
    }

    fn note(&self, outcome: Outcome) -> bool {
        let result = self.logs.join(format!("{}.result", outcome.part));
        fs::write(result, format!("{}\n", outcome.line())).expect("target/check can be written");
        println!("=== {}: {} after {} s", outcome.part, outcome.verdict(), outcome.seconds);
        let good = outcome.good;
        locked(&self.outcomes).push(outcome);
        good
    }

    fn log_of(&self, part: &str) -> String {
        let log = fs::read(self.logs.join(format!("{part}.log"))).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn outcome(
        &self,
        part: &str,
        to_terminal: bool,
        stands_back: bool,
        work: &dyn Fn(&Job<'_>) -> bool,
    ) -> Outcome {
        let begun = now();
        let log = File::create(self.logs.join(format!("{part}.log"))).expect("target/check can be written");
        let mut job = Job::logged(self, log, to_terminal);
        if stands_back {
            job = job.standing_back();
        }
        let good = work(&job);
        Outcome {
            part: part.to_owned(),
            seconds: begun.elapsed().as_secs(),
            processor: job.processor() as u64,
            good,
            skipped: output::skipped(&self.log_of(part)),
        }
    }

    pub fn one(&self, part: &str) -> bool {
        println!("\n=== {part}");
        let work = plan::work_of(part).expect("only parts are run");
        self.note(self.outcome(part, true, false, &work))
    }

    pub fn alone(&self, name: &str, work: impl Fn(&Job<'_>) -> bool) -> bool {
        self.outcome(name, true, false, &work).good
    }

    pub fn some(&self, parts: &[&str]) -> bool {
        for part in parts {
            if plan::needs_tests(part)
                && self.variable("LEASEHOLD_EXAMPLES").is_none()
                && !self.alone("programs", |job| suites::built(job).is_some())
            {
                println!("FAILED: the tests do not build");
                return false;
            }
            self.one(part);
        }
        self.summary(parts)
    }

    /// Builds and fetches tools, then runs the other parts side by side, and last those that measure time.
    pub fn everything(&self) -> bool {
        let work = |part: &str| plan::work_of(part).expect("only parts are run");
        self.lanes(&[(plan::TOOLS, 1, false), (&["build"], 1, false)], work);
        if locked(&self.outcomes).iter().any(|outcome| outcome.part == "build" && outcome.good) {
            self.lanes(&[(plan::TESTS, plan::LANES, false), (plan::BUILD, 1, true)], work);
            self.lanes(&[(plan::TIMED, 1, false)], work);
        }
        self.summary(&plan::full().collect::<Vec<_>>())
    }

    /// Runs lists of parts side by side, and prints each part's output as a whole. A list has a number of
    /// lanes, and a flag: whether its parts have low priority. When nothing is left in its list, a lane takes
    /// parts of the other lists, unless its own list has low priority.
    fn lanes(&self, lists: &[(&[&str], usize, bool)], work_of: impl Fn(&str) -> plan::Work + Sync) {
        let told = &Mutex::new(());
        let work_of = &work_of;
        let lists: Vec<_> = lists.iter().map(|(parts, ..)| Mutex::new(parts.iter())).zip(lists).collect();
        std::thread::scope(|scope| {
            for (first, (_, (_, lanes, yields))) in lists.iter().enumerate() {
                let lists = &lists;
                let lane = move || {
                    let next = || {
                        let mut lists =
                            lists.iter().cycle().skip(first).take(if *yields { 1 } else { lists.len() });
                        lists
                            .find_map(|(parts, (.., stands_back))| Some((locked(parts).next()?, stands_back)))
                    };
                    while let Some((part, stands_back)) = next() {
                        let work = work_of(part);
                        {
                            let _one_at_a_time = locked(told);
                            println!("... {part} ({} s)", self.begun.elapsed().as_secs());
                        }
                        let outcome = self.outcome(part, false, *stands_back, &work);
                        let _one_at_a_time = locked(told);
                        println!("\n=== {part}");
                        print!("{}", self.log_of(part));
                        self.note(outcome);
                    }
                };
                (0..*lanes).for_each(|_| drop(scope.spawn(lane)));
            }
        });
    }

    fn summary(&self, parts: &[&str]) -> bool {
        let outcomes = locked(&self.outcomes).clone();
        let seconds = self.begun.elapsed().as_secs();
        println!("\n=== summary, {seconds} s in all; of each part: how long, how much processor");
        let (lines, failed) = table(parts, &outcomes);
        lines.iter().for_each(|line| println!("{line}"));
        let mut ran = parts.iter().filter(|part| outcomes.iter().any(|outcome| outcome.part == **part));
        ran.by_ref().for_each(|part| {
            output::for_the_summary(&self.log_of(part)).for_each(|line| println!("{line}"));
        });
        if failed > 0 {
            println!("{failed} of {} parts FAILED; their output is in {}", parts.len(), self.logs.display());
        } else {
            println!("all {} parts passed", parts.len());
        }
        failed == 0
    }
}

/// A line for each part's last run, and the number of parts that have not passed.
fn table(parts: &[&str], outcomes: &[Outcome]) -> (Vec<String>, usize) {
    let last = |part: &&str| outcomes.iter().rev().find(|outcome| outcome.part == **part);
    let line = |part: &&str| last(part).map_or_else(|| format!("{part:<16}          not run"), Outcome::line);
    let failed = parts.iter().filter(|part| !last(part).is_some_and(|outcome| outcome.good)).count();
    (parts.iter().map(line).collect(), failed)
}

#[expect(clippy::disallowed_methods, reason = "the gate measures from outside")]
pub fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(part: &str, good: bool, skipped: usize) -> Outcome {
        Outcome { part: part.to_owned(), seconds: 12, processor: 345, good, skipped }
    }

    struct Elsewhere(Gate);

    impl Elsewhere {
        fn new(test: &str) -> Elsewhere {
            let folder = std::env::temp_dir().join(format!("leasehold-gate-{test}-{}", std::process::id()));
            let gate = Gate { in_ci: true, ..Gate::at(folder) };
            gate.set("LEASEHOLD_LIMIT", ""); // the test's own limit counts, not the caller's
            Elsewhere(gate)
        }
    }

    impl Drop for Elsewhere {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0.target).ok();
        }
    }

    fn says(job: &Job<'_>, script: &str) -> bool {
        job.run(&Run::new("bash").args(["-c", script])).good
    }

    #[test]
    fn the_log_and_result_of_a_check_part_are_recorded() {
        let Elsewhere(gate) = &Elsewhere::new("record");
        let work = |job: &Job<'_>| {
            let busy = "for ((turn = 0; turn < 400000; turn++)); do :; done; echo out; echo err >&2";
            says(job, busy) && says(job, "echo SKIPPED a server")
        };
        let outcome = gate.outcome("unit", false, false, &work);
        assert_eq!(gate.log_of("unit"), "out\nerr\nSKIPPED a server\n");
        assert!(outcome.good && outcome.skipped == 1);
        let job = Job::logged(gate, File::create(gate.logs.join("busy.log")).unwrap(), false);
        assert!(work(&job) && job.processor() > 0.1, "{}", job.processor());
        assert!(gate.note(outcome));
        assert!(fs::read_to_string(gate.logs.join("unit.result")).unwrap().ends_with("ok, 1 skipped\n"));
    }

    #[test]
    fn job_answer_is_the_stdout_of_a_command_that_succeeds() {
        let Elsewhere(gate) = &Elsewhere::new("asked");
        let work = |job: &Job<'_>| {
            let asked = |script: &str| job.answer(&Run::new("bash").args(["-c", script]));
            asked("echo well >&2; echo answer").as_deref() == Some("answer")
                && asked("echo no; false").is_none()
        };
        assert!(gate.outcome("unit", false, false, &work).good);
        assert_eq!(gate.log_of("unit"), "well\n");
    }

    #[test]
    fn a_hanging_command_is_ended_with_its_children() {
        let Elsewhere(gate) = &Elsewhere::new("hangs");
        let work = |job: &Job<'_>| says(&job.also().with_limit(1), "sleep 1000 & echo begun; wait");
        assert!(!gate.outcome("unit", false, false, &work).good);
        let log = gate.log_of("unit");
        assert!(log.starts_with("begun\nFAILED: not ended after 1 s: bash -c sleep"), "{log}");
    }

    /// Writes the file `mine`, and waits for the file of another part, which must run at the same time.
    fn meets(job: &Job<'_>, mine: &str, other: &str) -> bool {
        let folder = job.gate.target.display();
        let meet = format!("touch {folder}/{mine}; until [ -e {folder}/{other} ]; do sleep 0.01; done");
        says(&job.also().with_limit(60), &meet)
    }

    /// `unit` and `faults` must run at the same time, since each waits for the other.
    fn work_of(part: &str) -> plan::Work {
        match part {
            "unit" => |job| meets(job, "a", "b"),
            "faults" => |job| meets(job, "b", "a"),
            "redis" => |_| false,
            _ => |job| says(job, "nice"),
        }
    }

    #[test]
    fn an_idle_lane_runs_waiting_parts_of_other_lanes() {
        let Elsewhere(gate) = &Elsewhere::new("helps");
        gate.lanes(&[(&["cli"], 1, false), (&["unit", "faults"], 1, true)], work_of);
        assert!(locked(&gate.outcomes).iter().all(|outcome| outcome.good));
    }

    #[test]
    fn the_check_parts_after_a_failed_one_still_run() {
        let Elsewhere(gate) = &Elsewhere::new("lanes");
        gate.lanes(&[(&["unit", "faults", "redis", "cli"], 2, false), (&["docs"], 1, true)], work_of);
        let (lines, failed) = table(&["unit", "faults", "redis", "cli", "docs"], &locked(&gate.outcomes));
        assert_eq!(failed, 1, "{lines:?}");
        let nice = |part| gate.log_of(part).trim().parse::<u32>().unwrap();
        assert!(nice("docs") > nice("cli"), "a build gets less processor time than tests");
    }

    #[test]
    fn two_servers_tested_in_parallel_get_half_the_threads_each() {
        let Elsewhere(gate) = &Elsewhere::new("bounded");
        gate.set("LEASEHOLD_SERVERS", "one=/one:two=/two");
        gate.set("LEASEHOLD_THREADS", "8");
        let work: plan::Work = |job| {
            let each_has_half = suites::on_each_server(job, |job| suites::threads(job) == 4);
            each_has_half && suites::threads(job) == 8 && suites::threads(&suites::one_at_a_time(job)) == 1
        };
        assert!(gate.outcome("unit", false, false, &work).good);
    }

    #[test]
    fn the_check_summary_counts_failed_and_unrun_parts() {
        let outcomes = [outcome("unit", true, 0), outcome("cli", false, 2), outcome("docs", true, 1)];
        let (lines, failed) = table(&["unit", "cli", "docs", "deny"], &outcomes);
        assert_eq!(failed, 2);
        assert_eq!(
            lines,
            [
                "unit                12 s    345 s  ok",
                "cli                 12 s    345 s  FAILED, 2 skipped",
                "docs                12 s    345 s  ok, 1 skipped",
                "deny                      not run",
            ]
        );
    }

    #[test]
    fn a_check_part_that_passes_when_repeated_counts_as_passed() {
        let outcomes = [outcome("unit", false, 0), outcome("unit", true, 0)];
        assert_eq!(table(&["unit"], &outcomes).1, 0);
    }
}
