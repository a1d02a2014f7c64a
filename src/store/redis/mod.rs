//! One Redis (or Valkey) server.
//!
//! `mutex` and `token` say what is asked and what the answers mean; `wire` carries requests, mostly over its `lane`s,
//! and `hub` and its `reader` wake-ups, all over connections made by `handshake` on the sockets of `link`.

mod address;
mod handshake;
mod hub;
mod keys;
mod lane;
mod link;
mod mutex;
mod reader;
mod reply;
mod script;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod wire;

#[cfg(leasehold_shuttle)]
#[cfg(test)]
mod model;
#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::config::RedisOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::lock::report::Reporter;
use crate::lock::store::{Answer, Attempt, Claim, HandOver, Kind, Pending, Release, Sink, Snapshot, Store};
use crate::lock::topic::Listening;
use crate::sync::channel::Sender;
use crate::time::{Clock, Moment};
use address::Address;
use hub::Hub;
use reply::{Expected, Failure, answer};
use script::Request;
use token::CompareAndDelete;
use wire::{Started, Wire};

/// Keeps locks on one server.
#[derive(Debug)]
pub(crate) struct RedisStore {
    wire: Wire,
    hub: Arc<Hub>,
    /// Whether scripts may be used.
    scripts: bool,
    compare_and_delete: CompareAndDelete,
}

impl RedisStore {
    /// Connects and checks that the server can keep locks.
    pub(crate) fn connect(options: &RedisOptions, reporter: Arc<Reporter>) -> Result<RedisStore> {
        let address = Arc::new(Address::new(options)?);
        let wire = Wire::open(Arc::clone(&address), options.pool_size, options.command_timeout)?;
        if options.scripts {
            let probe = Request::new("EVAL").arg("return 1").arg(0);
            let reply = wire.call(&probe, Clock::System.after(options.command_timeout));
            let reply = reply.map_err(|failure| failure.into_error().during("connect"))?;
            reply::accepted(reply).map_err(|error| scripts_refused(&error))?;
        }
        Ok(RedisStore {
            wire,
            hub: Hub::new(address, reporter, options.linger, hub::SILENCE),
            scripts: options.scripts,
            compare_and_delete: CompareAndDelete::new(),
        })
    }

    /// One request for each claim, on the connection for renewals.
    fn batch<T>(
        &self,
        claims: &[Claim],
        action: &'static str,
        by: Moment,
        ask: impl Fn(&Claim) -> Request,
        read: impl Fn(redis::Value, Expected) -> std::result::Result<T, Failure>,
    ) -> Vec<Answer<T>> {
        let requests: Vec<_> = claims.iter().map(ask).collect();
        let replies = self.wire.batch(&requests, by);
        let answers = claims.iter().zip(replies).map(|(claim, reply)| {
            let expected = if claim.kind.is_token() { Expected::Token } else { Expected::Hash };
            answer(reply.and_then(|reply| read(reply, expected)), action, claim.name.given())
        });
        answers.collect()
    }

    /// How many of those who hear of the lock are this client itself.
    fn own_listeners(&self, claim: &Claim) -> i64 {
        i64::from(self.heard(claim.kind, &claim.name).is_some())
    }

    fn renew_one(&self, claim: &Claim, by: Moment) -> Answer<bool> {
        answer(token::renew(&self.wire, self.scripts, claim, by), "renew", claim.name.given())
    }
}

/// A hand-over that was sent.
struct HandedOver {
    started: Started,
    wants_fence: bool,
    name: Arc<LockName>,
}

impl Pending for HandedOver {
    fn wait(self: Box<Self>) -> Answer<HandOver> {
        let outcome = self.started.wait().and_then(|reply| mutex::handed(reply, self.wants_fence));
        answer(outcome, "lock", self.name.given())
    }
}

fn scripts_refused(error: &redis::ServerError) -> Error {
    let refused = reply::refusal(error, Expected::Nothing).during("connect");
    match refused.kind() {
        ErrorKind::NoPermission | ErrorKind::Unsupported | ErrorKind::Refused => Error::new(
            refused.kind(),
            "connect",
            "the server does not let this user run scripts, which all but token locks need (see without_scripts)",
        )
        .with_source(refused),
        _ => refused,
    }
}

impl Store for RedisStore {
    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        if self.scripts || kind.is_token() {
            return Ok(());
        }
        let words = "this client is set not to use scripts, which all but token locks need";
        Err(Error::new(ErrorKind::Unsupported, "lock", words).on(name.given()))
    }

    fn attempt(&self, claim: &Claim, count: u32, wants_fence: bool, by: Moment) -> Answer<Attempt> {
        let result = match claim.kind {
            Kind::Mutex | Kind::Fenced => mutex::attempt(&self.wire, claim, count, wants_fence, by),
            Kind::Token => token::attempt(&self.wire, self.scripts, claim, count, by),
        };
        answer(result, "lock", claim.name.given())
    }

    fn release(&self, claim: &Claim, left: u32, by: Moment) -> Answer<Release> {
        let result = match claim.kind {
            Kind::Mutex | Kind::Fenced => {
                mutex::release(&self.wire, claim, left, self.own_listeners(claim), by)
            }
            Kind::Token => token::release(&self.wire, self.scripts, &self.compare_and_delete, claim, by),
        };
        answer(result, "unlock", claim.name.given())
    }

    fn release_later(&self, claim: &Claim, by: Moment, done: Sink) {
        if claim.kind.is_token() {
            return done(self.release(claim, 0, by));
        }
        let (own_listeners, name) = (self.own_listeners(claim), Arc::clone(&claim.name));
        let take = Box::new(move |outcome: lane::Outcome| {
            let result = outcome
                .and_then(|reply| mutex::released(&mutex::tagged(reply, Expected::Hash)?, own_listeners));
            done(answer(result, "unlock", name.given()));
        });
        self.wire.post(&mutex::removal(claim, 0), by, take);
    }

    fn hand_over(&self, from: &Claim, to: &Claim, wants_fence: bool, by: Moment) -> Option<Box<dyn Pending>> {
        if from.kind.is_token() {
            return None;
        }
        // What cannot be sent is released the plain way, which says why.
        let started = mutex::hand_over(&self.wire, from, to, wants_fence, by).ok()?;
        Some(Box::new(HandedOver { started, wants_fence, name: Arc::clone(&to.name) }))
    }

    fn tend(&self) -> bool {
        self.wire.tend()
    }

    fn renew(&self, claims: &[Claim], by: Moment) -> Vec<Answer<bool>> {
        if !self.scripts {
            return claims.iter().map(|claim| self.renew_one(claim, by)).collect();
        }
        self.batch(
            claims,
            "renew",
            by,
            |claim| if claim.kind.is_token() { token::renewal(claim) } else { mutex::renewal(claim) },
            mutex::renewed,
        )
    }

    fn abandon(&self, claims: &[Claim], by: Moment) -> Vec<Answer<Release>> {
        if !self.scripts {
            return claims.iter().map(|claim| self.release(claim, 0, by)).collect();
        }
        self.batch(
            claims,
            "unlock",
            by,
            |claim| if claim.kind.is_token() { token::removal(claim) } else { mutex::removal(claim, 0) },
            |reply, expected| match (mutex::tagged(reply, expected)?, expected) {
                (reply, Expected::Token) => token::freed(&reply),
                (reply, _) => mutex::released(&reply, 1),
            },
        )
    }

    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        let result = match kind {
            Kind::Mutex | Kind::Fenced => mutex::inspect(&self.wire, name, owner, by),
            Kind::Token => token::inspect(&self.wire, name, owner, by),
        };
        answer(result.map_err(Failure::of_reading), "inspect", name.given())
    }

    fn force(&self, kind: Kind, name: &LockName, by: Moment) -> Answer<bool> {
        let result = match kind {
            Kind::Mutex | Kind::Fenced => mutex::force(&self.wire, name, by),
            Kind::Token => token::force(&self.wire, name, by),
        };
        answer(result, "force_unlock", name.given())
    }

    fn poll_every(&self, kind: Kind) -> (Duration, Duration) {
        let (least, most) = if kind.is_token() { (50, 100) } else { (1000, 1200) };
        (Duration::from_millis(least), Duration::from_millis(most))
    }

    fn listen(&self, kind: Kind, name: &LockName, waker: &Sender<()>) -> Option<Listening> {
        if kind.is_token() {
            return None;
        }
        self.hub.listen(&keys::channel(name.key()), waker)
    }

    fn heard(&self, kind: Kind, name: &LockName) -> Option<u64> {
        if kind.is_token() {
            return None;
        }
        self.hub.heard(&keys::channel(name.key()))
    }

    fn close(&self) {
        self.hub.close();
        self.wire.close();
    }
}
