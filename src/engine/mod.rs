//! The engine: everything that is the same for all stores. This file has one client's state, the checks that
//! every operation begins with.
//!
//! `acquire` and `release` are the two stories. `hold` is one grant; `registry` has all holds and local
//! queues. A client's two threads share its `core` with all callers: the `timer` and the `watchdog` keep
//! holds alive and settle requests in doubt. `ending` is the end of a client.

pub(crate) mod acquire;
pub(crate) mod batch;
pub(crate) mod calls;
mod contended;
mod core;
pub(crate) mod deadlock;
pub(crate) mod directory;
mod ending;
mod exit;
pub(crate) mod handoff;
pub(crate) mod hold;
pub(crate) mod lock;
mod pace;
mod policy;
pub(crate) mod registry;
pub(crate) mod release;
mod renewals;
mod runs;
pub(crate) mod store;
pub(crate) mod stuck;
mod timer;
mod timer_table;
pub(crate) mod waiter;
mod watchdog;

#[cfg(leasehold_shuttle)]
#[cfg(test)]
mod model;

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, atomic};
use std::time::Duration;

use crate::config::Options;
use crate::directory::ClientInfo;
use crate::engine::acquire::retry::RETRY_PAUSE;
use crate::engine::core::Core;
use crate::engine::hold::LocalLock;
use crate::engine::hold::{Hold, Standing};
use crate::engine::store::StoreCell;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::{is_forked, leak, refused_if_forked};
use crate::ident::{ClientId, LockName, Owner, ThreadMarker, unbound_number};
use crate::inspect::Inspection;
use crate::interrupt::Interrupt;
use crate::observe::LossReason;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::observe::stats::Stats;
use crate::park::Parker;
use crate::seam::capabilities::{Capabilities, Majority, WaitQueues};
use crate::seam::{Answer, Claim, Counting, Failure, Kind, REQUEST_LASTS, Snapshot};
use crate::sync::Mutex;
use crate::time::{Clock, Lease, Moment, checked_lease, random_between};

/// The state that all clones of a client, its locks and its guards share. The last one to go shuts it down.
pub(crate) struct Engine {
    pub(crate) core: Arc<Core>,
    /// Ends the sleep of threads that are not in the registry.
    pub(crate) ended: Interrupt,
    /// Locked by the thread that works at the end of the client; others who end the client wait here.
    stage: Mutex<Stage>,
    pub(crate) counted: CountedClient,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    NotBegun,
    /// Somebody has, but not all came to its end: the store did not forget these, or a call was still under
    /// way. The connections are open, for the next try.
    Failed(Vec<Claim>),
    Over,
}

impl Deref for Engine {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Engine {
    pub(crate) fn start(
        options: Options,
        clock: Clock,
        store: impl Into<StoreCell>,
        reporter: Arc<Reporter>,
    ) -> Result<Engine> {
        exit::note_thread();
        let (core, [watchdogs_parker, timers_parker]) = Core::new(options, clock, store.into(), reporter);
        timer::start(&core, timers_parker)?;
        watchdog::start(&core, watchdogs_parker).inspect_err(|_| core.timer.stop())?;
        Ok(Engine { core, ended: Interrupt::new(), stage: Mutex::default(), counted: CountedClient::new() })
    }

    pub(crate) fn usable(&self, action: &'static str) -> Result<()> {
        refused_if_forked(action)?;
        self.open(action)?;
        self.refused_in_observer(action)?;
        self.store.open(self.timer.waker()).map_err(|error| error.during(action))
    }

    pub(crate) fn usable_for(&self, action: &'static str, kind: Kind, name: &LockName) -> Result<()> {
        self.usable(action)?;
        self.store.check_late(kind, name).map_err(|error| error.during(action).on(name.given()))
    }

    /// Refuses what an observer asks of this client in the middle of a call of the same thread. The thread's
    /// number, holds and places in queues may be half-way between two states there, and the call waits for
    /// the observer.
    pub(crate) fn refused_in_observer(&self, action: &'static str) -> Result<()> {
        if self.reporter.is_telling_here() {
            let words = "an observer called its client from within a call of the same thread: let another thread call it";
            return Err(Error::new(ErrorKind::WouldDeadlock, action, words));
        }
        Ok(())
    }

    /// Whether the client was shut down; for those who have asked whether they are [`usable`](Self::usable)
    /// and wait.
    pub(crate) fn open(&self, action: &'static str) -> Result<()> {
        if self.calls.is_closed() {
            return Err(Error::new(ErrorKind::ShutDown, action, "the client was shut down"));
        }
        Ok(())
    }

    pub(crate) fn one_command(&self) -> Moment {
        self.clock.after(self.options.command_timeout)
    }

    pub(crate) fn poll_every(&self, kind: Kind) -> (Duration, Duration) {
        (self.store.capabilities().poll_every)(kind)
    }

    pub(crate) fn asked(&self, action: &'static str, lease: Lease) -> Result<Duration> {
        match lease {
            Lease::Renewed => Ok(self.options.lease),
            Lease::Fixed(lease) | Lease::Kept(lease) => checked_lease(action, lease),
        }
    }

    pub(crate) fn claim(
        &self,
        capabilities: &Capabilities<'_>,
        (kind, name): (Kind, &Arc<LockName>),
        number: u64,
        lease: Duration,
    ) -> Claim {
        let Capabilities { wait_queues, homes, .. } = *capabilities;
        // One client id for all kinds without a wait queue, so that the halves of a read-write lock have
        // one owner.
        let is_refused = kind.has_queue() && wait_queues.is_some_and(WaitQueues::is_refused);
        let client = if is_refused { self.id.unlined() } else { self.id };
        let home = homes.map_or(0, |homes| homes.home(name));
        Claim { home, ..Claim::new(kind, name, Owner::new(client, number), lease) }
    }

    /// Asks about, or changes, what is counted, again after failures for as long as the client's retry
    /// budget: under one claim a change is made once.
    pub(crate) fn count(&self, action: &'static str, claim: &Claim, what: &Counting) -> Result<Option<i64>> {
        let _call = self.calls.begin();
        self.usable_for(action, claim.kind, &claim.name)?;
        // Well before the store forgets the id of the first request.
        let give_up = self.clock.after(self.options.retry_timeout.min(REQUEST_LASTS / 2));
        let mut in_doubt = false;
        loop {
            let answer = self.store.count(claim, what, self.one_command());
            let answer = if what.only_asks() { answer.map_err(Failure::of_reading) } else { answer };
            let error = match answer {
                Ok(Some(0))
                    if in_doubt && matches!(what, Counting::GiveBack(_) | Counting::GiveBackAll(_)) =>
                {
                    return Ok(Some(1));
                }
                Ok(count) => {
                    if !in_doubt && what.is_remembered() {
                        drop(self.store.count(claim, &Counting::Forget, self.one_command()));
                    }
                    return Ok(count);
                }
                Err(Failure::Refused(error)) => error,
                Err(Failure::Unknown(error)) => {
                    in_doubt = true;
                    error
                }
            };
            let now = self.clock.now();
            if now >= give_up || !error.is_retryable() || self.usable(action).is_err() {
                let error = if in_doubt { error.with_unknown_outcome() } else { error };
                return Err(error.during(action).on(claim.name.given()));
            }
            Parker::new(&self.clock).park(now.plus(random_between(RETRY_PAUSE)), None);
        }
    }

    /// The number for the next hold of a thread, or of an owner of its own: another one, if the store may yet
    /// meet something under the one it has.
    pub(crate) fn next_number(
        &self,
        capabilities: &Capabilities<'_>,
        thread: &ThreadMarker,
        unbound: &mut Option<u64>,
    ) -> u64 {
        let unspent = capabilities.majority.map_or(0, Majority::first_unspent_number);
        if let Some(number) = unbound {
            if *number < unspent {
                *number = unbound_number();
            }
            return *number;
        }
        if thread.number() < unspent {
            thread.retire(thread.number());
        }
        thread.number()
    }

    /// The state of a lock in the store, with the count of the calling thread and task. A live local hold
    /// that the server does not know is lost by this.
    pub(crate) fn inspect(
        &self,
        action: &'static str,
        kind: Kind,
        name: &Arc<LockName>,
    ) -> Result<Option<Snapshot>> {
        self.usable_for(action, kind, name)?;
        let local = self.registry.found(kind, name);
        if let Some(local) = &local {
            self.release_cached(local);
        }
        let thread = ThreadMarker::current();
        let hold = local.and_then(|local| local.of_thread(thread.id()));
        let owner = hold.as_ref().map_or_else(|| Owner::new(self.id, thread.number()), |hold| hold.owner());
        let answer = self.store.inspect(kind, name, owner, self.one_command());
        let mut snapshot = answer
            .map_err(Failure::into_read_error)
            .map_err(|error| error.during(action).on(name.given()))?;
        if let Some(hold) = &hold
            && snapshot.as_ref().is_none_or(|snapshot| snapshot.count == 0)
        {
            self.lose(hold, LossReason::Gone);
        }
        if let Some(snapshot) = &mut snapshot {
            // A lock that this client is releasing is not held, whatever the store last heard. A hold that
            // is not this task's belongs to another owner, or its release has not arrived yet.
            let own =
                hold.filter(|hold| hold.holder.is_this_task() && hold.loss_at(self.clock.now()).is_none());
            snapshot.count = snapshot.count.min(own.map_or(0, |hold| hold.count()));
        }
        Ok(snapshot)
    }

    /// The hold of the calling thread, live or lost, if its task took it.
    pub(crate) fn own_hold(&self, local: &LocalLock) -> Option<Arc<Hold>> {
        let hold = local.of_thread(ThreadMarker::current().id());
        hold.filter(|hold| hold.holder.is_this_task())
    }

    pub(crate) fn describe(&self, action: &'static str, name: &LockName) -> Result<Inspection> {
        self.usable(action)?;
        let seen = self.store.describe(name, self.one_command()).map_err(Failure::into_read_error);
        let seen = seen.map_err(|error| error.during(action).on(name.given()))?.seen_by(self.id);
        let mut seen = [(name.key().to_owned(), seen)];
        self.locate(&mut seen, &mut HashMap::new());
        let [(key, mut seen)] = seen;
        let (now, deadline) = (self.clock.now(), self.one_command());
        self.announcer.add_waiters((&key, &mut seen), (&*self.store, &self.registry), (now, deadline));
        Ok(seen)
    }

    /// Adds what the directory knows of holders and waiters; returns how many requests that took.
    pub(crate) fn locate(
        &self,
        seen: &mut [(String, Inspection)],
        known: &mut HashMap<ClientId, Option<ClientInfo>>,
    ) -> u64 {
        let now = self.clock.now();
        self.announcer.locate(seen, known, (&*self.store, &self.registry), (now, self.one_command()))
    }

    pub(crate) fn stats(&self) -> Stats {
        if is_forked() {
            return Stats::default();
        }
        let (held, grants) = self.registry.counted();
        let now = self.clock.now();
        let mut stats = Stats {
            grants,
            subscription_up: self.store.capabilities().wakes && self.reporter.can_wake(),
            ..self.reporter.counters.stats()
        };
        let mut ends = Moment::NEVER;
        for hold in held.iter().filter(|hold| !hold.is_releasing() && !hold.is_cached()) {
            match hold.standing(now) {
                Standing::Lost(_) => stats.holds_lost += 1,
                standing => {
                    stats.holds += 1;
                    stats.holds_at_risk += u64::from(matches!(standing, Standing::AtRisk(_)));
                    ends = ends.min(hold.until());
                    let overdue = if hold.is_renewed() { now.since(hold.due()) } else { Duration::ZERO };
                    stats.longest_overdue = stats.longest_overdue.max(overdue);
                }
            }
        }
        stats.shortest_window = (ends != Moment::NEVER).then(|| ends.since(now));
        stats
    }

    pub(crate) fn force(&self, action: &'static str, kind: Kind, name: &Arc<LockName>) -> Result<bool> {
        self.usable_for(action, kind, name)?;
        if let Some(local) = self.registry.found(kind, name) {
            self.release_cached(&local);
        }
        let holds = self.registry.holds_of(kind, name);
        // Never repeated: a late second request could free a lock that another owner acquired in between.
        let answer = self.store.force(kind, name, self.one_command());
        if let Ok(true) = answer {
            for hold in holds {
                self.lose(&hold, LossReason::Gone);
            }
            self.registry.nudge(kind, name);
        }
        answer.map_err(|failure| failure.into_error().during(action).on(name.given()))
    }

    pub(crate) fn ask<T>(&self, op: &'static str, ask: impl FnOnce() -> Answer<T>) -> Answer<T> {
        if !self.reporter.is_observed() {
            return ask();
        }
        let sent = self.clock.now();
        let answer = ask();
        self.reporter.report_request(op, sent, &self.clock, answer.as_ref().err().map(Failure::error));
        answer
    }

    pub(crate) fn vacuum_blockers(&self, age: Duration) -> Result<Vec<String>> {
        self.usable("vacuum_blockers")?;
        let Some(sweeping) = self.store.capabilities().sweeping else { return Ok(Vec::new()) };
        let found = sweeping.old_versions(age, self.one_command());
        found.map_err(|failure| failure.into_read_error().during("vacuum_blockers"))
    }

    pub(crate) fn sweep(&self, age: Duration) -> Result<u64> {
        let mut all = 0;
        loop {
            self.usable("sweep")?;
            let Some(sweeping) = self.store.capabilities().sweeping else { return Ok(0) };
            match sweeping.sweep(age, self.one_command()).map_err(Failure::into_error)? {
                0 => return Ok(all),
                removed => all += removed,
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if is_forked() {
            // Nothing inherited may be dropped here: that could lock, wait, or write to the parent's
            // connections.
            leak(&self.core);
            self.ended.leak();
            return;
        }
        if let Err(error) = self.end_for_good() {
            self.reporter.counters.releases_failed.add(1);
            let event = Event::ReleaseFailed { name: error.lock_name().unwrap_or_default(), error: &error };
            self.reporter.report(|observer| observer.event(&event));
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The number of clients at a time that is told of, once in a process: a program that makes one for each
/// request or each lock has them, and pays for each with threads and connections.
pub(crate) const MANY_CLIENTS: usize = 32;

static CLIENTS: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
static IS_REPORTED: atomic::AtomicBool = atomic::AtomicBool::new(false);

pub(crate) struct CountedClient {
    at_a_time: usize,
}

impl CountedClient {
    fn new() -> CountedClient {
        CountedClient { at_a_time: CLIENTS.fetch_add(1, atomic::Ordering::Relaxed) + 1 }
    }

    pub(crate) fn is_one_too_many(&self) -> bool {
        self.at_a_time >= MANY_CLIENTS && !IS_REPORTED.swap(true, atomic::Ordering::Relaxed)
    }
}

impl Drop for CountedClient {
    fn drop(&mut self) {
        CLIENTS.fetch_sub(1, atomic::Ordering::Relaxed);
    }
}
