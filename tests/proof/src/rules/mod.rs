//! Rules of the library that are in no script. Each is a specification: a small world, all of whose states
//! are explored, and what must hold in each state. A rule can be broken by name, and the exploration must
//! find each break.

pub mod batch;
pub mod numbers;
pub mod redlock;
pub mod restored;
pub mod ring;
pub mod session;
pub mod window;

use crate::explore::{Explored, World, explore};

/// A limit that is larger than the number of states of any rule.
const MOST: usize = 12_000_000;

pub struct Rule {
    pub name: &'static str,
    pub words: &'static str,
    /// The ways to break the rule, and the fault that each leads to.
    pub breaks: &'static [(&'static str, &'static str)],
    explored: fn(&'static str) -> Explored,
}

impl Rule {
    /// Explores all states with the rule intact (`""`) or broken in one way.
    pub fn explored(&self, broken: &'static str) -> Explored {
        assert!(broken.is_empty() || self.breaks.iter().any(|(name, _)| *name == broken), "{broken}");
        (self.explored)(broken)
    }
}

fn all_of<W: World>(start: W) -> Explored {
    explore(start, MOST)
}

pub const RULES: &[Rule] =
    &[window::RULE, numbers::RULE, batch::RULE, redlock::RULE, restored::RULE, ring::RULE, session::RULE];
