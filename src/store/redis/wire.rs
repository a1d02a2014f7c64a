//! Requests and their replies: who uses which connection, and what is known when one fails.
//!
//! Callers hand over packed requests and get replies or a [`Failure`]; which connection carries them is decided here
//! alone, so that requests of many threads can one day share a write (`design.md` §7, lanes).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use r2d2::{ManageConnection, Pool, PooledConnection};
use redis::Value;
use scheduled_thread_pool::ScheduledThreadPool;

use super::address::Address;
use super::handshake;
use super::link::Link;
use super::reply::{Failure, is_noscript};
use super::script::Request;
use crate::error::{Error, ErrorKind, Result};
use crate::time::{Clock, Moment};

/// After a failed connect, other threads get its error for so long instead of trying for themselves.
const STORM_GATE: Duration = Duration::from_millis(30);
/// So many requests of a batch leave in one write; a server answers them within a few milliseconds.
const CHUNK: usize = 512;

/// The connections of one client to one server.
pub(super) struct Wire {
    address: Arc<Address>,
    command_timeout: Duration,
    pool: Pool<Slots>,
    /// Renewals have a connection of their own: nothing that holds up the others may cost a lease.
    renewals: Mutex<Option<Link>>,
    gate: Mutex<Option<Gate>>,
    closed: AtomicBool,
}

/// A connect that failed a moment ago.
struct Gate {
    until: Moment,
    error: Error,
}

/// What r2d2 hands out: a place for a connection. The thread that gets it connects, so that errors are typed and
/// immediate; r2d2 itself would retry in the background and report a string.
#[derive(Debug)]
struct Slots;

/// A place for a connection; empty before the first use and after a failure.
struct Slot(Option<Link>);

impl ManageConnection for Slots {
    type Connection = Slot;
    type Error = std::convert::Infallible;

    fn connect(&self) -> std::result::Result<Slot, Self::Error> {
        Ok(Slot(None))
    }

    fn is_valid(&self, _slot: &mut Slot) -> std::result::Result<(), Self::Error> {
        Ok(())
    }

    fn has_broken(&self, _slot: &mut Slot) -> bool {
        false
    }
}

impl Wire {
    /// Opens the first connection at once, so that what is wrong with the server or the settings is known now.
    pub(super) fn open(address: Arc<Address>, pool_size: u32, command_timeout: Duration) -> Result<Wire> {
        let first = handshake::open(&address, Clock::System.after(address.connect_timeout))?;
        let threads =
            ScheduledThreadPool::builder().num_threads(1).thread_name_pattern("leasehold-pool").build();
        // All slots are made here, since they are nothing but places: nobody then waits for r2d2's thread.
        let pool = Pool::builder()
            .max_size(pool_size)
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .thread_pool(Arc::new(threads))
            .build(Slots)
            .map_err(|error| Error::new(ErrorKind::Resource, "connect", error.to_string()))?;
        if let Some(mut slot) = pool.try_get() {
            slot.0 = Some(first);
        }
        Ok(Wire {
            address,
            command_timeout,
            pool,
            renewals: Mutex::new(None),
            gate: Mutex::new(None),
            closed: AtomicBool::new(false),
        })
    }

    /// Sends one request and reads its reply. An error reply is `Ok`: it is for the caller to judge.
    pub(super) fn call(&self, request: &Request, by: Moment) -> std::result::Result<Value, Failure> {
        let mut replies = self.dialog(by, |dialog| dialog.say(std::slice::from_ref(request)))?;
        replies.pop().ok_or_else(no_reply)
    }

    /// Has `talk` use one connection alone.
    pub(super) fn dialog<T>(
        &self,
        by: Moment,
        talk: impl FnOnce(&mut Dialog<'_>) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let by = by.min(Clock::System.after(self.command_timeout));
        let mut slot = self.slot(by)?;
        self.use_link(&mut slot.0, by, talk)
    }

    /// Like [`dialog`](Self::dialog), on the connection for renewals.
    pub(super) fn renewal_dialog<T>(
        &self,
        by: Moment,
        talk: impl FnOnce(&mut Dialog<'_>) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let by = by.min(Clock::System.after(self.command_timeout));
        let mut link = self
            .renewals
            .try_lock_for(by.since(Clock::System.now()))
            .ok_or_else(|| Failure::Refused(timed_out("the connection for renewals is in use")))?;
        self.use_link(&mut link, by, talk)
    }

    /// Sends many requests and reads their replies in order, on the connection for renewals. Stops at the first
    /// failure: what was sent by then and not answered is unknown, what was not sent is refused.
    pub(super) fn batch(&self, requests: &[Request], by: Moment) -> Vec<std::result::Result<Value, Failure>> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut failed = None;
        for chunk in requests.chunks(CHUNK) {
            if let Some(error) = &failed {
                answers.extend(chunk.iter().map(|_| Err(Failure::Refused(Error::copy(error)))));
                continue;
            }
            let mut replies = Vec::new();
            let failure = self.renewal_dialog(by, |dialog| dialog.collect(chunk, &mut replies)).err();
            replies.resize_with(chunk.len(), || None);
            answers.extend(replies.into_iter().map(|reply| match (reply, &failure) {
                (Some(reply), _) => Ok(reply),
                (None, Some(Failure::Refused(error))) => Err(Failure::Refused(error.copy())),
                (None, Some(Failure::Unknown(error))) => Err(Failure::Unknown(error.copy())),
                (None, None) => Err(no_reply()),
            }));
            failed = failure.map(Failure::into_error);
        }
        answers
    }

    fn slot(&self, by: Moment) -> std::result::Result<PooledConnection<Slots>, Failure> {
        self.pool
            .get_timeout(by.since(Clock::System.now()))
            .map_err(|_no_slot| Failure::Refused(timed_out("all connections of the pool are in use")))
    }

    fn use_link<T>(
        &self,
        place: &mut Option<Link>,
        by: Moment,
        talk: impl FnOnce(&mut Dialog<'_>) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Failure::Refused(Error::new(
                ErrorKind::ShutDown,
                "request",
                "the client was shut down",
            )));
        }
        // Taken out while in use: whatever ends the talk early, a panic included, ends the connection with it.
        let mut link = match place.take().filter(Link::is_alive) {
            Some(link) => link,
            None => self.connect(by).map_err(Failure::Refused)?,
        };
        let mut dialog = Dialog { link: &mut link, by, broken: false };
        let result = talk(&mut dialog);
        if !dialog.broken && !self.closed.load(Ordering::SeqCst) {
            *place = Some(link);
        }
        result
    }

    fn connect(&self, by: Moment) -> Result<Link> {
        if let Some(gate) = &*self.gate.lock()
            && Clock::System.now() < gate.until
        {
            return Err(gate.error.copy());
        }
        let by = by.min(Clock::System.after(self.address.connect_timeout));
        handshake::open(&self.address, by).inspect_err(|error| {
            let until = Clock::System.after(STORM_GATE);
            *self.gate.lock() = Some(Gate { until, error: error.copy() });
        })
    }

    /// Ends the connections that nobody uses; those in use end with their request.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // All at once: a slot that is given back is the next to be handed out.
        let mut idle: Vec<_> = std::iter::from_fn(|| self.pool.try_get()).collect();
        idle.iter_mut().for_each(|slot| slot.0 = None);
        if let Some(mut link) = self.renewals.try_lock() {
            *link = None;
        }
    }
}

/// One thread's use of a connection.
pub(super) struct Dialog<'a> {
    link: &'a mut Link,
    by: Moment,
    broken: bool,
}

impl Dialog<'_> {
    /// Sends `requests` in one write and reads their replies.
    pub(super) fn say(&mut self, requests: &[Request]) -> std::result::Result<Vec<Value>, Failure> {
        let mut replies = Vec::with_capacity(requests.len());
        self.collect(requests, &mut replies)?;
        replies.into_iter().map(|reply| reply.ok_or_else(no_reply)).collect()
    }

    /// Like [`say`](Self::say), but on a failure the replies that were read are there: one place for each request up
    /// to the last that was answered, `None` where the answer is missing.
    pub(super) fn collect(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Option<Value>>,
    ) -> std::result::Result<(), Failure> {
        self.exchange(requests, |reply| replies.push(Some(reply)))?;
        // A script that the server did not know was not run: sent once more with its body, here and now.
        let (mut places, mut again) = (Vec::new(), Vec::new());
        for (place, request) in replies.iter_mut().zip(requests) {
            let forgotten = matches!(place, Some(Value::ServerError(error)) if is_noscript(error));
            if let (true, Some(request)) = (forgotten, request.with_body()) {
                *place = None;
                places.push(place);
                again.push(request);
            }
        }
        if again.is_empty() {
            return Ok(());
        }
        let mut places = places.into_iter();
        self.exchange(&again, |reply| {
            if let Some(place) = places.next() {
                *place = Some(reply);
            }
        })
    }

    fn exchange(
        &mut self,
        requests: &[Request],
        mut take: impl FnMut(Value),
    ) -> std::result::Result<(), Failure> {
        let mut bytes = Vec::with_capacity(256 * requests.len());
        for request in requests {
            request.pack_into(&mut bytes);
        }
        // Broken until all replies are read: a reply that comes later would be taken for the next request's.
        let was_broken = std::mem::replace(&mut self.broken, true);
        debug_assert!(!was_broken, "a broken connection was used");
        if let Err(error) = self.link.send(&bytes, self.by) {
            // The write failed, so the last request is not whole on its way; a single one was not carried out then.
            return Err(if requests.len() == 1 { Failure::Refused(error) } else { Failure::Unknown(error) });
        }
        for _ in requests {
            take(self.link.receive(self.by).map_err(Failure::Unknown)?);
        }
        self.broken = false;
        Ok(())
    }
}

fn timed_out(words: &str) -> Error {
    Error::new(ErrorKind::TimedOut, "request", words)
}

fn no_reply() -> Failure {
    Failure::Unknown(Error::new(ErrorKind::Protocol, "request", "no reply was read"))
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({})", self.address.place)
    }
}
