//! Stores locks on a Redis or Valkey server, on the master that Sentinels name, or in a `cluster`.
//!
//! - `store`, `directory`, `pipeline`: requests to one server, with a *claim*: who wants or holds which lock
//! - `kinds`: each kind's requests and replies; `script`: the Lua scripts; `keys`: names of keys and channels
//! - `conn`: connections for requests; `pubsub`: that for messages; `address`: where and how to connect
//! - `acks`: waits for replicas; `about`: what a server says about itself; `show`: inspections
//! - `sentinel`: which server is the master; `cluster`: which member has a lock

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
