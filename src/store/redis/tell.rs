//! How scripts tell those who wait.

use super::script::{Request, Script};

/// By which commands, on what kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tell {
    /// By PUBLISH, on one server.
    Alone,
    /// By PUBLISH, on a member of a cluster.
    Plain,
    /// By SPUBLISH.
    Sharded,
    /// By both.
    Both,
}

impl Tell {
    /// A request that runs `script` on a lock, with the arguments that `with` adds.
    ///
    /// In a cluster the channel is the last argument: among the keys it would be one that never exists, for which a
    /// server refuses the script as long as the slot moves.
    pub(super) fn on(
        self,
        script: &'static Script,
        lock: &str,
        channel: &str,
        with: impl FnOnce(Request) -> Request,
    ) -> Request {
        match self {
            Tell::Alone => with(script.on(&[lock, channel])),
            Tell::Plain | Tell::Sharded | Tell::Both => with(script.on(&[lock])).arg(channel),
        }
    }
}
