//! Rules of the library that are in no script. Each is a small world, and what must hold in each of its
//! states. A test explores all states. Each rule has ways to break it, by name, and the exploration must
//! then find a fault.

pub mod batch;
pub mod numbers;
pub mod redlock;
pub mod restored;
pub mod ring;
pub mod session;
pub mod window;

use crate::explore::{Explored, World, explore};

/// The maximum number of states that an exploration visits. No rule has so many.
const MOST: usize = 12_000_000;

pub struct Rule {
    pub name: &'static str,
    pub words: &'static str,
    /// The names of the ways to break the rule, each with the fault that the exploration must then find.
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
