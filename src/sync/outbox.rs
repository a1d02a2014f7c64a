//! Bytes for a socket that many threads write to, one at a time and never under the mutex.
//!
//! A thread adds bytes under the state's mutex and then calls [`Outbox::flush`], which writes as much as the
//! socket takes at once. The reading thread writes the rest, since a full socket may mean that the server
//! first wants its answers read. Therefore no writer waits for a server that reads nothing.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::sync::MutexGuard;

const PIECE: usize = 64 * 1024;

/// Bytes still to be written; the first request may be half written.
#[derive(Default)]
pub(crate) struct Outbox {
    bytes: VecDeque<u8>,
    is_writing: bool,
    /// Whether another thread added bytes, or learned that the socket has room, during a write.
    again: bool,
}

impl Outbox {
    pub(crate) fn extend(&mut self, bytes: impl IntoIterator<Item = u8>) {
        self.bytes.extend(bytes);
    }

    #[cfg(any(test, feature = "zookeeper"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Starts over, for another connection or none. A thread in [`flush`](Self::flush) that still writes to
    /// the old connection notices the change under the mutex, and leaves these fields alone.
    pub(crate) fn reset(&mut self) {
        *self = Outbox::default();
    }

    /// Writes as much as the socket takes at once. `parts` finds the connection, if any, and its outbox in
    /// the locked state; `write` runs without the mutex. After an error other than `WouldBlock` the outbox is
    /// empty, and the caller ends the connection.
    pub(crate) fn flush<T, S>(
        state: &mut MutexGuard<'_, T>,
        parts: for<'a> fn(&'a mut T) -> (Option<&'a Arc<S>>, &'a mut Outbox),
        write: impl Fn(&S, &[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        loop {
            let (Some(stream), outbox) = parts(state) else { return Ok(()) };
            // A thread that is writing checks `again` under the mutex after its write, and writes once more.
            outbox.again |= outbox.is_writing;
            if outbox.is_writing || outbox.bytes.is_empty() {
                return Ok(());
            }
            let stream = Arc::clone(stream);
            let piece: Vec<u8> = outbox.bytes.iter().take(PIECE).copied().collect();
            (outbox.is_writing, outbox.again) = (true, false);
            let written = MutexGuard::unlocked(state, || write(&stream, &piece));
            let (now, outbox) = parts(state);
            if !now.is_some_and(|now| Arc::ptr_eq(now, &stream)) {
                return Ok(()); // after `reset`: the bytes here are for another connection
            }
            outbox.is_writing = false;
            match written {
                Ok(count) => drop(outbox.bytes.drain(..count.min(piece.len()))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !outbox.again {
                        return Ok(());
                    }
                }
                Err(error) => {
                    outbox.clear();
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use super::*;
    use crate::sync::Mutex;

    /// A socket whose first writes fail with `results`, and which then takes one byte a write.
    struct Socket {
        /// Runs during the next write, without the mutex.
        meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
        results: Mutex<VecDeque<io::ErrorKind>>,
        taken: Mutex<Vec<u8>>,
    }

    impl Socket {
        fn new(results: &[io::ErrorKind]) -> Arc<Socket> {
            Arc::new(Socket {
                meanwhile: Mutex::new(None),
                results: Mutex::new(results.iter().copied().collect()),
                taken: Mutex::default(),
            })
        }

        fn write(&self, bytes: &[u8]) -> io::Result<usize> {
            let meanwhile = self.meanwhile.lock().take();
            meanwhile.into_iter().for_each(|happens| happens());
            let result = self.results.lock().pop_front();
            if let Some(kind) = result {
                return Err(kind.into());
            }
            self.taken.lock().extend(bytes.first());
            Ok(1)
        }

        fn taken(&self) -> Vec<u8> {
            self.taken.lock().clone()
        }
    }

    #[derive(Default)]
    struct State {
        socket: Option<Arc<Socket>>,
        outbox: Outbox,
    }

    fn state(socket: &Arc<Socket>, bytes: &[u8]) -> Arc<Mutex<State>> {
        let mut state = State { socket: Some(Arc::clone(socket)), ..State::default() };
        state.outbox.extend(bytes.iter().copied());
        Arc::new(Mutex::new(state))
    }

    fn flush(state: &Mutex<State>) -> io::Result<()> {
        Outbox::flush(&mut state.lock(), |state| (state.socket.as_ref(), &mut state.outbox), Socket::write)
    }

    #[test]
    fn a_full_socket_blocks_no_writer() {
        let socket = Socket::new(&[io::ErrorKind::WouldBlock]);
        let state = state(&socket, b"abc");
        flush(&state).unwrap();
        assert_eq!(socket.taken(), b"");
        flush(&state).unwrap();
        assert_eq!(socket.taken(), b"abc");
        assert!(state.lock().outbox.is_empty());
    }

    #[test]
    fn the_writing_thread_also_writes_bytes_added_meanwhile() {
        let socket = Socket::new(&[io::ErrorKind::WouldBlock]);
        let state = state(&socket, b"a");
        let shared = Arc::clone(&state);
        *socket.meanwhile.lock() = Some(Box::new(move || {
            shared.lock().outbox.extend(*b"b");
            flush(&shared).unwrap();
        }));
        flush(&state).unwrap();
        assert_eq!(socket.taken(), b"ab");
    }

    #[test]
    fn a_late_writer_does_not_touch_the_next_connection() {
        for results in [&[][..], &[io::ErrorKind::BrokenPipe]] {
            let (old, new) = (Socket::new(results), Socket::new(&[]));
            let state = state(&old, b"a");
            let (shared, next) = (Arc::clone(&state), Arc::clone(&new));
            *old.meanwhile.lock() = Some(Box::new(move || {
                let mut state = shared.lock();
                state.socket = Some(next);
                state.outbox.reset();
                state.outbox.extend(*b"xy");
            }));
            flush(&state).unwrap();
            assert_eq!(new.taken(), b"");
            flush(&state).unwrap();
            assert_eq!(new.taken(), b"xy");
        }
    }

    #[test]
    fn a_socket_error_empties_the_outbox() {
        let socket = Socket::new(&[io::ErrorKind::BrokenPipe]);
        let state = state(&socket, b"abc");
        assert_eq!(flush(&state).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(state.lock().outbox.is_empty());
        state.lock().outbox.extend(*b"d");
        flush(&state).unwrap();
        assert_eq!(socket.taken(), b"d");
    }
}
