//! The simple lock: one string key that holds its owner's token.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::ident::{LockName, Owner};
use crate::seam::{Answer, Attempt, Claim, Failure, Others, Release, Snapshot};
use crate::stores::redis::acks::{Grant, Scriptless};
use crate::stores::redis::conn::dialog::Dialog;
use crate::stores::redis::kinds::kind::{RedisKind, unsupported};
use crate::stores::redis::kinds::replies;
use crate::stores::redis::reply::{
    Expected, Tagged, accepted, decoded, owner_text, refusal, ttl, unexpected,
};
use crate::stores::redis::script::{
    Command, RING_TOKEN_ACQUIRE, Script, TOKEN_ACQUIRE, TOKEN_RELEASE, TOKEN_RENEW,
};
use crate::stores::redis::server::{QueueRights, RedisCall};
use crate::time::millis;

/// The lock by token.
pub(super) struct TokenKind;

impl RedisKind for TokenKind {
    fn channel(&self, _claim: &Claim) -> Option<String> {
        None
    }

    fn acquisition(&self, claim: &Claim, _count: u32, _link: u32) -> Command {
        TOKEN_ACQUIRE.on(&[claim.name.key()]).arg(claim.owner.to_string()).arg(millis(claim.lease))
    }

    fn removal(&self, claim: &Claim, _left: u32) -> Command {
        TOKEN_RELEASE.on(&[claim.name.key()]).arg(claim.owner)
    }

    fn renewal(&self, claim: &Claim) -> Option<Command> {
        Some(renewal(claim))
    }

    fn guarded(&self) -> Option<&'static Script> {
        Some(&RING_TOKEN_ACQUIRE)
    }

    fn released(&self, reply: &Tagged, _own_listeners: i64, _rights: &QueueRights) -> Answer<Release> {
        freed(reply)
    }

    fn attempt(&self, call: &RedisCall<'_>, claim: &Claim, count: u32) -> Answer<Attempt> {
        if count != 1 {
            return Err(unsupported("a token lock is not reentrant"));
        }
        let (lock, token) = (claim.name.key(), claim.owner.to_string());
        let set = Command::new("SET").arg(lock).arg(&token).arg("NX").arg("PX").arg(millis(claim.lease));
        let commands = [set, Command::new("PTTL").arg(lock), Command::new("GET").arg(lock)];
        let mut replies = Vec::with_capacity(commands.len());
        let result =
            call.server.connections.dialog(call.deadline, |dialog| dialog.collect(&commands, &mut replies));
        let mut replies = replies.into_iter().flatten();
        // SET's answer decides; if it was read, it does not matter what became of the others.
        match replies.next().map(accept).transpose()? {
            None => return Err(result.err().unwrap_or_else(|| Failure::Unknown(unexpected(&Value::Nil)))),
            Some(Value::Okay) => return call.confirmed(|| self.grant(claim), Attempt::granted(None)),
            Some(Value::Nil) => {}
            Some(other) => return decoded(Err(unexpected(&other))),
        }
        let ttl_ms = replies.next().map(accept).transpose()?;
        let holder = replies.next().map(accept).transpose()?;
        match (ttl_ms, holder) {
            // Left by an earlier attempt whose answer was lost.
            (_, Some(Value::BulkString(holder))) if holder == token.as_bytes() => {
                if !renew(call, claim)? {
                    return Ok(Attempt::Busy { retry_after: Some(Duration::ZERO) });
                }
                call.confirmed(|| self.grant(claim), Attempt::granted(None))
            }
            (Some(Value::Int(ttl_ms)), _) => Ok(Attempt::Busy { retry_after: ttl(ttl_ms) }),
            _ => Ok(Attempt::Busy { retry_after: None }),
        }
    }

    fn release(&self, call: &RedisCall<'_>, claim: &Claim, _left: u32) -> Answer<Release> {
        let (lock, token) = (claim.name.key(), claim.owner.to_string());
        if call.server.scripts {
            let command = self.removal(claim, 0);
            return freed(&call.ask(&command, Expected::Token)?);
        }
        call.server.connections.dialog(call.deadline, |dialog| {
            Ok(remove(dialog, lock, &token)?
                .map_or(Release::Freed { others: Others::Nobody }, |holder| Release::NotHeld { holder }))
        })
    }

    fn renew_without_scripts(&self, call: &RedisCall<'_>, claim: &Claim) -> Answer<bool> {
        let (lock, token) = (claim.name.key(), claim.owner.to_string());
        let lease_ms = millis(claim.lease);
        call.server.connections.renewal_dialog(call.deadline, |dialog| {
            loop {
                let expire = |ttl_ms: i64| {
                    let is_short = u64::try_from(ttl_ms).map_or(true, |ttl_ms| ttl_ms < lease_ms);
                    is_short.then(|| Command::new("PEXPIRE").arg(lock).arg(lease_ms))
                };
                match watched(dialog, lock, &token, expire)? {
                    Watched::Done => return Ok(true),
                    Watched::Other(_) => return Ok(false),
                    Watched::Changed => {}
                }
            }
        })
    }

    fn grant(&self, claim: &Claim) -> Grant {
        let token = claim.owner.to_string();
        Grant {
            lock: Arc::clone(&claim.name),
            check: Command::new("GET").arg(claim.name.key()),
            expected: Value::BulkString(token.clone().into_bytes()),
            undo: self.removal(claim, 0),
            scriptless: Some(Scriptless {
                token,
                touch,
                undo: |dialog, lock, token| remove(dialog, lock, token).map(|ended| ended.is_none()),
            }),
        }
    }

    fn expire_in(&self, _call: &RedisCall<'_>, _claim: &Claim, _rest: Duration) -> Answer<bool> {
        Err(unsupported("not with a token lock"))
    }

    fn inspect(&self, call: &RedisCall<'_>, name: &LockName, owner: Owner) -> Answer<Option<Snapshot>> {
        let lock = name.key();
        let commands = [Command::new("GET").arg(lock), Command::new("PTTL").arg(lock)];
        let mut replies = call
            .server
            .connections
            .dialog(call.deadline, |dialog| dialog.say(&commands))?
            .into_iter()
            .map(accept);
        let (holder, ttl_ms) = (replies.next().transpose()?, replies.next().transpose()?);
        Ok(match (holder, ttl_ms) {
            (Some(Value::BulkString(value)), Some(Value::Int(ttl_ms))) if ttl_ms != -2 => Some(Snapshot {
                count: u32::from(value == owner.to_string().as_bytes()),
                holder: owner_text(&value),
                remaining: ttl(ttl_ms),
            }),
            _ => None,
        })
    }

    /// Looks first: a key that is no token lock is not ours to delete.
    fn force(&self, call: &RedisCall<'_>, name: &LockName) -> Answer<bool> {
        let lock = name.key();
        call.server.connections.dialog(call.deadline, |dialog| {
            if holder(dialog, lock)?.is_none() {
                return Ok(false);
            }
            let reply = dialog.say(&[Command::new("DEL").arg(lock)])?.pop().unwrap_or(Value::Nil);
            Ok(accept(reply)? == Value::Int(1))
        })
    }
}

fn renewal(claim: &Claim) -> Command {
    TOKEN_RENEW.on(&[claim.name.key()]).arg(claim.owner).arg(millis(claim.lease))
}

/// One renewal outside a batch.
fn renew(call: &RedisCall<'_>, claim: &Claim) -> Answer<bool> {
    if !call.server.scripts {
        return TokenKind.renew_without_scripts(call, claim);
    }
    replies::renewed(&call.ask(&renewal(claim), Expected::Token)?)
}

/// The reply of a release by script.
fn freed(reply: &Tagged) -> Answer<Release> {
    decoded(match reply.tag() {
        b"freed" => Ok(Release::Freed { others: Others::Nobody }),
        b"not_held" => reply.text(1).map(|holder| Release::NotHeld { holder }),
        _ => Err(reply.unexpected()),
    })
}

/// Deletes the key if it has the token, without a script; else returns whose it is.
fn remove(dialog: &mut Dialog<'_>, lock: &str, token: &str) -> Answer<Option<Option<String>>> {
    loop {
        match watched(dialog, lock, token, |_| Some(Command::new("DEL").arg(lock)))? {
            Watched::Done => return Ok(None),
            Watched::Other(holder) => return Ok(Some(holder)),
            Watched::Changed => {}
        }
    }
}

/// Writes the key's expiry again as it is, if the key has the token.
fn touch(dialog: &mut Dialog<'_>, lock: &str, token: &str) -> Answer<bool> {
    loop {
        let again = |ttl_ms: i64| Some(Command::new("PEXPIRE").arg(lock).arg(ttl_ms.max(1)));
        match watched(dialog, lock, token, again)? {
            Watched::Done => return Ok(true),
            Watched::Other(_) => return Ok(false),
            Watched::Changed => {}
        }
    }
}

enum Watched {
    Done,
    /// The key has another's token, or is not there.
    Other(Option<String>),
    /// Somebody changed the key meanwhile.
    Changed,
}

/// If the key has the token, does to it what `change` makes of its PTTL, and nothing in between.
fn watched(
    dialog: &mut Dialog<'_>,
    lock: &str,
    token: &str,
    change: impl FnOnce(i64) -> Option<Command>,
) -> Answer<Watched> {
    let look = ["WATCH", "GET", "PTTL"].map(|command| Command::new(command).arg(lock));
    let replies = dialog.say(&look).map_err(Failure::of_reading)?;
    let change = match decide(replies, token, change) {
        Ok(change) => change,
        Err(ended) => {
            dialog.say(&[Command::new("UNWATCH")]).map_err(Failure::of_reading)?;
            return ended;
        }
    };
    let replies = dialog.say(&[Command::new("MULTI"), change, Command::new("EXEC")])?;
    // If MULTI or the change is refused, EXEC is too, and nothing was done.
    let replies: Vec<Value> = replies.into_iter().map(accept).collect::<Answer<_>>()?;
    match replies.into_iter().next_back() {
        Some(Value::Array(mut done)) => match done.pop().map(accept).transpose()? {
            Some(Value::Int(1)) => Ok(Watched::Done),
            _ => Ok(Watched::Changed),
        },
        Some(Value::Nil) => Ok(Watched::Changed),
        other => decoded(Err(unexpected(&other.unwrap_or(Value::Nil)))),
    }
}
/// The change that the replies to WATCH, GET and PTTL call for, or else how it ends.
fn decide(
    replies: Vec<Value>,
    token: &str,
    change: impl FnOnce(i64) -> Option<Command>,
) -> std::result::Result<Command, Answer<Watched>> {
    let replies: Vec<Value> = replies.into_iter().map(accept).collect::<Answer<_>>().map_err(Err)?;
    match replies.as_slice() {
        [_, Value::BulkString(value), Value::Int(ttl_ms)] if value == token.as_bytes() => {
            change(*ttl_ms).ok_or(Ok(Watched::Done))
        }
        [_, Value::BulkString(value), _] => Err(Ok(Watched::Other(Some(owner_text(value))))),
        _ => Err(Ok(Watched::Other(None))),
    }
}

fn holder(dialog: &mut Dialog<'_>, lock: &str) -> Answer<Option<String>> {
    let reply = dialog
        .say(&[Command::new("GET").arg(lock)])
        .map_err(Failure::of_reading)?
        .pop()
        .unwrap_or(Value::Nil);
    Ok(match accept(reply)? {
        Value::BulkString(value) => Some(owner_text(&value)),
        _ => None,
    })
}

fn accept(reply: Value) -> Answer<Value> {
    accepted(reply).map_err(|error| Failure::Refused(refusal(&error, Expected::Token)))
}
