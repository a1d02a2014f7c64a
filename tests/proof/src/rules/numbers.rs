//! After a request without an answer the thread uses a fresh owner number, and the old one is cleaned up
//! until it certainly holds nothing (docs/decisions/0005-unknown-outcomes.md).

use super::{Rule, all_of};
use crate::explore::World;

pub const RULE: Rule = Rule {
    name: "owner numbers",
    words: "a thread that tries four times, and another client; any request or answer may be late or lost",
    breaks: &[
        ("the number stays after an acquire", "a hold ended by nobody"),
        ("the number stays after a release", "a hold ended by nobody"),
        ("the clean-up ends at the first nothing there", "left behind"),
        ("no clean-up", "left behind"),
    ],
    explored: |broken| all_of(Numbers::new(broken)),
};

const TRIES: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Acquire,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Waits(What),
    Holds,
}

#[derive(Clone, Debug)]
struct Numbers {
    broken: &'static str,
    /// The owner number that holds the lock on the server; [`OTHER`] if the other client holds it.
    server: Option<u8>,
    doing: Doing,
    number: u8,
    tries: u8,
    /// The thread's requests that have not arrived. A waiting thread waits for the last one.
    on_the_way: Vec<(What, u8)>,
    cleanups: Vec<u8>,
}

const OTHER: u8 = 255;

#[derive(Clone, Debug)]
enum Action {
    Acquire,
    Release,
    /// A request arrives for whose answer the thread no longer waits.
    Stray(usize),
    Answered,
    /// The request arrives, but its answer does not.
    Unanswered,
    /// The thread stops waiting for a request that has not arrived.
    GivesUp,
    Clean(u8),
    OtherTakes,
    OtherGives,
}

impl Numbers {
    fn new(broken: &'static str) -> Numbers {
        let doing = Doing::Nothing;
        Numbers {
            broken,
            server: None,
            doing,
            number: 0,
            tries: 0,
            on_the_way: Vec::new(),
            cleanups: Vec::new(),
        }
    }

    fn arrive(&mut self, what: What, number: u8) -> bool {
        match what {
            What::Acquire if self.server.is_none() => self.server = Some(number),
            What::Release if self.server == Some(number) => self.server = None,
            // An owner that already holds the lock is granted it again.
            What::Acquire => return self.server == Some(number),
            What::Release => return false,
        }
        true
    }

    fn unknown(&mut self, what: What) {
        self.doing = Doing::Nothing;
        if self.broken != "no clean-up" {
            self.cleanups.push(self.number);
            self.cleanups.sort_unstable();
            self.cleanups.dedup();
        }
        let stays = match what {
            What::Acquire => "the number stays after an acquire",
            What::Release => "the number stays after a release",
        };
        if self.broken != stays {
            self.number += 1;
        }
    }
}

impl World for Numbers {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut all: Vec<Action> = self.cleanups.iter().map(|number| Action::Clean(*number)).collect();
        let waits = usize::from(matches!(self.doing, Doing::Waits(_)));
        all.extend((0..self.on_the_way.len() - waits).map(Action::Stray));
        match self.doing {
            Doing::Nothing if self.tries < TRIES => all.push(Action::Acquire),
            Doing::Nothing => {}
            Doing::Waits(_) => all.extend([Action::Answered, Action::Unanswered, Action::GivesUp]),
            Doing::Holds => all.push(Action::Release),
        }
        all.push(if self.server == Some(OTHER) { Action::OtherGives } else { Action::OtherTakes });
        all
    }

    fn act(&self, action: &Action) -> Numbers {
        let mut next = self.clone();
        match *action {
            Action::Acquire | Action::Release => {
                let what = if next.doing == Doing::Holds { What::Release } else { What::Acquire };
                next.tries += u8::from(what == What::Acquire);
                next.doing = Doing::Waits(what);
                next.on_the_way.push((what, next.number));
            }
            Action::Stray(at) => {
                let (what, number) = next.on_the_way.remove(at);
                next.arrive(what, number);
            }
            Action::Answered | Action::Unanswered => {
                let Some((what, number)) = next.on_the_way.pop() else { return next };
                let done = next.arrive(what, number);
                match (action, what) {
                    (Action::Unanswered, what) => next.unknown(what),
                    (_, What::Acquire) if done => next.doing = Doing::Holds,
                    _ => next.doing = Doing::Nothing,
                }
            }
            Action::GivesUp => {
                if let Doing::Waits(what) = next.doing {
                    next.unknown(what);
                    let waits = next.on_the_way.len() - 1;
                    next.on_the_way[..=waits].sort_unstable();
                }
            }
            Action::Clean(number) => {
                let is_done = match next.server == Some(number) {
                    true => {
                        next.server = None;
                        true
                    }
                    // A request of this number may still arrive; until then the clean-up is repeated.
                    false => {
                        self.broken == "the clean-up ends at the first nothing there"
                            || next.on_the_way.iter().all(|(_, other)| *other != number)
                    }
                };
                let is_done = is_done
                    && (self.broken == "the clean-up ends at the first nothing there"
                        || next.on_the_way.iter().all(|(_, other)| *other != number));
                if is_done {
                    next.cleanups.retain(|other| *other != number);
                }
            }
            Action::OtherTakes => {
                if next.server.is_none() {
                    next.server = Some(OTHER);
                }
            }
            Action::OtherGives => next.server = None,
        }
        next
    }

    fn wrong(&self) -> Option<String> {
        if self.doing == Doing::Holds && self.server != Some(self.number) {
            return Some("a hold ended by nobody".to_owned());
        }
        let is_quiet = self.on_the_way.is_empty() && self.cleanups.is_empty() && self.doing == Doing::Nothing;
        let is_left = self.server.is_some_and(|number| number != OTHER);
        (is_quiet && is_left).then(|| "left behind".to_owned())
    }

    fn key(&self) -> String {
        format!("{:?}", (self.server, self.doing, self.number, self.tries, &self.on_the_way, &self.cleanups))
    }
}
