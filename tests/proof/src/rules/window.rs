//! The window in which a client counts on a hold begins before the request, and is shorter than the lease. A
//! lost hold stays lost (`src/time.rs`, `src/engine/hold`, `src/engine/acquire/mod.rs`).

use super::{Rule, all_of};
use crate::explore::World;

pub const RULE: Rule = Rule {
    name: "window",
    words: "two clients and a lease of five; requests and answers take any time; the server's clock is ahead by one",
    breaks: &[
        ("counted from the answer", "holds what the server has given up"),
        ("no share for clocks", "holds what the server has given up"),
        ("a grant that comes too late is kept", "holds what the server has given up"),
        ("re-entered after the window", "held again after the loss was told"),
        ("a renewal brings back what was lost", "held again after the loss was told"),
    ],
    explored: |broken| all_of(Window::new(broken)),
};

const LEASE: u8 = 5;
const SHARE: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Acquire,
    Renew,
    Reenter,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    None,
    /// The client counts on the lock for this remaining time.
    Held(u8),
    /// The client no longer counts on the lock, but has not yet released what may remain in the store.
    Lost,
}

#[derive(Clone, Debug)]
struct Client {
    hold: Hold,
    /// Whether the loss of this hold was reported.
    told: bool,
    /// The open request, its age, and the server's answer (granted or not) once the request has arrived.
    asked: Option<(What, u8, Option<bool>)>,
}

#[derive(Clone, Debug)]
struct Window {
    broken: &'static str,
    /// The lock's owner, and its remaining time.
    server: Option<(usize, u8)>,
    /// Whether the server's clock has run ahead in this lease.
    is_ahead: bool,
    clients: [Client; 2],
}

#[derive(Clone, Debug)]
enum Action {
    Send(usize, What),
    Arrive(usize),
    Answer(usize),
    Tick,
    /// The server's clock alone advances.
    Ahead,
}

impl Window {
    fn new(broken: &'static str) -> Window {
        let client = Client { hold: Hold::None, told: false, asked: None };
        Window { broken, server: None, is_ahead: false, clients: [client.clone(), client] }
    }

    fn has(&self, client: usize) -> bool {
        self.server.is_some_and(|(owner, _)| owner == client)
    }

    fn run_down(&mut self) {
        if let Some((_, left)) = &mut self.server {
            *left -= 1;
        }
        self.server = self.server.filter(|(_, left)| *left > 0);
    }

    fn answered(&mut self, at: usize, what: What, age: u8, done: bool) {
        let share = if self.broken == "no share for clocks" { 0 } else { SHARE };
        let age = if self.broken == "counted from the answer" { 0 } else { age };
        let left = (LEASE - share).saturating_sub(age);
        let client = &mut self.clients[at];
        let revives = match what {
            What::Reenter => self.broken == "re-entered after the window",
            _ => self.broken == "a renewal brings back what was lost",
        };
        client.hold = match (what, client.hold, done) {
            (What::Acquire, _, true) => {
                client.told = false;
                match left {
                    0 if self.broken == "a grant that comes too late is kept" => Hold::Held(1),
                    0 => Hold::Lost,
                    left => Hold::Held(left),
                }
            }
            (What::Acquire, hold, false) => hold,
            (What::Renew | What::Reenter, Hold::Held(had), true) => Hold::Held(had.max(left)),
            (What::Renew | What::Reenter, Hold::Lost, true) if revives && left > 0 => Hold::Held(left),
            (What::Renew | What::Reenter, hold, true) => hold,
            (What::Renew | What::Reenter, _, false) => {
                client.told = true;
                Hold::Lost
            }
            (What::Release, ..) => Hold::None,
        };
    }
}

impl World for Window {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut all = vec![Action::Tick];
        if self.server.is_some_and(|(_, left)| left > 0) && !self.is_ahead {
            all.push(Action::Ahead);
        }
        for (at, client) in self.clients.iter().enumerate() {
            match client.asked {
                Some((_, _, None)) => all.push(Action::Arrive(at)),
                Some((_, _, Some(_))) => all.push(Action::Answer(at)),
                None => {
                    let may: &[What] = match client.hold {
                        Hold::None => &[What::Acquire],
                        Hold::Held(_) => &[What::Renew, What::Reenter, What::Release],
                        Hold::Lost if self.broken == "re-entered after the window" => {
                            &[What::Reenter, What::Release]
                        }
                        Hold::Lost => &[What::Release],
                    };
                    all.extend(may.iter().map(|what| Action::Send(at, *what)));
                }
            }
        }
        all
    }

    fn act(&self, action: &Action) -> Window {
        let mut next = self.clone();
        match *action {
            Action::Send(at, what) => {
                // An owner that has sent its release no longer counts on the lock.
                if what == What::Release {
                    next.clients[at].hold = Hold::Lost;
                }
                next.clients[at].asked = Some((what, 0, None));
            }
            Action::Arrive(at) => {
                let Some((what, age, _)) = next.clients[at].asked else { return next };
                let done = match what {
                    What::Acquire => next.server.is_none(),
                    What::Renew | What::Reenter | What::Release => next.has(at),
                };
                if done {
                    next.server = (what != What::Release).then_some((at, LEASE));
                    next.is_ahead = false;
                }
                next.clients[at].asked = Some((what, age, Some(done)));
            }
            Action::Answer(at) => {
                if let Some((what, age, Some(done))) = next.clients[at].asked.take() {
                    next.answered(at, what, age, done);
                }
            }
            Action::Tick => {
                next.run_down();
                for client in &mut next.clients {
                    if let Some((_, age, _)) = &mut client.asked {
                        *age = (*age + 1).min(LEASE);
                    }
                    client.hold = match client.hold {
                        Hold::Held(1) => {
                            client.told = true;
                            Hold::Lost
                        }
                        Hold::Held(left) => Hold::Held(left - 1),
                        hold => hold,
                    };
                }
            }
            Action::Ahead => {
                next.is_ahead = true;
                next.run_down();
            }
        }
        next
    }

    fn wrong(&self) -> Option<String> {
        let holds = |at: usize| matches!(self.clients[at].hold, Hold::Held(_));
        if holds(0) && holds(1) {
            return Some("two hold it".to_owned());
        }
        if (0..2).any(|at| holds(at) && self.clients[at].told) {
            return Some("held again after the loss was told".to_owned());
        }
        (0..2).any(|at| holds(at) && !self.has(at)).then(|| "holds what the server has given up".to_owned())
    }

    fn key(&self) -> String {
        format!("{:?}", (&self.server, self.is_ahead, &self.clients))
    }
}
