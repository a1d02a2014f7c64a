//! A connection that many threads share. Each writes its own requests, and one thread reads for all.
//!
//! Replies come in the order of the requests. A thread writes its request and waits. If no thread is reading,
//! this thread reads replies, and passes each to its *waiter*, until its own reply has come; then another
//! waiting thread reads on. A lone thread thus writes and reads without waking any other. Requests that
//! arrive during a write are sent together in the next write. After each read, unsent requests are written
//! before threads are woken, so that the server works while they wake.
//!
//! A client has one shared connection to a server, so requests about a lock arrive in order.
//!
//! Invariant: a thread that stops reading first unlocks `reading`, then looks for a waiting thread. A thread
//! that begins to wait first sets `is_waited_for`, then tries to lock `reading`. So either the first thread
//! finds the second one, or the second one gets `reading`.
//!
//! When a connection ends, every thread without its reply is notified before a new connection opens (`end`,
//! `open`). A request without a reply may still be carried out, so its thread must not use the same owner
//! number (the number in `client:number`) over a new connection. A connection is replaced only after its last
//! reply (`drain`), so requests about a lock keep their order. No thread waits while it has `out` locked.
//!
//! This file is long because writing, reading and the end of a connection are one protocol.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use r2d2::PooledConnection;
use redis::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::seam::{Answer, Failure};
use crate::stores::redis::conn::connection::{Connection, ConnectionSlots, TRUSTED, unread};
use crate::stores::redis::conn::ledger::{Ledger, Origin, SentScript};
use crate::stores::redis::conn::replies::Replies;
use crate::stores::redis::reply::fitness;
use crate::stores::redis::script::Script;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::time::{Clock, Moment};
use crate::wire::{Timed, Wire, await_any, broken};

/// Receives a reply, possibly an error reply, for which no thread waits.
pub(crate) type ReplySink = Box<dyn FnOnce(Answer<Value>) + Send>;

pub(crate) struct SharedConnection {
    out: Mutex<Out>,
    /// Locked by the thread that opens a connection, so that `out` is unlocked meanwhile.
    connecting: Mutex<()>,
    told: Condvar,
    reading: Mutex<Reading>,
    ledger: Arc<Ledger>,
}

#[derive(Default)]
struct Out {
    open: Option<Open>,
    /// The number of connections so far, by which a reader notices that its connection was replaced.
    epoch: u64,
    buffer: Vec<u8>,
    is_writing: bool,
    awaited: VecDeque<Arc<Reply>>,
    /// The number of replies at the end of `awaited` whose requests are still in `buffer`.
    unsent: usize,
    /// Whether a thread is reading. The reading thread also writes unsent requests between its reads.
    has_reader: bool,
    /// The number of threads that are notifying the waiters of replies lost with a connection.
    notifying: usize,
    used: Moment,
    used_before: Moment,
    /// Whether the server closed the connection, and [`SharedConnection::hung_up`] has not reported it yet.
    hung_up: bool,
    /// Whether a thread has a new connection, and waits for the last replies of this one.
    is_replaced: bool,
    closed: bool,
}

struct Open {
    stream: Arc<Wire>,
    origin: Origin,
    _slot: PooledConnection<ConnectionSlots>,
}

#[derive(Default)]
struct Reading {
    replies: Replies,
    stream: Option<Arc<Wire>>,
    armed: Cell<Duration>,
    epoch: u64,
    /// The replies that are being passed on. A field, so that its memory is reused.
    giving: Vec<(Arc<Reply>, Value)>,
}

/// If this many sent requests have no reply, the server is busy. A sender then leaves its request to the
/// thread that is reading, if there is one, which writes several at once.
const ENOUGH_SENT: usize = 2;

/// With this many unsent requests, a sender writes them itself, as the reader may be waking threads.
const LEFT_TO_READER: usize = 8;

/// Maximum number of replies passed on at a time. Each time, the reader first writes unsent requests.
const MOST_GIVEN: usize = 64;

/// How often at most a reader looks for other threads' replies after its own reply has come.
const MAX_CHECKS: u32 = 4;

pub(crate) struct Reply {
    state: Mutex<SharedState>,
    changed: Condvar,
    deadline: Moment,
    script: Option<SentScript>,
}

#[derive(Default)]
struct SharedState {
    outcome: Option<Answer<Value>>,
    /// If no thread waits: the reading thread calls this with the outcome.
    take: Option<ReplySink>,
    /// Whether a thread waits for the outcome, or is about to.
    is_waited_for: bool,
    /// Whether the waiting thread should read, because no other thread does.
    may_read: bool,
}

impl Reply {
    fn new(deadline: Moment, take: Option<ReplySink>, script: Option<SentScript>) -> Arc<Reply> {
        let state = SharedState { take, ..SharedState::default() };
        Arc::new(Reply { state: Mutex::new(state), changed: Condvar::new(), deadline, script })
    }

    fn fill(&self, outcome: Answer<Value>) {
        let mut state = self.state.lock();
        match state.take.take() {
            Some(take) => {
                drop(state);
                take(outcome);
            }
            None => {
                state.outcome = Some(outcome);
                let is_waited_for = state.is_waited_for;
                drop(state); // unlocked first, because the woken thread needs the mutex
                if is_waited_for {
                    self.changed.notify_one();
                }
            }
        }
    }
}

impl SharedConnection {
    #[cfg(test)]
    pub(crate) fn new() -> SharedConnection {
        SharedConnection::noted_in(Arc::default())
    }

    pub(crate) fn noted_in(ledger: Arc<Ledger>) -> SharedConnection {
        let now = Clock::System.now();
        let out = Mutex::new(Out { used: now, used_before: now, ..Out::default() });
        SharedConnection {
            out,
            connecting: Mutex::new(()),
            told: Condvar::new(),
            reading: Mutex::default(),
            ledger,
        }
    }

    /// Sends a request, which `pack` appends to the buffer. If no connection is open, `connect` opens one.
    /// The reply must come by `deadline`. `pack` learns whether the server surely knows `script`.
    pub(crate) fn send(
        &self,
        script: Option<&'static Script>,
        pack: impl FnOnce(&mut Vec<u8>, bool),
        deadline: Moment,
        take: Option<ReplySink>,
        connect: impl FnOnce(Moment) -> Result<(PooledConnection<ConnectionSlots>, Connection)>,
    ) -> std::result::Result<Arc<Reply>, (Failure, Option<ReplySink>)> {
        match self.open(deadline, connect) {
            Ok(out) => Ok(self.queue(out, script, pack, deadline, take)),
            Err(error) => Err((Failure::Refused(error), take)),
        }
    }

    /// As [`send`](Self::send), but for the reading thread, which must not wait for a connection.
    pub(crate) fn send_if_open(
        &self,
        script: Option<&'static Script>,
        pack: impl FnOnce(&mut Vec<u8>),
        deadline: Moment,
        take: Option<ReplySink>,
    ) -> std::result::Result<Arc<Reply>, (Failure, Option<ReplySink>)> {
        let mut out = self.out.lock();
        match out.is_ready(Clock::System.now(), &self.ledger) {
            Ok(true) => Ok(self.queue(out, script, |to, _| pack(to), deadline, take)),
            Ok(false) => {
                let words = "the connection broke";
                Err((Failure::Refused(Error::new(ErrorKind::Unreachable, "request", words)), take))
            }
            Err(error) => Err((Failure::Refused(error), take)),
        }
    }

    fn queue(
        &self,
        mut out: MutexGuard<'_, Out>,
        script: Option<&'static Script>,
        pack: impl FnOnce(&mut Vec<u8>, bool),
        deadline: Moment,
        take: Option<ReplySink>,
    ) -> Arc<Reply> {
        let script = script.map(|script| SentScript { script, forgotten: self.ledger.forgotten() });
        let is_known = match (&out.open, script) {
            (Some(open), Some(sent)) => self.ledger.knows(&open.origin, sent),
            _ => false,
        };
        let reply = Reply::new(deadline, take, script);
        let is_left =
            out.has_reader && out.unsent < LEFT_TO_READER && out.awaited.len() - out.unsent >= ENOUGH_SENT;
        pack(&mut out.buffer, is_known);
        out.awaited.push_back(Arc::clone(&reply));
        out.unsent += 1;
        if !out.is_writing && !is_left {
            self.write(out, deadline);
        }
        reply
    }

    /// Locks `out`, with an open connection, or with a new one from `connect`.
    fn open(
        &self,
        deadline: Moment,
        connect: impl FnOnce(Moment) -> Result<(PooledConnection<ConnectionSlots>, Connection)>,
    ) -> Result<MutexGuard<'_, Out>> {
        let too_late = || Error::new(ErrorKind::TimedOut, "request", "no connection became free in time");
        let now = Clock::System.now();
        if deadline <= now {
            return Err(too_late());
        }
        let mut out = self.out.lock();
        if out.is_ready(now, &self.ledger)? {
            if !out.is_stale(now, &self.ledger) {
                return Ok(out);
            }
            let Some(_alone) = self.connecting.try_lock() else { return Ok(out) };
            drop(out);
            return self.replace(deadline, connect);
        }
        drop(out);
        let left = deadline.since(Clock::System.now());
        let _alone = self.connecting.try_lock_for(left).ok_or_else(too_late)?;
        self.drain(deadline).ok_or_else(too_late)?;
        let mut out = self.out.lock();
        // Waits until `end` has notified the waiters of lost replies, so that none of them uses the owner
        // number of a lost request over the new connection.
        while out.notifying > 0 {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                return Err(too_late());
            }
            self.told.wait_for(&mut out, left);
        }
        if out.is_ready(Clock::System.now(), &self.ledger)? {
            return Ok(out);
        }
        let (slot, connection) = MutexGuard::unlocked(&mut out, || connect(deadline))?;
        out.install(slot, connection)?;
        Ok(out)
    }

    /// Puts a new connection in place of an old one, and returns `out`, locked. If none opens in half of the
    /// time, the old one stays, because a server that refuses new connections may still serve open ones. The
    /// caller has locked `connecting`.
    fn replace(
        &self,
        deadline: Moment,
        connect: impl FnOnce(Moment) -> Result<(PooledConnection<ConnectionSlots>, Connection)>,
    ) -> Result<MutexGuard<'_, Out>> {
        let connected = connect(Clock::System.halfway(deadline));
        let mut out = self.out.lock();
        let now = Clock::System.now();
        let (slot, connection) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                if let Some(open) = &mut out.open {
                    self.ledger.keep(&mut open.origin, now);
                }
                return if out.is_ready(now, &self.ledger)? { Ok(out) } else { Err(error) };
            }
        };
        out.is_replaced = true;
        drop(out);
        let drained = self.drain(deadline);
        let mut out = self.out.lock();
        out.is_replaced = false;
        if drained.is_none() || out.notifying > 0 {
            let words = "the old connection still has unanswered requests";
            return Err(Error::new(ErrorKind::TimedOut, "request", words));
        }
        out.install(slot, connection)?;
        Ok(out)
    }

    /// Reads the last replies of an old connection, and ends it. `None` if replies are missing at `deadline`.
    /// The connection takes no new request meanwhile. The caller has locked `connecting`.
    fn drain(&self, deadline: Moment) -> Option<()> {
        const LOOK_AGAIN: Duration = Duration::from_millis(5);
        loop {
            let mut out = self.out.lock();
            let stream = match &out.open {
                Some(open) if out.is_replaced || !self.ledger.is_fit(&open.origin) => {
                    Arc::clone(&open.stream)
                }
                Some(_) | None => return Some(()),
            };
            if out.awaited.is_empty() && !out.is_writing {
                out.break_off();
                return Some(());
            }
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                return None;
            }
            match self.reading.try_lock() {
                // Reads only what has arrived: a read that timed out at this deadline would end the
                // connection, also for waiters whose deadlines are later.
                Some(mut reading) => {
                    out.has_reader = true;
                    self.write_left(out, deadline);
                    await_any(std::iter::once(&*stream), left.min(LOOK_AGAIN));
                    while self.read_some(&mut reading, deadline, true) {}
                    drop(reading);
                    self.pass_on(deadline);
                }
                None => {
                    self.told.wait_for(&mut out, left.min(LOOK_AGAIN));
                }
            }
        }
    }

    fn write(&self, mut out: MutexGuard<'_, Out>, deadline: Moment) {
        out.is_writing = true;
        let epoch = out.epoch;
        while !out.buffer.is_empty() {
            let Some(stream) = out.open.as_ref().map(|open| Arc::clone(&open.stream)) else { break };
            let mut bytes = std::mem::take(&mut out.buffer);
            out.unsent = 0;
            let written = MutexGuard::unlocked(&mut out, || stream.write_all(&bytes, deadline));
            if out.epoch != epoch || out.open.is_none() {
                // The connection ended meanwhile, and its waiters were notified. `out` may belong to a new
                // connection, so this thread changes nothing. Pairs with `break_off`.
                return;
            }
            if let Err(error) = written {
                let error = broken("send", error);
                // The last request was not sent completely. If it is the only one, none was carried out.
                let alone = out.awaited.len() == 1;
                let failure = if alone { Failure::Refused } else { Failure::Unknown };
                out.hung_up |= error.kind() != ErrorKind::TimedOut;
                self.end(out, || failure(error.copy()));
                return;
            }
            bytes.clear();
            if out.buffer.is_empty() {
                out.buffer = bytes; // reuses the memory
            }
        }
        out.is_writing = false;
    }

    /// Waits for a reply. If no thread is reading, this thread reads for all.
    pub(crate) fn wait(&self, reply: &Reply) -> Answer<Value> {
        loop {
            {
                let mut state = reply.state.lock();
                if let Some(outcome) = state.outcome.take() {
                    return outcome;
                }
                // The flag is set before this thread tries to lock `reading`, so a thread that stops reading
                // meanwhile finds and wakes this one. Pairs with `pass_on`.
                state.is_waited_for = true;
                state.may_read = false;
            }
            if let Some(mut reading) = self.reading.try_lock() {
                self.out.lock().has_reader = true;
                let outcome = self.read_until(&mut reading, reply);
                let mut checks = 0;
                while checks < MAX_CHECKS && self.read_some(&mut reading, reply.deadline, true) {
                    checks += 1;
                }
                drop(reading);
                self.pass_on(reply.deadline);
                if let Some(outcome) = outcome {
                    return outcome;
                }
                // Another thread has ended the connection, and is about to notify this thread.
            }
            let mut state = reply.state.lock();
            while state.outcome.is_none() && !state.may_read {
                let left = reply.deadline.since(Clock::System.now());
                if left.is_zero() {
                    drop(state);
                    self.give_up(reply);
                    state = reply.state.lock();
                    if state.outcome.is_none() {
                        return Err(Failure::Unknown(timed_out()));
                    }
                    break;
                }
                reply.changed.wait_for(&mut state, left);
            }
        }
    }

    /// Reads until `reply` has come. `None`: another thread ended the connection, and fills in the outcome.
    fn read_until(&self, reading: &mut Reading, reply: &Reply) -> Option<Answer<Value>> {
        loop {
            let outcome = reply.state.lock().outcome.take();
            if outcome.is_some() {
                return outcome;
            }
            // A thread that waits for several servers in turn may be late, so it first reads what has come.
            let is_late = Clock::System.now() >= reply.deadline;
            if is_late && self.read_some(reading, reply.deadline, true) {
                continue;
            }
            // Requests that senders left to this reader are written before it blocks.
            self.write_left(self.out.lock(), reply.deadline);
            if !self.read_some(reading, reply.deadline, false) {
                return reply.state.lock().outcome.take();
            }
        }
    }

    /// Reads replies and passes them to their waiters; a failure goes to all waiters. With `only_ready`, does
    /// not wait for bytes. Returns whether there may be more to read.
    fn read_some(&self, reading: &mut Reading, deadline: Moment, only_ready: bool) -> bool {
        let sent = {
            let out = self.out.lock();
            if reading.epoch != out.epoch {
                reading.epoch = out.epoch;
                reading.replies = Replies::default();
                reading.armed.set(Duration::ZERO);
                reading.stream = out.open.as_ref().map(|open| Arc::clone(&open.stream));
            }
            if out.awaited.is_empty() {
                return false;
            }
            out.awaited.len() - out.unsent
        };
        let Some(stream) = &reading.stream else { return false };
        let mut timed = Timed::new(stream, deadline, &reading.armed);
        timed.only_ready = only_ready;
        let value = reading.replies.next(&mut timed).map_err(unread);
        let mut out = self.out.lock();
        if reading.epoch != out.epoch || out.open.is_none() {
            return false; // the connection ended meanwhile, and its waiters were notified
        }
        match value {
            Ok(_) if out.awaited.len() <= out.unsent => {
                self.end(out, || Failure::Unknown(unasked()));
                false
            }
            Ok(value) => {
                // Takes arrived replies, `MOST_GIVEN` at most. If answered requests stayed in `awaited`,
                // `queue` would take the server for busy, and leave writing to the reader.
                let mut next = Some(value);
                while let Some(value) = next.take()
                    && let Some(first) = out.awaited.pop_front()
                {
                    reading.giving.push((first, value));
                    if reading.giving.len() < sent.min(MOST_GIVEN) {
                        // An error is ignored here: the next read meets the same bytes, and reports it.
                        next = reading.replies.ready().unwrap_or(None);
                    }
                }
                let has_more = out.awaited.len() <= out.unsent && !reading.replies.is_empty();
                let is_demoted = self.note(&mut out, &reading.giving);
                if has_more {
                    drop(out);
                } else {
                    self.write_left(out, deadline);
                }
                for (reply, value) in reading.giving.drain(..) {
                    reply.fill(Ok(value));
                }
                if is_demoted {
                    self.ledger.tell_demoted();
                }
                if has_more {
                    // The server sent a reply too many, which the next request would take for its own.
                    let out = self.out.lock();
                    if reading.epoch == out.epoch {
                        self.end(out, || Failure::Unknown(unasked()));
                    }
                }
                !has_more
            }
            Err(_) if only_ready && timed.was_not_ready => false,
            Err(error) => {
                out.hung_up |= error.kind() != ErrorKind::TimedOut;
                self.end(out, || Failure::Unknown(error.copy()));
                false
            }
        }
    }

    /// Ends the connection and notifies the waiters of missing replies. Until then, `open` opens no new one.
    fn end(&self, mut out: MutexGuard<'_, Out>, failure: impl Fn() -> Failure) {
        let unsent = out.unsent;
        let all = out.break_off();
        out.notifying += 1;
        drop(out);
        // The requests of the last `unsent` replies were never written, so they are refused.
        let sent = all.len().saturating_sub(unsent);
        for (at, reply) in all.into_iter().enumerate() {
            let failure = failure();
            reply.fill(Err(if at < sent { failure } else { failure.of_reading() }));
        }
        self.out.lock().notifying -= 1;
        self.told.notify_all();
    }

    /// Notes what replies say about the server. Returns whether they are the first ones to show a demotion.
    fn note(&self, out: &mut Out, replies: &[(Arc<Reply>, Value)]) -> bool {
        let Some(open) = &mut out.open else { return false };
        let mut is_news = false;
        for (reply, value) in replies {
            is_news |= self.ledger.note(&mut open.origin, fitness(value));
            if let Some(sent) = reply.script {
                self.ledger.note_script(&mut open.origin, sent, value);
            }
        }
        is_news
    }

    /// Ends the connection if it still owes this overdue reply.
    fn give_up(&self, reply: &Reply) {
        let out = self.out.lock();
        if out.awaited.iter().any(|other| std::ptr::eq(&raw const **other, reply)) {
            self.end(out, || Failure::Unknown(timed_out()));
        }
    }

    /// Writes the requests left to the reader, until the latest of their deadlines.
    fn write_left(&self, out: MutexGuard<'_, Out>, deadline: Moment) {
        let deadline = out.awaited.back().map_or(deadline, |last| deadline.max(last.deadline));
        if !out.is_writing && !out.buffer.is_empty() {
            self.write(out, deadline);
        }
    }

    /// Ends this thread's reading: wakes a waiting thread to read on, and writes unsent requests.
    fn pass_on(&self, deadline: Moment) {
        let mut out = self.out.lock();
        // While nobody reads, senders write their requests themselves. `write_left` below writes those that
        // were left to this reader. Pairs with `queue`.
        out.has_reader = false;
        let first = out.awaited.iter().find(|reply| {
            let mut state = reply.state.lock();
            let waits = state.is_waited_for && state.outcome.is_none();
            state.may_read |= waits;
            waits
        });
        if let Some(reply) = first {
            reply.changed.notify_one();
        }
        self.write_left(out, deadline);
    }

    /// Reads replies for which no thread waits. Returns whether more are missing.
    pub(crate) fn poll_completions(&self) -> bool {
        let (deadline, most) = {
            let out = self.out.lock();
            let Some(deadline) = out.awaited.front().map(|first| first.deadline) else { return false };
            (deadline, out.awaited.len())
        };
        let Some(mut reading) = self.reading.try_lock() else { return true };
        // The number of reads is limited, because the calling thread must also renew holds.
        for _ in 0..most {
            if !self.read_some(&mut reading, deadline.max(Clock::System.now()), true) {
                break;
            }
        }
        drop(reading);
        self.pass_on(deadline);
        let out = self.out.lock();
        let Some(deadline) = out.awaited.front().map(|first| first.deadline) else { return false };
        if Clock::System.now() < deadline {
            return true;
        }
        self.end(out, || Failure::Unknown(timed_out()));
        false
    }

    pub(crate) fn is_open(&self) -> bool {
        self.out.lock().open.is_some()
    }

    /// Whether the server has closed the connection since the last call. Does not wait for a thread that is
    /// using the connection: that thread notices the end, and the next call reports it.
    pub(crate) fn hung_up(&self) -> bool {
        let Some(mut out) = self.out.try_lock() else { return false };
        out.drop_if_hung_up();
        std::mem::take(&mut out.hung_up)
    }

    pub(crate) fn close(&self, deadline: Moment) {
        let mut reading = self.reading.try_lock_for(deadline.since(Clock::System.now()));
        // In the first round replies may still cause further requests. The second round refuses new ones.
        for closed in [false, true] {
            self.out.lock().closed |= closed;
            let Some(reading) = &mut reading else { continue };
            while Clock::System.now() < deadline && !self.out.lock().awaited.is_empty() {
                self.read_some(reading, deadline, false);
            }
        }
        reading.iter_mut().for_each(|reading| reading.stream = None);
        self.end(self.out.lock(), || Failure::Unknown(shut_down()));
    }
}

impl Out {
    fn break_off(&mut self) -> VecDeque<Arc<Reply>> {
        if let Some(open) = self.open.take() {
            open.stream.shutdown();
        }
        self.buffer.clear();
        self.unsent = 0;
        // A thread that is still writing sees that `open` was taken, and changes nothing. Pairs with `write`.
        self.is_writing = false;
        std::mem::take(&mut self.awaited)
    }

    fn is_ready(&mut self, now: Moment, ledger: &Ledger) -> Result<bool> {
        if self.closed {
            return Err(shut_down());
        }
        self.drop_if_dead(now);
        Ok(!self.is_replaced && self.open.as_ref().is_some_and(|open| ledger.is_fit(&open.origin)))
    }

    fn is_stale(&self, now: Moment, ledger: &Ledger) -> bool {
        self.open.as_ref().is_some_and(|open| ledger.is_stale(&open.origin, self.used_before, now))
    }

    fn install(&mut self, slot: PooledConnection<ConnectionSlots>, connection: Connection) -> Result<()> {
        if self.closed {
            return Err(shut_down());
        }
        self.epoch += 1;
        let origin = connection.origin.clone();
        self.open = Some(Open { stream: connection.into_stream(), origin, _slot: slot });
        Ok(())
    }

    /// Drops an idle connection that the server has closed, before a request is sent over it.
    fn drop_if_dead(&mut self, now: Moment) {
        if now.since(self.used) >= TRUSTED {
            self.drop_if_hung_up();
        }
        self.used_before = std::mem::replace(&mut self.used, now);
    }

    fn drop_if_hung_up(&mut self) {
        let is_idle = self.awaited.is_empty() && !self.is_writing;
        if is_idle && self.open.as_ref().is_some_and(|open| open.stream.has_bytes()) {
            // No reply is missing, so the bytes are the end of the stream, or belong to no request.
            self.break_off();
            self.hung_up = true;
        }
    }
}

fn timed_out() -> Error {
    broken("read", io::ErrorKind::TimedOut.into())
}

fn unasked() -> Error {
    Error::new(ErrorKind::Protocol, "read", "the server sent a reply to no request")
}

pub(super) fn shut_down() -> Error {
    Error::new(ErrorKind::ShutDown, "request", "the client was shut down")
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;
