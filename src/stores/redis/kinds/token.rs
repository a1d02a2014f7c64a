//! The token lock: a string key whose value (the token) is the owner.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::ident::{LockName, Owner};
use crate::seam::{Answer, Claim, Failure, Others, Release, Snapshot};
use crate::stores::redis::acks::Grant;
use crate::stores::redis::kinds::kind::{RedisCall, RedisKind, unsupported};
use crate::stores::redis::reply::{Tagged, decoded, done, owner_text, ttl};
use crate::stores::redis::script::{Command, TOKEN_ACQUIRE, TOKEN_RELEASE, TOKEN_RENEW};
use crate::time::millis;

pub(super) struct TokenKind;

impl RedisKind for TokenKind {
    fn channel(&self, _claim: &Claim) -> Option<String> {
        None
    }

    fn acquisition(&self, claim: &Claim, _count: u32, _link: u32) -> Command {
        TOKEN_ACQUIRE.on(&[claim.name.key()]).arg(claim.owner).arg(millis(claim.lease))
    }

    fn removal(&self, claim: &Claim, _left: u32) -> Command {
        TOKEN_RELEASE.on(&[claim.name.key()]).arg(claim.owner)
    }

    fn renewal(&self, claim: &Claim) -> Option<Command> {
        Some(TOKEN_RENEW.on(&[claim.name.key()]).arg(claim.owner).arg(millis(claim.lease)))
    }

    fn released(&self, reply: &Tagged, _own_listeners: i64) -> Answer<Release> {
        decoded(match reply.tag() {
            b"freed" => Ok(Release::Freed { others: Others::Nobody }),
            b"not_held" => reply.text(1).map(|holder| Release::NotHeld { holder }),
            _ => Err(reply.unexpected()),
        })
    }

    fn grant(&self, claim: &Claim) -> Grant {
        Grant {
            lock: Arc::clone(&claim.name),
            check: Command::new("GET").arg(claim.name.key()),
            expected: Value::BulkString(claim.owner.to_string().into_bytes()),
            undo: self.removal(claim, 0),
        }
    }

    fn expire_in(&self, _call: &RedisCall<'_>, _claim: &Claim, _rest: Duration) -> Answer<bool> {
        Err(unsupported("not with a token lock"))
    }

    fn inspect(&self, call: &RedisCall<'_>, name: &LockName, owner: Owner) -> Answer<Option<Snapshot>> {
        Ok(match read(call, name)? {
            (Value::BulkString(value), Value::Int(ttl_ms)) if ttl_ms != -2 => Some(Snapshot {
                count: u32::from(value == owner.to_string().as_bytes()),
                holder: owner_text(&value),
                remaining: ttl(ttl_ms),
            }),
            _ => None,
        })
    }

    /// Reads the key first: GET fails for a key of another type, which must not be deleted.
    fn force(&self, call: &RedisCall<'_>, name: &LockName) -> Answer<bool> {
        if let (Value::Nil, _) = read(call, name).map_err(Failure::of_reading)? {
            return Ok(false);
        }
        let reply = call.server.connections.call(Command::new("DEL").arg(name.key()), call.deadline)?;
        Ok(done(reply).map_err(Failure::Refused)? == Value::Int(1))
    }
}

fn read(call: &RedisCall<'_>, name: &LockName) -> Answer<(Value, Value)> {
    let commands = ["GET", "PTTL"].map(|command| Command::new(command).arg(name.key()));
    let replies = call.server.connections.dialog(call.deadline, |dialog| dialog.say(&commands))?;
    let mut replies = replies.into_iter().map(|reply| done(reply).map_err(Failure::Refused));
    let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
    Ok((next()?, next()?))
}
