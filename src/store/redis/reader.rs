//! The hub's reading thread: connects, reads what comes, ends idle subscriptions, and notices when the link is dead.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use redis::{ServerError, Value};

use super::handshake;
use super::hub::{Awaited, Hub, State};
use super::link::{Stream, broken, unread};
use super::replies::Replies;
use super::reply::{Expected, refusal};
use super::script::Request;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::topic::Topic;
use crate::sync::MutexGuard;
use crate::time::Clock;

/// Waits between connects: at least, at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A write waits for no room; a system does not take less than this for a time-out.
const WRITE_LIMIT: Duration = Duration::from_millis(1);
/// The reader looks up no more often than this while nothing comes.
const LEAST_TICK: Duration = Duration::from_millis(20);

/// The reading thread.
pub(super) struct Reader<'a> {
    hub: &'a Hub,
    back_off: Duration,
}

impl Reader<'_> {
    pub(super) fn new(hub: &Hub) -> Reader<'_> {
        Reader { hub, back_off: BACK_OFF.0 }
    }

    pub(super) fn run(mut self) {
        while self.is_needed() {
            let by = Clock::System.after(self.hub.address.connect_timeout);
            let error = match handshake::open(&self.hub.address, by) {
                Ok(link) => {
                    let stream = link.into_stream();
                    let Some(error) = self.serve(&stream) else { return };
                    stream.shutdown();
                    error
                }
                Err(error) => error,
            };
            self.disconnected(error);
        }
    }

    /// Waits until there is a topic; `false`: the hub was closed.
    fn is_needed(&self) -> bool {
        let mut state = self.hub.state.lock();
        while !state.closed && state.topics.is_empty() {
            self.hub.changed.wait(&mut state);
        }
        !state.closed
    }

    /// Takes all topics down and lets some time pass, so that a server in trouble is not stormed.
    fn disconnected(&mut self, error: Error) {
        let mut state = self.hub.state.lock();
        state.connect(None);
        state.sweep(self.hub.linger, Clock::System.now());
        let topics: Vec<_> = state.topics.values().map(|entry| Arc::clone(&entry.topic)).collect();
        if !state.closed && !topics.is_empty() {
            self.hub.tell_down(&mut state, error);
        }
        MutexGuard::unlocked(&mut state, || {
            topics.iter().filter(|topic| topic.is_up()).for_each(|topic| topic.set_up(false));
        });
        let until = Clock::System.after(self.back_off + jitter(self.back_off));
        self.back_off = (self.back_off * 2).min(BACK_OFF.1);
        while !state.closed {
            let left = until.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            self.hub.changed.wait_for(&mut state, left);
        }
    }

    /// Reads until the connection ends, and says why; `None`: the hub was closed.
    fn serve(&mut self, stream: &Arc<Stream>) -> Option<Error> {
        {
            let mut state = self.hub.state.lock();
            if state.closed {
                return None;
            }
            state.connect(Some(Arc::clone(stream)));
            for entry in state.topics.values_mut() {
                entry.refused = false;
            }
            let topics: Vec<_> = state.topics.values().map(|entry| Arc::clone(&entry.topic)).collect();
            state.subscribe(topics);
        }
        // Short enough to end idle subscriptions in time.
        let (linger, silence) = (self.hub.linger, self.hub.silence);
        let tick = if linger.is_zero() { silence } else { linger.max(LEAST_TICK).min(silence) };
        let limits = stream.set_read_timeout(tick).and_then(|()| stream.set_write_timeout(WRITE_LIMIT));
        if let Err(error) = limits {
            return self.ended(broken("subscribe", error));
        }
        let mut replies = Replies::default();
        let mut heard = Clock::System.now();
        let mut asked = false;
        let mut next_sweep = Clock::System.after(tick);
        loop {
            // Also what was left when there was no room: whatever has come says that there is some now.
            self.hub.flush();
            let reply = replies.fill(stream.as_ref()).and_then(|()| replies.ready());
            let now = Clock::System.now();
            let mut reply = match reply {
                Err(error) if error.is_timeout() => Ok(None),
                other => other,
            };
            // Bytes are no sign of life, only what is whole: else a server that drips is waited for without an end.
            while let Ok(Some(whole)) = reply {
                (heard, asked) = (now, false);
                if let Err(error) = self.take(whole) {
                    return self.ended(error);
                }
                reply = replies.ready();
            }
            if let Err(error) = reply {
                return self.ended(unread(error).during("subscribe"));
            }
            if now >= next_sweep {
                next_sweep = now.plus(tick);
                self.hub.state.lock().sweep(linger, now);
            }
            if now.since(heard) >= silence {
                if asked {
                    let words = "the server was silent for too long";
                    return self.ended(Error::new(ErrorKind::TimedOut, "subscribe", words));
                }
                // Any answer will do, a refusal too.
                (heard, asked) = (now, true);
                self.hub.state.lock().write([(Request::new("PING"), Awaited::Pong)]);
            }
        }
    }

    fn ended(&self, error: Error) -> Option<Error> {
        (!self.hub.state.lock().closed).then_some(error)
    }

    /// Acts on one message or reply.
    fn take(&mut self, reply: Value) -> Result<()> {
        let mut state = self.hub.state.lock();
        if let Value::Array(items) = &reply
            && let [Value::BulkString(kind), Value::BulkString(channel), _] = items.as_slice()
        {
            let channel = std::str::from_utf8(channel).unwrap_or_default();
            let topic = state.topics.get(channel).map(|entry| Arc::clone(&entry.topic));
            match kind.as_slice() {
                b"message" | b"smessage" => {
                    drop(state);
                    if let Some(topic) = topic {
                        topic.deliver();
                    }
                    return Ok(());
                }
                // Not asked for: the slot is no longer this server's. If it is again, the next line brings the topic
                // back; if not, its waiters find out who has it.
                b"sunsubscribe" if !state.is_ending(channel) => {
                    if let Some(topic) = topic {
                        topic.set_up(false);
                        state.subscribe([topic]);
                    }
                    return Ok(());
                }
                _ => {}
            }
        }
        match (state.awaited.pop_front(), reply) {
            // Asked again over the next connection, after a while.
            (Some(Awaited::Half(_) | Awaited::Subscribed(_)), Value::ServerError(error))
                if error.code() == "CLUSTERDOWN" =>
            {
                return Err(refusal(&error, Expected::Nothing).during("subscribe"));
            }
            (Some(Awaited::Half(topic) | Awaited::Subscribed(topic)), Value::ServerError(error)) => {
                self.refused(&mut state, &topic, &error);
            }
            (Some(Awaited::Subscribed(topic)), _) => {
                self.back_off = BACK_OFF.0;
                self.hub.tell_up(&mut state);
                // Under the lock: another hub may have the topic by now, or be about to. Pairs with `Hub::part_with`.
                if state.topics.get(topic.channel()).is_some_and(|entry| entry.is_of(&topic)) {
                    topic.set_up(true);
                }
            }
            (Some(Awaited::Half(_) | Awaited::Unsubscribed(_) | Awaited::Pong), _) => {}
            (None, _) => {
                let words = "the server sent what nobody asked for";
                return Err(Error::new(ErrorKind::Protocol, "subscribe", words));
            }
        }
        Ok(())
    }

    /// The topic stays down; its waiters poll.
    fn refused(&self, state: &mut State, topic: &Arc<Topic>, error: &ServerError) {
        // Who is told that the slot is elsewhere will be elsewhere soon.
        if error.code() != "MOVED" {
            let error = refusal(error, Expected::Nothing).during("subscribe");
            self.hub.tell_down(state, error);
        }
        if let Some(entry) = state.topics.get_mut(topic.channel())
            && Arc::ptr_eq(&entry.topic, topic)
        {
            entry.refused = true;
        }
        state.sweep(self.hub.linger, Clock::System.now());
    }
}

/// Some part of `most`, different each time, so that clients of a server that was down do not come back as one.
fn jitter(most: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1024;
    most * u32::try_from(random).unwrap_or_default() / 1024
}
