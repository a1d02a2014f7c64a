//! The outcomes of connecting, for the thread that makes the client, and for the monitor after it.

use crate::error::Result;
use crate::sync::{Mutex, Waker};
use crate::topologies::redlock::node::Voter;

#[derive(Default)]
pub(super) struct Arrivals(Mutex<ArrivalsState>);

#[derive(Default)]
struct ArrivalsState {
    arrived: Vec<(usize, Result<Voter>)>,
    /// The thread that makes the client, while it waits for them.
    connector: Option<Waker>,
}

impl Arrivals {
    /// All that arrives is for this thread; `None`: for the monitor.
    pub(super) fn are_for(&self, connector: Option<Waker>) {
        self.0.lock().connector = connector;
    }

    /// Returns whether somebody was woken for it. If not, it is for the monitor.
    pub(super) fn add(&self, node: usize, opened: Result<Voter>) -> bool {
        let mut state = self.0.lock();
        state.arrived.push((node, opened));
        state.connector.as_ref().map(Waker::wake).is_some()
    }

    /// Takes what is for the thread that makes the client, or what is for the monitor.
    pub(super) fn take(&self, for_connector: bool) -> Vec<(usize, Result<Voter>)> {
        let mut state = self.0.lock();
        if state.connector.is_some() == for_connector {
            std::mem::take(&mut state.arrived)
        } else {
            Vec::new()
        }
    }
}
