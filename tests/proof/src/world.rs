//! Clients, their requests on the way, a server, and time.
//!
//! The clients do what the library's engine does: they ask, listen, ask again before they sleep, wake by a message or when a
//! lease that they were told of has ended, keep to the window from before a request was sent, give a number up when something
//! may still come under it, and hand a lock on to a thread of their own. What is not modelled are the polls by which waiters
//! find out in any case: nobody is to need them while no request is lost and no process killed.

use std::fmt::Write;

use crate::explore;
use crate::kinds::{Answer, Kind, LEASE_MS, Op, Turn, Who, Why};
use crate::lua::Scripts;
use crate::server::{Server, Value};

const BEGIN_US: u64 = 1_700_000_000_000_000;

/// A request is answered, or given up, within this: longer than a lease, so that holds end while requests are on their way, and
/// much shorter than outcomes are remembered.
const LATEST_US: u64 = 1_500_000;

const TICK_US: u64 = 5000;

/// How long the second in the line waits for the first, and more than that.
const SOON_MS: u64 = 26;

/// How often things may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Which client each owner is of.
    pub owners: &'static [usize],
    /// One of them that does nothing.
    pub idle: Option<usize>,
    /// How often each takes the lock or gives up.
    pub cycles: u8,
    /// Requests and answers that are lost or late.
    pub faults: u8,
    /// Processes that are killed.
    pub kills: u8,
    /// How often the server loses all it has.
    pub losses: u8,
    /// How often time passes until something ends, and how often five milliseconds do.
    pub spans: u8,
    pub ticks: u8,
    pub renewals: u8,
    pub reentries: u8,
    /// Waits that end without the lock.
    pub gives_up: u8,
    /// How often the server's memory becomes full. It may have room again at any time.
    pub fills: u8,
    /// A command that the user may not use.
    pub refused: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    /// It has not asked, or will ask again at once.
    Wants,
    Asks,
    Sleeps {
        until_ms: Option<u64>,
    },
    Holds {
        until_us: u64,
        levels: u8,
    },
    /// It holds, and has asked for more time or another level.
    Extends {
        until_us: u64,
        levels: u8,
    },
    Releases {
        until_us: u64,
        levels: u8,
    },
    HandsOver {
        until_us: u64,
        to: usize,
    },
    Dead,
}

#[derive(Debug, Clone)]
struct Owner {
    who: Who,
    phase: Phase,
    cycles: u8,
    /// Has it asked since it began to wait, does it listen to its own turn, to all releases.
    has_asked: bool,
    own_turn: bool,
    releases: bool,
    /// What it has heard since it asked last.
    heard: bool,
    is_next: bool,
    standby: bool,
    /// Something may still come under its number.
    is_spent: bool,
    /// What it held was lost by the server.
    is_void: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    who: Who,
    to: Option<Who>,
    op: Op,
    sent_us: u64,
    /// Whether the owner waits for the answer still.
    is_awaited: bool,
    /// Whether it is on its client's connection, behind what that sent before.
    is_in_order: bool,
    answer: Option<Answer>,
    is_void: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Ask(usize),
    GiveUp(usize),
    Serve(usize),
    Answer(usize),
    /// The request or its answer never arrives.
    Lose(usize),
    /// Its owner waits no longer, and it arrives all the same.
    Late(usize),
    Renew(usize),
    Reenter(usize),
    Release(usize),
    HandOver(usize),
    Pass,
    Tick,
    Kill(usize),
    LoseData,
    Fill,
    Drain,
}

#[derive(Clone)]
pub struct World<'a> {
    scripts: &'a Scripts,
    kind: Kind,
    left: Limits,
    server: Server,
    owners: Vec<Owner>,
    requests: Vec<Request>,
    last_fence: u64,
    /// No request was lost, no answer came after its lease, nobody was killed, no data gone, no hold let run out.
    is_calm: bool,
    /// Nobody was killed, no data gone.
    is_whole: bool,
    wrong: Option<String>,
}

impl<'a> World<'a> {
    #[must_use]
    pub fn new(scripts: &'a Scripts, kind: Kind, limits: Limits) -> World<'a> {
        let mut server = Server { now_us: BEGIN_US, ..Server::default() };
        kind.prepare(&mut server);
        server.refused = limits.refused.map(str::to_owned);
        let owner = |(owner, client): (usize, &usize)| Owner {
            who: Who { owner, client: *client, number: 1 },
            phase: Phase::Idle,
            cycles: if limits.idle == Some(owner) { 0 } else { limits.cycles },
            has_asked: false,
            own_turn: false,
            releases: false,
            heard: false,
            is_next: false,
            standby: false,
            is_spent: false,
            is_void: false,
        };
        let owners = limits.owners.iter().enumerate().map(owner).collect();
        World {
            scripts,
            kind,
            left: limits,
            server,
            owners,
            requests: Vec::new(),
            last_fence: 0,
            is_calm: limits.refused.is_none(),
            is_whole: limits.refused.is_none(),
            wrong: None,
        }
    }

    /// Over the client's connection. What undoes a request that had no answer goes over another.
    fn send(&mut self, owner: usize, op: Op, to: Option<Who>, is_awaited: bool) {
        let who = self.owners[owner].who;
        let sent_us = self.server.now_us;
        self.requests.push(Request {
            who,
            to,
            op,
            sent_us,
            is_awaited,
            is_in_order: op != Op::Undo,
            answer: None,
            is_void: false,
        });
    }

    /// Whether another thread of the same client is at it, so that this one waits for it and does not ask.
    fn stands_behind(&self, owner: usize) -> bool {
        let me = &self.owners[owner];
        self.kind.queues_here()
            && self.owners.iter().any(|other| {
                other.who.owner != owner
                    && other.who.client == me.who.client
                    && !matches!(other.phase, Phase::Idle | Phase::Wants | Phase::Dead)
            })
    }

    /// Another thread of the same client that waits for this one.
    fn successor(&self, owner: usize) -> Option<usize> {
        let client = self.owners[owner].who.client;
        let waits = |other: &&Owner| {
            other.who.owner != owner
                && other.who.client == client
                && (other.phase == Phase::Wants || other.phase == Phase::Idle && other.cycles > 0)
        };
        self.owners.iter().find(waits).map(|other| other.who.owner)
    }

    /// It waits no longer. The place in line is the client's: another of its threads keeps it, and gives it up when it is the last
    /// and has not asked itself.
    fn leaves(&mut self, owner: usize) {
        let is_last = self.kind.queues_here() && self.successor(owner).is_none();
        if is_last || self.kind == Kind::Fair && self.owners[owner].has_asked {
            self.send(owner, Op::Leave, None, false);
        }
    }

    /// The owner has nothing any more, and wants nothing until its next cycle.
    fn end_cycle(&mut self, owner: usize, gives_number_up: bool) {
        let owner = &mut self.owners[owner];
        owner.phase = Phase::Idle;
        owner.cycles = owner.cycles.saturating_sub(1);
        (owner.has_asked, owner.own_turn, owner.releases) = (false, false, false);
        (owner.heard, owner.is_next, owner.standby, owner.is_void) = (false, false, false, false);
        // A semaphore's request has a number of its own each time.
        if gives_number_up || owner.is_spent || matches!(self.kind, Kind::Semaphore(_)) {
            owner.who.number += 1;
            owner.is_spent = false;
        }
    }

    fn serve(&mut self, index: usize) {
        let request = self.requests[index].clone();
        self.server.listeners.clear();
        for owner in &self.owners {
            for (listens, own_turn) in [(owner.own_turn, true), (owner.releases, false)] {
                if listens && owner.phase != Phase::Dead {
                    // One subscription of a client, however many of its threads want it.
                    self.server.listeners.insert(self.kind.channel(&owner.who, own_turn), 1);
                }
            }
        }
        let call = self.kind.call(request.op, &request.who, request.to.as_ref());
        let reply = self.scripts.run(&mut self.server, call.script, &call.keys, &call.arguments);
        match self.kind.read(request.op, &reply) {
            Err(words) => self.wrong = Some(format!("an answer that means nothing: {words}")),
            // Nothing that ends a hold, or keeps it, takes memory that is not there.
            Ok(Answer::Refused)
                if self.server.is_full && !matches!(request.op, Op::Acquire(..) | Op::HandOver(..)) =>
            {
                self.wrong = Some(format!("a full server refuses {:?}", request.op));
            }
            Ok(answer) => {
                if let Answer::Granted(Some(fence)) = answer {
                    if fence <= self.last_fence {
                        self.wrong = Some(format!("the token {fence} comes after {}", self.last_fence));
                    }
                    self.last_fence = fence;
                }
                self.requests[index].answer = Some(answer);
            }
        }
        for (channel, message) in std::mem::take(&mut self.server.published) {
            for owner in 0..self.owners.len() {
                self.hears(owner, &channel, &message);
            }
        }
        if !self.requests[index].is_awaited {
            self.requests.remove(index);
        }
    }

    fn hears(&mut self, owner: usize, channel: &str, message: &str) {
        let soon = self.server.now_ms() + SOON_MS - 1;
        let kind = self.kind;
        let owner = &mut self.owners[owner];
        let is_own = owner.own_turn && kind.channel(&owner.who, true) == channel;
        let is_release = owner.releases && kind.channel(&owner.who, false) == channel;
        if owner.phase == Phase::Dead || !is_own && !is_release {
            return;
        }
        if message == "standby" {
            owner.standby = true;
            if let Phase::Sleeps { until_ms } = &mut owner.phase {
                *until_ms = Some(until_ms.map_or(soon, |until| until.min(soon)));
            }
        } else {
            owner.heard = true;
            owner.is_next |= message == "next";
        }
    }

    /// The answer arrives.
    fn answered(&mut self, index: usize) {
        let request = self.requests.remove(index);
        let owner = request.who.owner;
        let until_us = request.sent_us + LEASE_MS * 1000;
        let answer = request.answer.clone().expect("it was served");
        if answer == Answer::Refused {
            if let Some(command) = self.server.refused.as_deref().filter(|it| self.kind.does_without(it)) {
                self.wrong = Some(format!("{:?} was refused for want of {command}", request.op));
            }
            return self.refused(&request);
        }
        match (request.op, self.owners[owner].phase, answer) {
            (Op::Acquire(1, _), Phase::Asks, Answer::Granted(_)) => {
                self.granted(owner, until_us, request.is_void)
            }
            (Op::Acquire(1, _), Phase::Asks, Answer::Busy(left)) => self.is_to_wait(owner, left, true),
            (Op::Acquire(1, _), Phase::Asks, Answer::InLine(left, why)) => {
                self.is_to_wait(owner, left, why == Why::Foreign)
            }
            (Op::Acquire(..), Phase::Extends { levels, .. }, Answer::Granted(_)) => {
                // Whatever became of it: now the store says that it has it.
                self.owners[owner].phase = Phase::Holds { until_us, levels: levels + 1 };
                self.owners[owner].is_void = request.is_void;
            }
            (Op::Renew, Phase::Extends { levels, .. }, Answer::Renewed) => {
                self.owners[owner].phase = Phase::Holds { until_us, levels };
                self.owners[owner].is_void = request.is_void;
            }
            // The store has it no longer.
            (_, Phase::Extends { .. }, _) => self.end_cycle(owner, true),
            (Op::Release(left), Phase::Releases { until_us, .. }, Answer::StillHeld) => {
                self.owners[owner].phase = Phase::Holds { until_us, levels: left };
            }
            (Op::Release(_), Phase::Releases { .. }, answer) => {
                if answer == Answer::Lost && self.is_calm && !self.owners[owner].is_void {
                    self.wrong =
                        Some(format!("owner {owner} released what it held, and was told that it did not"));
                }
                self.end_cycle(owner, answer == Answer::Lost);
            }
            (Op::HandOver(to, _), Phase::HandsOver { .. }, Answer::Granted(_)) => {
                self.end_cycle(owner, false);
                self.owners[to].phase = Phase::Asks;
                self.granted(to, until_us, request.is_void);
            }
            (Op::HandOver(to, _), Phase::HandsOver { .. }, _) => {
                self.end_cycle(owner, true);
                self.owners[to].phase = Phase::Wants;
            }
            _ => {}
        }
    }

    /// The caller gets an error. A hold that could not be renewed or released stays until its window ends.
    fn refused(&mut self, request: &Request) {
        let owner = request.who.owner;
        match (request.op, self.owners[owner].phase) {
            (_, Phase::Extends { until_us, levels }) => {
                self.owners[owner].phase = Phase::Holds { until_us, levels }
            }
            (Op::HandOver(to, _), Phase::HandsOver { until_us, .. }) => {
                self.owners[to].phase = Phase::Wants;
                self.owners[owner].phase = Phase::Releases { until_us, levels: 1 };
                self.send(owner, Op::Release(0), None, true);
            }
            (_, Phase::Asks) => {
                self.leaves(owner);
                self.end_cycle(owner, false);
            }
            (_, Phase::Releases { .. }) => self.end_cycle(owner, true),
            _ => {}
        }
    }

    fn granted(&mut self, owner: usize, until_us: u64, is_void: bool) {
        if self.server.now_us >= until_us {
            // Too late: it is given back under the number that it had, which is given up.
            self.is_calm = false;
            self.send(owner, Op::Undo, None, false);
            self.owners[owner].who.number += 1;
            self.owners[owner].phase = Phase::Wants;
            return;
        }
        let owner = &mut self.owners[owner];
        owner.phase = Phase::Holds { until_us, levels: 1 };
        owner.is_void = is_void;
        (owner.has_asked, owner.own_turn, owner.releases) = (false, false, false);
        (owner.heard, owner.is_next, owner.standby) = (false, false, false);
    }

    /// Listens before it sleeps, and asks again after it began to.
    fn is_to_wait(&mut self, owner: usize, left_ms: Option<u64>, all_releases: bool) {
        let now = self.server.now_ms();
        let lined = self.kind.queues_here();
        let fair = self.kind == Kind::Fair;
        let owner = &mut self.owners[owner];
        owner.has_asked = true;
        let (wants_turn, wants_releases) = if lined { (true, all_releases) } else { (false, true) };
        let is_new = wants_turn && !owner.own_turn || wants_releases && !owner.releases;
        owner.own_turn |= wants_turn;
        owner.releases |= wants_releases;
        if is_new || owner.heard {
            owner.phase = Phase::Wants;
            return;
        }
        let mut until_ms = left_ms.map(|left| now + left + 1);
        if owner.standby {
            let soon = now + SOON_MS - 1;
            until_ms = Some(until_ms.map_or(soon, |until| until.min(soon)));
        }
        if fair {
            // It asks again to keep its place.
            let keeps = now + crate::kinds::ALIVE_MS / 2;
            until_ms = Some(until_ms.map_or(keeps, |until| until.min(keeps)));
        }
        owner.standby = false;
        owner.phase = Phase::Sleeps { until_ms };
    }

    /// The owner will learn nothing of this request. Where the request is on its way still, it stays.
    fn unknown(&mut self, request: &Request) {
        let owner = request.who.owner;
        match (request.op, self.owners[owner].phase) {
            (Op::Acquire(1, _), Phase::Asks) => {
                self.send(owner, Op::Undo, None, false);
                self.owners[owner].who.number += 1;
                self.owners[owner].phase = Phase::Wants;
            }
            (Op::Acquire(..) | Op::Renew, Phase::Extends { until_us, levels }) => {
                self.owners[owner].is_spent = true;
                self.owners[owner].phase = Phase::Holds { until_us, levels };
            }
            (Op::Release(left), Phase::Releases { .. }) => {
                self.owners[owner].is_spent = true;
                self.send(owner, Op::Release(left), None, true);
            }
            (Op::HandOver(to, _), Phase::HandsOver { until_us, .. }) => {
                self.owners[owner].is_spent = true;
                self.owners[owner].phase = Phase::Releases { until_us, levels: 1 };
                self.send(owner, Op::Release(0), None, true);
                self.owners[to].who.number += 1;
                self.owners[to].phase = Phase::Wants;
            }
            _ => {}
        }
    }

    /// Ends what has ended by now, here and in the store.
    fn end_windows(&mut self) {
        self.server.expire();
        let now = self.server.now_us;
        for owner in 0..self.owners.len() {
            match self.owners[owner].phase {
                Phase::Holds { until_us, .. }
                | Phase::Extends { until_us, .. }
                | Phase::Releases { until_us, .. }
                    if now >= until_us && self.kind.has_renewals() =>
                {
                    self.is_calm = false;
                    for request in &mut self.requests {
                        request.is_awaited &= request.who.owner != owner;
                    }
                    self.requests.retain(|request| request.is_awaited || request.answer.is_none());
                    self.end_cycle(owner, true);
                }
                _ => {}
            }
        }
    }

    /// Whether no request would be on its way for longer than any is: its owner has given it up by then, and the server has it.
    fn may_become(&self, now_us: u64) -> bool {
        self.requests.iter().all(|request| now_us <= request.sent_us + LATEST_US)
    }

    /// When the next thing ends.
    fn next_end_us(&self) -> Option<u64> {
        let keys = self.server.keys.values().filter_map(|entry| entry.ends_ms).map(|ends| (ends + 1) * 1000);
        let owners = self.owners.iter().filter_map(|owner| match owner.phase {
            Phase::Holds { until_us, .. } | Phase::Extends { until_us, .. } if self.kind.has_renewals() => {
                Some(until_us)
            }
            Phase::Sleeps { until_ms: Some(until) } => Some(until * 1000),
            _ => None,
        });
        keys.chain(owners).filter(|end| *end > self.server.now_us).min()
    }

    fn kill(&mut self, client: usize) {
        self.is_whole = false;
        let waits = |owner: &Owner| matches!(owner.phase, Phase::Idle | Phase::Wants | Phase::Sleeps { .. });
        let only_waits = self.owners.iter().filter(|owner| owner.who.client == client).all(waits)
            && !self.requests.iter().any(|request| request.who.client == client);
        // Who waits behind one that dies is not to wait longer for that.
        self.is_calm &= only_waits;
        for owner in &mut self.owners {
            if owner.who.client == client {
                owner.phase = Phase::Dead;
                owner.is_void = false;
            }
        }
        for request in &mut self.requests {
            request.is_awaited &= request.who.client != client;
        }
        self.requests.retain(|request| request.is_awaited || request.answer.is_none());
    }

    fn holders(&self) -> impl Iterator<Item = (&Owner, u8)> {
        self.owners.iter().filter_map(|owner| match owner.phase {
            Phase::Holds { levels, .. } | Phase::Extends { levels, .. } if !owner.is_void => {
                Some((owner, levels))
            }
            _ => None,
        })
    }

    /// Whether nothing is on its way, and whoever lives sleeps or has done.
    fn is_still(&self) -> bool {
        let is_still = |owner: &Owner| match owner.phase {
            Phase::Sleeps { until_ms } => {
                !owner.heard && until_ms.is_none_or(|until| until > self.server.now_ms() + SOON_MS)
            }
            Phase::Idle => owner.cycles == 0,
            Phase::Dead => true,
            _ => false,
        };
        self.requests.is_empty() && self.owners.iter().all(is_still)
    }

    fn check_holders(&self) -> Option<String> {
        let holders: Vec<(&Owner, u8)> = self.holders().collect();
        for (index, (one, levels)) in holders.iter().enumerate() {
            for (other, _) in &holders[index + 1..] {
                if self.kind.excludes(one.who.owner, other.who.owner) {
                    return Some(format!("two hold it: {:?} and {:?}", one.who, other.who));
                }
            }
            let is_settled = !self.requests.iter().any(|request| request.who.owner == one.who.owner);
            let count = self.kind.count(&self.server, &one.who);
            // What is remembered of a semaphore's requests ends sooner than the permits come back.
            let is_settled = is_settled && (self.kind.has_renewals() || self.no_time_has_passed());
            if is_settled && !one.is_spent && self.is_calm && count != *levels {
                return Some(format!("{:?} holds it {levels} times, and the server has {count}", one.who));
            }
        }
        None
    }

    fn check_keys(&self) -> Option<String> {
        let without_end = |(key, entry): &(&String, &crate::server::Entry)| {
            entry.ends_ms.is_none() && !self.kind.may_stay(key)
        };
        if let Some((key, _)) = self.server.keys.iter().find(without_end) {
            return Some(format!("{key} has no end"));
        }
        let is_over = self.is_calm && self.have_all_done();
        let left = self.server.keys.keys().find(|key| !self.kind.may_be_left(key));
        match left {
            Some(key) if is_over => Some(format!("{key} is left when all have done")),
            _ => None,
        }
    }

    fn have_all_done(&self) -> bool {
        let has_done = |owner: &Owner| owner.phase == Phase::Idle && owner.cycles == 0;
        self.requests.is_empty() && self.owners.iter().all(has_done)
    }

    fn check_permits(&self) -> Option<String> {
        let Kind::Semaphore(permits) = self.kind else { return None };
        let now = self.kind.permits(&self.server)?;
        let taken = self.server.keys.iter().filter(|(key, entry)| {
            key.starts_with("leasehold_request:") && entry.value == Value::Text("granted".to_owned())
        });
        let sum = now + i64::try_from(taken.count()).unwrap_or(0);
        // Whatever was lost or late on the way: what undoes a request goes again until it is answered.
        if self.is_whole && self.have_all_done() && now != i64::from(permits) {
            return Some(format!("all have done, and of {permits} permits there are {now}"));
        }
        (self.no_time_has_passed() && sum != i64::from(permits))
            .then(|| format!("{permits} permits have become {sum}"))
    }

    fn no_time_has_passed(&self) -> bool {
        self.server.now_us == BEGIN_US
    }

    fn check_waiters(&self) -> Option<String> {
        if !self.is_calm || !self.is_still() {
            return None;
        }
        let sleeps = |owner: &&Owner| matches!(owner.phase, Phase::Sleeps { .. });
        let forgotten =
            self.owners.iter().filter(sleeps).find(|owner| self.kind.is_free_for(&self.server, &owner.who));
        forgotten.map(|owner| format!("nobody wakes {:?}, which could have it", owner.who))
    }
}

impl explore::World for World<'_> {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (index, request) in self.requests.iter().enumerate() {
            let is_before = |earlier: &Request| {
                earlier.who.client == request.who.client && earlier.is_in_order && earlier.answer.is_none()
            };
            let is_first = !request.is_in_order || !self.requests[..index].iter().any(is_before);
            match request.answer {
                None if is_first => actions.push(Action::Serve(index)),
                None => {}
                Some(_) => actions.push(Action::Answer(index)),
            }
            if self.left.faults > 0 && request.is_awaited {
                actions.push(Action::Lose(index));
                if request.answer.is_none() {
                    actions.push(Action::Late(index));
                }
            }
        }
        for (index, owner) in self.owners.iter().enumerate() {
            match owner.phase {
                Phase::Idle if owner.cycles > 0 && !self.stands_behind(index) => {
                    actions.push(Action::Ask(index))
                }
                Phase::Wants if !self.stands_behind(index) => actions.push(Action::Ask(index)),
                Phase::Sleeps { until_ms } => {
                    if owner.heard || until_ms.is_some_and(|until| until <= self.server.now_ms()) {
                        actions.push(Action::Ask(index));
                    }
                    if self.left.gives_up > 0 {
                        actions.push(Action::GiveUp(index));
                    }
                }
                Phase::Holds { levels, .. } => {
                    actions.push(Action::Release(index));
                    if self.kind.queues_here() && levels == 1 && self.successor(index).is_some() {
                        actions.push(Action::HandOver(index));
                    }
                    if self.left.renewals > 0 && self.kind.has_renewals() {
                        actions.push(Action::Renew(index));
                    }
                    if self.left.reentries > 0 && self.kind.has_renewals() {
                        actions.push(Action::Reenter(index));
                    }
                }
                _ => {}
            }
        }
        if self.left.spans > 0 && self.next_end_us().is_some_and(|end| self.may_become(end)) {
            actions.push(Action::Pass);
        }
        if self.left.ticks > 0 && self.may_become(self.server.now_us + TICK_US) {
            actions.push(Action::Tick);
        }
        if self.left.losses > 0 {
            actions.push(Action::LoseData);
        }
        if self.server.is_full {
            actions.push(Action::Drain);
        } else if self.left.fills > 0 {
            actions.push(Action::Fill);
        }
        if self.left.kills > 0 {
            let mut clients: Vec<usize> = self.left.owners.to_vec();
            clients.dedup();
            actions.extend(clients.into_iter().map(Action::Kill));
        }
        actions
    }

    fn act(&self, action: &Action) -> Self {
        let mut next = self.clone();
        match *action {
            Action::Ask(owner) => {
                let one = &mut next.owners[owner];
                let turn = match (one.has_asked, one.is_next) {
                    (false, _) => Turn::Wait,
                    (true, false) => Turn::Stand,
                    (true, true) => Turn::Next,
                };
                one.phase = Phase::Asks;
                (one.heard, one.is_next, one.standby) = (false, false, false);
                next.send(owner, Op::Acquire(1, turn), None, true);
            }
            Action::GiveUp(owner) => {
                next.left.gives_up -= 1;
                next.leaves(owner);
                next.end_cycle(owner, false);
            }
            Action::Serve(index) => next.serve(index),
            Action::Answer(index) => next.answered(index),
            Action::Lose(index) | Action::Late(index) => {
                next.left.faults -= 1;
                next.is_calm = false;
                let request = next.requests[index].clone();
                if matches!(action, Action::Lose(_)) {
                    next.requests.remove(index);
                } else {
                    (next.requests[index].is_awaited, next.requests[index].is_in_order) = (false, false);
                }
                next.unknown(&request);
            }
            Action::Renew(owner) | Action::Reenter(owner) => {
                let Phase::Holds { until_us, levels } = next.owners[owner].phase else { return next };
                next.owners[owner].phase = Phase::Extends { until_us, levels };
                let op = if matches!(action, Action::Renew(_)) {
                    next.left.renewals -= 1;
                    Op::Renew
                } else {
                    next.left.reentries -= 1;
                    Op::Acquire(levels + 1, Turn::Wait)
                };
                next.send(owner, op, None, true);
            }
            Action::Release(owner) => {
                let Phase::Holds { until_us, levels } = next.owners[owner].phase else { return next };
                next.owners[owner].phase = Phase::Releases { until_us, levels };
                next.send(owner, Op::Release(levels - 1), None, true);
            }
            Action::HandOver(owner) => {
                let (Phase::Holds { until_us, .. }, Some(to)) =
                    (next.owners[owner].phase, next.successor(owner))
                else {
                    return next;
                };
                let heir = next.owners[to].who;
                next.owners[owner].phase = Phase::HandsOver { until_us, to };
                next.owners[to].phase = Phase::Asks;
                next.send(owner, Op::HandOver(to, heir.number), Some(heir), true);
            }
            Action::Pass => {
                next.left.spans -= 1;
                next.server.now_us = next.next_end_us().unwrap_or(next.server.now_us);
                next.end_windows();
            }
            Action::Tick => {
                next.left.ticks -= 1;
                next.server.now_us += TICK_US;
                next.end_windows();
            }
            Action::Kill(client) => {
                next.left.kills -= 1;
                next.kill(client);
            }
            Action::Fill => {
                next.left.fills -= 1;
                next.server.is_full = true;
            }
            Action::Drain => next.server.is_full = false,
            Action::LoseData => {
                next.left.losses -= 1;
                (next.is_calm, next.is_whole) = (false, false);
                next.server.keys.clear();
                // A server takes longer than this to come back.
                next.server.now_us += TICK_US;
                next.end_windows();
                for owner in &mut next.owners {
                    owner.is_void = !matches!(
                        owner.phase,
                        Phase::Idle | Phase::Wants | Phase::Asks | Phase::Sleeps { .. }
                    );
                }
                for request in &mut next.requests {
                    request.is_void = request.answer.is_some();
                }
            }
        }
        next
    }

    fn wrong(&self) -> Option<String> {
        self.wrong
            .clone()
            .or_else(|| self.check_holders())
            .or_else(|| self.check_keys())
            .or_else(|| self.check_permits())
            .or_else(|| self.check_waiters())
    }

    fn key(&self) -> String {
        // What is wrong may be in nothing else that is seen: a request that was answered so is as it was.
        let mut key = self.wrong.clone().unwrap_or_default();
        let now_us = i128::from(self.server.now_us);
        let since = |us: u64| i128::from(us) - now_us;
        for (name, entry) in &self.server.keys {
            let ends = entry.ends_ms.map(|ends| since(ends * 1000));
            write!(key, "{name} {ends:?} ").ok();
            match &entry.value {
                // A counter of fences is compared with the clock.
                Value::Text(text) if name.starts_with("redisson_lock_token:") => {
                    write!(key, "{:?};", text.parse().map(since)).ok();
                }
                // Scores are times: of the line only the order matters, the others are compared with the clock.
                Value::Sorted(members) if name.starts_with("leasehold_lock_line:") => {
                    for (_, member) in members {
                        write!(key, "{member},").ok();
                    }
                }
                Value::Sorted(members) => {
                    for (by, member) in members {
                        write!(key, "{} {member},", i128::from(*by) * 1000 - now_us).ok();
                    }
                }
                value => {
                    write!(key, "{value:?};").ok();
                }
            }
        }
        for owner in &self.owners {
            let phase = match owner.phase {
                Phase::Sleeps { until_ms } => format!("S{:?}", until_ms.map(|until| since(until * 1000))),
                Phase::Holds { until_us, levels } => format!("H{} {levels}", since(until_us)),
                Phase::Extends { until_us, levels } => format!("E{} {levels}", since(until_us)),
                Phase::Releases { until_us, levels } => format!("R{} {levels}", since(until_us)),
                Phase::HandsOver { until_us, to } => format!("O{} {to}", since(until_us)),
                other => format!("{other:?}"),
            };
            let flags = [
                owner.has_asked,
                owner.own_turn,
                owner.releases,
                owner.heard,
                owner.is_next,
                owner.standby,
                owner.is_spent,
                owner.is_void,
            ];
            write!(key, "|{} {} {phase} {flags:?}", owner.who.number, owner.cycles).ok();
        }
        // Of requests by different clients the order does not matter.
        let mut requests: Vec<&Request> = self.requests.iter().collect();
        requests.sort_by_key(|request| (request.who.client, !request.is_in_order));
        let requests: Vec<String> = requests
            .into_iter()
            .map(|request| {
                let answer = match &request.answer {
                    Some(Answer::Granted(_)) => "granted".to_owned(),
                    other => format!("{other:?}"),
                };
                let (who, op, sent) = (request.who, request.op, since(request.sent_us));
                let flags = [request.is_awaited, request.is_in_order, request.is_void];
                format!("{who:?} {op:?} {sent} {flags:?} {answer}")
            })
            .collect();
        let left = &self.left;
        write!(
            key,
            "|{requests:?}|{} {} {} {} {} {} {} {} {}|{}|{} {} {}",
            left.faults,
            left.kills,
            left.losses,
            left.spans,
            left.ticks,
            left.renewals,
            left.reentries,
            left.gives_up,
            left.fills,
            since(self.last_fence),
            self.is_calm,
            self.is_whole,
            self.server.is_full
        )
        .ok();
        key
    }
}
