//! Renewals in batches: each request has its own deadline, and the leases that end first go first
//! (docs/decisions/0022-renewals-in-order.md). If the server answers each request in time, no hold is lost.

use super::{Rule, all_of};
use crate::explore::World;

pub const RULE: Rule = Rule {
    name: "batches of renewals",
    words: "four holds with leases of twelve, a server that takes one or two for each renewal, a time-out of three",
    breaks: &[("one deadline for a batch", "lost"), ("never by the end of the lease", "lost")],
    explored: |broken| all_of(Batch::new(broken)),
};

const HOLDS: usize = 4;
const LEASE: u8 = 12;
const TIMEOUT: u8 = 3;
/// A hold is due for a renewal when its remaining time is at most this.
const DUE: u8 = 9;

const ONE_DEADLINE: &str = "one deadline for a batch";

#[derive(Clone, Debug)]
struct Batch {
    broken: &'static str,
    left: [u8; HOLDS],
    /// The request on its way: the hold that it renews, and how long ago it was sent.
    asked: Option<(usize, u8)>,
    /// Used only with `ONE_DEADLINE`: the hold to renew next, and how long ago the batch began.
    batch: (usize, u8),
}

#[derive(Clone, Debug)]
enum Action {
    Begin,
    Answer,
    Tick,
}

impl Batch {
    fn new(broken: &'static str) -> Batch {
        Batch { broken, left: [LEASE; HOLDS], asked: None, batch: (0, 0) }
    }

    fn next(&self) -> Option<usize> {
        let is_due = |at: &usize| self.left[*at] <= DUE;
        match self.broken {
            // Renews all holds in order as soon as one of them is due.
            ONE_DEADLINE => (self.batch.0 > 0 || (0..HOLDS).any(|at| is_due(&at))).then_some(self.batch.0),
            "never by the end of the lease" => (0..HOLDS).find(is_due),
            _ => (0..HOLDS).filter(is_due).min_by_key(|at| self.left[*at]),
        }
    }
}

impl World for Batch {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        match self.asked {
            None if self.next().is_some() => vec![Action::Begin],
            None | Some((_, 0)) => vec![Action::Tick],
            Some((_, 1)) => vec![Action::Tick, Action::Answer],
            Some(_) => vec![Action::Answer],
        }
    }

    fn act(&self, action: &Action) -> Batch {
        let mut next = self.clone();
        match action {
            Action::Begin => next.asked = self.next().map(|at| (at, 0)),
            Action::Answer => {
                let Some((at, age)) = next.asked.take() else { return next };
                let waited = if self.broken == ONE_DEADLINE { self.batch.1 } else { age };
                if waited <= TIMEOUT {
                    next.left[at] = LEASE - age;
                    next.batch.0 = (at + 1) % HOLDS;
                } else {
                    // With `ONE_DEADLINE` the whole batch is sent again if one renewal is answered too late.
                    next.batch.0 = 0;
                }
                if next.batch.0 == 0 || self.broken != ONE_DEADLINE {
                    next.batch = (0, 0);
                }
            }
            Action::Tick => {
                next.left = next.left.map(|left| left.saturating_sub(1));
                if let Some((_, age)) = &mut next.asked {
                    *age += 1;
                    next.batch.1 += u8::from(self.broken == ONE_DEADLINE);
                }
            }
        }
        next
    }

    fn wrong(&self) -> Option<String> {
        self.left.contains(&0).then(|| "lost".to_owned())
    }

    fn key(&self) -> String {
        format!("{:?}", (self.left, self.asked, self.batch))
    }
}
