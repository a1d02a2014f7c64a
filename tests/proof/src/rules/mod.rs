//! The rules that are in no script, each as a specification of its own: a small world of those who keep it,
//! explored whole, and what must hold in each state. A rule can be broken on purpose, by name; each break
//! must be found.

pub mod batch;
pub mod numbers;
pub mod redlock;
pub mod restored;
pub mod ring;
pub mod session;
pub mod window;

use crate::explore::{Explored, World, explore};

/// More states than any of them has.
const MOST: usize = 12_000_000;

/// One rule.
pub struct Rule {
    pub name: &'static str,
    /// The contents of its world.
    pub words: &'static str,
    /// The ways in which it can be broken, and what is then seen.
    pub breaks: &'static [(&'static str, &'static str)],
    explored: fn(&'static str) -> Explored,
}

impl Rule {
    /// All states, with the rule kept (`""`) or broken so.
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
