//! Messages that wake waiters, and the connection that receives them.

mod reader;
pub(crate) mod subscriber;

use std::sync::Arc;
use std::time::Duration;

use crate::observe::reporter::Reporter;
use crate::seam::hub::Hub;
use crate::stores::redis::address::RedisAddress;
use subscriber::{RedisPubSub, SubscribeMode, Subscriber};

/// A subscriber that connects with its first waiter. `unsubscribe_delay`: how long a subscription that nobody
/// needs stays. `silence`: the time without a word after which the server is asked for one.
pub(crate) fn subscriber(
    address: Arc<RedisAddress>,
    reporter: Arc<Reporter>,
    linger: Duration,
    silence: Duration,
    modes: &'static [SubscribeMode],
) -> Arc<Subscriber> {
    Hub::new(RedisPubSub { address, silence, modes }, Some(reporter), linger)
}
