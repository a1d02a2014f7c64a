//! A ring of independent servers (nodes): each name belongs to one of them, its *home node*.
//!
//! Each change of the ring has a higher number, its *epoch*. Each node stores the newest epoch that it knows,
//! with fingerprints of the lists of nodes, as its *mark* (`plan::RingMark`), and grants no lock to clients
//! with another mark. `docs/decisions/0013-a-ring-of-servers.md` has the protocol, and shows why no two nodes
//! grant one name while the ring changes.

mod directory;
pub(crate) mod plan;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::inspect::Inspection;
use crate::seam::capabilities::{ConnectionWatch, HomeNodes, WaitQueues, any_hung_up};
use crate::seam::ring_member::{Marked, Probe, RingMember};
use crate::seam::subscription::Subscription;
use crate::seam::{
    Answer, Attempt, Capabilities, Claim, Failure, Inspect, Kind, Pending, Release, Sink, Snapshot, Store,
    ask_groups, named,
};
use crate::sync::{Mutex, Waker, at_once};
use crate::time::{Clock, Moment};
use plan::{Circle, Ring, RingNode};
use view::{RingServer, RingView, moved_on, not_answering, settle, survey, under};

/// Makes the store for a node's URL, without I/O.
pub(crate) type MemberOpener = Box<dyn Fn(&str) -> Result<Arc<dyn RingMember>> + Send + Sync>;

type AskAll<T> = fn(&dyn RingMember, &[Claim], Moment) -> Vec<Answer<T>>;

pub(crate) struct RingStore {
    open: MemberOpener,
    /// The longest time that a change of the ring waits for silent nodes.
    patience: Duration,
    view: Mutex<Arc<RingView>>,
    changing: Mutex<()>,
}

impl RingStore {
    /// Opens the ring. A node that cannot be reached now is connected when a lock on it is used.
    pub(crate) fn open(ring: Ring, patience: Duration, open: MemberOpener) -> Result<RingStore> {
        let store = RingStore { open, patience, view: Mutex::default(), changing: Mutex::new(()) };
        store.change(ring).inspect_err(|_| store.close())?;
        Ok(store)
    }

    fn view(&self) -> Arc<RingView> {
        Arc::clone(&self.view.lock())
    }

    pub(crate) fn change(&self, ring: Ring) -> Result<()> {
        let ring = ring.checked()?;
        let _one_at_a_time = self.changing.lock();
        let now = self.view();
        // This client's ring may be old, so `announce` also compares with the marks that the nodes store.
        if let Some(current) = &now.ring
            && (ring.epoch < current.epoch
                || ring.epoch == current.epoch && ring.mark("") != current.mark(""))
        {
            let words = format!(
                "this client already uses epoch {}: a new list of nodes needs a higher one",
                current.epoch
            );
            return Err(Error::invalid("ring", words));
        }
        let (next, opened) = self.charted(&now, ring)?;
        if let Err(error) = self.announce(&next) {
            opened.iter().for_each(|node| node.store.close());
            return Err(error);
        }
        *self.view.lock() = Arc::clone(&next);
        // A node with a changed URL has a new store. The old store is closed without waiting for its
        // requests, because each of them ends by its deadline.
        let is_kept = |node: &&Arc<RingServer>| next.nodes.iter().any(|other| Arc::ptr_eq(node, other));
        now.nodes.iter().filter(|node| !is_kept(node)).for_each(|node| node.store.close());
        Ok(())
    }

    fn charted(&self, now: &RingView, ring: Ring) -> Result<(Arc<RingView>, Vec<Arc<RingServer>>)> {
        let mut nodes = now.nodes.clone();
        let mut opened = Vec::new();
        let mut homes = BTreeMap::new();
        for wanted in ring.all_nodes() {
            let at = nodes.iter().position(|node| node.label == wanted.label);
            let is_same = at.and_then(|at| nodes.get(at)).is_some_and(|node| node.url == wanted.url);
            if !is_same {
                let RingNode { label, url, .. } = wanted.clone();
                let store = (self.open)(&url)?;
                let capabilities = Arc::clone(&store).capabilities();
                let node = Arc::new(RingServer { label, store, capabilities, url });
                opened.push(Arc::clone(&node));
                match at.and_then(|at| nodes.get_mut(at)) {
                    Some(place) => *place = node,
                    None => nodes.push(node),
                }
            }
            let at = at.unwrap_or(nodes.len() - 1);
            homes.insert(wanted.label.clone(), u32::try_from(at).unwrap_or(u32::MAX));
        }
        let circle_of = |members: &[RingNode]| {
            Circle::new(members.iter().map(|member| {
                (member.label.as_str(), member.weight, homes.get(&member.label).copied().unwrap_or(u32::MAX))
            }))
        };
        let is_lost = |label: &str| {
            ring.earlier.iter().flatten().any(|node| node.label == label && node.is_lost)
                && ring.nodes.iter().all(|node| node.label != label)
        };
        let lost = homes.iter().filter(|(label, _)| is_lost(label)).map(|(_, home)| *home).collect();
        let mark = |node: &Arc<RingServer>| {
            (homes.contains_key(&node.label) && !is_lost(&node.label)).then(|| ring.mark(&node.label))
        };
        let view = RingView {
            marks: nodes.iter().map(mark).collect(),
            circle: circle_of(&ring.nodes),
            earlier: ring.earlier.iter().map(|members| circle_of(members)).collect(),
            lost,
            nodes,
            ring: Some(ring),
            stale: Mutex::default(),
        };
        Ok((Arc::new(view), opened))
    }

    /// Replaces the marks of all reachable nodes by the view's, or fails if `may_replace` forbids it.
    fn announce(&self, view: &RingView) -> Result<()> {
        let deadline = Clock::System.after(self.patience);
        let stored = survey(view, deadline);
        let mut reached = Vec::new();
        let mut unreachable = None;
        for (home, mark, answer) in stored {
            match answer {
                Ok(Marked::Under(())) => reached.push((home, mark.to_string())),
                Ok(Marked::Other(stored)) => {
                    mark.may_replace(&stored)?;
                    reached.push((home, stored));
                }
                Err(Failure::Refused(error) | Failure::Unknown(error)) if error.is_retryable() => {
                    unreachable = Some(error);
                }
                Err(Failure::Refused(error) | Failure::Unknown(error)) => return Err(error.during("connect")),
            }
        }
        if let (true, Some(error)) = (reached.is_empty(), unreachable) {
            let words = format!("no node of the ring can be reached: {}", error.detail());
            return Err(Error::new(error.kind(), "connect", words).with_source(error));
        }
        for (home, stored) in reached {
            // A retryable error is ignored, because the next attempt at this node sets the mark (`under`).
            match settle(view, home, stored, deadline) {
                Err(error) if !error.is_retryable() || error.kind() == ErrorKind::StaleRing => {
                    return Err(error);
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Acquires the lock (no re-entry) at its home node, after checking that no earlier home node has a hold.
    fn first(&self, claim: &Claim, deadline: Moment) -> Result<Answer<Attempt>> {
        let view = self.view();
        if let Some(stale) = &*view.stale.lock() {
            return Err(stale.copy());
        }
        let name = claim.name.key();
        let home = view.circle.home(name);
        if home != claim.home {
            return Err(moved_on());
        }
        let mut last_fence = 0;
        for earlier in view.earlier_homes(name, home) {
            let looked =
                under(&view, earlier, deadline, |node, mark| node.probe_under(mark, claim, deadline))?;
            match looked.map_err(Failure::into_error)? {
                Probe::Free { fence } => last_fence = last_fence.max(fence),
                Probe::Busy { retry_after } => {
                    view.refuse_own_writer(earlier, claim, deadline)?;
                    return Ok(Ok(Attempt::Busy { retry_after }));
                }
            }
        }
        under(&view, home, deadline, |node, mark| node.attempt_under(mark, claim, last_fence, deadline))
    }

    /// Sends each node its claims, to all nodes at the same time. Waits for a slow node only a seventh of the
    /// shortest lease: renewals are due after each third of a lease, so the next ones are in time.
    fn by_node<T: Send + 'static>(
        &self,
        claims: &[Claim],
        deadline: Moment,
        ask: AskAll<T>,
        of_a_lost_node: fn() -> T,
    ) -> Vec<Answer<T>> {
        let view = self.view();
        let shortest = claims.iter().map(|claim| claim.lease).min().unwrap_or_default();
        let until = deadline.min(Clock::System.after(shortest / 7));
        let key = |claim: &Claim| {
            let is_usable = !view.lost.contains(&claim.home) && view.node(claim.home).is_some();
            is_usable.then_some(claim.home)
        };
        let homes: Vec<Option<u32>> = claims.iter().map(key).collect();
        let answers = ask_groups(claims, &homes, |home, claims| match view.node(*home) {
            Some(node) => ask(&*node.store, claims, until),
            None => Vec::new(),
        });
        let otherwise = |claim: &Claim| match view.node(claim.home) {
            _ if view.lost.contains(&claim.home) => Ok(of_a_lost_node()),
            None => Err(Failure::Refused(moved_on())),
            Some(_) => Err(Failure::Unknown(not_answering().with_unknown_outcome())),
        };
        answers
            .into_iter()
            .zip(claims)
            .map(|(answer, claim)| answer.unwrap_or_else(|| otherwise(claim)))
            .collect()
    }

    fn at(&self, home: u32) -> Answer<Arc<dyn RingMember>> {
        let view = self.view();
        let node = view.node(home).ok_or_else(|| Failure::Refused(moved_on()))?;
        Ok(Arc::clone(&node.store))
    }

    fn wait_queues_at(&self, home: u32, tell: impl FnOnce(&dyn WaitQueues)) {
        if let Some(node) = self.view().node(home)
            && let Some(wait_queues) = &node.capabilities.wait_queues
        {
            tell(&**wait_queues);
        }
    }

    fn of(&self, name: &LockName) -> Option<Arc<dyn RingMember>> {
        let view = self.view();
        view.node(view.circle.home(name.key())).map(|node| Arc::clone(&node.store))
    }
}

impl Store for RingStore {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        let of_any_redis = self.view().nodes.first().map(|node| node.capabilities.clone());
        let Capabilities { wakes, can_expire_in, queues, poll_every, .. } = of_any_redis.unwrap_or_default();
        Capabilities {
            wakes,
            can_expire_in,
            queues,
            poll_every,
            homes: Some(self.clone()),
            connections: Some(self.clone()),
            wait_queues: Some(self.clone()),
            directory: Some(self.clone()),
            itself: Some(self.clone()),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        let words =
            "a ring supports locks only: semaphores, latches and conditions cannot move with their name";
        Error::when(kind.is_counted(), ErrorKind::Unsupported, "lock", || words)
            .map_err(|error| error.on(name.given()))?;
        self.of(name).map_or(Ok(()), |store| store.check_name(kind, name))
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        // A re-entry goes to the node that already has the hold, and makes no new hold, so it needs no mark.
        let answer = if count > 1 {
            self.at(claim.home).and_then(|store| store.attempt(claim, count, deadline))
        } else {
            self.first(claim, deadline).unwrap_or_else(Failure::refused)
        };
        named(answer, "lock", claim.name.given())
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        self.at(claim.home)?.release(claim, left, deadline)
    }

    fn release_later(&self, claim: &Claim, deadline: Moment, done: Sink) {
        match self.at(claim.home) {
            Ok(store) => store.release_later(claim, deadline, done),
            Err(failure) => done.answer(Err(failure)),
        }
    }

    // A hand-off needs no mark: while this node has the hold, no other node grants the name.
    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        self.at(from.home).ok()?.hand_off(from, to, deadline)
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        self.by_node(claims, deadline, |store, claims, deadline| store.renew(claims, deadline), || false)
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        self.by_node(
            claims,
            deadline,
            |store, claims, deadline| store.clean_up(claims, deadline),
            || Release::NotHeld { holder: None },
        )
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        self.at(claim.home)?.expire_in(claim, rest, deadline)
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        let force = |home| self.at(home)?.force(kind, name, deadline);
        // `collect` asks all nodes before the first error ends the fold, so the reachable ones free the lock.
        let answers: Vec<_> = self.view().homes(name).into_iter().map(force).collect();
        answers.into_iter().try_fold(false, |any, answer| Ok(any | answer?))
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.at(claim.home).ok()?.listen(claim, waker)
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        self.at(claim.home).ok()?.message_count(claim)
    }

    fn poll_completions(&self) -> bool {
        self.view().nodes.iter().filter(|node| node.store.poll_completions()).count() > 0
    }

    fn close(&self) {
        drop(at_once(&self.view().nodes, |node| node.store.close()));
    }
}

impl Inspect for RingStore {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        let inspect = |home| self.at(home)?.inspect(kind, name, owner, by);
        let mut all = self.view().homes(name).into_iter().map(inspect);
        all.find(|found| !matches!(found, Ok(None))).unwrap_or(Ok(None))
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        let mut last = Err(Failure::Refused(moved_on()));
        for home in self.view().homes(name) {
            last = self.at(home).and_then(|store| store.describe(name, deadline));
            if !matches!(&last, Ok(seen) if !seen.is_held()) {
                break;
            }
        }
        last
    }
}

impl HomeNodes for RingStore {
    fn home(&self, name: &LockName) -> u32 {
        self.view().circle.home(name.key())
    }
}

impl WaitQueues for RingStore {
    fn is_refused(&self) -> bool {
        let refused = |node: &&Arc<RingServer>| {
            node.capabilities.wait_queues.as_ref().is_some_and(|queues| queues.is_refused())
        };
        self.view().nodes.iter().filter(refused).count() > 0
    }

    fn leave_wait_queue(&self, claim: &Claim, deadline: Moment) {
        self.wait_queues_at(claim.home, |wait_queues| wait_queues.leave_wait_queue(claim, deadline));
    }

    fn end_release_watch(&self, claim: &Claim) {
        self.wait_queues_at(claim.home, |wait_queues| wait_queues.end_release_watch(claim));
    }
}

impl ConnectionWatch for RingStore {
    fn hung_up(&self) -> Option<bool> {
        any_hung_up(self.view().nodes.iter().map(|node| &node.capabilities))
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;
