//! Stores locks in etcd, through the HTTP gateway of its members.
//!
//! An owner that wants a lock (its *claim*) puts a key. The owner of the key created first holds the lock,
//! and each other owner watches the key before its own. `message` defines keys and requests, `lease` the
//! leases of the keys, `members` connections and errors. The thread of `watch` receives events about keys.
//! `watched` chooses these: the key before each waiter's key, the queues of cached locks, and holds that may
//! end `early`. A new key in a cached lock's queue is a *recall*, which asks for the lock's release.
//! `directory` lists locks and clients; in its *entry*, a client describes itself.

mod address;
mod directory;
mod early;
mod http;
mod lease;
mod members;
mod message;
mod requests;
#[cfg(test)]
mod tests;
mod watch;
mod watched;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{FencingToken, LockName, Owner};
use crate::inspect::{Holder, Inspection, ObjectKind, Waiter};
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::park::ServiceWaker;
use crate::seam::capabilities::{CachedCheck, HoldCaching, Sessions};
use crate::seam::format::{check_format, format_text};
use crate::seam::subscription::Subscription;
use crate::seam::{
    Answer, Attempt, Bound, Capabilities, Claim, Failure, Family, Inspect, Kind, Release, Snapshot, Store,
    named, named_each,
};
use crate::shrink::Sweeps;
use crate::stores::etcd::lease::{Leases, time_to_live};
use crate::stores::etcd::members::{Members, Transport};
use crate::stores::etcd::message::{
    BATCH, BATCH_OF_CLAIMS, Done, FORMAT_KEY, get, is_absent, is_since, put, take_away, txn, unanswered,
};
use crate::stores::etcd::watch::watch;
use crate::stores::etcd::watched::Watch;
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

pub(crate) struct EtcdStore {
    members: Arc<Members>,
    wire: Arc<Transport>,
    /// Uses the pool's extra connection, so that many waiters cannot delay a renewal past its lease.
    renewals: Transport,
    leases: Leases,
    sweeps: Sweeps,
    watch: Arc<Watch>,
    entry_lease: Mutex<Option<i64>>,
}

impl EtcdStore {
    pub(crate) fn connect(options: &ServerOptions, reporter: Arc<Reporter>) -> Result<EtcdStore> {
        let members = Arc::new(Members::new(options)?);
        let told = Arc::clone(&reporter);
        let wire = Arc::new(Transport::new(Arc::clone(&members), options.pool_size));
        let store = EtcdStore {
            renewals: wire.for_renewals(),
            wire,
            leases: Leases::default(),
            sweeps: Sweeps::default(),
            watch: watch(Arc::clone(&members), reporter),
            entry_lease: Mutex::default(),
            members,
        };
        let deadline = Clock::System.after(options.connect_timeout);
        let looked =
            store.wire.authenticate(deadline).and_then(|()| store.agree_on_format(options.notes, deadline));
        looked.map_err(|failure| failure.into_error().during("connect"))?;
        store.check_version(&told, deadline);
        Ok(store)
    }

    /// Refuses data of another format version. If none is stored and `notes` is set, stores our version.
    fn agree_on_format(&self, notes: bool, deadline: Moment) -> Answer<()> {
        let path = format!("{}{FORMAT_KEY}", self.members.address.prefix);
        let (key, place) = (STANDARD.encode(&path), format!("the key {path}"));
        let check = |done: &Done| match done.text(0).map_err(Failure::Refused)? {
            Some((found, _)) => check_format(&found, &place).map(|()| true),
            None => Ok(false),
        };
        if check(&self.txn(&self.wire, &txn(&[], &[get(&key)], &[]), deadline)?)? || !notes {
            return Ok(());
        }
        // Failures are ignored, because a user who may only read is accepted. Another client may have stored
        // a format meanwhile, so the stored one is checked.
        let note = txn(&[is_absent(&key)], &[put(&key, &STANDARD.encode(format_text()), 0)], &[get(&key)]);
        match self.txn(&self.wire, &note, deadline) {
            Ok(noted) if !noted.succeeded => check(&noted).map(drop),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn check_version(&self, reporter: &Reporter, deadline: Moment) {
        let status = self.wire.call("/v3/maintenance/status", &json!({}), deadline).ok();
        let version = status.as_ref().and_then(|status| status.get("version")?.as_str());
        if early::may_revoke(version) {
            self.watch.state.lock().own.holds.are_watched = true;
            if let Some(version) = version {
                let text = early::warning(version);
                reporter.observe_later(move |observer| observer.event(&Event::Warning { text: &text }));
            }
        }
    }
}

impl Store for EtcdStore {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        Capabilities {
            queues: |_| true,
            cleaned_up_at_a_time: |_| BATCH_OF_CLAIMS,
            sessions: Some(self.clone()),
            hold_caching: Some(self.clone()),
            directory: Some(self.clone()),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        match kind.family() {
            Family::Lock => return Ok(()),
            Family::Read | Family::Write | Family::Token | Family::Counted => {}
        }
        let words = "etcd keeps plain, fenced and fair locks, and what is made of those: get_lock(), get_fenced_lock(), get_fair_lock(), groups of them \
                     and leader(); no token and read-write locks, run_once(), semaphores, latches or conditions";
        Err(Error::new(ErrorKind::Unsupported, "lock", words).on(name.given()))
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        let outcome = if count == 1 {
            self.take(claim, deadline)
        } else {
            let changed = self.change(&self.wire, claim, None, (Some(count), true), deadline);
            changed.map(|fence| match fence {
                Some(fence) => Attempt::granted(claim.wants_fence.then(|| FencingToken::new(fence))),
                None => Attempt::Lost,
            })
        };
        named(outcome, "lock", claim.name.given())
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        let outcome = if left == 0 {
            self.remove_one(claim, deadline)
        } else {
            match self.change(&self.wire, claim, None, (Some(left), false), deadline) {
                Ok(Some(_)) => Ok(Release::StillHeld),
                Ok(None) => {
                    let held = self.look(&self.line(&claim.name).first(), deadline);
                    held.map(|held| Release::NotHeld { holder: held.map(|held| held.owner) })
                }
                Err(failure) => Err(failure),
            }
        };
        named(outcome, "unlock", claim.name.given())
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        let outcomes = claims.chunks(BATCH).flat_map(|batch| {
            let renewed = self.renew_batch(batch, deadline);
            renewed.unwrap_or_else(|failure| failure.of_reading().each(batch.len()))
        });
        named_each(claims, outcomes, "renew")
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        let early: Vec<bool> = claims.iter().map(|claim| self.watch.left_early(&self.key(claim))).collect();
        let others = claims.iter().zip(&early).filter(|(_, early)| !**early);
        let others: Vec<Claim> = others.map(|(claim, _)| claim.clone()).collect();
        let mut removed = self.remove(&self.renewals, &others, deadline).into_iter();
        let outcomes = early.into_iter().map(|is_early| {
            let removed = if is_early { None } else { removed.next() };
            removed.unwrap_or(Ok(Release::NotHeld { holder: None }))
        });
        named_each(claims, outcomes, "unlock")
    }

    fn force(&self, _kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        let line = self.line(name);
        let force = || {
            let Some(held) = self.look(&line.first(), deadline)? else { return Ok(false) };
            let taken = txn(&[is_since(&held.key, held.created)], &[take_away(&held.key)], &[]);
            Ok(self.txn(&self.wire, &taken, deadline)?.succeeded)
        };
        named(force(), "force_unlock", name.given())
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.watch.wait_at(&self.key(claim), waker)
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        self.watch.count_at(&self.key(claim))
    }

    fn poll_completions(&self) -> bool {
        let now = Clock::System.now();
        if self.sweeps.is_due(now) {
            self.leases.sweep(now);
            self.watch.state.lock().own.holds.sweep();
        }
        false
    }

    fn close(&self) {
        self.watch.end();
        self.wire.pool.close();
    }
}

impl Inspect for EtcdStore {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        let seen = named(self.seen(name, 1, by), "inspect", name.given())?;
        Ok(Snapshot::of(seen, kind, owner))
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        named(self.seen(name, MOST_SHOWN, deadline), "inspect", name.given())
    }
}

impl Sessions for EtcdStore {
    fn attach(&self, watchdog: ServiceWaker) {
        self.watch.state.lock().own.watchdog = Some(watchdog);
    }

    fn bound(&self, claim: &Claim) -> Option<Arc<dyn Bound>> {
        Some(self.watch.state.lock().own.holds.end(&self.key(claim))?)
    }
}

const MOST_SHOWN: u32 = 100;

impl EtcdStore {
    fn seen(&self, name: &LockName, most: u32, deadline: Moment) -> Answer<Inspection> {
        let mut seen = Inspection::new(name.given(), ObjectKind::Absent);
        let looks = [self.line(name).first_of(most)];
        let done = self.txn(&self.wire, &txn(&[], &looks, &[]), deadline).map_err(Failure::of_reading)?;
        let (stand, all) = done.line(0).map_err(Failure::Refused)?;
        let mut stand = stand.into_iter();
        let Some(held) = stand.next() else { return Ok(seen) };
        let left = match held.lease {
            0 => Some(Duration::MAX), // another program's key
            lease => time_to_live(&self.wire, lease, deadline)
                .map_err(Failure::of_reading)?
                .map(Duration::from_secs),
        };
        // `None`: the lease has just ended, and the key with it.
        if left.is_some() {
            (seen.kind, seen.remaining) = (ObjectKind::FairLock, left);
            seen.fencing_token = u64::try_from(held.created).ok().map(FencingToken::new);
            let holder = Holder::new(held.owner);
            seen.holders.push(Holder { hold_count: Some(held.count), remaining: left, ..holder });
        }
        seen.waiting = all.saturating_sub(1);
        seen.waiters = stand.map(|waiter| Waiter::new(waiter.owner, None)).collect();
        Ok(seen)
    }
}

const CHECK_BATCH: usize = BATCH / 2;

impl HoldCaching for EtcdStore {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.watch.hear(self.line(&claim.name), waker)
    }

    fn check_holds(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<CachedCheck>> {
        let looks = claims.chunks(CHECK_BATCH).flat_map(|batch| {
            let looks = self.check_batch(batch, deadline);
            looks.unwrap_or_else(|failure| failure.of_reading().each(batch.len()))
        });
        named_each(claims, looks, "renew")
    }
}

impl EtcdStore {
    fn check_batch(&self, claims: &[Claim], deadline: Moment) -> Answer<Vec<Answer<CachedCheck>>> {
        // The watch must know the client's own key: a re-entry puts this key again, which is no recall.
        for claim in claims.iter().filter(|claim| claim.hears) {
            self.watch.caches(&self.line(&claim.name), &self.key(claim));
        }
        let questions = |claim: &Claim| [get(&self.key(claim)), self.line(&claim.name).last(None)];
        let questions: Vec<Value> = claims.iter().flat_map(questions).collect();
        let done = self.txn(&self.renewals, &txn(&[], &questions, &[]), deadline)?;
        let looks = claims.iter().enumerate().map(|(at, claim)| {
            let held = done.found(2 * at).map_err(|_error| unanswered())?;
            let Some(held) = held.filter(|held| held.is_of(claim.owner)) else {
                return Ok(CachedCheck::Lost);
            };
            let last = done.found_front(2 * at + 1).map_err(|_error| unanswered())?;
            let is_wanted = last.is_some_and(|last| last.key != held.key);
            Ok(if is_wanted { CachedCheck::Wanted } else { CachedCheck::Stays })
        });
        Ok(looks.collect())
    }
}
