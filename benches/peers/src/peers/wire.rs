//! The best possible rate of threads that share a connection: they send only leasehold's two requests.
//!
//! A thread sends its release only together with its next acquire, and waits for the answer to the acquire.
//! Requests that come during a write go with the next write. One thread reads all answers.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

use anyhow::{Context, Result};

use super::raw::{Raw, whole};
use crate::drive::{Peer, Session};

pub struct Wire {
    raw: Raw,
    connection: Arc<Connection>,
}

struct Connection {
    socket: TcpStream,
    out: Mutex<Out>,
}

#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    is_writing: bool,
    /// For each request without an answer, in order: the thread that waits for it, if one does.
    awaited: VecDeque<Option<Arc<Waiter>>>,
}

struct Waiter {
    thread: Thread,
    is_answered: AtomicBool,
}

struct WireSession {
    connection: Arc<Connection>,
    packed: Vec<(Vec<u8>, Vec<u8>)>,
    waiter: Arc<Waiter>,
    unsent_release: Option<usize>,
}

impl Wire {
    pub fn connect(url: &str) -> Result<Wire> {
        let raw = Raw::learn(url)?;
        let connection = Arc::new(Connection { socket: raw.socket()?, out: Mutex::default() });
        let read = Arc::clone(&connection);
        thread::spawn(move || read.wake_answered());
        Ok(Wire { raw, connection })
    }
}

impl Connection {
    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_answered(&self) {
        let (mut buffer, mut length) = (vec![0; 1 << 16], 0);
        while let Ok(read @ 1..) = (&self.socket).read(buffer.get_mut(length..).unwrap_or_default()) {
            length += read;
            let (mut end, mut answers) = (0, 0);
            while let Some(next) = buffer.get(end..length).and_then(whole) {
                end += next;
                answers += 1;
            }
            buffer.copy_within(end..length, 0);
            length -= end;
            let answered: Vec<_> = self.out().awaited.drain(..answers).flatten().collect();
            for waiter in answered {
                waiter.is_answered.store(true, Ordering::Release);
                waiter.thread.unpark();
            }
        }
    }

    fn write<'a>(&'a self, mut out: MutexGuard<'a, Out>) -> Result<()> {
        out.is_writing = true;
        while !out.bytes.is_empty() {
            let bytes = std::mem::take(&mut out.bytes);
            drop(out);
            (&self.socket).write_all(&bytes)?;
            out = self.out();
        }
        out.is_writing = false;
        Ok(())
    }
}

impl Peer for Wire {
    fn session(&self, names: &[String]) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(WireSession {
            connection: Arc::clone(&self.connection),
            packed: self.raw.packed(names),
            waiter: Arc::new(Waiter { thread: thread::current(), is_answered: AtomicBool::new(false) }),
            unsent_release: None,
        }))
    }
}

impl Session for WireSession {
    fn lock(&mut self, key: usize) -> Result<()> {
        let (acquire, _) = self.packed.get(key).context("no such key")?;
        let mut out = self.connection.out();
        if let Some((_, release)) = self.unsent_release.take().and_then(|last| self.packed.get(last)) {
            out.bytes.extend_from_slice(release);
            out.awaited.push_back(None);
        }
        out.bytes.extend_from_slice(acquire);
        out.awaited.push_back(Some(Arc::clone(&self.waiter)));
        if !out.is_writing {
            self.connection.write(out)?;
        } else {
            drop(out);
        }
        while !self.waiter.is_answered.swap(false, Ordering::Acquire) {
            thread::park();
        }
        Ok(())
    }

    fn unlock(&mut self, key: usize) -> Result<()> {
        self.unsent_release = Some(key);
        Ok(())
    }
}
