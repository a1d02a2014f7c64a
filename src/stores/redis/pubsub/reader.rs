//! The subscriber's reading thread: connects, reads what comes, ends idle subscriptions, and notices when the
//! connection is dead.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use redis::{ServerError, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::refused;
use crate::seam::subscription::Channel;
use crate::stores::redis::conn::connection::unread;
use crate::stores::redis::conn::ledger::some_age;
use crate::stores::redis::conn::open::open;
use crate::stores::redis::conn::replies::Replies;
use crate::stores::redis::pubsub::subscriber::{Awaited, Subscriber, SubscriberState};
use crate::stores::redis::reply::{Expected, is_passing, refusal};
use crate::stores::redis::script::Command;
use crate::sync::MutexGuard;
use crate::time::Clock;
use crate::wire::{Wire, broken};

/// Waits between connects: at least, at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long opening a connection in place of an old one may take.
const REPLACED_WITHIN: Duration = Duration::from_millis(500);
/// When no other was to be had, an old connection is used for so long before the next try.
const AGED_GOES_ON: Duration = Duration::from_secs(30);
/// A write waits for no room; a system does not take less than this for a time-out.
const WRITE_LIMIT: Duration = Duration::from_millis(1);
/// The reader looks up no more often than this while nothing comes.
const LEAST_TICK: Duration = Duration::from_millis(20);

/// The body of the reading thread.
pub(super) fn read(subscriber: &Subscriber) {
    ReplyReader::new(subscriber).run();
}

struct ReplyReader<'a> {
    subscriber: &'a Subscriber,
    back_off: Duration,
    /// The connection that replaces the last one, which was old: nobody need be told of its end.
    next: Option<Arc<Wire>>,
}

impl ReplyReader<'_> {
    fn new(subscriber: &Subscriber) -> ReplyReader<'_> {
        ReplyReader { subscriber, back_off: BACK_OFF.0, next: None }
    }

    fn run(mut self) {
        while self.is_needed() {
            let stream = match self.next.take() {
                Some(next) => Ok(next),
                None => self.connect(self.subscriber.address.connect_timeout),
            };
            let error = match stream {
                Ok(stream) => {
                    let Some(error) = self.serve(&stream) else { return };
                    stream.shutdown();
                    error
                }
                Err(error) => error,
            };
            self.disconnected(error);
        }
    }

    fn connect(&self, within: Duration) -> Result<Arc<Wire>> {
        Ok(open(&self.subscriber.address, Clock::System.after(within))?.into_stream())
    }

    /// Waits until there is a channel; `false`: the subscriber was closed.
    fn is_needed(&self) -> bool {
        let mut state = self.subscriber.state.lock();
        while !state.closed && state.channels.is_empty() {
            self.subscriber.changed.wait(&mut state);
        }
        !state.closed
    }

    /// Takes all channels down and lets some time pass, so that a server in trouble is not stormed.
    fn disconnected(&mut self, error: Error) {
        let mut state = self.subscriber.state.lock();
        state.connect(None);
        state.sweep(self.subscriber.linger, Clock::System.now());
        let channels: Vec<_> = state.channels.values().map(|entry| Arc::clone(&entry.channel)).collect();
        if self.next.is_none() && !state.closed && !channels.is_empty() {
            self.subscriber.tell_down(&mut state, error);
        }
        MutexGuard::unlocked(&mut state, || {
            channels.iter().filter(|channel| channel.is_up()).for_each(|channel| channel.set_up(false));
        });
        if self.next.is_some() {
            return;
        }
        let until = Clock::System.after(self.back_off + jitter(self.back_off));
        self.back_off = (self.back_off * 2).min(BACK_OFF.1);
        while !state.closed {
            let left = until.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            self.subscriber.changed.wait_for(&mut state, left);
        }
    }

    /// Reads until the connection ends, and says why; `None`: the subscriber was closed.
    fn serve(&mut self, stream: &Arc<Wire>) -> Option<Error> {
        {
            let mut state = self.subscriber.state.lock();
            if state.closed {
                return None;
            }
            state.connect(Some(Arc::clone(stream)));
            for entry in state.channels.values_mut() {
                entry.refused = None;
            }
            let channels: Vec<_> = state.channels.values().map(|entry| Arc::clone(&entry.channel)).collect();
            state.subscribe(channels);
        }
        // Short enough to end idle subscriptions in time.
        let (linger, silence) = (self.subscriber.linger, self.subscriber.silence);
        let tick = if linger.is_zero() { silence } else { linger.max(LEAST_TICK).min(silence) };
        if let Err(error) = stream.set_write_timeout(WRITE_LIMIT) {
            return self.ended(broken("subscribe", error));
        }
        let mut armed = Duration::ZERO;
        let mut replies = Replies::default();
        let mut last_word = Clock::System.now();
        let mut asked = false;
        let mut next_sweep = Clock::System.after(tick);
        let mut replace_at = Clock::System.after(some_age());
        loop {
            let now = Clock::System.now();
            let asks_again = self.subscriber.state.lock().ask_again(now);
            let looks_within = asks_again.map_or(tick, |at| at.since(now).max(LEAST_TICK).min(tick));
            // Also what was left when there was no room: whatever has come says that there is some now.
            self.subscriber.flush();
            if looks_within != armed {
                if let Err(error) = stream.set_read_timeout(Some(looks_within)) {
                    return self.ended(broken("subscribe", error));
                }
                armed = looks_within;
            }
            let reply = replies.fill(stream.as_ref()).and_then(|()| replies.ready());
            let now = Clock::System.now();
            let mut reply = match reply {
                Err(error) if error.is_timeout() => Ok(None),
                other => other,
            };
            // Bytes are no sign of life, only what is whole: else a server that drips is waited for without
            // an end.
            while let Ok(Some(whole)) = reply {
                (last_word, asked) = (now, false);
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
                self.subscriber.state.lock().sweep(linger, now);
            }
            // The address may lead elsewhere by now, and a server that was demoted publishes nothing. All
            // waiters look again when the next connection stands. While there is none the old one serves on;
            // what comes over it meanwhile is read a little later.
            if now >= replace_at {
                match self.connect(self.subscriber.address.connect_timeout.min(REPLACED_WITHIN)) {
                    Ok(next) => {
                        self.next = Some(next);
                        let words = "the connection is old";
                        return self.ended(Error::new(ErrorKind::TimedOut, "subscribe", words));
                    }
                    Err(_no_other_is_to_be_had) => replace_at = Clock::System.after(AGED_GOES_ON),
                }
            }
            if now.since(last_word) >= silence {
                if asked {
                    let words = "the server was silent for too long";
                    return self.ended(Error::new(ErrorKind::TimedOut, "subscribe", words));
                }
                // Any answer will do, a refusal too.
                (last_word, asked) = (now, true);
                self.subscriber.state.lock().write([(Command::new("PING"), Awaited::Pong)]);
            }
        }
    }

    fn ended(&self, error: Error) -> Option<Error> {
        (!self.subscriber.state.lock().closed).then_some(error)
    }

    /// Acts on one message or reply.
    fn take(&mut self, reply: Value) -> Result<()> {
        let mut state = self.subscriber.state.lock();
        if let Value::Array(items) = &reply
            && let [Value::BulkString(kind), Value::BulkString(channel), message] = items.as_slice()
        {
            let name = std::str::from_utf8(channel).unwrap_or_default();
            let channel = state.channels.get(name).map(|entry| Arc::clone(&entry.channel));
            match kind.as_slice() {
                b"message" | b"smessage" => {
                    drop(state);
                    if let Some(channel) = channel {
                        channel.take(if let Value::BulkString(message) = message { message } else { b"" });
                    }
                    return Ok(());
                }
                // Not asked for: the slot is no longer this server's. If it is again, the next line brings
                // the channel back; if not, its waiters find out who has it.
                b"sunsubscribe" if !state.is_ending(name) => {
                    if let Some(channel) = channel {
                        channel.set_up(false);
                        state.subscribe([channel]);
                    }
                    return Ok(());
                }
                _ => {}
            }
        }
        match (state.awaited.pop_front(), reply) {
            (Some(Awaited::Half(channel) | Awaited::Subscribed(channel)), Value::ServerError(error)) => {
                self.refused(&mut state, &channel, &error)?;
            }
            (Some(Awaited::Subscribed(channel)), _) => {
                self.back_off = BACK_OFF.0;
                self.subscriber.tell_up(&mut state);
                // Under the lock: another subscriber may have the channel by now, or be about to. Pairs with
                // `Subscriber::part_with`.
                if let Some(entry) =
                    state.channels.get_mut(channel.channel()).filter(|entry| entry.is_of(&channel))
                {
                    entry.pause = Duration::ZERO;
                    channel.set_up(true);
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

    /// The channel stays down until a later try. Only a refusal for lack of a right says that it will stay so:
    /// then waiters for their turn go by releases until their wait ends, and waiters for releases poll. If the
    /// server is of no use for now, the error ends the connection, and all is asked for over the next.
    fn refused(
        &self,
        state: &mut SubscriberState,
        channel: &Arc<Channel>,
        error: &ServerError,
    ) -> Result<()> {
        let now = Clock::System.now();
        if error.code() == "MOVED" {
            // The map of slots moves the channel to another member once a request has met the same answer:
            // those who wait look at once. Or the slot is on its way to this member.
            state.note_refused(channel, |entry| {
                if entry.pause.is_zero() {
                    channel.set_up(false);
                }
                entry.pause = (entry.pause * 2).clamp(BACK_OFF.0, BACK_OFF.1);
                now.plus(entry.pause)
            });
            return Ok(());
        }
        let refusal = refusal(error, Expected::Nothing).during("subscribe");
        if is_passing(&refusal) {
            return Err(refusal);
        }
        self.subscriber.tell_down(state, refusal);
        state.note_refused(channel, |_| now.plus(refused::LASTS));
        channel.set_refused();
        state.sweep(self.subscriber.linger, now);
        Ok(())
    }
}

/// Some part of `most`, different each time, so that clients of a server that was down do not come back as
/// one.
fn jitter(most: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1024;
    most * u32::try_from(random).unwrap_or_default() / 1024
}
