//! The memory store with scripted answers: a test queues answers to the next requests (here *questions*), or
//! hooks that run before the memory store answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::claim;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, LockName, Owner};
use crate::inspect::Inspection;
use crate::park::ServiceWaker;
use crate::seam::capabilities::{CachedCheck, Capabilities, HoldCaching, Majority, Sessions};
use crate::seam::directory::{Directory, Entry, Page, Place, Posted, Wanted};
use crate::seam::inspection::{Inspect, describe_by_kinds};
use crate::seam::ring_member::{Marked, Probe, RingMember};
use crate::seam::subscription::tests::Nobody;
use crate::seam::subscription::{Channel, Subscription};
use crate::seam::{
    Answer, Attempt, Bound, Claim, Counting, Failure, Handoff, Kind, Others, Pending, Release, Snapshot,
    Store,
};
use crate::stores::memory::{MemoryAccess, MemoryStore};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, ManualClock, Moment};

/// Answers a question. Its argument returns the answer of the memory store.
type Script<T> = Box<dyn FnOnce(&dyn Fn() -> Answer<T>) -> Answer<T> + Send>;

type Always<T> = fn() -> Answer<T>;

/// The questions of one sort that were asked, and the scripts that answer the next ones.
pub(crate) struct Asked<T> {
    scripts: Mutex<VecDeque<Script<T>>>,
    /// The answer to every question without a script.
    always: Mutex<Option<Always<T>>>,
    asked: Mutex<Vec<Question>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) owner: Owner,
    pub(crate) count: u32,
    pub(crate) lease: Duration,
    pub(crate) deadline: Moment,
    /// The asking thread.
    pub(crate) by: Option<String>,
}

impl<T> Default for Asked<T> {
    fn default() -> Asked<T> {
        Asked { scripts: Mutex::default(), always: Mutex::default(), asked: Mutex::default() }
    }
}

impl<T> Asked<T> {
    /// The next question gets this answer.
    pub(crate) fn say(&self, answer: impl FnOnce() -> Answer<T> + Send + 'static) {
        self.scripts.lock().push_back(Box::new(|_| answer()));
    }

    /// The next questions get these answers.
    pub(crate) fn say_each(&self, answers: impl IntoIterator<Item = Answer<T>>)
    where
        T: Send + 'static,
    {
        answers.into_iter().for_each(|answer| self.say(|| answer));
    }

    /// Runs `hook` before the next question, which then gets the memory store's answer.
    pub(crate) fn before(&self, hook: impl FnOnce() + Send + 'static) {
        self.scripts.lock().push_back(Box::new(|right| {
            hook();
            right()
        }));
    }

    pub(crate) fn always(&self, answer: fn() -> Answer<T>) {
        *self.always.lock() = Some(answer);
    }

    /// Ends [`always`](Self::always).
    pub(crate) fn rightly(&self) {
        *self.always.lock() = None;
    }

    /// The number of scripts that no question has used yet.
    pub(crate) fn left(&self) -> usize {
        self.scripts.lock().len()
    }

    pub(crate) fn forget_scripts(&self) {
        self.scripts.lock().clear();
    }

    /// The number of questions so far.
    pub(crate) fn count(&self) -> usize {
        self.asked.lock().len()
    }

    pub(crate) fn all(&self) -> Vec<Question> {
        self.asked.lock().clone()
    }

    pub(crate) fn owners(&self) -> Vec<Owner> {
        self.asked.lock().iter().map(|question| question.owner).collect()
    }

    fn ask(&self, claim: &Claim, count: u32, deadline: Moment, right: impl Fn() -> Answer<T>) -> Answer<T> {
        let (owner, lease, by) = (claim.owner, claim.lease, thread::current().name().map(str::to_owned));
        self.asked.lock().push(Question { owner, count, lease, deadline, by });
        self.answer(right)
    }

    fn answer(&self, right: impl Fn() -> Answer<T>) -> Answer<T> {
        let script = self.scripts.lock().pop_front();
        if let Some(script) = script {
            return script(&right);
        }
        let always = *self.always.lock();
        always.map_or_else(right, |answer| answer())
    }
}

pub(crate) fn refusal() -> Error {
    Error::new(ErrorKind::Busy, "request", "not now")
}

pub(crate) fn refused<T>() -> Answer<T> {
    Err(Failure::Refused(refusal()))
}

pub(crate) fn in_doubt<T>() -> Answer<T> {
    Err(Failure::Unknown(refusal().with_unknown_outcome()))
}

pub(crate) fn busy() -> Answer<Attempt> {
    Ok(Attempt::Busy { retry_after: None })
}

pub(crate) fn granted() -> Answer<Attempt> {
    Ok(Attempt::granted(None))
}

pub(crate) fn freed() -> Answer<Release> {
    Ok(Release::Freed { others: Others::Nobody })
}

pub(crate) fn not_held() -> Answer<Release> {
    Ok(Release::NotHeld { holder: None })
}

/// A client's access to a store of its own, in which no lease ends.
#[derive(Default)]
pub(crate) struct Scripted {
    /// Without a memory every attempt, release and renewal succeeds, and a clean-up finds nothing.
    pub(crate) memory: Option<(MemoryStore, MemoryAccess)>,
    pub(crate) attempts: Asked<Attempt>,
    pub(crate) releases: Asked<Release>,
    pub(crate) renewals: Asked<bool>,
    /// With a memory, a clean-up without a script uses the next script of `releases`, if there is one.
    pub(crate) cleanups: Asked<Release>,
    pub(crate) checks: Asked<CachedCheck>,
    pub(crate) counts: Asked<Option<i64>>,
    pub(crate) inspections: Asked<Option<Snapshot>>,
    pub(crate) descriptions: Asked<Inspection>,
    pub(crate) forces: Asked<bool>,
    /// Scripts that answer hand-offs; each runs when the answer is read. A hand-off without one is not sent.
    pub(crate) handoffs: Asked<Handoff>,
    /// The scripts for waiters that begin to listen.
    pub(crate) listens: Asked<()>,
    /// The channel of all releases. `None`: the store sends no messages, so a waiter polls after an hour.
    pub(crate) channel: Option<Arc<Channel>>,
    pub(crate) closed: AtomicBool,
    pub(crate) polls: AtomicUsize,
    pub(crate) outlasts_leases: bool,
    pub(crate) keeps_no_names: bool,
    pub(crate) caches: bool,
    pub(crate) is_several: bool,
    /// With `is_several`: the owners whose holds ended while they were renewed.
    pub(crate) ended_meanwhile: Mutex<Vec<Owner>>,
    pub(crate) has_directory: bool,
    /// The text of each entry that the client wrote to the directory, and whether the write was awaited.
    pub(crate) entries: Mutex<Vec<(String, bool)>>,
    pub(crate) has_sessions: bool,
    /// The session with which all holds end.
    pub(crate) session: Option<Arc<dyn Bound>>,
    pub(crate) attached: Mutex<Option<ServiceWaker>>,
    /// If set, a renewal hangs until this moment or its deadline, and then has an unknown outcome.
    pub(crate) silent_until: Mutex<Option<Moment>>,
    /// The mark under which this store grants requests as a node of a ring.
    pub(crate) mark: Mutex<String>,
}

/// A store with a memory.
pub(crate) fn scripted() -> Scripted {
    let memory = MemoryStore::with_clock(ManualClock::new());
    let access = memory.open();
    Scripted { memory: Some((memory, access)), ..Scripted::default() }
}

/// As [`scripted`], with messages.
pub(crate) fn notifying() -> Scripted {
    Scripted { channel: Some(Arc::new(Channel::new("a", true))), ..scripted() }
}

impl Scripted {
    fn right<T>(&self, otherwise: Answer<T>, ask: impl FnOnce(&MemoryAccess) -> Answer<T>) -> Answer<T> {
        self.memory.as_ref().map_or(otherwise, |(_, access)| ask(access))
    }

    fn published(&self, answer: Answer<Release>) -> Answer<Release> {
        if let (Ok(Release::Freed { .. }), Some(channel)) = (&answer, &self.channel) {
            channel.notify();
        }
        answer
    }

    /// The holder of the lock `a`.
    pub(crate) fn holder(&self) -> Option<String> {
        let (memory, _) = self.memory.as_ref().unwrap();
        let seen = memory.open().describe(&super::name("a"), Moment::NEVER).unwrap();
        seen.holders.into_iter().next().map(|holder| holder.owner)
    }

    pub(crate) fn is_free(&self) -> bool {
        self.holder().is_none()
    }

    /// Makes the store forget the lock `a`.
    pub(crate) fn forget(&self) {
        self.memory.as_ref().unwrap().0.forget("a");
    }

    /// Makes this owner the holder of the lock `a`, as a late request would.
    pub(crate) fn give(&self, owner: Owner) {
        let late = Claim { owner, ..claim(Kind::Mutex, "a", Duration::from_secs(3600)) };
        self.forget();
        let given = self.memory.as_ref().unwrap().0.open().attempt(&late, 1, Moment::NEVER);
        assert!(matches!(given, Ok(Attempt::Granted { .. })), "{given:?}");
    }

    fn under<T>(&self, mark: &str, answer: impl FnOnce() -> Answer<T>) -> Answer<Marked<T>> {
        let borne = self.mark.lock().clone();
        if borne == mark { answer().map(Marked::Under) } else { Ok(Marked::Other(borne)) }
    }
}

struct Handing(Script<Handoff>);

impl Pending for Handing {
    fn wait(self: Box<Self>) -> Answer<Handoff> {
        (self.0)(&|| Ok(Handoff::Lost))
    }
}

impl Scripted {
    fn directory(&self) -> &dyn Directory {
        &self.memory.as_ref().unwrap().1
    }
}

impl Directory for Scripted {
    fn write(&self, entry: Entry<'_>, deadline: Moment) -> Answer<()> {
        self.entries.lock().push((entry.text.to_owned(), entry.is_awaited));
        self.directory().write(entry, deadline)
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        self.directory().remove(client, deadline)
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        self.directory().read(clients, deadline)
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        self.directory().clients(from, deadline)
    }

    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        self.directory().locks(wanted, from, deadline)
    }
}

impl Store for Scripted {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        Capabilities {
            queues: |kind| kind == Kind::Fair,
            outlasts_leases: self.outlasts_leases,
            majority: self.is_several.then(|| self.clone() as _),
            sessions: self.has_sessions.then(|| self.clone() as _),
            hold_caching: self.caches.then(|| self.clone() as _),
            directory: self.has_directory.then(|| self.clone() as _),
            poll_every: |_| (Duration::from_secs(3600), Duration::from_secs(7200)),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, _: Kind, _: &LockName) -> Result<()> {
        if self.keeps_no_names { Err(Error::invalid("use", "no name can be kept")) } else { Ok(()) }
    }

    fn attempt(&self, claim: &Claim, count: u32, by: Moment) -> Answer<Attempt> {
        let right = || self.right(granted(), |memory| memory.attempt(claim, count, by));
        self.attempts.ask(claim, count, by, right)
    }

    fn release(&self, claim: &Claim, left: u32, by: Moment) -> Answer<Release> {
        let right = || self.right(freed(), |memory| self.published(memory.release(claim, left, by)));
        self.releases.ask(claim, left, by, right)
    }

    fn hand_off(&self, _: &Claim, _: &Claim, _: Moment) -> Option<Box<dyn Pending>> {
        let script = self.handoffs.scripts.lock().pop_front()?;
        Some(Box::new(Handing(script)))
    }

    fn renew(&self, claims: &[Claim], by: Moment) -> Vec<Answer<bool>> {
        let silent_until = *self.silent_until.lock();
        if let Some(until) = silent_until {
            while Clock::System.now() < by.min(until) {
                thread::park_timeout(Duration::from_millis(1));
            }
            return claims.iter().map(|_| in_doubt()).collect();
        }
        let renew =
            |memory: &MemoryAccess, claim: &Claim| memory.renew(std::slice::from_ref(claim), by).remove(0);
        let one =
            |claim| self.renewals.ask(claim, 0, by, || self.right(Ok(true), |memory| renew(memory, claim)));
        claims.iter().map(one).collect()
    }

    fn clean_up(&self, claims: &[Claim], by: Moment) -> Vec<Answer<Release>> {
        let clean_up = |claim: &Claim| match &self.memory {
            Some((_, memory)) => {
                let right = || memory.clean_up(std::slice::from_ref(claim), by).remove(0);
                self.releases.answer(|| self.published(right()))
            }
            None => not_held(),
        };
        claims.iter().map(|claim| self.cleanups.ask(claim, 0, by, || clean_up(claim))).collect()
    }

    fn force(&self, kind: Kind, name: &LockName, by: Moment) -> Answer<bool> {
        self.forces.answer(|| self.right(Ok(true), |memory| memory.force(kind, name, by)))
    }

    fn count(&self, claim: &Claim, what: &Counting, by: Moment) -> Answer<Option<i64>> {
        self.counts.ask(claim, 0, by, || self.right(Ok(None), |memory| memory.count(claim, what, by)))
    }

    fn listen(&self, _: &Claim, waker: &Waker) -> Option<Subscription> {
        drop(self.listens.answer(|| Ok(())));
        Some(Subscription::new(Arc::clone(self.channel.as_ref()?), Arc::new(Nobody), waker))
    }

    fn message_count(&self, _: &Claim) -> Option<u64> {
        Some(self.channel.as_ref()?.message_count())
    }

    fn poll_completions(&self) -> bool {
        self.polls.fetch_add(1, Ordering::SeqCst);
        false
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.releases.always(refused);
    }
}

impl Inspect for Scripted {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        self.inspections.answer(|| self.right(Ok(None), |memory| memory.inspect(kind, name, owner, by)))
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        self.descriptions.answer(|| describe_by_kinds(self, name, deadline))
    }
}

impl Majority for Scripted {
    fn first_unspent_number(&self) -> u64 {
        0
    }

    fn ended_meanwhile(&self, claim: &Claim) {
        self.ended_meanwhile.lock().push(claim.owner);
    }

    fn held_off(&self, _: &Claim) -> Option<Duration> {
        None
    }

    fn is_split(&self, _: Kind, _: &LockName, _: Moment) -> Answer<bool> {
        Ok(false)
    }
}

impl Sessions for Scripted {
    fn attach(&self, timer: ServiceWaker) {
        *self.attached.lock() = Some(timer);
    }

    fn bound(&self, _: &Claim) -> Option<Arc<dyn Bound>> {
        self.session.clone()
    }
}

impl HoldCaching for Scripted {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.listen(claim, waker)
    }

    fn check_holds(&self, claims: &[Claim], by: Moment) -> Vec<Answer<CachedCheck>> {
        claims.iter().map(|claim| self.checks.ask(claim, 0, by, || Ok(CachedCheck::Stays))).collect()
    }
}

impl RingMember for Scripted {
    fn set_mark(&self, expected: &str, new: &str, _: Moment) -> Answer<Marked<()>> {
        let mut borne = self.mark.lock();
        if *borne != expected && *borne != new {
            return Ok(Marked::Other(borne.clone()));
        }
        new.clone_into(&mut borne);
        Ok(Marked::Under(()))
    }

    fn attempt_under(&self, mark: &str, claim: &Claim, _: u64, deadline: Moment) -> Answer<Marked<Attempt>> {
        self.under(mark, || self.attempt(claim, 1, deadline))
    }

    fn probe_under(&self, mark: &str, _: &Claim, _: Moment) -> Answer<Marked<Probe>> {
        self.under(mark, || Ok(Probe::Free { fence: 0 }))
    }
}
