//! Connects to the servers, to each on a thread of its own, so that a slow one does not delay the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::reporter::Reporter;
use crate::seam::{Failure, Store};
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, thread};
use crate::time::{Clock, Moment};
use crate::topologies::redlock::Redlock;
use crate::topologies::redlock::monitor::NodeMonitor;
use crate::topologies::redlock::node::{Voter, VotingNode};
use crate::topologies::redlock::votes::{Votes, majority};

impl Redlock {
    /// Connects to the nodes. Fewer than half of them may be unreachable or unusable (a replica, or a server
    /// with another password); such a node joins later. Once a majority has connected, the call waits for the
    /// others for as long as the majority took, but at least for a node's time-out.
    pub(crate) fn connect(
        nodes: Vec<VotingNode>,
        node_timeout: Duration,
        connect_timeout: Duration,
        reporter: &Arc<Reporter>,
    ) -> Result<Redlock> {
        let monitor = NodeMonitor::start(nodes, node_timeout, reporter)?;
        let redlock = Redlock { monitor, pauses: Mutex::default() };
        let opened = redlock.open_all(connect_timeout);
        redlock.join_all(opened).inspect_err(|_| redlock.close())?;
        redlock.monitor.service.wake();
        Ok(redlock)
    }

    /// Connects to all servers. Returns each one's outcome, or `None` for one that has not answered.
    fn open_all(&self, connect_timeout: Duration) -> Vec<Option<Result<()>>> {
        let (nodes, begun) = (&self.monitor.nodes, Clock::System.now());
        (0..nodes.len()).for_each(|at| self.monitor.begin(at, move |node| (node.open)(connect_timeout)));
        let mut opened = self.monitor.opened.lock();
        let mut wait_until = Moment::NEVER;
        loop {
            let now = Clock::System.now();
            let count = opened.iter().flatten().flatten().filter(|one| one.is_ok()).count();
            if wait_until == Moment::NEVER && count >= majority(nodes.len()) {
                wait_until = now.plus(now.since(begun).max(self.monitor.node_timeout));
            }
            if now >= wait_until || opened.iter().flatten().all(Option::is_some) {
                return opened.take().unwrap_or_default();
            }
            self.monitor.has_opened.wait_for(&mut opened, wait_until.since(now));
        }
    }

    fn join_all(&self, opened: Vec<Option<Result<()>>>) -> Result<()> {
        let nodes = &self.monitor.nodes;
        let (mut fatal, mut tolerable) = (None, None);
        let late = || Err(Error::new(ErrorKind::TimedOut, "connect", "it has not answered yet"));
        let opened = opened.into_iter().map(|one| one.unwrap_or_else(late).map_err(Failure::Refused));
        let votes = Votes(opened.collect());
        for (node, answer) in nodes.iter().zip(&votes.0) {
            if let Err(failure) = answer
                && let error = failure.error()
                && !error.is_silence()
                && error.kind() != ErrorKind::Busy
            {
                let words = format!("{}: {}", node.place, error.detail());
                let refusal = Error::new(error.kind(), "connect", words).with_source(error.copy());
                let of = if excludes_server(error) { &mut fatal } else { &mut tolerable };
                of.get_or_insert(refusal);
            }
        }
        let twins = nodes.iter().enumerate().find_map(|(at, node)| {
            let twin = self.monitor.twin_of(at, node.member.get()?)?;
            Some(same_server(&node.place, &twin.place))
        });
        let too_few = votes.done().count() < votes.majority();
        if let Some(error) = twins.or(fatal).or(tolerable.filter(|_| too_few)) {
            return Err(error);
        }
        if too_few {
            let answer =
                votes.too_few::<()>("connect", &self.monitor.places(), false, |()| "connected".to_owned());
            return answer.map_err(Failure::into_error);
        }
        for member in nodes.iter().filter_map(|node| node.member.get()) {
            member.store_format(Clock::System.after(self.monitor.node_timeout))?;
        }
        if nodes.len().is_multiple_of(2) {
            let all = nodes.len();
            self.monitor.warn(format!(
                "Redlock on {all} servers survives the loss of no more servers than on {}: use an odd number",
                all - 1
            ));
        }
        for (node, answer) in nodes.iter().zip(votes.0) {
            if let Some(member) = node.member.get() {
                self.monitor.report_doubts(node, member);
            }
            if let Err(failure) = answer {
                let error = failure.into_error();
                self.monitor.warn(format!("{} cannot be used yet: {}", node.place, error.detail()));
                self.monitor.put_out(node, &error, None);
            }
        }
        Ok(())
    }
}

/// Whether the server can never be part of this Redlock: then connecting fails even with a majority.
fn excludes_server(error: &Error) -> bool {
    use ErrorKind::{IncompatibleFormat, InvalidInput, TooOld, Unsupported};
    matches!(error.kind(), InvalidInput | IncompatibleFormat | TooOld | Unsupported)
}

const LATE_CONNECT: Duration = Duration::from_secs(1);

impl NodeMonitor {
    fn begin(self: &Arc<Self>, at: usize, open: impl FnOnce(&VotingNode) -> Result<Voter> + Send + 'static) {
        let Some(its) = self.nodes.get(at) else { return };
        its.is_opening.store(true, Ordering::SeqCst);
        let ended =
            || Err(Error::new(ErrorKind::Resource, "connect", "the thread that connected ended early"));
        let monitor = Arc::clone(self);
        let open = move || {
            let opened = catch_unwind(AssertUnwindSafe(|| monitor.nodes.get(at).map(open)));
            monitor.note_opened(at, opened.ok().flatten().unwrap_or_else(ended));
        };
        if thread::Builder::new().name("leasehold-member".to_owned()).spawn(open).is_err() {
            self.note_opened(at, ended());
        }
    }

    pub(super) fn begin_to_open_late(self: &Arc<Self>, node: usize) {
        self.begin(node, |node| {
            let member = (node.open)(LATE_CONNECT)?;
            let noted = member.store_format(Clock::System.after(LATE_CONNECT));
            noted.inspect_err(|_| member.store.close()).map(|()| member)
        });
    }

    /// Takes the server into use if `opened` is a connection, else notes the error. Refuses a server that
    /// another node has reached under another address; during `Redlock::connect`, `join_all` does that.
    fn note_opened(&self, at: usize, opened: Result<Voter>) {
        let Some(node) = self.nodes.get(at) else { return };
        let mut first = self.opened.lock();
        let twin = |member: &Voter| self.twin_of(at, member).filter(|_| first.is_none());
        let opened = opened.and_then(|member| match twin(&member) {
            Some(twin) => {
                member.store.close();
                Err(same_server(&twin.place, &node.place))
            }
            None => Ok(member),
        });
        if let Some(place) = first.as_mut().and_then(|all| all.get_mut(at)) {
            *place = Some(opened.map(|member| node.join(member)));
            self.has_opened.notify_all();
        } else {
            match opened {
                Ok(member) => {
                    self.report_doubts(node, &member);
                    node.join(member);
                    self.renew_early.store(true, Ordering::SeqCst);
                }
                Err(error) => {
                    let words = format!("{} cannot be used yet: {}", node.place, error.detail());
                    if node.stays_away(error) {
                        self.warn(words);
                    }
                }
            }
        }
        node.is_opening.store(false, Ordering::SeqCst);
        // If the client was closed meanwhile, nothing else would close the new store.
        if let Some(member) = node.member.get().filter(|_| self.service.is_stopped()) {
            member.store.close();
        }
        self.service.wake();
    }

    fn twin_of(&self, at: usize, member: &Voter) -> Option<&VotingNode> {
        let is_twin = |other: &VotingNode| {
            other.member.get().is_some_and(|other| is_one_server(&other.identity, &member.identity))
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
