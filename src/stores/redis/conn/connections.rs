//! Requests and their replies: which connection carries a request, and what is known when one fails.
//!
//! Scripts about locks go over the shared connection; a request that needs a connection alone gets one from
//! the pool; renewals have their own.
//!
//! Long because which connection carries a request, and what serves in its place, is one decision.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use r2d2::{Pool, PooledConnection};
use redis::Value;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::error::{Error, ErrorKind, Result};
use crate::seam::{Answer, Failure, Releasing};
use crate::stores::redis::address::RedisAddress;
use crate::stores::redis::conn::connection::{Connection, ConnectionSlots, Dialog, no_reply};
use crate::stores::redis::conn::ledger::{Ledger, end_of_questions, question};
use crate::stores::redis::conn::shared::{Reply, ReplySink, SharedConnection};
use crate::stores::redis::reply::is_logged_out;
use crate::stores::redis::script::{Command, Prefix};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Moment};

/// For this time after a failed connect other threads get its error instead of trying themselves.
const STORM_GATE: Duration = Duration::from_millis(50);
/// The most requests in one write; a server answers as many within a few milliseconds.
const CHUNK: usize = 512;

/// Slots made in advance, so that a thread seldom waits for r2d2's. Making thousands takes seconds.
const READY: u32 = 16;

pub(crate) struct Connections {
    pub(crate) address: Arc<RedisAddress>,
    command_timeout: Duration,
    /// Every connection except that for renewals has a slot here, the shared one for as long as it is open.
    /// `None` when closed: the pool has a thread.
    pool: Mutex<Option<Pool<ConnectionSlots>>>,
    shared: Arc<SharedConnection>,
    ledger: Arc<Ledger>,
    /// Renewals have their own connection: nothing that delays other requests may cost a lease.
    renewals: Mutex<Option<Connection>>,
    gate: Mutex<Option<Gate>>,
    closed: AtomicBool,
    /// ASKING precedes each request: its key has moved here ahead of its slot.
    asking: bool,
    /// The beginning of scripts that notify waiters otherwise than by PUBLISH.
    publishes: Option<Prefix>,
}

type Shareable = (PooledConnection<ConnectionSlots>, Connection);

struct Gate {
    until: Moment,
    error: Error,
}

impl Connections {
    /// No I/O: connects when there is something to send.
    pub(crate) fn new(
        address: Arc<RedisAddress>,
        pool_size: u32,
        command_timeout: Duration,
        threads: Arc<ScheduledThreadPool>,
    ) -> Result<Connections> {
        let ledger = Arc::<Ledger>::default();
        let size = pool_size.max(2);
        let pool = Pool::builder()
            .max_size(size)
            .min_idle(Some(size.min(READY)))
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .thread_pool(threads)
            .build(ConnectionSlots)
            .map_err(|error| Error::new(ErrorKind::Resource, "connect", error.to_string()))?;
        Ok(Connections {
            address,
            command_timeout,
            pool: Mutex::new(Some(pool)),
            shared: Arc::new(SharedConnection::noted_in(Arc::clone(&ledger))),
            ledger,
            renewals: Mutex::new(None),
            gate: Mutex::new(None),
            closed: AtomicBool::new(false),
            asking: false,
            publishes: None,
        })
    }

    pub(crate) fn publishing(self, publishes: Option<Prefix>) -> Connections {
        Connections { publishes, ..self }
    }

    /// ASKING precedes each request, on a connection that the request has alone.
    pub(crate) fn asking(self) -> Connections {
        Connections { asking: true, ..self }
    }

    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    pub(crate) fn lasting(self, lifetime: crate::hosts::Lifetime) -> Connections {
        let ledger = Arc::new(Ledger::lasting(lifetime));
        Connections { shared: Arc::new(SharedConnection::noted_in(Arc::clone(&ledger))), ledger, ..self }
    }

    pub(crate) fn on_demotion(&self, act: impl Fn() + Send + Sync + 'static) {
        self.ledger.on_demotion(act);
    }

    pub(crate) fn link(&self) -> u32 {
        self.ledger.link()
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.asking
    }

    /// Opens the first connection, so that wrong settings show now.
    pub(crate) fn connect_first(&self) -> Result<()> {
        let deadline = Clock::System.after(self.address.connect_timeout);
        let first = self.connect(deadline)?;
        let mut slot = self.slot(deadline).map_err(Failure::into_error)?;
        slot.0 = Some(first);
        Ok(())
    }

    /// Sends one request and reads its reply. An error reply is `Ok`: the caller judges it.
    pub(crate) fn call(&self, command: Command, deadline: Moment) -> Answer<Value> {
        if self.asking {
            let command = self.as_published(command);
            let replies = self.dialog(deadline, |dialog| dialog.say(&[command]))?;
            return replies.into_iter().next().ok_or_else(no_reply);
        }
        let started = self.start(command, deadline)?;
        let reply = started.wait()?;
        if !is_logged_out(&reply) {
            return Ok(reply);
        }
        // It ran nothing, and the next connection asks for the credentials of today.
        self.start_over(started.command, deadline, |by| self.connect_shared(by))?.wait()
    }

    pub(crate) fn start(&self, command: Command, deadline: Moment) -> Answer<Started> {
        self.start_over(self.as_published(command), deadline, |by| self.connect_shared(by))
    }

    fn start_over(
        &self,
        command: Command,
        deadline: Moment,
        connect: impl FnOnce(Moment) -> Result<Shareable>,
    ) -> Answer<Started> {
        let deadline = self.limited(deadline);
        let sent = self.shared.send(command.script(), command.packing(), deadline, None, connect);
        let reply = sent.map_err(|(failure, _)| failure)?;
        Ok(Started { shared: Arc::clone(&self.shared), reply, command, deadline })
    }

    /// Sends one request. The thread that reads the reply gives it to `take`, in order with others of that
    /// connection. The request that `take` returns is sent over the same connection; its outcome is ignored.
    ///
    /// `releasing`: a script that the server did not know is sent again with its body, after the hold that it
    /// releases was notified that its release comes behind others. `None`: `take` gets the refusal.
    pub(crate) fn post(
        &self,
        command: Command,
        deadline: Moment,
        releasing: Option<Arc<dyn Releasing>>,
        take: impl FnOnce(Answer<Value>) -> Option<Command> + Send + 'static,
    ) {
        let command = Arc::new(self.as_published(command));
        let deadline = self.limited(deadline);
        let (shared, sent) = (Arc::clone(&self.shared), Arc::clone(&command));
        let take = move |shared: &SharedConnection, outcome| {
            if let Some(then) = take(outcome) {
                drop(shared.send_if_open(None, |to| then.pack_into(to), deadline, Some(Box::new(drop))));
            }
        };
        let take: ReplySink = Box::new(move |outcome| {
            let again = outcome.as_ref().ok().and_then(|reply| sent.again_after(reply));
            let (Some(whole), Some(releasing)) = (again, releasing) else { return take(&shared, outcome) };
            releasing.overtaken();
            let pack = |to: &mut Vec<u8>| whole.pack_into(to);
            let its = Arc::clone(&shared);
            let take: ReplySink = Box::new(move |outcome| take(&its, outcome));
            if let Err((failure, Some(take))) =
                shared.send_if_open(whole.script(), pack, deadline, Some(take))
            {
                take(Err(failure));
            }
        });
        let connect = |by| self.connect_shared(by);
        if let Err((failure, Some(take))) =
            self.shared.send(command.script(), command.packing(), deadline, Some(take), connect)
        {
            take(Err(failure));
        }
    }

    pub(crate) fn poll_completions(&self) -> bool {
        self.shared.poll_completions()
    }

    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    pub(crate) fn places(&self) -> u32 {
        self.pool.lock().as_ref().map_or(0, |pool| pool.state().connections)
    }

    pub(crate) fn hung_up(&self) -> bool {
        // Both are called: each clears what it reports.
        let is_shared = self.shared.hung_up();
        // A connection that is locked is in use, and the thread that uses it notices its end.
        let renewals = self.renewals.try_lock().is_some_and(|mut connection| {
            let is_hung_up = connection.as_ref().is_some_and(Connection::is_hung_up);
            if is_hung_up {
                *connection = None;
            }
            is_hung_up
        });
        is_shared || renewals
    }

    fn as_published(&self, command: Command) -> Command {
        match self.publishes {
            Some(prefix) => command.behind(prefix),
            None => command,
        }
    }

    fn limited(&self, deadline: Moment) -> Moment {
        deadline.min(Clock::System.after(self.command_timeout))
    }

    fn connect_shared(&self, by: Moment) -> Result<Shareable> {
        let mut slot = self.slot(by).map_err(Failure::into_error)?;
        let connection = match slot.0.take().filter(|connection| self.is_good(connection)) {
            Some(connection) => connection,
            None => self.connect_gated(by)?,
        };
        Ok((slot, connection))
    }

    pub(crate) fn dialog<T>(
        &self,
        deadline: Moment,
        talk: impl FnOnce(&mut Dialog<'_>) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let deadline = self.limited(deadline);
        let mut slot = self.slot(deadline)?;
        self.use_connection(&mut slot.0, deadline, |deadline| self.connect_gated(deadline), talk)
    }

    pub(crate) fn renewal_dialog<T>(
        &self,
        deadline: Moment,
        talk: impl FnOnce(&mut Dialog<'_>) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let deadline = self.limited(deadline);
        let mut connection = self
            .renewals
            .try_lock_for(deadline.since(Clock::System.now()))
            .ok_or_else(|| Failure::Refused(timed_out("the connection for renewals is in use")))?;
        // Not gated: the watchdog must not be kept out by other threads' failures. Another open connection
        // may serve instead, so connecting has half of the time.
        let has_other = self.shared.is_open();
        let connects_by = |deadline| if has_other { Clock::System.halfway(deadline) } else { deadline };
        self.use_connection(&mut connection, deadline, |deadline| self.connect(connects_by(deadline)), talk)
    }

    /// Sends many requests and reads their replies in order, on the connection for renewals. Stops at the
    /// first failure: requests sent by then without an answer are unknown, the others are refused.
    pub(crate) fn batch(&self, commands: Vec<Command>, deadline: Moment) -> Vec<Answer<Value>> {
        let commands: Vec<Command> = commands.into_iter().map(|command| self.as_published(command)).collect();
        let mut answers = Vec::with_capacity(commands.len());
        for chunk in commands.chunks(CHUNK) {
            let mut replies = Vec::new();
            let failure = self.renewal_dialog(deadline, |dialog| dialog.collect(chunk, &mut replies)).err();
            if let Some(Failure::Refused(why)) = &failure
                && replies.is_empty()
                && let Some(outcomes) = self.batch_over_open(chunk, deadline, why)
            {
                answers.extend(outcomes);
                continue;
            }
            let missing = || failure.as_ref().map_or_else(no_reply, Failure::copy);
            replies.resize_with(chunk.len(), || None);
            answers.extend(replies.into_iter().map(|reply| reply.ok_or_else(missing)));
            if let Some(failure) = failure {
                let error = failure.into_error();
                answers.resize_with(commands.len(), || Err(Failure::Refused(error.copy())));
                break;
            }
        }
        answers
    }

    /// Sends requests over the shared connection if it is open, else `None`. A server at its limit of clients
    /// still serves existing connections. One that ends meanwhile is not replaced; the caller keeps its own
    /// connection's error.
    fn batch_over_open(
        &self,
        commands: &[Command],
        deadline: Moment,
        why: &Error,
    ) -> Option<Vec<Answer<Value>>> {
        if !self.shared.is_open() {
            return None;
        }
        let start = |command: &Command| self.start_over(command.clone(), deadline, |_by| Err(why.copy()));
        // All are sent before the first reply is waited for.
        let started: Vec<_> = commands.iter().map(start).collect();
        Some(started.into_iter().map(|started| started.and_then(|started| started.wait())).collect())
    }

    /// As [`batch`](Self::batch), for requests that undo what is in doubt. Returns also whether no earlier
    /// request can arrive any more: the server no longer has any connection that was in doubt.
    pub(crate) fn batch_in_doubt(
        &self,
        commands: Vec<Command>,
        deadline: Moment,
    ) -> (Vec<Answer<Value>>, bool) {
        let is_settled = match self.ledger.doubtful() {
            None => false,
            Some(ids) if ids.is_empty() => true,
            Some(ids) => {
                let mut questions: Vec<Command> = ids.iter().map(|id| question(*id)).collect();
                questions.push(end_of_questions());
                let replies = self.renewal_dialog(deadline, |dialog| dialog.say(&questions));
                replies.is_ok_and(|replies| self.ledger.settle(&ids, &replies))
            }
        };
        (self.batch(commands, deadline), is_settled)
    }

    fn slot(&self, deadline: Moment) -> std::result::Result<PooledConnection<ConnectionSlots>, Failure> {
        let pool = self.pool.lock().clone();
        pool.ok_or_else(|| Failure::Refused(shut_down()))?
            .get_timeout(deadline.since(Clock::System.now()))
            .map_err(|_no_slot| Failure::Refused(timed_out("all connections of the pool are in use")))
    }

    fn use_connection<T>(
        &self,
        place: &mut Option<Connection>,
        deadline: Moment,
        connect: impl FnOnce(Moment) -> Result<Connection>,
        talk: impl FnOnce(&mut Dialog<'_>) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Failure::Refused(shut_down()));
        }
        // Taken out while in use: whatever ends the talk early, also a panic, ends the connection.
        let mut connection = match place.take().filter(|connection| self.is_good(connection)) {
            Some(connection) => self.renewed(connection, || connect(Clock::System.halfway(deadline))),
            None => connect(deadline).map_err(Failure::Refused)?,
        };
        let (asking, ledger) = (self.asking, &*self.ledger);
        let mut dialog = Dialog { connection: &mut connection, deadline, asking, broken: false, ledger };
        let result = talk(&mut dialog);
        if dialog.broken {
            self.ledger.ended_in_doubt(&connection.origin);
        } else if !self.closed.load(Ordering::SeqCst) && self.ledger.is_fit(&connection.origin) {
            *place = Some(connection);
        }
        result
    }

    fn connect_gated(&self, deadline: Moment) -> Result<Connection> {
        if let Some(gate) = &*self.gate.lock()
            && Clock::System.now() < gate.until
        {
            return Err(gate.error.copy());
        }
        self.connect(deadline).inspect_err(|error| {
            let until = Clock::System.after(STORM_GATE);
            *self.gate.lock() = Some(Gate { until, error: error.copy() });
        })
    }

    fn connect(&self, deadline: Moment) -> Result<Connection> {
        // Read first: a demotion that is found out meanwhile concerns this connection too.
        let generation = self.ledger.generation();
        let mut connection =
            self.address.open(deadline.min(Clock::System.after(self.address.connect_timeout)))?;
        self.ledger.enter(&mut connection.origin, generation);
        Ok(connection)
    }

    fn is_good(&self, connection: &Connection) -> bool {
        connection.is_alive() && self.ledger.is_fit(&connection.origin)
    }

    fn renewed(&self, mut old: Connection, connect: impl FnOnce() -> Result<Connection>) -> Connection {
        let now = Clock::System.now();
        if !self.ledger.is_stale(&old.origin, old.used, now) {
            return old;
        }
        connect().unwrap_or_else(|_error| {
            self.ledger.keep(&mut old.origin, now);
            old
        })
    }

    /// Ends idle connections; those in use end with their request.
    ///
    /// Waits for outstanding replies first: a release that was sent without waiting must arrive.
    pub(crate) fn close(&self, deadline: Moment) {
        self.closed.store(true, Ordering::SeqCst);
        let deadline = self.limited(deadline);
        self.shared.close(deadline);
        // All at once: a slot that is given back is the next to be handed out.
        let Some(pool) = self.pool.lock().take() else { return };
        let mut idle: Vec<_> = std::iter::from_fn(|| pool.try_get()).collect();
        idle.iter_mut().for_each(|slot| slot.0 = None);
        if let Some(mut connection) = self.renewals.try_lock() {
            *connection = None;
        }
    }
}

/// The thread for r2d2's pools; one serves many.
pub(crate) fn maintenance() -> Arc<ScheduledThreadPool> {
    Arc::new(ScheduledThreadPool::builder().num_threads(1).thread_name_pattern("leasehold-pool").build())
}

pub(crate) struct Started {
    shared: Arc<SharedConnection>,
    reply: Arc<Reply>,
    command: Command,
    deadline: Moment,
}

impl Started {
    pub(crate) fn wait(&self) -> Answer<Value> {
        let outcome = self.shared.wait(&self.reply);
        // The server did not know the script, so ran nothing: sent once more with its body, while the
        // connection stands.
        let again = outcome.as_ref().ok().and_then(|reply| self.command.again_after(reply));
        let Some(whole) = again else { return outcome };
        let sent = self.shared.send_if_open(whole.script(), |to| whole.pack_into(to), self.deadline, None);
        self.shared.wait(&*sent.map_err(|(failure, _)| failure)?)
    }
}

fn shut_down() -> Error {
    Error::new(ErrorKind::ShutDown, "request", "the client was shut down")
}

fn timed_out(words: &str) -> Error {
    Error::new(ErrorKind::TimedOut, "request", words)
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({})", self.address.target)
    }
}
