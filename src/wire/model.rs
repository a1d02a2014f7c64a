//! A socket for models: a queue of bytes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, toss};
use crate::time::Clock;

/// Both ends of a connection: the client reads and writes; on a clone, the model's server calls `answer`.
#[derive(Clone, Default)]
pub(crate) struct Pipe {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Bytes>,
    changed: Condvar,
}

#[derive(Default)]
struct Bytes {
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    closed: bool,
    read_limit: Duration,
}

impl Pipe {
    pub(super) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut state = self.shared.state.lock();
        let deadline = Clock::System.after(state.read_limit);
        loop {
            if !state.to_client.is_empty() {
                let most = buf.len().min(state.to_client.len());
                let count = if toss() { most } else { 1 };
                for (to, from) in buf.iter_mut().zip(state.to_client.drain(..count)) {
                    *to = from;
                }
                return Ok(count);
            }
            if state.closed {
                return Ok(0);
            }
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.shared.changed.wait_for(&mut state, left);
        }
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.shared.state.lock();
        if state.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        state.to_server.extend_from_slice(bytes);
        self.shared.changed.notify_all();
        Ok(bytes.len())
    }

    pub(super) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.shared.state.lock().read_limit = limit.unwrap_or(Duration::MAX);
        Ok(())
    }

    pub(super) fn has_bytes(&self) -> bool {
        let state = self.shared.state.lock();
        state.closed || !state.to_client.is_empty()
    }

    pub(crate) fn shutdown(&self) -> io::Result<()> {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Waits for the client's next byte and answers it. `false` if the connection has ended.
    pub(crate) fn answer(&self, answer: impl FnOnce(u8) -> String) -> bool {
        let mut state = self.shared.state.lock();
        while state.to_server.is_empty() {
            if state.closed {
                return false;
            }
            self.shared.changed.wait(&mut state);
        }
        let asked = state.to_server.remove(0);
        state.to_client.extend_from_slice(answer(asked).as_bytes());
        self.shared.changed.notify_all();
        true
    }
}
