//! A node of the ring, and the thread that talks to it for all holds at once.
//!
//! A request of one caller to one node is sent on that caller's thread. Requests to many nodes (renewals,
//! clean-ups, marks) are sent by a thread of each node, so that one which hangs keeps no other waiting.

use std::fmt;
use std::sync::Arc;

use crate::seam::ring_member::RingMember;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::channel::{Sender, bounded};
use crate::sync::thread::{self, JoinHandle};

pub(crate) type NodeJob = Box<dyn FnOnce() + Send>;

pub(crate) struct RingServer {
    pub(crate) label: String,
    pub(crate) url: String,
    pub(crate) store: Arc<dyn RingMember>,
    courier: Mutex<NodeThread>,
    /// From the giving of a job until it has ended.
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

    /// Has the node's thread do `job`; `false`: it is still at an earlier one, or there can be none.
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

    /// Ends the connections and the thread; one that is at work ends when its request does.
    pub(crate) fn close(&self) {
        self.store.close();
        let courier = std::mem::replace(&mut *self.courier.lock(), NodeThread::Closed);
        if let NodeThread::Up(jobs, thread) = courier {
            drop(jobs);
            if !self.is_busy.load(Ordering::SeqCst) && thread.thread().id() != thread::current().id() {
                // It panics nowhere; if it did, there is nothing left to do about it.
                drop(thread.join());
            }
        }
    }
}

impl fmt::Debug for RingServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("label", &self.label).finish_non_exhaustive()
    }
}
