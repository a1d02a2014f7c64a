//! Random programs that lock in any order: all that the clients report was so, and all that stays so is reported.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::{Deadlock, Event, Guard, LockClient, MemoryStore, Observer};

use crate::support::server::RedisServer;
use crate::support::{let_pass, ms, now, random, stalled_since};

const PROCESSES: usize = 6;
const NAMES: usize = 5;

/// Waits last as long at most, and are looked at after as short a time.
const WAIT: Duration = ms(700);
const LOOKED_AT_AFTER: Duration = ms(30);

/// A ring that lasts for as long has to be reported: the look at its youngest wait, and the readings.
const REPORTED_WITHIN: Duration = ms(350);

/// A time in which a process held or wanted a name; without an end while it goes on.
#[derive(Debug, Clone)]
struct Span {
    process: usize,
    name: usize,
    from: Instant,
    to: Option<Instant>,
}

/// A process of a ring, the name that it holds and the one that it wants.
type Member = (usize, String, String);

/// All that happened, as the processes know it. A wait is noted after it began and before its end, a hold from before its release is
/// asked for until after it was granted: what is noted was so.
#[derive(Default)]
struct Log {
    holds: Mutex<Vec<Span>>,
    waits: Mutex<Vec<Span>>,
    /// Members and names of each ring that was reported, and when.
    reports: Mutex<Vec<(Vec<Member>, Instant)>>,
}

fn begin(spans: &Mutex<Vec<Span>>, process: usize, name: usize) -> usize {
    let mut spans = spans.lock().unwrap();
    spans.push(Span { process, name, from: now(), to: None });
    spans.len() - 1
}

fn end(spans: &Mutex<Vec<Span>>, at: usize) {
    spans.lock().unwrap()[at].to = Some(now());
}

struct Reporting(Arc<Log>);

impl Observer for Reporting {
    fn event(&self, event: &Event<'_>) {
        if let Event::Deadlock { deadlock, .. } = event
            && deadlock.is_certain
        {
            let at = now();
            self.0.reports.lock().unwrap().push((members(deadlock), at));
        }
    }
}

/// Processes are told apart by their labels.
fn members(deadlock: &Deadlock) -> Vec<Member> {
    let member = |step: &leasehold::DeadlockStep| {
        let label = step.whereabouts.label.as_deref().unwrap_or_default();
        (label.parse().expect("a number"), step.holds.clone(), step.waits_for.clone())
    };
    deadlock.steps.iter().map(member).collect()
}

fn name(program: u64, at: usize) -> String {
    format!("program:{program}:{at}")
}

/// Takes some names in any order, waiting for each, and releases them all; a few times.
fn process(client: &LockClient, log: &Log, program: u64, at: usize) {
    for _ in 0..2 {
        let mut order: Vec<usize> = (0..NAMES).collect();
        for place in (1..NAMES).rev() {
            order.swap(place, (random() % (place as u64 + 1)) as usize);
        }
        let mut held: Vec<(Guard, usize)> = Vec::new();
        for wanted in order.into_iter().take(2 + (random() % 2) as usize) {
            let lock = client.lock(name(program, wanted));
            let got = match lock.try_acquire().unwrap() {
                Some(guard) => Some(guard),
                None => {
                    let waits = begin(&log.waits, at, wanted);
                    let got = lock.try_acquire_for(WAIT);
                    end(&log.waits, waits);
                    got.unwrap()
                }
            };
            let Some(guard) = got else { break };
            held.push((guard, begin(&log.holds, at, wanted)));
        }
        let_pass(ms(random() % 30), "work under the locks");
        for (guard, span) in held {
            end(&log.holds, span);
            guard.unlock().unwrap();
        }
    }
}

/// For how long all of these lasted at the same time, and since when; `None`: never. What ended is counted with what the processes did
/// not see: between the call and the note, of which there is little.
fn common(spans: &[&Span], by: Instant) -> Option<(Instant, Duration)> {
    let from = spans.iter().map(|span| span.from).max()?;
    let to = spans.iter().map(|span| span.to.unwrap_or(by)).min()?.min(by);
    (to > from).then(|| (from, to.duration_since(from)))
}

/// Runs one program, and checks what was reported of it. Returns how many rings there were.
fn run(program: u64, open: &(dyn Fn(usize, Reporting) -> LockClient + Sync)) -> usize {
    let log = Arc::new(Log::default());
    let clients: Vec<LockClient> = (0..PROCESSES).map(|at| open(at, Reporting(Arc::clone(&log)))).collect();
    std::thread::scope(|scope| {
        for (at, client) in clients.iter().enumerate() {
            let log = &log;
            scope.spawn(move || process(client, log, program, at));
        }
    });
    // The reports are all there then.
    clients.iter().for_each(|client| client.shutdown().unwrap());
    let_pass(ms(5), "what is told, is told on threads of the clients");
    let (holds, waits) = (log.holds.lock().unwrap().clone(), log.waits.lock().unwrap().clone());
    let reports = log.reports.lock().unwrap().clone();
    for (members, at) in &reports {
        assert!(
            was_there(members, *at, program, &holds, &waits),
            "{members:?} was reported and was not there"
        );
    }
    let rings = lasting(&holds, &waits);
    for (ring, from, lasted) in &rings {
        if *lasted <= REPORTED_WITHIN + stalled_since(*from) {
            continue;
        }
        let is_it = |members: &Vec<Member>| {
            members.iter().map(|(process, ..)| *process).collect::<BTreeSet<_>>() == *ring
        };
        assert!(
            reports.iter().any(|(members, at)| is_it(members) && *at >= *from),
            "{ring:?} lasted for {lasted:?} and was not reported: {reports:?}"
        );
    }
    rings.len()
}

/// Whether each member held and waited as reported, all at one moment before the report.
fn was_there(members: &[Member], by: Instant, program: u64, holds: &[Span], waits: &[Span]) -> bool {
    let of = |spans: &[Span], process: usize, lock: &str| -> Vec<Span> {
        let is_it =
            |span: &&Span| span.process == process && name(program, span.name) == lock && span.from <= by;
        spans.iter().filter(is_it).cloned().collect()
    };
    // The last of each is the one that is meant, or the one before it.
    let mut parts: Vec<Vec<Span>> = Vec::new();
    for (process, held, wanted) in members {
        parts.push(of(holds, *process, held));
        parts.push(of(waits, *process, wanted));
    }
    fn any(parts: &[Vec<Span>], chosen: &mut Vec<Span>, by: Instant) -> bool {
        let Some((first, rest)) = parts.split_first() else {
            return common(&chosen.iter().collect::<Vec<_>>(), by).is_some();
        };
        first.iter().any(|span| {
            chosen.push(span.clone());
            let is_so = common(&chosen.iter().collect::<Vec<_>>(), by).is_some() && any(rest, chosen, by);
            chosen.pop();
            is_so
        })
    }
    any(&parts, &mut Vec::new(), by)
}

/// The rings that there were, with when they began and for how long they lasted.
fn lasting(holds: &[Span], waits: &[Span]) -> Vec<(BTreeSet<usize>, Instant, Duration)> {
    let mut rings = Vec::new();
    let end = now();
    fn follow<'a>(
        path: &mut Vec<&'a Span>,
        origin: &'a Span,
        wait: &'a Span,
        (holds, waits): (&'a [Span], &'a [Span]),
        end: Instant,
        rings: &mut Vec<(BTreeSet<usize>, Instant, Duration)>,
    ) {
        for hold in holds.iter().filter(|hold| hold.name == wait.name) {
            path.push(hold);
            if let Some((from, lasted)) = common(path, end) {
                if hold.process == origin.process {
                    rings.push((path.iter().map(|span| span.process).collect(), from, lasted));
                } else if path.len() < 2 * PROCESSES {
                    for next in waits.iter().filter(|next| next.process == hold.process) {
                        path.push(next);
                        if common(path, end).is_some() {
                            follow(path, origin, next, (holds, waits), end, rings);
                        }
                        path.pop();
                    }
                }
            }
            path.pop();
        }
    }
    for wait in waits {
        follow(&mut vec![wait], wait, wait, (holds, waits), end, &mut rings);
    }
    rings
}

#[test]
fn two_hundred_random_programs_are_told_of_their_deadlocks_and_of_none_else() {
    let (next, rings) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                loop {
                    let program = next.fetch_add(1, Ordering::Relaxed);
                    if program >= 200 {
                        return;
                    }
                    let store = MemoryStore::new();
                    let found = run(program, &|at, observer| {
                        let builder = LockClient::builder().label(at.to_string()).observer(observer);
                        builder.deadlocks_after(LOOKED_AT_AFTER).build_in_memory(&store).unwrap()
                    });
                    rings.fetch_add(found as u64, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(rings.into_inner() > 20, "hardly any program has a deadlock");
}

#[test]
fn random_programs_on_a_server_are_told_of_their_deadlocks_and_of_none_else() {
    let Some(server) = RedisServer::start_default() else { return };
    let rings = std::thread::scope(|scope| {
        let programs = (0..6).map(|program| {
            let url = server.url();
            scope.spawn(move || {
                run(program, &|at, observer| {
                    let builder = LockClient::builder().url(&url).label(at.to_string()).observer(observer);
                    builder.deadlocks_after(LOOKED_AT_AFTER).pool_size(2).build().unwrap()
                })
            })
        });
        let programs: Vec<_> = programs.collect();
        programs.into_iter().map(|program| program.join().unwrap()).sum::<usize>()
    });
    assert!(rings > 0);
}
