//! The meaning of replies and errors, and the text in a node.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ident::LockName;
use crate::inspect::Location;
use crate::seam::{Answer, Claim, Failure, named};
use crate::stores::zookeeper::jute::{self, code};
use crate::stores::zookeeper::life::Life;
use crate::stores::zookeeper::path::NodeLine;
use crate::time::millis;

pub(super) type Replied = Found<ZooKeeperReply>;
pub(super) type Found<T> = std::result::Result<T, NoReply>;

#[derive(Debug)]
pub(super) struct ZooKeeperReply {
    pub(super) body: Vec<u8>,
    pub(super) life: Arc<Life>,
}

#[derive(Debug)]
pub(super) enum NoReply {
    /// The server refused the request with this code, and changed nothing.
    Code(i32),
    Failed(Failure),
}

impl NoReply {
    /// The failure of a request that was sent and got no reply. The outcome of a write is then unknown.
    pub(super) fn new(error: Error, is_write: bool) -> NoReply {
        NoReply::Failed(if is_write {
            Failure::Unknown(error.with_unknown_outcome())
        } else {
            Failure::Refused(error)
        })
    }

    /// The failure of a request that was not sent, and never will be.
    pub(super) fn refused(error: Error) -> NoReply {
        NoReply::Failed(Failure::Refused(error))
    }
}

impl From<Error> for NoReply {
    /// For a reply that cannot be read: a write may have been carried out.
    fn from(error: Error) -> NoReply {
        NoReply::Failed(Failure::Unknown(error.with_unknown_outcome()))
    }
}

pub(super) fn line_of(children: &ZooKeeperReply) -> Found<NodeLine> {
    Ok(NodeLine::new(jute::children(&children.body)?))
}

/// The reply; `None` if the server answered that the node does not exist.
pub(super) fn if_there<T>(outcome: Found<T>) -> Found<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(NoReply::Code(code::NO_NODE)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The text of a claim's node, which people can read. The owner comes first.
pub(super) fn inscription(claim: &Claim) -> Vec<u8> {
    let Location { host, pid, thread, .. } = Location::here();
    let (owner, lease_ms) = (claim.owner, millis(claim.lease));
    format!("{owner}\nlease_ms={lease_ms}\nhost={host}\npid={pid}\nthread={thread}\n").into_bytes()
}

/// Owner and lease from a node's text. If another program made the node, the text's first line stands for the
/// owner (Curator writes the client's address), or the node's name if that line is empty.
pub(super) fn described(name: &str, data: &[u8]) -> (String, Option<Duration>) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let holder = lines.next().filter(|line| !line.is_empty()).unwrap_or(name).to_owned();
    let lease = lines.find_map(|line| line.strip_prefix("lease_ms=")?.parse().ok());
    (holder, lease.map(Duration::from_millis))
}

pub(super) fn location(data: &[u8]) -> Option<Location> {
    let text = String::from_utf8_lossy(data);
    let said = |what: &str| text.lines().find_map(|line| line.strip_prefix(what)).map(str::to_owned);
    let pid = said("pid=")?.parse().ok()?;
    Some(Location::new(said("host=")?, pid, said("thread=").unwrap_or_default()))
}

pub(super) fn answer<T>(found: Found<T>, action: &'static str, name: &LockName) -> Answer<T> {
    named(found.map_err(|failure| failed(failure, action)), action, name.given())
}

pub(super) fn failed(failure: NoReply, action: &'static str) -> Failure {
    match failure {
        NoReply::Code(code) => Failure::Refused(refusal(code, action)),
        NoReply::Failed(failure) => failure,
    }
}

fn refusal(code: i32, action: &'static str) -> Error {
    let (kind, words) = match code {
        code::NO_AUTH => (ErrorKind::NoPermission, "permission denied by the ACL of a node on the path"),
        code::SESSION_EXPIRED | code::SESSION_MOVED => (ErrorKind::Unreachable, "the session has ended"),
        code::NO_CHILDREN_FOR_EPHEMERALS => {
            (ErrorKind::WrongType, "its parent is an ephemeral node, which cannot have children")
        }
        code::INVALID_ACL | code::AUTH_FAILED => (ErrorKind::Authentication, "the server rejected the login"),
        code::BAD_ARGUMENTS => (ErrorKind::InvalidInput, "the server rejected the name"),
        code::NOT_READ_ONLY => (ErrorKind::ReadOnly, "the server is read-only now"),
        code::QUOTA_EXCEEDED => (ErrorKind::OutOfMemory, "the quota of a node on the path is used up"),
        code::TOO_LONG => (
            ErrorKind::Refused,
            "the server's list of nodes is longer than 8 MiB: spread the names over several prefixes",
        ),
        // The server deletes a lock's path some time after the last node in it. A retry makes the path anew.
        code::NO_NODE => (ErrorKind::Busy, "the lock's path was deleted during the request"),
        _ => return Error::new(ErrorKind::Refused, action, format!("the server refused with error {code}")),
    };
    Error::new(kind, action, words)
}
