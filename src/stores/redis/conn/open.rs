//! A new connection to wherever an address leads.

use std::sync::Arc;

use crate::error::{ErrorKind, Result};
use crate::stores::redis::address::{RedisAddress, Target};
use crate::stores::redis::conn::connection::Connection;
use crate::stores::redis::conn::handshake::open_at;
use crate::stores::redis::place::{Login, ServerPlace};
use crate::time::{Clock, Moment};
use crate::wire::Wire;

/// How often an address is dialled that leads to a replica: one connection is not all of them, where a
/// service stands for a master and its replicas.
const MOST_DIALS: usize = 8;

pub(crate) fn open(address: &RedisAddress, deadline: Moment) -> Result<Connection> {
    match &address.target {
        Target::Place(place) => log_in(address, place, deadline, &|_| ()),
        Target::Master(sentinels) => {
            sentinels.open(deadline, |place, by, begun| log_in(address, place, by, begun))
        }
    }
}

/// With the credentials and the certificates for this server as their sources have them now.
fn log_in(
    address: &RedisAddress,
    place: &ServerPlace,
    deadline: Moment,
    begun: &dyn Fn(&Arc<Wire>),
) -> Result<Connection> {
    let connect = |renewed: &RedisAddress, ends: Option<Moment>| {
        let login = Login { role: address.login.role, ..renewed.login.clone() };
        let place = renewed.secured(place);
        let dial = || open_at(&login, &place, deadline, begun);
        let mut opened = dial();
        let dials = if matches!(address.target, Target::Place(_)) { MOST_DIALS } else { 1 };
        for _ in 1..dials {
            match &opened {
                Err(error) if error.kind() == ErrorKind::ReadOnly && Clock::System.now() < deadline => {}
                _ => break,
            }
            opened = dial();
        }
        opened.map(|mut connection| {
            connection.origin.ends = ends;
            connection
        })
    };
    match &address.renewal {
        Some(renewal) => renewal.with(&place.address(), deadline, connect),
        None => connect(address, None),
    }
}
