//! Stores locks on a Redis or Valkey server, on the master that Sentinels name, or in a `cluster`.
//!
//! `store` passes each question to the module in `kinds` of the lock's kind, which makes the request and
//! reads the reply. `connections` sends requests, mostly over its `shared` connection, and `pubsub` receives
//! notifications; `handshake` opens connections of both sorts. `address` has the server's address. With
//! Sentinels, `sentinel` finds the master for each connection, and `monitor` notices switches.

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
