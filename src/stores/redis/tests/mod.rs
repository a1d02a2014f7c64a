//! Tests of the store with real servers, and with servers that misbehave.

mod cluster;
mod connections;
mod fake;
mod given_up;
mod harness;
mod hearing;
mod kinds;
#[cfg(leasehold_fuzz)]
pub(super) mod made_up;
mod permits;
mod replicas;
mod rights;
mod ring;
mod scripts;
mod several;
mod subscriber;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod turns;
mod wait_queue;

mod prelude {
    pub(super) use std::collections::BTreeSet;
    pub(super) use std::io::Write;
    pub(super) use std::sync::Arc;
    pub(super) use std::sync::atomic::{AtomicBool, Ordering};
    pub(super) use std::time::Duration;

    pub(super) use crossbeam_channel::{Sender, bounded};
    pub(super) use redis::{Parser, Value};

    pub(super) use crate::LockClient;
    pub(super) use crate::config::ServerOptions;
    pub(super) use crate::copies::{ReplicaRule, Replicas};
    pub(super) use crate::error::ErrorKind;
    pub(super) use crate::ident::{FencingToken, Owner};
    pub(super) use crate::observe::event::Event;
    pub(super) use crate::observe::reporter::Reporter;
    pub(super) use crate::seam::capabilities::{Batches, CachedCheck, HoldCaching, WaitQueues};
    pub(super) use crate::seam::{
        Answer, Attempt, Claim, Counting, Failure, Handoff, Inspect, Kind, Others, QueueMode, Release, Sink,
        Store,
    };
    pub(super) use crate::stores::redis::address::RedisAddress;
    pub(super) use crate::stores::redis::conn::connections::{Connections, maintenance};
    pub(super) use crate::stores::redis::tests::fake::{Act, Fake, GREETING};
    pub(super) use crate::stores::redis::tests::harness::{
        Attempted, Opened, Released, Said, Server, claim, eventually, let_pass, no_store, open, owner,
        reporting, served, soon, take,
    };
    pub(super) use crate::stores::redis::tests::kinds::{
        Messages, again, busy, count, freed, now_ms, of, set_up,
    };
    pub(super) use crate::stores::redis::{RedisStore, kinds};
    pub(super) use crate::sync::{Mutex, Waker};
    pub(super) use crate::time::Clock;
}
