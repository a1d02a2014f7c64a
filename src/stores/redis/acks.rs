//! Grants that count only after replicas have acknowledged them, or append-only files contain them.
//!
//! Grants are sent over the shared connection, but WAIT over a pooled one, because WAIT blocks its connection
//! until the replicas have all earlier writes. A *round* is one WAIT for all grants before it. Grants that
//! come during a round gather for the next one, which the thread of one of these grants *leads*.
//!
//! WAIT counts from the last write of its own connection, so a round first writes something
//! (`lua/touch.lua`). After a failover, the connection may lead to a server that has not granted the locks,
//! so a round also asks whether each grant is still there.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::copies::{Copies, Durable};
use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::seam::{Answer, Failure};
use crate::stores::redis::conn::connection::Dialog;
use crate::stores::redis::conn::connections::Connections;
use crate::stores::redis::reply::{
    NOT_HELD, Redirect, accepted, list, number, refusal, refused_by, tagged, unexpected,
};
use crate::stores::redis::script::{Command, TOUCH};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use crate::time::{Clock, Moment, millis};

/// With `unless_alone`, the leader asks by ROLE for replicas if WAIT counts too few of them in this time.
const ASK_WHO_AFTER: Duration = Duration::from_millis(50);

pub(crate) struct Acks {
    connections: Arc<Connections>,
    wanted: Copies,
    rounds: Mutex<Rounds>,
    is_alone: AtomicBool,
    is_reported: AtomicBool,
    reporter: Arc<Reporter>,
    server: Arc<str>,
}

#[derive(Default)]
struct Rounds {
    is_asking: bool,
    /// The grants for the next round, in order of arrival, each with the command that checks it.
    gathered: Vec<(Command, Arc<Waiter>)>,
}

#[derive(Default)]
struct Waiter {
    answer: OnceLock<Result<Value>>,
    changed: Condvar,
}

pub(crate) struct Grant {
    pub(crate) lock: Arc<LockName>,
    /// Asks whether the server has the grant; if so, the reply is `expected`.
    pub(crate) check: Command,
    pub(crate) expected: Value,
    /// Releases the grant, and all other locks that the same request acquired.
    pub(crate) undo: Command,
}

impl Acks {
    pub(crate) fn new(
        connections: &Arc<Connections>,
        wanted: Copies,
        reporter: &Arc<Reporter>,
        server: &str,
    ) -> Arc<Acks> {
        Arc::new(Acks {
            connections: Arc::clone(connections),
            wanted,
            rounds: Mutex::default(),
            is_alone: AtomicBool::new(wanted.unless_alone),
            is_reported: AtomicBool::new(false),
            reporter: Arc::clone(reporter),
            server: server.into(),
        })
    }

    /// Waits until replicas, or append-only files, have the grant. If that fails, undoes the grant.
    pub(crate) fn confirm(&self, grant: &Grant, deadline: Moment) -> Answer<()> {
        self.wait_for_copies(grant, deadline).map_err(|error| match self.undo(grant, deadline) {
            Ok(true) => Failure::Refused(error),
            Ok(false) | Err(_) => Failure::Unknown(error),
        })
    }

    fn undo(&self, grant: &Grant, deadline: Moment) -> Answer<bool> {
        let reply = tagged(self.connections.call(grant.undo.clone(), deadline)?)?;
        let was_held = |index| !matches!(reply.number(index), Ok(NOT_HELD));
        Ok(reply.tag() == b"freed" && (1..=reply.len()).all(was_held))
    }

    /// As [`confirm`](Self::confirm), without undoing the grant.
    pub(crate) fn wait_for_copies(&self, grant: &Grant, deadline: Moment) -> Result<()> {
        let begun = Clock::System.now();
        // At least a tenth of the time is left for WAIT's reply, and for undoing the grant.
        let limit = self.wanted.within.min(deadline.since(begun).mul_f64(0.9));
        let until = begun.plus(limit);
        loop {
            let (answer, has_led) = self.answer(grant, until, deadline);
            match answer {
                Ok(answer) if answer == grant.expected => return Ok(()),
                Ok(Value::ServerError(error)) => {
                    let refused = refusal(&error);
                    // A redirect: another member of the cluster has the slot now, so this one lost the grant.
                    return Err(if Redirect::of(&refused).is_some() { gone() } else { refused });
                }
                Ok(_) => return Err(gone()),
                Err(error) if has_led || Clock::System.now() >= until => return Err(error),
                // The round of another thread failed, perhaps at that thread's deadline, so join the next.
                Err(_) => {}
            }
        }
    }

    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    pub(crate) fn gathered(&self) -> usize {
        self.rounds.lock().gathered.len()
    }

    /// Adds the grant to the next round, which this thread leads if no round is running. Returns the reply to
    /// the grant's check, or the round's error, and whether this thread led the round.
    fn answer(&self, grant: &Grant, until: Moment, deadline: Moment) -> (Result<Value>, bool) {
        let (mut rounds, mut has_led) = (self.rounds.lock(), false);
        let mine = Arc::<Waiter>::default();
        rounds.gathered.push((grant.check.clone(), Arc::clone(&mine)));
        loop {
            let left = limit_of(until);
            if let Some(answer) = mine.answer.get() {
                return (answer.as_ref().map_err(Error::copy).cloned(), has_led);
            } else if left.is_zero() {
                rounds.gathered.retain(|(_, other)| !Arc::ptr_eq(other, &mine));
                // This thread gives up. If it was woken to lead the next round, another thread must lead.
                if !rounds.is_asking {
                    rounds.wake_leader();
                }
                return (Err(self.too_few(None)), has_led);
            } else if !rounds.is_asking {
                (has_led, rounds.is_asking) = (true, true);
                let (checks, waiters) = std::mem::take(&mut rounds.gathered).into_iter().unzip();
                MutexGuard::unlocked(&mut rounds, || self.lead(grant, checks, waiters, until, deadline));
            } else {
                mine.changed.wait_for(&mut rounds, left);
            }
        }
    }

    fn lead(
        &self,
        grant: &Grant,
        checks: Vec<Command>,
        waiters: Vec<Arc<Waiter>>,
        until: Moment,
        deadline: Moment,
    ) {
        let panicked =
            || Error::new(ErrorKind::Resource, "lock", "the thread that asked the replicas panicked");
        let mut leader = Leader { acks: self, waiters, outcome: Err(panicked()) };
        let asked = self.connections.dialog(deadline, |dialog| self.ask(dialog, grant, checks, until));
        leader.outcome = asked.map_err(Failure::into_error).flatten();
    }

    /// Runs one round. The inner result has the replies to the checks, or the error for all its grants.
    fn ask(
        &self,
        dialog: &mut Dialog<'_>,
        grant: &Grant,
        checks: Vec<Command>,
        until: Moment,
    ) -> Answer<Result<Vec<Value>>> {
        let count = checks.len();
        let mut commands = checks;
        if self.is_alone.load(Ordering::SeqCst) {
            commands.push(Command::new("ROLE"));
            let mut answers = dialog.say(&commands)?;
            commands.truncate(count);
            if replicas_in(answers.pop()) == Some(Seen::Nobody) && self.wanted.durable.is_none() {
                self.note(true);
                return Ok(Ok(answers));
            }
        }
        // WAIT counts only earlier writes of its own connection, and the script TOUCH makes one. It is sent
        // with its body, because after NOSCRIPT it would be sent again, behind the WAIT.
        commands.extend(TOUCH.on(&[grant.lock.key()]).with_body());
        let wants_replica = self.wanted.replicas > 0;
        if wants_replica {
            let first = if self.wanted.unless_alone { ASK_WHO_AFTER } else { Duration::MAX };
            commands.push(self.wait(first.min(limit_of(until))));
        }
        let mut answers = dialog.say(&commands)?.into_iter();
        let held: Vec<Value> = answers.by_ref().take(count).collect();
        if answers.next() != Some(Value::Int(1)) {
            return Ok(Err(gone()));
        }
        if wants_replica && let Err(error) = self.replicas_have(dialog, answers.next(), until)? {
            return Ok(Err(error));
        }
        Ok(self.files_have(dialog, until)?.map(|()| held))
    }

    fn replicas_have(
        &self,
        dialog: &mut Dialog<'_>,
        first: Option<Value>,
        until: Moment,
    ) -> Answer<Result<()>> {
        let wanted = i64::from(self.wanted.replicas);
        let mut count = acknowledged(first);
        if self.wanted.unless_alone && matches!(count, Ok(count) if count < wanted) {
            match replicas_in(dialog.say(&[Command::new("ROLE")])?.pop()) {
                // A replica that has acknowledged nothing (offset 0) is still loading, and does not count.
                Some(Seen::Nobody | Seen::Loading) => {
                    self.note(true);
                    return Ok(Ok(()));
                }
                Some(Seen::Somebody) | None => self.is_alone.store(false, Ordering::SeqCst),
            }
            count = acknowledged(dialog.say(&[self.wait(limit_of(until))])?.pop());
        }
        Ok(count.and_then(|count| {
            if count < wanted {
                return Err(self.too_few(Some(count)));
            }
            self.note(false);
            Ok(())
        }))
    }

    fn files_have(&self, dialog: &mut Dialog<'_>, until: Moment) -> Answer<Result<()>> {
        let Some(Durable { local, replicas }) = self.wanted.durable else { return Ok(Ok(())) };
        let wait = Command::new("WAITAOF").arg(local).arg(replicas).arg(millis(limit_of(until)).max(1));
        let answer = dialog.say(&[wait])?.pop().unwrap_or(Value::Nil);
        let counts = accepted(answer).map_err(|error| waitaof_refused(&error));
        Ok(counts.and_then(|counts| match list(&counts)? {
            [Value::Int(own), Value::Int(others)] => {
                let has_all = *own >= local.into() && *others >= replicas.into();
                if has_all { Ok(()) } else { Err(self.not_durable(*own, *others)) }
            }
            _ => Err(unexpected(&counts)),
        }))
    }

    /// The command WAIT. Its time limit is at least 1 ms, because 0 would mean no limit.
    fn wait(&self, within: Duration) -> Command {
        Command::new("WAIT").arg(self.wanted.replicas).arg(millis(within).max(1))
    }

    fn note(&self, is_alone: bool) {
        self.is_alone.store(is_alone, Ordering::SeqCst);
        if self.is_reported.swap(is_alone, Ordering::SeqCst) != is_alone {
            let server = Arc::clone(&self.server);
            // A change is reported only once, so its report must not be dropped: `observe_later` drops none.
            self.reporter.observe_later(move |observer| {
                let server = &*server;
                let event =
                    if is_alone { Event::NoReplica { server } } else { Event::ReplicaBack { server } };
                observer.event(&event);
            });
        }
    }

    fn too_few(&self, count: Option<i64>) -> Error {
        let Copies { replicas, within, unless_alone, .. } = self.wanted;
        let count = count.map_or_else(|| "too few".to_owned(), |count| count.to_string());
        let remedy = if unless_alone { "; without_replicas() grants without them" } else { "" };
        let words = format!(
            "{count} of {replicas} replicas acknowledged the grant within {within:?}, so the client undid \
                it: see their state in the server's INFO replication{remedy}"
        );
        Error::new(ErrorKind::Busy, "lock", words)
    }

    fn not_durable(&self, own: i64, others: i64) -> Error {
        let (within, Some(Durable { local, replicas })) = (self.wanted.within, self.wanted.durable) else {
            return gone();
        };
        let words = format!(
            "after {within:?} the grant was in {own} of {local} files of the server and in {others} of \
                {replicas} of its replicas, so the client undid it: see aof_enabled and aof_last_write_status in their INFO persistence"
        );
        Error::new(ErrorKind::Busy, "lock", words)
    }
}

fn limit_of(until: Moment) -> Duration {
    until.since(Clock::System.now())
}

fn gone() -> Error {
    let words = "the server no longer had the grant when its replicas were asked";
    Error::new(ErrorKind::Busy, "lock", words)
}

fn acknowledged(answer: Option<Value>) -> Result<i64> {
    let words = "the server refuses WAIT, which shows that a replica has the grant: allow it, or set \
                 without_replicas()";
    number(&accepted(answer.unwrap_or(Value::Nil)).map_err(|error| refused_by(words, &error))?)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Nobody,
    Loading,
    Somebody,
}

/// Reads the reply to ROLE. `None` if the server refuses ROLE, or is a replica.
fn replicas_in(role: Option<Value>) -> Option<Seen> {
    let Some(Value::Array(parts)) = role else { return None };
    let Some(Value::Array(replicas)) = parts.get(2) else { return None };
    let is_loading = |replica: &Value| match replica {
        Value::Array(parts) => matches!(parts.get(2), Some(Value::BulkString(offset)) if offset == b"0"),
        _ => false,
    };
    Some(match replicas.as_slice() {
        [] => Seen::Nobody,
        all if all.iter().all(is_loading) => Seen::Loading,
        _ => Seen::Somebody,
    })
}

fn waitaof_refused(error: &redis::ServerError) -> Error {
    if error.details().is_some_and(|text| text.contains("appendonly is disabled")) {
        let words = "the server keeps no append-only file, which durable() waits for: set appendonly there, or durable(0, …)";
        return Error::new(ErrorKind::Unsupported, "lock", words).with_source(refusal(error));
    }
    refused_by("the server refuses WAITAOF, by which durable() waits: it came with Redis 7.2", error)
}

impl Rounds {
    fn wake_leader(&self) {
        if let Some((_, next)) = self.gathered.first() {
            next.changed.notify_one();
        }
    }
}

/// Ends the round when dropped, even after a panic, so that another thread can lead the next round.
struct Leader<'a> {
    acks: &'a Acks,
    waiters: Vec<Arc<Waiter>>,
    outcome: Result<Vec<Value>>,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut rounds = self.acks.rounds.lock();
        rounds.is_asking = false;
        for (at, waiter) in self.waiters.iter().enumerate() {
            waiter.answer.get_or_init(|| match &self.outcome {
                Ok(answers) => Ok(answers.get(at).cloned().unwrap_or(Value::Nil)),
                Err(error) => Err(error.copy()),
            });
            waiter.changed.notify_one();
        }
        rounds.wake_leader();
    }
}
