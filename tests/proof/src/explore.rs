//! Visits all reachable states once, breadth first.

use std::collections::HashSet;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

pub trait World: Clone {
    type Action: Clone + Debug;

    fn actions(&self) -> Vec<Self::Action>;

    fn act(&self, action: &Self::Action) -> Self;

    /// What is wrong in this state; `None` if nothing is.
    fn wrong(&self) -> Option<String>;

    /// A text that identifies this state. States that differ only in the present time have the same text.
    fn key(&self) -> String;
}

#[derive(Debug)]
pub struct Explored {
    pub states: usize,
    pub steps: usize,
    pub deepest: usize,
    /// What is wrong in the first bad state, and the actions that led there.
    pub wrong: Option<(String, Vec<String>)>,
    /// Whether the exploration ended early, at the maximum number of states.
    pub is_cut: bool,
}

fn digest(key: &str) -> u128 {
    let half = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        key.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

/// Visits all states that are reachable from `start`, at most `most`. Stops at the first bad state.
pub fn explore<W: World>(start: W, most: usize) -> Explored {
    let mut seen = HashSet::from([digest(&start.key())]);
    // For each state: the state before it, and the action between them.
    let mut ways: Vec<(usize, Option<W::Action>)> = vec![(0, None)];
    let mut explored = Explored { states: 1, steps: 0, deepest: 0, wrong: None, is_cut: false };
    let mut queue = VecDeque::from([(start, 0, 0)]);
    while let Some((world, index, depth)) = queue.pop_front() {
        explored.deepest = explored.deepest.max(depth);
        for action in world.actions() {
            explored.steps += 1;
            let next = world.act(&action);
            if !seen.insert(digest(&next.key())) {
                continue;
            }
            explored.states += 1;
            ways.push((index, Some(action)));
            let next_index = ways.len() - 1;
            if let Some(words) = next.wrong() {
                explored.wrong = Some((words, way_to(&ways, next_index)));
                return explored;
            }
            if explored.states >= most {
                explored.is_cut = true;
                return explored;
            }
            queue.push_back((next, next_index, depth + 1));
        }
    }
    explored
}

fn way_to<A: Debug>(ways: &[(usize, Option<A>)], mut index: usize) -> Vec<String> {
    let mut words = Vec::new();
    while let Some((before, Some(action))) = ways.get(index) {
        words.push(format!("{action:?}"));
        index = *before;
    }
    words.reverse();
    words
}
