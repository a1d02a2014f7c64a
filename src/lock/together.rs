//! Several locks at the same time: all are asked for, or given back, before the first answer is read; those that the store
//! can see to by one request, by one.
//!
//! Nothing here waits for another owner. Whoever finds a lock busy waits for that one in the usual way.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, NotHeld, Result};
use crate::ident::{Fence, LockName, ThreadMark, unbound_number};
use crate::lock::calls::Call;
use crate::lock::engine::Engine;
use crate::lock::hand::Told;
use crate::lock::hold::Hold;
use crate::lock::queue::Wish;
use crate::lock::release::Over;
use crate::lock::store::{Answer, Attempt, Claim, Kind, Pending, Release};
use crate::lock::wait::{Entered, Waiting, Want};
use crate::observe::LossReason;
use crate::time::Moment;

/// One of several locks that are wanted, and of which client.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) want: Want<'a>,
}

/// What came of asking for one of several.
#[derive(Debug)]
pub(crate) enum Came {
    Entered(Entered),
    Busy,
    /// The request for several could not be carried out; this one may be.
    Unasked,
    Failed(Error),
}

/// Asks once for each of these, which [can be asked for ahead](Engine::can_ask_ahead). With `or_none`, those of one request
/// are taken together or not at all.
pub(crate) fn ask_ahead(wanted: &[Wanted<'_>], or_none: bool) -> Vec<Came> {
    let thread = ThreadMark::current();
    let _calls: Vec<Call> = wanted.iter().map(|wanted| wanted.engine.calls.begin()).collect();
    let mut came = Vec::with_capacity(wanted.len());
    let groups = by_request(wanted.iter().enumerate(), |(_, wanted)| {
        // What is to be read of a hold by people goes with a request of its own.
        let is_plain = wanted.want.terms.max_hold.is_none();
        together(wanted.engine, wanted.want.kind, wanted.want.name).filter(|_| is_plain)
    });
    let asked: Vec<Asked<'_>> =
        groups.into_iter().map(|group| Asked::send(group, or_none, &thread, &mut came)).collect();
    for asked in asked {
        asked.read(&mut came);
    }
    came.sort_by_key(|(place, _)| *place);
    came.into_iter().map(|(_, came)| came).collect()
}

/// Locks that are seen to by one request, if this is the same for them.
type Together = Option<(*const Engine, u32)>;

fn together(engine: &Arc<Engine>, kind: Kind, name: &LockName) -> Together {
    engine.store.together(kind, name).map(|number| (Arc::as_ptr(engine), number))
}

/// Splits what is to be asked into what goes by one request each.
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

/// A request that was sent: whose, and for which places among all.
struct Asked<'a> {
    sent: Moment,
    members: Vec<(usize, Waiting<'a>, Claim)>,
    answer: Sent,
}

enum Sent {
    One(Box<dyn Pending<Attempt>>),
    Several(Box<dyn Pending<Vec<Option<Fence>>>>),
    Nothing,
}

impl<'a> Asked<'a> {
    /// Sends the request for these, which are of one client. What cannot be asked for has `came` to that.
    fn send(
        group: Vec<(usize, &'a Wanted<'a>)>,
        or_none: bool,
        thread: &'a Arc<ThreadMark>,
        came: &mut Vec<(usize, Came)>,
    ) -> Asked<'a> {
        // One request goes over one connection, a lock's others may go over another. What was sent there before, such as
        // the release of a dropped guard, may come later: it must not meet this owner.
        let number = (group.len() > 1).then(unbound_number);
        let engine = group.first().map(|(_, wanted)| wanted.engine);
        let (mut members, mut wishes) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
        for (place, Wanted { engine, want }) in group {
            let wish = engine.lease_to_ask(want).and_then(|asked| {
                let waiting = Waiting::new(engine, want, asked, thread, engine.clock.now());
                let waiting = match number {
                    Some(number) => waiting.under(number),
                    None => waiting,
                };
                let mut waiting = waiting.asking_once();
                Ok((waiting.next_wish()?, waiting))
            });
            match wish {
                Ok((wish, waiting)) => {
                    members.push((place, waiting, wish.claim.clone()));
                    wishes.push(wish);
                }
                Err(error) => {
                    came.push((place, Came::Failed(error.during(want.action).on(want.name.given()))));
                }
            }
        }
        let sent = engine.map_or(Moment::NEVER, |engine| engine.clock.now());
        let answer = match (engine, wishes.as_slice()) {
            (None, _) | (_, []) => Sent::Nothing,
            (Some(engine), [Wish { claim, wants_fence }]) if number.is_none() => {
                Sent::One(engine.store.begin_attempt(claim, 1, *wants_fence, engine.one_command()))
            }
            (Some(engine), wishes) => {
                Sent::Several(engine.store.begin_attempts(wishes, or_none, engine.one_command()))
            }
        };
        Asked { sent, members, answer }
    }

    fn read(self, came: &mut Vec<(usize, Came)>) {
        let Asked { sent, members, answer } = self;
        let mut come = |place: usize, mut waiting: Waiting<'_>, claim: Claim, answer: Answer<Attempt>| {
            let outcome = match waiting.came(claim, sent, answer) {
                Ok(Some(entered)) => Came::Entered(entered),
                Ok(None) => Came::Busy,
                Err(error) => Came::Failed(error),
            };
            came.push((place, outcome));
        };
        match answer {
            Sent::Nothing => {}
            Sent::One(pending) => {
                if let Some((place, waiting, claim)) = members.into_iter().next() {
                    come(place, waiting, claim, pending.wait());
                }
            }
            Sent::Several(pending) => match pending.wait() {
                Answer::Done(fences) => {
                    for (index, (place, waiting, claim)) in members.into_iter().enumerate() {
                        let attempt = match fences.get(index) {
                            Some(fence) => Attempt::Granted { fence: *fence },
                            None => Attempt::Busy { retry_after: None },
                        };
                        come(place, waiting, claim, Answer::Done(attempt));
                    }
                }
                // Which of them it was about, only a request for each can tell.
                Answer::Refused(_) => {
                    came.extend(members.into_iter().map(|(place, ..)| (place, Came::Unasked)));
                }
                Answer::Unknown(error) => {
                    for (place, waiting, claim) in members {
                        come(place, waiting, claim, Answer::Unknown(error.copy()));
                    }
                }
            },
        }
    }
}

/// Has all of these last for `lease` from now on. What turns out to be gone is lost by it; what cannot be asked stays as
/// it is.
pub(crate) fn prolong<'a>(holds: impl Iterator<Item = (&'a Arc<Engine>, &'a Arc<Hold>)>, lease: Duration) {
    for group in by_request(holds, |(engine, _)| Some((Arc::as_ptr(engine), 0))) {
        let Some(engine) = group.first().map(|(engine, _)| Arc::clone(engine)) else { continue };
        let sent = engine.clock.now();
        let claim = |hold: &Arc<Hold>| Claim { lease: hold.within_ceiling(lease, sent), ..hold.claim() };
        let claims: Vec<Claim> = group.iter().map(|(_, hold)| claim(hold)).collect();
        let answers = engine.store.renew(&claims, engine.one_command());
        let now = engine.clock.now();
        for (((_, hold), claim), answer) in group.iter().zip(&claims).zip(answers) {
            match answer {
                // Once its window has ended it stays lost, whatever the store says later.
                Answer::Done(true) => {
                    if hold.is_live(now, &engine.reporter) && !hold.confirm(sent, claim.lease, &engine.clock)
                    {
                        engine.aftermath.lose(hold, LossReason::Expired);
                    }
                }
                Answer::Done(false) => engine.aftermath.lose(hold, LossReason::Gone),
                Answer::Refused(_) => {}
                Answer::Unknown(_) => hold.spend_number(), // it may yet come, as a renewal may
            }
        }
    }
}

/// A level that is given back; the innermost one, if none is named.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) engine: Arc<Engine>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) level: Option<u64>,
}

/// How one of several levels ends.
enum Ending {
    /// The lock is on its way to another thread here, since then.
    Over(Told, Moment),
    /// The store is to leave so many levels.
    Left(u32),
}

/// Gives all of these back, in their order. Whatever comes of one, the others are given back too; the first failure is
/// returned.
pub(crate) fn leave_all(action: &'static str, all: Vec<Leaving>) -> Result<()> {
    let _calls: Vec<Call> = all.iter().map(|one| one.engine.calls.begin()).collect();
    let mut outcome = Ok(());
    let mut note = |ended: Result<()>| {
        if outcome.is_ok() {
            outcome = ended;
        }
    };
    let (mut over, mut left) = (Vec::new(), Vec::new());
    for one in all {
        match one.begin(action) {
            Ok(Ending::Over(told, begun)) => over.push((one, told, begun)),
            Ok(Ending::Left(count)) => left.push((one, count)),
            Err(error) => note(Err(error)),
        }
    }
    let groups = by_request(left.into_iter(), |(one, left)| match left {
        0 if one.hold.claim().notice.is_none() => together(&one.engine, one.hold.kind(), one.hold.name()),
        _ => None,
    });
    let sent: Vec<_> = groups.into_iter().map(release).collect();
    // Those that have come to an end first: what goes on about the others is not to keep these from those who wait for them.
    let mut undecided = Vec::new();
    for (group, answers) in sent {
        let (answers, is_alone) = (answers.wait(group.len()), group.len() == 1);
        for ((one, left), answer) in group.into_iter().zip(answers) {
            match answer {
                answer @ Answer::Done(_) => {
                    let ended =
                        one.engine.send_release(&one.hold, left, one.engine.options.patience, Some(answer));
                    note(one.engine.released(action, &one.hold, left, ended));
                }
                // Which of several it was about, only a request for each can tell.
                Answer::Refused(_) if !is_alone => undecided.push((one, left, None)),
                answer => undecided.push((one, left, Some(answer))),
            }
        }
    }
    // One patience for all of them.
    let begun: Vec<Moment> = undecided.iter().map(|(one, ..)| one.engine.clock.now()).collect();
    for ((Leaving { engine, hold, .. }, left, first), begun) in undecided.into_iter().zip(begun) {
        let patience = engine.options.patience.saturating_sub(engine.clock.now().since(begun));
        let ended = engine.send_release(&hold, left, patience, first);
        note(engine.released(action, &hold, left, ended));
    }
    for (Leaving { engine, hold, .. }, told, begun) in over {
        note(engine.parted(action, &hold, engine.wait_told(&told), begun));
    }
    outcome
}

impl Leaving {
    fn begin(&self, action: &'static str) -> Result<Ending> {
        let Leaving { engine, hold, level } = self;
        engine.usable(action)?;
        let Some(left) = hold.end_level(*level) else {
            return Err(engine.not_holding(action, hold.kind(), hold.name()));
        };
        if !engine.still_held(hold, left) {
            return Err(Error::not_holding(action, hold.name().given(), NotHeld::Expired));
        }
        let (told, begun) = (Told::default(), engine.clock.now());
        if left == 0
            && let Over::Sent = engine.send_over(hold, Some(told.clone()))
        {
            return Ok(Ending::Over(told, begun));
        }
        Ok(Ending::Left(left))
    }
}

/// What is still to be read of a release.
enum Released {
    One(Box<dyn Pending<Release>>),
    Several(Box<dyn Pending<Vec<Release>>>),
}

/// Sends the request that gives these back.
fn release(group: Vec<(Leaving, u32)>) -> (Vec<(Leaving, u32)>, Released) {
    let claims: Vec<Claim> = group.iter().map(|(one, _)| one.hold.claim()).collect();
    let released = match (group.as_slice(), claims.as_slice()) {
        ([(Leaving { engine, .. }, left)], [claim]) => {
            Released::One(engine.store.begin_release(claim, *left, engine.one_command()))
        }
        ([(Leaving { engine, .. }, _), ..], claims) => {
            Released::Several(engine.store.begin_releases(claims, engine.one_command()))
        }
        ([], _) => Released::Several(Box::new(crate::lock::store::Known(Answer::Done(Vec::new())))),
    };
    (group, released)
}

impl Released {
    /// The answer for each.
    fn wait(self, count: usize) -> Vec<Answer<Release>> {
        let all = match self {
            Released::One(pending) => return vec![pending.wait()],
            Released::Several(pending) => pending.wait(),
        };
        let each = |index: usize| match &all {
            Answer::Done(releases) => match releases.get(index) {
                Some(release) => Answer::Done(release.clone()),
                None => Answer::Unknown(Error::new(ErrorKind::Protocol, "unlock", "no answer was read")),
            },
            Answer::Refused(error) => Answer::Refused(error.copy()),
            Answer::Unknown(error) => Answer::Unknown(error.copy()),
        };
        (0..count).map(each).collect()
    }
}
