//! A world: clients, their requests on the way, a server, and time.
//!
//! The clients behave like the library's engine. A waiter attempts, subscribes, attempts again, and sleeps
//! until a message or the reported end of a lease. A holder counts on its hold only within the window, which
//! begins before the request is sent. If a request under an owner number may still arrive, the client uses
//! another number. A client hands a lock off between its own threads. Clients send no safety polls, since a
//! waiter must not need one unless a request was lost or a process killed.

mod check;
mod client;
mod foreign;
mod key;
mod steps;

use crate::foreign::Foreign;
use crate::kinds::{Answer, Kind, Op, Who, client_id};
use crate::lua::Scripts;
use crate::server::{Server, Value};

const BEGIN_US: u64 = 1_700_000_000_000_000;

/// The longest time that a request may be on its way; then it is answered or abandoned. It is longer than a
/// lease, so that holds can end meanwhile, and much shorter than the time for which outcomes are recorded.
const LATEST_US: u64 = 1_500_000;

const TICK_US: u64 = 5000;

/// The time after a release until the second client in the queue attempts if the first has not, and a margin.
const SOON_MS: u64 = 26;

/// What a world has, and how often each event may happen in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub owners: &'static [usize],
    /// The index of an owner that never wants the lock.
    pub idle: Option<usize>,
    /// How often each owner acquires the lock and releases it, or gives up.
    pub cycles: u8,
    /// How many requests or answers may be lost or late.
    pub faults: u8,
    pub kills: u8,
    /// How often the server loses its data.
    pub losses: u8,
    /// How often time may jump to the next expiry, and how often it may advance by 5 ms.
    pub spans: u8,
    pub ticks: u8,
    pub renewals: u8,
    pub reentries: u8,
    /// How many waits may end without the lock.
    pub gives_up: u8,
    /// How often the server may run out of memory. It may recover at any time.
    pub fills: u8,
    /// A command that the user may not run.
    pub refused: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The owner wants the lock, and no attempt is on its way.
    Wants,
    Asks,
    Sleeps {
        until_ms: Option<u64>,
    },
    Holds {
        until_us: u64,
        levels: u8,
    },
    /// The owner holds the lock, and its renewal or re-entry is on its way.
    Extends {
        until_us: u64,
        levels: u8,
    },
    Releases {
        until_us: u64,
        levels: u8,
    },
    HandsOff {
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
    /// When the wait began.
    since_us: u64,
    /// Whether the owner has made an attempt since the wait began.
    has_asked: bool,
    /// Whether the owner's client listens for the message that it is next in the queue.
    own_turn: bool,
    /// Whether the owner listens for a message about each release.
    releases: bool,
    /// Whether the owner got a message since its last request. `is_next`: the message said that it is next.
    heard: bool,
    is_next: bool,
    standby: bool,
    /// Whether a request under the owner's number may still arrive, so the next cycle needs a new number.
    is_spent: bool,
    /// Whether the server lost this owner's hold with its data.
    is_void: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    who: Who,
    to: Option<Who>,
    op: Op,
    sent_us: u64,
    /// How long the owner had waited when the request was sent.
    waited_ms: u64,
    is_awaited: bool,
    /// Whether earlier requests of the client arrive first, because all use one connection.
    is_in_order: bool,
    /// The id of the release that a request of Redisson sends, or whose outcome it deletes; otherwise 0.
    unlock: u8,
    answer: Option<Answer>,
    is_void: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Ask(usize),
    GiveUp(usize),
    Serve(usize),
    Answer(usize),
    /// The request with this index, or its answer, never arrives.
    Lose(usize),
    /// The owner no longer waits for the answer to the request with this index, which may still arrive.
    Late(usize),
    Renew(usize),
    Reenter(usize),
    Release(usize),
    HandOff(usize),
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
    /// Redisson's requests, if Redisson is a client of this world.
    foreign: Option<&'a Foreign>,
    kind: Kind,
    left: Limits,
    server: Server,
    owners: Vec<Owner>,
    requests: Vec<Request>,
    last_fence: u64,
    /// Whether no event excuses a forgotten waiter or a wrong hold count. Such events are a lost or late
    /// request, an expired hold, lost data, a killed client that did more than wait, a refused command.
    is_calm: bool,
    /// Whether no process was killed, no data were lost, and no command is refused.
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
            since_us: BEGIN_US,
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
            foreign: None,
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

    /// Sends a request on the client's shared connection. [`Op::Undo`] and each request of Redisson use
    /// another connection.
    fn send(&mut self, owner: usize, op: Op, to: Option<Who>, is_awaited: bool) {
        let who = self.owners[owner].who;
        let sent_us = self.server.now_us;
        let is_unlock = who.is_foreign() && matches!(op, Op::Release(_));
        let unlock = if is_unlock { self.next_unlock(owner) } else { 0 };
        self.requests.push(Request {
            who,
            to,
            op,
            sent_us,
            waited_ms: if self.owners[owner].has_asked {
                (sent_us - self.owners[owner].since_us) / 1000
            } else {
                0
            },
            is_awaited,
            is_in_order: op != Op::Undo && !who.is_foreign(),
            unlock,
            answer: None,
            is_void: false,
        });
    }

    /// Whether this owner may not send a request, because another thread of its client is ahead of it.
    fn stands_behind(&self, owner: usize) -> bool {
        let me = &self.owners[owner];
        // Of a client's threads that want permits, only one sends requests at a time.
        if matches!(self.kind, Kind::Semaphore(_)) {
            return self.waits_beside(owner);
        }
        self.kind.queues_here()
            && self.owners.iter().any(|other| {
                other.who.owner != owner
                    && other.who.client == me.who.client
                    && !matches!(other.phase, Phase::Idle | Phase::Wants | Phase::Dead)
            })
    }

    /// Whether another thread of the same client attempts or sleeps.
    fn waits_beside(&self, owner: usize) -> bool {
        let client = self.owners[owner].who.client;
        self.owners.iter().any(|other| {
            other.who.owner != owner
                && other.who.client == client
                && matches!(other.phase, Phase::Asks | Phase::Sleeps { .. })
        })
    }

    /// The index of a thread of the same client to which this owner can hand the lock off.
    fn successor(&self, owner: usize) -> Option<usize> {
        let client = self.owners[owner].who.client;
        let waits = |other: &&Owner| {
            other.who.owner != owner
                && other.who.client == client
                && (other.phase == Phase::Wants || other.phase == Phase::Idle && other.cycles > 0)
        };
        self.owners.iter().find(waits).map(|other| other.who.owner)
    }

    /// Ends the owner's wait. For plain and fenced locks and semaphores, a client's threads share a place in
    /// the queue, so the client leaves the queue only if no other thread of it waits.
    fn leaves(&mut self, owner: usize) {
        if self.owners[owner].who.is_foreign() {
            return self.foreign_leaves(owner);
        }
        let who = self.owners[owner].who;
        let is_last = match self.kind {
            Kind::Plain | Kind::Fenced => self.successor(owner).is_none(),
            Kind::Semaphore(_) => self.successor(owner).is_none() && !self.waits_beside(owner),
            Kind::Fair | Kind::ReadWrite => self.kind.has_wait_queue(&who) && self.owners[owner].has_asked,
        };
        if is_last || self.kind == Kind::Fair && self.owners[owner].has_asked {
            self.send(owner, Op::Leave, None, false);
        }
    }

    /// Ends the owner's cycle (acquire to release). With `gives_number_up` the next cycle has a new number.
    fn end_cycle(&mut self, owner: usize, gives_number_up: bool) {
        let owner = &mut self.owners[owner];
        owner.phase = Phase::Idle;
        owner.cycles = owner.cycles.saturating_sub(1);
        (owner.has_asked, owner.own_turn, owner.releases) = (false, false, false);
        (owner.heard, owner.is_next, owner.standby, owner.is_void) = (false, false, false, false);
        if owner.who.is_foreign() {
            // A thread of Redisson cannot change its owner id, so it stops instead of taking a new number.
            owner.cycles *= u8::from(!gives_number_up);
            return;
        }
        // The scripts change a semaphore once for each number, so each cycle needs a new number.
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
                    // A client has one subscription, however many of its threads want it.
                    self.server.listeners.insert(self.channel(&owner.who, own_turn), 1);
                }
            }
        }
        let call = self.call(&request);
        self.is_calm &= !self.passes_nothing_on(&request);
        let reply = self.scripts.run(&mut self.server, &call.script, &call.keys, &call.arguments);
        match self.read(&request, &reply) {
            Err(words) => self.wrong = Some(format!("an answer that means nothing: {words}")),
            // A request that ends or renews a hold must also work when the server is out of memory.
            Ok(Answer::Refused)
                if self.server.is_full && !matches!(request.op, Op::Acquire(..) | Op::HandOff(..)) =>
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
        if self.owners[owner].who.is_foreign() {
            return self.foreign_hears(owner, channel, message);
        }
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

    /// Removes expired keys, and ends the holds whose window has ended.
    fn end_windows(&mut self) {
        self.keep_places();
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

    /// Renews the queue places of sleeping waiters, instead of their safety polls, which are not modelled.
    fn keep_places(&mut self) {
        let (now_ms, now_s) = (self.server.now_ms(), (self.server.now_us / 1_000_000) as i64);
        let sleeps = |owner: &&Owner| matches!(owner.phase, Phase::Sleeps { .. }) && !owner.who.is_foreign();
        let clients: Vec<String> =
            self.owners.iter().filter(sleeps).map(|owner| client_id(owner.who.client)).collect();
        let Some(line) = self.server.keys.get_mut("leasehold_lock_queue:{l}") else { return };
        let Value::Sorted(places) = &mut line.value else { return };
        for (score, client) in places {
            if clients.contains(client) {
                *score = *score - *score % 100 + now_s % 100;
                line.ends_ms = Some(now_ms + 60_000);
            }
        }
    }

    /// Whether time may advance to `now_us`: if no request would then be on its way for more than
    /// [`LATEST_US`].
    fn may_become(&self, now_us: u64) -> bool {
        self.requests.iter().all(|request| now_us <= request.sent_us + LATEST_US)
    }

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
        // The death of a client that only waits leaves `is_calm` set, so `check_waiters` still checks that no
        // waiter behind this client is forgotten.
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
}
