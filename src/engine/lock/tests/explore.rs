//! Explores all states of a world, breadth first. States with the same fingerprint count as one.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::world::{Action, Setup, World};

pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) is_whole: bool,
    pub(super) violation: Option<Violation>,
}

/// A broken property, and the actions from the first state to it.
pub(super) struct Violation {
    pub(super) what: String,
    pub(super) way: Vec<Action>,
}

/// The states so far, each with the first action that led to it.
struct Known {
    by_fingerprint: HashMap<u64, usize>,
    ways: Vec<(usize, Action)>,
    /// Pairs `(to, from)`: one action leads from the state `from` to the state `to`.
    edges: Vec<(usize, usize)>,
    ends: Vec<usize>,
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

pub(super) fn explore(setup: &Setup, most: usize) -> Explored {
    let first = World::new(setup);
    let by_fingerprint = HashMap::from([(fingerprint(&first), 0)]);
    let mut known =
        Known { by_fingerprint, ways: vec![(0, Action::Tick)], edges: Vec::new(), ends: Vec::new() };
    let mut frontier = vec![(0, first)];
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (at, world) in frontier {
            if let Err(violation) = known.step(setup, at, &world, &mut next) {
                return Explored { states: known.ways.len(), is_whole: false, violation: Some(violation) };
            }
            if known.ways.len() >= most {
                return Explored { states: known.ways.len(), is_whole: false, violation: None };
            }
        }
        frontier = next;
    }
    Explored { states: known.ways.len(), is_whole: true, violation: known.endless() }
}

/// A random walk to the end of a world that has too many states to explore. Changes the `seed`.
pub(super) fn walk(setup: &Setup, seed: &mut u64) -> Option<Violation> {
    let (mut world, mut way) = (World::new(setup), Vec::new());
    while !world.is_done() {
        let actions = world.actions(setup);
        let at = random(seed) % actions.len();
        // Makes faults rare. Otherwise all faults would come at the beginning of each walk.
        if actions[at].is_fault() && !random(seed).is_multiple_of(8) {
            continue;
        }
        way.push(actions[at]);
        let outcome = world.apply(setup, actions[at]);
        let outcome = if way.len() < 20_000 { outcome } else { Err("this way has no end".to_owned()) };
        if let Err(what) = outcome {
            return Some(Violation { what, way });
        }
    }
    None
}

pub(super) fn random(seed: &mut u64) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed >> 8) as usize
}

impl Known {
    fn step(
        &mut self,
        setup: &Setup,
        at: usize,
        world: &World,
        next: &mut Vec<(usize, World)>,
    ) -> Result<(), Violation> {
        let is_done = world.is_done();
        if is_done {
            self.ends.push(at);
        }
        let mut moves = false;
        for action in world.actions(setup) {
            let mut after = world.clone();
            after.apply(setup, action).map_err(|what| self.violation(what, at, Some(action)))?;
            let new = self.ways.len();
            let to = *self.by_fingerprint.entry(fingerprint(&after)).or_insert(new);
            if to != at {
                self.edges.push((to, at));
                moves |= !matches!(action, Action::Stray(_));
            }
            if to == new {
                self.ways.push((at, action));
                next.push((new, after));
            }
        }
        if moves || is_done {
            Ok(())
        } else {
            Err(self.violation("nothing moves any more".to_owned(), at, None))
        }
    }

    /// A state from which no path leads to the end of all threads and a free lock.
    fn endless(&mut self) -> Option<Violation> {
        self.edges.sort_unstable();
        let mut ends = vec![false; self.ways.len()];
        let mut todo = self.ends.clone();
        todo.iter().for_each(|at| ends[*at] = true);
        while let Some(at) = todo.pop() {
            let begin = self.edges.partition_point(|(to, _)| *to < at);
            for (_, before) in self.edges[begin..].iter().take_while(|(to, _)| *to == at) {
                if !std::mem::replace(&mut ends[*before], true) {
                    todo.push(*before);
                }
            }
        }
        let at = ends.iter().position(|ends| !ends)?;
        Some(self.violation("this state leads to no end".to_owned(), at, None))
    }

    fn violation(&self, what: String, mut at: usize, last: Option<Action>) -> Violation {
        let mut way: Vec<Action> = last.into_iter().collect();
        while at != 0 {
            let (before, action) = self.ways[at];
            way.push(action);
            at = before;
        }
        way.reverse();
        Violation { what, way }
    }
}

impl Violation {
    pub(super) fn print(&self, setup: &Setup) {
        let mut world = World::new(setup);
        for action in &self.way {
            let outcome = world.apply(setup, *action);
            eprintln!("{action:?}: {outcome:?}, {:?}", world.store);
            world.clients.iter().for_each(|client| eprintln!("    {:?} {:?}", client.lock, client.users));
        }
    }
}
