//! One leader among many processes: the holder of the fenced lock of a name.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, select, unbounded};

use crate::config::debug_fields;
use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, LockConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::fork::{is_forked, leak};
use crate::ident::{FencingToken, LockName};
use crate::interrupt::Interrupt;
use crate::locks::guard::{HoldState, OwnedGuard};
use crate::observe::event::Event;
use crate::observe::{Loss, LossReason};
use crate::park::Parker;
use crate::seam::Kind;
use crate::sync::thread::JoinHandle;
use crate::sync::{Mutex, thread};
use crate::time::{Moment, random_between};

/// A candidate for the leadership of a name; made by [`LockClient::leader`](crate::LockClient::leader).
///
/// The candidate's thread waits for the fenced lock of the name, holds it while it can, and reports each
/// change on [`events`](Self::events). Dropping the candidate, or shutting the client down, releases the
/// leadership, so that the next candidate leads after one message, not after a lease.
///
/// # Guarantees
/// At most one leader at a time, within the limits of a lease lock; terms only grow. A leader's writes should
/// carry its term, and the resource refuse older ones: a leader that was stopped for longer than its lease
/// learns of its end only when it goes on. See
/// [fencing](https://github.com/leasehold/leasehold/blob/v0.1.0/docs/fencing.md).
///
/// # Examples
/// ```
/// use leasehold::{LeaderEvent, LockClient};
///
/// let client = LockClient::in_memory();
/// let candidate = client.leader("scheduler")?;
/// let LeaderEvent::Elected { term } = candidate.events().recv().unwrap() else { panic!() };
/// assert_eq!(candidate.term(), Some(term));
/// candidate.withdraw()?; // released here: the next candidate is elected at once
/// # Ok::<(), leasehold::Error>(())
/// ```
pub struct Leader {
    shared: Arc<LeaderShared>,
    orders: Sender<LeaderCommand>,
    events: Receiver<LeaderEvent>,
    /// The channel of a forked child: it has no events, since only the parent has the candidate's thread.
    no_events: Receiver<LeaderEvent>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// A change of a candidate's state.
///
/// # Examples
/// ```
/// use leasehold::{LeaderEvent, LockClient};
///
/// for event in LockClient::in_memory().leader("scheduler")?.events() {
///     match event {
///         LeaderEvent::Elected { term } => println!("leads, in term {term}"),
///         LeaderEvent::SteppedDown { term, lost } => println!("term {term} is over: {lost:?}"),
///         _ => {}
///     }
///     # break;
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaderEvent {
    /// The candidate leads from now on.
    Elected {
        /// The candidate's term, larger than every earlier leader's.
        term: FencingToken,
    },
    /// Others wait for the leadership. Sent only if the candidate [reports that](Leader::report_contended).
    Contended {
        /// The current term.
        term: FencingToken,
    },
    /// The candidate no longer leads. Unless withdrawn or shut down, it waits for election again.
    SteppedDown {
        /// The term that is over.
        term: FencingToken,
        /// Why the leadership was lost; `None` if the candidate stepped down by itself.
        lost: Option<LossReason>,
    },
}

struct LeaderShared {
    engine: Arc<Engine>,
    name: Arc<LockName>,
    stop: Interrupt,
    leadership: Mutex<Option<OwnedGuard>>,
}

enum LeaderCommand {
    ReportContended,
    /// Ends the leadership of this term, and no later one.
    StepDown(FencingToken),
    Withdraw,
}

/// Bounds of the random pause after an election that failed with an error.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(1_000));

/// How long a waiter may take to send its request when its poll is due.
const REACTION: Duration = Duration::from_millis(250);

impl Leader {
    pub(crate) fn stand(engine: &Arc<Engine>, name: Arc<LockName>) -> Result<Leader> {
        engine.usable("leader")?;
        let ((sender, events), (orders, ordered)) = (unbounded(), unbounded());
        let shared = Arc::new(LeaderShared {
            engine: Arc::clone(engine),
            name,
            stop: Interrupt::new(),
            leadership: Mutex::default(),
        });
        let candidate = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("leasehold-leader".to_owned())
            .spawn(move || candidate.run(&sender, &ordered))
            .map_err(|error| {
                Error::new(ErrorKind::Resource, "leader", "the system could not start a thread")
                    .with_source(error)
            })?;
        Ok(Leader { shared, orders, events, no_events: unbounded().1, thread: Some(thread) })
    }

    /// The term, if this candidate leads now, without a request; `None` in a forked child.
    #[must_use]
    pub fn term(&self) -> Option<FencingToken> {
        if is_forked() {
            return None;
        }
        let leadership = self.shared.leadership.lock();
        leadership.as_ref().filter(|guard| guard.state() != HoldState::Lost)?.fencing_token()
    }

    /// The candidate's events, in order. Disconnected when the candidate is withdrawn or its client is shut
    /// down, and in a forked child.
    #[must_use]
    pub fn events(&self) -> &Receiver<LeaderEvent> {
        if is_forked() { &self.no_events } else { &self.events }
    }

    /// Makes [`events`](Self::events) say, from now on, when others wait for this candidate's leadership: at
    /// most once a second, and only while no other event is unread. See
    /// [`Guard::on_contended`](crate::Guard::on_contended).
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if this store cannot report waiters;
    /// [`ShutDown`](ErrorKind::ShutDown) and [`Forked`](ErrorKind::Forked).
    pub fn report_contended(&self) -> Result<()> {
        let LeaderShared { engine, name, .. } = &*self.shared;
        engine.usable("report_contended")?;
        engine.can_hear("report_contended", Kind::Fenced, name)?;
        drop(self.orders.send(LeaderCommand::ReportContended)); // fails only if the thread has ended
        Ok(())
    }

    /// Gives up the leadership, if this candidate has it, and queues for it behind the waiting candidates.
    ///
    /// Except on etcd and ZooKeeper, which grant in order of arrival, the candidate first pauses until every
    /// waiting candidate has polled: about 0.3 s on SQLite, MySQL and MariaDB, 1.5 s on Redis and
    /// PostgreSQL. A candidate without rivals then leads again.
    pub fn step_down(&self) {
        if let Some(term) = self.term() {
            drop(self.orders.send(LeaderCommand::StepDown(term))); // fails only if the thread has ended
        }
    }

    /// Withdraws: gives up the leadership, if this candidate has it, and ends its thread.
    ///
    /// # Blocking
    /// One round trip; up to two command time-outs (default 3 s each) while the server does not answer. A
    /// call from an observer on the candidate's own thread does not wait: that thread ends later.
    ///
    /// # Errors
    /// The release failed; the leadership ends with its lease.
    pub fn withdraw(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        if is_forked() {
            return self.shared.engine.usable("withdraw");
        }
        self.shared.stop.interrupt();
        drop(self.orders.send(LeaderCommand::Withdraw));
        if thread.thread().id() == thread::current().id() {
            return Ok(()); // an observer calls on the candidate's own thread, which cannot join itself
        }
        let ended = thread.join();
        ended.unwrap_or_else(|_panic| {
            Err(Error::new(ErrorKind::Resource, "withdraw", "the candidate's thread panicked"))
        })
    }
}

impl Drop for Leader {
    #[expect(clippy::mem_forget, reason = "a channel's end may not be dropped in a forked child")]
    fn drop(&mut self) {
        if is_forked() {
            // A thread of the parent may have held these values' mutexes at the fork: a drop could hang.
            leak(&self.shared);
            std::mem::forget((self.orders.clone(), self.events.clone()));
            return;
        }
        if let Err(error) = self.end() {
            let event = Event::ReleaseFailed { name: self.shared.name.given(), error: &error };
            self.shared.engine.reporter.report(|observer| observer.event(&event));
        }
    }
}

impl LeaderShared {
    fn run(&self, sender: &Sender<LeaderEvent>, orders: &Receiver<LeaderCommand>) -> Result<()> {
        let mut reports_contended = false;
        loop {
            match self.elected() {
                Ok((term, lost)) => {
                    drop(sender.send(LeaderEvent::Elected { term })); // fails if the receiver was dropped
                    let (lost, released) = self.lead(term, &lost, orders, sender, &mut reports_contended);
                    drop(sender.send(LeaderEvent::SteppedDown { term, lost }));
                    if self.is_over() {
                        return released;
                    }
                    if lost.is_none() {
                        self.stand_back();
                    }
                }
                Err(_over) if self.is_over() => return Ok(()),
                Err(_trouble) => self.pause(random_between(RETRY_PAUSE)),
            }
        }
    }

    /// Pauses until every waiter, even one that only polls, has tried to acquire the lock: this candidate
    /// comes after them. Does not pause on stores that queue waiters.
    fn stand_back(&self) {
        let capabilities = &self.engine.store.capabilities;
        if !(capabilities.queues)(Kind::Fenced) {
            let (_, most) = (capabilities.poll_every)(Kind::Fenced);
            self.pause(most + REACTION);
        }
    }

    fn pause(&self, span: Duration) {
        let engine = &self.engine;
        let parker = Parker::new(&engine.clock);
        let _wakes = engine.ended.wakes(parker.waker());
        parker.park(engine.clock.after(span), Some(&self.stop));
    }

    fn is_over(&self) -> bool {
        self.stop.is_interrupted() || self.engine.usable("leader").is_err()
    }

    fn elected(&self) -> Result<(FencingToken, Receiver<Loss>)> {
        let local = self.engine.registry.local(Kind::Fenced, &self.name);
        let want = AcquireCall::new("leader", Kind::Fenced, (&self.name, &local), Moment::NEVER);
        let config = LockConfig { leads: true, ..want.config };
        let entered = self.engine.acquire(&AcquireCall { interrupt: Some(&self.stop), config, ..want })?;
        let guard = entered.map(|entered| OwnedGuard::new(&self.engine, entered));
        let Some((term, guard)) = guard.and_then(|guard| Some((guard.fencing_token()?, guard))) else {
            let words = "the store granted a fenced lock without a token";
            return Err(Error::new(ErrorKind::Protocol, "leader", words));
        };
        let lost = guard.lost();
        *self.leadership.lock() = Some(guard);
        Ok((term, lost))
    }

    /// Sends an event whenever others wait for this leadership, unless another event is still unread.
    fn report_contended(&self, term: FencingToken, events: Sender<LeaderEvent>) {
        let report = move || {
            if events.is_empty() {
                drop(events.send(LeaderEvent::Contended { term }));
            }
        };
        if let Some(guard) = &*self.leadership.lock() {
            drop(guard.on_contended(report)); // fails if the hold is lost, which `lead` notices
        }
    }

    /// Leads until the hold is lost or given up; returns the reason of a loss, and how the release went.
    fn lead(
        &self,
        term: FencingToken,
        lost: &Receiver<Loss>,
        orders: &Receiver<LeaderCommand>,
        events: &Sender<LeaderEvent>,
        reports_contended: &mut bool,
    ) -> (Option<LossReason>, Result<()>) {
        if *reports_contended {
            self.report_contended(term, events.clone());
        }
        let lost = loop {
            select! {
                recv(lost) -> loss => break loss.ok().map(|loss| loss.reason),
                recv(orders) -> order => match order {
                    Ok(LeaderCommand::StepDown(of)) if of != term => {}
                    Ok(LeaderCommand::ReportContended) => if !std::mem::replace(reports_contended, true) {
                        self.report_contended(term, events.clone());
                    },
                    _ => break None,
                },
            }
        };
        // Taken before the release, so that `term()` is `None` before another candidate can be elected.
        let guard = self.leadership.lock().take();
        match (guard, lost) {
            (Some(guard), None) => (None, guard.unlock()),
            _ => (lost, Ok(())),
        }
    }
}

debug_fields!(Leader, |it| name: it.shared.name.given(), term: it.term());
