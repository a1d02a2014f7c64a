//! Replies as they come from a socket.
//!
//! What scripts answer is always of the same few shapes, and those are read here: the redis crate's parser takes a
//! fifth of all that a client does for a lock. Everything else (refusals, other shapes) is cut out whole and left to it.

use std::io::{self, Read};

use redis::{ErrorKind, RedisResult, Value, parse_redis_value};

/// So much is asked of the socket at once.
const CHUNK: usize = 8 * 1024;

/// What has been read of a connection and not been used.
#[derive(Default)]
pub(super) struct Replies {
    bytes: Vec<u8>,
    /// How many of `bytes` have been used.
    used: usize,
    /// What the socket writes to.
    chunk: Box<[u8]>,
}

/// What replies, and the parts of one, begin with.
const KINDS: &[u8] = b"+-:_#,($=!*~>%|";

/// Why there is no value.
enum Not {
    /// Bytes are missing.
    Whole,
    /// It has another shape than ours.
    Ours,
}

impl Replies {
    /// Whether all that has been read has been used.
    pub(super) fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    /// The next reply of what has been read, if it is whole.
    pub(super) fn ready(&mut self) -> RedisResult<Option<Value>> {
        let bytes = self.bytes.get(self.used..).unwrap_or_default();
        let mut cursor = Cursor(bytes);
        let value = match cursor.reply() {
            Ok(value) => Some(value),
            Err(Not::Whole) => None,
            Err(Not::Ours) => match whole(bytes)? {
                Some((reply, rest)) => {
                    cursor = Cursor(rest);
                    Some(parse_redis_value(reply)?)
                }
                None => None,
            },
        };
        if value.is_some() {
            self.used = self.bytes.len() - cursor.0.len();
        }
        Ok(value)
    }

    /// The next reply; what has come of it is kept if `from` fails.
    pub(super) fn next(&mut self, mut from: impl Read) -> RedisResult<Value> {
        loop {
            if let Some(value) = self.ready()? {
                return Ok(value);
            }
            self.bytes.drain(..self.used);
            self.used = 0;
            if self.chunk.is_empty() {
                self.chunk = vec![0; CHUNK].into();
            }
            match from.read(&mut self.chunk)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                read => self.bytes.extend_from_slice(self.chunk.get(..read).unwrap_or_default()),
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    /// A first byte and the rest of its line. What cannot begin a reply is not waited for to end.
    fn line(&mut self) -> Result<(u8, &'a [u8]), Not> {
        let (kind, after) = self.0.split_first().ok_or(Not::Whole)?;
        if !KINDS.contains(kind) {
            return Err(Not::Ours);
        }
        let end = after.windows(2).position(|pair| pair == b"\r\n").ok_or(Not::Whole)?;
        let (line, rest) = after.split_at_checked(end).ok_or(Not::Whole)?;
        self.0 = rest.get(2..).unwrap_or_default();
        Ok((*kind, line))
    }

    /// So many bytes and the end of a line.
    fn bulk(&mut self, length: usize) -> Result<&'a [u8], Not> {
        let (bulk, rest) = self.0.split_at_checked(length).ok_or(Not::Whole)?;
        match rest.split_at_checked(2) {
            Some((b"\r\n", rest)) => {
                self.0 = rest;
                Ok(bulk)
            }
            Some(_) => Err(Not::Ours),
            None => Err(Not::Whole),
        }
    }

    fn reply(&mut self) -> Result<Value, Not> {
        if self.0.first() != Some(&b'*') {
            return self.single();
        }
        let (_, line) = self.line()?;
        let Some(length) = number(line).and_then(|length| usize::try_from(length).ok()) else {
            return Err(Not::Ours);
        };
        // What is claimed is not believed.
        let mut items = Vec::with_capacity(length.min(4));
        for _ in 0..length {
            items.push(self.single()?);
        }
        Ok(Value::Array(items))
    }

    /// Goes past a reply of any shape.
    fn skip(&mut self) -> Result<(), Not> {
        // How many parts are still to come.
        let mut left: u64 = 1;
        while left > 0 {
            let (kind, line) = self.line()?;
            let length = || number(line).map(|length| u64::try_from(length).unwrap_or(0)).ok_or(Not::Ours);
            left -= 1;
            match kind {
                b'$' | b'=' | b'!' if !line.starts_with(b"-") => {
                    self.bulk(usize::try_from(length()?).unwrap_or(usize::MAX))?;
                }
                b'*' | b'~' | b'>' => left = left.saturating_add(length()?),
                b'%' => left = left.saturating_add(length()?.saturating_mul(2)),
                // Followed by what they are attributes of.
                b'|' => left = left.saturating_add(length()?.saturating_mul(2)).saturating_add(1),
                _ => {}
            }
        }
        Ok(())
    }

    fn single(&mut self) -> Result<Value, Not> {
        let (kind, line) = self.line()?;
        match (kind, number(line)) {
            (b':', Some(number)) => Ok(Value::Int(number)),
            (b'$', Some(-1)) => Ok(Value::Nil),
            (b'$', Some(length)) => {
                let length = usize::try_from(length).map_err(|_negative| Not::Ours)?;
                self.bulk(length).map(|bulk| Value::BulkString(bulk.to_vec()))
            }
            _ => Err(Not::Ours),
        }
    }
}

fn number(line: &[u8]) -> Option<i64> {
    std::str::from_utf8(line).ok()?.parse().ok()
}

/// The first reply of `bytes`, whatever it is, and what follows it; `None`: it is not whole.
fn whole(bytes: &[u8]) -> RedisResult<Option<(&[u8], &[u8])>> {
    let mut cursor = Cursor(bytes);
    match cursor.skip() {
        Ok(()) => Ok(bytes.split_at_checked(bytes.len() - cursor.0.len())),
        Err(Not::Whole) => Ok(None),
        Err(Not::Ours) => Err((ErrorKind::Parse, "not a reply").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[&str] = &[
        "*1\r\n$7\r\ngranted\r\n",
        "*2\r\n$7\r\ngranted\r\n$4\r\n1234\r\n",
        "*2\r\n$4\r\nbusy\r\n:-1\r\n",
        "*0\r\n",
        "*-1\r\n",
        "$-1\r\n",
        "$0\r\n\r\n",
        "$5\r\na\r\nb\n\r\n",
        ":42\r\n",
        "+OK\r\n",
        "+PONG\r\n",
        "-NOSCRIPT No matching script.\r\n",
        "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
        "*2\r\n*1\r\n:1\r\n$-1\r\n",
        "*2\r\n+OK\r\n-ERR in a transaction\r\n",
        "%1\r\n$1\r\na\r\n:1\r\n",
        "_\r\n",
        "#t\r\n",
    ];

    /// Gives out so many bytes at a time, and in between that nothing is there.
    struct Drip<'a>(&'a [u8], usize, bool);

    impl Read for Drip<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.2 = !self.2;
            if self.2 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let (now, later) = self.0.split_at(self.1.min(self.0.len()));
            into[..now.len()].copy_from_slice(now);
            self.0 = later;
            Ok(now.len())
        }
    }

    #[test]
    fn replies_are_what_the_redis_crate_makes_of_them_however_they_come() {
        let all: String = ALL.concat();
        for step in [1, 2, 3, 7, 50, 10_000] {
            let mut from = Drip(all.as_bytes(), step, false);
            let mut replies = Replies::default();
            for text in ALL {
                let reply = loop {
                    match replies.next(&mut from) {
                        Err(error) if error.is_timeout() => {}
                        other => break other,
                    }
                };
                assert_eq!(reply.unwrap(), parse_redis_value(text.as_bytes()).unwrap(), "{text:?} by {step}");
            }
            let end = loop {
                match replies.next(&mut from) {
                    Err(error) if error.is_timeout() => {}
                    other => break other,
                }
            };
            assert!(end.unwrap_err().is_connection_dropped());
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        for text in
            ["\r\n", "\x16\x03", "hello\r\n", "*x\r\n", "$x\r\nab\r\n", "*2\r\nHTTP/1.1 400", "$1\r\nabc\r\n"]
        {
            let error = Replies::default().next(text.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Parse, "{text:?}: {error}");
        }
    }
}
