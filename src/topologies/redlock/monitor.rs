//! The one thread that does what no caller shall wait for: it asks silent servers whether they are back, connects to
//! those that were never reached, and has servers forget claims that must not stay there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner, unbound_number};
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::park::Parker;
use crate::seam::{Answer, Claim, Kind, Release};
use crate::sync::Mutex;
use crate::sync::Waker;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::time::{Clock, Moment};
use crate::topologies::redlock::node::{Voter, VotingNode};

/// A lock that one server may still hold, or get to hold, for an owner that is to hold nothing there.
#[derive(Debug)]
struct PendingCleanup {
    node: usize,
    /// With the server's own name for the lock.
    claim: Claim,
    /// By then it has ended by itself.
    until: Moment,
    next: Moment,
    pause: Duration,
}

/// Between two tries to have a claim forgotten: at first, and at most.
const TRY_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// For so long after a server is back, what was sent to it before may still arrive.
const STRAGGLERS: Duration = Duration::from_secs(2);
/// How long one connection of a server that is opened late may take.
const LATE_CONNECT: Duration = Duration::from_secs(1);
/// So many claims of a batch have one server's time-out for themselves.
const CLAIMS_PER_TIMEOUT: usize = 500;

/// How long a batch of `claims` may take at one server.
pub(super) fn batch_timeout(node_timeout: Duration, claims: usize) -> Duration {
    let parts = u32::try_from(claims / CLAIMS_PER_TIMEOUT + 1).unwrap_or(u32::MAX);
    node_timeout.saturating_mul(parts)
}

/// The servers, and what is to be done about them.
pub(super) struct NodeMonitorShared {
    pub(super) nodes: Vec<VotingNode>,
    pub(super) node_timeout: Duration,
    /// Owner numbers below this are not to be used for another hold.
    unspent_from: AtomicU64,
    orders: Mutex<MonitorOrders>,
    reporter: Arc<Reporter>,
}

#[derive(Default)]
struct MonitorOrders {
    pending_cleanups: Vec<PendingCleanup>,
    stop: bool,
}

pub(super) struct NodeMonitor {
    shared: Arc<NodeMonitorShared>,
    waker: Waker,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl NodeMonitor {
    pub(super) fn start(
        nodes: Vec<VotingNode>,
        node_timeout: Duration,
        reporter: &Arc<Reporter>,
    ) -> Result<(NodeMonitor, Arc<NodeMonitorShared>)> {
        let shared = Arc::new(NodeMonitorShared {
            nodes,
            node_timeout,
            unspent_from: AtomicU64::new(0),
            orders: Mutex::default(),
            reporter: Arc::clone(reporter),
        });
        let parker = Parker::new(&Clock::System);
        let waker = parker.waker().clone();
        let thread = thread::Builder::new()
            .name("leasehold-nodes".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.run(&parker)
            })
            .map_err(|error| {
                Error::new(ErrorKind::Resource, "connect", "the system could not start a thread")
                    .with_source(error)
            })?;
        Ok((NodeMonitor { shared: Arc::clone(&shared), waker, thread: Mutex::new(Some(thread)) }, shared))
    }

    pub(super) fn places(&self) -> Vec<&str> {
        self.shared.nodes.iter().map(|node| node.place.as_str()).collect()
    }

    pub(super) fn node(&self, at: usize) -> Option<&VotingNode> {
        self.shared.nodes.get(at)
    }

    /// Puts a node out of use that did not answer.
    pub(super) fn noted<T>(&self, node: &VotingNode, about: &Claim, answer: Answer<T>) -> Answer<T> {
        if let Answer::Refused(error) | Answer::Unknown(error) = &answer
            && error.is_silence()
            && let Ok(claim) = node.claim(about)
        {
            self.put_out(node, error, Some((claim.kind, claim.name, claim.owner)));
        }
        answer
    }

    /// Has the nodes that `is_owed` picks forget a claim, without waiting for it.
    pub(super) fn owe_where(&self, claim: &Claim, is_owed: impl Fn(usize, &VotingNode) -> bool) {
        for (at, node) in self.shared.nodes.iter().enumerate() {
            if is_owed(at, node)
                && let Ok(claim) = node.claim(claim)
            {
                self.owe(at, claim);
            }
        }
    }

    /// A server did not answer: it is not asked from here on, until it does.
    pub(super) fn put_out(
        &self,
        node: &VotingNode,
        error: &Error,
        probe: Option<(Kind, Arc<LockName>, Owner)>,
    ) {
        if node.put_out(error, probe, || self.shared.spend_numbers()) {
            self.waker.wake();
        }
    }

    /// Has a server forget a claim that it may hold, or be about to: again and again, until it says that it held it, or
    /// until it says that it does not and a late request cannot last any more.
    fn owe(&self, node: usize, claim: Claim) {
        // First, so that a caller that learns how the request ended takes another number for the next.
        self.shared.spend_numbers();
        let now = Clock::System.now();
        let until = now.plus(claim.lease).plus(self.shared.node_timeout);
        let pending_cleanup = PendingCleanup { node, claim, until, next: now, pause: TRY_AGAIN.0 };
        self.shared.orders.lock().pending_cleanups.push(pending_cleanup);
        self.waker.wake();
    }

    pub(super) fn stop(&self) {
        self.shared.orders.lock().stop = true;
        self.waker.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            drop(thread.join()); // it panics nowhere
        }
    }
}

impl NodeMonitorShared {
    /// Has all owner numbers up to now be used for no further hold; returns the first that may be.
    fn spend_numbers(&self) -> u64 {
        let first = unbound_number();
        self.unspent_from.fetch_max(first, Ordering::SeqCst);
        first
    }

    pub(super) fn first_unspent_number(&self) -> u64 {
        self.unspent_from.load(Ordering::SeqCst)
    }

    fn run(&self, parker: &Parker) {
        loop {
            let stop = {
                let mut orders = self.orders.lock();
                if orders.stop {
                    orders
                        .pending_cleanups
                        .iter_mut()
                        .for_each(|pending_cleanup| pending_cleanup.next = Clock::System.now());
                }
                orders.stop
            };
            if stop {
                self.settle_debts(); // once more; what is left ends with its lease
                return;
            }
            let next = self.look_after_nodes().min(self.settle_debts());
            parker.park(next, None);
        }
    }

    /// Asks the servers that are out of use and due; returns when the next one is.
    fn look_after_nodes(&self) -> Moment {
        let mut next = Moment::NEVER;
        for (at, node) in self.nodes.iter().enumerate() {
            let (is_back, again) = node.look(self.node_timeout, |node| self.open(node));
            if is_back {
                let now = Clock::System.now();
                for pending_cleanup in self
                    .orders
                    .lock()
                    .pending_cleanups
                    .iter_mut()
                    .filter(|pending_cleanup| pending_cleanup.node == at)
                {
                    pending_cleanup.next = now;
                    pending_cleanup.pause = TRY_AGAIN.0;
                    pending_cleanup.until = pending_cleanup.until.max(now.plus(STRAGGLERS));
                }
            }
            next = next.min(again);
        }
        next
    }

    /// Connects to a server that was not there when the client was made.
    fn open(&self, node: &VotingNode) -> Result<()> {
        let member = (node.open)(LATE_CONNECT)?;
        if let Some(twin) = self.nodes.iter().find(|other| {
            other.member().is_some_and(|other| is_one_server(&other.identity, &member.identity))
        }) {
            member.store.close();
            return Err(same_server(&twin.place, &node.place));
        }
        self.report_doubts(node, &member);
        node.join(member);
        Ok(())
    }

    pub(super) fn report_doubts(&self, node: &VotingNode, member: &Voter) {
        for doubt in &member.doubts {
            self.warn(format!("{}: {doubt}", node.place));
        }
    }

    pub(super) fn warn(&self, text: String) {
        self.reporter.observe_later(move |observer| observer.event(&Event::Warning { text: &text }));
    }

    /// Sends the clean-ups that are due; returns when the next is. A silent server's clean-ups wait until it is back.
    fn settle_debts(&self) -> Moment {
        let now = Clock::System.now();
        let (due, mut kept): (Vec<PendingCleanup>, Vec<PendingCleanup>) =
            std::mem::take(&mut self.orders.lock().pending_cleanups).into_iter().partition(
                |pending_cleanup| {
                    pending_cleanup.next <= now
                        && self.nodes.get(pending_cleanup.node).is_some_and(VotingNode::is_ready)
                },
            );
        for (at, node) in self.nodes.iter().enumerate() {
            let pending_cleanups = || due.iter().filter(|pending_cleanup| pending_cleanup.node == at);
            let claims: Vec<Claim> =
                pending_cleanups().map(|pending_cleanup| pending_cleanup.claim.clone()).collect();
            let Ok(store) = node.ready() else {
                kept.extend(pending_cleanups().map(PendingCleanup::later));
                continue;
            };
            if claims.is_empty() {
                continue;
            }
            let deadline = Clock::System.after(batch_timeout(self.node_timeout, claims.len()));
            for (answer, pending_cleanup) in
                store.abandon(&claims, deadline).into_iter().zip(pending_cleanups())
            {
                match answer {
                    Answer::Done(Release::Freed { .. }) => {} // the request in doubt was carried out, and is undone
                    Answer::Done(_) if now >= pending_cleanup.until => {}
                    Answer::Done(_) => kept.push(pending_cleanup.later()),
                    Answer::Refused(error) | Answer::Unknown(error) => {
                        if error.is_silence() {
                            let claim = &pending_cleanup.claim;
                            let probe = (claim.kind, Arc::clone(&claim.name), claim.owner);
                            node.put_out(&error, Some(probe), || self.spend_numbers());
                        } else if now >= pending_cleanup.until {
                            continue; // it answers, and whatever it held has run out
                        }
                        kept.push(pending_cleanup.later());
                    }
                }
            }
        }
        let waits = |pending_cleanup: &&PendingCleanup| {
            self.nodes.get(pending_cleanup.node).is_some_and(VotingNode::is_ready)
        };
        let mut orders = self.orders.lock();
        orders.pending_cleanups.append(&mut kept);
        let next =
            orders.pending_cleanups.iter().filter(waits).map(|pending_cleanup| pending_cleanup.next).min();
        // A server that went out just now is looked at by `look_after_nodes`.
        let looked = self.nodes.iter().any(|node| !node.is_ready());
        let soon = Clock::System.after(TRY_AGAIN.0);
        next.unwrap_or(Moment::NEVER).min(if looked { soon } else { Moment::NEVER })
    }
}

impl PendingCleanup {
    /// The same, to be tried again after a pause.
    fn later(&self) -> PendingCleanup {
        PendingCleanup {
            node: self.node,
            claim: self.claim.clone(),
            until: self.until,
            next: Clock::System.after(self.pause),
            pause: (self.pause * 2).min(TRY_AGAIN.1),
        }
    }
}

pub(super) fn is_one_server(one: &Option<String>, other: &Option<String>) -> bool {
    one.is_some() && one == other
}

pub(super) fn same_server(one: &str, other: &str) -> Error {
    Error::invalid(
        "connect",
        format!("{one} and {other} are one server, whose loss would count as the loss of two"),
    )
}

impl fmt::Debug for NodeMonitorShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.nodes).finish()
    }
}

impl fmt::Debug for NodeMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}
