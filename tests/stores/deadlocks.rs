//! Random programs lock in any order: each reported deadlock existed, and each lasting one is reported.

use std::collections::{BTreeSet, HashSet};

use leasehold::{Deadlock, Event};

use crate::support::prelude::*;
use crate::support::stalls::stalled_between;
use crate::support::{deadlocked, random, reexecuted, test_name};

const PROCESSES: usize = 6;
const NAMES: usize = 5;

/// In the test on Redis, `check_long_waits` must find a reason for each wait longer than this.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// The time for which a process (here a client) held or awaited a name; `to` is `None` while it lasts.
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

/// A thread of a random program. Each client stands for a process.
struct Player<'a> {
    client: &'a LockClient,
    process: usize,
    names: Vec<String>,
    log: &'a Mutex<Log>,
}

impl Player<'_> {
    /// Acquires two or three of the names in random order, holds them for `work`, and releases them. The
    /// locks are of `kinds` kinds. After a wait longer than `wait`, acquires no more.
    fn take_some(&self, kinds: usize, [wait, work]: [Duration; 2], interrupt: &Interrupt) {
        let mut order: Vec<usize> = (0..NAMES).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, (random() % (place as u64 + 1)) as usize);
        }
        let mut held = Vec::new();
        for at in order.into_iter().take(2 + (random() % 2) as usize) {
            let name = &self.names[at];
            let lock = match at % kinds {
                0 => self.client.get_lock(name),
                1 => self.client.get_fair_lock(name),
                2 => self.client.get_read_write_lock(name).write().clone(),
                _ => RedisLock::clone(&self.client.get_fenced_lock(name)),
            };
            let mut got = lock.try_acquire().unwrap();
            if got.is_none() {
                let span = begin(&mut self.log.lock().waits, self.process, name);
                let asked = lock.acquire_with(&AcquireOptions::new().wait(wait).interrupt(interrupt));
                self.log.lock().waits[span].to = Some(now());
                assert!(asked.as_ref().map_or_else(|error| error.is_interrupted(), |_| true), "{asked:?}");
                got = asked.ok().flatten();
            }
            let Some(guard) = got else { break };
            held.push((guard, begin(&mut self.log.lock().holds, self.process, name)));
        }
        let begun = now();
        wait_until("the thread has worked", LONG, || begun.elapsed() >= work || interrupt.is_interrupted());
        for (guard, span) in held {
            self.log.lock().holds[span].to = Some(now());
            guard.unlock().unwrap();
        }
    }
}

/// Counts from the logs: cycles, cycles that had to be reported, and long waits by where they led.
#[derive(Debug, Default)]
struct Found {
    rings: usize,
    due: usize,
    on_ring: usize,
    before_ring: usize,
    before_running: usize,
    changing: usize,
}

/// Where the chain of holders from a wait leads.
enum Chain {
    /// To a process that does not wait.
    Runs,
    /// To a name without a known holder, as between a release and the record of the next grant.
    Unknown,
    /// To a cycle, which began at this time.
    Ring(Ring, Instant),
}

impl Log {
    /// Panics unless each report is true, no process reports a cycle twice, and each cycle that lasted longer
    /// than `due` was reported by then.
    fn check(&self, due: Duration, found: &mut Found) {
        let mut met = HashSet::new();
        for report in &self.reports {
            assert!(self.was_there(report), "{report:?} and was not there");
            assert!(met.insert((report.by, &report.waits)), "{report:?} for the second time");
        }
        let mut rings = HashSet::new();
        for (ring, from, lasted) in self.rings() {
            let told = self.told(&ring, from);
            let bound = due + stalled_between(from, from + lasted);
            assert!(
                lasted <= bound || told.is_some_and(|at| at <= from + bound),
                "{ring:?} lasted for {lasted:?} from {from:?} and was not reported: {:?}",
                self.reports
            );
            if rings.insert((ring, from)) {
                found.rings += 1;
                found.due += usize::from(lasted > due);
            }
        }
    }

    fn told(&self, ring: &Ring, from: Instant) -> Option<Instant> {
        let is_it = |report: &&Report| report.at >= from && report.members == *ring;
        self.reports.iter().filter(is_it).map(|report| report.at).min()
    }

    /// Panics if a wait longer than [`LONG_WAIT`] has no reason. Its chain of holders must lead to a running
    /// process, or to a cycle that was reported within `due`, unless the wait ended before.
    fn check_long_waits(&self, due: Duration, found: &mut Found) {
        for wait in &self.waits {
            let (begun, to) = (wait.from + LONG_WAIT, wait.to.expect("the processes have ended"));
            let mut at = begun;
            let count = loop {
                if at >= to {
                    break &mut found.changing;
                }
                match self.chain(wait, at) {
                    Chain::Runs => break &mut found.before_running,
                    Chain::Unknown => {
                        assert!(
                            at <= begun + ms(500) + stalled_between(begun, at),
                            "{wait:?} waits for nobody"
                        );
                    }
                    Chain::Ring(ring, from) => {
                        let told = self.told(&ring, from);
                        let bound = from + due + stalled_between(from, told.unwrap_or(at));
                        assert!(told.unwrap_or(at) <= bound, "{ring:?} of {from:?} was told at {told:?}");
                        if told.is_some() {
                            let is_on_it = ring.iter().any(|(process, ..)| *process == wait.process);
                            break if is_on_it { &mut found.on_ring } else { &mut found.before_ring };
                        }
                    }
                }
                at += ms(50);
            };
            *count += usize::from(begun < to);
        }
    }

    fn chain(&self, wait: &Span, at: Instant) -> Chain {
        let is_now = |span: &&Span| span.from <= at && span.to.is_none_or(|to| at < to);
        let (mut path, mut last) = (vec![wait], wait);
        loop {
            let hold = self.holds.iter().filter(is_now).find(|hold| hold.name == last.name);
            let Some(hold) = hold else { return Chain::Unknown };
            let member = |span: &&Span| span.process == hold.process;
            let first = path.iter().position(member);
            path.push(hold);
            if let Some(first) = first {
                // The path alternates waits and holds. A cycle begins with a wait, which has an even place.
                let ring = &path[first + first % 2..];
                return Chain::Ring(members(ring), ring.iter().map(|span| span.from).max().unwrap_or(at));
            }
            let Some(next) = self.waits.iter().filter(is_now).find(member) else { return Chain::Runs };
            path.push(next);
            last = next;
        }
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

/// Since when, and for how long, all these spans lasted at the same time; `None` if never. Open spans count
/// until `by`.
fn common(spans: &[&Span], by: Instant) -> Option<(Instant, Duration)> {
    let from = spans.iter().map(|span| span.from).max()?;
    let to = spans.iter().map(|span| span.to.unwrap_or(by)).min()?.min(by);
    (to > from).then(|| (from, to.duration_since(from)))
}

/// Runs programs side by side, each with a thread of every client. Returns their logs.
fn run(
    programs: usize,
    open: impl Fn(ClientBuilder) -> LockClient,
    play: impl Fn(&Player<'_>) + Sync,
) -> Vec<Log> {
    let (logs, tag): (Arc<[Mutex<Log>]>, _) =
        ((0..programs).map(|_| Mutex::default()).collect(), fresh("run"));
    let open = |process: usize| {
        let logs = Arc::clone(&logs);
        let observer = move |event: &Event<'_>| {
            if let Event::Deadlock { deadlock, .. } = event
                && deadlock.is_certain
            {
                let program = deadlock.steps[0].holds.split(':').nth(1).and_then(|text| text.parse().ok());
                logs[program.unwrap_or(usize::MAX)].lock().reports.push(Report::new(process, deadlock));
            }
        };
        open(LockClient::builder().label(process.to_string()).observer(observer))
    };
    let clients: Vec<LockClient> = (0..PROCESSES).map(open).collect();
    thread::scope(|scope| {
        for (process, client) in clients.iter().enumerate() {
            for (program, log) in logs.iter().enumerate() {
                let names = (0..NAMES).map(|at| format!("{tag}:{program}:{at}")).collect();
                let player = Player { client, process, names, log };
                scope.spawn({
                    let play = &play;
                    move || play(&player)
                });
            }
        }
    });
    clients.iter().for_each(|client| client.shutdown().unwrap());
    let_pass(ms(100), "reports come on threads of the clients");
    logs.iter().map(|log| std::mem::take(&mut *log.lock())).collect()
}

/// A cycle must be reported within 1.35 s: 30 ms until a search, 1 s until a second one, and a reserve.
#[test]
fn exactly_the_real_deadlocks_of_random_programs_are_reported() {
    watch_for_stalls();
    let (next, found, never) = (AtomicU64::new(0), Mutex::new(Found::default()), Interrupt::new());
    let takes = |player: &Player<'_>| {
        (0..2).for_each(|_| player.take_some(1, [ms(2_000), ms(random() % 30)], &never));
    };
    side_by_side(0..40, |_| {
        while next.fetch_add(1, Ordering::Relaxed) < 200 {
            let store = MemoryStore::new();
            let open = |builder: ClientBuilder| {
                builder.detect_deadlocks_after(ms(30)).build_in_memory(&store).unwrap()
            };
            run(1, open, takes)[0].check(ms(1_350), &mut found.lock());
        }
    });
    assert!(found.into_inner().rings > 20, "hardly any program has a deadlock");
}

#[test]
fn each_deadlock_of_random_programs_on_redis_is_reported() {
    const WITHIN: Duration = Duration::from_secs(3);
    watch_for_stalls();
    let mut found = Found::default();
    let has_happened = |found: &Found| found.due > 5 && found.on_ring > 5 && found.before_running > 0;
    for round in 0..5 {
        if round > 0 && has_happened(&found) {
            break;
        }
        let Some(server) = RedisServer::start_default() else { return };
        let open = |builder: ClientBuilder| builder.url(server.url()).command_timeout(LONG).build().unwrap();
        let interrupt = Interrupt::new();
        let takes = |player: &Player<'_>| {
            while !interrupt.is_interrupted() {
                // In one of six cases the work takes 7 s, so some long waits lead to a running process.
                let work = if random().is_multiple_of(6) { 7_000 } else { random() % 300 };
                player.take_some(4, [6_000 + random() % 3_000, work].map(ms), &interrupt);
            }
        };
        let logs: Vec<Log> = thread::scope(|scope| {
            let groups = [(); 4].map(|()| scope.spawn(|| run(5, open, takes)));
            let_pass(Duration::from_secs(10), "the programs run");
            interrupt.interrupt();
            groups.into_iter().flat_map(|group| group.join().unwrap()).collect()
        });
        for log in logs {
            log.check(WITHIN, &mut found);
            log.check_long_waits(WITHIN, &mut found);
        }
    }
    assert!(has_happened(&found), "hardly anything happened: {found:?}");
    shout(&format!("COUNTED random programs of six clients on Redis: {found:?}"));
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
