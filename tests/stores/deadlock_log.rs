//! Random programs that lock in any order: their holds, waits and reports must fit together.

use std::collections::{BTreeSet, HashSet};

use leasehold::Deadlock;
use serde::{Deserialize, Serialize};

use crate::support::prelude::*;
use crate::support::{instant_of, mono, random};

/// A time in which a process held or wanted a name, by [`mono`]; no end while it lasts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Span {
    process: usize,
    name: String,
    from: Duration,
    to: Option<Duration>,
}

/// A process of a cycle, the name that it holds, and the name that it wants.
pub(crate) type Member = (usize, String, String);

type Ring = BTreeSet<Member>;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    by: usize,
    members: Ring,
    /// Owner and id of each wait, which no other cycle has.
    waits: BTreeSet<(String, u64)>,
    at: Duration,
}

impl Report {
    /// Reads the processes from the labels in the report.
    pub(crate) fn new(by: usize, deadlock: &Deadlock) -> Report {
        let member = |step: &leasehold::DeadlockStep| {
            let label = step.location.label.as_deref().unwrap_or_default();
            (label.parse().expect("a number"), step.holds.clone(), step.waits_for.clone())
        };
        let waits = deadlock.steps.iter().map(|step| (step.owner.clone(), step.wait_id)).collect();
        Report { by, members: deadlock.steps.iter().map(member).collect(), waits, at: mono() }
    }
}

/// All events as the processes know them. A wait lasts from before the request until after its end, a hold
/// from after its grant until before its release.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Log {
    holds: Vec<Span>,
    waits: Vec<Span>,
    reports: Vec<Report>,
}

#[derive(Default)]
pub(crate) struct Notes(Mutex<Log>);

impl Notes {
    pub(crate) fn report(&self, report: Report) {
        self.0.lock().reports.push(report);
    }

    pub(crate) fn log(&self) -> Log {
        self.0.lock().clone()
    }
}

fn begin(spans: &mut Vec<Span>, process: usize, name: &str) -> usize {
    spans.push(Span { process, name: name.to_owned(), from: mono(), to: None });
    spans.len() - 1
}

pub(crate) struct Player<'a> {
    pub(crate) client: &'a LockClient,
    pub(crate) notes: &'a Notes,
    pub(crate) process: usize,
    pub(crate) names: &'a [String],
    pub(crate) make: &'a dyn Fn(&LockClient, usize) -> RedisLock,
    pub(crate) interrupt: &'a Interrupt,
}

impl Player<'_> {
    /// Takes two or three names in any order, waiting for each, works, and releases them.
    pub(crate) fn take_some(&self, wait: Duration, work: Duration) {
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, (random() % (place as u64 + 1)) as usize);
        }
        let mut held: Vec<(Guard, usize)> = Vec::new();
        for wanted in order.into_iter().take(2 + (random() % 2) as usize) {
            let (lock, name) = ((self.make)(self.client, wanted), &self.names[wanted]);
            let got = match lock.try_acquire().unwrap() {
                Some(guard) => Some(guard),
                None => {
                    let span = begin(&mut self.notes.0.lock().waits, self.process, name);
                    let options = AcquireOptions::new().wait(wait).interrupt(self.interrupt);
                    let got = lock.acquire_with(&options);
                    self.notes.0.lock().waits[span].to = Some(mono());
                    match got {
                        Ok(got) => got,
                        Err(error) if error.is_interrupted() => None,
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            let Some(guard) = got else { break };
            held.push((guard, begin(&mut self.notes.0.lock().holds, self.process, name)));
        }
        let begun = mono();
        while mono().saturating_sub(begun) < work && !self.interrupt.is_interrupted() {
            let_pass(work.saturating_sub(mono().saturating_sub(begun)).min(ms(50)), "work under the locks");
        }
        for (guard, span) in held {
            self.notes.0.lock().holds[span].to = Some(mono());
            guard.unlock().unwrap();
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) rings: usize,
    pub(crate) due: usize,
    /// The reports: one by each client on a cycle.
    pub(crate) reports: usize,
    /// The time from each reported cycle's begin to its first report.
    pub(crate) told_after: Vec<Duration>,
    /// Long waits: on a cycle, before one, before a running holder; and waits that ended while that was
    /// unclear.
    pub(crate) on_ring: usize,
    pub(crate) before_ring: usize,
    pub(crate) before_running: usize,
    pub(crate) changing: usize,
}

impl Figures {
    pub(crate) fn add(&mut self, other: Figures) {
        self.rings += other.rings;
        self.due += other.due;
        self.reports += other.reports;
        self.told_after.extend(other.told_after);
        self.on_ring += other.on_ring;
        self.before_ring += other.before_ring;
        self.before_running += other.before_running;
        self.changing += other.changing;
    }
}

/// The delay that a stall of the machine allows for events that began at `begun`.
fn stalled(begun: Duration) -> Duration {
    stalled_since(instant_of(begun))
}

impl Log {
    pub(crate) fn add(&mut self, other: Log) {
        self.holds.extend(other.holds);
        self.waits.extend(other.waits);
        self.reports.extend(other.reports);
    }

    /// Panics unless each report is true and made once by each process, and each cycle that lasts longer than
    /// `due` was reported by then.
    pub(crate) fn check(&self, due: Duration) -> Figures {
        let mut figures = Figures { reports: self.reports.len(), ..Figures::default() };
        let mut met = HashSet::new();
        for report in &self.reports {
            assert!(self.was_there(report), "{report:?} and was not there");
            assert!(met.insert((report.by, &report.waits)), "{report:?} for the second time");
        }
        let mut met = HashSet::new();
        for (ring, from, lasted) in self.rings() {
            if !met.insert((ring.clone(), from)) {
                continue;
            }
            figures.rings += 1;
            let told = self.told(&ring, from);
            figures.told_after.extend(told.map(|at| at.saturating_sub(from)));
            if lasted > due {
                figures.due += 1;
                let bound = due + stalled(from);
                assert!(
                    lasted <= bound || told.is_some_and(|at| at <= from + bound),
                    "{ring:?} lasted for {lasted:?} from {from:?} and was not reported: {:?}",
                    self.reports
                );
            }
        }
        figures
    }

    fn told(&self, ring: &Ring, from: Duration) -> Option<Duration> {
        let is_it = |report: &&Report| report.at >= from && report.members == *ring;
        self.reports.iter().filter(is_it).map(|report| report.at).min()
    }

    /// Whether all members held and waited as reported, at one moment before the report.
    fn was_there(&self, report: &Report) -> bool {
        let of = |spans: &[Span], process: usize, name: &str| -> Vec<Span> {
            let is_it = |span: &&Span| span.process == process && span.name == name && span.from <= report.at;
            spans.iter().filter(is_it).cloned().collect()
        };
        let mut parts: Vec<Vec<Span>> = Vec::new();
        for (process, held, wanted) in &report.members {
            parts.push(of(&self.holds, *process, held));
            parts.push(of(&self.waits, *process, wanted));
        }
        fn any(parts: &[Vec<Span>], chosen: &mut Vec<Span>, by: Duration) -> bool {
            let is_so = |chosen: &[Span]| common(&chosen.iter().collect::<Vec<_>>(), by).is_some();
            let Some((first, rest)) = parts.split_first() else { return is_so(chosen) };
            first.iter().any(|span| {
                chosen.push(span.clone());
                let is_so = is_so(chosen) && any(rest, chosen, by);
                chosen.pop();
                is_so
            })
        }
        any(&parts, &mut Vec::new(), report.at)
    }

    /// The cycles, with their begins and durations, once for each member.
    fn rings(&self) -> Vec<(Ring, Duration, Duration)> {
        let (mut rings, end) = (Vec::new(), mono());
        for wait in &self.waits {
            self.follow(&mut vec![wait], wait, end, &mut rings);
        }
        rings
    }

    fn follow<'a>(
        &'a self,
        path: &mut Vec<&'a Span>,
        wait: &'a Span,
        end: Duration,
        rings: &mut Vec<(Ring, Duration, Duration)>,
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

    /// Panics unless each wait longer than `long` was on a reported cycle, in a chain to one, or in a chain
    /// to a running process. A cycle must be reported when it has lasted for `due`.
    pub(crate) fn check_long_waits(&self, long: Duration, due: Duration, figures: &mut Figures) {
        for wait in &self.waits {
            let to = wait.to.expect("the processes have ended");
            let (begun, mut at) = (wait.from + long, wait.from + long);
            loop {
                if at >= to {
                    figures.changing += usize::from(begun < to);
                    break;
                }
                match self.chain(wait, at) {
                    Chain::Runs => {
                        figures.before_running += 1;
                        break;
                    }
                    // The moment lies between a release and the record of the next grant.
                    Chain::Changes => {
                        assert!(at <= begun + ms(500) + stalled(begun), "{wait:?} waits for nobody");
                    }
                    Chain::Ring(ring, from) => {
                        if let Some(told) = self.told(&ring, from) {
                            assert!(told <= from + due + stalled(from), "{ring:?} was told late");
                            if ring.iter().any(|(process, ..)| *process == wait.process) {
                                figures.on_ring += 1;
                            } else {
                                figures.before_ring += 1;
                            }
                            break;
                        }
                        assert!(at <= from + due + stalled(from), "{ring:?} of {from:?} was not told");
                    }
                }
                at += ms(50);
            }
        }
    }

    /// The end of the chain of holders from this wait at that moment.
    fn chain(&self, wait: &Span, at: Duration) -> Chain {
        let is_now = |span: &&Span| span.from <= at && span.to.is_none_or(|to| at < to);
        let mut path: Vec<&Span> = vec![wait];
        loop {
            let Some(last) = path.last() else { return Chain::Changes };
            let hold = self.holds.iter().filter(is_now).find(|hold| hold.name == last.name);
            let Some(hold) = hold else { return Chain::Changes };
            path.push(hold);
            let member = |span: &&Span| span.process == hold.process;
            if let Some(first) = path[..path.len() - 1].iter().position(&member) {
                // All links from the first repeated wait on are the cycle.
                let ring = &path[first + first % 2..];
                let from = ring.iter().map(|span| span.from).max().unwrap_or_default();
                return Chain::Ring(members(ring), from);
            }
            let Some(next) = self.waits.iter().filter(is_now).find(member) else { return Chain::Runs };
            path.push(next);
        }
    }
}

enum Chain {
    /// The chain leads to a process that does not wait.
    Runs,
    /// The chain leads to a name without a known holder.
    Changes,
    /// The chain leads into this cycle, which began then.
    Ring(Ring, Duration),
}

fn members(ring: &[&Span]) -> Ring {
    let before = ring.iter().cycle().skip(ring.len() - 1).step_by(2);
    let waits = ring.iter().step_by(2);
    before.zip(waits).map(|(hold, wait)| (wait.process, hold.name.clone(), wait.name.clone())).collect()
}

/// How long all of these lasted together, and since when; `None`: never. An ended cycle counts with the short
/// time between call and note, which the processes did not see.
fn common(spans: &[&Span], by: Duration) -> Option<(Duration, Duration)> {
    let from = spans.iter().map(|span| span.from).max()?;
    let to = spans.iter().map(|span| span.to.unwrap_or(by)).min()?.min(by);
    (to > from).then(|| (from, to.saturating_sub(from)))
}
