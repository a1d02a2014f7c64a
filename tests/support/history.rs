//! A checker for claims of holders and their times.
//!
//! A [`Claim`] says "this owner held it from here to there". [`check`] finds every two claims of different
//! owners that overlap, and tokens that do not grow. A test claims only what it may: from the moment its lock
//! call has *returned* to the moment before it *calls* unlock, or to the end of the validity that the guard
//! had promised. Then each finding is a broken lock, whatever the scheduler did.

use super::now;
use parking_lot::Mutex;
use std::fmt;
use std::time::{Duration, Instant};

/// One hold of one lock, in time since some origin that all claims share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub owner: String,
    /// The fencing token of the hold, where the lock has one. A re-entered hold has its outer hold's token.
    pub token: Option<u64>,
    pub acquired: Duration,
    /// `None`: never ended.
    pub end: Option<Duration>,
}

impl Claim {
    fn ends_after(&self, time: Duration) -> bool {
        self.end.is_none_or(|end| end > time)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {:?} to ", self.owner, self.acquired)?;
        match self.end {
            Some(end) => write!(f, "{end:?}")?,
            None => f.write_str("ever")?,
        }
        self.token.map_or(Ok(()), |token| write!(f, " (token {token})"))
    }
}

/// A fault of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two owners at once.
    Overlap(Claim, Claim),
    /// The later claim of the two has no greater token, and is no re-entry into the earlier one.
    Token(Claim, Claim),
    /// It ends before it begins: the test recorded nonsense.
    Backwards(Claim),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Overlap(first, second) => write!(f, "two owners at once: {first}; {second}"),
            Violation::Token(first, second) => write!(f, "the token does not grow: {first}; then {second}"),
            Violation::Backwards(claim) => write!(f, "ends before it begins: {claim}"),
        }
    }
}

/// All that is wrong with the claims on one lock, in whatever order they come.
pub fn check(claims: &[Claim]) -> Vec<Violation> {
    let mut sorted: Vec<&Claim> = claims.iter().collect();
    sorted.sort_by_key(|claim| (claim.acquired, claim.end.is_none(), claim.end));
    let mut found: Vec<Violation> = sorted
        .iter()
        .filter(|claim| claim.end.is_some_and(|end| end < claim.acquired))
        .map(|claim| Violation::Backwards((*claim).clone()))
        .collect();
    // Claims that may still be open at the next one's beginning. In a good history that is one owner's.
    let mut open: Vec<&Claim> = Vec::new();
    let mut with_top_token: Option<&Claim> = None;
    for claim in sorted {
        open.retain(|other| other.ends_after(claim.acquired));
        let others = open.iter().filter(|other| other.owner != claim.owner);
        found.extend(others.map(|other| Violation::Overlap((*other).clone(), claim.clone())));
        if let Some(token) = claim.token {
            let reentered = open.iter().any(|other| other.owner == claim.owner && other.token == Some(token));
            match with_top_token {
                Some(top) if top.token >= Some(token) => {
                    if !reentered {
                        found.push(Violation::Token(top.clone(), claim.clone()));
                    }
                }
                _ => with_top_token = Some(claim),
            }
        }
        open.push(claim);
    }
    found
}

/// Claims recorded by the threads of one process.
pub struct History {
    origin: Instant,
    claims: Mutex<Vec<Claim>>,
}

/// A claim that has begun; give it back to [`History::released`].
#[derive(Debug)]
#[must_use = "a claim that is never ended lasts for ever"]
pub struct Open(usize);

impl History {
    pub fn new() -> History {
        History { origin: now(), claims: Mutex::new(Vec::new()) }
    }

    /// To be called when the lock call has returned.
    pub fn acquired(&self, owner: impl fmt::Display, token: Option<u64>) -> Open {
        let acquired = self.origin.elapsed();
        let mut claims = self.claims.lock();
        claims.push(Claim { owner: owner.to_string(), token, acquired, end: None });
        Open(claims.len() - 1)
    }

    /// To be called before unlock is.
    pub fn released(&self, open: Open) {
        self.ends(open, now());
    }

    /// For a hold that may have ended on its own: it was promised until `end`.
    pub fn ends(&self, open: Open, end: Instant) {
        self.claims.lock()[open.0].end = Some(end.saturating_duration_since(self.origin));
    }

    pub fn claims(&self) -> Vec<Claim> {
        self.claims.lock().clone()
    }

    /// Panics with everything that is wrong, or when there are fewer than `at_least` claims: a test that held
    /// nothing proves nothing.
    #[track_caller]
    pub fn assert_good(&self, at_least: usize) {
        let claims = self.claims();
        assert!(claims.len() >= at_least, "only {} claims, not {at_least}", claims.len());
        let found = check(&claims);
        let list: String = found.iter().map(|violation| format!("  {violation}\n")).collect();
        assert!(found.is_empty(), "{} violations in {} claims:\n{list}", found.len(), claims.len());
    }
}
