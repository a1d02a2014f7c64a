//! Random programs lock in any order: every reported deadlock existed, and every lasting deadlock is
//! reported.

use std::collections::{BTreeSet, HashSet};

use leasehold::{Deadlock, Event};

use crate::support::prelude::*;
use crate::support::{deadlocked, random, reexecuted, test_name};

const PROCESSES: usize = 6;
const NAMES: usize = 5;

/// The longest wait, and the age of a wait at which the client searches for a deadlock.
const WAIT: Duration = ms(2_000);
const LOOKED_AT_AFTER: Duration = ms(30);

/// A cycle that lasts longer than this must be reported, since its search and reads are over by then.
const REPORTED_WITHIN: Duration = ms(1_350);

/// The time for which a process (a client here) held or awaited a name. `None` as its end: not over.
#[derive(Debug, Clone)]
struct Span {
    process: usize,
    name: String,
    from: Instant,
    to: Option<Instant>,
}

/// For each process of a cycle: its number, the name that it holds, and the name that it waits for.
type Ring = BTreeSet<(usize, String, String)>;

#[derive(Debug)]
struct Report {
    by: usize,
    members: Ring,
    /// The owner and id of each wait, which together identify the cycle.
    waits: BTreeSet<(String, u64)>,
    at: Instant,
}

impl Report {
    /// Reads the numbers of the processes from the labels in the report.
    fn new(by: usize, deadlock: &Deadlock) -> Report {
        let member = |step: &leasehold::DeadlockStep| {
            let label = step.location.label.as_deref().unwrap_or_default();
            (label.parse().expect("a number"), step.holds.clone(), step.waits_for.clone())
        };
        let waits = deadlock.steps.iter().map(|step| (step.owner.clone(), step.wait_id)).collect();
        Report { by, members: deadlock.steps.iter().map(member).collect(), waits, at: now() }
    }
}

/// All holds and waits as the processes know them. A wait lasts from before its request until after its end,
/// a hold from after its grant until before its release.
#[derive(Debug, Default)]
struct Log {
    holds: Vec<Span>,
    waits: Vec<Span>,
    reports: Vec<Report>,
}

fn begin(spans: &mut Vec<Span>, process: usize, name: &str) -> usize {
    spans.push(Span { process, name: name.to_owned(), from: now(), to: None });
    spans.len() - 1
}

/// Acquires two or three of the names in random order, waiting for each, and then releases them.
fn take_some(client: &LockClient, process: usize, names: &[String], log: &Mutex<Log>) {
    let mut order: Vec<&String> = names.iter().collect();
    for place in (1..order.len()).rev() {
        order.swap(place, (random() % (place as u64 + 1)) as usize);
    }
    let mut held = Vec::new();
    for name in order.into_iter().take(2 + (random() % 2) as usize) {
        let lock = client.get_lock(name);
        let mut got = lock.try_acquire().unwrap();
        if got.is_none() {
            let span = begin(&mut log.lock().waits, process, name);
            got = lock.try_acquire_for(WAIT).unwrap();
            log.lock().waits[span].to = Some(now());
        }
        let Some(guard) = got else { break };
        held.push((guard, begin(&mut log.lock().holds, process, name)));
    }
    let_pass(ms(random() % 30), "work under the locks");
    for (guard, span) in held {
        log.lock().holds[span].to = Some(now());
        guard.unlock().unwrap();
    }
}

impl Log {
    /// Panics unless each report is true and comes once from each process, and each cycle that lasted longer
    /// than [`REPORTED_WITHIN`] was reported. Returns the number of cycles.
    fn check(&self) -> usize {
        let mut met = HashSet::new();
        for report in &self.reports {
            assert!(self.was_there(report), "{report:?} and was not there");
            assert!(met.insert((report.by, &report.waits)), "{report:?} for the second time");
        }
        let mut rings = HashSet::new();
        for (ring, from, lasted) in self.rings() {
            let is_it = |report: &&Report| report.at >= from && report.members == ring;
            let told = self.reports.iter().filter(is_it).map(|report| report.at).min();
            let bound = REPORTED_WITHIN + stalled_since(from);
            assert!(
                lasted <= bound || told.is_some_and(|at| at <= from + bound),
                "{ring:?} lasted for {lasted:?} from {from:?} and was not reported: {:?}",
                self.reports
            );
            rings.insert((ring, from));
        }
        rings.len()
    }

    /// Whether at one moment before the report all members held and waited as reported.
    fn was_there(&self, report: &Report) -> bool {
        fn any<'a>(parts: &[Vec<&'a Span>], chosen: &mut Vec<&'a Span>, by: Instant) -> bool {
            let Some((first, rest)) = parts.split_first() else { return common(chosen, by).is_some() };
            first.iter().any(|span| {
                chosen.push(span);
                let is_so = common(chosen, by).is_some() && any(rest, chosen, by);
                chosen.pop();
                is_so
            })
        }
        fn of<'a>(spans: &'a [Span], process: usize, name: &str, by: Instant) -> Vec<&'a Span> {
            let is_it = |span: &&Span| span.process == process && span.name == name && span.from <= by;
            spans.iter().filter(is_it).collect()
        }
        let parts: Vec<_> = report
            .members
            .iter()
            .flat_map(|(process, held, wanted)| {
                [of(&self.holds, *process, held, report.at), of(&self.waits, *process, wanted, report.at)]
            })
            .collect();
        any(&parts, &mut Vec::new(), report.at)
    }

    /// The cycles with their beginnings and durations, once for each member.
    fn rings(&self) -> Vec<(Ring, Instant, Duration)> {
        let (mut rings, end) = (Vec::new(), now());
        for wait in &self.waits {
            self.follow(&mut vec![wait], wait, end, &mut rings);
        }
        rings
    }

    fn follow<'a>(
        &'a self,
        path: &mut Vec<&'a Span>,
        wait: &'a Span,
        end: Instant,
        rings: &mut Vec<(Ring, Instant, Duration)>,
    ) {
        for hold in self.holds.iter().filter(|hold| hold.name == wait.name) {
            path.push(hold);
            if let Some((from, lasted)) = common(path, end) {
                if hold.process == path[0].process {
                    rings.push((members(path), from, lasted));
                } else if !path[..path.len() - 1].iter().any(|span| span.process == hold.process) {
                    for next in self.waits.iter().filter(|next| next.process == hold.process) {
                        path.push(next);
                        if common(path, end).is_some() {
                            self.follow(path, next, end, rings);
                        }
                        path.pop();
                    }
                }
            }
            path.pop();
        }
    }
}

fn members(ring: &[&Span]) -> Ring {
    let before = ring.iter().cycle().skip(ring.len() - 1).step_by(2);
    let waits = ring.iter().step_by(2);
    before.zip(waits).map(|(hold, wait)| (wait.process, hold.name.clone(), wait.name.clone())).collect()
}

/// How long all of these spans lasted together, and since when; `None` if never. The short time between an
/// ended call and its note is counted, although the clients do not see it.
fn common(spans: &[&Span], by: Instant) -> Option<(Instant, Duration)> {
    let from = spans.iter().map(|span| span.from).max()?;
    let to = spans.iter().map(|span| span.to.unwrap_or(by)).min()?.min(by);
    (to > from).then(|| (from, to.duration_since(from)))
}

/// Runs one random program, checks its reports, and returns the number of cycles.
fn run(program: u64) -> usize {
    let (store, log) = (MemoryStore::new(), Arc::new(Mutex::new(Log::default())));
    let names: Vec<String> = (0..NAMES).map(|at| format!("program:{program}:{at}")).collect();
    let open = |process: usize| {
        let reports = Arc::clone(&log);
        let observer = move |event: &Event<'_>| {
            if let Event::Deadlock { deadlock, .. } = event
                && deadlock.is_certain
            {
                reports.lock().reports.push(Report::new(process, deadlock));
            }
        };
        let builder = LockClient::builder().label(process.to_string()).observer(observer);
        builder.detect_deadlocks_after(LOOKED_AT_AFTER).build_in_memory(&store).unwrap()
    };
    let clients: Vec<LockClient> = (0..PROCESSES).map(open).collect();
    thread::scope(|scope| {
        for (process, client) in clients.iter().enumerate() {
            let (log, names) = (&*log, &*names);
            scope.spawn(move || (0..2).for_each(|_| take_some(client, process, names, log)));
        }
    });
    // After this all reports have arrived.
    clients.iter().for_each(|client| client.shutdown().unwrap());
    let_pass(ms(5), "what is told, is told on threads of the clients");
    log.lock().check()
}

#[test]
fn random_programs_report_exactly_their_deadlocks() {
    watch_for_stalls();
    let (next, rings) = (AtomicU64::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                let mut program = next.fetch_add(1, Ordering::Relaxed);
                while program < 200 {
                    rings.fetch_add(run(program), Ordering::Relaxed);
                    program = next.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(rings.into_inner() > 20, "hardly any program has a deadlock");
}

/// If the program has neither an observer nor a log, the client prints to standard error.
#[test]
fn an_unobserved_deadlock_is_printed_once() {
    const HEARD: &str = "LEASEHOLD_DEADLOCK_HEARD";
    let stand = |builder: ClientBuilder| {
        let client = builder.detect_deadlocks_after(ms(100)).build_in_memory(&MemoryStore::new()).unwrap();
        let is_over = || client.stats().deadlocks > 0;
        assert!(deadlocked(&client, ["a", "b"], || is_over() && !eventually(ms(3_500), || false)));
        client.shutdown().unwrap();
    };
    match std::env::var(HEARD).as_deref() {
        Ok("no") => return stand(LockClient::builder()),
        Ok(_) => return stand(LockClient::builder().observer(|_: &Event<'_>| ())),
        Err(_) => {}
    }
    let said = |heard: &str| {
        let (is_good, text) = reexecuted(&test_name(), &[(HEARD, heard)]).ends_within(LONG * 3);
        assert!(is_good, "{text}");
        text.matches("leasehold: deadlock: 2 threads wait for each other").count()
    };
    assert_eq!((said("no"), said("yes")), (1, 0));
}
