//! Describes the object under a name. The types of its keys, and what they contain, show its kind.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::Result;
use crate::ident::{FencingToken, LockName, Owner};
use crate::inspect::{Holder, Inspection, Location, Mode, ObjectKind, PermitInfo, Waiter};
use crate::seam::{Answer, Failure};
use crate::stores::redis::conn::connections::Connections;
use crate::stores::redis::keys::{self, Part};
use crate::stores::redis::reply::{bytes, decoded, done, list, number, owner_text, ttl, unexpected};
use crate::stores::redis::script::{Command, SHOW};
use crate::time::Moment;

const MOST: u32 = 100;

/// Fields of a lock's hash beside the owner; see `lua/show.lua`.
const ABOUT: &str = "leasehold:about";
const CACHED: &str = "leasehold:cached";

/// Redisson writes this as the end of a lease that never ends.
const FOR_EVER_MS: i64 = 922_337_203_685_477;

pub(super) fn describe(
    connections: &Arc<Connections>,
    name: &LockName,
    deadline: Moment,
) -> Answer<Inspection> {
    let key = name.key();
    let channels =
        [keys::channel(key), keys::rw_channel(key), keys::permits_channel(key), keys::latch_channel(key)];
    read(name, connections.call(request(name, &channels), deadline)?)
}

pub(super) fn request(name: &LockName, channels: &[String]) -> Command {
    let key = name.key();
    let keys = [
        key.to_owned(),
        keys::fence_counter(key),
        keys::before(Part::FairQueue, key),
        keys::before(Part::FairTimeouts, key),
        keys::before(Part::FairHeartbeats, key),
        keys::permits_out(key),
    ];
    let command = SHOW.on(&keys).arg(keys::in_braces(key)).arg(MOST);
    channels.iter().fold(command, |command, channel| command.arg(channel))
}

pub(super) fn read(name: &LockName, reply: Value) -> Answer<Inspection> {
    let reply = done(reply).map_err(Failure::Refused)?;
    decoded(Shown::read(&reply).and_then(|shown| shown.told(name.given())))
}

/// The reply of `lua/show.lua`, in its order.
struct Shown<'a> {
    kind: String,
    ttl_ms: i64,
    now_ms: i64,
    fence: String,
    value: &'a [u8],
    back: i64,
    acquired: i64,
    permits: &'a [Value],
    holders: &'a [Value],
    waiting: i64,
    waiters: &'a [Value],
    listeners: &'a [Value],
    queued: i64,
    wait_queue: &'a [Value],
    writers_wait: i64,
}

struct Field {
    name: String,
    value: String,
    /// The remaining time of a read hold: the longest of the keys that mark its levels.
    ttl_ms: i64,
}

impl Field {
    fn count(&self) -> Option<u32> {
        self.value.parse().ok()
    }
}

impl<'a> Shown<'a> {
    fn read(reply: &'a Value) -> Result<Shown<'a>> {
        let mut parts = list(reply)?.iter();
        let mut next = || parts.next().ok_or_else(|| unexpected(reply));
        Ok(Shown {
            kind: text(next()?)?,
            ttl_ms: number(next()?)?,
            now_ms: number(next()?)?,
            fence: text(next()?)?,
            value: bytes(next()?)?,
            back: number(next()?)?,
            acquired: number(next()?)?,
            permits: list(next()?)?,
            holders: list(next()?)?,
            waiting: number(next()?)?,
            waiters: list(next()?)?,
            listeners: list(next()?)?,
            queued: number(next()?)?,
            wait_queue: list(next()?)?,
            writers_wait: number(next()?)?,
        })
    }

    fn told(&self, name: &str) -> Result<Inspection> {
        let mut seen = Inspection::new(name, ObjectKind::Absent);
        seen.fencing_token = self.fence.parse().ok().map(FencingToken::new);
        seen.remaining = (self.ttl_ms != -2).then(|| ttl(self.ttl_ms).unwrap_or(Duration::MAX));
        self.waiters(&mut seen)?;
        match self.kind.as_str() {
            "none" => seen.kind = self.lock(&seen).unwrap_or(ObjectKind::Absent),
            "hash" => seen.kind = self.hash(&mut seen)?,
            "string" => seen.kind = self.string(&mut seen)?,
            other => seen.kind = ObjectKind::Foreign { what: format!("a {other}") },
        }
        seen.listeners = match seen.kind {
            ObjectKind::Lock | ObjectKind::FencedLock | ObjectKind::GroupLock => self.listeners(0),
            ObjectKind::ReadWriteLock { .. } => self.listeners(1),
            ObjectKind::Semaphore | ObjectKind::ExpirableSemaphore => self.listeners(2),
            ObjectKind::CountDownLatch => self.listeners(3),
            _ => None,
        };
        Ok(seen)
    }

    /// The number of listeners of one of the channels. `None` if not asked, or if the user may not ask.
    fn listeners(&self, channel: usize) -> Option<u64> {
        let told = self.listeners.get(channel).and_then(|told| number(told).ok());
        told.and_then(|told| u64::try_from(told).ok())
    }

    fn waiters(&self, seen: &mut Inspection) -> Result<()> {
        seen.waiting = u64::try_from(self.waiting.saturating_add(self.queued)).unwrap_or(0);
        for [owner, until_ms] in self.waiters.as_chunks::<2>().0 {
            let remaining = Some(self.left(number(until_ms)?));
            seen.waiters.push(Waiter::new(text(owner)?, remaining));
        }
        for [client, waited_ms] in self.wait_queue.as_chunks::<2>().0 {
            let waiting_for = u64::try_from(number(waited_ms)?).ok().map(Duration::from_millis);
            seen.waiters.push(Waiter { waiting_for, ..Waiter::new(text(client)?, None) });
        }
        Ok(())
    }

    fn left(&self, until_ms: i64) -> Duration {
        Duration::from_millis(u64::try_from(until_ms.saturating_sub(self.now_ms)).unwrap_or(0))
    }

    fn lock(&self, seen: &Inspection) -> Option<ObjectKind> {
        if self.waiting > 0 {
            return Some(ObjectKind::FairLock);
        }
        seen.fencing_token.map(|_| ObjectKind::FencedLock)
    }

    fn hash(&self, seen: &mut Inspection) -> Result<ObjectKind> {
        let mut fields = Vec::new();
        for [name, value, ttl_ms] in self.holders.as_chunks::<3>().0 {
            fields.push(Field { name: text(name)?, value: text(value)?, ttl_ms: number(ttl_ms)? });
        }
        let about = fields.iter().position(|field| field.name == ABOUT).map(|at| fields.remove(at));
        fields.retain(|field| field.name != CACHED);
        let mode = fields.iter().position(|field| field.name == "mode").map(|at| fields.remove(at));
        if fields.iter().any(|field| field.name.ends_with(":lock_count")) {
            seen.holders = self.group(&fields);
            let is_group = seen.holders.iter().all(|holder| Owner::is_one(&holder.owner));
            return Ok(if is_group {
                ObjectKind::GroupLock
            } else {
                seen.holders.clear();
                a_hash()
            });
        }
        let mode = match mode.as_ref().map(|mode| mode.value.as_str()) {
            None => None,
            Some("read") => Some(Mode::Read),
            Some("write") => Some(Mode::Write),
            Some(_) => return Ok(a_hash()),
        };
        let owners: Option<Vec<Holder>> = fields.iter().map(|field| self.holder(field, mode)).collect();
        // A hash with a field that is no owner belongs to another program, so its content is not shown.
        let is_owner = |holder: &Holder| Owner::is_one(&holder.owner);
        let Some(holders) = owners.filter(|all| !all.is_empty() && all.iter().all(is_owner)) else {
            return Ok(a_hash());
        };
        seen.holders = holders;
        if let Some(about) = about {
            self.add_location(&about.value, seen);
        }
        seen.writers_wait = self.writers_wait % 2 == 1;
        seen.a_writer_waits_long = self.writers_wait >= 2;
        Ok(match mode {
            Some(mode) => ObjectKind::ReadWriteLock { mode },
            None => self.lock(seen).unwrap_or(ObjectKind::Lock),
        })
    }

    fn holder(&self, field: &Field, mode: Option<Mode>) -> Option<Holder> {
        let (owner, mode, ttl_ms) = match (mode, field.name.strip_suffix(":write")) {
            (None, _) => (&*field.name, None, self.ttl_ms),
            (Some(_), Some(writer)) => (writer, Some(Mode::Write), self.ttl_ms),
            (Some(_), None) => (&*field.name, Some(Mode::Read), field.ttl_ms),
        };
        // -2: no key marks the read hold any more, so for Redisson it has ended; -3: the time was not read.
        let remaining = if ttl_ms == -3 { None } else { ttl(ttl_ms) };
        Some(Holder { hold_count: Some(field.count()?), mode, remaining, ..Holder::new(owner.to_owned()) })
    }

    /// Reads Redisson's lock of several values in one key. Each value has an owner, an end and a count.
    fn group(&self, fields: &[Field]) -> Vec<Holder> {
        let held = fields.iter().filter_map(|field| {
            let hold = field.name.strip_suffix(":lock_count")?;
            // `hold` is `value:owner`, and an owner contains one colon.
            let (at, _) = hold.rmatch_indices(':').nth(1)?;
            let owner = hold.get(at + 1..)?;
            let ends = fields.iter().find(|other| other.name == format!("{hold}:expire_time"));
            let remaining = ends.and_then(|ends| ends.value.parse().ok()).map(|ends| self.left(ends));
            Some(Holder { hold_count: field.count(), remaining, ..Holder::new(owner.to_owned()) })
        });
        held.collect()
    }

    /// Adds what the note `owner since_ms ends_ms pid host thread` says, if this owner still holds the lock.
    fn add_location(&self, about: &str, seen: &mut Inspection) {
        let mut words = about.splitn(6, ' ');
        let mut next = || words.next().unwrap_or_default();
        let (owner, since, ends) = (next(), next().parse::<i64>(), next().parse::<i64>());
        let (pid, host, thread) = (next().parse(), next().to_owned(), next().to_owned());
        let Some(holder) = seen.holders.iter_mut().find(|holder| holder.owner == owner) else { return };
        let since = since.ok().and_then(|since| u64::try_from(self.now_ms.saturating_sub(since)).ok());
        holder.held_for = since.map(Duration::from_millis);
        holder.ends_within = ends.ok().map(|ends| self.left(ends));
        holder.location = pid.ok().map(|pid| Location::new(host, pid, thread));
    }

    fn string(&self, seen: &mut Inspection) -> Result<ObjectKind> {
        let Some(count) = std::str::from_utf8(self.value).ok().and_then(|text| text.parse::<i64>().ok())
        else {
            let owner = owner_text(self.value);
            // Another library's token may be secret, so only `RedisLock::holder` shows it.
            if !Owner::is_one(&owner) {
                return Ok(ObjectKind::Foreign { what: "a string".to_owned() });
            }
            let holder = Holder::new(owner);
            seen.holders.push(Holder { hold_count: Some(1), remaining: ttl(self.ttl_ms), ..holder });
            return Ok(ObjectKind::TokenLock);
        };
        seen.count = Some(count.saturating_add(self.back));
        seen.permits_out = u64::try_from(self.acquired).unwrap_or(0);
        for [id, ends_ms] in self.permits.as_chunks::<2>().0 {
            let id = bytes(id)?.iter().map(|byte| format!("{byte:02x}")).collect();
            let ends_ms = text(ends_ms)?.parse::<f64>().map_or(i64::MAX, whole);
            let remaining = if ends_ms >= FOR_EVER_MS { Duration::MAX } else { self.left(ends_ms) };
            seen.permits.push(PermitInfo { id, by_this_client: false, remaining });
        }
        let is_heard = |channel| self.listeners(channel).is_some_and(|listeners| listeners > 0);
        let (permits, latch) = (is_heard(2), is_heard(3));
        Ok(match (self.acquired > 0 || self.back > 0, count > 0) {
            (true, _) => ObjectKind::ExpirableSemaphore,
            (false, false) => ObjectKind::Semaphore,
            (false, true) if permits && !latch => ObjectKind::Semaphore,
            (false, true) if latch && !permits => ObjectKind::CountDownLatch,
            (false, true) => ObjectKind::Counter,
        })
    }
}

fn a_hash() -> ObjectKind {
    ObjectKind::Foreign { what: "a hash".to_owned() }
}

#[expect(clippy::cast_possible_truncation, reason = "what is too large is for ever all the same")]
fn whole(score: f64) -> i64 {
    score as i64
}

fn text(value: &Value) -> Result<String> {
    Ok(match value {
        Value::SimpleString(text) => owner_text(text.as_bytes()),
        other => owner_text(bytes(other)?),
    })
}
