//! One client's state, and the checks that every operation begins with.

use std::fmt;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, LockName, Owner, ThreadMark};
use crate::lock::hand::Aftermath;
use crate::lock::report::Reporter;
use crate::lock::store::{Answer, Claim, Kind, Snapshot, Store};
use crate::lock::table::Table;
use crate::lock::watchdog::Watchdog;
use crate::observe::{LossReason, Observer};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Lease, Moment, checked_lease};

/// What all clones of a client, its locks and its guards share. The last one to go shuts it down.
pub(crate) struct Engine {
    pub(crate) id: ClientId,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) table: Arc<Table>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) watchdog: Watchdog,
    pub(crate) aftermath: Aftermath,
    closed: AtomicBool,
    pid: u32,
}

impl Engine {
    pub(crate) fn start(
        options: Options,
        clock: Clock,
        store: Arc<dyn Store>,
        reporter: Arc<Reporter>,
    ) -> Result<Engine> {
        let table = Arc::new(Table::default());
        let watchdog = Watchdog::start(&options, &clock, &store, &table, &reporter)?;
        let aftermath = Aftermath {
            clock: clock.clone(),
            lease: options.lease,
            table: Arc::clone(&table),
            reporter: Arc::clone(&reporter),
            clean_ups: watchdog.clean_ups().clone(),
        };
        Ok(Engine {
            id: ClientId::random(),
            options,
            clock,
            store,
            table,
            reporter,
            watchdog,
            aftermath,
            closed: AtomicBool::new(false),
            pid: process::id(),
        })
    }

    /// Whether this is a forked child of the process that made the client. Nothing of the client may be used then:
    /// its mutexes may be held by threads that do not exist here, and its sockets are the parent's.
    pub(crate) fn is_forked(&self) -> bool {
        process::id() != self.pid
    }

    pub(crate) fn usable(&self, action: &'static str) -> Result<()> {
        if self.is_forked() {
            return Err(Error::new(
                ErrorKind::Forked,
                action,
                "the process was forked after the client was made; make a new client in the child",
            ));
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ShutDown, action, "the client was shut down"));
        }
        Ok(())
    }

    /// Until when one request to the store may take.
    pub(crate) fn one_command(&self) -> Moment {
        self.clock.after(self.options.command_timeout)
    }

    /// The lease to ask the store for.
    pub(crate) fn asked(&self, action: &'static str, lease: Lease) -> Result<Duration> {
        match lease {
            Lease::Renewed => Ok(self.options.lease),
            Lease::Fixed(lease) => checked_lease(action, lease),
        }
    }

    pub(crate) fn claim(&self, kind: Kind, name: &Arc<LockName>, number: u64, lease: Duration) -> Claim {
        Claim { kind, name: Arc::clone(name), owner: Owner::new(self.id, number), lease }
    }

    // ---- questions, which the server answers

    /// What the store shows of a lock, with the count of the calling thread. A live local hold that the server does
    /// not know is lost by this.
    pub(crate) fn inspect(
        &self,
        action: &'static str,
        kind: Kind,
        name: &Arc<LockName>,
    ) -> Result<Option<Snapshot>> {
        self.usable(action)?;
        let thread = ThreadMark::current();
        let hold = self.table.of_thread(kind, name, thread.id());
        let owner = hold.as_ref().map_or_else(|| Owner::new(self.id, thread.number()), |hold| hold.owner());
        let answer = self.store.inspect(kind, name, owner, self.one_command());
        let snapshot = answer.into_result().map_err(|error| error.during(action).on(name.given()))?;
        if let Some(hold) = hold
            && snapshot.as_ref().is_none_or(|snapshot| snapshot.count == 0)
        {
            self.aftermath.lose(&hold, LossReason::Gone);
        }
        Ok(snapshot)
    }

    pub(crate) fn force(&self, action: &'static str, kind: Kind, name: &Arc<LockName>) -> Result<bool> {
        self.usable(action)?;
        let holds = self.table.holds_of(kind, name);
        // Sent once and never repeated: a late second one could free what somebody took in between.
        let answer = self.store.force(kind, name, self.one_command());
        if let Answer::Done(true) = answer {
            for hold in holds {
                self.aftermath.lose(&hold, LossReason::Gone);
            }
            self.table.nudge(kind, name);
        }
        answer.into_result().map_err(|error| error.during(action).on(name.given()))
    }

    // ---- the end

    /// Releases what is held and ends the threads. Later calls do nothing.
    ///
    /// At most one command time-out for the release and one for whatever the watchdog has under way.
    pub(crate) fn shutdown(&self) -> Result<()> {
        if self.is_forked() || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let mut claims = self.watchdog.stop();
        for hold in self.table.clear() {
            if hold.is_live(self.clock.now(), &self.reporter) {
                hold.lose(LossReason::ShutDown, &self.reporter);
                claims.push(hold.claim());
            }
        }
        let mut outcome = Ok(());
        if !claims.is_empty() {
            for (answer, claim) in self.store.abandon(&claims, self.one_command()).into_iter().zip(&claims) {
                if let (Answer::Refused(error) | Answer::Unknown(error), Ok(())) = (answer, &outcome) {
                    outcome = Err(error.during("shutdown").on(claim.name.given()));
                }
            }
        }
        self.store.close();
        self.reporter.close();
        outcome
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_forked() {
            // Nothing inherited may be dropped here: that could lock, wait, or write to the parent's connections.
            leak(&self.store);
            leak(&self.table);
            leak(&self.reporter);
            self.watchdog.leak();
            leak_clone(&self.aftermath);
            return;
        }
        if let Err(error) = self.shutdown() {
            self.reporter.tell(|observer: &dyn Observer| {
                observer.release_failed(error.lock_name().unwrap_or_default(), &error);
            });
        }
    }
}

/// Keeps what `shared` points to from ever being dropped.
#[expect(clippy::mem_forget, reason = "the point: see Engine's Drop")]
pub(crate) fn leak<T: ?Sized>(shared: &Arc<T>) {
    std::mem::forget(Arc::clone(shared));
}

#[expect(clippy::mem_forget, reason = "as leak")]
fn leak_clone<T: Clone>(value: &T) {
    std::mem::forget(value.clone());
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("id", &self.id).finish_non_exhaustive()
    }
}
