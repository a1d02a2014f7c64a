//! How scripts notify waiters.

/// By which commands, on what kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PublishMode {
    /// By PUBLISH, on one server.
    Alone,
    /// By PUBLISH, on a member of a cluster.
    Plain,
    /// By SPUBLISH.
    Sharded,
    /// By both.
    Both,
}
