//! The work of the monitor's thread for holds that a server has lost.

use crate::seam::fallbacks::begin_attempt;
use crate::seam::{Attempt, Claim, Failure};
use crate::sync::atomic::Ordering;
use crate::time::{Clock, Moment, SHORTEST_LEASE};
use crate::topologies::redlock::monitor::{NodeMonitorShared, batch_timeout};
use crate::topologies::redlock::node::VotingNode;
use crate::topologies::redlock::restores::Order;

impl NodeMonitorShared {
    /// Gives holds back that are due; returns when the next are.
    pub(super) fn give_back(&self) -> Moment {
        let now = Clock::System.now();
        let orders = self.restores.take_due(|at| self.nodes.get(at).is_some_and(VotingNode::is_ready), now);
        if orders.is_empty() {
            return Moment::NEVER;
        }
        let deadline = now.plus(batch_timeout(self.node_timeout, orders.len()));
        let ask = |orders: &[&Order], count: fn(&Claim) -> u32| {
            let begin = |order: &&Order| {
                // It ends there no later than where it was renewed.
                let lease = order.until.since(Clock::System.now());
                let claim = Claim { lease: lease.max(SHORTEST_LEASE), ..order.claim.clone() };
                let node = self.nodes.get(order.node);
                let store = node.and_then(|node| node.ready().ok());
                Some(begin_attempt(store?.as_ref(), &claim, count(&claim), deadline))
            };
            // All are on their way before the first is waited for.
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
                    self.look_again.store(true, Ordering::SeqCst);
                }
                // Another has it there, or it was not asked.
                Some(Ok(_)) | None => self.restores.answered(order.node, &order.claim, None),
                Some(Err(Failure::Refused(error))) => {
                    self.note_silence(order.node, &order.claim, &error);
                    self.restores.answered(order.node, &order.claim, None);
                }
                Some(Err(Failure::Unknown(error))) => {
                    // Granted late, it would be there beside what has happened since, or after its release.
                    self.owe(order.node, order.claim.clone());
                    self.note_silence(order.node, &order.claim, &error);
                }
            }
        }
        // The number of levels is for people, and is set anew with each change of it.
        drop(ask(&reentered, |claim| claim.levels));
        now
    }
}
