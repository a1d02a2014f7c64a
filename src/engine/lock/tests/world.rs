//! A small world: a store, connections that break, and clients whose threads take one lock. The explorer
//! chooses each step.
//!
//! To decide, to send, to carry out and to read are separate steps. `NOW` never moves: as time passes, all
//! other moments come closer, so states that differ only in their date are one.

use super::event::{Answer, Effect, Request, Said};
use super::mistakes::Mistake;
use super::store::Store;
use super::*;

pub(super) const NOW: Moment = moment(64);
pub(super) const TICK: Duration = Duration::from_nanos(1);
/// Stands for a client's timer, watchdog and cache thread together.
pub(super) const BACKGROUND: usize = 9;

pub(super) const fn moment(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

pub(super) const fn ticks(count: u64) -> Duration {
    Duration::from_nanos(count)
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    /// The number of threads of each client.
    pub(super) threads: &'static [usize],
    pub(super) cycles: u8,
    pub(super) faults: u8,
    /// Whether threads release by `unlock`, by dropped guards, or by both.
    pub(super) unlocks: bool,
    pub(super) drops: bool,
    pub(super) reenters: bool,
    /// Whether every second thread may give up at any time; the others wait until they have the lock.
    pub(super) gives_up: bool,
    pub(super) tries: bool,
    /// Whether an operator may free the lock.
    pub(super) forces: bool,
    /// Whether a thread's number may be retired because of a lock that is not in this world.
    pub(super) retires: bool,
    pub(super) caches: bool,
    pub(super) rules: Rules,
    pub(super) mistake: Option<Mistake>,
}

/// The settings of a small world: those of the machine (`lock`), of the clients' threads, and of the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) lock: crate::engine::lock::Rules,
    pub(super) lease: Duration,
    pub(super) renew_after: Duration,
    /// How long after its last attempt a waiter attempts again if no message came.
    pub(super) poll: Duration,
    /// The pause of a waiter after a failed attempt.
    pub(super) pause: Duration,
    /// Whether each waiter attempts. Otherwise only the head of the local queue attempts.
    pub(super) all_ask: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum At {
    #[default]
    Idle,
    /// The thread is about to join the queue, or to try once. The release of its old cached hold, if there is
    /// one to release, is sent before.
    Going,
    Asking,
    FallingAsleep {
        for_head: bool,
    },
    Sleeping,
    Receiving,
    Leaving,
    Working,
    Counting,
    EndingInner,
    EndingLast,
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct User {
    pub(super) at: At,
    pub(super) cycles: u8,
    pub(super) levels: u8,
    pub(super) held: Option<Id>,
    pub(super) is_woken: bool,
    /// Whether a message came since the thread last asked.
    pub(super) message: bool,
    pub(super) wake_at: Moment,
    /// When the waiting thread attempts even if another thread of its client has a hold.
    pub(super) poll_at: Moment,
    pub(super) pause_until: Option<Moment>,
    pub(super) caches: bool,
    pub(super) once: bool,
    /// Whether the thread found the lock uncontended and attempted at once; then a grant takes it out of the
    /// local queue, which it has joined.
    pub(super) is_uncontended: bool,
    /// The owner number of this wait, if not the thread's.
    pub(super) unbound: Option<Number>,
    /// The owner number of the last request or offer.
    pub(super) number: Number,
    /// The number of recalls before the thread's attempt.
    pub(super) heard: Option<u64>,
    pub(super) is_handed: bool,
    /// The thread has read the answer to a hand-off, and must handle it. `true`: the store refused the
    /// hand-off, and the releaser releases.
    pub(super) settles: Option<bool>,
    /// For a releaser that waits: the outcome of its hand-off.
    pub(super) outcome: Option<Said>,
    /// Whether the thread noticed that the window of its hold has ended.
    pub(super) saw_end: bool,
    pub(super) outbox: Vec<Effect>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Cleaning {
    Due,
    Asked,
    Pauses,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Client {
    pub(super) lock: Lock,
    /// By thread: its present owner number.
    pub(super) numbers: Vec<Number>,
    /// By thread: the last number that was made for one wait only, instead of the thread's.
    pub(super) unbound: Vec<Number>,
    pub(super) grants: u64,
    pub(super) renewals: Vec<(u64, Moment)>,
    /// When the cache thread checks next.
    pub(super) watch_at: Moment,
    pub(super) users: Vec<User>,
    pub(super) outbox: Vec<Effect>,
    /// The requests on their way: on the connection of callers, and on that of the watchdog.
    pub(super) wires: [Vec<Request>; 2],
    pub(super) answers: Vec<(Request, Answer)>,
    pub(super) cleanups: Vec<(Number, Moment, Cleaning)>,
    pub(super) message: bool,
    /// Whether a recall is on its way, and how many came.
    pub(super) recall: bool,
    pub(super) recalls: u64,
    pub(super) is_background_woken: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct World {
    pub(super) store: Store,
    pub(super) clients: Vec<Client>,
    /// Requests sent over connections that broke; each may arrive at any time.
    pub(super) strays: Vec<(usize, Request)>,
    pub(super) faults: u8,
    pub(super) had_fault: bool,
    /// Whether an operator freed a held lock. Until the old owner learns of that, two threads may rely on
    /// the lock.
    pub(super) was_forced: bool,
    pub(super) idle_wait: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Want { client: usize, thread: usize, once: bool },
    GoOn(usize, usize),
    Look(usize, usize),
    GiveUp(usize, usize),
    End { client: usize, thread: usize, dropped: bool, reacquires: bool },
    Send(usize, usize),
    FailToSend(usize, usize),
    Deliver(usize, usize),
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
    // Time passes although some thread has something to do.
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

/// The distance between the first numbers of neighbouring threads. A thread's numbers follow one another.
pub(super) const NUMBERS: u64 = 16;

impl World {
    pub(super) fn new(setup: &Setup) -> World {
        let (wake_at, poll_at) = (Moment::NEVER, Moment::NEVER);
        let user = User { cycles: setup.cycles, wake_at, poll_at, ..User::default() };
        let numbers = |threads: usize| (1..=threads as u64).map(|thread| thread * NUMBERS);
        let client = |threads: &usize| Client {
            numbers: numbers(*threads).collect(),
            unbound: numbers(*threads).map(|number| number + NUMBERS / 2).collect(),
            watch_at: Moment::NEVER,
            users: vec![user.clone(); *threads],
            ..Client::default()
        };
        let clients = setup.threads.iter().map(client).collect();
        World { clients, faults: setup.faults, ..World::default() }
    }

    pub(super) fn actions(&self, setup: &Setup) -> Vec<Action> {
        let mut actions = Vec::new();
        (0..self.clients.len()).for_each(|client| self.urgent(client, &mut actions));
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

    /// Adds to `out` the steps that a client takes before any time passes.
    fn urgent(&self, c: usize, out: &mut Vec<Action>) {
        let client = &self.clients[c];
        for (t, user) in client.users.iter().enumerate() {
            let ticket = client.lock.queue.tickets.iter().find(|ticket| ticket.id.0 == t as u64);
            let is_woken = user.is_woken || ticket.is_some_and(|ticket| ticket.waiter.is_woken);
            let goes_on = user.settles.is_some()
                || matches!(user.at, At::Going | At::FallingAsleep { .. } | At::Leaving)
                || user.outcome.is_some();
            if !user.outbox.is_empty() {
                out.push(Action::Send(c, t));
            } else if goes_on {
                out.push(Action::GoOn(c, t));
            } else if user.at == At::Sleeping && (is_woken || user.wake_at <= NOW) {
                out.push(Action::Look(c, t));
            }
        }
        if !client.outbox.is_empty() {
            out.push(Action::Send(c, BACKGROUND));
        }
        out.extend(
            (0..2).filter(|wire| !client.wires[*wire].is_empty()).map(|wire| Action::Deliver(c, wire)),
        );
        for (i, (request, _)) in client.answers.iter().enumerate() {
            let is_read = match request.effect {
                Effect::HandOff { to, .. } => client.users[to].at == At::Receiving,
                _ => true,
            };
            // A client handles the answer to an unawaited release before it reads any later answer.
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
        if client.is_time() {
            out.push(Action::Time(c));
        }
        let due = client.cleanups.iter().enumerate().filter(|(_, (_, _, state))| *state == Cleaning::Due);
        out.extend(due.map(|(i, _)| Action::CleanUp(c, i)));
    }

    /// Adds to `out` the steps of threads before which any time may pass.
    fn at_leisure(&self, setup: &Setup, client: usize, out: &mut Vec<Action>) {
        let users = self.clients[client].users.iter().enumerate();
        for (thread, user) in users.filter(|(_, user)| user.outbox.is_empty() && user.settles.is_none()) {
            match user.at {
                At::Idle => {
                    out.push(Action::Want { client, thread, once: false });
                    if setup.tries {
                        out.push(Action::Want { client, thread, once: true });
                    }
                }
                At::Sleeping if setup.gives_up && thread % 2 == 0 => out.push(Action::GiveUp(client, thread)),
                At::Working => {
                    let guesses: &[bool] =
                        if setup.rules.lock.longest_slice.is_zero() { &[true] } else { &[true, false] };
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
                out.push(Action::FailToSend(c, BACKGROUND));
            }
            for wire in 0..2 {
                let first = client.wires[wire].first();
                if first.is_some_and(Request::can_be_refused) {
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

    /// The hold that a thread may rely on, judged only by the hold's stage and window.
    pub(super) fn counts_on(&self, client: usize, thread: usize) -> Option<&HoldState<TestHold>> {
        let is_own = |own: &&HoldState<TestHold>| {
            own.is_of(thread as u64) && own.stage == Stage::Held && !own.is_over(NOW)
        };
        self.clients[client].lock.holds.iter().find(is_own)
    }

    pub(super) fn is_done(&self) -> bool {
        let is_done = |client: &Client| {
            client.users.iter().all(|user| user.at == At::Done && user.outbox.is_empty())
                && client.outbox.is_empty()
                && client.wires.iter().all(Vec::is_empty)
                && client.answers.is_empty()
                && client.cleanups.is_empty()
                && client.lock.holds.is_empty()
                && client.lock.queue.tickets.is_empty()
        };
        self.store.owner.is_none() && self.clients.iter().all(is_done)
    }
}

impl Client {
    pub(super) fn at<'r>(&self, rules: &'r Rules) -> crate::engine::lock::At<'r> {
        crate::engine::lock::At { now: NOW, recalls: Some(self.recalls), rules: &rules.lock }
    }

    pub(super) fn watch_by(&mut self, moment: Moment) {
        let is_in_this_world = moment < NOW.plus(FAR / 2);
        self.watch_at = if is_in_this_world { self.watch_at.min(moment) } else { self.watch_at };
    }

    /// Whether the timer, the watchdog or the cache thread has something to do.
    fn is_time(&self) -> bool {
        let is_over = |own: &HoldState<TestHold>| own.is_live() && own.is_over(NOW);
        self.is_background_woken
            || self.watch_at <= NOW
            || self.lock.holds.iter().any(is_over)
            || !self.due_renewals().is_empty()
    }

    pub(super) fn due_renewals(&self) -> Vec<u64> {
        let due = |own: &&HoldState<TestHold>| {
            let is_wanted = own.levels.renewed > 0 || own.recallable.is_some();
            let serial = own.hold.0.serial;
            let is_due = self.renewals.iter().any(|(other, at)| *other == serial && *at <= NOW);
            is_wanted && is_due && own.is_live() && !own.is_under_way
        };
        self.lock.holds.iter().filter(due).map(|own| own.hold.0.serial).collect()
    }
}
