//! Messages that wake waiters: how scripts publish them, and the connection that receives them.

pub(crate) mod publish;
mod reader;
pub(crate) mod subscriber;

use std::sync::Arc;
use std::time::Duration;

use crate::observe::reporter::Reporter;
use crate::stores::redis::address::RedisAddress;
use subscriber::{SubscribeMode, Subscriber};

/// A subscriber that connects with its first waiter. `unsubscribe_delay`: how long a subscription that nobody needs
/// stays. `silence`: the time without a word after which the server is asked for one.
pub(crate) fn subscriber(
    address: Arc<RedisAddress>,
    reporter: Arc<Reporter>,
    linger: Duration,
    silence: Duration,
    modes: &'static [SubscribeMode],
) -> Arc<Subscriber> {
    Subscriber::new(address, reporter, linger, silence, modes, reader::read)
}
