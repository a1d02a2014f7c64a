//! Requests and their replies: who uses which connection, and what is known when one fails.
//!
//! Callers hand over requests and get replies or a [`Failure`]; which connection carries them is decided here alone.
//! Scripts about locks go over shared lanes; what needs a connection alone gets one from the pool; renewals have their
//! own.
//!
//! Long because it is one question, whichever way a request takes: what came of it, and may it be sent once more?

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use r2d2::{ManageConnection, Pool, PooledConnection};
use redis::Value;
use scheduled_thread_pool::ScheduledThreadPool;

use super::address::Address;
use super::handshake;
use super::lane::{Lane, Outcome, Reply, Take};
use super::link::Link;
use super::reply::{Failure, is_noscript};
use super::script::{Known, Request, Script};
use super::tell::Tell;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Moment};

/// After a failed connect, other threads get its error for so long instead of trying for themselves.
const STORM_GATE: Duration = Duration::from_millis(50);
/// So many requests of a batch leave in one write; a server answers them within a few milliseconds.
const CHUNK: usize = 512;

/// So many slots are there before they are needed, so that hardly anybody waits for r2d2's thread. They are nothing but places,
/// but of thousands the making takes seconds.
const READY: u32 = 16;

/// More lanes than this only make each write carry less.
const MOST_LANES: u32 = 4;

/// The connections of one client to one server.
pub(super) struct Wire {
    address: Arc<Address>,
    command_timeout: Duration,
    /// Every connection but the renewals' has a slot of this pool, a lane's for as long as it is open.
    /// Gone when closed: it has a thread.
    pool: Mutex<Option<Pool<Slots>>>,
    lanes: Arc<[Lane]>,
    known: Arc<Known>,
    /// Renewals have a connection of their own: nothing that holds up the others may cost a lease.
    renewals: Mutex<Option<Link>>,
    gate: Mutex<Option<Gate>>,
    closed: AtomicBool,
    /// Each request is preceded by ASKING: it is about a key that has come here ahead of its slot.
    asking: bool,
    /// How the scripts that go this way tell waiters.
    tell: Tell,
}

/// A connect that failed a moment ago.
struct Gate {
    until: Moment,
    error: Error,
}

/// What r2d2 hands out: a place for a connection. The thread that gets it connects, so that errors are typed and
/// immediate; r2d2 itself would retry in the background and report a string.
#[derive(Debug)]
pub(super) struct Slots;

/// A place for a connection; empty before the first use and after a failure.
pub(super) struct Slot(Option<Link>);

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
    /// No I/O: connects when there is something to send.
    pub(super) fn new(
        address: Arc<Address>,
        pool_size: u32,
        command_timeout: Duration,
        threads: Arc<ScheduledThreadPool>,
    ) -> Result<Wire> {
        let lanes = pool_size.min(MOST_LANES);
        let size = pool_size.max(lanes + 1);
        let pool = Pool::builder()
            .max_size(size)
            .min_idle(Some(size.min(READY)))
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .thread_pool(threads)
            .build(Slots)
            .map_err(|error| Error::new(ErrorKind::Resource, "connect", error.to_string()))?;
        Ok(Wire {
            address,
            command_timeout,
            pool: Mutex::new(Some(pool)),
            lanes: (0..lanes).map(|_| Lane::new()).collect(),
            known: Arc::default(),
            renewals: Mutex::new(None),
            gate: Mutex::new(None),
            closed: AtomicBool::new(false),
            asking: false,
            tell: Tell::Alone,
        })
    }

    /// The same, but its scripts tell waiters in this way.
    pub(super) fn telling(self, tell: Tell) -> Wire {
        Wire { tell, ..self }
    }

    /// The same, but each request is preceded by ASKING, on a connection that it has alone.
    pub(super) fn asking(self) -> Wire {
        Wire { asking: true, ..self }
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    /// Opens the first connection, so that what is wrong with the server or the settings is known now.
    pub(super) fn connect_first(&self) -> Result<()> {
        let by = Clock::System.after(self.address.connect_timeout);
        let first = handshake::open(&self.address, by)?;
        let mut slot = self.slot(by).map_err(Failure::into_error)?;
        slot.0 = Some(first);
        Ok(())
    }

    /// Sends one request and reads its reply. An error reply is `Ok`: it is for the caller to judge.
    pub(super) fn call(&self, request: &Request, by: Moment) -> Outcome {
        let told = request.told(self.tell);
        let request = told.as_ref().unwrap_or(request);
        let by = by.min(Clock::System.after(self.command_timeout));
        if self.asking {
            let replies = self.dialog(by, |dialog| dialog.say(std::slice::from_ref(request)))?;
            return replies.into_iter().next().ok_or_else(no_reply);
        }
        let lane = self.lane(request);
        let send = |request: &Request| {
            let sent = self.send(request, by, None);
            lane.wait(&*sent.map_err(|(failure, _)| failure)?)
        };
        let reply = send(request)?;
        // A script that the server did not know was not run: sent once more with its body, here and now.
        match request.with_body() {
            Some(whole) if is_forgotten(&reply) => send(&whole),
            _ => Ok(reply),
        }
    }

    /// Sends one request, for someone else to read its reply.
    pub(super) fn start(&self, request: Request, by: Moment) -> std::result::Result<Started, Failure> {
        let request = self.as_told(request);
        let by = by.min(Clock::System.after(self.command_timeout));
        let whole = self.whole(&request);
        let reply =
            self.send(whole.as_ref().unwrap_or(&request), by, None).map_err(|(failure, _)| failure)?;
        Ok(Started {
            lanes: Arc::clone(&self.lanes),
            lane: self.lane_number(&request),
            reply,
            known: Arc::clone(&self.known),
            request,
            by,
        })
    }

    /// Sends one request whose reply is given to `take` by whoever reads it, in order with the lane's others.
    pub(super) fn post(&self, request: &Request, by: Moment, take: Take) {
        let told = request.told(self.tell);
        let request = told.as_ref().unwrap_or(request);
        let by = by.min(Clock::System.after(self.command_timeout));
        let whole = self.whole(request);
        let (known, script) = (Arc::clone(&self.known), request.script());
        let take: Take = Box::new(move |outcome| {
            note_known(&known, script, &outcome);
            take(outcome);
        });
        if let Err((failure, Some(take))) = self.send(whole.as_ref().unwrap_or(request), by, Some(take)) {
            take(Err(failure));
        }
    }

    /// As [`post`](Self::post). If `take` finds that all is well, `then` goes out as well, over the same connection; what
    /// becomes of it nobody is told.
    pub(super) fn post_then(
        &self,
        request: &Request,
        then: &Request,
        by: Moment,
        take: impl FnOnce(Outcome) -> bool + Send + 'static,
    ) {
        let mut bytes = Vec::new();
        then.pack_into(&mut bytes);
        let (lanes, lane) = (Arc::clone(&self.lanes), self.lane_number(request));
        let take = Box::new(move |outcome| {
            if take(outcome)
                && let Some(lane) = lanes.get(lane)
            {
                let broken = || Err(Error::new(ErrorKind::Unreachable, "request", "the connection broke"));
                drop(lane.send(&bytes, by, Some(Box::new(drop)), broken));
            }
        });
        self.post(request, by, take);
    }

    /// Reads replies that nobody has come for; returns whether some are still to come.
    pub(super) fn tend(&self) -> bool {
        self.lanes.iter().filter(|lane| lane.tend()).count() > 0
    }

    /// How many places its pool has ready or in use.
    #[cfg(all(test, not(leasehold_shuttle)))]
    pub(super) fn places(&self) -> u32 {
        self.pool.lock().as_ref().map_or(0, |pool| pool.state().connections)
    }

    /// Whether a connection was hung up since this was last asked: a lane's, or that for renewals.
    pub(super) fn hung_up(&self) -> bool {
        let lanes = self.lanes.iter().filter(|lane| lane.hung_up()).count() > 0;
        // While it is in use, whoever uses it notices.
        let renewals = self.renewals.try_lock().is_some_and(|mut link| {
            let is_hung_up = link.as_ref().is_some_and(Link::is_hung_up);
            if is_hung_up {
                *link = None;
            }
            is_hung_up
        });
        lanes || renewals
    }

    /// The request with its script's body, as long as the server has not been seen to know the script: a reply that
    /// it does not would come too late to send the body then.
    pub(super) fn whole(&self, request: &Request) -> Option<Request> {
        let script = request.script()?;
        if self.known.has(script) { None } else { request.with_body() }
    }

    /// The request as it is sent here: it tells waiters in this server's way.
    pub(super) fn as_told(&self, request: Request) -> Request {
        request.told(self.tell).unwrap_or(request)
    }

    /// Takes note of whether the server knows the script, from its reply.
    pub(super) fn note_known(&self, script: Option<&'static Script>, reply: &Value) {
        hear_of(&self.known, script, reply);
    }

    fn lane_number(&self, request: &Request) -> usize {
        let lanes = u64::try_from(self.lanes.len()).unwrap_or(1).max(1);
        usize::try_from(request.about() % lanes).unwrap_or(0)
    }

    #[expect(clippy::indexing_slicing, reason = "the number is a remainder by the length, which is not zero")]
    fn lane(&self, request: &Request) -> &Lane {
        &self.lanes[self.lane_number(request)]
    }

    fn send(
        &self,
        request: &Request,
        by: Moment,
        take: Option<Take>,
    ) -> std::result::Result<Arc<Reply>, (Failure, Option<Take>)> {
        let mut bytes = Vec::with_capacity(256);
        request.pack_into(&mut bytes);
        self.lane(request).send(&bytes, by, take, || {
            let mut slot = self.slot(by).map_err(Failure::into_error)?;
            let link = match slot.0.take().filter(Link::is_alive) {
                Some(link) => link,
                None => self.connect_gated(by)?,
            };
            Ok((slot, link.into_stream()))
        })
    }

    /// Has `talk` use one connection alone.
    pub(super) fn dialog<T>(
        &self,
        by: Moment,
        talk: impl FnOnce(&mut Dialog<'_>) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let by = by.min(Clock::System.after(self.command_timeout));
        let mut slot = self.slot(by)?;
        self.use_link(&mut slot.0, by, |by| self.connect_gated(by), talk)
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
        // Not gated: it is one thread's, and it must not be kept out by what others ran into.
        self.use_link(&mut link, by, |by| self.connect(by), talk)
    }

    /// Sends many requests and reads their replies in order, on the connection for renewals. Stops at the first
    /// failure: what was sent by then and not answered is unknown, what was not sent is refused.
    pub(super) fn batch(&self, requests: &[Request], by: Moment) -> Vec<std::result::Result<Value, Failure>> {
        // All of them are scripts.
        let told: Option<Vec<Request>> = requests.iter().map(|request| request.told(self.tell)).collect();
        let requests = told.as_deref().unwrap_or(requests);
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
        let pool = self.pool.lock().clone();
        pool.ok_or_else(|| Failure::Refused(shut_down()))?
            .get_timeout(by.since(Clock::System.now()))
            .map_err(|_no_slot| Failure::Refused(timed_out("all connections of the pool are in use")))
    }

    fn use_link<T>(
        &self,
        place: &mut Option<Link>,
        by: Moment,
        connect: impl FnOnce(Moment) -> Result<Link>,
        talk: impl FnOnce(&mut Dialog<'_>) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Failure::Refused(shut_down()));
        }
        // Taken out while in use: whatever ends the talk early, a panic included, ends the connection with it.
        let mut link = match place.take().filter(Link::is_alive) {
            Some(link) => link,
            None => connect(by).map_err(Failure::Refused)?,
        };
        let mut dialog = Dialog { link: &mut link, by, asking: self.asking, broken: false };
        let result = talk(&mut dialog);
        if !dialog.broken && !self.closed.load(Ordering::SeqCst) {
            *place = Some(link);
        }
        result
    }

    fn connect_gated(&self, by: Moment) -> Result<Link> {
        if let Some(gate) = &*self.gate.lock()
            && Clock::System.now() < gate.until
        {
            return Err(gate.error.copy());
        }
        self.connect(by).inspect_err(|error| {
            let until = Clock::System.after(STORM_GATE);
            *self.gate.lock() = Some(Gate { until, error: error.copy() });
        })
    }

    fn connect(&self, by: Moment) -> Result<Link> {
        handshake::open(&self.address, by.min(Clock::System.after(self.address.connect_timeout)))
    }

    /// Ends the connections that nobody uses; those in use end with their request.
    ///
    /// Replies that are still to come are waited for first: a release that was sent and not awaited is to arrive.
    pub(super) fn close(&self, by: Moment) {
        self.closed.store(true, Ordering::SeqCst);
        let by = by.min(Clock::System.after(self.command_timeout));
        self.lanes.iter().for_each(|lane| lane.close(by));
        // All at once: a slot that is given back is the next to be handed out.
        let Some(pool) = self.pool.lock().take() else { return };
        let mut idle: Vec<_> = std::iter::from_fn(|| pool.try_get()).collect();
        idle.iter_mut().for_each(|slot| slot.0 = None);
        if let Some(mut link) = self.renewals.try_lock() {
            *link = None;
        }
    }
}

/// The thread that r2d2 wants for looking after its pools; one serves many.
pub(super) fn maintenance() -> Arc<ScheduledThreadPool> {
    Arc::new(ScheduledThreadPool::builder().num_threads(1).thread_name_pattern("leasehold-pool").build())
}

/// A request that was sent.
pub(super) struct Started {
    lanes: Arc<[Lane]>,
    lane: usize,
    reply: Arc<Reply>,
    known: Arc<Known>,
    request: Request,
    by: Moment,
}

impl Started {
    pub(super) fn wait(self) -> Outcome {
        let Some(lane) = self.lanes.get(self.lane) else { return Err(no_reply()) };
        let outcome = lane.wait(&self.reply);
        note_known(&self.known, self.request.script(), &outcome);
        if !outcome.as_ref().is_ok_and(is_forgotten) {
            return outcome;
        }
        // It was not run: as in `call`, but only while the connection stands.
        let Some(whole) = self.request.with_body() else { return outcome };
        let mut bytes = Vec::new();
        whole.pack_into(&mut bytes);
        let broken = || Err(Error::new(ErrorKind::Unreachable, "request", "the connection broke"));
        let sent = lane.send(&bytes, self.by, None, broken);
        lane.wait(&*sent.map_err(|(failure, _)| failure)?)
    }
}

fn is_forgotten(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if is_noscript(error))
}

fn note_known(known: &Known, script: Option<&'static Script>, outcome: &Outcome) {
    if let Ok(reply) = outcome {
        hear_of(known, script, reply);
    }
}

/// A server that refuses a command before it looks for the script (`MOVED`, `LOADING`) says nothing about it.
fn hear_of(known: &Known, script: Option<&'static Script>, reply: &Value) {
    match script {
        Some(script) if is_forgotten(reply) => known.note(script, false),
        Some(script) if !matches!(reply, Value::ServerError(_)) => known.note(script, true),
        _ => {}
    }
}

/// One thread's use of a connection.
pub(super) struct Dialog<'a> {
    link: &'a mut Link,
    by: Moment,
    asking: bool,
    broken: bool,
}

/// What was answered to some requests.
pub(super) struct Said {
    pub(super) replies: Vec<Value>,
    pub(super) sent_again: bool,
}

impl Dialog<'_> {
    /// Sends `requests` in one write and reads their replies.
    pub(super) fn say(&mut self, requests: &[Request]) -> std::result::Result<Vec<Value>, Failure> {
        Ok(self.say_and_tell(requests)?.replies)
    }

    /// The same, and tells whether one of them went out once more after the others.
    pub(super) fn say_and_tell(&mut self, requests: &[Request]) -> std::result::Result<Said, Failure> {
        let mut replies = Vec::with_capacity(requests.len());
        let sent_again = self.collect(requests, &mut replies)?;
        let replies = replies.into_iter().map(|reply| reply.ok_or_else(no_reply));
        Ok(Said { replies: replies.collect::<std::result::Result<_, _>>()?, sent_again })
    }

    /// Like [`say`](Self::say), but on a failure the replies that were read are there: one place for each request up
    /// to the last that was answered, `None` where the answer is missing. Returns whether a script was sent again.
    pub(super) fn collect(
        &mut self,
        requests: &[Request],
        replies: &mut Vec<Option<Value>>,
    ) -> std::result::Result<bool, Failure> {
        self.exchange(requests, |reply| replies.push(Some(reply)))?;
        // A script that the server did not know was not run: sent once more with its body, here and now.
        let (mut places, mut again) = (Vec::new(), Vec::new());
        for (place, request) in replies.iter_mut().zip(requests) {
            let forgotten = place.as_ref().is_some_and(is_forgotten);
            if let (true, Some(request)) = (forgotten, request.with_body()) {
                *place = None;
                places.push(place);
                again.push(request);
            }
        }
        if again.is_empty() {
            return Ok(false);
        }
        let mut places = places.into_iter();
        self.exchange(&again, |reply| {
            if let Some(place) = places.next() {
                *place = Some(reply);
            }
        })?;
        Ok(true)
    }

    fn exchange(
        &mut self,
        requests: &[Request],
        mut take: impl FnMut(Value),
    ) -> std::result::Result<(), Failure> {
        let mut bytes = Vec::with_capacity(256 * requests.len());
        for request in requests {
            if self.asking {
                Request::new("ASKING").pack_into(&mut bytes);
            }
            request.pack_into(&mut bytes);
        }
        // Broken until all replies are read: a reply that comes later would be taken for the next request's.
        let was_broken = std::mem::replace(&mut self.broken, true);
        debug_assert!(!was_broken, "a broken connection was used");
        if let Err(error) = self.link.send(&bytes, self.by) {
            // The write failed, so the last request is not whole on its way; a single one was not carried out then.
            return Err(if requests.len() == 1 && !self.asking {
                Failure::Refused(error)
            } else {
                Failure::Unknown(error)
            });
        }
        for _ in requests {
            if self.asking {
                // Whether it is refused shows in the next reply.
                self.link.receive(self.by).map_err(Failure::Unknown)?;
            }
            take(self.link.receive(self.by).map_err(Failure::Unknown)?);
        }
        self.broken = false;
        Ok(())
    }
}

fn shut_down() -> Error {
    Error::new(ErrorKind::ShutDown, "request", "the client was shut down")
}

fn timed_out(words: &str) -> Error {
    Error::new(ErrorKind::TimedOut, "request", words)
}

fn no_reply() -> Failure {
    Failure::Unknown(Error::new(ErrorKind::Protocol, "request", "no reply was read"))
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({})", self.address.target)
    }
}
