//! Reads the replies that scripts of several kinds have in common.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{FencingToken, Owner};
use crate::seam::capabilities::CachedCheck;
use crate::seam::{
    AFTER_LEASE, AFTER_RESERVATION, Answer, Attempt, Failure, Handoff, ListensFor, Others, Release, Snapshot,
    not_set_up,
};
use crate::stores::redis::reply::{Tagged, decoded, ttl};
use crate::time::random_between;

const AT_ONCE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(1));

/// Scripts return this instead of a number of listeners if they notified the first client of the wait queue.
const NEXT_WAS_NOTIFIED: i64 = -3;

/// The answer to the release of a latch or a condition, which hold nothing.
pub(crate) const NOTHING_HELD: Release = Release::Freed { others: Others::Nobody };

pub(crate) fn attempted(reply: &Tagged, wants_fence: bool) -> Answer<Attempt> {
    decoded(match reply.tag() {
        b"granted" => granted(reply, wants_fence),
        b"busy" => reply.number(1).map(|ttl_ms| Attempt::Busy { retry_after: ttl(ttl_ms) }),
        b"queued" => queued(reply),
        b"lost" => Ok(Attempt::Lost),
        b"none" => return Err(not_set_up()),
        _ => Err(reply.unexpected()),
    })
}

fn granted(reply: &Tagged, wants_fence: bool) -> Result<Attempt> {
    let fence = fence(reply, wants_fence)?;
    let queued = if reply.has(2) { reply.number(2)? } else { 0 };
    Ok(Attempt::Granted { fence, queued: u32::try_from(queued).unwrap_or(0) })
}

fn queued(reply: &Tagged) -> Result<Attempt> {
    let left = ttl(reply.number(1)?);
    let after = |spread| left.map(|left| left + random_between(spread));
    let (spread, listens_for) = match reply.text(2)?.as_deref() {
        Some("reserved") => (AFTER_RESERVATION, ListensFor::OwnTurn),
        Some("ours") => (AFTER_LEASE, ListensFor::OwnTurn),
        Some("foreign") => (AFTER_LEASE, ListensFor::OwnTurnAndReleases),
        // Only the first waiter for permits or a read-write lock polls at a lease's end, so no random delay
        // is needed to separate waiters.
        Some("soon") => (AT_ONCE, ListensFor::OwnTurn),
        Some("any") => (AT_ONCE, ListensFor::OwnTurnAndReleases),
        Some("full") => (AFTER_LEASE, ListensFor::Nothing),
        _ => return Err(reply.unexpected()),
    };
    Ok(Attempt::InWaitQueue { retry_after: after(spread), listens_for, watches: reply.ends_with(b"first") })
}

fn fence(reply: &Tagged, wanted: bool) -> Result<Option<FencingToken>> {
    if !wanted {
        return Ok(None);
    }
    let text = reply.text(1)?.unwrap_or_default();
    let number = text.parse().map_err(|_not_a_number| reply.unexpected())?;
    Ok(Some(FencingToken::new(number)))
}

pub(crate) fn handed(reply: &Tagged, wants_fence: bool) -> Answer<Handoff> {
    decoded(match reply.tag() {
        b"granted" => fence(reply, wants_fence).map(|fence| Handoff::Granted { fence }),
        b"lost" => Ok(Handoff::Lost),
        _ => Err(reply.unexpected()),
    })
}

/// Reads the reply to a release. `own_listeners`: 1 if the release notified this client too, else 0.
pub(super) fn released(reply: &Tagged, own_listeners: i64) -> Answer<Release> {
    decoded(match reply.tag() {
        b"freed" if reply.len() == 0 => Ok(Release::Freed { others: Others::Nobody }),
        b"freed" => reply.number(1).map(|listeners| freed(listeners, own_listeners)),
        b"still_held" => Ok(Release::StillHeld),
        b"no_lock" => return Err(no_lock()),
        b"not_held" => reply.text(1).map(|holder| Release::NotHeld { holder: holder.map(known) }),
        _ => Err(reply.unexpected()),
    })
}

/// `listeners`: how many clients a release notified, this one included, or [`NEXT_WAS_NOTIFIED`].
pub(crate) fn freed(listeners: i64, own_listeners: i64) -> Release {
    let others = match listeners {
        NEXT_WAS_NOTIFIED => Others::Next,
        _ => Others::listening(u32::try_from(listeners - own_listeners).unwrap_or(0)),
    };
    Release::Freed { others }
}

fn known(holder: String) -> String {
    if holder.is_empty() {
        return "another owner (this user may not read whom)".to_owned();
    }
    let owner = holder.strip_suffix(":write").unwrap_or(&holder);
    // Other text may be another program's secret.
    if Owner::is_one(owner) { owner } else { "another program" }.to_owned()
}

pub(crate) fn renewed(reply: &Tagged) -> Answer<bool> {
    one_of(reply, &[(b"renewed", true), (b"lost", false)])
}

pub(crate) fn checked(reply: &Tagged) -> Answer<CachedCheck> {
    use CachedCheck::{Lost, Stays, Unmarked, Wanted};
    one_of(reply, &[(b"stays", Stays), (b"wanted", Wanted), (b"unmarked", Unmarked), (b"lost", Lost)])
}

pub(super) fn forced(reply: &Tagged) -> Answer<bool> {
    match reply.tag() {
        b"no_lock" => Err(no_lock()),
        _ => one_of(reply, &[(b"freed", true), (b"free", false)]),
    }
}

fn one_of<T: Copy>(reply: &Tagged, meanings: &[(&[u8], T)]) -> Answer<T> {
    let meaning = meanings.iter().find(|(tag, _)| *tag == reply.tag());
    decoded(meaning.map(|(_, meaning)| *meaning).ok_or_else(|| reply.unexpected()))
}

/// The error for a hash that another program wrote, which must not be deleted.
pub(super) fn no_lock() -> Failure {
    let words = "the key holds a hash that is no lock: an owner is a UUID, a colon and a number";
    Failure::Refused(Error::new(ErrorKind::WrongType, "force_unlock", words))
}

pub(super) fn inspected(reply: &Tagged) -> Answer<Option<Snapshot>> {
    decoded(match reply.tag() {
        b"free" => Ok(None),
        b"held" => snapshot(reply).map(Some),
        _ => Err(reply.unexpected()),
    })
}

fn snapshot(reply: &Tagged) -> Result<Snapshot> {
    let count = reply.text(2)?.unwrap_or_default();
    let Ok(count) = count.parse() else {
        return Err(Error::new(
            ErrorKind::WrongType,
            "inspect",
            "the key holds a hash that is no lock: the hold count is not an integer",
        ));
    };
    let holder = reply.text(3)?.filter(|holder| !holder.is_empty()).map(known);
    Ok(Snapshot { holder: holder.unwrap_or_default(), count, remaining: ttl(reply.number(1)?) })
}

pub(super) fn counted(reply: &Tagged) -> Answer<Option<i64>> {
    decoded(match reply.tag() {
        b"count" => reply.number(1).map(Some),
        b"none" => Ok(None),
        _ => Err(reply.unexpected()),
    })
}
