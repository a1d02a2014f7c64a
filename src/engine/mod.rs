//! The engine: everything that is the same for all stores. This file has the state of one client, and the
//! checks with which each operation begins.
//!
//! `acquire` and `release` are the two main paths. `hold` is one grant; `registry` has all holds and local
//! queues. `core` is what callers share with the client's threads: the `timer` and the `watchdog`, which
//! renew holds and clean up after requests of unknown outcome. `ending` is the end of a client.
//!
//! Words of this folder (CONTRIBUTING.md has a longer list):
//! - *level*: one acquire within a hold; a re-entry adds a level, a release ends one.
//! - *owner number*: names a thread or a guard in the store. A *retired* number is used for no further hold,
//!   because a late request under it may still arrive.
//! - *claim*: the name, kind, owner and lease in a request.
//! - *local queue*: this process's waiters for one lock; only its *head* asks the store. *Wait queue*: the
//!   waiting clients, in the store.
//! - *hand-off*: a release that makes a local waiter the next owner, in one request.
//! - *cached*: said of a hold that stays in the store after its last level: for a *time slice*, or until a
//!   *recall*, the message of a client that wants the lock.
//! - *entry*: what this client writes into the store's directory of clients: its holds and waits.
//! - *home node*: the server of a ring that keeps a name; other stores have one only.
//! - "Pairs with": the order of two steps here and there excludes a race.

pub(crate) mod acquire;
pub(crate) mod batch;
mod contended;
pub(crate) mod core;
pub(crate) mod deadlock;
pub(crate) mod directory;
mod ending;
mod exit;
pub(crate) mod hold;
pub(crate) mod lock;
#[cfg(leasehold_shuttle)]
#[cfg(test)]
mod model;
mod pace;
mod questions;
pub(crate) mod registry;
pub(crate) mod release;
mod renewals;
mod store;
pub(crate) mod stuck;
#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;
mod timer;
pub(crate) mod waiter;
mod watchdog;

use std::ops::Deref;
use std::sync::{Arc, LazyLock, atomic};
use std::time::Duration;

use crate::config::{Options, debug_fields};
use crate::engine::core::{Core, StoreCell};
use crate::error::{Error, ErrorKind, Result};
use crate::fork::{is_forked, leak, refused_if_forked};
use crate::ident::{LockName, Owner, ThreadMarker, unbound_number};
use crate::interrupt::Interrupt;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::seam::{Answer, Capabilities, Claim, Failure, Kind};
use crate::sync::Mutex;
use crate::time::{Clock, Moment};

/// The state that all clones of a client, its locks and its guards share. Dropping it ends the client.
pub(crate) struct Engine {
    pub(crate) core: Arc<Core>,
    /// Wakes sleeping threads that wait in no local queue, when the client ends.
    pub(crate) ended: Interrupt,
    /// The claims that a failed shutdown did not release; `None` after a shutdown that released all. A thread
    /// has the mutex during its shutdown, so a second shutdown waits.
    left: Mutex<Option<Vec<Claim>>>,
    counted: Arc<()>,
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
        let (left, counted) = (Mutex::new(Some(Vec::new())), Arc::clone(&CLIENTS));
        Ok(Engine { core, ended: Interrupt::new(), left, counted })
    }

    pub(crate) fn is_one_too_many(&self) -> bool {
        // The static `CLIENTS` is a reference too, so the count is one more than the number of clients.
        Arc::strong_count(&self.counted) > MANY_CLIENTS && !IS_REPORTED.swap(true, atomic::Ordering::Relaxed)
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

    /// Refuses calls that an observer makes to its own client on a thread that is within a call: that
    /// call may be half done.
    pub(crate) fn refused_in_observer(&self, action: &'static str) -> Result<()> {
        if self.reporter.is_telling_here() {
            let words = "an observer called its client from within a call of the same thread: let another thread call it";
            return Err(Error::new(ErrorKind::WouldDeadlock, action, words));
        }
        Ok(())
    }

    /// Fails if the client was shut down. Within a call this is enough: no other check of
    /// [`usable`](Self::usable) can turn out differently there.
    pub(crate) fn open(&self, action: &'static str) -> Result<()> {
        if self.calls.is_closed() {
            return Err(Error::new(ErrorKind::ShutDown, action, "the client was shut down"));
        }
        Ok(())
    }

    pub(crate) fn one_command(&self) -> Moment {
        self.clock.after(self.options.command_timeout)
    }

    pub(crate) fn claim(
        &self,
        capabilities: &Capabilities,
        (kind, name): (Kind, &Arc<LockName>),
        number: u64,
        lease: Duration,
    ) -> Claim {
        let Capabilities { wait_queues, homes, .. } = capabilities;
        // A client without the right to the wait queue notifies nobody there, and says so by another id.
        // Read-write locks keep the id, because both halves need the same owner.
        let is_refused = kind.has_queue() && wait_queues.as_ref().is_some_and(|queues| queues.is_refused());
        let client = if is_refused { self.id.without_queue() } else { self.id };
        let home = homes.as_ref().map_or(0, |homes| homes.home(name));
        Claim { home, ..Claim::new(kind, name, Owner::new(client, number), lease) }
    }

    /// The owner number for the next hold: the thread's, or `unbound` for an owner that is no thread. If a
    /// request under the number may still arrive, replaces the number by a new one.
    pub(crate) fn next_number(
        &self,
        capabilities: &Capabilities,
        thread: &ThreadMarker,
        unbound: &mut Option<u64>,
    ) -> u64 {
        let unspent = capabilities.majority.as_ref().map_or(0, |all| all.first_unspent_number());
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

    pub(crate) fn ask<T>(&self, op: &'static str, ask: impl FnOnce() -> Answer<T>) -> Answer<T> {
        if !self.reporter.is_observed() {
            return ask();
        }
        let sent = self.clock.now();
        let answer = ask();
        self.reporter.report_request(op, sent, &self.clock, answer.as_ref().err().map(Failure::error));
        answer
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if is_forked() {
            // A forked child drops nothing that it inherited: a drop could write to the parent's connections.
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

debug_fields!(Engine, |it| id: it.id);

/// With this many clients at a time, the process reports a warning, once: a program that makes a client for
/// each request or lock pays for each with threads and connections.
pub(crate) const MANY_CLIENTS: usize = 32;

/// Each client has a clone, so the clones count the clients.
static CLIENTS: LazyLock<Arc<()>> = LazyLock::new(Arc::default);
static IS_REPORTED: atomic::AtomicBool = atomic::AtomicBool::new(false);
