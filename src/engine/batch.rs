//! Acquires or releases several locks: the client sends all requests before it reads the first answer. Locks
//! that one request can cover share a request.
//!
//! No function of this file waits until a busy lock is free: the caller waits for that lock alone.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted};
use crate::engine::acquire::waiting::Waiting;
use crate::engine::core::Call;
use crate::engine::hold::Hold;
use crate::engine::waiter::HandoffResult;
use crate::error::{Error, ErrorKind, NotHeld, Result};
use crate::ident::{FencingToken, LockName, ThreadMarker, unbound_number};
use crate::seam::{Answer, Attempt, Claim, Failure, Kind, QueueMode, Release};
use crate::time::Moment;

#[derive(Debug)]
pub(crate) struct BatchItem<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) want: AcquireCall<'a>,
}

/// The outcome for one lock: granted, busy (`Ok(None)`), or failed. `None`: the shared request was refused,
/// but a request for this lock alone may succeed.
pub(crate) type BatchAnswer = Option<Result<Option<Granted>>>;

/// Attempts once for uncontended locks (see [`Engine::can_ask_ahead`]). `or_none`: the caller will not wait,
/// so each request grants all its locks or none, and takes locks that the wait queue reserves.
pub(crate) fn ask_ahead(wanted: &[BatchItem<'_>], or_none: bool) -> Vec<BatchAnswer> {
    let thread = ThreadMarker::current();
    let _calls: Vec<Call> = wanted.iter().map(|wanted| wanted.engine.calls.begin()).collect();
    let mut came: Vec<BatchAnswer> = wanted.iter().map(|_| None).collect();
    let groups = by_request(wanted.iter().zip(&mut came), |(wanted, _)| {
        // A lock with `max_hold` or caching needs its own request, because a shared one supports neither.
        let is_plain = wanted.want.config.max_hold.is_none() && !wanted.want.caches();
        together(wanted.engine, wanted.want.kind, wanted.want.name).filter(|_| is_plain)
    });
    let sent: Vec<_> = groups.into_iter().filter_map(|group| ask_for(group, or_none, &thread)).collect();
    sent.into_iter().for_each(|read| read());
    came
}

/// The locks of one request have this in common: the client, and a number that the store gives. Locks with
/// equal values can share a request; `None`: the lock needs a request of its own.
type Together = Option<(*const Engine, u32)>;

fn together(engine: &Arc<Engine>, kind: Kind, name: &LockName) -> Together {
    engine.store.capabilities.batches.as_ref()?.group(kind, name).map(|number| (Arc::as_ptr(engine), number))
}

fn by_request<T>(all: impl Iterator<Item = T>, together: impl Fn(&T) -> Together) -> Vec<Vec<T>> {
    let mut groups: Vec<(Together, Vec<T>)> = Vec::new();
    for one in all {
        let key = together(&one);
        match groups.iter_mut().find(|(other, _)| key.is_some() && *other == key) {
            Some((_, group)) => group.push(one),
            None => groups.push((key, vec![one])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

type Answers<'a, T> = Box<dyn FnOnce() -> T + 'a>;

/// Sends one request for these locks of one client. Returns a function that waits for the answer.
fn ask_for<'a>(
    group: Vec<(&'a BatchItem<'a>, &'a mut BatchAnswer)>,
    or_none: bool,
    thread: &'a Arc<ThreadMarker>,
) -> Option<Answers<'a, ()>> {
    let engine = group.first()?.0.engine;
    let capabilities = &engine.store.capabilities;
    // An earlier release of one of these locks may use another connection and arrive later. The shared
    // request has a fresh owner number, so such a release does not free the new hold.
    let number = (group.len() > 1).then(unbound_number);
    let (mut members, mut claims) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
    for (BatchItem { want, .. }, came) in group {
        let claim = engine.lease_to_ask(want).and_then(|asked| {
            let begun = engine.clock.now();
            let mut waiting = Waiting::new(engine, capabilities, want, asked, (thread, number), begun);
            waiting.ask_once(if or_none { QueueMode::Barges } else { QueueMode::Yields }, false);
            Ok((waiting.next_claim()?, waiting))
        });
        match claim {
            Ok((claim, waiting)) => {
                members.push((came, waiting, claim.clone()));
                claims.push(claim);
            }
            Err(error) => *came = Some(Err(error.during(want.action).on(want.name.given()))),
        }
    }
    let (sent, deadline, first) = (engine.clock.now(), engine.one_command(), claims.first()?);
    let answers: Answers<'_, _> = match &capabilities.batches {
        Some(batches) if number.is_some() => {
            let (pending, count) = (batches.begin_attempts(&claims, or_none, deadline), claims.len());
            Box::new(move || for_each(pending.wait(), count))
        }
        _ => {
            let pending = engine.store.begin_attempt(first, 1, deadline);
            Box::new(move || vec![pending.wait()])
        }
    };
    Some(Box::new(move || {
        for ((came, mut waiting, claim), answer) in members.into_iter().zip(answers()) {
            *came = Some(waiting.came(claim, sent, answer));
        }
    }))
}

/// Makes an answer for each lock from the answer to one request for `count` locks, which grants the locks
/// before the first busy one. For a refusal returns no answers, because it does not say which lock was
/// refused.
fn for_each(answer: Answer<Vec<Option<FencingToken>>>, count: usize) -> Vec<Answer<Attempt>> {
    match answer {
        Ok(fences) => {
            let busy = Attempt::Busy { retry_after: None };
            let attempt = |at| fences.get(at).map_or_else(|| busy.clone(), |fence| Attempt::granted(*fence));
            (0..count).map(|at| Ok(attempt(at))).collect()
        }
        Err(Failure::Refused(_)) => Vec::new(),
        Err(unknown) => unknown.each(count),
    }
}

/// Extends the leases of these holds to `lease` from now on. Holds that the store does not have are lost.
pub(crate) fn prolong<'a>(holds: impl Iterator<Item = (&'a Arc<Engine>, &'a Arc<Hold>)>, lease: Duration) {
    for group in by_request(holds, |(engine, _)| Some((Arc::as_ptr(engine), 0))) {
        let Some(engine) = group.first().map(|(engine, _)| Arc::clone(engine)) else { continue };
        let sent = engine.clock.now();
        let claim = |hold: &Arc<Hold>| Claim {
            lease: hold.within_ceiling(lease, sent),
            levels: hold.count().max(1),
            ..hold.claim()
        };
        let claims: Vec<Claim> = group.iter().map(|(_, hold)| claim(hold)).collect();
        let answers = engine.store.renew(&claims, engine.one_command());
        for (((_, hold), claim), answer) in group.iter().zip(&claims).zip(answers) {
            match answer {
                Ok(is_held) => drop(engine.renewed(hold, claim, sent, is_held)),
                Err(Failure::Refused(_)) => {}
                Err(Failure::Unknown(_)) => hold.retire_owner_on_end(),
            }
        }
    }
}

/// One level of a hold that is to be released. `level`: its id; `None`: the innermost level.
#[derive(Debug)]
pub(crate) struct LevelRelease {
    pub(crate) engine: Arc<Engine>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) level: Option<u64>,
}

/// Releases all these levels, even if some fail; returns one of the failures.
pub(crate) fn leave_all(action: &'static str, all: Vec<LevelRelease>) -> Result<()> {
    let _calls: Vec<Call> = all.iter().map(|one| one.engine.calls.begin()).collect();
    let mut outcome = Ok(());
    let mut note = |ended: Result<()>| outcome = std::mem::replace(&mut outcome, Ok(())).and(ended);
    let (mut over, mut left) = (Vec::new(), Vec::new());
    for one in all {
        match one.begin(action) {
            Ok((_, begun, Some(result))) => over.push((one, result, begun)),
            Ok((count, _, None)) => left.push((one, count)),
            Err(error) => note(Err(error)),
        }
    }
    let groups = by_request(left.into_iter(), |(one, left)| match left {
        0 if !one.hold.claim().has_notes() => together(&one.engine, one.hold.kind(), one.hold.name()),
        _ => None,
    });
    let sent: Vec<_> = groups.into_iter().map(release).collect();
    let mut finish = |(LevelRelease { engine, hold, .. }, left, give_up, first): Read| {
        note(engine.send_release(action, &hold, left, give_up, first));
    };
    // Answered releases finish first, so that their local waiters do not wait for repeated requests.
    let mut undecided = Vec::new();
    for (group, answers) in sent {
        let is_alone = group.len() == 1;
        for ((one, left), answer) in group.into_iter().zip(answers()) {
            let give_up = one.engine.clock.after(one.engine.options.retry_timeout);
            match answer {
                Ok(_) => finish((one, left, give_up, Some(answer))),
                Err(Failure::Refused(_)) if !is_alone => undecided.push((one, left, give_up, None)),
                Err(_) => undecided.push((one, left, give_up, Some(answer))),
            }
        }
    }
    undecided.into_iter().for_each(finish);
    for (LevelRelease { engine, hold, .. }, result, begun) in over {
        note(engine.handed_off(action, &hold, &result, begun));
    }
    outcome
}

impl LevelRelease {
    /// Ends the level in this process; the caller sends the release. Returns the number of levels left, when
    /// this call began, and the hand-off to another thread of this process, if there was one to send.
    fn begin(&self, action: &'static str) -> Result<(u32, Moment, Option<HandoffResult>)> {
        let LevelRelease { engine, hold, level } = self;
        engine.usable(action)?;
        let begun = engine.clock.now();
        let ended = hold.local.on(begun, |lock, at| lock.end(hold.serial, *level, |_| None, at));
        let ended = ended.ok_or_else(|| engine.no_level(action, hold))?;
        let Some(next) = engine.unless_lost(hold, ended.left, ended.next, begun) else {
            return Err(Error::not_holding(action, hold.name().given(), NotHeld::Expired));
        };
        Ok((ended.left, begun, engine.hand_off(hold, next, begun)))
    }
}

type Leaving = (LevelRelease, u32);
/// A level's release, the number of levels left, until when to repeat the request, and the answer, if read.
type Read = (LevelRelease, u32, Moment, Option<Answer<Release>>);

/// Sends one request for all, or, if the store cannot, one for each. The returned function awaits answers.
fn release(group: Vec<Leaving>) -> (Vec<Leaving>, Answers<'static, Vec<Answer<Release>>>) {
    let claims: Vec<Claim> = group.iter().map(|(one, _)| one.hold.claim()).collect();
    if let [(LevelRelease { engine, .. }, _), _, ..] = group.as_slice()
        && let Some(batches) = &engine.store.capabilities.batches
    {
        let pending = batches.begin_releases(&claims, engine.one_command());
        let unread = || Failure::Unknown(Error::new(ErrorKind::Protocol, "unlock", "no answer was read"));
        let answers = move || match pending.wait() {
            Ok(all) => (0..claims.len()).map(|at| all.get(at).cloned().ok_or_else(unread)).collect(),
            Err(failure) => failure.each(claims.len()),
        };
        return (group, Box::new(answers));
    }
    let begin = |((LevelRelease { engine, .. }, left), claim): (&Leaving, &Claim)| {
        engine.store.begin_release(claim, *left, engine.one_command())
    };
    let pending: Vec<_> = group.iter().zip(&claims).map(begin).collect();
    (group, Box::new(|| pending.into_iter().map(|pending| pending.wait()).collect()))
}
