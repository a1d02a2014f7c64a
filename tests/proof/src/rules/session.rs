//! A session of ZooKeeper: until when the leader certainly keeps the session, and so how long a hold counts
//! (docs/decisions/0015-sessions-of-zookeeper.md, `src/stores/zookeeper/life.rs`).
//!
//! A client sends a question to a follower, which notes the sign of life and passes the question to the
//! leader. Answers return through the follower. The leader learns of signs of life from followers' replies to
//! its pings, and when the client connects to another follower. Messages keep their order in each direction.

use super::{Rule, all_of};
use crate::explore::World;

pub const RULE: Rule = Rule {
    name: "ZooKeeper's session",
    words: "a client, a follower that may die, a leader; a session of ten, a ping at least each two, of which two may be under way; all else takes any time",
    breaks: &[
        ("an answer is a sign of life", "counts on a session that has ended"),
        ("two answers are enough", "counts on a session that has ended"),
        ("no ping need have passed", "counts on a session that has ended"),
        (GOES_ON, "held again after the loss was told"),
    ],
    explored: |broken| all_of(Session::new(broken)),
};

const GOES_ON: &str = "the window that has ended goes on";

const SESSION: u8 = 10;
/// The leader's maximum ping interval. If `LONGER` passes between the first answer and the second question,
/// the leader has pinged meanwhile.
const PING: u8 = 2;
const LONGER: u8 = 3;
/// The client asks this often in a row: three answers show that the leader has heard of the first question.
const ASKED: usize = 3;

/// The maximum number of pings and of replies to pings that are on their way at once.
const UNDER_WAY: usize = 2;

/// Messages that travel in one direction, the oldest first.
type Way<T> = Vec<T>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToFollower {
    Ping,
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToLeader {
    Ask,
    /// The reply to a ping: whether the follower noted a sign of life since its last reply.
    Noted(bool),
}

/// A question of the client: how long ago it was sent, and how long ago its answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    sent: u8,
    answered: Option<u8>,
}

#[derive(Clone, Debug)]
struct Session {
    broken: &'static str,
    /// The time for which the leader still keeps the session. `None`: the leader has ended the session, and
    /// another client has the lock.
    kept: Option<u8>,
    since_ping: u8,
    follower_noted: bool,
    to_leader: Way<ToLeader>,
    to_follower: Way<ToFollower>,
    asked: Way<Asked>,
    window: u8,
    told: bool,
    is_connected: bool,
    followers: u8,
}

#[derive(Clone, Debug)]
enum Action {
    /// The client sends a question. Its follower notes the sign of life and passes the question on.
    Ask,
    Leader,
    Follower,
    Ping,
    Dies,
    /// The client connects to another follower, which asks the leader whether the session is alive.
    Connects,
    Tick,
}

impl Session {
    fn new(broken: &'static str) -> Session {
        Session {
            broken,
            kept: Some(SESSION),
            since_ping: 0,
            follower_noted: false,
            to_leader: Vec::new(),
            to_follower: Vec::new(),
            asked: Vec::new(),
            window: SESSION - 1,
            told: false,
            is_connected: true,
            followers: 1,
        }
    }

    /// Prolongs the window, because the leader heard of the session at most `ago` ticks ago.
    fn counts(&mut self, ago: u8) {
        let left = (SESSION - 1).saturating_sub(ago);
        if self.window > 0 {
            self.window = self.window.max(left);
        } else if self.broken == GOES_ON {
            self.window = left;
        }
    }

    /// Processes an answer, which belongs to the oldest question without one.
    fn learn(&mut self) {
        let Some(at) = self.asked.iter().position(|asked| asked.answered.is_none()) else { return };
        self.asked[at].answered = Some(0);
        let answered = &self.asked[..=at];
        let ago = match (self.broken, answered) {
            ("an answer is a sign of life", [.., last]) => Some(last.sent),
            ("two answers are enough", [first, .., last]) => {
                first.answered.filter(|ago| *ago >= last.sent + LONGER).map(|_| first.sent)
            }
            (_, [first, second, third]) => {
                // After `LONGER` the leader has pinged the follower, ahead of its second answer. The
                // follower's reply reports the first question, and reaches the leader before the third one.
                let wait = if self.broken == "no ping need have passed" { 0 } else { LONGER };
                let is_behind = |earlier: &Asked, later: &Asked, by: u8| {
                    earlier.answered.is_some_and(|ago| ago >= later.sent + by)
                };
                (is_behind(first, second, wait) && is_behind(second, third, 0)).then_some(first.sent)
            }
            _ => None,
        };
        if let Some(ago) = ago {
            self.counts(ago);
        }
        if at + 1 == ASKED {
            self.asked.clear();
        }
    }
}

impl World for Session {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut all = Vec::new();
        // The leader always pings in time. Every other step may take any time.
        if self.since_ping < PING || !self.is_connected {
            all.push(Action::Tick);
        }
        if self.is_connected {
            if self.asked.len() < ASKED && self.asked.iter().all(|asked| asked.answered.is_some()) {
                all.push(Action::Ask);
            }
            if !self.to_leader.is_empty() {
                all.push(Action::Leader);
            }
            if !self.to_follower.is_empty() {
                all.push(Action::Follower);
            }
            let noted = self.to_leader.iter().filter(|message| matches!(message, ToLeader::Noted(_))).count();
            let pings = self.to_follower.iter().filter(|message| **message == ToFollower::Ping).count();
            if self.since_ping > 0 && noted + pings < UNDER_WAY {
                all.push(Action::Ping);
            }
            if self.followers > 0 {
                all.push(Action::Dies);
            }
        } else if self.kept.is_some() {
            all.push(Action::Connects);
        }
        all
    }

    fn act(&self, action: &Action) -> Session {
        let mut next = self.clone();
        match action {
            Action::Ask => {
                next.asked.push(Asked { sent: 0, answered: None });
                next.follower_noted = true;
                next.to_leader.push(ToLeader::Ask);
            }
            Action::Leader => match next.to_leader.remove(0) {
                ToLeader::Ask => next.to_follower.push(ToFollower::Answer),
                ToLeader::Noted(is_alive) => {
                    if is_alive && next.kept.is_some() {
                        next.kept = Some(SESSION);
                    }
                }
            },
            Action::Follower => match next.to_follower.remove(0) {
                ToFollower::Ping => {
                    let noted = std::mem::take(&mut next.follower_noted);
                    next.to_leader.push(ToLeader::Noted(noted));
                }
                ToFollower::Answer => next.learn(),
            },
            Action::Ping => {
                next.since_ping = 0;
                next.to_follower.push(ToFollower::Ping);
            }
            Action::Dies => {
                next.followers -= 1;
                next.is_connected = false;
                next.follower_noted = false;
                (next.to_leader, next.to_follower, next.asked) = (Vec::new(), Vec::new(), Vec::new());
            }
            Action::Connects => {
                next.is_connected = true;
                next.since_ping = 0;
                next.kept = Some(SESSION);
                next.counts(0);
            }
            Action::Tick => {
                next.since_ping = (next.since_ping + 1).min(PING);
                next.kept = next.kept.and_then(|left| left.checked_sub(1)).filter(|left| *left > 0);
                if next.window == 1 {
                    next.told = true;
                }
                next.window = next.window.saturating_sub(1);
                for asked in &mut next.asked {
                    asked.sent = (asked.sent + 1).min(SESSION);
                    asked.answered = asked.answered.map(|ago| (ago + 1).min(SESSION));
                }
            }
        }
        next
    }

    fn wrong(&self) -> Option<String> {
        if self.window > 0 && self.told {
            return Some("held again after the loss was told".to_owned());
        }
        (self.window > 0 && self.kept.is_none()).then(|| "counts on a session that has ended".to_owned())
    }

    fn key(&self) -> String {
        format!(
            "{:?}",
            (
                (self.kept, self.since_ping, self.follower_noted, &self.to_leader, &self.to_follower),
                (&self.asked, self.window, self.told, self.is_connected, self.followers)
            )
        )
    }
}
