//! The list of servers, and those that can be used from the start.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::reporter::Reporter;
use crate::park::Parker;
use crate::seam::{Answer, Failure, Store};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::time::{Clock, Moment};
use crate::topologies::redlock::Redlock;
use crate::topologies::redlock::monitor::NodeMonitor;
use crate::topologies::redlock::node::{Voter, VotingNode};
use crate::topologies::redlock::opening::{is_one_server, same_server};
use crate::topologies::redlock::votes::{Votes, majority};

impl Redlock {
    /// Connects to the nodes. Fewer than half may be out of reach, or be of no use, as a replica is, or one
    /// that wants another password; they join when they can be used. Once there is a majority, the others are
    /// waited for as long again, or for a node's time-out: one that is silent costs no more.
    pub(crate) fn connect(
        nodes: Vec<VotingNode>,
        node_timeout: Duration,
        connect_timeout: Duration,
        reporter: &Arc<Reporter>,
    ) -> Result<Redlock> {
        let (monitor, shared) = NodeMonitor::start(nodes, node_timeout, reporter)?;
        let redlock = Redlock { shared, monitor: Arc::new(monitor), pauses: Mutex::default() };
        let parker = Parker::new(&Clock::System);
        redlock.shared.arrivals.are_for(Some(parker.waker().clone()));
        let opened = redlock.open_all(connect_timeout, &parker);
        let joined = redlock.join_all(opened);
        redlock.shared.arrivals.are_for(None);
        redlock.shared.wake();
        if let Err(error) = joined {
            redlock.close();
            return Err(error);
        }
        Ok(redlock)
    }

    /// Connects to all at the same time.
    fn open_all(&self, connect_timeout: Duration, parker: &Parker) -> Vec<Option<Result<Voter>>> {
        let (nodes, begun) = (&self.shared.nodes, Clock::System.now());
        (0..nodes.len()).for_each(|at| self.shared.begin_to_open(at, connect_timeout));
        let mut opened: Vec<Option<Result<Voter>>> = nodes.iter().map(|_| None).collect();
        let mut wait_until = Moment::NEVER;
        loop {
            for (at, one) in self.shared.arrivals.take(true) {
                if let (Some(node), Some(place)) = (nodes.get(at), opened.get_mut(at)) {
                    node.is_opening.store(false, Ordering::SeqCst);
                    *place = Some(one);
                }
            }
            let now = Clock::System.now();
            let count = opened.iter().flatten().filter(|one| one.is_ok()).count();
            if wait_until == Moment::NEVER && count >= majority(nodes.len()) {
                wait_until = now.plus(now.since(begun).max(self.shared.node_timeout));
            }
            if now >= wait_until || opened.iter().all(Option::is_some) {
                return opened;
            }
            parker.park(wait_until, None);
        }
    }

    fn join_all(&self, all: Vec<Option<Result<Voter>>>) -> Result<()> {
        let nodes = &self.shared.nodes;
        let mut opened = Vec::new();
        // A list that is wrong, and what a member answers, which is the client's if there is no majority.
        let (mut wrong, mut unusable) = (None, None);
        let late = || Error::new(ErrorKind::TimedOut, "connect", "it has not answered yet");
        for (node, answer) in nodes.iter().zip(all) {
            match answer.unwrap_or_else(|| Err(late())) {
                Ok(member) => opened.push(Ok(member)),
                Err(error) => {
                    if !error.is_silence() && error.kind() != ErrorKind::Busy {
                        let words = format!("{}: {}", node.place, error.detail());
                        let refusal = Error::new(error.kind(), "connect", words).with_source(error.copy());
                        let of = if is_of_list(&error) { &mut wrong } else { &mut unusable };
                        of.get_or_insert(refusal);
                    }
                    opened.push(Err(Failure::Refused(error)));
                }
            }
        }
        let members = || {
            let zipped = nodes.iter().zip(&opened);
            zipped.filter_map(|(node, answer)| match answer {
                Ok(member) => Some((node, member)),
                Err(_) => None,
            })
        };
        let twins = members().enumerate().find_map(|(at, (node, member))| {
            let is_twin =
                |(_, other): &(&VotingNode, &Voter)| is_one_server(&other.identity, &member.identity);
            members().take(at).find(is_twin).map(|(twin, _)| same_server(&twin.place, &node.place))
        });
        let votes = Votes(opened);
        let too_few = votes.done().count() < votes.majority();
        if let Some(error) = twins {
            close_all(votes.0);
            return Err(error);
        }
        if let Some(error) = wrong.or(unusable.filter(|_| too_few)) {
            close_all(votes.0);
            return Err(error);
        }
        if too_few {
            let answer =
                votes.too_few::<()>("connect", &self.monitor.places(), false, |_| "connected".to_owned());
            close_all(votes.0);
            return answer.map_err(Failure::into_error);
        }
        // Each has its time: on a slow link, too, the first client notes the number on all.
        let noted = |member: &Voter| member.noted(Clock::System.after(self.shared.node_timeout));
        let other_format = votes.done().find_map(|member| noted(member).err());
        if let Some(error) = other_format {
            close_all(votes.0);
            return Err(error);
        }
        if nodes.len().is_multiple_of(2) {
            let all = nodes.len();
            self.shared.warn(format!(
                "Redlock on {all} servers outlives the loss of no more of them than on {}",
                all - 1
            ));
        }
        for (node, answer) in nodes.iter().zip(votes.0) {
            match answer {
                Ok(member) => {
                    self.shared.report_doubts(node, &member);
                    node.join(member);
                }
                Err(Failure::Refused(error) | Failure::Unknown(error)) => {
                    self.shared.warn(format!("{} cannot be used yet: {}", node.place, error.detail()));
                    self.shared.put_out(node, &error, None);
                }
            }
        }
        Ok(())
    }
}

/// Whether the server is none for Redlock whatever its state is.
fn is_of_list(error: &Error) -> bool {
    use ErrorKind::{IncompatibleFormat, InvalidInput, TooOld, Unsupported};
    matches!(error.kind(), InvalidInput | IncompatibleFormat | TooOld | Unsupported)
}

fn close_all(opened: Vec<Answer<Voter>>) {
    for member in opened.into_iter().flatten() {
        member.store.close();
    }
}
