//! The trait of stores that can be nodes of a ring: requests that a node carries out only under a given mark.
//!
//! A mark is a version of the ring. A node stores the newest mark that it knows. An attempt names a mark, and
//! the node compares the two in the same step, so no client with an older version acquires a lock. Stores do
//! not interpret marks; they only compare them.

use std::time::Duration;

use crate::ident::derived::Part;
use crate::seam::{Answer, Attempt, Claim, Store};
use crate::time::Moment;

/// The key of a node's mark. No lock can have this name.
pub(crate) const MARK_KEY: &str = Part::RingMark.text();

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Marked<T> {
    Under(T),
    /// The node did nothing, because it has this other mark; empty: it has no mark.
    Other(String),
}

/// The state of a lock on the node to which its name belonged before the ring changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Probe {
    Free {
        /// The last fencing token granted on that node; zero: none.
        fence: u64,
    },
    Busy {
        retry_after: Option<Duration>,
    },
}

pub(crate) trait RingMember: Store {
    fn has_mark(&self, mark: &str, deadline: Moment) -> Answer<Marked<()>> {
        self.set_mark(mark, mark, deadline)
    }

    /// Replaces the mark `expected` by `new`; an empty text stands for no mark.
    fn set_mark(&self, expected: &str, new: &str, deadline: Moment) -> Answer<Marked<()>>;

    /// As [`Store::attempt`] with count one. A new token is larger than `fence`.
    fn attempt_under(
        &self,
        mark: &str,
        claim: &Claim,
        fence: u64,
        deadline: Moment,
    ) -> Answer<Marked<Attempt>>;

    fn probe_under(&self, mark: &str, claim: &Claim, deadline: Moment) -> Answer<Marked<Probe>>;
}
