//! ZooKeeper's requests and replies in their encoding, jute. A frame is its length in four bytes, then
//! fields, all big-endian. A reply begins with the number of its request, the last transaction, and an error
//! code.

use crate::error::{Error, ErrorKind};

/// The longest frame accepted. Only lists of very many nodes are longer.
pub(super) const LONGEST_FRAME: usize = 8 * 1024 * 1024;

pub(super) const WATCH_EVENT: i32 = -1;
pub(super) const AUTH: i32 = -4;

pub(super) mod code {
    pub(crate) const BAD_ARGUMENTS: i32 = -8;
    pub(crate) const NO_NODE: i32 = -101;
    pub(crate) const NO_AUTH: i32 = -102;
    pub(crate) const NO_CHILDREN_FOR_EPHEMERALS: i32 = -108;
    pub(crate) const NODE_EXISTS: i32 = -110;
    pub(crate) const SESSION_EXPIRED: i32 = -112;
    pub(crate) const INVALID_ACL: i32 = -114;
    pub(crate) const AUTH_FAILED: i32 = -115;
    pub(crate) const SESSION_MOVED: i32 = -118;
    pub(crate) const NOT_READ_ONLY: i32 = -119;
    pub(crate) const QUOTA_EXCEEDED: i32 = -125;
    /// This crate's own code for a reply longer than `LONGEST_FRAME`. ZooKeeper has no such code.
    pub(crate) const TOO_LONG: i32 = i32::MIN;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The node ends with its session. The server appends a growing number to the name.
    EphemeralSequential,
    Ephemeral,
    /// The server deletes the node some time after the last child was deleted.
    Container,
    Persistent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Everyone,
    /// Only clients with the creator's user and password may use the node.
    Creator,
}

#[derive(Debug)]
pub(super) enum Operation<'a> {
    Create {
        path: &'a str,
        data: &'a [u8],
        mode: Mode,
        access: Access,
    },
    SetData(&'a str, &'a [u8]),
    Delete(&'a str),
    Exists(&'a str),
    Watch(&'a str),
    Data(&'a str),
    Children(&'a str),
    WatchChildren(&'a str),
    /// Makes later reads show all that the leader had carried out before this request.
    Sync(&'a str),
    Close,
}

impl Operation<'_> {
    /// Whether the outcome is unknown if no reply arrives.
    pub(super) fn is_write(&self) -> bool {
        matches!(self, Operation::Create { .. } | Operation::SetData(..) | Operation::Delete(_))
    }

    /// Whether the leader carries out the request. Only the leader knows whether the session lives; other
    /// servers answer reads themselves, even while they are cut off.
    pub(super) fn asks_the_leader(&self) -> bool {
        self.is_write() || matches!(self, Operation::Sync(_))
    }

    pub(super) fn frame(&self, number: i32) -> Vec<u8> {
        const ANY_VERSION: i32 = -1;
        const ALL_RIGHTS: i32 = 31;
        let to = Writer::new().int(number);
        let to = match self {
            Operation::Create { path, data, mode, access } => {
                let (operation, flags) = match mode {
                    Mode::Persistent => (15, 0),
                    Mode::Ephemeral => (15, 1),
                    Mode::EphemeralSequential => (15, 3),
                    Mode::Container => (19, 4),
                };
                let (scheme, id) = match access {
                    Access::Everyone => ("world", "anyone"),
                    Access::Creator => ("auth", ""),
                };
                let to = to.int(operation).text(path).buffer(data);
                to.int(1).int(ALL_RIGHTS).text(scheme).text(id).int(flags)
            }
            Operation::Delete(path) => to.int(2).text(path).int(ANY_VERSION),
            Operation::SetData(path, data) => to.int(5).text(path).buffer(data).int(ANY_VERSION),
            Operation::Exists(path) => to.int(3).text(path).flag(false),
            Operation::Watch(path) => to.int(4).text(path).flag(true),
            Operation::Data(path) => to.int(4).text(path).flag(false),
            Operation::Children(path) => to.int(8).text(path).flag(false),
            Operation::WatchChildren(path) => to.int(8).text(path).flag(true),
            Operation::Sync(path) => to.int(9).text(path),
            Operation::Close => to.int(-11),
        };
        to.frame()
    }
}

/// The first message on a connection. `session` is zero for a new session.
pub(super) fn greeting(last_transaction: i64, timeout_ms: i32, session: i64, password: &[u8]) -> Vec<u8> {
    const VERSION: i32 = 0;
    let to = Writer::new().int(VERSION).long(last_transaction).int(timeout_ms).long(session);
    to.buffer(password).flag(false).frame() // accepts no read-only server
}

#[derive(Debug)]
pub(super) struct Welcome {
    /// Zero if the session has expired.
    pub(super) timeout_ms: i32,
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

impl Welcome {
    pub(super) fn read(frame: &[u8]) -> Result<Welcome, Error> {
        let mut from = JuteReader(frame);
        from.int()?;
        Ok(Welcome { timeout_ms: from.int()?, session: from.long()?, password: from.buffer()?.to_vec() })
    }
}

/// The login that [`Access::Creator`] needs.
pub(super) fn authentication(user_and_password: &str) -> Vec<u8> {
    Writer::new().int(AUTH).int(100).int(0).text("digest").buffer(user_and_password.as_bytes()).frame()
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) number: i32,
    pub(super) transaction: i64,
    pub(super) error: i32,
}

impl Header {
    pub(super) const BYTES: usize = 16;

    pub(super) fn read(frame: &[u8]) -> Result<(Header, &[u8]), Error> {
        let mut from = JuteReader(frame);
        let header = Header { number: from.int()?, transaction: from.long()?, error: from.int()? };
        Ok((header, from.0))
    }
}

/// The path of a watch event. Empty for an event about the session.
pub(super) fn watched_path(body: &[u8]) -> Result<String, Error> {
    let mut from = JuteReader(body);
    from.int()?;
    from.int()?;
    from.text()
}

pub(super) fn created(body: &[u8]) -> Result<(String, u64), Error> {
    let mut from = JuteReader(body);
    let path = from.text()?;
    let transaction = from.long()?;
    Ok((path, transaction.unsigned_abs()))
}

pub(super) fn data(body: &[u8]) -> Result<Vec<u8>, Error> {
    JuteReader(body).buffer().map(<[u8]>::to_vec)
}

/// The transaction that created the node, which is the first number after the data.
pub(super) fn maker(body: &[u8]) -> Result<u64, Error> {
    let mut from = JuteReader(body);
    from.buffer()?;
    from.long().map(i64::unsigned_abs)
}

pub(super) fn children(body: &[u8]) -> Result<Vec<String>, Error> {
    let mut from = JuteReader(body);
    let count = from.int()?;
    (0..count).map(|_| from.text()).collect()
}

struct Writer(Vec<u8>);

impl Writer {
    fn new() -> Writer {
        Writer(vec![0; 4]) // replaced by the length
    }

    fn bytes(mut self, bytes: &[u8]) -> Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    fn int(self, value: i32) -> Writer {
        self.bytes(&value.to_be_bytes())
    }

    fn long(self, value: i64) -> Writer {
        self.bytes(&value.to_be_bytes())
    }

    fn flag(self, value: bool) -> Writer {
        self.bytes(&[value.into()])
    }

    fn buffer(self, bytes: &[u8]) -> Writer {
        self.int(i32::try_from(bytes.len()).unwrap_or(i32::MAX)).bytes(bytes)
    }

    fn text(self, text: &str) -> Writer {
        self.buffer(text.as_bytes())
    }

    fn frame(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len().saturating_sub(4)).unwrap_or(u32::MAX).to_be_bytes();
        for (place, byte) in self.0.iter_mut().zip(length) {
            *place = byte;
        }
        self.0
    }
}

struct JuteReader<'a>(&'a [u8]);

impl<'a> JuteReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let Some((taken, rest)) = self.0.split_at_checked(length) else {
            let words = "the server's message is shorter than it says";
            return Err(Error::new(ErrorKind::Protocol, "read", words));
        };
        self.0 = rest;
        Ok(taken)
    }

    fn int(&mut self) -> Result<i32, Error> {
        Ok(self.take(4)?.iter().fold(0, |value, byte| value << 8 | i32::from(*byte)))
    }

    fn long(&mut self) -> Result<i64, Error> {
        Ok(self.take(8)?.iter().fold(0, |value, byte| value << 8 | i64::from(*byte)))
    }

    /// A negative length means no buffer.
    fn buffer(&mut self) -> Result<&'a [u8], Error> {
        let length = self.int()?;
        self.take(usize::try_from(length).unwrap_or(0))
    }

    fn text(&mut self) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(self.buffer()?).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zookeeper_request_begins_with_length_and_request_number() {
        let frame = Operation::Sync("/a").frame(7);
        assert_eq!(frame, [0, 0, 0, 14, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 2, b'/', b'a']);
    }

    #[test]
    fn written_values_are_read_back_unchanged() {
        let frame = Writer::new().int(-101).long(i64::MIN).text("schlüssel").int(-1).frame();
        let mut from = JuteReader(&frame[4..]);
        assert_eq!((from.int().unwrap(), from.long().unwrap()), (-101, i64::MIN));
        assert_eq!((from.text().unwrap().as_str(), from.buffer().unwrap()), ("schlüssel", &b""[..]));
        assert_eq!(from.int().unwrap_err().kind(), ErrorKind::Protocol);
    }

    #[test]
    fn truncated_answers_are_errors() {
        let whole = [0, 0, 0, 2, 0, 0, 0, 1, b'a', 0, 0, 0, 1, b'b'];
        assert_eq!(children(&whole).unwrap(), ["a", "b"]);
        for length in 0..whole.len() {
            assert!(children(&whole[..length]).is_err(), "{length}");
        }
        assert!(children(&[127, 255, 255, 255]).is_err(), "the count exceeds every message");
        assert!(data(&[127, 255, 255, 255, 1]).is_err());
        assert!(Header::read(&[0; 15]).is_err() && Welcome::read(&[0; 19]).is_err());
    }
}

#[cfg(all(test, leasehold_fuzz))]
mod fuzz {
    use super::*;
    use crate::fuzz::{each, nearly};

    const SEEDS: &[&[u8]] = &[
        b"\0\0\0\x07\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\x02\0\0\0\x01a\0\0\0\x01b",
        b"\0\0\0\x02\0\0\0\x01a\0\0\0\x01b",
        b"\0\0\0\0\0\0\x75\x30\0\0\0\0\0\0\0\x09\0\0\0\x10aaaaaaaaaaaaaaaa\0",
        b"\0\0\0\x05/a/b0\0\0\0\0\0\0\x01\0",
        b"\0\0\0\x03\0\0\0\x03\0\0\0\x04/a/b",
    ];

    #[test]
    fn no_server_message_makes_the_reader_panic() {
        each(nearly(SEEDS), Vec::len, |bytes| {
            drop(Header::read(bytes));
            drop(Welcome::read(bytes));
            drop(watched_path(bytes));
            drop(created(bytes));
            drop(data(bytes));
            drop(children(bytes));
        });
    }
}
