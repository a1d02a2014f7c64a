//! Whether sockets are ready: the one call of rustix that both systems have.

use std::time::Duration;

pub(crate) use rustix::event::PollFd;
use rustix::event::{PollFlags, Timespec, poll};
pub(crate) use rustix::fd::AsFd;

/// A socket that is asked for bytes, or for the end of its connection.
pub(crate) fn for_bytes(socket: &impl AsFd) -> PollFd<'_> {
    PollFd::new(socket, PollFlags::IN)
}

/// Waits until one of the sockets is ready, for `limit` at most; whether one is. An error is for the read or
/// the write to find.
pub(crate) fn any_ready(sockets: &mut [PollFd<'_>], limit: Duration) -> bool {
    // Winsock counts milliseconds, in 31 bits.
    const LONGEST: Duration = Duration::from_secs(24 * 3600);
    let limit = Timespec::try_from(limit.min(LONGEST)).ok();
    !matches!(poll(sockets, limit.as_ref()), Ok(0))
}

/// The same of one socket, for bytes or the end of its connection.
#[cfg(windows)]
pub(crate) fn has_bytes(socket: &impl AsFd, limit: Duration) -> bool {
    any_ready(&mut [for_bytes(socket)], limit)
}

/// The same of one socket, for room for something to write.
pub(crate) fn has_room(socket: &impl AsFd, limit: Duration) -> bool {
    any_ready(&mut [PollFd::new(socket, PollFlags::OUT)], limit)
}
