//! Requests and their replies: each request's connection, and after which failures its outcome is unknown.
//!
//! Scripts about locks use the shared connection. A request that needs a connection for itself gets one from
//! the pool. Renewals have a connection of their own.

use std::sync::Arc;
use std::time::Duration;

use r2d2::{Pool, PooledConnection};
use redis::Value;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::error::{Error, ErrorKind, Result};
use crate::seam::{Answer, Failure, Releasing};
use crate::stores::redis::address::RedisAddress;
use crate::stores::redis::conn::connection::{Connection, ConnectionSlots, Dialog, no_reply};
use crate::stores::redis::conn::ledger::Ledger;
use crate::stores::redis::conn::shared::{Reply, ReplySink, SharedConnection, shut_down};
use crate::stores::redis::reply::is_unknown_script;
use crate::stores::redis::script::{Command, Prefix};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Moment};

/// For this time after a failed connect, other threads get the same error instead of connecting themselves.
const CONNECT_ERROR_LASTS: Duration = Duration::from_millis(50);
/// Maximum number of requests in one write, which a server answers within a few milliseconds.
const CHUNK: usize = 512;

/// Number of free slots that the pool keeps ready. Making all slots of a large pool would take seconds.
const READY: u32 = 16;

pub(crate) struct Connections {
    pub(crate) address: Arc<RedisAddress>,
    command_timeout: Duration,
    /// The slots of all connections, including the shared one, but not the one for renewals. `None` after
    /// `close`.
    pool: Mutex<Option<Pool<ConnectionSlots>>>,
    pub(crate) shared: Arc<SharedConnection>,
    pub(crate) ledger: Arc<Ledger>,
    /// Used only for renewals, checks and clean-ups of holds, so that no other request delays a renewal.
    renewals: Mutex<Option<Connection>>,
    gate: Mutex<Option<Gate>>,
    closed: AtomicBool,
    /// Whether ASKING precedes each request, because the key's slot is still moving to this server.
    pub(crate) asking: bool,
    /// Lua code put before scripts, so that they notify waiters otherwise than by PUBLISH. `None`: PUBLISH.
    pub(crate) publish_prefix: Option<Prefix>,
}

type Shareable = (PooledConnection<ConnectionSlots>, Connection);

struct Gate {
    until: Moment,
    error: Error,
}

impl Connections {
    /// Makes the pool without connecting; the first request connects.
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
            publish_prefix: None,
        })
    }

    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    pub(crate) fn lasting(self, lifetime: crate::hosts::Lifetime) -> Connections {
        let ledger = Arc::new(Ledger::lasting(lifetime));
        Connections { shared: Arc::new(SharedConnection::noted_in(Arc::clone(&ledger))), ledger, ..self }
    }

    /// Opens the first connection, so that wrong settings cause an error now.
    pub(crate) fn connect_first(&self) -> Result<()> {
        let deadline = Clock::System.after(self.address.connect_timeout);
        let first = self.connect(deadline)?;
        let mut slot = self.slot(deadline).map_err(Failure::into_error)?;
        slot.0 = Some(first);
        Ok(())
    }

    /// Sends a request and reads its reply. An error reply is `Ok`; the caller decides what it means.
    pub(crate) fn call(self: &Arc<Self>, command: Command, deadline: Moment) -> Answer<Value> {
        self.start(command, deadline)?()
    }

    /// Sends a request and returns a function that reads its reply. `Refused` if nothing was sent.
    pub(crate) fn start(
        self: &Arc<Self>,
        command: Command,
        deadline: Moment,
    ) -> Answer<impl FnOnce() -> Answer<Value> + Send + use<>> {
        let (command, deadline) = (self.as_published(command), self.limited(deadline));
        let sent = if self.asking {
            // ASKING applies to the next request of its connection, so the connection must not be shared.
            let replies = self.dialog(deadline, |dialog| dialog.say(std::slice::from_ref(&command)));
            Err(replies.and_then(|mut replies| replies.pop().ok_or_else(no_reply)))
        } else {
            Ok(self.send(&command, deadline, |by| self.connect_shared(by))?)
        };
        let connections = Arc::clone(self);
        Ok(move || match sent {
            Ok(sent) => connections.reply(&command, &sent, deadline),
            Err(answer) => answer,
        })
    }

    fn send(
        &self,
        command: &Command,
        deadline: Moment,
        connect: impl FnOnce(Moment) -> Result<Shareable>,
    ) -> Answer<Arc<Reply>> {
        let sent = self.shared.send(command.script, command.packing(), deadline, None, connect);
        sent.map_err(|(failure, _)| failure)
    }

    /// Waits for the reply. If the script was unknown, or the login had ended, sends the request once more.
    fn reply(&self, command: &Command, sent: &Reply, deadline: Moment) -> Answer<Value> {
        let reply = self.shared.wait(sent)?;
        let Some(again) = command.again_after(&reply) else { return Ok(reply) };
        let sent = self.send(&again, deadline, |by| self.connect_shared(by))?;
        self.shared.wait(&sent)
    }

    /// Sends a request. The thread that reads the reply passes it to `take`, in the order of the connection's
    /// other replies. If `take` returns a second request, that is sent too, and its outcome is ignored.
    ///
    /// If the server does not know the script and `releasing` is given, the script is sent again with its
    /// body. Later requests may then arrive before this release, so [`Releasing::overtaken`] is called first.
    /// Without `releasing`, `take` gets the refusal.
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
            let is_unknown = outcome.as_ref().is_ok_and(is_unknown_script);
            let again = if is_unknown { sent.with_body() } else { None };
            let (Some(whole), Some(releasing)) = (again, releasing) else { return take(&shared, outcome) };
            releasing.overtaken();
            let pack = |to: &mut Vec<u8>| whole.pack_into(to);
            let its = Arc::clone(&shared);
            let take: ReplySink = Box::new(move |outcome| take(&its, outcome));
            if let Err((failure, Some(take))) = shared.send_if_open(whole.script, pack, deadline, Some(take))
            {
                take(Err(failure));
            }
        });
        let connect = |by| self.connect_shared(by);
        if let Err((failure, Some(take))) =
            self.shared.send(command.script, command.packing(), deadline, Some(take), connect)
        {
            take(Err(failure));
        }
    }

    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    pub(crate) fn places(&self) -> u32 {
        self.pool.lock().as_ref().map_or(0, |pool| pool.state().connections)
    }

    pub(crate) fn hung_up(&self) -> bool {
        // Both connections are checked, even if the first has ended: each check also drops an ended one.
        let is_shared = self.shared.hung_up();
        // A connection in use is not checked, because the thread that uses it notices its end.
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
        match self.publish_prefix {
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
        talk: impl FnOnce(&mut Dialog<'_>) -> Answer<T>,
    ) -> Answer<T> {
        let deadline = self.limited(deadline);
        let mut slot = self.slot(deadline)?;
        self.use_connection(&mut slot.0, deadline, &|deadline| self.connect_gated(deadline), talk)
    }

    pub(crate) fn renewal_dialog<T>(
        &self,
        deadline: Moment,
        talk: impl FnOnce(&mut Dialog<'_>) -> Answer<T>,
    ) -> Answer<T> {
        let deadline = self.limited(deadline);
        let mut connection = self
            .renewals
            .try_lock_for(deadline.since(Clock::System.now()))
            .ok_or_else(|| Failure::Refused(timed_out("the connection for renewals is in use")))?;
        // Not `connect_gated`: another thread's error must not delay renewals. If the shared connection is
        // open, connecting has half of the time; after a failure `batch_over_open` uses the other half.
        let has_other = self.shared.is_open();
        let connects_by = |deadline| if has_other { Clock::System.halfway(deadline) } else { deadline };
        self.use_connection(&mut connection, deadline, &|deadline| self.connect(connects_by(deadline)), talk)
    }

    /// Sends requests over the connection for renewals, or, if none could be sent, over the shared one. Reads
    /// replies in order, and stops at the first failure: requests sent by then without a reply have an
    /// unknown outcome, later ones are refused.
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

    /// Sends requests over the shared connection if it is open, else returns `None`. This helps if the server
    /// has reached its limit of clients: it refuses new connections, but serves open ones. If the shared
    /// connection ends meanwhile, the requests fail with `why`, the error of the connection for renewals.
    fn batch_over_open(
        &self,
        commands: &[Command],
        deadline: Moment,
        why: &Error,
    ) -> Option<Vec<Answer<Value>>> {
        if !self.shared.is_open() {
            return None;
        }
        let deadline = self.limited(deadline);
        let send = |command: &Command| self.send(command, deadline, |_by| Err(why.copy()));
        let sent: Vec<_> = commands.iter().map(send).collect();
        let replies = commands.iter().zip(sent);
        Some(replies.map(|(command, sent)| self.reply(command, &*sent?, deadline)).collect())
    }

    fn slot(&self, deadline: Moment) -> Answer<PooledConnection<ConnectionSlots>> {
        let pool = self.pool.lock().clone();
        pool.ok_or_else(|| Failure::Refused(shut_down()))?
            .get_timeout(deadline.since(Clock::System.now()))
            .map_err(|_no_slot| Failure::Refused(timed_out("all connections of the pool are in use")))
    }

    fn use_connection<T>(
        &self,
        place: &mut Option<Connection>,
        deadline: Moment,
        connect: &dyn Fn(Moment) -> Result<Connection>,
        talk: impl FnOnce(&mut Dialog<'_>) -> Answer<T>,
    ) -> Answer<T> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Failure::Refused(shut_down()));
        }
        // The connection is taken out of `place` while in use, so that it is dropped if `talk` panics.
        let mut connection = match place.take().filter(|connection| self.is_good(connection)) {
            Some(connection) => self.renewed(connection, || connect(Clock::System.halfway(deadline))),
            None => connect(deadline).map_err(Failure::Refused)?,
        };
        let (asking, ledger) = (self.asking, &*self.ledger);
        let replace = Some(connect);
        let mut dialog =
            Dialog { connection: &mut connection, deadline, asking, broken: false, replace, ledger };
        let result = talk(&mut dialog);
        let is_whole = !dialog.broken && !self.closed.load(Ordering::SeqCst);
        *place = Some(connection).filter(|connection| is_whole && self.ledger.is_fit(&connection.origin));
        result
    }

    fn connect_gated(&self, deadline: Moment) -> Result<Connection> {
        if let Some(gate) = &*self.gate.lock()
            && Clock::System.now() < gate.until
        {
            return Err(gate.error.copy());
        }
        self.connect(deadline).inspect_err(|error| {
            let until = Clock::System.after(CONNECT_ERROR_LASTS);
            *self.gate.lock() = Some(Gate { until, error: error.copy() });
        })
    }

    fn connect(&self, deadline: Moment) -> Result<Connection> {
        // The generation is read before connecting, because a demotion noticed meanwhile concerns this
        // connection too.
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

    /// Waits for outstanding replies, so that releases sent without waiting arrive, and ends all connections
    /// that are not in use. A connection in use ends with its request.
    pub(crate) fn close(&self, deadline: Moment) {
        self.closed.store(true, Ordering::SeqCst);
        let deadline = self.limited(deadline);
        self.shared.close(deadline);
        // All slots are taken out first, because the pool would hand out a returned slot again.
        let Some(pool) = self.pool.lock().take() else { return };
        let mut idle: Vec<_> = std::iter::from_fn(|| pool.try_get()).collect();
        idle.iter_mut().for_each(|slot| slot.0 = None);
        if let Some(mut connection) = self.renewals.try_lock() {
            *connection = None;
        }
    }
}

pub(crate) fn maintenance() -> Arc<ScheduledThreadPool> {
    Arc::new(ScheduledThreadPool::builder().num_threads(1).thread_name_pattern("leasehold-pool").build())
}

fn timed_out(words: &str) -> Error {
    Error::new(ErrorKind::TimedOut, "request", words)
}
