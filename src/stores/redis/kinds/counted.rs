//! The counted kinds: semaphores (permits with and without leases), latches, and conditions.
//!
//! A string key contains the number of permits or a latch's count, as in Redisson. Requests add to the
//! number, so a repeated request would count twice. Therefore the server records each of them for
//! [`REQUEST_LASTS`], and carries out none twice. Taking a permit with a lease needs no record: it has an id.
//!
//! A condition has three keys: its waiters in order, their heartbeats, and the notified waiters that have not
//! read their notification. Only this crate has them: Redisson's `newCondition` throws. Waiters join while
//! they hold the lock, and notifiers hold it too, so none notifies between a waiter's check and its joining.
//! If a waiter dies or leaves before it reads its notification, the next waiter gets the notification.

use std::time::Duration;

use crate::ident::{LockName, Owner};
use crate::seam::{Answer, Claim, Counting, PLACE_LASTS, REQUEST_LASTS, Release, Snapshot};
use crate::stores::redis::keys::{self, Part};
use crate::stores::redis::kinds::kind::{RedisCall, RedisKind, unsupported};
use crate::stores::redis::kinds::mutex::queue_mode;
use crate::stores::redis::kinds::replies::{self, NOTHING_HELD};
use crate::stores::redis::reply::Tagged;
use crate::stores::redis::script::{
    COUNTER, Command, LATCH_ATTEMPT, PERMITS_ACQUIRE, PERMITS_BY_ID, PERMITS_COUNT, PERMITS_LEAVE,
    PERMITS_RELEASE, PERMITS_RENEW, SEMAPHORE_ACQUIRE, SEMAPHORE_RELEASE, SIGNAL_ATTEMPT, SIGNAL_CHANGE,
    Script,
};
use crate::time::millis;

const NO_HOLDER: &str = "semaphores, latches and conditions have no holder";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CountedKind {
    /// Permits without leases, which belong to no owner. The server records each request that acquired
    /// permits, so that the client can repeat or undo the request.
    Semaphore,
    Permits,
    Latch,
    Condition,
}

impl RedisKind for CountedKind {
    fn channel(&self, claim: &Claim) -> Option<String> {
        let key = claim.name.key();
        Some(match self {
            CountedKind::Semaphore | CountedKind::Permits => keys::permits_channel(key),
            CountedKind::Latch => keys::latch_channel(key),
            CountedKind::Condition => format!("{}{}", condition_channels(key), claim.owner),
        })
    }

    fn turn_channel(&self, claim: &Claim) -> Option<String> {
        self.has_permits().then(|| keys::turn_channel(claim.name.key(), claim.owner.client()))
    }

    fn leaving_queue(&self, claim: &Claim) -> Option<Command> {
        let client = || claim.owner.client().to_string();
        self.has_permits().then(|| PERMITS_LEAVE.on(&[claim.name.key()]).arg(client()))
    }

    fn acquisition(&self, claim: &Claim, _count: u32, link: u32) -> Command {
        let key = claim.name.key();
        let queueing = |command: Command| {
            let command = command.arg(claim.owner.client().to_string());
            command.arg(&*queue_mode(claim, link)).arg(millis(claim.waited))
        };
        match self {
            CountedKind::Semaphore => {
                let command = SEMAPHORE_ACQUIRE.on(&[key, &request_key(claim)]);
                queueing(command.arg(claim.units).arg(millis(REQUEST_LASTS)))
            }
            CountedKind::Permits => {
                with_ids(queueing(permits(&PERMITS_ACQUIRE, claim).arg(millis(claim.lease))), claim)
            }
            CountedKind::Latch => LATCH_ATTEMPT.on(&[key]),
            CountedKind::Condition => {
                let command = condition(&SIGNAL_ATTEMPT, claim).arg(claim.owner);
                command.arg(millis(PLACE_LASTS)).arg(condition_channels(key))
            }
        }
    }

    fn removal(&self, claim: &Claim, _left: u32) -> Command {
        let key = claim.name.key();
        match self {
            CountedKind::Semaphore => {
                let way = if claim.is_granted { "release" } else { "undo" };
                let command = SEMAPHORE_RELEASE.on(&[key, &request_key(claim)]).arg(claim.units);
                command.arg(millis(REQUEST_LASTS)).arg(way).arg(keys::permits_channel(key))
            }
            CountedKind::Permits => with_ids(permits(&PERMITS_RELEASE, claim), claim),
            // A latch has nothing to release, so its request for a release only reads.
            CountedKind::Latch => LATCH_ATTEMPT.on(&[key]),
            CountedKind::Condition => change(claim, "leave"),
        }
    }

    fn renewal(&self, claim: &Claim) -> Option<Command> {
        let out = keys::permits_out(claim.name.key());
        let renewal = || with_ids(PERMITS_RENEW.on(&[&out]).arg(millis(claim.lease)), claim);
        (*self == CountedKind::Permits).then(renewal)
    }

    fn forgetting(&self, claim: &Claim) -> Option<Command> {
        (*self == CountedKind::Semaphore).then(|| forgetting(claim))
    }

    fn released(&self, reply: &Tagged, own_listeners: i64) -> Answer<Release> {
        match self {
            CountedKind::Semaphore | CountedKind::Permits => replies::released(reply, own_listeners),
            CountedKind::Latch => replies::attempted(reply, false).map(|_open_or_not| NOTHING_HELD),
            CountedKind::Condition => replies::counted(reply).map(|_notified| NOTHING_HELD),
        }
    }

    fn inspect(&self, _call: &RedisCall<'_>, _name: &LockName, _owner: Owner) -> Answer<Option<Snapshot>> {
        Err(unsupported(NO_HOLDER))
    }

    fn force(&self, _call: &RedisCall<'_>, _name: &LockName) -> Answer<bool> {
        Err(unsupported(NO_HOLDER))
    }

    fn count(&self, call: &RedisCall<'_>, claim: &Claim, what: &Counting) -> Answer<Option<i64>> {
        use CountedKind::{Condition, Permits};
        let ask = |which: &str| permits(&PERMITS_COUNT, claim).arg(which);
        let command = match (self, what) {
            (Condition, Counting::Notify { all: false }) => change(claim, "one"),
            (Condition, Counting::Notify { all: true }) => change(claim, "all"),
            (Condition, Counting::Enlist) => change(claim, "enlist"),
            (Condition, _) => return Err(unsupported("a condition has no number")),
            (Permits, Counting::Ask) => ask("free"),
            (Permits, Counting::AskOut) => ask("out"),
            (Permits, Counting::AskAll) => ask("all"),
            (Permits, Counting::GiveBackAll(ids)) => by_id(claim, "give_back", 0, ids),
            (Permits, Counting::Lease(id, lease)) => {
                by_id(claim, "lease", millis(*lease), std::slice::from_ref(id))
            }
            (Permits, Counting::AskLease(id)) => by_id(claim, "ask", 0, std::slice::from_ref(id)),
            (Permits, Counting::GiveBack(id)) => {
                let command = permits(&PERMITS_RELEASE, claim).arg(&id[..]);
                let released = replies::released(&call.ask(command)?, 0)?;
                return Ok(Some(i64::from(matches!(released, Release::Freed { .. }))));
            }
            (_, Counting::Ask) => self.counter(claim, "ask", 0, None),
            (_, Counting::SetUp { to, lease }) => self.counter(claim, "set_up", i64::from(*to), *lease),
            (_, Counting::Add(amount)) => self.counter(claim, "add", *amount, None),
            (_, Counting::AddIfSetUp(amount)) => self.counter(claim, "add_if_set_up", *amount, None),
            (_, Counting::SetTo(count)) => self.counter(claim, "set_to", i64::from(*count), None),
            (_, Counting::Drain) => self.counter(claim, "drain", 0, None),
            (_, Counting::CountDown) => self.counter(claim, "count_down", 0, None),
            (_, Counting::Delete) => self.counter(claim, "delete", 0, None),
            (_, Counting::Forget) => {
                call.server.connections.post(forgetting(claim), call.deadline, None, |_| None);
                return Ok(None);
            }
            (_, Counting::Notify { .. } | Counting::Enlist) => {
                return Err(unsupported("only a condition notifies waiters"));
            }
            (_, _by_id) => return Err(unsupported("these permits have no ids")),
        };
        replies::counted(&call.ask(command)?)
    }
}

impl CountedKind {
    fn has_permits(self) -> bool {
        matches!(self, CountedKind::Semaphore | CountedKind::Permits)
    }

    /// Reads or changes the number of permits, or a latch's count. Only expirable permits pass the key of
    /// permit ids, so that users of other kinds need no right to that key.
    fn counter(&self, claim: &Claim, word: &str, amount: i64, lease: Option<Duration>) -> Command {
        let (key, is_latch) = (claim.name.key(), *self == CountedKind::Latch);
        let (request, out) = (request_key(claim), keys::permits_out(key));
        let keys = [key, &request, &out];
        let keys = if *self == CountedKind::Permits { &keys[..] } else { &keys[..2] };
        let channel = if is_latch { keys::latch_channel(key) } else { keys::permits_channel(key) };
        let command = COUNTER.on(keys).arg(word).arg(amount).arg(lease.map_or(0, millis));
        command.arg(millis(REQUEST_LASTS)).arg(u8::from(is_latch)).arg(channel)
    }
}

fn forgetting(claim: &Claim) -> Command {
    Command::new("DEL").arg(request_key(claim))
}

fn request_key(claim: &Claim) -> String {
    keys::request_record(claim.name.key(), &claim.owner.to_string())
}

fn permits(script: &'static Script, claim: &Claim) -> Command {
    let key = claim.name.key();
    script.on(&[key, &keys::permits_out(key)]).arg(keys::permits_channel(key))
}

fn with_ids(command: Command, claim: &Claim) -> Command {
    (0..claim.units).fold(command, |command, index| command.arg(&claim.owner.permit(index)[..]))
}

fn by_id(claim: &Claim, what: &str, lease_ms: u64, ids: &[[u8; 16]]) -> Command {
    let command = permits(&PERMITS_BY_ID, claim).arg(what).arg(lease_ms);
    ids.iter().fold(command, |command, id| command.arg(&id[..]))
}

fn change(claim: &Claim, what: &str) -> Command {
    let command = condition(&SIGNAL_CHANGE, claim).arg(what).arg(claim.owner);
    command.arg(millis(PLACE_LASTS)).arg(condition_channels(claim.name.key()))
}

fn condition(script: &'static Script, claim: &Claim) -> Command {
    let parts = [Part::ConditionQueue, Part::ConditionHeartbeats, Part::ConditionNotified];
    let [queue, heartbeats, notified] = &parts.map(|part| keys::before(part, claim.name.key()));
    script.on(&[queue, heartbeats, notified])
}

fn condition_channels(condition: &str) -> String {
    keys::before(Part::ConditionChannel, condition) + ":"
}
