//! How scripts notify waiters.

/// By which commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PublishMode {
    /// By PUBLISH.
    Plain,
    /// By SPUBLISH.
    Sharded,
    /// By both.
    Both,
}
