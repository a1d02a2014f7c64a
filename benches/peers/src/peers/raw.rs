//! The best possible rate of leasehold: each thread repeats the requests of one lock and unlock on a bare
//! socket.
//!
//! The two requests are recorded by MONITOR while leasehold acquires and releases a lock on the same server.
//! Therefore scripts and arguments are always the library's own.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use leasehold::LockClient;
use uuid::Uuid;

use crate::drive::{Peer, Session};
use crate::monitor::Monitor;
use crate::server::{self, Control, pack};

pub struct Raw {
    address: String,
    /// The placeholder for the lock's name in the requests `acquire` and `release`.
    probe: String,
    acquire: Vec<Vec<u8>>,
    release: Vec<Vec<u8>>,
}

struct RawSession {
    socket: TcpStream,
    packed: Vec<(Vec<u8>, Vec<u8>)>,
    buffer: Vec<u8>,
    length: usize,
}

impl Raw {
    pub fn learn(url: &str) -> Result<Raw> {
        let probe = format!("probe-{}", Uuid::new_v4());
        let mut control = Control::connect(url)?;
        let mut monitor = Monitor::start(url)?;
        let client = LockClient::connect(url)?;
        let lock = client.get_lock(&probe);
        for _ in 0..3 {
            lock.lock()?;
            lock.unlock()?;
        }
        let heard = monitor.take(&mut control)?;
        client.shutdown()?;
        let requests: Vec<Vec<Vec<u8>>> = heard
            .into_iter()
            .filter(|request| {
                request.first().is_some_and(|word| word.eq_ignore_ascii_case(b"evalsha"))
                    && request.iter().any(|word| contains(word, probe.as_bytes()))
            })
            .collect();
        let [.., acquire_before, release_before, acquire, release] = requests.as_slice() else {
            bail!("leasehold sent {} scripts for three cycles", requests.len());
        };
        ensure!(
            acquire.get(1) == acquire_before.get(1)
                && release.get(1) == release_before.get(1)
                && acquire.get(1) != release.get(1),
            "leasehold's requests are not one script to lock and one to unlock: {requests:?}"
        );
        let raw =
            Raw { address: server::address(url)?, probe, acquire: acquire.clone(), release: release.clone() };
        raw.prove(&mut control)?;
        Ok(raw)
    }

    /// Checks that the two recorded requests acquire and release the lock.
    fn prove(&self, control: &mut Control) -> Result<()> {
        let name = format!("{}-proof", self.probe);
        let mut session = self.connect(std::slice::from_ref(&name))?;
        session.lock(0)?;
        ensure!(control.exists(&name)?, "the overheard request to lock does not lock");
        session.unlock(0)?;
        ensure!(!control.exists(&name)?, "the overheard request to unlock does not unlock");
        Ok(())
    }

    pub(super) fn socket(&self) -> Result<TcpStream> {
        let socket = TcpStream::connect(&self.address)?;
        socket.set_nodelay(true)?;
        Ok(socket)
    }

    /// The requests that acquire and release each lock, as bytes to send.
    pub(super) fn packed(&self, names: &[String]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let pack = |request, name: &String| pack(&self.for_name(request, name));
        names.iter().map(|name| (pack(&self.acquire, name), pack(&self.release, name))).collect()
    }

    fn connect(&self, names: &[String]) -> Result<RawSession> {
        let (socket, packed) = (self.socket()?, self.packed(names));
        Ok(RawSession { socket, packed, buffer: vec![0; 4096], length: 0 })
    }

    fn for_name(&self, request: &[Vec<u8>], name: &str) -> Vec<Vec<u8>> {
        request.iter().map(|word| replace(word, self.probe.as_bytes(), name.as_bytes())).collect()
    }
}

impl Peer for Raw {
    fn session(&self, names: &[String]) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self.connect(names)?))
    }
}

impl RawSession {
    fn exchange(&mut self, key: usize, release: bool) -> Result<()> {
        let (acquire_packed, release_packed) = self.packed.get(key).context("no such key")?;
        self.socket.write_all(if release { release_packed } else { acquire_packed })?;
        self.length = 0;
        loop {
            let free = self.buffer.get_mut(self.length..).context("a reply beyond the buffer")?;
            let read = self.socket.read(free)?;
            ensure!(read > 0, "the server closed the connection");
            self.length += read;
            let reply = self.buffer.get(..self.length).context("a reply beyond the buffer")?;
            if whole(reply) == Some(self.length) {
                ensure!(!reply.starts_with(b"-"), "refused: {}", String::from_utf8_lossy(reply));
                return Ok(());
            }
        }
    }
}

impl Session for RawSession {
    fn lock(&mut self, key: usize) -> Result<()> {
        self.exchange(key, false)
    }

    fn unlock(&mut self, key: usize) -> Result<()> {
        self.exchange(key, true)
    }
}

/// The length of the reply at the start of `bytes`, once the reply is complete.
pub(super) fn whole(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || std::str::from_utf8(bytes.get(1..line - 2)?).ok()?.parse::<i64>().ok();
    match bytes.first()? {
        b'$' => match usize::try_from(number()?) {
            Ok(length) => (bytes.len() >= line + length + 2).then_some(line + length + 2),
            Err(_) => Some(line),
        },
        b'*' => {
            let mut end = line;
            for _ in 0..number()?.max(0) {
                end += whole(bytes.get(end..)?)?;
            }
            Some(end)
        }
        _ => Some(line),
    }
}

fn contains(word: &[u8], part: &[u8]) -> bool {
    word.windows(part.len()).any(|window| window == part)
}

fn replace(word: &[u8], part: &[u8], by: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = word;
    while let Some(at) = rest.windows(part.len()).position(|window| window == part) {
        let (before, from) = rest.split_at(at);
        out.extend_from_slice(before);
        out.extend_from_slice(by);
        rest = from.get(part.len()..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::{replace, whole};

    #[test]
    fn a_reply_is_complete_once_its_last_byte_arrives() {
        let reply = b"*2\r\n$5\r\nfreed\r\n:0\r\n";
        assert_eq!(whole(reply), Some(reply.len()));
        for end in 0..reply.len() {
            assert_eq!(whole(&reply[..end]), None, "{end}");
        }
        assert_eq!(whole(b"$-1\r\n"), Some(5));
        assert_eq!(whole(b"+OK\r\n"), Some(5));
    }

    #[test]
    fn every_occurrence_of_a_byte_string_is_replaced() {
        assert_eq!(replace(b"channel:{ab}ab", b"ab", b"xyz"), b"channel:{xyz}xyz");
    }
}
