//! Redlock restores a hold on a server that lost it: when the server's vote counts again, and when the hold
//! must be gone (docs/decisions/0038-a-hold-is-given-back.md).

use super::{Rule, all_of};
use crate::explore::World;

pub const RULE: Rule = Rule {
    name: "Redlock, given back",
    words: "three servers, a client that holds, renews and may release, and one that tries once, a lease of three; a server may not answer, two may lose their data within a lease, or an operator frees a majority; one request to give back may come late",
    breaks: &[
        ("it counts at once", "confirmed although another had it"),
        ("a renewal that began before makes it count", "confirmed although another had it"),
        ("what did not count when a renewal began counts for it", "confirmed although another had it"),
        ("what is to be forgotten counts", "confirmed although another had it"),
        ("what comes late is not forgotten", "left behind"),
        ("the renewal does not see that it was released", "left behind"),
    ],
    explored: |broken| all_of(GivenBack::new(broken)),
};

const SERVERS: usize = 3;
const MAJORITY: usize = 2;
const LEASE: u8 = 3;
const SHARE: u8 = 1;
/// How often servers may lose their data. An operator who frees the lock on a majority counts as two losses.
const FAULTS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Holder,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vote {
    OnTheWay,
    Yes,
    No,
    Silent,
}

/// What the holder knows about its hold on a server. `Counts`: the holder counts a vote of this server.
/// `Asked`: a request to restore the hold, with this lease, is on its way. `InDoubt`: such a request may
/// succeed after the hold's end, so the holder cleans up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Counts,
    Asked(u8),
    /// The hold was restored. `before_round`: a renewal began later; if it succeeds, the vote counts.
    GivenBack {
        before_round: bool,
    },
    InDoubt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tries {
    Not,
    Votes(u8, [Vote; SERVERS]),
    Holds(u8),
    Done,
}

/// A renewal on its way. `had_begun_doomed` says whether `GivenBack::is_doomed` was set when it began.
#[derive(Clone, Copy, Debug)]
struct Round {
    age: u8,
    votes: [Vote; SERVERS],
    /// For each server: whether its vote counted when the renewal began.
    counted: [bool; SERVERS],
    had_begun_doomed: bool,
}

#[derive(Clone, Debug)]
struct GivenBack {
    broken: &'static str,
    servers: [Option<(Client, u8)>; SERVERS],
    /// How long the holder still counts on the lock; zero after a release or a reported loss.
    holds: u8,
    is_released: bool,
    round: Option<Round>,
    seen: [Seen; SERVERS],
    /// Whether the holder counted a renewal's votes, and must check next whether it has released the lock.
    must_look: bool,
    other: Tries,
    /// A late request to restore the hold, whose answer nobody awaits: its server, and the lease to set.
    late: Option<(usize, u8)>,
    lates: u8,
    faults: u8,
    /// Whether the hold must end, since another owner was granted the lock, or an operator freed it.
    is_doomed: bool,
    /// Whether a majority confirmed a renewal that began after `is_doomed` was set, which is a fault.
    is_confirmed_doomed: bool,
}

#[derive(Clone, Debug)]
enum Action {
    Renew,
    Vote(usize),
    Silent(usize),
    Count,
    Look,
    /// The request to restore the hold arrives at this server, and the holder reads the answer.
    Gives(usize),
    /// The holder stops waiting for this server's answer.
    GivesUp(usize),
    Late,
    Forgotten(usize),
    Release,
    OtherAsks(usize),
    OtherCounts,
    OtherReleases,
    Forget(usize),
    Force(usize),
    Tick,
}

impl GivenBack {
    fn new(broken: &'static str) -> GivenBack {
        GivenBack {
            broken,
            servers: [Some((Client::Holder, LEASE)); SERVERS],
            holds: LEASE - SHARE,
            is_released: false,
            round: None,
            seen: [Seen::Counts; SERVERS],
            must_look: false,
            other: Tries::Not,
            late: None,
            lates: 0,
            faults: 0,
            is_doomed: false,
            is_confirmed_doomed: false,
        }
    }

    fn has(&self, at: usize, client: Client) -> bool {
        self.servers[at].is_some_and(|(by, _)| by == client)
    }

    fn counts(&self, at: usize) -> bool {
        match self.seen[at] {
            Seen::Counts => true,
            Seen::GivenBack { .. } => self.broken == "it counts at once",
            Seen::InDoubt => self.broken == "what is to be forgotten counts",
            Seen::Asked(_) => false,
        }
    }

    fn give(&mut self, at: usize, left: u8) {
        if self.servers[at].is_none() && left > 0 {
            self.servers[at] = Some((Client::Holder, left));
        }
    }

    /// Marks unanswered requests to restore the hold as `InDoubt`; with `or_given_back` also answered ones.
    fn is_over(&mut self, or_given_back: bool) {
        for at in 0..SERVERS {
            self.seen[at] = match self.seen[at] {
                Seen::Asked(left) => {
                    self.late = Some((at, left));
                    if self.broken == "what comes late is not forgotten" {
                        Seen::Counts
                    } else {
                        Seen::InDoubt
                    }
                }
                Seen::GivenBack { .. } if or_given_back => Seen::InDoubt,
                Seen::InDoubt => Seen::InDoubt,
                Seen::GivenBack { .. } | Seen::Counts => Seen::Counts,
            };
        }
    }

    fn count(&mut self, round: Round) {
        let counts = |at: usize| {
            let did = self.broken == "what did not count when a renewal began counts for it";
            self.counts(at) && (did || round.counted[at])
        };
        let is_for = |at: &usize| round.votes[*at] == Vote::Yes && counts(*at);
        let is_against = |at: &usize| round.votes[*at] != Vote::Silent && !is_for(at);
        let against = (0..SERVERS).filter(is_against).count();
        if (0..SERVERS).filter(is_for).count() >= MAJORITY {
            self.must_look = self.broken != "the renewal does not see that it was released";
            for at in 0..SERVERS {
                self.seen[at] = match self.seen[at] {
                    Seen::Counts | Seen::GivenBack { .. } if round.votes[at] == Vote::No => {
                        Seen::Asked(LEASE.saturating_sub(round.age))
                    }
                    Seen::GivenBack { before_round }
                        if before_round || self.broken == "a renewal that began before makes it count" =>
                    {
                        Seen::Counts
                    }
                    other => other,
                };
            }
            if self.holds > 0 {
                self.holds = self.holds.max((LEASE - SHARE).saturating_sub(round.age));
                self.is_confirmed_doomed |= round.had_begun_doomed;
            }
        } else if against > SERVERS - MAJORITY {
            self.holds = 0;
        }
    }
}

impl World for GivenBack {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        // A lost hold sends no more requests. A released one still cleans up what remains.
        if self.holds == 0 && !self.is_released {
            return Vec::new();
        }
        let mut all = vec![Action::Tick];
        match &self.round {
            Some(round) => {
                let open = (0..SERVERS).filter(|at| round.votes[*at] == Vote::OnTheWay);
                // The model lets votes arrive in the servers' order only, which keeps the states few.
                match open.min() {
                    Some(at) => all.extend([Action::Vote(at), Action::Silent(at)]),
                    None => all.push(Action::Count),
                }
            }
            None if self.must_look => all.push(Action::Look),
            None if self.holds > 0 => all.push(Action::Renew),
            None => {}
        }
        for at in 0..SERVERS {
            match self.seen[at] {
                Seen::Asked(_) => {
                    all.push(Action::Gives(at));
                    if self.lates == 0 {
                        all.push(Action::GivesUp(at));
                    }
                }
                Seen::InDoubt => all.push(Action::Forgotten(at)),
                Seen::Counts | Seen::GivenBack { .. } => {}
            }
        }
        if self.late.is_some() {
            all.push(Action::Late);
        }
        if self.holds > 0 && self.late.is_none() {
            all.push(Action::Release);
        }
        if self.is_released {
            return all;
        }
        // The other client asks only free servers, since a refusal changes nothing.
        let is_free = |at: &usize| self.servers[*at].is_none();
        match &self.other {
            Tries::Not => all.extend((0..SERVERS).filter(is_free).map(Action::OtherAsks)),
            Tries::Votes(_, votes) => {
                let open = (0..SERVERS).filter(|at| votes[*at] == Vote::OnTheWay && is_free(at));
                all.extend(open.map(Action::OtherAsks));
                all.push(Action::OtherCounts);
            }
            Tries::Holds(_) => all.push(Action::OtherReleases),
            Tries::Done => {}
        }
        if self.faults < FAULTS {
            all.extend((0..SERVERS).filter(|at| self.has(*at, Client::Holder)).map(Action::Forget));
        }
        if self.faults == 0 {
            all.extend((0..SERVERS).map(Action::Force));
        }
        all
    }

    fn act(&self, action: &Action) -> GivenBack {
        let mut next = self.clone();
        match *action {
            Action::Renew => {
                next.round = Some(Round {
                    age: 0,
                    votes: [Vote::OnTheWay; SERVERS],
                    counted: std::array::from_fn(|at| self.counts(at)),
                    had_begun_doomed: self.is_doomed,
                });
                for seen in &mut next.seen {
                    if let Seen::GivenBack { before_round } = seen {
                        *before_round = true;
                    }
                }
            }
            Action::Vote(at) => {
                let has = self.has(at, Client::Holder);
                if has {
                    next.servers[at] = Some((Client::Holder, LEASE));
                }
                if let Some(round) = &mut next.round {
                    round.votes[at] = if has { Vote::Yes } else { Vote::No };
                }
            }
            Action::Silent(at) => {
                if let Some(round) = &mut next.round {
                    round.votes[at] = Vote::Silent;
                }
            }
            Action::Count => {
                if let Some(round) = next.round.take() {
                    next.count(round);
                }
            }
            Action::Look => {
                next.must_look = false;
                if self.is_released {
                    next.is_over(true);
                }
            }
            Action::Gives(at) => {
                if let Seen::Asked(left) = self.seen[at] {
                    next.give(at, left);
                    next.seen[at] = if next.has(at, Client::Holder) {
                        Seen::GivenBack { before_round: false }
                    } else {
                        Seen::Counts
                    };
                }
            }
            Action::GivesUp(at) => {
                if let Seen::Asked(left) = self.seen[at] {
                    next.lates += 1;
                    next.late = Some((at, left));
                    next.seen[at] = if self.broken == "what comes late is not forgotten" {
                        Seen::Counts
                    } else {
                        Seen::InDoubt
                    };
                }
            }
            Action::Late => {
                if let Some((at, left)) = next.late.take() {
                    next.give(at, left);
                }
            }
            Action::Forgotten(at) => {
                if self.has(at, Client::Holder) {
                    next.servers[at] = None;
                }
                // The server's vote counts again once no request can restore the hold. Until then the
                // clean-up is repeated.
                if self.late.is_none() {
                    next.seen[at] = Seen::Counts;
                }
            }
            Action::Release => {
                next.is_over(false);
                (next.holds, next.is_released) = (0, true);
                for at in 0..SERVERS {
                    if self.has(at, Client::Holder) {
                        next.servers[at] = None;
                    }
                }
            }
            Action::OtherAsks(at) => {
                next.servers[at] = Some((Client::Other, LEASE));
                let (age, mut votes) = match self.other {
                    Tries::Votes(age, votes) => (age, votes),
                    Tries::Not | Tries::Holds(_) | Tries::Done => (0, [Vote::OnTheWay; SERVERS]),
                };
                votes[at] = Vote::Yes;
                next.other = Tries::Votes(age, votes);
            }
            Action::OtherCounts => {
                let Tries::Votes(age, votes) = self.other else { return next };
                let yes = votes.iter().filter(|vote| **vote == Vote::Yes).count();
                let left = (LEASE - SHARE).saturating_sub(age);
                if yes >= MAJORITY && left > 0 {
                    next.other = Tries::Holds(left);
                    next.is_doomed |= self.holds > 0;
                } else {
                    return self.act(&Action::OtherReleases);
                }
            }
            Action::OtherReleases => {
                next.other = Tries::Done;
                for at in 0..SERVERS {
                    if self.has(at, Client::Other) {
                        next.servers[at] = None;
                    }
                }
            }
            Action::Forget(at) => {
                next.faults += 1;
                next.servers[at] = None;
            }
            Action::Force(spared) => {
                next.faults = FAULTS;
                next.is_doomed = true;
                (0..SERVERS).filter(|at| *at != spared).for_each(|at| next.servers[at] = None);
            }
            Action::Tick => {
                let less = |left: u8| left.saturating_sub(1);
                for server in &mut next.servers {
                    *server = server.map(|(by, left)| (by, left - 1)).filter(|(_, left)| *left > 0);
                }
                next.holds = less(self.holds);
                for seen in &mut next.seen {
                    *seen = match *seen {
                        Seen::Asked(left) => Seen::Asked(less(left)),
                        other => other,
                    };
                }
                next.late = self.late.map(|(at, left)| (at, less(left)));
                if let Some(round) = &mut next.round {
                    round.age = (round.age + 1).min(LEASE);
                }
                next.other = match self.other {
                    Tries::Votes(age, votes) => Tries::Votes((age + 1).min(LEASE), votes),
                    Tries::Holds(1) => Tries::Done,
                    Tries::Holds(left) => Tries::Holds(left - 1),
                    other => other,
                };
            }
        }
        next
    }

    fn wrong(&self) -> Option<String> {
        let has = (0..SERVERS).filter(|at| self.has(*at, Client::Holder)).count();
        let others = matches!(self.other, Tries::Holds(_));
        if self.faults == 0 && self.holds > 0 && others {
            return Some("two hold it".to_owned());
        }
        if self.faults == 0 && self.holds > 0 && has < MAJORITY {
            return Some("held by no majority".to_owned());
        }
        if self.is_confirmed_doomed {
            return Some("confirmed although another had it".to_owned());
        }
        let is_settled = self.round.is_none()
            && !self.must_look
            && self.late.is_none()
            && self.seen.iter().all(|seen| matches!(seen, Seen::Counts | Seen::GivenBack { .. }));
        (self.is_released && is_settled && has > 0).then(|| "left behind".to_owned())
    }

    fn key(&self) -> String {
        format!(
            "{:?}",
            (
                (&self.servers, self.holds, self.is_released, &self.round, &self.seen, self.must_look),
                (&self.other, self.late, self.lates, self.faults, self.is_doomed, self.is_confirmed_doomed)
            )
        )
    }
}
