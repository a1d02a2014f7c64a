//! A new connection to wherever an address leads.

use crate::error::{ErrorKind, Result};
use crate::stores::redis::address::{RedisAddress, Target};
use crate::stores::redis::conn::connection::Connection;
use crate::stores::redis::conn::handshake::open_at;
use crate::time::{Clock, Moment};

/// How often an address is dialled that leads to a replica: one connection is not all of them, where a
/// service stands for a master and its replicas.
const MOST_DIALS: usize = 8;

/// Connects until `deadline` at the latest, logs in, and checks the server: see [`open_at`]. What a server
/// refuses is tried once more with the secrets that their files have by then.
pub(crate) fn open(address: &RedisAddress, deadline: Moment) -> Result<Connection> {
    let Some(renewal) = &address.renewal else { return open_once(address, deadline) };
    renewal.with(|renewed| match address.by(renewed) {
        Some(address) => open_once(&address, deadline),
        None => open_once(address, deadline),
    })
}

fn open_once(address: &RedisAddress, deadline: Moment) -> Result<Connection> {
    match &address.target {
        Target::Place(place) => {
            let mut opened = open_at(&address.login, place, deadline, |_| {});
            for _ in 1..MOST_DIALS {
                match &opened {
                    Err(error) if error.kind() == ErrorKind::ReadOnly && Clock::System.now() < deadline => {}
                    _ => break,
                }
                opened = open_at(&address.login, place, deadline, |_| {});
            }
            opened
        }
        Target::Master(sentinels) => sentinels.open(&address.login, deadline),
    }
}
