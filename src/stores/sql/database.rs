//! How a database is connected to: what a pool needs to know.

use std::time::Duration;

use crate::error::Result;
use crate::time::Moment;

/// How a database is connected to.
pub(super) trait Database: Send + Sync + 'static {
    type Link: Send + 'static;

    /// Whether a new connection may lead to another server. A file stays the same, however old its
    /// connections are.
    const HAS_SERVERS: bool = true;

    fn connect(&self, deadline: Moment) -> Result<Self::Link>;

    /// Whether a request over any connection ends within `span`, by its deadline or by the driver's
    /// time-outs.
    fn ends_within(&self, span: Duration) -> bool {
        let _ = span;
        true
    }

    /// A connection for requests that have as little time as this one, which ends by `deadline`.
    fn connect_briefly(&self, deadline: Moment) -> Result<Self::Link> {
        self.connect(deadline)
    }

    /// Whether a question and a request over such a connection end within `span`.
    fn is_brief(&self, link: &Self::Link, span: Duration) -> bool {
        let _ = (link, span);
        true
    }

    /// Whether a connection that lay idle still stands, as far as can be known without asking the server.
    fn is_alive(&self, link: &mut Self::Link) -> bool;

    /// Whether an answer over the connection did not come in time, whatever became of the request that waited
    /// for it. Such a connection is not used again.
    fn is_silent(&self, _link: &Self::Link) -> bool {
        false
    }

    /// Ends a connection over which a request is in doubt. The server may go on with that request for a long
    /// time, and keep the session for it.
    fn give_up(&self, link: Self::Link);

    /// The server was found to take no writes any more: connections outside the pool are to look too.
    fn note_read_only(&self) {}
}
