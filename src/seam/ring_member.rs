//! The seam of stores that can be nodes of a ring: requests that are carried out only under a mark.
//!
//! A node bears the mark of the newest ring that it has got. An attempt names the mark it goes by, and the
//! node compares the two in one step with the attempt, so that none by an older ring can slip in. The meaning
//! of the marks is the ring's business; a store only compares them.

use std::time::Duration;

use crate::ident::derived::Part;
use crate::seam::{Answer, Attempt, Claim, Store};
use crate::time::Moment;

/// The key under which a node keeps its mark; no lock can have this name.
pub(crate) const MARK_KEY: &str = Part::RingMark.text();

/// The outcome of a request that goes by a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Marked<T> {
    /// The node bears that mark, and this came of it.
    Under(T),
    /// The node bears this one, or none if it is empty. Nothing was done.
    Other(String),
}

/// A node's view of a name whose home it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    Free {
        /// The last fence that was given out there; zero if none was, or none was asked for.
        fence: u64,
    },
    Busy {
        /// How long the holder's lease still runs; `None` if it has no end.
        retry_after: Option<Duration>,
    },
}

/// The requests of a ring to its nodes, besides those to every store.
pub(crate) trait RingMember: Store {
    /// Whether the node bears the mark. Changes nothing on it.
    fn bears(&self, mark: &str, deadline: Moment) -> Answer<Marked<()>>;

    /// Puts `new` in the place of the mark `expected`; empty: of none.
    fn set_mark(&self, expected: &str, new: &str, deadline: Moment) -> Answer<Marked<()>>;

    /// As [`Store::attempt`] with count one. A fence is larger than `fence`.
    fn attempt_under(
        &self,
        mark: &str,
        claim: &Claim,
        fence: u64,
        deadline: Moment,
    ) -> Answer<Marked<Attempt>>;

    /// Whether anybody holds what the claim names.
    fn look_under(&self, mark: &str, claim: &Claim, deadline: Moment) -> Answer<Marked<Look>>;
}
