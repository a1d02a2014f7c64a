//! Restores: holds granted again on servers that lost them. A restored server does not count at first.
//!
//! After a majority has confirmed a renewal, the monitor's thread restores the hold on the servers that lack
//! it. Decision 0038 proves that no second majority can arise. At two times a server *does not count* for a
//! hold, which means that its answer "held" is read as "not held":
//! - from the renewal that found the hold missing there, until a majority without this server confirms a
//!   renewal that began after the restore;
//! - while a clean-up of the hold's owner is under way there.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ident::{LockName, Owner};
use crate::seam::Claim;
use crate::sync::Mutex;
use crate::time::Moment;

/// Maximum number of restores that the monitor's thread sends at a time.
const AT_A_TIME: usize = 500;

#[derive(Default)]
pub(super) struct Restores {
    entries: Mutex<HashMap<Owner, Vec<Entry>>>,
}

struct Entry {
    node: usize,
    name: Arc<LockName>,
    state: State,
}

enum State {
    /// The restore has not been sent. The moment is the end of the lease.
    Due(Claim, Moment),
    /// The restore was sent, and has no answer yet. The moment is the end of the lease.
    Asked(Moment),
    /// The moment of the restore, and the end of the lease.
    Restored(Moment, Moment),
    /// The number of clean-ups of this claim that are under way.
    CleaningUp(u32),
}

pub(super) struct Order {
    pub(super) node: usize,
    pub(super) claim: Claim,
    pub(super) until: Moment,
}

impl Restores {
    pub(super) fn uncounted(&self, claim: &Claim) -> Vec<usize> {
        let entries = self.entries.lock();
        let its = entries.get(&claim.owner).into_iter().flatten().filter(|entry| entry.is_of(claim));
        its.map(|entry| entry.node).collect()
    }

    /// Notes that a majority confirmed a renewal or re-entry that was sent at `begun`. `lacking` names the
    /// nodes without the hold, each with the claim to restore there. Returns whether a restore is due.
    pub(super) fn confirmed(&self, claim: &Claim, begun: Moment, lacking: Vec<(usize, Claim)>) -> bool {
        let mut entries = self.entries.lock();
        if lacking.is_empty() && entries.is_empty() {
            return false;
        }
        let its = entries.entry(claim.owner).or_default();
        its.retain(|entry| match entry.state {
            // If the confirmed request was sent after the restore, the server counts again.
            State::Restored(since, _) => !entry.is_of(claim) || since > begun,
            State::Due(..) | State::Asked(_) | State::CleaningUp(_) => true,
        });
        let mut is_any_due = false;
        for (node, asked) in lacking {
            let state = State::Due(asked, begun.plus(claim.lease));
            match its.iter_mut().find(|entry| entry.node == node && entry.is_of(claim)) {
                Some(entry) if matches!(entry.state, State::Asked(_) | State::CleaningUp(_)) => continue,
                Some(entry) => entry.state = state,
                None => its.push(Entry { node, name: Arc::clone(&claim.name), state }),
            }
            is_any_due = true;
        }
        if its.is_empty() {
            entries.remove(&claim.owner);
        }
        is_any_due
    }

    /// Ends all restores of the hold. Returns the nodes that may still grant a restore that was sent; with
    /// `or_restored`, also the nodes that have granted it.
    ///
    /// Callers call this before they send the release. Otherwise `NodeMonitor::restore_due`, which runs at
    /// the same time, could take a restore order after the release, and leave a hold without an owner.
    pub(super) fn over(&self, claim: &Claim, or_restored: bool) -> Vec<usize> {
        let mut entries = self.entries.lock();
        let Some(its) = entries.get_mut(&claim.owner) else { return Vec::new() };
        let ended =
            its.extract_if(.., |entry| entry.is_of(claim) && !matches!(entry.state, State::CleaningUp(_)));
        let is_owed = |entry: &Entry| match entry.state {
            State::Asked(_) => true,
            State::Restored(..) => or_restored,
            State::Due(..) | State::CleaningUp(_) => false,
        };
        let owed = ended.filter(is_owed).map(|entry| entry.node).collect();
        if its.is_empty() {
            entries.remove(&claim.owner);
        }
        owed
    }

    pub(super) fn doubt(&self, node: usize, claim: &Claim) {
        let mut entries = self.entries.lock();
        let its = entries.entry(claim.owner).or_default();
        match its.iter_mut().find(|entry| entry.node == node && entry.is_of(claim)) {
            Some(Entry { state: State::CleaningUp(times), .. }) => *times += 1,
            Some(entry) => entry.state = State::CleaningUp(1),
            None => its.push(Entry { node, name: Arc::clone(&claim.name), state: State::CleaningUp(1) }),
        }
    }

    /// Notes that a clean-up is finished. After the last clean-up no late request can arrive, so the server
    /// counts again.
    pub(super) fn settled(&self, node: usize, claim: &Claim) {
        self.change(node, claim, |state| match state {
            State::CleaningUp(times) if *times > 1 => {
                *times -= 1;
                true
            }
            State::CleaningUp(_) => false,
            State::Due(..) | State::Asked(_) | State::Restored(..) => true,
        });
    }

    /// Notes the outcome of a restore. `granted`: when the server granted it; `None` if it did not.
    pub(super) fn answered(&self, node: usize, claim: &Claim, granted: Option<Moment>) {
        self.change(node, claim, |state| match (&*state, granted) {
            (State::Asked(until), Some(now)) => {
                *state = State::Restored(now, *until);
                true
            }
            (State::Asked(_), None) => false,
            // The hold ended while the answer was on its way. A clean-up follows, so the answer changes
            // nothing.
            (State::Due(..) | State::Restored(..) | State::CleaningUp(_), _) => true,
        });
    }

    /// Lets `stays` change the entry of the claim on this server. If `stays` returns `false`, the entry is
    /// removed, so the server counts again.
    fn change(&self, node: usize, claim: &Claim, mut stays: impl FnMut(&mut State) -> bool) {
        let mut entries = self.entries.lock();
        let Some(its) = entries.get_mut(&claim.owner) else { return };
        its.retain_mut(|entry| entry.node != node || !entry.is_of(claim) || stays(&mut entry.state));
        if its.is_empty() {
            entries.remove(&claim.owner);
        }
    }

    /// Takes due restores for usable nodes. Drops those for other nodes: the next renewal notes them again.
    pub(super) fn take_due(&self, is_ready: impl Fn(usize) -> bool, now: Moment) -> Vec<Order> {
        let mut orders = Vec::new();
        let mut entries = self.entries.lock();
        entries.retain(|_, its| {
            its.retain_mut(|entry| match &entry.state {
                State::Due(claim, until) => {
                    if *until <= now || !is_ready(entry.node) {
                        return false;
                    }
                    if orders.len() < AT_A_TIME {
                        orders.push(Order { node: entry.node, claim: claim.clone(), until: *until });
                        entry.state = State::Asked(*until);
                    }
                    true
                }
                // If no renewal has confirmed the hold until its lease ended, the hold is over.
                State::Restored(_, until) => *until > now,
                State::Asked(_) | State::CleaningUp(_) => true,
            });
            !its.is_empty()
        });
        orders
    }
}

impl Entry {
    fn is_of(&self, claim: &Claim) -> bool {
        // The names that the user gave are compared, because the claim's key may differ by server.
        self.name.given() == claim.name.given()
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::seam::Kind;
    use crate::time::Clock;

    impl Restores {
        pub(in crate::topologies::redlock) fn is_restored(&self, node: usize, claim: &Claim) -> bool {
            let entries = self.entries.lock();
            let mut its = entries.get(&claim.owner).into_iter().flatten();
            its.any(|entry| entry.node == node && matches!(entry.state, State::Restored(..)))
        }
    }

    fn claim() -> Claim {
        crate::tests::claim(Kind::Mutex, "a", Duration::from_secs(60))
    }

    #[test]
    fn a_restored_grant_counts_only_after_a_later_renewal() {
        let (restores, hold) = (Restores::default(), claim());
        let begun = Clock::System.now();
        assert!(restores.confirmed(&hold, begun, vec![(2, hold.clone())]));
        assert_eq!(restores.take_due(|_| true, begun).len(), 1);
        let granted = begun.plus(Duration::from_millis(5));
        restores.answered(2, &hold, Some(granted));
        restores.confirmed(&hold, begun.plus(Duration::from_millis(4)), Vec::new());
        assert_eq!(restores.uncounted(&hold), [2]);
        restores.confirmed(&hold, granted, Vec::new());
        assert!(restores.uncounted(&hold).is_empty());
    }

    #[test]
    fn an_ended_hold_is_forgotten_and_restored_nowhere() {
        let (restores, hold) = (Restores::default(), claim());
        let now = Clock::System.now();
        assert!(restores.confirmed(&hold, now, vec![(2, hold.clone())]));
        assert!(restores.over(&hold, false).is_empty(), "no server was asked");
        assert!(restores.take_due(|_| true, now).is_empty());
        assert!(restores.confirmed(&hold, now, vec![(2, hold.clone())]));
        assert_eq!(restores.take_due(|_| true, now).len(), 1);
        restores.answered(2, &hold, Some(now));
        let after_the_lease = now.plus(Duration::from_secs(61));
        assert!(restores.take_due(|_| true, after_the_lease).is_empty());
        assert!(restores.entries.lock().is_empty());
    }

    #[test]
    fn a_server_counts_again_after_all_clean_ups_of_a_hold() {
        let (restores, hold) = (Restores::default(), claim());
        let other = Claim { name: crate::tests::name("b"), ..hold.clone() };
        restores.doubt(1, &hold);
        restores.doubt(1, &hold);
        assert!(restores.uncounted(&other).is_empty());
        restores.settled(1, &hold);
        assert_eq!(restores.uncounted(&hold), [1], "the second doubt remains");
        restores.settled(1, &hold);
        assert!(restores.entries.lock().is_empty());
    }

    /// If `over` forgot a sent restore, the server could grant it later, and nobody would release it.
    #[test]
    fn ending_a_hold_returns_the_server_of_an_unanswered_restore() {
        let (restores, hold) = (Restores::default(), claim());
        let begun = Clock::System.now();
        assert!(restores.confirmed(&hold, begun, vec![(2, hold.clone())]));
        assert_eq!(restores.take_due(|_| true, begun).len(), 1);
        let later = begun.plus(Duration::from_millis(4));
        assert!(!restores.confirmed(&hold, later, vec![(2, hold.clone())]), "a request is under way already");
        assert!(restores.take_due(|_| true, later).is_empty());
        assert_eq!(restores.over(&hold, false), [2]);
    }

    #[test]
    fn restores_beyond_the_limit_wait_for_the_next_batch() {
        let restores = Restores::default();
        let now = Clock::System.now();
        for _ in 0..=AT_A_TIME {
            let hold = claim();
            assert!(restores.confirmed(&hold, now, vec![(2, hold.clone())]));
        }
        assert_eq!([(); 3].map(|()| restores.take_due(|_| true, now).len()), [AT_A_TIME, 1, 0]);
    }

    #[test]
    fn an_unreachable_server_gets_its_restore_after_a_later_renewal() {
        let (restores, hold) = (Restores::default(), claim());
        let now = Clock::System.now();
        for is_ready in [false, true] {
            assert!(restores.confirmed(&hold, now, vec![(2, hold.clone())]));
            assert_eq!(restores.take_due(|_| is_ready, now).len(), usize::from(is_ready));
        }
    }

    #[test]
    fn a_server_that_loses_a_hold_twice_gets_two_restores() {
        let (restores, hold) = (Restores::default(), claim());
        let begun = Clock::System.now();
        let later = |ms| begun.plus(Duration::from_millis(ms));
        for round in [0, 10] {
            assert!(restores.confirmed(&hold, later(round), vec![(2, hold.clone())]));
            assert_eq!(restores.take_due(|_| true, later(round)).len(), 1);
            restores.answered(2, &hold, Some(later(round + 15)));
        }
        assert_eq!(restores.over(&hold, true), [2]);
    }

    #[test]
    fn answers_to_a_restore_do_not_cancel_a_clean_up() {
        let (restores, hold) = (Restores::default(), claim());
        let now = Clock::System.now();
        restores.doubt(1, &hold);
        restores.answered(1, &hold, Some(now));
        restores.answered(1, &hold, None);
        assert!(!restores.confirmed(&hold, now, vec![(1, hold.clone())]), "the server is to forget the hold");
        assert!(restores.over(&hold, true).is_empty());
        assert_eq!(restores.uncounted(&hold), [1]);
        // The end of an earlier clean-up on node 2 must not cancel a newer restore there.
        assert!(restores.confirmed(&hold, now, vec![(2, hold.clone())]));
        restores.settled(2, &hold);
        restores.settled(1, &hold);
        assert_eq!(restores.uncounted(&hold), [2]);
        assert_eq!(restores.take_due(|_| true, now).len(), 1);
    }
}
