//! The list of servers, and those that can be used from the start.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::reporter::Reporter;
use crate::seam::{Answer, Store};
use crate::sync::{Mutex, spawn_scoped, thread};
use crate::topologies::redlock::Redlock;
use crate::topologies::redlock::monitor::{NodeMonitor, is_one_server, same_server};
use crate::topologies::redlock::node::{Voter, VotingNode};
use crate::topologies::redlock::votes::Votes;

impl Redlock {
    /// Connects to the nodes. Fewer than half may be out of reach; they join when they are there.
    pub(crate) fn connect(
        nodes: Vec<VotingNode>,
        node_timeout: Duration,
        connect_timeout: Duration,
        reporter: &Arc<Reporter>,
    ) -> Result<Redlock> {
        let (monitor, shared) = NodeMonitor::start(nodes, node_timeout, reporter)?;
        let redlock = Redlock { shared, monitor: Arc::new(monitor), pauses: Mutex::default() };
        if let Err(error) = redlock.open(connect_timeout) {
            redlock.close();
            return Err(error);
        }
        Ok(redlock)
    }

    fn open(&self, connect_timeout: Duration) -> Result<()> {
        let nodes = &self.shared.nodes;
        let mut opened = Vec::new();
        let mut unusable = None;
        for (node, answer) in nodes.iter().zip(open_all(nodes, connect_timeout)) {
            match answer {
                Ok(member) => opened.push(Answer::Done(member)),
                Err(error) if error.is_silence() || error.kind() == ErrorKind::Busy => {
                    opened.push(Answer::Refused(error));
                }
                Err(error) => {
                    let (kind, words) = (error.kind(), format!("{}: {}", node.place, error.detail()));
                    unusable.get_or_insert_with(|| Error::new(kind, "connect", words).with_source(error));
                }
            }
        }
        if let Some(error) = unusable {
            close_all(opened);
            return Err(error);
        }
        let members = || {
            let zipped = nodes.iter().zip(&opened);
            zipped.filter_map(|(node, answer)| match answer {
                Answer::Done(member) => Some((node, member)),
                Answer::Refused(_) | Answer::Unknown(_) => None,
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
        if too_few {
            let answer =
                votes.too_few::<()>("connect", &self.monitor.places(), false, |_| "connected".to_owned());
            close_all(votes.0);
            return answer.into_result();
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
                Answer::Done(member) => {
                    self.shared.report_doubts(node, &member);
                    node.join(member);
                }
                Answer::Refused(error) | Answer::Unknown(error) => {
                    self.shared.warn(format!("{} cannot be used yet: {}", node.place, error.detail()));
                    self.monitor.put_out(node, &error, None);
                }
            }
        }
        Ok(())
    }
}

/// Connects to all at the same time: one that is silent costs its time-out, and two cost no more.
fn open_all<'a>(nodes: &'a [VotingNode], connect_timeout: Duration) -> Vec<Result<Voter>> {
    let open = |node: &'a VotingNode| (node.open)(connect_timeout);
    let panicked = || Error::new(ErrorKind::Resource, "connect", "the thread that connected ended early");
    thread::scope(|scope| {
        let begin = |node| (node, spawn_scoped(scope, move || open(node)));
        let begun: Vec<_> = nodes.iter().map(begin).collect();
        let ended = begun.into_iter().map(|(node, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_panic| Err(panicked())),
            Err(_no_thread) => open(node),
        });
        ended.collect()
    })
}

fn close_all(opened: Vec<Answer<Voter>>) {
    for answer in opened {
        if let Answer::Done(member) = answer {
            member.store.close();
        }
    }
}
