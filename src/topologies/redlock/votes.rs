//! The answers of several servers, and their common result, by pure functions without I/O or clocks.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ident::FencingToken;
use crate::seam::{Answer, Attempt, Failure, Others, Release, Snapshot};

pub(super) struct Votes<T>(pub(super) Vec<Answer<T>>);

pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The part of a lease that counts: the lease without the elapsed time, 1 % for clock drift, and 2 ms, as in
/// the published algorithm, for the rounding of servers to milliseconds. `None` if nothing remains.
pub(super) fn validity(lease: Duration, elapsed: Duration) -> Option<Duration> {
    let drift = lease / 100 + Duration::from_millis(2);
    lease.checked_sub(elapsed)?.checked_sub(drift).filter(|left| !left.is_zero())
}

impl<T> Votes<T> {
    pub(super) fn majority(&self) -> usize {
        majority(self.0.len())
    }

    /// The number of negative answers that makes a majority impossible.
    pub(super) fn veto(&self) -> usize {
        self.0.len() + 1 - self.majority()
    }

    pub(super) fn done(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    pub(super) fn count(&self, is_counted: impl Fn(&T) -> bool) -> usize {
        self.done().filter(|value| is_counted(value)).count()
    }

    pub(super) fn nodes_where(&self, is_such: impl Fn(&T) -> bool) -> Vec<usize> {
        let nodes = self.0.iter().enumerate().filter(|(_, answer)| match answer {
            Ok(value) => is_such(value),
            Err(_) => false,
        });
        nodes.map(|(node, _)| node).collect()
    }

    /// Replaces the answers of servers that do not count for the hold (see `restores`) by "not held".
    pub(super) fn discounted(mut self, uncounted: &[usize], not_held: impl Fn() -> T) -> Votes<T> {
        for node in uncounted {
            if let Some(Ok(answer)) = self.0.get_mut(*node) {
                *answer = not_held();
            }
        }
        self
    }

    pub(super) fn is_any_unknown(&self) -> bool {
        self.0.iter().any(|answer| matches!(answer, Err(Failure::Unknown(_))))
    }

    pub(super) fn error(&self, action: &'static str, places: &[&str], say: impl Fn(&T) -> String) -> Error {
        let errors = || {
            self.0.iter().filter_map(|answer| match answer {
                Ok(_) => None,
                Err(Failure::Refused(error) | Failure::Unknown(error)) => Some(error),
            })
        };
        // If `veto` servers have lasting errors, no retry can reach a majority, so a lasting error gives the
        // kind. Otherwise a retry may succeed, so a retryable error does.
        let lasting = || errors().filter(|error| !error.is_retryable());
        let first = if lasting().count() >= self.veto() {
            lasting().next()
        } else {
            errors().find(|error| error.is_retryable())
        };
        let kind = first.map_or(ErrorKind::Unreachable, Error::kind);
        let (all, needed, answered) = (self.0.len(), self.majority(), self.done().count());
        let mut text = format!("{answered} of {all} servers answered, but {needed} are needed");
        for (place, answer) in places.iter().zip(&self.0) {
            let said = match answer {
                Ok(value) => say(value),
                Err(Failure::Refused(error)) => error.detail().to_owned(),
                Err(Failure::Unknown(error)) => format!("{} (perhaps carried out)", error.detail()),
            };
            text += &format!("; {place}: {said}");
        }
        Error::new(kind, action, text)
    }

    /// The error for a request that too few servers answered. The outcome is unknown if a server has carried
    /// the request out (`has_changed`), or may have.
    pub(super) fn too_few<R>(
        &self,
        action: &'static str,
        places: &[&str],
        has_changed: bool,
        say: impl Fn(&T) -> String,
    ) -> Answer<R> {
        let error = self.error(action, places, say);
        if has_changed || self.is_any_unknown() {
            Err(Failure::Unknown(error.with_unknown_outcome()))
        } else {
            Err(Failure::Refused(error))
        }
    }
}

impl Votes<Attempt> {
    pub(super) fn granted(&self) -> usize {
        self.count(|attempt| matches!(attempt, Attempt::Granted { .. }))
    }

    pub(super) fn fencing_token(&self) -> Option<FencingToken> {
        let fences = self.done().filter_map(|attempt| match attempt {
            Attempt::Granted { fence, .. } => *fence,
            Attempt::Busy { .. } | Attempt::InWaitQueue { .. } | Attempt::Lost => None,
        });
        fences.max()
    }

    /// The time after which a majority can be free: as many leases must end as votes are missing. `None` if
    /// the last of those leases has no end, or no server is busy.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let mut leases: Vec<Duration> = self
            .done()
            .filter_map(|attempt| match attempt {
                Attempt::Busy { retry_after } | Attempt::InWaitQueue { retry_after, .. } => {
                    Some(retry_after.unwrap_or(Duration::MAX))
                }
                Attempt::Granted { .. } | Attempt::Lost => None,
            })
            .collect();
        leases.sort_unstable();
        let missing = self.majority().saturating_sub(self.granted());
        let last = leases.get(missing.saturating_sub(1)).or(leases.last());
        last.copied().filter(|lease| *lease != Duration::MAX)
    }
}

pub(super) fn say_attempt(attempt: &Attempt) -> String {
    match attempt {
        Attempt::Granted { .. } => "granted, then undone",
        Attempt::Busy { .. } | Attempt::InWaitQueue { .. } => "held by another",
        Attempt::Lost => "not held",
    }
    .to_owned()
}

impl Votes<bool> {
    pub(super) fn are_for(&self, action: &'static str, places: &[&str]) -> Answer<bool> {
        let held = self.count(|held| *held);
        if held >= self.majority() {
            return Ok(true);
        }
        if self.count(|held| !held) >= self.veto() {
            return Ok(false);
        }
        let say = |held: &bool| if *held { "held" } else { "not held" }.to_owned();
        self.too_few(action, places, held > 0, say)
    }
}

impl Votes<Release> {
    pub(super) fn other_holder(&self) -> Option<String> {
        self.done().find_map(|release| match release {
            Release::NotHeld { holder } => holder.clone(),
            Release::Freed { .. } | Release::StillHeld => None,
        })
    }

    pub(super) fn not_held(&self) -> usize {
        self.count(|release| matches!(release, Release::NotHeld { .. }))
    }

    pub(super) fn others(&self) -> Others {
        let listeners = self.done().map(|release| match release {
            Release::Freed { others: Others::Listen(count) } => *count,
            Release::Freed { others: Others::Nobody | Others::Next }
            | Release::StillHeld
            | Release::NotHeld { .. } => 0,
        });
        Others::listening(listeners.max().unwrap_or(0))
    }
}

pub(super) fn not_held() -> Release {
    Release::NotHeld { holder: None }
}

pub(super) fn say_release(release: &Release) -> String {
    match release {
        Release::Freed { .. } => "released",
        Release::StillHeld => "still held",
        Release::NotHeld { .. } => "not held",
    }
    .to_owned()
}

impl Votes<Option<Snapshot>> {
    /// How many answers must name an owner for a majority, if all silent servers are assumed to name it too.
    fn enough(&self) -> usize {
        let silent = self.0.len() - self.done().count();
        self.majority().saturating_sub(silent).max(1)
    }

    fn held_by(&self, holder: &str) -> usize {
        self.done().flatten().filter(|seen| seen.holder == holder).count()
    }

    /// The owner that may have a majority. `None` if no owner has enough votes, as with a lock of Redisson's
    /// own Redlock, which has another owner on each server.
    pub(super) fn holder(&self) -> Option<&String> {
        let mut holders = self.done().flatten().map(|seen| &seen.holder);
        holders.find(|holder| self.held_by(holder) >= self.enough())
    }

    /// The lock as a majority sees it; silent servers count for the holder. `None` if it is free.
    pub(super) fn view(&self) -> Option<Snapshot> {
        let held = || self.done().flatten();
        let enough = self.enough();
        let first = held().max_by_key(|seen| (seen.count > 0, self.held_by(&seen.holder)))?;
        let holder = self.holder();
        // The counts of all owners are used, because Redisson's Redlock has a different owner on each server.
        let mut counts: Vec<u32> = held().map(|seen| seen.count).filter(|count| *count > 0).collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let count = counts.get(enough - 1).copied().unwrap_or(0);
        let free = self.count(Option::is_none);
        if holder.is_none() && count == 0 && free >= self.majority() {
            return None;
        }
        let holder = holder.unwrap_or(&first.holder);
        let mut remaining: Vec<Option<Duration>> =
            held().filter(|seen| seen.holder == *holder).map(|seen| seen.remaining).collect();
        remaining.sort_unstable_by_key(|left| std::cmp::Reverse(left.unwrap_or(Duration::MAX)));
        let remaining = remaining.get(enough - 1).or(remaining.last()).copied().flatten();
        Some(Snapshot { holder: holder.clone(), count, remaining })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn granted(fence: u64) -> Answer<Attempt> {
        Ok(Attempt::granted(Some(FencingToken::new(fence))))
    }

    fn busy(millis: u32) -> Answer<Attempt> {
        Ok(Attempt::Busy { retry_after: Some(MS * millis) })
    }

    fn failed<T>(kind: ErrorKind) -> Answer<T> {
        Err(Failure::Refused(Error::new(kind, "request", "no")))
    }

    #[test]
    fn enough_refusals_make_a_majority_impossible() {
        for (nodes, most, veto) in [(3, 2, 2), (4, 3, 2), (5, 3, 3), (6, 4, 3), (7, 4, 4)] {
            let votes = Votes((0..nodes).map(|_| failed::<bool>(ErrorKind::Busy)).collect());
            assert_eq!((votes.majority(), votes.veto()), (most, veto), "{nodes}");
            assert!(nodes - veto < most);
        }
    }

    #[test]
    fn the_greatest_token_of_the_granting_servers_counts() {
        let votes = Votes(vec![granted(3), busy(1), granted(9), granted(4), failed(ErrorKind::TimedOut)]);
        assert_eq!((votes.granted(), votes.fencing_token()), (3, Some(FencingToken::new(9))));
    }

    #[test]
    fn a_retry_waits_until_enough_leases_end_for_a_majority() {
        let votes = Votes(vec![busy(50), busy(10), busy(30), busy(20), busy(40)]);
        assert_eq!(votes.retry_after(), Some(MS * 30));
        let votes = Votes(vec![granted(1), busy(10), busy(30), granted(1), busy(40)]);
        assert_eq!(votes.retry_after(), Some(MS * 10));
        let endless = || Ok(Attempt::Busy { retry_after: None });
        assert_eq!(Votes(vec![endless(), endless(), busy(5)]).retry_after(), None);
        assert_eq!(Votes(vec![endless(), busy(7), busy(5)]).retry_after(), Some(MS * 7));
    }

    #[test]
    fn too_few_answers_give_a_retryable_error_if_retries_help() {
        let places = ["a", "b", "c"];
        let say = |held: &bool| held.to_string();
        let votes = Votes(vec![Ok(true), failed(ErrorKind::WrongType), failed(ErrorKind::WrongType)]);
        let Err(Failure::Refused(error)) = votes.too_few::<()>("lock", &places, false, say) else { panic!() };
        assert_eq!(error.kind(), ErrorKind::WrongType);
        assert_eq!(error.detail(), "1 of 3 servers answered, but 2 are needed; a: true; b: no; c: no");
        let votes = Votes(vec![Ok(true), failed(ErrorKind::WrongType), failed(ErrorKind::TimedOut)]);
        let Err(Failure::Unknown(error)) = votes.too_few::<()>("lock", &places, true, say) else { panic!() };
        assert!(error.kind() == ErrorKind::TimedOut && error.outcome_unknown());
        let unknown = Err(Failure::Unknown(Error::new(ErrorKind::TimedOut, "request", "late")));
        let votes = Votes(vec![Ok(false), unknown, failed(ErrorKind::Unreachable)]);
        assert!(matches!(votes.too_few::<()>("lock", &places, false, say), Err(Failure::Unknown(_))));
    }

    fn seen(holder: &str, count: u32, millis: u32) -> Answer<Option<Snapshot>> {
        Ok(Some(Snapshot { holder: holder.to_owned(), count, remaining: Some(MS * millis) }))
    }

    fn free() -> Answer<Option<Snapshot>> {
        Ok(None)
    }

    #[test]
    fn a_lock_is_seen_as_a_majority_sees_it() {
        let votes = Votes(vec![seen("me", 2, 50), seen("me", 2, 30), seen("me", 1, 40), free(), free()]);
        let view = votes.view().unwrap();
        // Three of the five servers agree on at least one level, and the third longest lease is 30 ms.
        assert_eq!((view.holder.as_str(), view.count, view.remaining), ("me", 1, Some(MS * 30)));
        let votes = Votes(vec![seen("you", 0, 50), free(), free(), free(), seen("you", 0, 9)]);
        assert_eq!(votes.view(), None, "a minority counts as a holder");
        let votes =
            Votes(vec![seen("a", 0, 9), seen("b", 0, 9), seen("a", 0, 9), seen("b", 0, 9), seen("c", 0, 9)]);
        assert_eq!(votes.holder(), None, "of three owners with a server each, one counts as holder");
        let votes =
            Votes(vec![seen("you", 0, 50), seen("you", 0, 60), seen("you", 0, 9), free(), seen("me", 1, 5)]);
        let view = votes.view().unwrap();
        assert_eq!((view.holder.as_str(), view.count), ("you", 0), "one entry counts as a holder");
    }

    #[test]
    fn silent_servers_are_assumed_to_agree_with_the_seen_holder() {
        let silent = || failed(ErrorKind::TimedOut);
        let votes = Votes(vec![seen("me", 1, 50), seen("me", 1, 30), free(), silent(), silent()]);
        assert_eq!(votes.view().map(|view| view.count), Some(1));
        let votes = Votes(vec![free(), free(), free(), silent(), silent()]);
        assert_eq!(votes.view(), None);
    }
}
