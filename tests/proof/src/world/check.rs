//! The properties that must hold in each state.

use super::{BEGIN_US, Owner, Phase, SOON_MS, World};
use crate::kinds::Kind;
use crate::server::{Entry, Value};

impl World<'_> {
    fn holders(&self) -> impl Iterator<Item = (&Owner, u8)> {
        self.owners.iter().filter_map(|owner| match owner.phase {
            Phase::Holds { levels, .. } | Phase::Extends { levels, .. } if !owner.is_void => {
                Some((owner, levels))
            }
            _ => None,
        })
    }

    /// Whether nothing is about to happen: no request is on its way, and nobody is about to send one.
    fn is_still(&self) -> bool {
        let is_still = |owner: &Owner| match owner.phase {
            Phase::Sleeps { until_ms } => {
                !owner.heard && until_ms.is_none_or(|until| until > self.server.now_ms() + SOON_MS)
            }
            Phase::Idle => owner.cycles == 0,
            Phase::Dead => true,
            _ => false,
        };
        self.requests.is_empty() && self.owners.iter().all(is_still)
    }

    fn check_holders(&self) -> Option<String> {
        let holders: Vec<(&Owner, u8)> = self.holders().collect();
        for (index, (one, levels)) in holders.iter().enumerate() {
            for (other, _) in &holders[index + 1..] {
                if self.kind.excludes(one.who.owner, other.who.owner) {
                    return Some(format!("two hold it: {:?} and {:?}", one.who, other.who));
                }
            }
            let is_settled = !self.requests.iter().any(|request| request.who.owner == one.who.owner);
            let count = self.kind.count(&self.server, &one.who);
            // A semaphore's record of a grant may expire while the owner has the permit, so these counts are
            // checked only while no simulated time has passed.
            let is_settled = is_settled && (self.kind.has_renewals() || self.no_time_has_passed());
            if is_settled && !one.is_spent && self.is_calm && count != *levels {
                return Some(format!("{:?} holds it {levels} times, and the server has {count}", one.who));
            }
        }
        None
    }

    fn check_keys(&self) -> Option<String> {
        let without_end =
            |(key, entry): &(&String, &Entry)| entry.ends_ms.is_none() && !self.kind.may_stay(key);
        if let Some((key, _)) = self.server.keys.iter().find(without_end) {
            return Some(format!("{key} has no end"));
        }
        let is_over = self.is_calm && self.have_all_done();
        let left = self.server.keys.keys().find(|key| !self.kind.may_be_left(key));
        match left {
            Some(key) if is_over => Some(format!("{key} is left when all have done")),
            _ => None,
        }
    }

    fn have_all_done(&self) -> bool {
        let has_done = |owner: &Owner| owner.phase == Phase::Idle && owner.cycles == 0;
        self.requests.is_empty() && self.owners.iter().all(has_done)
    }

    fn check_permits(&self) -> Option<String> {
        let Kind::Semaphore(permits) = self.kind else { return None };
        let now = self.kind.permits(&self.server)?;
        let taken = self.server.keys.iter().filter(|(key, entry)| {
            key.starts_with("leasehold_request:") && entry.value == Value::Text("granted".to_owned())
        });
        let sum = now + i64::try_from(taken.count()).unwrap_or(0);
        // All permits must be back, even after lost or late messages, since a request that undoes another is
        // repeated until answered.
        if self.is_whole && self.have_all_done() && now != i64::from(permits) {
            return Some(format!("all have done, and of {permits} permits there are {now}"));
        }
        (self.no_time_has_passed() && sum != i64::from(permits))
            .then(|| format!("{permits} permits have become {sum}"))
    }

    fn no_time_has_passed(&self) -> bool {
        self.server.now_us == BEGIN_US
    }

    fn check_waiters(&self) -> Option<String> {
        if !self.is_calm || !self.is_still() {
            return None;
        }
        let sleeps = |owner: &&Owner| matches!(owner.phase, Phase::Sleeps { .. });
        let forgotten =
            self.owners.iter().filter(sleeps).find(|owner| self.kind.is_free_for(&self.server, &owner.who));
        forgotten.map(|owner| format!("nobody wakes {:?}, which could have it", owner.who))
    }

    pub(super) fn check(&self) -> Option<String> {
        self.wrong
            .clone()
            .or_else(|| self.check_holders())
            .or_else(|| self.check_keys())
            .or_else(|| self.check_permits())
            .or_else(|| self.check_waiters())
    }
}
