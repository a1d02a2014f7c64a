//! A client's view of the ring: its nodes, each name's home node, and requests under the ring's marks.
//!
//! A request to one node runs on the caller's thread. Requests to many nodes (renewals, clean-ups, marks) run
//! on a thread for each node, so that a node that hangs delays no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
use crate::seam::ring_member::{Marked, RingMember};
use crate::seam::{Answer, Claim, Failure, Kind};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::channel::{Sender, bounded, unbounded};
use crate::sync::thread::{self, JoinHandle};
use crate::time::{Clock, Moment};
use crate::topologies::ring::plan::{Circle, Ring, RingMark};

pub(super) struct RingView {
    pub(super) ring: Option<Ring>,
    /// Indexed by a claim's `home`. Nodes are never removed, since old ones may have holds.
    pub(super) nodes: Vec<Arc<RingServer>>,
    /// The mark for each node of this ring, or of a ring that it moves from.
    pub(super) marks: Vec<Option<RingMark>>,
    pub(super) circle: Circle,
    pub(super) earlier: Vec<Circle>,
    pub(super) lost: Vec<u32>,
    /// The error that every new grant gets, once this view is stale.
    pub(super) stale: Mutex<Option<Error>>,
}

impl RingView {
    pub(super) fn node(&self, home: u32) -> Option<&Arc<RingServer>> {
        self.nodes.get(usize::try_from(home).ok()?)
    }

    pub(super) fn mark(&self, home: u32) -> Option<&RingMark> {
        self.marks.get(usize::try_from(home).ok()?)?.as_ref()
    }

    /// The nodes other than `home` that were the name's home node in an earlier ring.
    pub(super) fn earlier_homes(&self, name: &str, home: u32) -> Vec<u32> {
        let mut homes: Vec<u32> = self.earlier.iter().map(|circle| circle.home(name)).collect();
        homes.sort_unstable();
        homes.dedup();
        homes.retain(|earlier| *earlier != home && !self.lost.contains(earlier));
        homes
    }

    /// A writer at an old home node must not ask for the read half at the new one: it would wait for itself.
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

/// Runs `ask` under the view's mark on a node; sets the mark first if it is missing and allowed.
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
            // The node did nothing: repeated once it has the mark.
            Ok(Marked::Other(borne)) => settle(view, home, borne, deadline)?,
            Err(failure) => return Ok(Err(failure)),
        }
        if Clock::System.now() >= deadline {
            return Err(not_answering());
        }
    }
}

pub(super) fn settle(view: &RingView, home: u32, mut borne: String, deadline: Moment) -> Result<()> {
    let (Some(node), Some(mark)) = (view.node(home), view.mark(home)) else { return Err(moved_on()) };
    let new = mark.to_string();
    loop {
        mark.may_replace(&borne).inspect_err(|error| note_stale(view, error))?;
        if borne.is_empty() {
            // A new node, or one that lost its data: does another node have a newer ring's mark?
            for (_, other, answer) in survey(view, deadline.min(Clock::System.after(ASIDE))) {
                if let Ok(Marked::Other(borne)) = answer {
                    other.may_replace(&borne).inspect_err(|error| note_stale(view, error))?;
                }
            }
        }
        match node.store.set_mark(&borne, &new, deadline).map_err(Failure::into_error)? {
            Marked::Under(()) => return Ok(()),
            Marked::Other(other) => borne = other,
        }
    }
}

/// How long a node without a mark waits for the others' answers.
const ASIDE: Duration = Duration::from_millis(500);

fn note_stale(view: &RingView, error: &Error) {
    if error.kind() == ErrorKind::StaleRing {
        *view.stale.lock() = Some(error.copy());
    }
}

/// Asks all nodes at the same time whether they have the view's marks; changes nothing.
pub(super) fn survey(view: &RingView, deadline: Moment) -> Vec<(u32, &RingMark, Answer<Marked<()>>)> {
    let members: Vec<(u32, &Arc<RingServer>, &RingMark)> = (0_u32..)
        .zip(view.nodes.iter().zip(&view.marks))
        .filter_map(|(home, (node, mark))| Some((home, node, mark.as_ref()?)))
        .collect();
    let jobs = members.iter().map(|(home, node, mark)| {
        let (store, text) = (Arc::clone(&node.store), mark.to_string());
        (&***node, *home, move || store.bears(&text, deadline))
    });
    // A busy node is still answering another request.
    let mut answers: BTreeMap<u32, _> = on_each(jobs, deadline).into_iter().collect();
    let late = || Err(Failure::Refused(not_answering()));
    members
        .into_iter()
        .map(|(home, _, mark)| (home, mark, answers.remove(&home).flatten().unwrap_or_else(late)))
        .collect()
}

/// Runs each node's job on its thread, all at the same time. Returns the results that come by `until`, with
/// the jobs' keys; `None`: the node is busy.
pub(super) fn on_each<'a, K: Clone + Send + 'static, T: Send + 'static>(
    jobs: impl Iterator<Item = (&'a RingServer, K, impl FnOnce() -> T + Send + 'static)>,
    until: Moment,
) -> Vec<(K, Option<T>)> {
    let (sender, receiver) = unbounded();
    let mut results = Vec::new();
    for (node, key, job) in jobs {
        let (sender, its) = (sender.clone(), key.clone());
        // After `until` no receiver is left.
        if !node.send(Box::new(move || drop(sender.send((its, Some(job())))))) {
            results.push((key, None));
        }
    }
    drop(sender);
    while let Ok(result) = receiver.recv_timeout(until.since(Clock::System.now())) {
        results.push(result);
    }
    results
}

pub(super) fn moved_on() -> Error {
    Error::new(ErrorKind::Busy, "lock", "the ring changed during the request: try again")
}

pub(super) fn not_answering() -> Error {
    Error::new(ErrorKind::TimedOut, "request", "the node has not answered in time")
}

pub(crate) type NodeJob = Box<dyn FnOnce() + Send>;

pub(crate) struct RingServer {
    pub(crate) label: String,
    pub(crate) url: String,
    pub(crate) store: Arc<dyn RingMember>,
    courier: Mutex<NodeThread>,
    /// Set from the hand-over of a job to its end.
    is_busy: Arc<AtomicBool>,
}

/// The node's thread, started for the first job.
enum NodeThread {
    Idle,
    Up(Sender<NodeJob>, JoinHandle<()>),
    Closed,
}

impl RingServer {
    pub(crate) fn new(label: String, url: String, store: Arc<dyn RingMember>) -> RingServer {
        let courier = Mutex::new(NodeThread::Idle);
        RingServer { label, url, store, courier, is_busy: Arc::new(AtomicBool::new(false)) }
    }

    /// Runs `job` on the node's thread; `false`: it is busy, or cannot be started.
    pub(crate) fn send(&self, job: NodeJob) -> bool {
        let mut courier = self.courier.lock();
        if let NodeThread::Idle = *courier {
            let (jobs, orders) = bounded::<NodeJob>(1);
            let is_busy = Arc::clone(&self.is_busy);
            let started = thread::Builder::new().name("leasehold-node".to_owned()).spawn(move || {
                for job in orders.iter() {
                    job();
                    is_busy.store(false, Ordering::SeqCst);
                }
            });
            let Ok(thread) = started else { return false };
            *courier = NodeThread::Up(jobs, thread);
        }
        let NodeThread::Up(jobs, _) = &*courier else { return false };
        if self.is_busy.swap(true, Ordering::SeqCst) {
            return false;
        }
        jobs.try_send(job).is_ok()
    }

    /// Ends the connections and the thread, which finishes a pending request.
    pub(crate) fn close(&self) {
        self.store.close();
        let courier = std::mem::replace(&mut *self.courier.lock(), NodeThread::Closed);
        if let NodeThread::Up(jobs, thread) = courier {
            drop(jobs);
            if !self.is_busy.load(Ordering::SeqCst) && thread.thread().id() != thread::current().id() {
                // The thread never panics; if it did, nothing would be left to do.
                drop(thread.join());
            }
        }
    }
}
