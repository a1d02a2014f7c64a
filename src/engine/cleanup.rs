//! The work that waits for the watchdog: claims in doubt, and holds to renew.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::Hold;
use crate::seam::Claim;
use crate::time::Moment;

/// The pause after a failed clean-up: the least at first, then doubled up to a thirtieth of the lease, or the
/// most.
pub(crate) const RETRY_LEAST: Duration = Duration::from_millis(10);
pub(crate) const RETRY_MOST: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) renewals: Vec<Arc<Hold>>,
    pub(crate) cleanups: Vec<Cleanup>,
}

/// A request of unknown outcome, to be undone or repeated until that is certain.
#[derive(Debug)]
pub(crate) struct Cleanup {
    pub(crate) claim: Claim,
    /// The request can have no effect that outlives this: what it may have set ends with its lease. If the
    /// store says that it does not ([`outlasts_leases`](crate::seam::capabilities::Capabilities)), the store
    /// has to answer as well.
    pub(crate) until: Moment,
    /// Before this the owner is to hold what it may hold, also where the client ends sooner.
    pub(crate) from: Moment,
    pub(crate) next: Moment,
    /// How long to pause after the next failure. Others may be waiting for just this, so at first not long:
    /// what broke the request in doubt has often broken this connection too, and a new one does it.
    pub(crate) pause: Duration,
    /// How often the owner was found to hold nothing. Each time the next look is after twice as long: the
    /// longer a request has not come, the less likely it comes, and at worst what it sets ends with its
    /// lease.
    pub(crate) looks: u32,
}
