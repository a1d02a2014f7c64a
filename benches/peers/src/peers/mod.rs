//! The compared lock libraries (*peers*) that are written in Rust.

mod article;
mod ours;
mod raw;
mod redlock;
mod rlock;
pub mod rslock;
mod wire;

use anyhow::{Result, bail};

use crate::drive::Peer;
use crate::load::{Kind, Load, Sort};

/// The lease for the peers that are given one: `article`, `redlock` and `rslock`.
pub const LEASE_MS: usize = 30_000;

pub fn open(load: &Load) -> Result<(Box<dyn Peer>, String)> {
    // In a crowd each thread calls this function, so its client is for one thread.
    let threads = if load.kind == Kind::Crowd { 1 } else { load.threads };
    Ok(match load.peer.as_str() {
        "leasehold" if load.sort != Sort::Plain => {
            (Box::new(ours::Shared::connect(&load.url, load.sort)?), locked_version("leasehold"))
        }
        "leasehold" => (Box::new(ours::Guards::connect(&load.url)?), locked_version("leasehold")),
        "leasehold-lock" => (Box::new(ours::Calls::connect(&load.url)?), locked_version("leasehold")),
        "leasehold-keep" => (Box::new(ours::Calls::keeping(&load.url)?), locked_version("leasehold")),
        "raw" => (Box::new(raw::Raw::learn(&load.url)?), String::new()),
        "wire" => (Box::new(wire::Wire::connect(&load.url)?), String::new()),
        "article" => (Box::new(article::Article::connect(&load.url, threads)?), String::new()),
        "redlock" => (Box::new(redlock::Redlock::connect(&load.url)), locked_version("redlock")),
        "rslock-threads" => (Box::new(rslock::Threads::connect(&load.url)?), locked_version("rslock")),
        "rlock" => (Box::new(rlock::Rlock::connect(&load.url)?), locked_version("rlock")),
        other => bail!("no peer {other}"),
    })
}

/// The version of a crate in this program's lock file.
pub fn locked_version(name: &str) -> String {
    let lock = include_str!("../../Cargo.lock");
    let entry = format!("name = \"{name}\"\nversion = \"");
    lock.split_once(&entry).and_then(|(_, rest)| rest.split('"').next()).unwrap_or("?").to_owned()
}
