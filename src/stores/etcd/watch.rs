//! The watch of a client, and the thread that reads its events.
//!
//! The client watches deleted keys in front of waiters, new keys in the queues of cached locks, and, if
//! leases may end early, deleted keys of holds. A watch for one waiter covers one key, so that a release
//! wakes one waiter only. For several keys the watch covers the whole prefix, or one cached lock's queue,
//! because the gateway cannot add keys to an open watch, and can lose some of several watches. Once the watch
//! is open, the thread reads whether the keys in front still exist. (etcd can also report past events, but up
//! to 100 ms late.)

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result};
use crate::observe::reporter::Reporter;
use crate::seam::Failure;
use crate::seam::hub::{Hub, WakeupProtocol};
use crate::seam::pool::Connector;
use crate::stores::etcd::http::Connection;
use crate::stores::etcd::members::{Members, Transport, refusal, refusal_in, unreadable};
use crate::stores::etcd::message::{self, Done, Front, number, txn};
use crate::stores::etcd::watched::{EtcdNote, EtcdWatch, Scope, Watch, WatchHub, WatchState};
use crate::time::{Clock, Moment};

/// After this silence the watch is opened again, because a member that is cut off sends nothing either.
const SILENCE: Duration = Duration::from_secs(10);
const LONGEST_LINE: usize = 16 * 1024 * 1024;

/// Makes a client's watch. A waiter's channel ends when the waiter leaves, never by time (`Duration::MAX`).
/// Channels of cached locks end with their last listener.
pub(super) fn watch(members: Arc<Members>, reporter: Arc<Reporter>) -> Arc<Watch> {
    let wire = Transport::new(Arc::clone(&members), 1);
    Hub::new(EtcdWatch { members, wire }, Some(reporter), Duration::MAX)
}

impl Watch {
    pub(super) fn begin_anew(self: &Arc<Self>, state: &mut WatchHub) {
        state.own.reopened += 1;
        if let Some(connection) = state.own.connection.take() {
            connection.shutdown();
        }
        self.changed.notify_all();
        self.run_thread(state);
    }

    pub(super) fn look_at<T>(
        &self,
        all: &[T],
        question: impl Fn(&T) -> Value,
        act: impl Fn(&T, Option<Front>),
    ) -> Result<()> {
        for batch in all.chunks(message::BATCH) {
            let deadline = Clock::System.after(self.protocol.members.address.connect_timeout);
            let looks: Vec<Value> = batch.iter().map(&question).collect();
            let answer = self.protocol.wire.call("/v3/kv/txn", &txn(&[], &looks, &[]), deadline);
            let done = Done::read(&answer.map_err(Failure::into_error)?);
            for (at, one) in batch.iter().enumerate() {
                act(one, done.found_front(at)?);
            }
        }
        Ok(())
    }

    /// Waits until there is something to watch. Returns `false` after shutdown.
    fn is_needed(&self) -> bool {
        let mut state = self.state.lock();
        while !state.closed {
            let now = Clock::System.now();
            if state.wanted(now).is_some() {
                return true;
            }
            match state.next_settles(now) {
                Some(next) => drop(self.changed.wait_for(&mut state, next.since(now))),
                None => {
                    state.own.is_idle = true;
                    self.changed.wait(&mut state);
                    state.own.is_idle = false;
                }
            }
        }
        false
    }

    fn open(&self) -> Result<Option<Connection>> {
        let deadline = Clock::System.after(self.protocol.members.address.connect_timeout);
        let mut connection = self.protocol.members.connect(deadline)?;
        let ask = {
            let mut state = self.state.lock();
            Error::when(state.closed, ErrorKind::ShutDown, "watch", || "the client was shut down")?;
            let Some(scope) = state.wanted(Clock::System.now()) else { return Ok(None) };
            state.own.connection = Some(Arc::clone(&connection.wire));
            let all = || message::all(&self.protocol.members.address.prefix);
            let (ask, with_puts) = match &scope {
                Scope::Key(key) => (json!({ "key": key }), false),
                Scope::Line(line) => (line.range(), true),
                Scope::All { with_puts } => (all(), *with_puts),
            };
            state.own.scope = Some(scope);
            (ask, if with_puts { json!([]) } else { json!(["NOPUT"]) })
        };
        let (ask, filters) = ask;
        let (key, end) = (ask.get("key"), ask.get("range_end"));
        let asked = json!({ "create_request": { "key": key, "range_end": end, "filters": filters } });
        // With this header, a member that loses its leader ends the watch instead of falling silent.
        let extra = "Grpc-Metadata-hasleader: true\r\n";
        let request =
            self.protocol.members.request(&connection.member, "/v3/watch", &asked.to_string(), extra);
        let broken = |error: io::Error| {
            let words = "the watch could not be opened";
            Error::new(ErrorKind::Unreachable, "watch", words).with_source(error)
        };
        connection.send(&request, deadline).map_err(broken)?;
        match connection.receive_begun(deadline).map_err(broken)? {
            None => Ok(Some(connection)),
            Some(response) => Err(refusal(&response).into_error()),
        }
    }

    fn read(&self, mut connection: Connection) -> Result<()> {
        let mut rest = Vec::new();
        let mut silent_at = Clock::System.after(SILENCE);
        loop {
            let now = Clock::System.now();
            // At `next` a young hold is old enough to be watched, perhaps beyond the scope of this watch.
            let next = self.state.lock().next_settles(now).unwrap_or(Moment::NEVER);
            match connection.chunk(silent_at.min(next)) {
                Ok(Some(chunk)) => {
                    // Only a complete line is a sign of life: single bytes must not keep the watch open.
                    if self.take(&mut rest, &chunk)? {
                        silent_at = Clock::System.after(SILENCE);
                    }
                }
                Ok(None) => {
                    let words = "the server ended the watch";
                    return Err(Error::new(ErrorKind::Unreachable, "watch", words));
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    if Clock::System.now() >= silent_at {
                        return Ok(());
                    }
                }
                Err(error) => {
                    let words = "the connection broke";
                    return Err(Error::new(ErrorKind::Unreachable, "watch", words).with_source(error));
                }
            }
            let (state, now) = (self.state.lock(), Clock::System.now());
            if state.closed || state.wanted(now).is_none() || !state.is_covered(now) {
                return Ok(());
            }
        }
    }

    /// Called once the watch is open. Reads the watched keys, because the watch reports no earlier changes.
    fn opened(&self) -> Result<()> {
        let (fronts, lines) = {
            let mut state = self.state.lock();
            state.own.is_up = true;
            state.stands();
            self.report_up(&mut state);
            let down = state.channels.values().filter(|entry| !entry.channel.is_up());
            down.for_each(|entry| entry.channel.set_up(true));
            let held = state.own.holds.fronts(Clock::System.now());
            let fronts: Vec<Front> = state.fronts().cloned().chain(held).collect();
            (fronts, state.lines().map(|kept| kept.line.clone()).collect::<Vec<_>>())
        };
        // `lines` are the wait queues of this client's cached locks. A waiter may have joined a queue before
        // the watch was open. Any waiter recalls the lock, so the newest key of each queue is enough.
        self.look_at(
            &lines,
            |line| line.last(None),
            |_, last| last.iter().for_each(|last| self.put(&last.key)),
        )?;
        self.look_at(
            &fronts,
            |front| message::get(&front.key),
            |front, found| {
                if found.as_ref() != Some(front) {
                    self.lost(&front.key, |created| created == front.created);
                    self.gone(&front.key);
                }
            },
        )
    }

    fn take(&self, rest: &mut Vec<u8>, chunk: &[u8]) -> Result<bool> {
        // Bytes of earlier chunks contain no line end, so only the new chunk is searched.
        let whole = chunk.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| rest.len() + end + 1);
        rest.extend_from_slice(chunk);
        let lines: Vec<u8> = rest.drain(..whole).collect();
        if rest.len() > LONGEST_LINE {
            return Err(unreadable().during("watch"));
        }
        for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let line: Value = serde_json::from_slice(line)
                .map_err(|error| unreadable().during("watch").with_source(error))?;
            if let Some(refusal) = refusal_in(&line) {
                return Err(refusal.into_error().during("watch"));
            }
            let is = |field: &str| line.pointer(&format!("/result/{field}")).and_then(Value::as_bool);
            if is("canceled") == Some(true) {
                let reason =
                    line.pointer("/result/cancel_reason").and_then(Value::as_str).unwrap_or("no reason");
                // "permission denied" can also mean an expired login token; the next requests log in again.
                let is_right = reason.contains("permission denied");
                let kind = if is_right { ErrorKind::NoPermission } else { ErrorKind::Unreachable };
                return Err(Error::new(kind, "watch", format!("the server ended the watch: {reason}")));
            }
            if is("created") == Some(true) {
                self.opened()?;
            }
            let events = line.pointer("/result/events").and_then(Value::as_array);
            for event in events.into_iter().flatten() {
                let Some(pair) = event.get("kv") else { continue };
                let Some(key) = pair.get("key").and_then(Value::as_str) else { continue };
                // etcd omits the type of a put.
                if event.get("type").and_then(Value::as_str) != Some("DELETE") {
                    self.put(key);
                    continue;
                }
                // The key may have been created again since, so only holds older than this event are lost.
                let revision = number(pair, "mod_revision").unwrap_or(0);
                self.lost(key, |created| created < revision);
                self.gone(key);
            }
        }
        Ok(whole > 0)
    }
}

impl Watch {
    /// Notes a granted lock's key, if leases may end early. No I/O: the key is watched after `SETTLED`.
    pub(super) fn add_hold(self: &Arc<Self>, key: String, created: i64) {
        let mut state = self.state.lock();
        if !state.own.holds.are_watched {
            return;
        }
        state.own.holds.add(key, created, Clock::System.now());
        if std::mem::take(&mut state.own.is_idle) {
            self.changed.notify_all();
        }
        if !state.closed {
            self.run_thread(&mut state);
        }
    }

    /// Forgets the hold with this key before its release is sent, so that the deletion counts as no loss.
    pub(super) fn gives_up(&self, key: &str) {
        self.state.lock().own.holds.remove(key);
    }

    /// Reports the loss of the hold with this key, if `is_it` accepts the revision of the key's creation.
    pub(super) fn lost(&self, key: &str, is_it: impl FnOnce(i64) -> bool) {
        let own = &mut self.state.lock().own;
        if own.holds.lose(key, is_it)
            && let Some(watchdog) = &own.watchdog
        {
            watchdog.bounds_ended();
        }
    }
}

impl WakeupProtocol for EtcdWatch {
    type Note = EtcdNote;
    type State = WatchState;

    /// Opens one watch after the other. Waiters do not notice, unless a watch failed.
    fn serve(&self, hub: &Arc<Watch>) -> Result<()> {
        while hub.is_needed() {
            let before = hub.state.lock().own.reopened;
            let read = hub.open().and_then(|opened| opened.map_or(Ok(()), |opened| hub.read(opened)));
            let mut state = hub.state.lock();
            (state.own.connection, state.own.scope, state.own.is_up) = (None, None, false);
            // If the count changed, this client closed the connection itself, so its end is no failure.
            if state.own.reopened == before {
                read.map_err(|error| error.during("watch"))?;
            }
        }
        Ok(())
    }

    fn changed(&self, hub: &Watch) {
        let mut state = hub.state.lock();
        if state.closed
            && let Some(connection) = state.own.connection.take()
        {
            connection.shutdown();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServerOptions;
    use crate::ident::{ClientId, Owner};
    use crate::stores::etcd::message::KeyLine;
    use crate::sync::Waker;

    #[test]
    fn a_new_key_of_a_waiter_recalls_a_cached_etcd_lock() {
        let options = ServerOptions { url: "etcd://127.0.0.1:1".to_owned(), ..ServerOptions::default() };
        let hub = watch(Arc::new(Members::new(&options).unwrap()), Arc::new(Reporter::new(None)));
        let [line, other] = ["a", "b"].map(|name| KeyLine::new("leasehold/", name));
        let listening = hub.hear(line.clone(), &Waker::default()).unwrap();
        let recalls_by = |line: &KeyLine| {
            let before = listening.message_count();
            let put = json!({ "kv": { "key": line.key(Owner::new(ClientId::random(), 7)) } });
            let report = json!({ "result": { "events": [put] } });
            assert!(hub.take(&mut Vec::new(), format!("{report}\n").as_bytes()).unwrap());
            listening.message_count() - before
        };
        assert_eq!([&other, &line].map(recalls_by), [0, 1]);
        hub.end();
    }
}
