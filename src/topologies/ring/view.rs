//! A client's view of the ring: its nodes, each name's home node, and the mark (version) for each node.
//!
//! Batches, and the survey of marks, use one thread for each node, so a node that hangs delays no other.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
use crate::seam::ring_member::{Marked, RingMember};
use crate::seam::{Answer, Capabilities, Claim, Failure, Kind};
use crate::sync::{Mutex, at_once};
use crate::time::{Clock, Moment};
use crate::topologies::ring::plan::{Circle, Ring, RingMark};

#[derive(Default)]
pub(super) struct RingView {
    pub(super) ring: Option<Ring>,
    /// The nodes that this client knows; a claim's `home` is an index of this list. A node stays in the list
    /// after it has left the ring, because it may still have holds.
    pub(super) nodes: Vec<Arc<RingServer>>,
    /// The mark that each node shall store. `None` for nodes that are lost, or in no list of this ring.
    pub(super) marks: Vec<Option<RingMark>>,
    pub(super) circle: Circle,
    pub(super) earlier: Vec<Circle>,
    pub(super) lost: Vec<u32>,
    /// Set when a node has shown that a newer ring exists: each new grant then fails with this error.
    pub(super) stale: Mutex<Option<Error>>,
}

impl RingView {
    pub(super) fn node(&self, home: u32) -> Option<&Arc<RingServer>> {
        self.nodes.get(usize::try_from(home).ok()?)
    }

    pub(super) fn mark(&self, home: u32) -> Option<&RingMark> {
        self.marks.get(usize::try_from(home).ok()?)?.as_ref()
    }

    /// The name's home nodes in the earlier lists, without `home` and without nodes that were declared lost.
    pub(super) fn earlier_homes(&self, name: &str, home: u32) -> Vec<u32> {
        let mut homes: Vec<u32> = self.earlier.iter().map(|circle| circle.home(name)).collect();
        homes.sort_unstable();
        homes.dedup();
        homes.retain(|earlier| *earlier != home && !self.lost.contains(earlier));
        homes
    }

    /// Refuses to read-lock a name at its new home node while the same owner has the write lock at the old
    /// home node, `home`: the owner would wait for itself.
    pub(super) fn refuse_own_writer(&self, home: u32, claim: &Claim, deadline: Moment) -> Result<()> {
        if claim.kind != Kind::Read {
            return Ok(());
        }
        let Some(node) = self.node(home) else { return Ok(()) };
        match node
            .store
            .inspect(Kind::Write, &claim.name, claim.owner, deadline)
            .map_err(Failure::into_error)?
        {
            Some(held) if held.count > 0 => Err(Error::new(
                ErrorKind::WouldDeadlock,
                "lock",
                "this thread still holds the write lock at the node that had the name before the ring changed: release it first",
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn homes(&self, name: &LockName) -> Vec<u32> {
        let home = self.circle.home(name.key());
        let mut homes = self.earlier_homes(name.key(), home);
        homes.push(home);
        homes
    }
}

/// Runs `ask` on the node under the view's mark. First replaces another mark that the node stores, or fails
/// if [`RingMark::may_replace`] forbids it.
pub(super) fn under<T>(
    view: &RingView,
    home: u32,
    deadline: Moment,
    ask: impl Fn(&dyn RingMember, &str) -> Answer<Marked<T>>,
) -> Result<Answer<T>> {
    let (Some(node), Some(mark)) = (view.node(home), view.mark(home)) else { return Err(moved_on()) };
    let text = mark.to_string();
    loop {
        match ask(&*node.store, &text) {
            Ok(Marked::Under(done)) => return Ok(Ok(done)),
            // `Other` means that the node did nothing, so the loop may repeat the request under the new mark.
            Ok(Marked::Other(stored)) => settle(view, home, stored, deadline)?,
            Err(failure) => return Ok(Err(failure)),
        }
        if Clock::System.now() >= deadline {
            return Err(not_answering());
        }
    }
}

pub(super) fn settle(view: &RingView, home: u32, mut stored: String, deadline: Moment) -> Result<()> {
    let (Some(node), Some(mark)) = (view.node(home), view.mark(home)) else { return Err(moved_on()) };
    let new = mark.to_string();
    loop {
        mark.may_replace(&stored).inspect_err(|error| note_stale(view, error))?;
        if stored.is_empty() {
            // A node without a mark is new or has lost its data. So only other nodes can know a newer ring.
            for (_, other, answer) in survey(view, deadline.min(Clock::System.after(SURVEY_LIMIT))) {
                if let Ok(Marked::Other(stored)) = answer {
                    other.may_replace(&stored).inspect_err(|error| note_stale(view, error))?;
                }
            }
        }
        match node.store.set_mark(&stored, &new, deadline).map_err(Failure::into_error)? {
            Marked::Under(()) => return Ok(()),
            Marked::Other(other) => stored = other,
        }
    }
}

/// How long [`settle`] waits for the marks of the other nodes.
const SURVEY_LIMIT: Duration = Duration::from_millis(500);

fn note_stale(view: &RingView, error: &Error) {
    if error.kind() == ErrorKind::StaleRing {
        *view.stale.lock() = Some(error.copy());
    }
}

/// Asks all nodes at the same time whether they have the marks that the view wants. Changes nothing.
pub(super) fn survey(view: &RingView, deadline: Moment) -> Vec<(u32, &RingMark, Answer<Marked<()>>)> {
    let members: Vec<(u32, &Arc<RingServer>, &RingMark)> = (0_u32..)
        .zip(view.nodes.iter().zip(&view.marks))
        .filter_map(|(home, (node, mark))| Some((home, node, mark.as_ref()?)))
        .collect();
    let answers = at_once(&members, |(_, node, mark)| node.store.has_mark(&mark.to_string(), deadline));
    let late = || Err(Failure::Refused(not_answering()));
    let all = members.into_iter().zip(answers);
    all.map(|((home, _, mark), answer)| (home, mark, answer.unwrap_or_else(late))).collect()
}

pub(super) fn moved_on() -> Error {
    Error::new(ErrorKind::Busy, "lock", "the ring changed during the request: try again")
}

pub(super) fn not_answering() -> Error {
    Error::new(ErrorKind::TimedOut, "request", "the node has not answered in time")
}

pub(super) struct RingServer {
    pub(super) label: String,
    pub(super) url: String,
    pub(super) store: Arc<dyn RingMember>,
    pub(super) capabilities: Capabilities,
}
