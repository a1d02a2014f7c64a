//! etcd, through the HTTP gateway that each member has: the store for those who need consensus.
//!
//! Who wants a lock puts a key; the one that was created first has it, every other watches the one in front. `message` says
//! what the keys are and what is asked about them, `lease` keeps the leases that end them, `members` has the connections
//! and reads refusals, `watch` knows who waits and wakes them, `early` which holds may end early, `show` tells who stands
//! there.
//!
//! Long because a request may leave doubt at each step, and one who stands in the queue may lose the place at each.

mod address;
mod early;
mod http;
mod lease;
mod members;
mod message;
mod show;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::config::RedisOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{Fence, LockName, Owner};
use crate::inspect::Inspection;
use crate::observe::reporter::Reporter;
use crate::park::ServiceWaker;
use crate::room::Sweeps;
use crate::seam::capabilities::{Capabilities, Sessions};
use crate::seam::inspection::Inspect;
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Attempt, Bound, Claim, Failure, Kind, Outcome, Release, Snapshot, Store, answer};
use crate::sync::Waker;
use crate::time::{Clock, Moment};
use address::EtcdAddress;
use lease::{EtcdLease, Leases, keep_alive, revoke, time_to_live, ttl_of};
use members::{Members, Transport, is_lease_over, not_sent};
use message::{
    BATCH, Done, Front, HeldKey, KeyLine, get, is_absent, is_at, is_since, is_there, put, put_as_leased,
    take_away, txn, value,
};
use watch::{Id, Watch, WatchPlace};

/// How often a change is tried again when the key was changed between the look and the change.
const TRIES: usize = 8;

/// Keeps locks in one cluster.
pub(crate) struct EtcdStore {
    members: Arc<Members>,
    /// For what locks are asked.
    wire: Transport,
    /// For renewals and abandons, so that no crowd can cost a lease.
    renewals: Transport,
    leases: Leases,
    sweeps: Sweeps,
    watch: Arc<Watch>,
}

impl EtcdStore {
    /// Connects and checks that the cluster answers and that its keys may be read.
    pub(crate) fn connect(options: &RedisOptions, reporter: Arc<Reporter>) -> Result<EtcdStore> {
        let members = Arc::new(Members::new(EtcdAddress::new(options)?));
        let told = Arc::clone(&reporter);
        let store = EtcdStore {
            wire: Transport::new(Arc::clone(&members), options.pool_size),
            renewals: Transport::new(Arc::clone(&members), 1),
            leases: Leases::default(),
            sweeps: Sweeps::default(),
            watch: Watch::new(Arc::clone(&members), reporter),
            members,
        };
        let deadline = Clock::System.after(options.connect_timeout);
        let probe = json!({ "key": STANDARD.encode(&store.members.address.prefix), "keys_only": true });
        let looked = store
            .wire
            .authenticate(deadline)
            .and_then(|()| store.wire.call("/v3/kv/range", &probe, deadline));
        looked.map_err(|failure| failure.into_error().during("connect"))?;
        store.look_at_version(&told, deadline);
        Ok(store)
    }

    /// What ends leases early is warned about, and watched for.
    fn look_at_version(&self, reporter: &Reporter, deadline: Moment) {
        let status = self.wire.call("/v3/maintenance/status", &json!({}), deadline).ok();
        let version = status.as_ref().and_then(|status| status.get("version")?.as_str());
        if early::may_revoke(version) {
            self.watch.watch_holds();
            if let Some(version) = version {
                let text = early::warning(version);
                reporter.observe_later(move |observer| observer.warning(&text));
            }
        }
    }

    fn line(&self, name: &LockName) -> KeyLine {
        KeyLine::new(&self.members.address.prefix, name.key())
    }

    /// The key of who wants a lock.
    fn key(&self, claim: &Claim) -> String {
        self.line(&claim.name).key(claim.owner)
    }

    /// Runs a transaction.
    fn txn(&self, wire: &Transport, body: &Value, deadline: Moment) -> Outcome<Done> {
        wire.call("/v3/kv/txn", body, deadline).map(|answer| Done::read(&answer))
    }

    /// What a `get`, or the `first` of a line, finds.
    fn look(&self, what: &Value, deadline: Moment) -> Outcome<Option<HeldKey>> {
        let done =
            self.txn(&self.wire, &txn(&[], std::slice::from_ref(what), &[]), deadline).map_err(not_sent)?;
        done.found(0).map_err(Failure::Refused)
    }

    // ---- taking

    /// A first hold.
    fn take(&self, claim: &Claim, deadline: Moment) -> Outcome<Attempt> {
        let id = id(claim);
        for _ in 0..TRIES {
            let stands = match self.watch.place(&id) {
                Some((place, front)) => self.ask(claim, place, front, deadline).map_err(not_sent)?,
                None => self.join(claim, deadline)?,
            };
            match stands {
                Stands::First(place) => {
                    if self.counts(claim, place, deadline)? {
                        self.watch.leave(&id, true);
                        self.watch.holds(self.key(claim), place.created);
                        let fence = claim.wants_fence.then(|| Fence::new(place.created.unsigned_abs()));
                        return Ok(Attempt::Granted { fence });
                    }
                }
                Stands::Behind { place, front } if claim.waits => {
                    let third = Duration::from_secs(ttl_of(claim.lease)) / 3;
                    let lease = self.leases.lent(place.lease);
                    // It has to live until the next look.
                    let until = Clock::System.after(third * 2);
                    if let Some(lease) = lease
                        && self.leases.keep(&self.wire, lease, until, deadline).map_err(not_sent)?
                    {
                        if self.watch.follow(id.clone(), place, front) {
                            continue;
                        }
                        return Ok(Attempt::Busy { retry_after: Some(third) });
                    }
                }
                Stands::Behind { .. } | Stands::Nowhere { busy: true } => {
                    return Ok(Attempt::Busy { retry_after: None });
                }
                Stands::Nowhere { busy: false } => {}
            }
            // The place is lost. Whoever waits for a lock waits on, at the end.
            self.watch.leave(&id, false);
        }
        let words = "the key disappeared again and again during the request";
        Err(Failure::Refused(Error::new(ErrorKind::Busy, "lock", words)))
    }

    /// Whether the hold of one who has come first can be counted on for the claim's lease.
    fn counts(&self, claim: &Claim, place: WatchPlace, deadline: Moment) -> Outcome<bool> {
        match self.leases.lent(place.lease) {
            Some(lease) => {
                let until = Clock::System.after(claim.lease);
                self.leases.keep(&self.wire, lease, until, deadline).map_err(not_sent)
            }
            // What an earlier attempt has left.
            None => Ok(self.change(claim, None, |_| 1, true, deadline)?.is_some()),
        }
    }

    /// Puts the claim's key: behind all others, or, for one who will not wait, only where there are none.
    fn join(&self, claim: &Claim, deadline: Moment) -> Outcome<Stands> {
        let (lease, done) = match self.put_first(claim, deadline) {
            // A lease that was believed in is gone, as when the cluster's data was restored. The rest is not believed
            // in either; the request was not carried out.
            Err(failure) if is_lease_over(&failure) => {
                self.leases.distrust();
                self.put_first(claim, deadline)
            }
            first => first,
        }?;
        if !done.succeeded {
            self.leases.give_back(lease);
            return match done.found(0).map_err(Failure::Refused)? {
                // The claim's own, of which nothing is known.
                Some(held) => {
                    let place = WatchPlace { created: held.created, lease: held.lease };
                    self.ask(claim, place, None, deadline).map_err(not_sent)
                }
                None => Ok(Stands::Nowhere { busy: !claim.waits }),
            };
        }
        self.leases.lend(lease);
        let place = WatchPlace { created: i64::try_from(done.revision).unwrap_or(i64::MAX), lease: lease.id };
        let front = if claim.waits { done.found_front(0).map_err(Failure::Unknown)? } else { None };
        Ok(Stands::at(place, front))
    }

    fn put_first(&self, claim: &Claim, deadline: Moment) -> Outcome<(EtcdLease, Done)> {
        let (line, key) = (self.line(&claim.name), self.key(claim));
        let lease = self.leases.take(&self.wire, claim.lease, deadline)?;
        let put = put(&key, &value(claim.owner, 1, lease.ttl), lease.id);
        self.watch.asks(&id(claim));
        let body = if claim.waits {
            // In this order: who is the last before the key is there.
            txn(&[is_absent(&key)], &[line.last(None), put], &[get(&key)])
        } else {
            txn(&[line.is_empty()], &[put], &[get(&key)])
        };
        match self.txn(&self.wire, &body, deadline) {
            Ok(done) => Ok((lease, done)),
            Err(failure) => {
                if matches!(failure, Failure::Refused(_)) && !is_lease_over(&failure) {
                    self.leases.give_back(lease);
                }
                Err(failure)
            }
        }
    }

    /// Where the claim's owner stands now; `front` is who stood in front a moment ago, if that is known.
    fn ask(
        &self,
        claim: &Claim,
        place: WatchPlace,
        front: Option<Front>,
        deadline: Moment,
    ) -> Outcome<Stands> {
        let (line, key) = (self.line(&claim.name), self.key(claim));
        let looks = [get(&key), line.last(Some(place.created))];
        let done = match &front {
            // Mostly nothing has changed, and the server need not go through all who stand there.
            Some(front) => {
                let unchanged = [is_since(&key, place.created), is_since(&front.key, front.created)];
                self.txn(&self.wire, &txn(&unchanged, &[], &looks), deadline)?
            }
            None => self.txn(&self.wire, &txn(&[], &looks, &[]), deadline)?,
        };
        if let Some(front) = front.filter(|_| done.succeeded) {
            return Ok(Stands::at(place, Some(front)));
        }
        let own = done.found(0).map_err(Failure::Refused)?;
        if own.is_none_or(|own| own.created != place.created) {
            return Ok(Stands::Nowhere { busy: false });
        }
        let front = done.found_front(1).map_err(Failure::Refused)?;
        Ok(Stands::at(place, front))
    }

    /// Has a hold that stands have another count, and run for the claim's lease from now on if `prolongs`. Returns its
    /// fence, which is its place in the order: the revision of a later change would be above the fences of those who
    /// stand behind it. `None`: the owner does not hold it.
    fn change(
        &self,
        claim: &Claim,
        seen: Option<HeldKey>,
        count: impl Fn(&HeldKey) -> u32,
        prolongs: bool,
        deadline: Moment,
    ) -> Outcome<Option<u64>> {
        let key = self.key(claim);
        let mut seen = seen;
        for _ in 0..TRIES {
            let held = match seen.take() {
                Some(held) => Some(held),
                None => self.look(&get(&key), deadline)?,
            };
            let Some(held) = held.filter(|held| held.is_of(claim.owner)) else { return Ok(None) };
            let other_lease = if prolongs {
                match self.long_enough(&self.wire, &held, claim.lease, deadline).map_err(not_sent)? {
                    Enough::Ended => return Ok(None),
                    Enough::Yes => None,
                    Enough::No => Some(self.leases.take(&self.wire, claim.lease, deadline)?),
                }
            } else {
                None
            };
            let ttl = other_lease.map_or(held.ttl, |lease| lease.ttl);
            let value = value(claim.owner, count(&held), ttl);
            let change = match other_lease {
                Some(lease) => put(&key, &value, lease.id),
                None => put_as_leased(&key, &value),
            };
            let done =
                self.txn(&self.wire, &txn(&[is_at(&key, held.revision)], &[change], &[get(&key)]), deadline)?;
            if done.succeeded {
                if let Some(lease) = other_lease {
                    self.leases.lend(lease);
                }
                return Ok(Some(u64::try_from(held.created).unwrap_or(0)));
            }
            if let Some(lease) = other_lease {
                self.leases.give_back(lease);
            }
            seen = done.found(0).map_err(Failure::Refused)?;
            if seen.is_none() {
                return Ok(None);
            }
        }
        let words = "the key changed again and again during the request";
        Err(Failure::Refused(Error::new(ErrorKind::Busy, "change", words)))
    }

    /// Whether the hold's lease runs for `asked` from now on, after it was kept alive if that makes it so exactly.
    /// Never prolongs a lease of another length: it would run for longer than anybody asked.
    fn long_enough(
        &self,
        wire: &Transport,
        held: &HeldKey,
        asked: Duration,
        deadline: Moment,
    ) -> Outcome<Enough> {
        let ttl = ttl_of(asked);
        if held.ttl == ttl {
            let sent = Clock::System.now();
            let is_alive = keep_alive(wire, &[held.lease], deadline)? == [true];
            self.leases.confirm(held.lease, sent);
            return Ok(if is_alive { Enough::Yes } else { Enough::Ended });
        }
        if held.ttl < ttl {
            return Ok(Enough::No);
        }
        Ok(match time_to_live(wire, held.lease, deadline)? {
            None => Enough::Ended,
            Some(seconds) if Duration::from_secs(seconds) >= asked => Enough::Yes,
            Some(_) => Enough::No,
        })
    }

    // ---- giving back

    /// Has each claim's owner hold nothing.
    fn remove(&self, wire: &Transport, claims: &[Claim], deadline: Moment) -> Vec<Outcome<Release>> {
        let mut outcomes = Vec::with_capacity(claims.len());
        claims.iter().for_each(|claim| self.watch.gives_up(&self.key(claim)));
        for batch in claims.chunks(BATCH) {
            let removals: Vec<Value> =
                batch.iter().map(|claim| json!({ "request_txn": self.removal(claim) })).collect();
            match self.txn(wire, &txn(&[], &removals, &[]), deadline) {
                Ok(done) => outcomes.extend(batch.iter().enumerate().map(|(at, claim)| {
                    let inner = done.inner(at).map_err(Failure::Unknown)?;
                    self.removed(wire, claim, &inner, deadline)
                })),
                Err(failure) => outcomes.extend(for_each_of(batch.len(), failure).map(Err)),
            }
        }
        outcomes
    }

    /// Takes the owner's key away; where there is none, asks who has the lock.
    fn removal(&self, claim: &Claim) -> Value {
        let key = self.key(claim);
        txn(&[is_there(&key)], &[take_away(&key)], &[self.line(&claim.name).first()])
    }

    fn remove_one(&self, claim: &Claim, deadline: Moment) -> Outcome<Release> {
        self.watch.gives_up(&self.key(claim));
        let done = self.txn(&self.wire, &self.removal(claim), deadline)?;
        self.removed(&self.wire, claim, &done, deadline)
    }

    fn removed(&self, wire: &Transport, claim: &Claim, done: &Done, deadline: Moment) -> Outcome<Release> {
        self.watch.leave(&id(claim), true);
        // Threads of this client need not wait for the server's word.
        self.watch.gone(&self.key(claim));
        let was = done.found(0).map_err(Failure::Refused)?;
        if !done.succeeded {
            return Ok(Release::NotHeld { holder: was.map(|held| held.owner) });
        }
        if let Some(held) = was
            && !self.leases.returned(held.lease)
        {
            revoke(wire, held.lease, deadline);
        }
        Ok(Release::Freed { others: 0 })
    }

    // ---- keeping alive

    fn renew_batch(&self, claims: &[Claim], deadline: Moment) -> Outcome<Vec<Outcome<bool>>> {
        let looks: Vec<Value> = claims.iter().map(|claim| get(&self.key(claim))).collect();
        let done = self.txn(&self.renewals, &txn(&[], &looks, &[]), deadline)?;
        // A key that stands now, under a lease that is kept alive after that, stands for the whole lease.
        let mut alike = Vec::new();
        let mut outcomes: Vec<Option<Outcome<bool>>> = Vec::with_capacity(claims.len());
        for (place, claim) in claims.iter().enumerate() {
            outcomes.push(match done.found(place) {
                Err(error) => Some(Err(Failure::Refused(error))),
                Ok(Some(held)) if held.is_of(claim.owner) => {
                    if held.ttl == ttl_of(claim.lease) {
                        alike.push(held.lease);
                        None
                    } else {
                        Some(self.renew_other(claim, &held, deadline))
                    }
                }
                Ok(_) => Some(Ok(false)),
            });
        }
        let sent = Clock::System.now();
        let mut alive = match keep_alive(&self.renewals, &alike, deadline) {
            Ok(alive) => alive.into_iter(),
            Err(failure) => {
                let mut failures = for_each_of(alike.len(), failure);
                let failed =
                    |outcome: Option<_>| outcome.or_else(|| failures.next().map(Err)).unwrap_or(Ok(false));
                return Ok(outcomes.into_iter().map(failed).collect());
            }
        };
        for id in alike {
            self.leases.confirm(id, sent);
        }
        Ok(outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|| Ok(alive.next() == Some(true))))
            .collect())
    }

    /// Renews a hold whose lease has another length than the claim's, as a hold has that was taken with one of its own.
    fn renew_other(&self, claim: &Claim, held: &HeldKey, deadline: Moment) -> Outcome<bool> {
        match self.long_enough(&self.renewals, held, claim.lease, deadline)? {
            Enough::Ended => return Ok(false),
            Enough::Yes => return Ok(true),
            Enough::No => {}
        }
        let lease = self.leases.take(&self.renewals, claim.lease, deadline)?;
        let key = self.key(claim);
        let change = put(&key, &value(claim.owner, held.count, lease.ttl), lease.id);
        // Changed since it was looked at: by its owner's re-entry, or it is another's. The next look will tell.
        let done = self.txn(&self.renewals, &txn(&[is_at(&key, held.revision)], &[change], &[]), deadline)?;
        if !done.succeeded {
            self.leases.give_back(lease);
            let words = "the key changed during the request";
            return Err(Failure::Refused(Error::new(ErrorKind::Busy, "renew", words)));
        }
        self.leases.lend(lease);
        Ok(true)
    }
}

fn id(claim: &Claim) -> Id {
    (claim.name.key().into(), claim.owner)
}

/// Where one stands who wants a lock.
enum Stands {
    First(WatchPlace),
    Behind {
        place: WatchPlace,
        front: Front,
    },
    /// The key is not there; because there are others, and this one will not wait, if `busy`.
    Nowhere {
        busy: bool,
    },
}

impl Stands {
    fn at(place: WatchPlace, front: Option<Front>) -> Stands {
        match front {
            None => Stands::First(place),
            Some(front) => Stands::Behind { place, front },
        }
    }
}

/// Whether a lease runs for long enough.
enum Enough {
    Yes,
    No,
    /// It does not run any more.
    Ended,
}

/// One failure for all of a batch.
fn for_each_of(count: usize, failure: Failure) -> impl Iterator<Item = Failure> {
    let is_unknown = matches!(failure, Failure::Unknown(_));
    let error = failure.into_error();
    (0..count).map(
        move |_| if is_unknown { Failure::Unknown(error.copy()) } else { Failure::Refused(error.copy()) },
    )
}

impl Store for EtcdStore {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities { queues: |_| true, sessions: Some(self), ..Capabilities::default() }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        if matches!(kind, Kind::Mutex | Kind::Fenced | Kind::Fair) {
            return Ok(());
        }
        let words = "on etcd there are lock(), fenced_lock() and fair_lock(), and no other kinds of lock";
        Err(Error::new(ErrorKind::Unsupported, "lock", words).on(name.given()))
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        let outcome = if count == 1 {
            self.take(claim, deadline)
        } else {
            self.change(claim, None, |_| count, true, deadline).map(|fence| match fence {
                Some(fence) => Attempt::Granted { fence: claim.wants_fence.then(|| Fence::new(fence)) },
                None => Attempt::Lost,
            })
        };
        answer(outcome, "lock", claim.name.given())
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        let outcome = if left == 0 {
            self.remove_one(claim, deadline)
        } else {
            match self.change(claim, None, |_| left, false, deadline) {
                Ok(Some(_)) => Ok(Release::StillHeld),
                Ok(None) => {
                    let held = self.look(&self.line(&claim.name).first(), deadline);
                    held.map(|held| Release::NotHeld { holder: held.map(|held| held.owner) })
                }
                Err(failure) => Err(failure),
            }
        };
        answer(outcome, "unlock", claim.name.given())
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        let outcomes = claims.chunks(BATCH).flat_map(|batch| match self.renew_batch(batch, deadline) {
            Ok(outcomes) => outcomes,
            Err(failure) => for_each_of(batch.len(), not_sent(failure)).map(Err).collect(),
        });
        claims
            .iter()
            .zip(outcomes)
            .map(|(claim, outcome)| answer(outcome, "renew", claim.name.given()))
            .collect()
    }

    fn abandon(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        // A waiter that never got so far as to ask leaves nothing behind, and need not wait for a cluster in trouble.
        let early: Vec<bool> = claims.iter().map(|claim| self.watch.left_early(&id(claim))).collect();
        let others: Vec<Claim> =
            claims.iter().zip(&early).filter(|(_, early)| !**early).map(|(claim, _)| claim.clone()).collect();
        let mut outcomes = self.remove(&self.renewals, &others, deadline).into_iter();
        claims
            .iter()
            .zip(early)
            .map(|(claim, is_early)| {
                let removed = if is_early { None } else { outcomes.next() };
                let outcome = removed.unwrap_or(Ok(Release::NotHeld { holder: None }));
                answer(outcome, "unlock", claim.name.given())
            })
            .collect()
    }

    fn force(&self, _kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        let line = self.line(name);
        let force = || {
            let Some(held) = self.look(&line.first(), deadline)? else { return Ok(false) };
            let taken = txn(&[is_since(&held.key, held.created)], &[take_away(&held.key)], &[]);
            Ok(self.txn(&self.wire, &taken, deadline)?.succeeded)
        };
        answer(force(), "force_unlock", name.given())
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.watch.listen(id(claim), waker)
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        self.watch.message_count(id(claim))
    }

    fn poll_completions(&self) -> bool {
        let now = Clock::System.now();
        if self.sweeps.is_due(now) {
            self.leases.sweep(now);
            self.watch.sweep();
        }
        false
    }

    fn close(&self) {
        self.watch.close();
        self.wire.close();
        self.renewals.close();
    }
}

impl Inspect for EtcdStore {
    fn inspect(
        &self,
        _kind: Kind,
        name: &LockName,
        owner: Owner,
        deadline: Moment,
    ) -> Answer<Option<Snapshot>> {
        let look = || {
            let Some(held) = self.look(&self.line(name).first(), deadline)? else { return Ok(None) };
            let count = if held.is_of(owner) { held.count } else { 0 };
            if held.lease == 0 {
                return Ok(Some(Snapshot { holder: held.owner, count, remaining: None })); // not put by this crate
            }
            // A lease that has ended takes its key with it.
            let left = time_to_live(&self.wire, held.lease, deadline).map_err(not_sent)?;
            Ok(left.map(|left| Snapshot {
                holder: held.owner,
                count,
                remaining: Some(Duration::from_secs(left)),
            }))
        };
        answer(look(), "inspect", name.given())
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        answer(self.seen(name, deadline), "inspect", name.given())
    }
}

impl Sessions for EtcdStore {
    fn attach(&self, watchdog: ServiceWaker) {
        self.watch.attach(watchdog);
    }

    fn bound(&self, claim: &Claim) -> Option<Arc<dyn Bound>> {
        let end: Arc<dyn Bound> = self.watch.end_of(&self.key(claim))?;
        Some(end)
    }
}
