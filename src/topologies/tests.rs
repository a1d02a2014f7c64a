//! A simulated server of a topology.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::inspect::Inspection;
use crate::seam::capabilities::Capabilities;
use crate::seam::inspection::Inspect;
use crate::seam::inspection::describe_by_kinds;
use crate::seam::ring_member::{Marked, Probe, RingMember};
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Attempt, Claim, Failure, Kind, Others, Release, Snapshot, Store};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

type Answers<T> = Mutex<VecDeque<Answer<T>>>;
type Hook = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// Gives the queued answers first; after them it grants, releases and renews, and finds nothing to clean up.
#[derive(Default)]
pub(super) struct Scripted {
    pub(super) attempts: Answers<Attempt>,
    pub(super) releases: Answers<Release>,
    pub(super) renewals: Answers<bool>,
    pub(super) cleanups: Answers<Release>,
    pub(super) cleaned: Mutex<Vec<Owner>>,
    /// Owners whose single attempts were released.
    pub(super) released: Mutex<Vec<Owner>>,
    pub(super) asked: AtomicUsize,
    pub(super) attempted: Mutex<Vec<(Owner, u32, Duration)>>,
    /// Until then, does not answer.
    pub(super) silent_until: Mutex<Option<Moment>>,
    /// How long attempts take.
    pub(super) takes: Mutex<Duration>,
    pub(super) renewing: Hook,
    pub(super) forcing: Hook,
    /// As a node of a ring, grants requests under this mark.
    mark: Mutex<String>,
}

pub(super) fn freed() -> Answer<Release> {
    Ok(Release::Freed { others: Others::Nobody })
}

pub(super) fn nothing() -> Answer<Release> {
    Ok(Release::NotHeld { holder: None })
}

pub(super) fn silence() -> Error {
    Error::new(ErrorKind::TimedOut, "request", "no answer")
}

fn next<T>(answers: &Answers<T>, otherwise: Answer<T>) -> Answer<T> {
    answers.lock().pop_front().unwrap_or(otherwise)
}

fn meanwhile(hook: &Hook) {
    let meanwhile = hook.lock().take();
    meanwhile.into_iter().for_each(|meanwhile| meanwhile());
}

impl Store for Scripted {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities::default()
    }

    fn check_name(&self, _: Kind, _: &LockName) -> Result<()> {
        Ok(())
    }

    fn attempt(&self, claim: &Claim, count: u32, _: Moment) -> Answer<Attempt> {
        self.attempted.lock().push((claim.owner, count, claim.lease));
        self.asked.fetch_add(1, Ordering::SeqCst);
        let until = Clock::System.after(*self.takes.lock());
        while Clock::System.now() < until {
            std::thread::yield_now();
        }
        next(&self.attempts, Ok(Attempt::granted(None)))
    }

    fn release(&self, claim: &Claim, _: u32, _: Moment) -> Answer<Release> {
        self.released.lock().push(claim.owner);
        next(&self.releases, freed())
    }

    fn renew(&self, claims: &[Claim], by: Moment) -> Vec<Answer<bool>> {
        meanwhile(&self.renewing);
        let silent_until = *self.silent_until.lock();
        if let Some(until) = silent_until {
            while Clock::System.now() < by.min(until) {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            return claims.iter().map(|_| Err(Failure::Unknown(silence()))).collect();
        }
        claims.iter().map(|_| next(&self.renewals, Ok(true))).collect()
    }

    fn clean_up(&self, claims: &[Claim], _: Moment) -> Vec<Answer<Release>> {
        self.cleaned.lock().extend(claims.iter().map(|claim| claim.owner));
        claims.iter().map(|_| next(&self.cleanups, nothing())).collect()
    }

    fn force(&self, _: Kind, _: &LockName, _: Moment) -> Answer<bool> {
        meanwhile(&self.forcing);
        Ok(true)
    }

    fn listen(&self, _: &Claim, _: &Waker) -> Option<Subscription> {
        None
    }

    fn message_count(&self, _: &Claim) -> Option<u64> {
        None
    }

    fn close(&self) {}
}

impl Inspect for Scripted {
    fn inspect(&self, _: Kind, _: &LockName, _: Owner, _: Moment) -> Answer<Option<Snapshot>> {
        let is_silent = self.silent_until.lock().is_some_and(|until| Clock::System.now() < until);
        if is_silent { Err(Failure::Refused(silence())) } else { Ok(None) }
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        describe_by_kinds(self, name, deadline)
    }
}

impl Scripted {
    fn under<T>(&self, mark: &str, answer: impl FnOnce() -> Answer<T>) -> Answer<Marked<T>> {
        let borne = self.mark.lock().clone();
        if borne == mark { answer().map(Marked::Under) } else { Ok(Marked::Other(borne)) }
    }
}

impl RingMember for Scripted {
    fn bears(&self, mark: &str, deadline: Moment) -> Answer<Marked<()>> {
        self.set_mark(mark, mark, deadline)
    }

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
