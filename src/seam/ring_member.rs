//! The seam of stores that can be nodes of a ring: requests under a mark.
//!
//! A node keeps the mark of the newest ring that it knows. An attempt names its mark, and the node compares
//! both within the attempt, so that no attempt by an older ring succeeds. Stores only compare marks.

use std::time::Duration;

use crate::ident::derived::Part;
use crate::seam::{Answer, Attempt, Claim, Store};
use crate::time::Moment;

/// The key of a node's mark; no lock can have this name.
pub(crate) const MARK_KEY: &str = Part::RingMark.text();

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Marked<T> {
    Under(T),
    /// The node did nothing, since its mark is a different one: this text, which is empty without a mark.
    Other(String),
}

/// The state of a name on its former home node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Probe {
    Free {
        /// The last token granted there; zero: none.
        fence: u64,
    },
    Busy {
        retry_after: Option<Duration>,
    },
}

/// A ring's additional requests to its nodes.
pub(crate) trait RingMember: Store {
    fn bears(&self, mark: &str, deadline: Moment) -> Answer<Marked<()>>;

    /// Replaces the mark `expected` by `new`; empty: no mark.
    fn set_mark(&self, expected: &str, new: &str, deadline: Moment) -> Answer<Marked<()>>;

    /// As [`Store::attempt`] with count one. The token is larger than `fence`.
    fn attempt_under(
        &self,
        mark: &str,
        claim: &Claim,
        fence: u64,
        deadline: Moment,
    ) -> Answer<Marked<Attempt>>;

    fn probe_under(&self, mark: &str, claim: &Claim, deadline: Moment) -> Answer<Marked<Probe>>;
}
