//! The simple lock: one string key that holds its owner's token.

use std::sync::atomic::{AtomicU8, Ordering};

use redis::{ServerError, Value};

use crate::config::Replicas;
use crate::error::{Error, ErrorKind};
use crate::ident::{LockName, Owner};
use crate::seam::{Attempt, Claim, Release, Snapshot};
use crate::stores::redis::conn::connections::Connections;
use crate::stores::redis::conn::dialog::Dialog;
use crate::stores::redis::kinds::mutex::{decoded, tagged};
use crate::stores::redis::reply::{
    Expected, Failure, Tagged, accepted, is_unknown_command, owner_text, refusal, ttl, unexpected,
};
use crate::stores::redis::script::{Command, TOKEN_ACQUIRE, TOKEN_RELEASE, TOKEN_RENEW};
use crate::time::{Moment, millis};

type Outcome<T> = std::result::Result<T, Failure>;

/// Which single command of the server's deletes a key only if it has a certain value; `NONE`: WATCH and MULTI do it.
/// Only used where scripts may not be.
#[derive(Debug)]
pub(crate) struct CompareAndDelete(AtomicU8);

impl CompareAndDelete {
    /// Valkey 9's, then Redis 8.4's; which it is, is found out once.
    const COMMANDS: [&str; 2] = ["DELIFEQ", "DELEX"];

    pub(crate) fn new() -> CompareAndDelete {
        CompareAndDelete(AtomicU8::new(0))
    }

    fn command(&self) -> Option<&'static str> {
        Self::COMMANDS.get(usize::from(self.0.load(Ordering::Relaxed))).copied()
    }

    fn rule_out(&self, command: &str) {
        if let Some(index) = Self::COMMANDS.iter().position(|other| *other == command) {
            self.0.fetch_max(u8::try_from(index + 1).unwrap_or(u8::MAX), Ordering::Relaxed);
        }
    }

    fn on(name: &str, lock: &str, token: &str) -> Command {
        let command = Command::new(name).arg(lock);
        if name == "DELEX" { command.arg("IFEQ").arg(token) } else { command.arg(token) }
    }
}

pub(crate) fn attempt(
    connections: &Connections,
    scripts: bool,
    replicas: Option<Replicas>,
    claim: &Claim,
    count: u32,
    deadline: Moment,
) -> Outcome<Attempt> {
    if count != 1 {
        let words = "a token lock is not reentrant";
        return Err(Failure::Refused(Error::new(ErrorKind::Unsupported, "request", words)));
    }
    let (lock, token) = (claim.name.key(), claim.owner.to_string());
    let set = Command::new("SET").arg(lock).arg(&token).arg("NX").arg("PX").arg(millis(claim.lease));
    let commands = vec![set, Command::new("PTTL").arg(lock), Command::new("GET").arg(lock)];
    let mut replies = Vec::with_capacity(commands.len());
    let result = match replicas {
        Some(replicas) => connections.dialog(deadline, |dialog| {
            let undo = |dialog: &mut Dialog<'_>| remove(dialog, lock, &token).map(|ended| ended.is_none());
            let said = replicas.attempt(dialog, commands, |set| *set == Value::Okay, undo)?;
            replies.extend(said.into_iter().map(Some));
            Ok(())
        }),
        None => connections.dialog(deadline, |dialog| dialog.collect(&commands, &mut replies).map(drop)),
    };
    let mut replies = replies.into_iter().flatten();
    // SET's answer decides; if it was read, it does not matter what became of the others.
    match replies.next().map(accept).transpose()? {
        None => return Err(result.err().unwrap_or_else(|| Failure::Unknown(unexpected(&Value::Nil)))),
        Some(Value::Okay) => return Ok(Attempt::Granted { fence: None }),
        Some(Value::Nil) => {}
        Some(other) => return decoded(Err(unexpected(&other))),
    }
    let ttl_ms = replies.next().map(accept).transpose()?;
    let holder = replies.next().map(accept).transpose()?;
    match (ttl_ms, holder) {
        // Left by an earlier attempt whose answer was lost.
        (_, Some(Value::BulkString(holder))) if holder == token.as_bytes() => {
            Ok(if renew(connections, scripts, claim, deadline)? {
                Attempt::Granted { fence: None }
            } else {
                Attempt::Busy { retry_after: Some(std::time::Duration::ZERO) }
            })
        }
        (Some(Value::Int(ttl_ms)), _) => Ok(Attempt::Busy { retry_after: ttl(ttl_ms) }),
        _ => Ok(Attempt::Busy { retry_after: None }),
    }
}

pub(crate) fn release(
    connections: &Connections,
    scripts: bool,
    compare_and_delete: &CompareAndDelete,
    claim: &Claim,
    deadline: Moment,
) -> Outcome<Release> {
    let (lock, token) = (claim.name.key(), claim.owner.to_string());
    if scripts {
        return freed(&tagged(connections.call(&removal(claim), deadline)?, Expected::Token)?);
    }
    while let Some(command) = compare_and_delete.command() {
        match accepted(connections.call(&CompareAndDelete::on(command, lock, &token), deadline)?) {
            Ok(Value::Int(0)) => {
                return connections
                    .dialog(deadline, |dialog| Ok(Release::NotHeld { holder: holder(dialog, lock)? }));
            }
            Ok(Value::Int(_)) => return Ok(Release::Freed { others: 0 }),
            Ok(other) => return decoded(Err(unexpected(&other))),
            // Unknown to the server, or not allowed to this user: then the other way.
            Err(error) if is_unknown_command(&error) || error.code() == "NOPERM" => {
                compare_and_delete.rule_out(command);
            }
            Err(error) => return Err(refused(&error)),
        }
    }
    connections.dialog(deadline, |dialog| {
        Ok(remove(dialog, lock, &token)?
            .map_or(Release::Freed { others: 0 }, |holder| Release::NotHeld { holder }))
    })
}

/// Deletes the key if it has the token, without a script; else returns whose it is.
fn remove(dialog: &mut Dialog<'_>, lock: &str, token: &str) -> Outcome<Option<Option<String>>> {
    loop {
        match watched(dialog, lock, token, |_| Some(Command::new("DEL").arg(lock)))? {
            Watched::Done => return Ok(None),
            Watched::Other(deadline) => return Ok(Some(deadline)),
            Watched::Changed => {}
        }
    }
}

/// The reply of a release by script.
pub(crate) fn freed(reply: &Tagged) -> Outcome<Release> {
    decoded(match reply.tag() {
        b"freed" => Ok(Release::Freed { others: 0 }),
        b"not_held" => reply.text(1).map(|holder| Release::NotHeld { holder }),
        _ => Err(reply.unexpected()),
    })
}

/// An acquire by script.
pub(crate) fn acquisition(claim: &Claim) -> Command {
    TOKEN_ACQUIRE.on(&[claim.name.key()]).arg(claim.owner.to_string()).arg(millis(claim.lease))
}

/// A release by script.
pub(crate) fn removal(claim: &Claim) -> Command {
    TOKEN_RELEASE.on(&[claim.name.key()]).arg(claim.owner)
}

/// A renewal by script.
pub(crate) fn renewal(claim: &Claim) -> Command {
    TOKEN_RENEW.on(&[claim.name.key()]).arg(claim.owner).arg(millis(claim.lease))
}

/// One renewal outside a batch; without scripts, the only way.
pub(crate) fn renew(
    connections: &Connections,
    scripts: bool,
    claim: &Claim,
    deadline: Moment,
) -> Outcome<bool> {
    if scripts {
        return crate::stores::redis::kinds::mutex::renewed(
            connections.call(&renewal(claim), deadline)?,
            Expected::Token,
        );
    }
    let (lock, token) = (claim.name.key(), claim.owner.to_string());
    let lease_ms = millis(claim.lease);
    connections.renewal_dialog(deadline, |dialog| {
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
) -> Outcome<Watched> {
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
    let replies: Vec<Value> = replies.into_iter().map(accept).collect::<Outcome<_>>()?;
    match replies.into_iter().next_back() {
        Some(Value::Array(mut done)) => match done.pop().map(accept).transpose()? {
            Some(Value::Int(1)) => Ok(Watched::Done),
            _ => Ok(Watched::Changed),
        },
        Some(Value::Nil) => Ok(Watched::Changed),
        other => decoded(Err(unexpected(&other.unwrap_or(Value::Nil)))),
    }
}
/// What the replies to WATCH, GET and PTTL call for: the change, or else how it ends.
fn decide(
    replies: Vec<Value>,
    token: &str,
    change: impl FnOnce(i64) -> Option<Command>,
) -> std::result::Result<Command, Outcome<Watched>> {
    let replies: Vec<Value> = replies.into_iter().map(accept).collect::<Outcome<_>>().map_err(Err)?;
    match replies.as_slice() {
        [_, Value::BulkString(value), Value::Int(ttl_ms)] if value == token.as_bytes() => {
            change(*ttl_ms).ok_or(Ok(Watched::Done))
        }
        [_, Value::BulkString(value), _] => Err(Ok(Watched::Other(Some(owner_text(value))))),
        _ => Err(Ok(Watched::Other(None))),
    }
}

fn holder(dialog: &mut Dialog<'_>, lock: &str) -> Outcome<Option<String>> {
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

pub(crate) fn inspect(
    connections: &Connections,
    name: &LockName,
    owner: Owner,
    deadline: Moment,
) -> Outcome<Option<Snapshot>> {
    let lock = name.key();
    let commands = [Command::new("GET").arg(lock), Command::new("PTTL").arg(lock)];
    let mut replies = connections.dialog(deadline, |dialog| dialog.say(&commands))?.into_iter().map(accept);
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

/// Looks first: what is no token lock is not ours to delete.
pub(crate) fn force(connections: &Connections, name: &LockName, deadline: Moment) -> Outcome<bool> {
    let lock = name.key();
    connections.dialog(deadline, |dialog| {
        if holder(dialog, lock)?.is_none() {
            return Ok(false);
        }
        let reply = dialog.say(&[Command::new("DEL").arg(lock)])?.pop().unwrap_or(Value::Nil);
        Ok(accept(reply)? == Value::Int(1))
    })
}

fn accept(reply: Value) -> Outcome<Value> {
    accepted(reply).map_err(|error| refused(&error))
}

fn refused(error: &ServerError) -> Failure {
    Failure::Refused(refusal(error, Expected::Token))
}
