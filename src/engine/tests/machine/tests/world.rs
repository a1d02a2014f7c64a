//! A small world: a store, connections that break, and clients whose threads take one lock. Each step is one
//! choice of the explorer's.
//!
//! Deciding, sending, carrying out and reading are separate steps. `NOW` never moves: time passes as all
//! moments come closer, so that states which differ by the date alone are one.

use std::time::Duration;

use super::mistakes::Mistake;
use super::store::{Request, Store};
use crate::engine::tests::machine::*;
use crate::time::Moment;

pub(super) const NOW: Moment = moment(64);
pub(super) const TICK: Duration = Duration::from_nanos(1);
/// The thread of a client that renews, checks and releases.
pub(super) const KEEPER: usize = 9;

pub(super) const fn moment(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

pub(super) const fn ticks(count: u64) -> Duration {
    Duration::from_nanos(count)
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) name: &'static str,
    /// The threads of each client.
    pub(super) threads: &'static [usize],
    pub(super) cycles: u8,
    pub(super) faults: u8,
    /// How threads end the lock.
    pub(super) unlocks: bool,
    pub(super) drops: bool,
    pub(super) reenters: bool,
    /// Every other thread may give up at any time; the rest waits until it has the lock.
    pub(super) gives_up: bool,
    pub(super) tries: bool,
    /// An operator may free the lock.
    pub(super) forces: bool,
    /// Threads retire their numbers because of other locks.
    pub(super) retires: bool,
    pub(super) caches: bool,
    pub(super) rules: Rules,
    pub(super) mistake: Option<Mistake>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum At {
    Idle,
    Asking,
    Sleeping,
    Receiving,
    Working,
    Counting,
    EndingInner,
    EndingLast,
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct User {
    pub(super) at: At,
    pub(super) cycles: u8,
    pub(super) levels: u8,
    /// The number of the thread's hold.
    pub(super) held: Number,
    pub(super) is_woken: bool,
    /// Its window was seen to end.
    pub(super) saw_end: bool,
    pub(super) outbox: Vec<Effect>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Cleaning {
    Due,
    Asked,
    Pauses,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Client {
    pub(super) machine: Machine,
    /// The owner number that each thread has now.
    pub(super) numbers: Vec<Number>,
    pub(super) users: Vec<User>,
    pub(super) outbox: Vec<Effect>,
    /// The connection of callers, and that of the watchdog.
    pub(super) wires: [Vec<Request>; 2],
    pub(super) answers: Vec<(Request, Option<Event>)>,
    pub(super) cleanups: Vec<(Number, Moment, Cleaning)>,
    pub(super) message: bool,
    /// Recalls that are on their way, and that came.
    pub(super) recall: bool,
    pub(super) recalls: u64,
    pub(super) is_keeper_woken: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct World {
    pub(super) store: Store,
    pub(super) clients: Vec<Client>,
    /// Requests sent over connections that broke; each may arrive at any time.
    pub(super) strays: Vec<(usize, Request)>,
    pub(super) faults: u8,
    pub(super) had_fault: bool,
    /// An operator freed the lock under its owner, so two may count on it until the owner learns of that.
    pub(super) was_forced: bool,
    pub(super) idle_wait: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Want { client: usize, thread: usize, once: bool },
    Look(usize, usize),
    GiveUp(usize, usize),
    End { client: usize, thread: usize, dropped: bool, reacquires: bool },
    // Sends the next request of a thread.
    Send(usize, usize),
    // The same fails.
    FailToSend(usize, usize),
    Deliver(usize, usize),
    // The store refuses the request, and changes nothing.
    Reject(usize, usize),
    Read(usize, usize),
    Message(usize),
    Recall(usize),
    LoseMessage(usize),
    LoseRecall(usize),
    Time(usize),
    CleanUp(usize, usize),
    // A request of a broken connection arrives.
    Stray(usize),
    Break(usize, usize),
    Tick,
    // Time passes although something is due.
    Stall,
    Force,
    RetireElsewhere(usize, usize),
}

impl Action {
    pub(super) fn is_fault(&self) -> bool {
        matches!(
            self,
            Action::Break(..)
                | Action::Stall
                | Action::FailToSend(..)
                | Action::Reject(..)
                | Action::RetireElsewhere(..)
        )
    }
}

/// A thread's numbers follow one another.
pub(super) const NUMBERS: u64 = 16;

impl World {
    pub(super) fn new(setup: &Setup) -> World {
        let user = User {
            at: At::Idle,
            cycles: setup.cycles,
            levels: 0,
            held: 0,
            is_woken: false,
            saw_end: false,
            outbox: Vec::new(),
        };
        let client = |threads: &usize| Client {
            machine: Machine::default(),
            numbers: (1..=*threads as u64).map(|thread| thread * NUMBERS).collect(),
            users: vec![user.clone(); *threads],
            outbox: Vec::new(),
            wires: [Vec::new(), Vec::new()],
            answers: Vec::new(),
            cleanups: Vec::new(),
            message: false,
            recall: false,
            recalls: 0,
            is_keeper_woken: false,
        };
        World {
            store: Store::default(),
            clients: setup.threads.iter().map(client).collect(),
            strays: Vec::new(),
            faults: setup.faults,
            had_fault: false,
            was_forced: false,
            idle_wait: 0,
        }
    }

    pub(super) fn actions(&self, setup: &Setup) -> Vec<Action> {
        let mut actions = Vec::new();
        (0..self.clients.len()).for_each(|client| self.urgent(setup, client, &mut actions));
        let is_urgent = !actions.is_empty();
        (0..self.clients.len()).for_each(|client| self.at_leisure(setup, client, &mut actions));
        actions.extend((0..self.strays.len()).map(Action::Stray));
        if self.faults > 0 {
            self.faulty(setup, is_urgent, &mut actions);
        }
        if !is_urgent {
            actions.push(Action::Tick);
        }
        actions
    }

    /// Steps that come before time passes.
    fn urgent(&self, setup: &Setup, c: usize, out: &mut Vec<Action>) {
        let client = &self.clients[c];
        for (t, user) in client.users.iter().enumerate() {
            let ticket = client.machine.queue.iter().find(|ticket| ticket.id == t as u64);
            let is_due = || ticket.is_some_and(|ticket| ticket.poll_at <= NOW);
            if !user.outbox.is_empty() {
                out.push(Action::Send(c, t));
            } else if user.at == At::Sleeping && (user.is_woken || is_due()) {
                out.push(Action::Look(c, t));
            }
        }
        if !client.outbox.is_empty() {
            out.push(Action::Send(c, KEEPER));
        }
        out.extend(
            (0..2).filter(|wire| !client.wires[*wire].is_empty()).map(|wire| Action::Deliver(c, wire)),
        );
        for (i, (request, _)) in client.answers.iter().enumerate() {
            let is_read = match request {
                Request::HandOff { ticket, .. } => client.users[*ticket as usize].at == At::Receiving,
                _ => true,
            };
            // Releases that no thread waits for are settled before later answers are read.
            if is_read && !client.answers[..i].iter().any(|(earlier, _)| earlier.is_settled_by_others()) {
                out.push(Action::Read(c, i));
            }
        }
        if client.message {
            out.push(Action::Message(c));
        }
        if client.recall {
            out.push(Action::Recall(c));
        }
        if client.is_keeper_woken || client.machine.next(&setup.rules) <= NOW {
            out.push(Action::Time(c));
        }
        let due = client.cleanups.iter().enumerate().filter(|(_, (_, _, state))| *state == Cleaning::Due);
        out.extend(due.map(|(i, _)| Action::CleanUp(c, i)));
    }

    /// Steps of threads, which take as much time as they like.
    fn at_leisure(&self, setup: &Setup, client: usize, out: &mut Vec<Action>) {
        for (thread, user) in
            self.clients[client].users.iter().enumerate().filter(|(_, user)| user.outbox.is_empty())
        {
            match user.at {
                At::Idle => {
                    out.push(Action::Want { client, thread, once: false });
                    if setup.tries {
                        out.push(Action::Want { client, thread, once: true });
                    }
                }
                At::Sleeping if setup.gives_up && thread % 2 == 0 => out.push(Action::GiveUp(client, thread)),
                At::Working => {
                    let guesses: &[bool] = if setup.rules.slice.is_zero() { &[true] } else { &[true, false] };
                    for dropped in [false, true] {
                        if if dropped { setup.drops } else { setup.unlocks } {
                            let end = |reacquires: &bool| Action::End {
                                client,
                                thread,
                                dropped,
                                reacquires: *reacquires,
                            };
                            out.extend(guesses.iter().map(end));
                        }
                    }
                    if setup.reenters && user.levels == 1 && self.counts_on(client, thread).is_some() {
                        out.push(Action::Want { client, thread, once: false });
                    }
                }
                _ => {}
            }
        }
    }

    fn faulty(&self, setup: &Setup, is_urgent: bool, out: &mut Vec<Action>) {
        for (c, client) in self.clients.iter().enumerate() {
            let may_fail = |effect: Option<&Effect>| {
                matches!(effect, Some(Effect::HandOff { .. } | Effect::Release { left: 0, .. }))
            };
            let users = client.users.iter().enumerate();
            out.extend(
                users
                    .filter(|(_, user)| may_fail(user.outbox.first()))
                    .map(|(t, _)| Action::FailToSend(c, t)),
            );
            if may_fail(client.outbox.first()) {
                out.push(Action::FailToSend(c, KEEPER));
            }
            for wire in 0..2 {
                let first = client.wires[wire].first();
                if first.is_some_and(|request| request.refused().is_some()) {
                    out.push(Action::Reject(c, wire));
                }
                if first.is_some() || client.answers.iter().any(|(request, _)| request.wire() == wire) {
                    out.push(Action::Break(c, wire));
                }
            }
            if client.message {
                out.push(Action::LoseMessage(c));
            }
            if client.recall {
                out.push(Action::LoseRecall(c));
            }
            if setup.retires {
                out.extend((0..client.users.len()).map(|thread| Action::RetireElsewhere(c, thread)));
            }
        }
        if setup.forces && self.store.owner.is_some() {
            out.push(Action::Force);
        }
        if is_urgent {
            out.push(Action::Stall);
        }
    }

    /// The hold that a thread counts on by its phase and window alone.
    pub(super) fn counts_on(&self, client: usize, thread: usize) -> Option<&Hold> {
        match &self.clients[client].machine.slot {
            Slot::Held(hold) if hold.thread == thread as u64 && NOW < hold.until => Some(hold),
            _ => None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        let is_done = |client: &Client| {
            client.users.iter().all(|user| user.at == At::Done && user.outbox.is_empty())
                && client.outbox.is_empty()
                && client.wires.iter().all(Vec::is_empty)
                && client.answers.is_empty()
                && client.cleanups.is_empty()
                && client.machine.slot == Slot::Free
                && client.machine.queue.is_empty()
                && client.machine.settling.is_empty()
        };
        self.store.owner.is_none() && self.clients.iter().all(is_done)
    }
}
