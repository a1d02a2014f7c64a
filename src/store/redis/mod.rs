//! One Redis (or Valkey) server.
//!
//! `mutex` and `token` say what is asked and what the answers mean; `wire` carries requests, `hub` wake-ups, both over
//! connections made by `handshake` on the sockets of `link`.

mod address;
mod handshake;
mod hub;
mod keys;
mod link;
mod mutex;
mod reply;
mod script;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::config::RedisOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::lock::report::Reporter;
use crate::lock::store::{Answer, Attempt, Claim, Kind, Release, Snapshot, Store};
use crate::lock::topic::Listening;
use crate::time::{Clock, Moment};
use address::Address;
use hub::Hub;
use reply::{Expected, Failure, answer};
use script::Request;
use token::CompareAndDelete;
use wire::Wire;

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

    fn renew_one(&self, claim: &Claim, by: Moment) -> Answer<bool> {
        answer(token::renew(&self.wire, self.scripts, claim, by), "renew", claim.name.given())
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
            Kind::Mutex | Kind::Fenced => mutex::release(&self.wire, claim, left, by),
            Kind::Token => token::release(&self.wire, self.scripts, &self.compare_and_delete, claim, by),
        };
        answer(result, "unlock", claim.name.given())
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
            |reply, expected| mutex::released(&mutex::tagged(reply, expected)?),
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
