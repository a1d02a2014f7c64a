//! A new connection to wherever an address leads.

use crate::error::Result;
use crate::stores::redis::address::{RedisAddress, Target};
use crate::stores::redis::conn::connection::Connection;
use crate::stores::redis::conn::handshake::open_at;
use crate::time::Moment;

/// Connects until `deadline` at the latest, logs in, and checks the server: see [`open_at`].
pub(crate) fn open(address: &RedisAddress, deadline: Moment) -> Result<Connection> {
    match &address.target {
        Target::Place(place) => open_at(&address.login, place, deadline, |_| {}),
        Target::Master(sentinels) => sentinels.open(&address.login, deadline),
    }
}
