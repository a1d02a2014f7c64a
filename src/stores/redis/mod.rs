//! One Redis (or Valkey) server, or the one that Sentinels say is the master; or, in `cluster`, many.
//!
//! `store` puts each question to the module in `kinds` of the kind of lock that it is about; that says what
//! is asked and what the answers mean. `connections` carries requests, mostly over its `shared`s, and `pubsub`
//! wake-ups, all over connections made by `handshake` on the sockets of `connection`. The target is in
//! `address`; with Sentinels, `sentinel` finds out each time, and `monitor` notices when it changes.

mod about;
mod acks;
mod address;
mod cluster;
mod conn;
mod directory;
mod keys;
mod kinds;
mod pipeline;
mod pubsub;
mod reply;
mod script;
mod sentinel;
mod show;
mod store;

// Their server is reached by a Unix socket.
#[cfg(all(unix, not(leasehold_shuttle)))]
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::config::ServerOptions;
use crate::error::Result;
use crate::observe::reporter::Reporter;
use crate::seam::Store;
use crate::time::Clock;
use cluster::ClusterStore;

pub(crate) use store::RedisStore;

/// Opens the store that the URL names.
pub(crate) fn open(options: &ServerOptions, reporter: &Arc<Reporter>) -> Result<Arc<dyn Store>> {
    let scheme = options.url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    Ok(match scheme.as_str() {
        "redis-cluster" | "rediss-cluster" => ClusterStore::connect(options, reporter)?,
        _ => {
            let store = RedisStore::connect(options, Arc::clone(reporter))?;
            let noted = store.note_format(Clock::System.after(options.command_timeout));
            noted.map_err(|failure| failure.into_error().during("connect"))?;
            Arc::new(store)
        }
    })
}
