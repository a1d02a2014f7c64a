//! Leases of etcd. Each key has a lease of its own, and the server deletes the key when its lease ends.
//!
//! A lease counts whole seconds, so the client asks for up to a second more than needed. Within this spare
//! time it reuses a lease without a request: a client that locks and unlocks quickly keeps its leases alive
//! once a second instead of once per lock. A lease is reused only after every request sent under it has an
//! answer. Otherwise a late request could tie the key of an ended hold to a lease that is kept alive.

use std::time::Duration;

use serde_json::{Value, json};

use crate::seam::{Answer, Failure};
use crate::shrink::CrowdMap;
use crate::stores::etcd::members::{Transport, refusal_in, unreadable};
use crate::stores::etcd::message::number;
use crate::sync::Mutex;
use crate::time::{Clock, Moment, window};

const MOST_IDLE: usize = 64;
/// Longest time to live, in seconds, of a lease kept for reuse, so that unused leases end soon.
const LONGEST_IDLE: u64 = 61;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EtcdLease {
    pub(super) id: i64,
    pub(super) ttl: u64,
    /// The sending time of the request that last restarted the lease.
    confirmed: Moment,
}

impl EtcdLease {
    pub(super) fn ends(&self) -> Moment {
        self.confirmed.plus(window(Duration::from_secs(self.ttl)))
    }
}

#[derive(Default)]
pub(super) struct Leases {
    state: Mutex<LeasesState>,
}

#[derive(Default)]
struct LeasesState {
    idle: Vec<EtcdLease>,
    /// The leases that keys use, by their ids.
    lent: CrowdMap<i64, EtcdLease>,
}

pub(super) fn ttl_of(asked: Duration) -> u64 {
    asked.as_secs().saturating_add(1)
}

impl Leases {
    /// A lease that runs for at least `asked`: an unused one if possible, otherwise a new one.
    pub(super) fn take(&self, wire: &Transport, asked: Duration, deadline: Moment) -> Answer<EtcdLease> {
        let ttl = ttl_of(asked);
        while let Some(lease) = self.take_idle(ttl) {
            let now = Clock::System.now();
            if lease.ends() >= now.plus(asked) {
                return Ok(lease);
            }
            if keep_alive(wire, &[lease.id], deadline).map_err(Failure::of_reading)? == [true] {
                return Ok(EtcdLease { confirmed: now, ..lease });
            }
        }
        let confirmed = Clock::System.now();
        let answer = wire
            .call("/v3/lease/grant", &json!({ "TTL": ttl.to_string() }), deadline)
            .map_err(Failure::of_reading)?;
        match (number(&answer, "ID"), number(&answer, "TTL")) {
            (Some(id), Some(granted)) if u64::try_from(granted).is_ok_and(|granted| granted >= ttl) => {
                Ok(EtcdLease { id, ttl, confirmed })
            }
            _ => Err(Failure::Refused(unreadable())),
        }
    }

    /// Takes the idle lease of `ttl` seconds that was used last, so that superfluous leases stay idle until
    /// they end.
    fn take_idle(&self, ttl: u64) -> Option<EtcdLease> {
        let mut state = self.state.lock();
        let now = Clock::System.now();
        state.idle.retain(|lease| lease.ends() > now);
        let at = state.idle.iter().rposition(|lease| lease.ttl == ttl)?;
        Some(state.idle.remove(at))
    }

    /// Keeps a lease for reuse, or revokes it. The caller must have put no key under the lease.
    pub(super) fn give_back(&self, wire: &Transport, lease: EtcdLease, deadline: Moment) {
        if !self.keep_idle(lease) {
            revoke(wire, lease.id, deadline);
        }
    }

    fn keep_idle(&self, lease: EtcdLease) -> bool {
        let mut state = self.state.lock();
        let is_kept = lease.ttl <= LONGEST_IDLE && state.idle.len() < MOST_IDLE;
        if is_kept {
            state.idle.push(lease);
        }
        is_kept
    }

    pub(super) fn lend(&self, lease: EtcdLease) {
        self.state.lock().lent.insert(lease.id, lease);
    }

    pub(super) fn sweep(&self, now: Moment) {
        let mut state = self.state.lock();
        state.idle.retain(|lease| lease.ends() > now);
        state.lent.retain(|_, lease| lease.ends() > now);
    }

    pub(super) fn lent(&self, id: i64) -> Option<EtcdLease> {
        self.state.lock().lent.get(&id).copied()
    }

    /// Makes a lease run until `until` or longer. Returns `false` if the lease has ended.
    pub(super) fn keep(
        &self,
        wire: &Transport,
        lease: EtcdLease,
        until: Moment,
        deadline: Moment,
    ) -> Answer<bool> {
        if lease.ends() >= until {
            return Ok(true);
        }
        let sent = Clock::System.now();
        let is_alive = keep_alive(wire, &[lease.id], deadline)? == [true];
        if is_alive {
            self.confirm(lease.id, sent);
        }
        Ok(is_alive)
    }

    /// Keeps an ended hold's lease for reuse, if the lease is in `lent`: then the put of the hold's key was
    /// answered, so no late request can use the lease. Returns whether the lease was kept.
    pub(super) fn returned(&self, id: i64) -> bool {
        let lease = self.state.lock().lent.remove(&id);
        lease.is_some_and(|lease| self.keep_idle(lease))
    }

    /// If a key still uses the lease, notes that a request sent at `confirmed` restarted the lease.
    pub(super) fn confirm(&self, id: i64, confirmed: Moment) {
        if let Some(lease) = self.state.lock().lent.get_mut(&id) {
            lease.confirmed = lease.confirmed.max(confirmed);
        }
    }

    /// Forgets all unused leases: one ended too early, so the others may have ended too.
    pub(super) fn distrust(&self) {
        self.state.lock().idle.clear();
    }
}

/// Restarts each lease with its whole time. The result is `false` for a lease that has ended.
///
/// The gateway may drop unread requests once it writes its first answer (etcd issue 8237). Requests without
/// an answer are therefore repeated, as long as each round brings at least one answer.
pub(super) fn keep_alive(wire: &Transport, ids: &[i64], deadline: Moment) -> Answer<Vec<bool>> {
    let mut alive = Vec::with_capacity(ids.len());
    while let Some(rest) = ids.get(alive.len()..).filter(|rest| !rest.is_empty()) {
        keep_some_alive(wire, rest, deadline, &mut alive)?;
    }
    Ok(alive)
}

/// Restarts the leases, and appends the answers that arrived. Fails if none arrived.
fn keep_some_alive(wire: &Transport, ids: &[i64], deadline: Moment, alive: &mut Vec<bool>) -> Answer<()> {
    let questions: String = ids.iter().map(|id| format!("{{\"ID\":\"{id}\"}}\n")).collect();
    let answers = wire.call_raw("/v3/lease/keepalive", &questions, deadline)?;
    let mut answers = serde_json::Deserializer::from_slice(&answers).into_iter::<Value>();
    for (at, id) in ids.iter().enumerate() {
        let answer = match answers.next() {
            Some(Ok(answer)) => answer,
            _ if at > 0 => break,
            _ => return Err(Failure::Unknown(unreadable())),
        };
        match refusal_in(&answer) {
            Some(_) if at > 0 => break,
            Some(refusal) => return Err(refusal),
            None => {}
        }
        let result = answer.get("result").filter(|result| number(result, "ID") == Some(*id));
        let result = result.ok_or_else(|| Failure::Unknown(unreadable()))?;
        alive.push(number(result, "TTL").is_some_and(|ttl| ttl > 0));
    }
    Ok(())
}

/// The whole seconds that a lease still runs; `None` if it has ended.
pub(super) fn time_to_live(wire: &Transport, id: i64, deadline: Moment) -> Answer<Option<u64>> {
    let answer = wire.call("/v3/lease/timetolive", &json!({ "ID": id.to_string() }), deadline)?;
    Ok(u64::try_from(number(&answer, "TTL").unwrap_or(0)).ok())
}

/// Ends a lease that is no longer needed. If the request fails, the lease ends by itself, later.
pub(super) fn revoke(wire: &Transport, id: i64, deadline: Moment) {
    drop(wire.call("/v3/lease/revoke", &json!({ "ID": id.to_string() }), deadline));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: i64, ttl: u64, confirmed: Moment) -> EtcdLease {
        EtcdLease { id, ttl, confirmed }
    }

    #[test]
    fn a_lease_is_rounded_up_by_at_most_a_second() {
        for millis in [1, 100, 999, 1_000, 1_001, 30_000, 3_600_000] {
            let asked = Duration::from_millis(millis);
            let ttl = Duration::from_secs(ttl_of(asked));
            assert!(ttl > asked && ttl <= asked + Duration::from_secs(1), "{asked:?}");
        }
    }

    #[test]
    fn only_live_leases_of_the_same_length_are_reused() {
        let leases = Leases::default();
        let now = Clock::System.now();
        let fresh = lease(1, 31, now);
        assert!(leases.keep_idle(lease(2, 31, now.minus(Duration::from_secs(40)))));
        assert!(leases.keep_idle(fresh));
        assert!(leases.keep_idle(lease(3, 2, now)));
        assert_eq!((leases.take_idle(31), leases.take_idle(31)), (Some(fresh), None));
        assert!(!leases.keep_idle(lease(4, 3_601, now)));
    }

    #[test]
    fn an_etcd_lease_runs_from_its_last_confirmed_request() {
        let leases = Leases::default();
        let (asked, earlier) = (Clock::System.now(), Clock::System.now().minus(Duration::from_secs(5)));
        leases.lend(lease(1, 31, earlier));
        leases.confirm(1, asked);
        assert_eq!(leases.lent(1), Some(lease(1, 31, asked)), "the lease counts from the request");
        leases.confirm(1, earlier);
        assert_eq!(leases.lent(1), Some(lease(1, 31, asked)), "an older answer shortened the lease");
    }

    #[test]
    fn an_etcd_lease_is_reused_only_after_its_hold_ended() {
        let leases = Leases::default();
        let now = Clock::System.now();
        assert!(!leases.returned(1), "an unknown lease was returned");
        leases.lend(lease(2, 31, now));
        assert_eq!(leases.take_idle(31), None);
        assert!(leases.returned(2));
        assert!(!leases.returned(2), "the lease was returned twice");
        assert!(leases.take_idle(31).is_some() && leases.take_idle(31).is_none());
    }

    #[test]
    fn leases_of_expired_holds_are_forgotten() {
        let leases = Leases::default();
        let long_ago = Clock::System.now().minus(Duration::from_secs(60));
        (0..100_000).for_each(|id| leases.lend(lease(id, 2, long_ago)));
        leases.lend(lease(-1, 2, Clock::System.now()));
        leases.sweep(Clock::System.now());
        let state = leases.state.lock();
        assert!(state.lent.len() == 1 && state.lent.capacity() < 100, "{}", state.lent.capacity());
    }

    #[test]
    fn after_a_lost_lease_no_idle_etcd_lease_is_reused() {
        let leases = Leases::default();
        let now = Clock::System.now();
        assert!(leases.keep_idle(lease(1, 31, now)) && leases.keep_idle(lease(2, 31, now)));
        leases.lend(lease(3, 31, now));
        leases.distrust();
        assert!(leases.take_idle(31).is_none());
        assert!(leases.lent(3).is_some(), "its key tells whether the lease lives");
    }
}
