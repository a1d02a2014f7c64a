//! The thread for work that no caller waits for. It checks whether silent servers answer again, connects to
//! servers that were never reached, cleans up claims, and restores holds to servers that lost them.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ident::{LockName, Owner, unbound_number};
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::park::{Parker, Service};
use crate::seam::{Answer, Attempt, Claim, Failure, Kind, Release, Sink};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::time::{Clock, Moment, SHORTEST_LEASE};
use crate::topologies::redlock::node::{Voter, VotingNode};
use crate::topologies::redlock::restores::{Order, Restores};
use crate::topologies::redlock::votes::{Votes, not_held, say_release};

/// A claim to remove from a server: the hold does not count there, but may exist, or be granted late.
#[derive(Clone)]
struct PendingCleanup {
    node: usize,
    /// The claim with the lock's name on this server, which a `NameMapper` may have changed.
    claim: Claim,
    /// By this time the server's hold has expired, and late requests have arrived, so the clean-up may end.
    until: Moment,
    next: Moment,
    pause: Duration,
    /// Whether a clean-up had an unknown outcome: the server may yet execute it, and delete a restored hold.
    may_come_again: bool,
}

/// First and longest pause before a clean-up is repeated.
const TRY_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// After a silent server has returned, requests sent earlier may still arrive during this time.
const STRAGGLERS: Duration = Duration::from_secs(2);
const CLAIMS_PER_TIMEOUT: usize = 500;

pub(super) fn batch_timeout(node_timeout: Duration, claims: usize) -> Duration {
    let parts = u32::try_from(claims / CLAIMS_PER_TIMEOUT + 1).unwrap_or(u32::MAX);
    node_timeout.saturating_mul(parts)
}

pub(super) struct NodeMonitor {
    pub(super) nodes: Vec<VotingNode>,
    pub(super) node_timeout: Duration,
    /// New holds must not use owner numbers below this: late requests under them may arrive.
    pub(super) unspent_from: AtomicU64,
    pub(super) restores: Restores,
    /// Set after a server came into use, or granted a restore: the client then renews all holds early.
    pub(super) renew_early: AtomicBool,
    /// The outcome of each server's first connect, if ended. `None` once `Redlock::connect` has waited.
    pub(super) opened: Mutex<Option<Vec<Option<Result<()>>>>>,
    pub(super) has_opened: Condvar,
    pending_cleanups: Mutex<Vec<PendingCleanup>>,
    pub(super) service: Service,
    reporter: Arc<Reporter>,
}

impl NodeMonitor {
    pub(super) fn start(
        nodes: Vec<VotingNode>,
        node_timeout: Duration,
        reporter: &Arc<Reporter>,
    ) -> Result<Arc<NodeMonitor>> {
        let (service, parker) = Service::new(&Clock::System);
        let opened = nodes.iter().map(|_| None).collect();
        let monitor = Arc::new(NodeMonitor {
            nodes,
            node_timeout,
            unspent_from: AtomicU64::new(0),
            restores: Restores::default(),
            renew_early: AtomicBool::new(false),
            opened: Mutex::new(Some(opened)),
            has_opened: Condvar::new(),
            pending_cleanups: Mutex::default(),
            service,
            reporter: Arc::clone(reporter),
        });
        let monitored = Arc::clone(&monitor);
        monitor.service.start("leasehold-nodes", move || monitored.run(&parker))?;
        Ok(monitor)
    }

    pub(super) fn places(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| node.place.as_str()).collect()
    }

    /// Takes the node out of use if the answer is an error that means silence, such as a time-out.
    pub(super) fn noted<T>(&self, node: &VotingNode, about: &Claim, answer: Answer<T>) -> Answer<T> {
        if let Err(failure) = &answer
            && let Ok(claim) = node.claim(about)
        {
            self.note_silence(node, &claim, failure.error());
        }
        answer
    }

    /// Notes that a renewal or re-entry, sent at `begun`, was confirmed by a majority. The monitor's thread
    /// then restores the hold on the `lacking` nodes.
    pub(super) fn confirmed(&self, claim: &Claim, begun: Moment, lacking: &[usize]) {
        let asked = |at: &usize| Some((*at, self.nodes.get(*at)?.claim(claim).ok()?));
        if self.restores.confirmed(claim, begun, lacking.iter().filter_map(asked).collect()) {
            self.service.wake();
        }
    }

    /// Ends all restores of a hold that is over, and cleans up on servers that may still grant one. Returns
    /// the servers that did not count for the hold.
    pub(super) fn over(&self, claim: &Claim) -> Vec<usize> {
        let uncounted = self.restores.uncounted(claim);
        let owed = self.restores.over(claim, false);
        self.clean_up_where(claim, |at, _| owed.contains(&at));
        uncounted
    }

    /// Like `over`, for a hold that ended during a renewal. The release may have reached a server before a
    /// restore did, so servers that restored the hold are cleaned up too.
    pub(super) fn ended_meanwhile(&self, claim: &Claim) {
        let owed = self.restores.over(claim, true);
        self.clean_up_where(claim, |at, _| owed.contains(&at));
    }

    /// Makes the monitor's thread remove the claim from each node for which `is_owed` is true.
    pub(super) fn clean_up_where(&self, claim: &Claim, is_owed: impl Fn(usize, &VotingNode) -> bool) {
        for (at, node) in self.nodes.iter().enumerate() {
            if is_owed(at, node)
                && let Ok(claim) = node.claim(claim)
            {
                self.clean_up_later(at, claim);
            }
        }
    }

    /// Decides the result of a release. After the last level's, orders clean-ups where the hold may remain.
    pub(super) fn released(&self, claim: &Claim, left: u32, votes: &Votes<Release>) -> Answer<Release> {
        if left > 0 {
            let still = votes.count(|release| *release == Release::StillHeld);
            return if still >= votes.majority() {
                Ok(Release::StillHeld)
            } else if votes.not_held() >= votes.veto() {
                Ok(Release::NotHeld { holder: votes.other_holder() })
            } else {
                votes.too_few("unlock", &self.places(), still > 0, say_release)
            };
        }
        let is_lost = votes.not_held() >= votes.veto();
        if !is_lost && votes.done().count() < votes.majority() {
            let freed = votes.count(|release| matches!(release, Release::Freed { .. }));
            return votes.too_few("unlock", &self.places(), freed > 0, say_release);
        }
        // A server that did not confirm may still have the hold, so a clean-up follows there. A server that
        // was out of use before the hold began has no hold.
        self.clean_up_where(claim, |at, node| match votes.0.get(at) {
            Some(Ok(_)) | None => false,
            Some(Err(Failure::Unknown(_))) => true,
            Some(Err(Failure::Refused(_))) => node.may_hold(claim.owner),
        });
        Ok(if is_lost {
            Release::NotHeld { holder: votes.other_holder() }
        } else {
            Release::Freed { others: votes.others() }
        })
    }

    pub(super) fn put_out(
        &self,
        node: &VotingNode,
        error: &Error,
        probe: Option<(Kind, Arc<LockName>, Owner)>,
    ) {
        if node.put_out(error, probe, || self.spend_numbers()) {
            self.service.wake();
        }
    }

    /// Takes the server out of use if the error means silence. `claim` has the lock's name on this server.
    fn note_silence(&self, node: &VotingNode, claim: &Claim, error: &Error) {
        if error.is_silence() {
            self.put_out(node, error, Some((claim.kind, Arc::clone(&claim.name), claim.owner)));
        }
    }

    /// Cleans up a claim on a server, until the claim is gone there and no late request can bring it back.
    /// Until then the server does not count for the claim.
    pub(super) fn clean_up_later(&self, node: usize, claim: Claim) {
        // Comes first, so that no later hold, which the clean-up would delete, uses the claim's owner number.
        self.spend_numbers();
        self.restores.doubt(node, &claim);
        let now = Clock::System.now();
        let until = now.plus(claim.lease).plus(self.node_timeout);
        let pause = TRY_AGAIN.0;
        let one = PendingCleanup { node, claim, until, next: now, pause, may_come_again: false };
        self.pending_cleanups.lock().push(one);
        self.service.wake();
    }

    /// Keeps new holds from using the owner numbers given out so far, and returns the next number.
    fn spend_numbers(&self) -> u64 {
        let first = unbound_number();
        self.unspent_from.fetch_max(first, Ordering::SeqCst);
        first
    }

    fn run(self: &Arc<Self>, parker: &Parker) {
        let look = |_woken_for| self.watch_nodes().min(self.send_cleanups()).min(self.restore_due());
        self.service.run(parker, look);
        let now = Clock::System.now();
        self.pending_cleanups.lock().iter_mut().for_each(|one| one.next = now);
        self.send_cleanups();
    }

    /// Checks each server that is out of use and whose next check is due. Returns the time of the next check.
    fn watch_nodes(self: &Arc<Self>) -> Moment {
        let mut next = Moment::NEVER;
        for (at, node) in self.nodes.iter().enumerate() {
            let (is_back, again) = node.look(self.node_timeout, || self.begin_to_open_late(at));
            if is_back {
                self.renew_early.store(true, Ordering::SeqCst);
                let now = Clock::System.now();
                for one in self.pending_cleanups.lock().iter_mut().filter(|one| one.node == at) {
                    (one.next, one.pause) = (now, TRY_AGAIN.0);
                    one.until = one.until.max(now.plus(STRAGGLERS));
                }
            }
            next = next.min(again);
        }
        next
    }

    pub(super) fn report_doubts(&self, node: &VotingNode, member: &Voter) {
        for doubt in &member.doubts {
            self.warn(format!("{}: {doubt}", node.place));
        }
    }

    pub(super) fn warn(&self, text: String) {
        self.reporter.observe_later(move |observer| observer.event(&Event::Warning { text: &text }));
    }

    /// Sends due clean-ups to servers in use. Returns when to call this again.
    fn send_cleanups(&self) -> Moment {
        let now = Clock::System.now();
        let is_ready = |one: &PendingCleanup| self.nodes.get(one.node).is_some_and(VotingNode::is_ready);
        let is_due = |one: &mut PendingCleanup| one.next <= now && is_ready(one);
        let due: Vec<PendingCleanup> = self.pending_cleanups.lock().extract_if(.., is_due).collect();
        let mut kept = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let its = || due.iter().filter(|one| one.node == at);
            let claims: Vec<Claim> = its().map(|one| one.claim.clone()).collect();
            let Ok(store) = node.ready() else {
                kept.extend(its().map(PendingCleanup::later));
                continue;
            };
            if claims.is_empty() {
                continue;
            }
            let deadline = Clock::System.after(batch_timeout(self.node_timeout, claims.len()));
            for (answer, one) in store.clean_up(&claims, deadline).into_iter().zip(its()) {
                let (is_over, mut later) = (now >= one.until, one.later());
                let is_settled = match answer {
                    // The hold is removed, so the clean-up ends, unless an earlier unanswered one may still
                    // arrive and delete a restored hold.
                    Ok(Release::Freed { .. }) => is_over || !one.may_come_again,
                    Ok(_) => is_over,
                    Err(failure) => {
                        later.may_come_again |= failure.error().outcome_unknown();
                        self.note_silence(node, &one.claim, failure.error());
                        // Silence proves nothing, so the clean-up is repeated until the server answers.
                        is_over && !failure.error().is_silence()
                    }
                };
                if is_settled {
                    self.restores.settled(at, &one.claim);
                } else {
                    kept.push(later);
                }
            }
        }
        let mut pending_cleanups = self.pending_cleanups.lock();
        pending_cleanups.append(&mut kept);
        let next = pending_cleanups.iter().filter(|one| is_ready(one)).map(|one| one.next).min();
        // `next` leaves out servers that are away. They may return at any time, so this thread looks soon.
        let is_any_away = self.nodes.iter().any(|node| !node.is_ready());
        let soon = Clock::System.after(TRY_AGAIN.0);
        next.unwrap_or(Moment::NEVER).min(if is_any_away { soon } else { Moment::NEVER })
    }

    /// Sends the due restores, and reads the answers. Returns when to call this again.
    fn restore_due(&self) -> Moment {
        let now = Clock::System.now();
        let orders = self.restores.take_due(|at| self.nodes.get(at).is_some_and(VotingNode::is_ready), now);
        if orders.is_empty() {
            return Moment::NEVER;
        }
        let deadline = now.plus(batch_timeout(self.node_timeout, orders.len()));
        let ask = |orders: &[&Order], count: fn(&Claim) -> u32| {
            let begin = |order: &&Order| {
                // Only the rest of the hold's lease is needed: the client counts on no more.
                let lease = order.until.since(Clock::System.now());
                let claim = Claim { lease: lease.max(SHORTEST_LEASE), ..order.claim.clone() };
                let node = self.nodes.get(order.node);
                let store = node.and_then(|node| node.ready().ok());
                Some(store?.begin_attempt(&claim, count(&claim), deadline))
            };
            // All requests are sent before the first answer is awaited, so a slow server delays no other.
            let begun: Vec<_> = orders.iter().map(begin).collect();
            begun.into_iter().map(|pending| pending.map(|pending| pending.wait())).collect::<Vec<_>>()
        };
        let mut reentered = Vec::new();
        let all: Vec<&Order> = orders.iter().collect();
        for (order, answer) in all.iter().zip(ask(&all, |_| 1)) {
            match answer {
                Some(Ok(Attempt::Granted { .. })) => {
                    self.restores.answered(order.node, &order.claim, Some(Clock::System.now()));
                    if order.claim.levels > 1 {
                        reentered.push(*order);
                    }
                    self.renew_early.store(true, Ordering::SeqCst);
                }
                // Another owner has the lock there, or the server was not in use and got no request.
                Some(Ok(_)) | None => self.restores.answered(order.node, &order.claim, None),
                Some(Err(failure)) => {
                    match failure {
                        // The server may grant the restore after the holder's release, so a clean-up follows.
                        Failure::Unknown(_) => self.clean_up_later(order.node, order.claim.clone()),
                        Failure::Refused(_) => self.restores.answered(order.node, &order.claim, None),
                    }
                    let node = self.nodes.get(order.node);
                    node.iter().for_each(|node| self.note_silence(node, &order.claim, failure.error()));
                }
            }
        }
        // These requests set the hold count of re-entered holds. The answers do not matter, because only
        // listings show the count, and each later re-entry or release sets it again.
        drop(ask(&reentered, |claim| claim.levels));
        now
    }
}

impl PendingCleanup {
    fn later(&self) -> PendingCleanup {
        let (next, pause) = (Clock::System.after(self.pause), (self.pause * 2).min(TRY_AGAIN.1));
        PendingCleanup { next, pause, ..self.clone() }
    }
}

/// Collects all servers' answers to a release that no caller waits for, and then reports the result.
pub(super) struct PendingRelease {
    monitor: Arc<NodeMonitor>,
    claim: Claim,
    uncounted: Vec<usize>,
    state: Mutex<ReleaseState>,
}

struct ReleaseState {
    answers: Vec<Option<Answer<Release>>>,
    done: Option<Sink>,
}

impl PendingRelease {
    pub(super) fn new(
        monitor: &Arc<NodeMonitor>,
        claim: &Claim,
        uncounted: Vec<usize>,
        done: Sink,
    ) -> Arc<PendingRelease> {
        let answers = monitor.nodes.iter().map(|_| None).collect();
        let state = Mutex::new(ReleaseState { answers, done: Some(done) });
        Arc::new(PendingRelease { monitor: Arc::clone(monitor), claim: claim.clone(), uncounted, state })
    }

    pub(super) fn take(&self, at: usize, answer: Answer<Release>) {
        let answer = match self.monitor.nodes.get(at) {
            Some(node) => self.monitor.noted(node, &self.claim, answer),
            None => answer,
        };
        let mut state = self.state.lock();
        if let Some(place) = state.answers.get_mut(at) {
            *place = Some(answer);
        }
        if state.answers.iter().any(Option::is_none) {
            return;
        }
        let votes = Votes(std::mem::take(&mut state.answers).into_iter().flatten().collect());
        let Some(done) = state.done.take() else { return };
        drop(state);
        let votes = votes.discounted(&self.uncounted, not_held);
        done.answer(self.monitor.released(&self.claim, 0, &votes));
    }
}
