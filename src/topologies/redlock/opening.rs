//! Connecting to the servers, each on a thread of its own that nobody has to wait for.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::Ordering;
use crate::sync::thread;
use crate::time::Clock;
use crate::topologies::redlock::monitor::NodeMonitorShared;
use crate::topologies::redlock::node::{Voter, VotingNode};

/// How long one connection of a server that is opened late may take.
const LATE_CONNECT: Duration = Duration::from_secs(1);

/// Tells of the outcome, also when the thread panics.
struct Opening {
    shared: Arc<NodeMonitorShared>,
    node: usize,
    opened: Option<Result<Voter>>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        let ended =
            || Err(Error::new(ErrorKind::Resource, "connect", "the thread that connected ended early"));
        let opened = self.opened.take().unwrap_or_else(ended);
        if self.shared.is_stopped() {
            opened.into_iter().for_each(|member| member.store.close());
            return;
        }
        if !self.shared.arrivals.add(self.node, opened) {
            self.shared.wake();
        }
    }
}

impl NodeMonitorShared {
    /// Has a thread connect to a server, which is among the arrivals then.
    pub(super) fn begin_to_open(self: &Arc<Self>, node: usize, connect_timeout: Duration) {
        self.begin(node, move |node| (node.open)(connect_timeout));
    }

    fn begin(
        self: &Arc<Self>,
        node: usize,
        open: impl FnOnce(&VotingNode) -> Result<Voter> + Send + 'static,
    ) {
        let Some(its) = self.nodes.get(node) else { return };
        its.is_opening.store(true, Ordering::SeqCst);
        let opening = Opening { shared: Arc::clone(self), node, opened: None };
        let open = move || {
            let mut opening = opening;
            opening.opened = opening.shared.nodes.get(node).map(open);
        };
        // Without a thread it is dropped, which says so.
        drop(thread::Builder::new().name("leasehold-member".to_owned()).spawn(open));
    }

    pub(super) fn begin_to_open_late(self: &Arc<Self>, node: usize) {
        self.begin(node, |node| {
            let member = (node.open)(LATE_CONNECT)?;
            let noted = member.noted(Clock::System.after(LATE_CONNECT));
            noted.inspect_err(|_| member.store.close()).map(|()| member)
        });
    }

    /// Takes into use what was not there when the client was made and has arrived, unless the client is still
    /// being made.
    pub(super) fn take_arrivals(&self) {
        for (at, opened) in self.arrivals.take(false) {
            let Some(node) = self.nodes.get(at) else { continue };
            let opened = opened.and_then(|member| match self.twin_of(at, &member) {
                Some(twin) => {
                    member.store.close();
                    Err(same_server(&twin.place, &node.place))
                }
                None => Ok(member),
            });
            match opened {
                Ok(member) => {
                    self.report_doubts(node, &member);
                    node.join(member);
                    self.look_again.store(true, Ordering::SeqCst);
                }
                Err(error) => {
                    let words = format!("{} cannot be used yet: {}", node.place, error.detail());
                    if node.stays_away(error) {
                        self.warn(words);
                    }
                }
            }
            node.is_opening.store(false, Ordering::SeqCst);
        }
    }

    fn twin_of(&self, at: usize, member: &Voter) -> Option<&VotingNode> {
        let is_twin = |other: &VotingNode| {
            other.member().is_some_and(|other| is_one_server(&other.identity, &member.identity))
        };
        self.nodes
            .iter()
            .enumerate()
            .find(|(other, node)| *other != at && is_twin(node))
            .map(|(_, node)| node)
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
