//! Reads replies from a socket.
//!
//! The few shapes in which scripts answer are parsed here: the redis crate's parser would take a fifth of the
//! processor time of an acquire and release. That crate parses all other replies, such as errors.

use std::io::{self, Read};

use redis::{Value, parse_redis_value};

const CHUNK: usize = 8 * 1024;

#[derive(Default)]
pub(crate) struct Replies {
    bytes: Vec<u8>,
    used: usize,
    seen: Seen,
    chunk: Box<[u8]>,
}

const KINDS: &[u8] = b"+-:_#,($=!*~>%|";

enum Not {
    Whole,
    Ours,
    TooLong,
}

/// The longest reply accepted. Most replies have less than a kilobyte, a page of a listing tens of kilobytes.
const LONGEST: usize = 1024 * 1024;
const LONGEST_NUMBER: usize = 20;

/// The error for bytes that are no reply. [`unread`](super::connection::unread) recognizes it by its kind.
fn no_reply(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, words)
}

fn too_long() -> io::Error {
    no_reply("the server's reply is too long to be one of ours")
}

fn foreign() -> io::Error {
    no_reply("the server does not speak Redis's protocol; check host and port")
}

impl Replies {
    pub(crate) fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    pub(crate) fn ready(&mut self) -> io::Result<Option<Value>> {
        let bytes = self.bytes.get(self.used..).unwrap_or_default();
        if self.seen == Seen::default() {
            let mut cursor = Cursor(bytes);
            if let Ok(value) = cursor.reply() {
                self.used = self.bytes.len() - cursor.0.len();
                return Ok(Some(value));
            }
        }
        let Some(end) = self.seen.end(bytes)? else { return Ok(None) };
        let reply = bytes.get(..end).unwrap_or_default();
        let value = match Cursor(reply).reply() {
            Ok(value) => value,
            Err(_of_another_shape) => parse_redis_value(reply).map_err(|_no_reply| foreign())?,
        };
        self.seen = Seen::default();
        self.used += end;
        Ok(Some(value))
    }

    /// Reads the next reply. If reading fails, the bytes read so far are kept for the next call.
    pub(crate) fn next(&mut self, mut from: impl Read) -> io::Result<Value> {
        loop {
            if !self.is_empty()
                && let Some(value) = self.ready()?
            {
                return Ok(value);
            }
            self.fill(&mut from)?;
        }
    }

    pub(crate) fn fill(&mut self, mut from: impl Read) -> io::Result<()> {
        self.bytes.drain(..self.used);
        self.used = 0;
        if self.bytes.len() > LONGEST {
            return Err(too_long());
        }
        if self.chunk.is_empty() {
            self.chunk = vec![0; CHUNK].into();
        }
        // A signal interrupts a read, for example when a child process ends. This counts as a time-out.
        let read = from.read(&mut self.chunk).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => io::ErrorKind::WouldBlock.into(),
            _ => error,
        });
        match read? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.bytes.extend_from_slice(self.chunk.get(..read).unwrap_or_default());
                Ok(())
            }
        }
    }
}

/// How far an incomplete reply has been scanned, so that no byte is scanned twice.
#[derive(PartialEq, Eq)]
struct Seen {
    at: usize,
    /// The number of parts (elements of arrays) still to scan, including the present one.
    left: u64,
    /// The index at which the next search for the end of the present part's line begins.
    searched: usize,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { at: 0, left: 1, searched: 0 }
    }
}

impl Seen {
    fn end(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        while self.left > 0 {
            match self.part(bytes) {
                Ok(()) => {}
                Err(Not::Whole) => return Ok(None),
                Err(Not::Ours) => return Err(foreign()),
                Err(Not::TooLong) => return Err(too_long()),
            }
        }
        Ok(Some(self.at))
    }

    fn part(&mut self, bytes: &[u8]) -> Result<(), Not> {
        let rest = bytes.get(self.at..).unwrap_or_default();
        let (kind, after) = rest.split_first().ok_or(Not::Whole)?;
        if !KINDS.contains(kind) {
            return Err(Not::Ours);
        }
        let unseen = self.searched.saturating_sub(self.at + 1);
        let Some(found) = end_of_line(after.get(unseen..).unwrap_or_default()) else {
            self.searched = bytes.len().saturating_sub(1); // the last byte may be a CR whose LF is missing
            return Err(Not::Whole);
        };
        let line = after.get(..unseen + found).unwrap_or_default();
        // Until all announced bytes have come, each read parses this line again, so it must be short.
        let length = || {
            let length = number(line).filter(|_| line.len() <= LONGEST_NUMBER).ok_or(Not::Ours)?;
            Ok(u64::try_from(length).unwrap_or(0))
        };
        let (mut end, mut more) = (self.at + 1 + line.len() + 2, 0);
        match kind {
            b'$' | b'=' | b'!' if !line.starts_with(b"-") => {
                let length = usize::try_from(length()?).unwrap_or(usize::MAX);
                if length > LONGEST {
                    return Err(Not::TooLong);
                }
                end += length + 2;
                match bytes.get(end - 2..end) {
                    Some(b"\r\n") => {}
                    Some(_) => return Err(Not::Ours),
                    None => return Err(Not::Whole),
                }
            }
            b'*' | b'~' | b'>' => more = length()?,
            b'%' => more = length()?.saturating_mul(2),
            // The reply that an attribute describes follows it, and is one more part to read.
            b'|' => more = length()?.saturating_mul(2).saturating_add(1),
            _ => {}
        }
        self.at = end;
        self.left = (self.left - 1).saturating_add(more);
        Ok(())
    }
}

fn end_of_line(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == b"\r\n")
}

#[derive(Clone, Copy)]
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    /// Takes a line: its kind (the first byte) and the rest. An unknown kind is refused at once.
    fn line(&mut self) -> Result<(u8, &'a [u8]), Not> {
        let (kind, after) = self.0.split_first().ok_or(Not::Whole)?;
        if !KINDS.contains(kind) {
            return Err(Not::Ours);
        }
        let end = end_of_line(after).ok_or(Not::Whole)?;
        let (line, rest) = after.split_at_checked(end).ok_or(Not::Whole)?;
        self.0 = rest.get(2..).unwrap_or_default();
        Ok((*kind, line))
    }

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
        // The length is only claimed by the server, so it does not decide how much is allocated.
        let mut items = Vec::with_capacity(length.min(4));
        for _ in 0..length {
            items.push(self.single()?);
        }
        Ok(Value::Array(items))
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

    /// Gives `.1` bytes at every other read, and none at the reads between. `.2`: the last read got none.
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

    fn next(replies: &mut Replies, from: &mut impl Read) -> io::Result<Value> {
        loop {
            match replies.next(&mut *from) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    #[test]
    fn replies_are_parsed_as_the_redis_crate_parses_them() {
        let all: String = ALL.concat();
        for step in [1, 2, 3, 7, 50, 10_000] {
            let mut from = Drip(all.as_bytes(), step, false);
            let mut replies = Replies::default();
            for text in ALL {
                let reply = next(&mut replies, &mut from);
                assert_eq!(reply.unwrap(), parse_redis_value(text.as_bytes()).unwrap(), "{text:?} by {step}");
            }
            assert_eq!(next(&mut replies, &mut from).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    /// If each read scanned the reply from its beginning, this test would take minutes.
    #[test]
    fn a_slow_long_reply_is_parsed_in_linear_time() {
        const LENGTH: usize = 300_000;
        for text in [
            format!("+{}\r\n", "x".repeat(LENGTH)),
            format!("-{}\r\n", "x".repeat(LENGTH)),
            format!("${LENGTH}\r\n{}\r\n", "x".repeat(LENGTH)),
            format!("*{}\r\n{}", LENGTH / 4, ":1\r\n".repeat(LENGTH / 4)),
            format!("*2\r\n+OK\r\n${LENGTH}\r\n{}\r\n", "\r\n".repeat(LENGTH / 2)),
        ] {
            let mut from = Drip(text.as_bytes(), 1, true);
            let mut replies = Replies::default();
            let reply = loop {
                from.2 = true; // so that the next read finds bytes
                match replies.next(&mut from) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    other => break other,
                }
            };
            assert_eq!(reply.unwrap(), parse_redis_value(text.as_bytes()).unwrap());
        }
    }

    #[test]
    fn a_too_long_reply_is_refused_before_its_end() {
        let endless = vec![b'x'; 2 * LONGEST];
        for (begins, most) in
            [("+", LONGEST + 2 * CHUNK), ("*9\r\n+", LONGEST + 2 * CHUNK), ("$1048577\r\n", CHUNK)]
        {
            let text = [begins.as_bytes(), &endless].concat();
            let mut from = text.as_slice();
            let error = Replies::default().next(&mut from).unwrap_err();
            assert_eq!(error.to_string(), too_long().to_string(), "{begins:?}");
            assert!(text.len() - from.len() <= most, "{begins:?}: {} bytes", text.len() - from.len());
        }
    }

    #[test]
    fn malformed_replies_are_errors() {
        for text in
            ["\r\n", "\x16\x03", "hello\r\n", "*x\r\n", "$x\r\nab\r\n", "*2\r\nHTTP/1.1 400", "$1\r\nabc\r\n"]
        {
            let error = Replies::default().next(text.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), foreign().to_string(), "{text:?}");
        }
    }
}

#[cfg(all(test, leasehold_fuzz))]
mod fuzz {
    use super::*;
    use crate::fuzz::{each, nearly};

    const SEEDS: &[&[u8]] = &[
        b"*1\r\n$7\r\ngranted\r\n*2\r\n$4\r\nbusy\r\n:-1\r\n",
        b"*3\r\n$5\r\nfreed\r\n:-1\r\n$6\r\ndenied\r\n*2\r\n$7\r\ngranted\r\n$16\r\n1700000000000001\r\n",
        b"+OK\r\n-ERR no\r\n:42\r\n$-1\r\n*-1\r\n_\r\n#t\r\n,1.5\r\n(123\r\n",
        b"%2\r\n$1\r\na\r\n:1\r\n+b\r\n*1\r\n:2\r\n~1\r\n:1\r\n>2\r\n+message\r\n+x\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*0\r\n=5\r\ntxt:a\r\n|1\r\n+a\r\n+b\r\n:1\r\n",
    ];

    /// All replies in these bytes, read in pieces of `at_a_time` bytes, and whether reading then failed.
    fn all(bytes: &[u8], at_a_time: usize) -> (Vec<String>, bool) {
        let mut replies = Replies::default();
        let mut found = Vec::new();
        for piece in bytes.chunks(at_a_time) {
            let mut piece = piece;
            while !piece.is_empty() {
                replies.fill(&mut piece).unwrap();
                loop {
                    match replies.ready() {
                        Ok(Some(value)) => found.push(format!("{value:?}")),
                        Ok(None) => break,
                        Err(_) => return (found, true),
                    }
                }
            }
        }
        (found, false)
    }

    #[test]
    fn splitting_a_reply_does_not_change_its_parsed_value() {
        // Three parses may allocate 10 kB for a byte, 40 times what `each` allows, so a byte counts as 64.
        each(
            nearly(SEEDS),
            |bytes| 64 * bytes.len(),
            |bytes| {
                let whole = all(bytes, bytes.len().max(1));
                assert_eq!(all(bytes, 1), whole);
                assert_eq!(all(bytes, 7), whole);
            },
        );
    }
}
