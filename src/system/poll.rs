//! Whether sockets are ready, by rustix's `poll`, which both Unix and Windows have.

use std::time::Duration;

pub(crate) use rustix::event::PollFd;
use rustix::event::{PollFlags, Timespec, poll};
pub(crate) use rustix::fd::AsFd;

pub(crate) fn for_bytes(socket: &impl AsFd) -> PollFd<'_> {
    PollFd::new(socket, PollFlags::IN)
}

/// Waits up to `limit` until a socket is ready. `true` after an error too: the next read or write reports it.
pub(crate) fn any_ready(sockets: &mut [PollFd<'_>], limit: Duration) -> bool {
    // One day, because Winsock counts milliseconds in 31 bits: a limit above 24 days would overflow.
    const LONGEST: Duration = Duration::from_secs(24 * 3600);
    let limit = Timespec::try_from(limit.min(LONGEST)).ok();
    !matches!(poll(sockets, limit.as_ref()), Ok(0))
}

#[cfg(windows)]
pub(crate) fn has_bytes(socket: &impl AsFd, limit: Duration) -> bool {
    any_ready(&mut [for_bytes(socket)], limit)
}

pub(crate) fn has_room(socket: &impl AsFd, limit: Duration) -> bool {
    any_ready(&mut [PollFd::new(socket, PollFlags::OUT)], limit)
}
