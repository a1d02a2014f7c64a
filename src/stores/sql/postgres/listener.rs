//! Wake-ups: each client has one connection for LISTEN, opened for its first waiter.
//!
//! A thread runs LISTEN and UNLISTEN (see `seam::hub`). Once the server has confirmed a channel's LISTEN,
//! every message sent later arrives, so the channel then counts as working (`set_up`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client};

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::Lifetime;
use crate::ident::{ClientId, LockName};
use crate::observe::reporter::Reporter;
use crate::seam::hub::{Hub, News, WakeupProtocol};
use crate::stores::sql::postgres::link::{Connected, Dial, Driver, STAYS, last_word, within};
use crate::stores::sql::postgres::refusal::{read_only_now, unreachable};
use crate::stores::sql::timed_out;
use crate::time::{Clock, Moment};

/// After this silence the client sends the server a query. If no answer comes within the same time, the
/// connection counts as dead.
const SILENCE: Duration = Duration::from_secs(5);

pub(super) type NotificationListener = Hub<Notifications>;

pub(super) struct Notifications {
    dial: Dial,
    /// Part of each channel's name, so that equal lock names in different tables have different channels.
    realm: String,
    connect_timeout: Duration,
    pub(super) changed: Notify,
}

impl WakeupProtocol for Notifications {
    type Note = ();
    type State = ();

    fn serve(&self, hub: &Arc<NotificationListener>) -> Result<()> {
        if !hub.wait_for_channels() {
            return Ok(());
        }
        let (driver, deadline) = (Driver::new()?, Clock::System.after(self.connect_timeout));
        let connected = self.dial.connect(&driver, deadline)?;
        driver.wait(self.connected(hub, connected, deadline))?
    }

    fn changed(&self, _hub: &NotificationListener) {
        self.changed.notify_one();
    }
}

pub(super) fn listener(
    dial: Dial,
    reporter: Arc<Reporter>,
    options: &ServerOptions,
    realm: &str,
) -> Arc<NotificationListener> {
    let (realm, connect_timeout) = (realm.to_owned(), options.connect_timeout);
    let protocol = Notifications { dial, realm, connect_timeout, changed: Notify::new() };
    Hub::new(protocol, Some(reporter), options.unsubscribe_delay)
}

impl NotificationListener {
    pub(super) fn channel(&self, name: &LockName) -> String {
        self.protocol.hashed(name.key().bytes())
    }

    pub(super) fn turn_channel(&self, name: &LockName, client: ClientId) -> String {
        self.protocol.hashed(name.key().bytes().chain([0]).chain(client.to_string().bytes()))
    }

    fn next_check(&self) -> Duration {
        let state = self.state.lock();
        let is_idle = state.channels.values().any(|entry| entry.idle_since.is_some());
        if is_idle { self.linger.clamp(Duration::from_millis(10), SILENCE) } else { SILENCE }
    }

    /// Runs LISTEN for new channels, and UNLISTEN for unneeded ones. The answer is also a sign of life.
    async fn arrange(&self, client: &Client) -> Result<()> {
        let (mut commands, mut fresh) = (String::new(), Vec::new());
        {
            let mut state = self.state.lock();
            state.sweep(self.linger, Clock::System.now());
            for news in state.take_news() {
                match news {
                    News::Came(channel) => {
                        commands.push_str(&format!("LISTEN {}; ", channel.channel()));
                        fresh.push(channel);
                    }
                    News::Went(channel) => {
                        commands.push_str(&format!("UNLISTEN {}; ", channel.channel()));
                    }
                }
            }
        }
        // A read-only server releases no locks, and so sends no messages: the client connects anew.
        commands.push_str("SHOW transaction_read_only");
        let answer = within(Clock::System.after(SILENCE), client.simple_query(&commands)).await;
        let answer = answer.ok_or_else(|| timed_out("the server fell silent"))?;
        let answer = answer.map_err(|error| unreachable(error).during("subscribe"))?;
        if last_word(&answer) == "on" {
            return Err(read_only_now().during("subscribe"));
        }
        // Wakes the channel's waiters, because a release before LISTEN was not reported.
        fresh.iter().for_each(|channel| channel.set_up(true));
        let mut state = self.state.lock();
        state.stands();
        self.report_up(&mut state);
        Ok(())
    }

    fn deliver(&self, channel: &str, message: &str) {
        let channel = self.state.lock().channels.get(channel).map(|entry| Arc::clone(&entry.channel));
        if let Some(channel) = channel {
            channel.take(message.as_bytes());
        }
    }
}

impl Notifications {
    fn hashed(&self, parts: impl Iterator<Item = u8>) -> String {
        // FNV-1a, because all programs must compute the same hash. The standard library's may change.
        let bytes = self.realm.bytes().chain([0]).chain(parts);
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("leasehold_{hash:016x}")
    }

    /// Listens over one connection, until the client is closed or the connection is due for replacement.
    async fn connected(
        &self,
        hub: &Arc<NotificationListener>,
        (client, mut connection): Connected,
        deadline: Moment,
    ) -> Result<()> {
        let replaced_at = Clock::System.after(Lifetime::default().some_age());
        let weak: Weak<NotificationListener> = Arc::downgrade(hub);
        let reader = async move {
            loop {
                match std::future::poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(message))) => {
                        if let Some(hub) = weak.upgrade() {
                            hub.deliver(message.channel(), message.payload());
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Some(error),
                    None => return None,
                }
            }
        };
        let mut reader = std::pin::pin!(tokio::spawn(reader));
        let stays = within(deadline, client.batch_execute(STAYS)).await;
        let stays = stays.ok_or_else(|| timed_out("connecting took too long"))?;
        stays.map_err(|error| unreachable(error).during("subscribe"))?;
        hub.state.lock().begin();
        while !hub.is_closed() && Clock::System.now() < replaced_at {
            // A change during `arrange` leaves a permit in `changed`, which ends the wait below at once.
            hub.arrange(&client).await?;
            let mut changed = std::pin::pin!(self.changed.notified());
            let event = std::future::poll_fn(|context| {
                if let std::task::Poll::Ready(ended) = reader.as_mut().poll(context) {
                    return std::task::Poll::Ready(Some(ended.ok().flatten()));
                }
                changed.as_mut().poll(context).map(|()| None)
            });
            if let Some(Some(ended)) = within(Clock::System.after(hub.next_check()), event).await {
                let broke = Error::new(ErrorKind::Unreachable, "subscribe", "the connection broke");
                return Err(match ended {
                    Some(error) => broke.with_source(error),
                    None => broke,
                });
            }
        }
        Ok(())
    }
}
