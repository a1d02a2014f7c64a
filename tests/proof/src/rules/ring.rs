//! A new list of a ring's nodes can move a name to another node. Before a grant, a process also asks the
//! name's former nodes. A node's mark is the newest epoch (number of a list) that it knows; the node refuses
//! older ones (docs/decisions/0013-a-ring-of-servers.md).

use super::{Rule, all_of};
use crate::explore::World;

pub const RULE: Rule = Rule {
    name: "marks of the ring",
    words: "a name whose home is another in each of three lists; a process of each; a node may be away, and one may lose its data",
    breaks: &[
        ("old homes are not asked", "two hold it"),
        ("an old home is asked and not told", "two hold it"),
        ("only the last list is asked", "two hold it"),
        ("an older mark is no reason to refuse", "two hold it"),
        ("a node without a mark is believed", "two hold it"),
    ],
    explored: |broken| all_of(Ring::new(broken)),
};

const NODES: usize = 3;

/// The node of the name in the ring of this epoch.
fn home(epoch: usize) -> usize {
    epoch - 1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    /// The process is asking the name's nodes before a grant; the number is how many have agreed.
    Asks(usize),
    Holds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    /// The newest epoch that the node knows; 0 for a node that is new or lost its data.
    mark: usize,
    holder: Option<usize>,
    is_away: bool,
}

#[derive(Clone, Debug)]
struct Ring {
    broken: &'static str,
    nodes: [Node; NODES],
    processes: [Doing; NODES],
    /// For each process: whether it has told its epoch to all reachable nodes.
    joined: [bool; NODES],
    has_lost: bool,
    has_been_away: bool,
}

#[derive(Clone, Debug)]
enum Action {
    Join(usize),
    Begin(usize),
    Step(usize),
    Release(usize),
    Away(usize),
    Back(usize),
    LosesData(usize),
}

impl Ring {
    fn new(broken: &'static str) -> Ring {
        let node = Node { mark: 0, holder: None, is_away: false };
        let (nodes, processes) = ([node; NODES], [Doing::Nothing; NODES]);
        Ring { broken, nodes, processes, joined: [false; NODES], has_lost: false, has_been_away: false }
    }

    /// The earlier epochs, the newest first. Their nodes are asked before a grant.
    fn before(&self, epoch: usize) -> Vec<usize> {
        let all = (1..epoch).rev();
        match self.broken {
            "old homes are not asked" => Vec::new(),
            "only the last list is asked" => all.take(1).collect(),
            _ => all.collect(),
        }
    }

    /// Whether the node accepts a request of this epoch. If so, raises the node's mark to this epoch.
    fn mark(&mut self, at: usize, epoch: usize) -> bool {
        let node = self.nodes[at];
        if node.mark > epoch && self.broken != "an older mark is no reason to refuse" {
            return false;
        }
        // A node without a mark is new or has lost its data, so the newest mark of reachable nodes decides.
        let known = self.nodes.iter().filter(|node| !node.is_away).map(|node| node.mark).max();
        if node.mark == 0 && known > Some(epoch) && self.broken != "a node without a mark is believed" {
            return false;
        }
        self.nodes[at].mark = node.mark.max(epoch);
        true
    }
}

impl World for Ring {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for process in 0..NODES {
            match self.processes[process] {
                // The processes join one after the other, each with a newer list of nodes.
                _ if !self.joined[process] => {
                    if process == 0 || self.joined[process - 1] {
                        all.push(Action::Join(process));
                    }
                }
                Doing::Nothing => all.push(Action::Begin(process)),
                Doing::Asks(_) => all.push(Action::Step(process)),
                Doing::Holds => all.push(Action::Release(process)),
            }
        }
        for at in 0..NODES {
            if self.nodes[at].is_away {
                all.push(Action::Back(at));
            } else {
                if !self.has_been_away {
                    all.push(Action::Away(at));
                }
                if !self.has_lost {
                    all.push(Action::LosesData(at));
                }
            }
        }
        all
    }

    fn act(&self, action: &Action) -> Ring {
        let mut next = self.clone();
        match *action {
            Action::Join(process) => {
                next.joined[process] = true;
                for at in 0..NODES {
                    if !next.nodes[at].is_away {
                        next.mark(at, process + 1);
                    }
                }
            }
            Action::Begin(process) => next.processes[process] = Doing::Asks(0),
            Action::Step(process) => {
                let epoch = process + 1;
                let Doing::Asks(asked) = self.processes[process] else { return next };
                let before = self.before(epoch);
                let at = home(before.get(asked).copied().unwrap_or(epoch));
                let is_last = asked >= before.len();
                let tells = is_last || self.broken != "an old home is asked and not told";
                let goes_on = !self.nodes[at].is_away
                    && (!tells || next.mark(at, epoch))
                    && self.nodes[at].holder.is_none();
                next.processes[process] = match (goes_on, is_last) {
                    (true, false) => Doing::Asks(asked + 1),
                    (true, true) => {
                        next.nodes[at].holder = Some(process);
                        Doing::Holds
                    }
                    (false, _) => Doing::Nothing,
                };
            }
            Action::Release(process) => {
                let node = &mut next.nodes[home(process + 1)];
                if node.is_away {
                    return next;
                }
                if node.holder == Some(process) {
                    node.holder = None;
                }
                next.processes[process] = Doing::Nothing;
            }
            Action::Away(at) => {
                next.nodes[at].is_away = true;
                next.has_been_away = true;
            }
            Action::Back(at) => next.nodes[at].is_away = false,
            Action::LosesData(at) => {
                if let Some(process) = next.nodes[at].holder {
                    next.processes[process] = Doing::Nothing;
                }
                next.nodes[at] = Node { mark: 0, holder: None, is_away: false };
                next.has_lost = true;
            }
        }
        next
    }

    fn wrong(&self) -> Option<String> {
        let holders = self.processes.iter().filter(|doing| **doing == Doing::Holds).count();
        (holders > 1).then(|| "two hold it".to_owned())
    }

    fn key(&self) -> String {
        format!("{:?}", (&self.nodes, &self.processes, self.joined, self.has_lost, self.has_been_away))
    }
}
