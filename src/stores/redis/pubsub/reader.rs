//! The subscriber's reading thread: connects, reads what comes, ends idle subscriptions, and notices when the
//! connection is dead.

use std::sync::Arc;
use std::time::Duration;

use redis::{ServerError, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::refused;
use crate::seam::hub::{HubState, WakeupProtocol};
use crate::seam::subscription::Channel;
use crate::stores::redis::conn::connection::unread;
use crate::stores::redis::conn::replies::Replies;
use crate::stores::redis::pubsub::{Awaited, PubSubState, RedisPubSub, Subscriber};
use crate::stores::redis::reply::{Expected, is_passing, refusal};
use crate::stores::redis::script::Command;
use crate::time::{Clock, Moment};
use crate::wire::{Wire, broken};

/// The pauses between two tries for a channel whose slot moves: at least, at most.
const SLOT_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long opening a connection in place of an old one may take.
const REPLACED_WITHIN: Duration = Duration::from_millis(500);
/// When no other was to be had, an old connection is used for so long before the next try.
const AGED_GOES_ON: Duration = Duration::from_secs(30);
/// A write waits for no room; a system does not take less than this for a time-out.
const WRITE_LIMIT: Duration = Duration::from_millis(1);
/// The reader looks up no more often than this while nothing comes.
const LEAST_TICK: Duration = Duration::from_millis(20);

impl WakeupProtocol for RedisPubSub {
    /// The pause before a channel is asked for again whose slot moves.
    type Note = Duration;
    type State = PubSubState;

    fn serve(&self, hub: &Arc<Subscriber>) -> Result<()> {
        let next = hub.state.lock().own.next.take();
        if !hub.wait_for_channels() {
            return Ok(());
        }
        let (stream, replace_at) = match next {
            Some(next) => next,
            None => self.connect(self.address.connect_timeout)?,
        };
        let served = self.read(hub, &stream, replace_at);
        stream.shutdown();
        hub.state.lock().own.connect(None);
        served
    }

    fn changed(&self, hub: &Subscriber) {
        hub.flush();
    }
}

impl RedisPubSub {
    fn connect(&self, within: Duration) -> Result<(Arc<Wire>, Moment)> {
        let connection = self.address.open(Clock::System.after(within))?;
        let replace_at = connection.origin.replaced_at();
        Ok((connection.into_stream(), replace_at))
    }

    /// Reads until the connection ends, and says why; `Ok`: the subscriber was closed, or there is another
    /// connection.
    fn read(&self, hub: &Subscriber, stream: &Arc<Wire>, mut replace_at: Moment) -> Result<()> {
        {
            let mut state = hub.state.lock();
            if state.closed {
                return Ok(());
            }
            state.own.connect(Some(Arc::clone(stream)));
            state.own.asks_again = None;
            state.begin();
        }
        // Short enough to end idle subscriptions on time.
        let (linger, silence) = (hub.linger, self.silence);
        let tick = if linger.is_zero() { silence } else { linger.max(LEAST_TICK).min(silence) };
        stream.set_write_timeout(WRITE_LIMIT).map_err(|error| broken("subscribe", error))?;
        let mut armed = Duration::ZERO;
        let mut replies = Replies::default();
        let mut last_word = Clock::System.now();
        let mut asked = false;
        let mut next_sweep = Clock::System.after(tick);
        loop {
            let now = Clock::System.now();
            let asks_again = hub.state.lock().ask_again(now);
            let polls_within = asks_again.map_or(tick, |at| at.since(now).max(LEAST_TICK).min(tick));
            // Also what was left when there was no room: whatever has come says that there is some now.
            hub.flush();
            if polls_within != armed {
                stream.set_read_timeout(Some(polls_within)).map_err(|error| broken("subscribe", error))?;
                armed = polls_within;
            }
            let reply = replies.fill(stream.as_ref()).and_then(|()| replies.ready());
            let now = Clock::System.now();
            let mut reply = match reply {
                Err(error) if error.is_timeout() => Ok(None),
                other => other,
            };
            // Only whole messages are a sign of life: otherwise a server that drips bytes would be waited
            // for without end.
            while let Ok(Some(whole)) = reply {
                (last_word, asked) = (now, false);
                take(hub, whole)?;
                reply = replies.ready();
            }
            reply.map_err(|error| unread(error).during("subscribe"))?;
            if now >= next_sweep {
                next_sweep = now.plus(tick);
                hub.state.lock().sweep(linger, now);
            }
            // The address may lead elsewhere by now, and a server that was demoted publishes nothing. All
            // waiters look again when the next connection stands. While there is none the old one serves on;
            // what comes over it meanwhile is read a little later.
            if now >= replace_at {
                match self.connect(self.address.connect_timeout.min(REPLACED_WITHIN)) {
                    Ok(next) => {
                        hub.state.lock().own.next = Some(next);
                        return Ok(());
                    }
                    Err(_no_other_is_to_be_had) => replace_at = Clock::System.after(AGED_GOES_ON),
                }
            }
            if now.since(last_word) >= silence {
                if asked {
                    let words = "the server was silent for too long";
                    return Err(Error::new(ErrorKind::TimedOut, "subscribe", words));
                }
                // Any answer will do, a refusal too.
                (last_word, asked) = (now, true);
                hub.state.lock().own.write([(Command::new("PING"), Awaited::Pong)]);
            }
        }
    }
}

fn take(hub: &Subscriber, reply: Value) -> Result<()> {
    let mut state = hub.state.lock();
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
            b"sunsubscribe" if !state.own.is_ending(name) => {
                if let Some(channel) = channel {
                    channel.set_up(false);
                    state.came(&channel);
                }
                return Ok(());
            }
            _ => {}
        }
    }
    match (state.own.awaited.pop_front(), reply) {
        (Some(Awaited::Half(channel) | Awaited::Subscribed(channel)), Value::ServerError(error)) => {
            refused(hub, &mut state, &channel, &error)
        }
        (Some(Awaited::Subscribed(channel)), _) => {
            state.stands();
            if !state.channels.values().any(|entry| entry.refused.is_some()) {
                hub.report_up(&mut state);
            }
            // Under the lock: another subscriber may have the channel by now, or be about to. Pairs with
            // `Subscriber::part_with`. Up or not goes by that channel, and by both ways if there are two.
            if let Some(entry) = state.channels.get_mut(channel.channel())
                && Arc::ptr_eq(&entry.channel, &channel)
                && entry.refused.is_none()
            {
                entry.note = Duration::ZERO;
                channel.set_up(true);
            }
            Ok(())
        }
        (Some(Awaited::Half(_) | Awaited::Unsubscribed(_) | Awaited::Pong), _) => Ok(()),
        (None, _) => {
            let words = "the server sent what nobody asked for";
            Err(Error::new(ErrorKind::Protocol, "subscribe", words))
        }
    }
}

/// The channel stays down until a later try. Only a refusal for lack of a right says that it will stay so:
/// then waiters for their turn go by releases until their wait ends, and waiters for releases poll. If the
/// server is of no use for now, the error ends the connection, and all is asked for over the next.
fn refused(
    hub: &Subscriber,
    state: &mut HubState<RedisPubSub>,
    channel: &Arc<Channel>,
    error: &ServerError,
) -> Result<()> {
    let now = Clock::System.now();
    if error.code() == "MOVED" {
        // The map of slots moves the channel to another member once a request has met the same answer:
        // those who wait look at once. Or the slot is on its way to this member.
        let entry = state.channels.get_mut(channel.channel());
        if let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.channel, channel)) {
            if entry.note.is_zero() {
                channel.set_up(false);
            }
            entry.note = (entry.note * 2).clamp(SLOT_PAUSES.0, SLOT_PAUSES.1);
            let again = now.plus(entry.note);
            state.note_refused(channel, again);
        }
        return Ok(());
    }
    let refusal = refusal(error, Expected::Nothing).during("subscribe");
    if is_passing(&refusal) {
        return Err(refusal);
    }
    hub.report_down(state, refusal);
    state.note_refused(channel, now.plus(refused::LASTS));
    channel.set_refused();
    state.sweep(hub.linger, now);
    Ok(())
}
