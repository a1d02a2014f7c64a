//! A lock on a majority of three independent servers: which votes count, and for how long
//! (docs/decisions/0012-redlock-over-the-seam.md; Antirez, "Distributed locks with Redis").

use super::{Rule, all_of};
use crate::explore::World;

pub const RULE: Rule = Rule {
    name: "Redlock",
    words: "three servers, a client that tries twice and one that tries once, a lease of three; a request to one server may come late; the first server's clock is ahead by one",
    breaks: &[
        ("half is a majority", "two hold it"),
        ("the time of the vote does not count", "held by no majority"),
        ("no share for clocks", "held by no majority"),
        ("the number is used again after a late release", "held by no majority"),
    ],
    explored: |broken| all_of(Redlock::new(broken)),
};

const SERVERS: usize = 3;
const LEASE: u8 = 3;
const SHARE: u8 = 1;
const TRIES: [u8; 2] = [2, 1];

/// An owner: the client, and its owner number.
type Owner = (usize, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Late {
    Acquire,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vote {
    OnTheWay,
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    /// The age of the attempt, and each server's vote.
    Votes(u8, [Vote; SERVERS]),
    /// The client may count on the lock for this time.
    Holds(u8),
}

#[derive(Clone, Debug)]
struct Client {
    doing: Doing,
    number: u8,
    tries: u8,
}

#[derive(Clone, Debug)]
struct Redlock {
    broken: &'static str,
    servers: [Option<(Owner, u8)>; SERVERS],
    clients: [Client; 2],
    /// A request that has not arrived and for which nobody waits, with its owner and server.
    late: Option<(Late, Owner, usize)>,
    lates: u8,
    is_ahead: bool,
}

#[derive(Clone, Debug)]
enum Action {
    Begin(usize),
    /// The client's request arrives at a server, and is answered.
    Vote(usize, usize),
    /// The client stops waiting for a server's answer.
    GivesUp(usize, usize),
    Count(usize),
    /// The client's release reaches all servers, except that a named server gets it late.
    Release(usize, Option<usize>),
    Late,
    Tick,
    Ahead(usize),
}

impl Redlock {
    fn new(broken: &'static str) -> Redlock {
        let client = Client { doing: Doing::Nothing, number: 0, tries: 0 };
        let clients = [client.clone(), client];
        Redlock { broken, servers: [None; SERVERS], clients, late: None, lates: 0, is_ahead: false }
    }

    fn majority(&self) -> usize {
        if self.broken == "half is a majority" { SERVERS / 2 } else { SERVERS / 2 + 1 }
    }

    fn owner(&self, client: usize) -> Owner {
        (client, self.clients[client].number)
    }

    fn may_be_late(&self) -> bool {
        self.late.is_none() && self.lates < 1
    }

    fn give_back(&mut self, client: usize, late: Option<usize>) {
        let owner = self.owner(client);
        for (at, server) in self.servers.iter_mut().enumerate() {
            if late != Some(at) {
                *server = server.filter(|(by, _)| *by != owner);
            }
        }
        if let Some(at) = late {
            self.late = Some((Late::Release, owner, at));
            self.lates += 1;
            if self.broken != "the number is used again after a late release" {
                self.clients[client].number += 1;
            }
        }
        self.clients[client].doing = Doing::Nothing;
    }

    fn run_down(&mut self, at: usize) {
        self.servers[at] =
            self.servers[at].map(|(owner, left)| (owner, left - 1)).filter(|(_, left)| *left > 0);
    }
}

impl World for Redlock {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut all = vec![Action::Tick];
        if self.late.is_some() {
            all.push(Action::Late);
        }
        if !self.is_ahead {
            // The servers are interchangeable, so only the first one's clock may run ahead.
            all.extend(self.servers[0].map(|_| Action::Ahead(0)));
        }
        for (client, Client { doing, tries, .. }) in self.clients.iter().enumerate() {
            match doing {
                Doing::Nothing if *tries < TRIES[client] => all.push(Action::Begin(client)),
                Doing::Nothing => {}
                Doing::Votes(_, votes) => {
                    let open: Vec<usize> = (0..SERVERS).filter(|at| votes[*at] == Vote::OnTheWay).collect();
                    all.extend(open.iter().map(|at| Action::Vote(client, *at)));
                    if self.may_be_late() {
                        all.extend(open.iter().map(|at| Action::GivesUp(client, *at)));
                    }
                    if open.is_empty() {
                        all.push(Action::Count(client));
                    }
                }
                Doing::Holds(_) => {
                    all.push(Action::Release(client, None));
                    if self.may_be_late() {
                        all.extend((0..SERVERS).map(|at| Action::Release(client, Some(at))));
                    }
                }
            }
        }
        all
    }

    fn act(&self, action: &Action) -> Redlock {
        let mut next = self.clone();
        match *action {
            Action::Begin(client) => {
                next.clients[client].tries += 1;
                next.clients[client].doing = Doing::Votes(0, [Vote::OnTheWay; SERVERS]);
            }
            Action::Vote(client, at) => {
                let owner = self.owner(client);
                let is_free = self.servers[at].is_none();
                if is_free {
                    next.servers[at] = Some((owner, LEASE));
                }
                if let Doing::Votes(_, votes) = &mut next.clients[client].doing {
                    votes[at] = if is_free { Vote::Yes } else { Vote::No };
                }
            }
            Action::GivesUp(client, at) => {
                next.late = Some((Late::Acquire, self.owner(client), at));
                next.lates += 1;
                if let Doing::Votes(_, votes) = &mut next.clients[client].doing {
                    votes[at] = Vote::No;
                }
            }
            Action::Count(client) => {
                let Doing::Votes(age, votes) = self.clients[client].doing else { return next };
                let yes = votes.iter().filter(|vote| **vote == Vote::Yes).count();
                let share = if self.broken == "no share for clocks" { 0 } else { SHARE };
                let age = if self.broken == "the time of the vote does not count" { 0 } else { age };
                let left = (LEASE - share).saturating_sub(age);
                if yes >= self.majority() && left > 0 {
                    next.clients[client].doing = Doing::Holds(left);
                } else {
                    next.give_back(client, None);
                    // A late request may still be granted, so the client takes a new owner number.
                    next.clients[client].number += u8::from(self.late.is_some());
                }
            }
            Action::Release(client, late) => next.give_back(client, late),
            Action::Late => match next.late.take() {
                Some((Late::Acquire, owner, at)) if next.servers[at].is_none() => {
                    next.servers[at] = Some((owner, LEASE));
                }
                Some((Late::Release, owner, at)) => {
                    next.servers[at] = next.servers[at].filter(|(by, _)| *by != owner);
                }
                _ => {}
            },
            Action::Tick => {
                (0..SERVERS).for_each(|at| next.run_down(at));
                for client in &mut next.clients {
                    client.doing = match client.doing {
                        Doing::Votes(age, votes) => Doing::Votes((age + 1).min(LEASE), votes),
                        // The window ends, so the hold is reported as lost. Its remains on the servers expire
                        // under a retired owner number.
                        Doing::Holds(1) => {
                            client.number += 1;
                            Doing::Nothing
                        }
                        Doing::Holds(left) => Doing::Holds(left - 1),
                        Doing::Nothing => Doing::Nothing,
                    };
                }
            }
            Action::Ahead(at) => {
                next.is_ahead = true;
                next.run_down(at);
            }
        }
        next
    }

    fn wrong(&self) -> Option<String> {
        let holds = |client: usize| matches!(self.clients[client].doing, Doing::Holds(_));
        if holds(0) && holds(1) {
            return Some("two hold it".to_owned());
        }
        let has = |client: usize| {
            let owner = self.owner(client);
            self.servers.iter().flatten().filter(|(by, _)| *by == owner).count()
        };
        (0..2)
            .any(|client| holds(client) && has(client) < self.majority())
            .then(|| "held by no majority".to_owned())
    }

    fn key(&self) -> String {
        format!("{:?}", (&self.servers, &self.clients, self.late, self.lates, self.is_ahead))
    }
}
