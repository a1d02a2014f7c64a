//! One connection that many threads share: each writes as it comes, and one of those who wait reads for all.
//!
//! Replies come in the order of the requests. A thread writes its request and then waits for its reply: if nobody is
//! reading, it reads, in order and for whoever each reply is, until its own has come; then it wakes one of the others to
//! read on. A lone thread so writes and reads without meeting anyone. Requests that come while another thread writes
//! leave together in the next write.
//!
//! All requests about one lock go over one lane (by the hash of its name), so what is sent about it first arrives first.
//!
//! What must stay true: whoever stops reading looks for somebody who waits, after it has let go of `reading`; whoever
//! begins to wait says so before it tries to get `reading`. Then either the one sees the other, or the other can read.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};
use r2d2::PooledConnection;
use redis::{Parser, Value};

use super::link::{Stream, TRUSTED, Timed, broken, unread};
use super::reply::Failure;
use super::wire::Slots;
use crate::error::{Error, ErrorKind, Result};
use crate::time::{Clock, Moment};

/// What a request comes to: the server's reply, which may be an error reply, or that there is none.
pub(super) type Outcome = std::result::Result<Value, Failure>;

/// Gets a reply that nobody waits for.
pub(super) type Take = Box<dyn FnOnce(Outcome) + Send>;

pub(super) struct Lane {
    out: Mutex<Out>,
    reading: Mutex<Reading>,
}

/// The writing side, and who is owed which reply.
struct Out {
    open: Option<Open>,
    /// Counts connections, so that a reader notices that it has an old one.
    epoch: u64,
    /// What is to be written, while somebody is writing.
    buffer: Vec<u8>,
    is_writing: bool,
    awaited: VecDeque<Arc<Reply>>,
    /// When something was last heard or said.
    used: Moment,
    closed: bool,
}

struct Open {
    stream: Arc<Stream>,
    /// The pool's permission to have it.
    _slot: PooledConnection<Slots>,
}

/// The reading side.
struct Reading {
    parser: Parser,
    stream: Option<Arc<Stream>>,
    epoch: u64,
}

/// One reply to come.
pub(super) struct Reply {
    state: Mutex<State>,
    changed: Condvar,
    by: Moment,
}

struct State {
    outcome: Option<Outcome>,
    /// Gets the outcome at once, instead of a waiting thread.
    take: Option<Take>,
    /// A thread is waiting, or about to.
    is_waited_for: bool,
    /// Nobody reads any more: the waiting thread should.
    may_read: bool,
}

impl Reply {
    fn new(by: Moment, take: Option<Take>) -> Arc<Reply> {
        let state = State { outcome: None, take, is_waited_for: false, may_read: false };
        Arc::new(Reply { state: Mutex::new(state), changed: Condvar::new(), by })
    }

    fn fill(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        match state.take.take() {
            Some(take) => {
                drop(state);
                take(outcome);
            }
            None => {
                state.outcome = Some(outcome);
                if state.is_waited_for {
                    self.changed.notify_one();
                }
            }
        }
    }
}

impl Lane {
    pub(super) fn new() -> Lane {
        let out = Out {
            open: None,
            epoch: 0,
            buffer: Vec::new(),
            is_writing: false,
            awaited: VecDeque::new(),
            used: Clock::System.now(),
            closed: false,
        };
        let reading = Reading { parser: Parser::new(), stream: None, epoch: 0 };
        Lane { out: Mutex::new(out), reading: Mutex::new(reading) }
    }

    /// Sends one request, over a new connection from `connect` if there is none. The reply is read by whoever waits
    /// on this lane, this request's own waiter included, until `by`.
    pub(super) fn send(
        &self,
        request: &[u8],
        by: Moment,
        take: Option<Take>,
        connect: impl FnOnce() -> Result<(PooledConnection<Slots>, Stream)>,
    ) -> std::result::Result<Arc<Reply>, (Failure, Option<Take>)> {
        let refused = |words| Failure::Refused(Error::new(ErrorKind::TimedOut, "request", words));
        let Some(mut out) = self.out.try_lock_for(by.since(Clock::System.now())) else {
            return Err((refused("the connection could not be had in time"), take));
        };
        if out.closed {
            let error = Error::new(ErrorKind::ShutDown, "request", "the client was shut down");
            return Err((Failure::Refused(error), take));
        }
        out.drop_if_dead();
        if out.open.is_none() {
            match connect() {
                Ok((slot, stream)) => {
                    out.epoch += 1;
                    out.open = Some(Open { stream: Arc::new(stream), _slot: slot });
                }
                Err(error) => return Err((Failure::Refused(error), take)),
            }
        }
        let reply = Reply::new(by, take);
        out.buffer.extend_from_slice(request);
        out.awaited.push_back(Arc::clone(&reply));
        if !out.is_writing {
            self.write(out, by);
        }
        Ok(reply)
    }

    /// Writes what there is to write, and what others add meanwhile.
    fn write(&self, mut out: MutexGuard<'_, Out>, by: Moment) {
        out.is_writing = true;
        while !out.buffer.is_empty() {
            let Some(stream) = out.open.as_ref().map(|open| Arc::clone(&open.stream)) else { break };
            let epoch = out.epoch;
            let mut bytes = std::mem::take(&mut out.buffer);
            let written = MutexGuard::unlocked(&mut out, || stream.write_all(&bytes, by));
            bytes.clear();
            if out.buffer.is_empty() {
                out.buffer = bytes; // its room is used again
            }
            if let Err(error) = written
                && out.epoch == epoch
            {
                let error = broken("send", error);
                // A single request that is not whole on its way was not carried out.
                let all = out.break_off();
                out.is_writing = false;
                drop(out);
                let alone = all.len() == 1;
                for reply in all {
                    let error = error.copy();
                    reply.fill(Err(if alone { Failure::Refused(error) } else { Failure::Unknown(error) }));
                }
                return;
            }
        }
        out.is_writing = false;
    }

    /// Waits for a reply, reading for everyone while nobody else does.
    pub(super) fn wait(&self, reply: &Reply) -> Outcome {
        loop {
            {
                let mut state = reply.state.lock();
                if let Some(outcome) = state.outcome.take() {
                    return outcome;
                }
                // Said before `reading` is tried; pairs with `pass_on`.
                state.is_waited_for = true;
                state.may_read = false;
            }
            if let Some(mut reading) = self.reading.try_lock() {
                let outcome = self.read_until(&mut reading, reply);
                drop(reading);
                self.pass_on();
                return outcome;
            }
            let mut state = reply.state.lock();
            while state.outcome.is_none() && !state.may_read {
                let left = reply.by.since(Clock::System.now());
                if left.is_zero() {
                    drop(state);
                    self.give_up(&timed_out());
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

    /// Reads replies in order until `reply` has come.
    fn read_until(&self, reading: &mut Reading, reply: &Reply) -> Outcome {
        loop {
            let outcome = reply.state.lock().outcome.take();
            if let Some(outcome) = outcome {
                return outcome;
            }
            self.read_one(reading, reply.by, false);
        }
    }

    /// Reads one reply and gives it to whom it is for; if that fails, all get the failure. With `only_ready` it does
    /// not wait for bytes. Returns whether there may be more to read.
    fn read_one(&self, reading: &mut Reading, by: Moment, only_ready: bool) -> bool {
        {
            let out = self.out.lock();
            if reading.epoch != out.epoch {
                reading.epoch = out.epoch;
                reading.parser = Parser::new();
                reading.stream = out.open.as_ref().map(|open| Arc::clone(&open.stream));
            }
            if out.awaited.is_empty() {
                return false;
            }
        }
        let Some(stream) = &reading.stream else { return false };
        let mut timed = Timed::new(stream, by);
        timed.only_ready = only_ready;
        let value = reading.parser.parse_value(&mut timed);
        let value = if timed.too_long {
            Err(Error::new(ErrorKind::Protocol, "read", "the server's reply is too long to be one of ours"))
        } else {
            value.map_err(unread)
        };
        let mut out = self.out.lock();
        if reading.epoch != out.epoch || out.open.is_none() {
            return false; // broken off meanwhile: everyone has been told
        }
        match value {
            Ok(value) => {
                out.used = Clock::System.now();
                let first = out.awaited.pop_front();
                drop(out);
                if let Some(first) = first {
                    first.fill(Ok(value));
                }
                true
            }
            // The parser keeps what it has of a reply that is not whole yet.
            Err(_) if only_ready && timed.was_not_ready => false,
            Err(error) => {
                let all = out.break_off();
                drop(out);
                tell(all, &error);
                false
            }
        }
    }

    /// Ends the connection; whoever waits for a reply is told that there will be none.
    fn give_up(&self, error: &Error) {
        let all = self.out.lock().break_off();
        tell(all, error);
    }

    /// Nobody reads now. Wakes one who waits to do so.
    fn pass_on(&self) {
        let out = self.out.lock();
        for reply in &out.awaited {
            let mut state = reply.state.lock();
            if state.is_waited_for && state.outcome.is_none() {
                state.may_read = true;
                reply.changed.notify_one();
                return;
            }
        }
    }

    /// Reads what has come that nobody waits for; returns whether more is to come.
    pub(super) fn tend(&self) -> bool {
        let first_by = || self.out.lock().awaited.front().map(|first| first.by);
        let Some(by) = first_by() else { return false };
        if Clock::System.now() >= by {
            self.give_up(&timed_out());
            return false;
        }
        let Some(mut reading) = self.reading.try_lock() else { return true };
        while self.read_one(&mut reading, by, true) {}
        drop(reading);
        self.pass_on();
        first_by().is_some()
    }

    /// Waits until all replies have come, until `by` at most, and ends the connection.
    pub(super) fn close(&self, by: Moment) {
        self.out.lock().closed = true;
        if let Some(mut reading) = self.reading.try_lock_for(by.since(Clock::System.now())) {
            while Clock::System.now() < by && !self.out.lock().awaited.is_empty() {
                self.read_one(&mut reading, by, false);
            }
        }
        self.give_up(&Error::new(ErrorKind::ShutDown, "request", "the client was shut down"));
    }
}

impl Out {
    /// Ends the connection and returns who is owed a reply.
    fn break_off(&mut self) -> VecDeque<Arc<Reply>> {
        if let Some(open) = self.open.take() {
            open.stream.shutdown();
        }
        self.buffer.clear();
        std::mem::take(&mut self.awaited)
    }

    /// Lets go of a connection that the server has closed while nobody used it; nothing is lost by that.
    fn drop_if_dead(&mut self) {
        let now = Clock::System.now();
        let is_idle = self.awaited.is_empty() && !self.is_writing && now.since(self.used) >= TRUSTED;
        if is_idle && self.open.as_ref().is_some_and(|open| open.stream.has_bytes()) {
            // Nothing was asked, so it is the end, or something that nobody should read.
            self.break_off();
        }
        self.used = now;
    }
}

fn tell(all: VecDeque<Arc<Reply>>, error: &Error) {
    for reply in all {
        reply.fill(Err(Failure::Unknown(error.copy())));
    }
}

fn timed_out() -> Error {
    broken("read", io::ErrorKind::TimedOut.into())
}
