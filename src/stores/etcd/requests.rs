//! The requests that acquire, change and release a key, and the meaning of their answers.

use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{Error, ErrorKind};
use crate::ident::{FencingToken, LockName};
use crate::seam::{Answer, Attempt, Claim, Failure, Others, Release};
use crate::stores::etcd::lease::{EtcdLease, keep_alive, revoke, time_to_live, ttl_of};
use crate::stores::etcd::members::{Transport, is_lease_over};
use crate::stores::etcd::message::{
    BATCH, Done, Front, HeldKey, KeyLine, get, is_absent, is_at, is_since, is_there, put, put_as_leased,
    take_away, txn, unanswered, value,
};
use crate::stores::etcd::watched::WatchPlace;
use crate::time::{Clock, Moment};

use crate::stores::etcd::EtcdStore;

const TRIES: usize = 8;

impl EtcdStore {
    pub(super) fn line(&self, name: &LockName) -> KeyLine {
        KeyLine::new(&self.members.address.prefix, name.key())
    }

    pub(super) fn key(&self, claim: &Claim) -> String {
        self.line(&claim.name).key(claim.owner)
    }

    pub(super) fn txn(&self, wire: &Transport, body: &Value, deadline: Moment) -> Answer<Done> {
        wire.call("/v3/kv/txn", body, deadline).map(|answer| Done::read(&answer))
    }

    pub(super) fn look(&self, what: &Value, deadline: Moment) -> Answer<Option<HeldKey>> {
        let done = self
            .txn(&self.wire, &txn(&[], std::slice::from_ref(what), &[]), deadline)
            .map_err(Failure::of_reading)?;
        done.found(0).map_err(Failure::Refused)
    }

    pub(super) fn take(&self, claim: &Claim, deadline: Moment) -> Answer<Attempt> {
        let key = self.key(claim);
        if claim.caches {
            self.watch.caches(&self.line(&claim.name), &key);
        }
        // For failures after the key was put. A waiter deletes its key when its wait ends. A call that does
        // not wait reports an unknown outcome, so that a clean-up deletes the key.
        let in_doubt = |failure: Failure| {
            if claim.waits { failure } else { Failure::Unknown(failure.into_error()) }
        };
        for _ in 0..TRIES {
            let stands = match self.watch.place(&key) {
                Some((place, front)) => {
                    self.ask(claim, place, front, deadline).map_err(Failure::of_reading)?
                }
                None => self.join(claim, deadline)?,
            };
            match stands {
                Stands::First(place) => {
                    if self.make_last(claim, place, deadline).map_err(in_doubt)? {
                        self.watch.leave(&key, true);
                        self.watch.add_hold(key, place.created);
                        let fence =
                            claim.wants_fence.then(|| FencingToken::new(place.created.unsigned_abs()));
                        return Ok(Attempt::granted(fence));
                    }
                }
                Stands::Behind { place, front } if claim.waits => {
                    let lease = self.leases.lent(place.lease);
                    let ttl = lease.map_or_else(|| ttl_of(claim.lease), |lease| lease.ttl);
                    let third = Duration::from_secs(ttl) / 3;
                    // The next poll comes within a third of the lease, which must then run for another third.
                    let until = Clock::System.after(third * 2);
                    if let Some(lease) = lease
                        && self
                            .leases
                            .keep(&self.wire, lease, until, deadline)
                            .map_err(Failure::of_reading)?
                    {
                        if self.watch.follow(&key, place, front) {
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
            // The key is gone, so the next try puts a key again, at the end of the queue.
            self.watch.leave(&key, false);
        }
        let words = "the key disappeared again and again during the request";
        Err(Failure::Refused(Error::new(ErrorKind::Busy, "lock", words)))
    }

    /// Lets the claim's key, the first in the queue, live for at least the claim's lease. `false` if the key
    /// has ended.
    pub(super) fn make_last(&self, claim: &Claim, place: WatchPlace, deadline: Moment) -> Answer<bool> {
        match self.leases.lent(place.lease) {
            Some(lease) if lease.ttl >= ttl_of(claim.lease) => {
                let until = Clock::System.after(claim.lease);
                self.leases.keep(&self.wire, lease, until, deadline).map_err(Failure::of_reading)
            }
            // A shorter or unknown lease is from an earlier attempt. `change` renews or replaces it.
            _ => Ok(self.change(&self.wire, claim, None, (Some(1), true), deadline)?.is_some()),
        }
    }

    /// Puts the owner's key unless it exists; a claim that does not wait puts it only into an empty queue.
    pub(super) fn join(&self, claim: &Claim, deadline: Moment) -> Answer<Stands> {
        let (lease, done) = match self.put_first(claim, deadline) {
            // A reused lease has ended early, for example after a restore of the cluster's data.
            Err(failure) if is_lease_over(&failure) => {
                self.leases.distrust();
                self.put_first(claim, deadline)
            }
            first => first,
        }?;
        if !done.succeeded {
            self.leases.give_back(&self.wire, lease, deadline);
            return match done.found(0).map_err(Failure::Refused)? {
                // An earlier request of this claim, whose outcome was unknown, has put the key.
                Some(held) => {
                    let place = WatchPlace { created: held.created, lease: held.lease };
                    self.ask(claim, place, None, deadline).map_err(Failure::of_reading)
                }
                None => Ok(Stands::Nowhere { busy: !claim.waits }),
            };
        }
        self.leases.lend(lease);
        let place = WatchPlace { created: i64::try_from(done.revision).unwrap_or(i64::MAX), lease: lease.id };
        let front = if claim.waits { done.found_front(0).map_err(Failure::Unknown)? } else { None };
        Ok(Stands::at(place, front))
    }

    pub(super) fn put_first(&self, claim: &Claim, deadline: Moment) -> Answer<(EtcdLease, Done)> {
        let (line, key) = (self.line(&claim.name), self.key(claim));
        let lease = self.leases.take(&self.wire, claim.lease, deadline)?;
        let put = put(&key, &value(claim.owner, 1, lease.ttl), lease.id);
        self.watch.asks(&key);
        let body = if claim.waits {
            // `last` is executed before `put`, so it finds the last key before ours.
            txn(&[is_absent(&key)], &[line.last(None), put], &[get(&key)])
        } else {
            txn(&[line.is_empty()], &[put], &[get(&key)])
        };
        let done = self.txn(&self.wire, &body, deadline).inspect_err(|failure| {
            if matches!(failure, Failure::Refused(_)) && !is_lease_over(failure) {
                self.leases.give_back(&self.wire, lease, deadline);
            }
        })?;
        Ok((lease, done))
    }

    /// Reads the owner's place in the queue. `front` is the key before the owner's, as last seen.
    pub(super) fn ask(
        &self,
        claim: &Claim,
        place: WatchPlace,
        front: Option<Front>,
        deadline: Moment,
    ) -> Answer<Stands> {
        let (line, key) = (self.line(&claim.name), self.key(claim));
        // An owner that caches the lock also reads the queue's last key, which shows whether others wait.
        let last = claim.caches.then(|| line.last(None));
        let looks: Vec<Value> = [get(&key), line.last(Some(place.created))].into_iter().chain(last).collect();
        let done = match &front {
            // If both keys are unchanged, which is usual, the server need not search the queue.
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
        if claim.caches
            && front.is_none()
            && done.found_front(2).map_err(Failure::Refused)?.is_some_and(|last| last.key != key)
        {
            self.watch.wanted(&line);
        }
        Ok(Stands::at(place, front))
    }

    /// Sets the hold count to `count`, if given. If `prolongs`, makes the hold last for the claim's lease
    /// from now on. Returns the hold's fencing token; `None` if there is no hold. The token is the revision
    /// of the key's creation; the revision of this change could exceed the tokens of later holders.
    pub(super) fn change(
        &self,
        wire: &Transport,
        claim: &Claim,
        mut seen: Option<HeldKey>,
        (count, prolongs): (Option<u32>, bool),
        deadline: Moment,
    ) -> Answer<Option<u64>> {
        let key = self.key(claim);
        for _ in 0..TRIES {
            let held = match seen.take() {
                Some(held) => Some(held),
                None => self.look(&get(&key), deadline)?,
            };
            let Some(held) = held.filter(|held| held.is_of(claim.owner)) else { return Ok(None) };
            let fence = Some(u64::try_from(held.created).unwrap_or(0));
            let enough = prolongs.then(|| self.long_enough(wire, &held, claim.lease, deadline));
            let other_lease = match enough.transpose().map_err(Failure::of_reading)? {
                Some(Enough::Ended) => return Ok(None),
                Some(Enough::Yes) if count.is_none() => return Ok(fence),
                Some(Enough::Yes) | None => None,
                Some(Enough::No) => Some(self.leases.take(wire, claim.lease, deadline)?),
            };
            let ttl = other_lease.map_or(held.ttl, |lease| lease.ttl);
            let value = value(claim.owner, count.unwrap_or(held.count), ttl);
            let change = match other_lease {
                Some(lease) => put(&key, &value, lease.id),
                None => put_as_leased(&key, &value),
            };
            let done =
                self.txn(wire, &txn(&[is_at(&key, held.revision)], &[change], &[get(&key)]), deadline)?;
            if done.succeeded {
                if let Some(lease) = other_lease {
                    self.leases.lend(lease);
                }
                return Ok(fence);
            }
            if let Some(lease) = other_lease {
                self.leases.give_back(wire, lease, deadline);
            }
            seen = done.found(0).map_err(Failure::Refused)?;
            if seen.is_none() {
                return Ok(None);
            }
        }
        let words = "the key changed again and again during the request";
        Err(Failure::Refused(Error::new(ErrorKind::Busy, "change", words)))
    }

    /// Whether the hold's lease runs for at least `asked` from now on. Renews a lease whose whole time is
    /// `asked`. Only reads a longer lease, because a renewal would make it outlast `asked`.
    pub(super) fn long_enough(
        &self,
        wire: &Transport,
        held: &HeldKey,
        asked: Duration,
        deadline: Moment,
    ) -> Answer<Enough> {
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

    pub(super) fn remove(
        &self,
        wire: &Transport,
        claims: &[Claim],
        deadline: Moment,
    ) -> Vec<Answer<Release>> {
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
                Err(failure) => outcomes.extend(failure.each(batch.len())),
            }
        }
        outcomes
    }

    /// The transaction that deletes the owner's key. If the key does not exist, the transaction reads who
    /// holds the lock.
    pub(super) fn removal(&self, claim: &Claim) -> Value {
        let key = self.key(claim);
        txn(&[is_there(&key)], &[take_away(&key)], &[self.line(&claim.name).first()])
    }

    pub(super) fn remove_one(&self, claim: &Claim, deadline: Moment) -> Answer<Release> {
        self.watch.gives_up(&self.key(claim));
        let done = self.txn(&self.wire, &self.removal(claim), deadline)?;
        self.removed(&self.wire, claim, &done, deadline)
    }

    pub(super) fn removed(
        &self,
        wire: &Transport,
        claim: &Claim,
        done: &Done,
        deadline: Moment,
    ) -> Answer<Release> {
        let key = self.key(claim);
        self.watch.leave(&key, true);
        // Wakes this client's waiters at once, before the server's event about the deleted key.
        self.watch.gone(&key);
        let was = done.found(0).map_err(Failure::Refused)?;
        if !done.succeeded {
            return Ok(Release::NotHeld { holder: was.map(|held| held.owner) });
        }
        if let Some(held) = was
            && !self.leases.returned(held.lease)
        {
            revoke(wire, held.lease, deadline);
        }
        Ok(Release::Freed { others: Others::Nobody })
    }

    pub(super) fn renew_batch(&self, claims: &[Claim], deadline: Moment) -> Answer<Vec<Answer<bool>>> {
        let looks: Vec<Value> = claims.iter().map(|claim| get(&self.key(claim))).collect();
        let done = self.txn(&self.renewals, &txn(&[], &looks, &[]), deadline)?;
        // A lease can outlive its key, so the keys are read first.
        let mut alike = Vec::new();
        let mut known: Vec<Option<Answer<bool>>> = Vec::with_capacity(claims.len());
        for (at, claim) in claims.iter().enumerate() {
            known.push(match done.found(at) {
                Err(error) => Some(Err(Failure::Refused(error))),
                Ok(Some(held)) if !held.is_of(claim.owner) => Some(Ok(false)),
                Ok(Some(held)) if held.ttl == ttl_of(claim.lease) => {
                    alike.push(held.lease);
                    None
                }
                Ok(Some(held)) => {
                    let renewed = self.change(&self.renewals, claim, Some(held), (None, true), deadline);
                    Some(renewed.map(|fence| fence.is_some()))
                }
                Ok(None) => Some(Ok(false)),
            });
        }
        let sent = Clock::System.now();
        let alive: Vec<Answer<bool>> = match keep_alive(&self.renewals, &alike, deadline) {
            Ok(alive) => {
                alike.into_iter().for_each(|id| self.leases.confirm(id, sent));
                alive.into_iter().map(Ok).collect()
            }
            Err(failure) => failure.each(alike.len()),
        };
        let mut alive = alive.into_iter();
        let outcome = |known: Option<_>| known.or_else(|| alive.next()).unwrap_or_else(|| Err(unanswered()));
        Ok(known.into_iter().map(outcome).collect())
    }
}

pub(super) enum Stands {
    First(WatchPlace),
    Behind {
        place: WatchPlace,
        front: Front,
    },
    /// The key does not exist. `busy` if the queue was not empty, and the owner does not wait.
    Nowhere {
        busy: bool,
    },
}

impl Stands {
    pub(super) fn at(place: WatchPlace, front: Option<Front>) -> Stands {
        match front {
            None => Stands::First(place),
            Some(front) => Stands::Behind { place, front },
        }
    }
}

pub(super) enum Enough {
    Yes,
    No,
    Ended,
}
