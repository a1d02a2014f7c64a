//! The columns of a lock's row that only people read: where its holder is. No failure here costs a lock.

use crate::error::{Error, ErrorKind};
use crate::inspect::Location;
use crate::refused::Refused;
use crate::seam::{Answer, Failure};
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::time::Clock;

/// How much a row says: a database may be unable to store a character, or a text of that length. After a
/// while the client tries the full text again.
#[derive(Default)]
pub(super) struct Notes {
    level: AtomicU8,
    refused: Refused,
}

const FULL: u8 = 0;
/// Replaces non-ASCII characters by question marks.
const PLAIN: u8 = 1;
const NOTHING: u8 = 2;

impl Notes {
    pub(super) fn here(&self) -> Location {
        let mut here = Location::here();
        match self.level() {
            FULL => {}
            PLAIN => [&mut here.host, &mut here.thread].into_iter().for_each(|text| *text = plain(text)),
            _ => [&mut here.host, &mut here.thread].into_iter().for_each(String::clear),
        }
        here
    }

    fn level(&self) -> u8 {
        if self.refused.stands(|| Clock::System.now()) { self.level.load(Ordering::Relaxed) } else { FULL }
    }

    fn say(&self, level: u8) {
        self.level.store(level, Ordering::Relaxed);
        if level == FULL {
            self.refused.forget();
        } else {
            self.refused.note(Clock::System.now());
        }
    }

    /// Says nothing during `ask`; for a client under construction, which nobody else uses.
    pub(super) fn without<T>(&self, ask: impl FnOnce() -> T) -> T {
        self.say(NOTHING);
        let answer = ask();
        self.say(FULL);
        answer
    }

    /// Says less and less while the server refuses for an unknown reason. The client keeps to the first
    /// level that the server accepts, for a while.
    pub(super) fn without_if_refused<T>(&self, mut ask: impl FnMut() -> Answer<T>) -> Answer<T> {
        let known = self.level();
        let mut outcome = ask();
        for less in known.saturating_add(1)..=NOTHING {
            match &outcome {
                Err(Failure::Refused(error)) if may_be_of_notes(error) => {}
                Ok(_) | Err(_) => return outcome,
            }
            self.say(less);
            outcome = ask();
            if outcome.is_err() {
                self.say(known);
            }
        }
        outcome
    }
}

fn may_be_of_notes(error: &Error) -> bool {
    error.kind() == ErrorKind::Refused
}

fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: ErrorKind) -> Answer<()> {
        Err(Failure::Refused(Error::new(kind, "lock", "no")))
    }

    #[test]
    fn notes_are_dropped_until_the_server_accepts() {
        for taken in [FULL, PLAIN, NOTHING] {
            let notes = Notes::default();
            let mut asked = 0;
            for _ in 0..2 {
                let done = notes.without_if_refused(|| {
                    asked += 1;
                    if notes.level() == taken { Ok(()) } else { refused(ErrorKind::Refused) }
                });
                assert!(done.is_ok());
            }
            assert_eq!(asked, u32::from(taken) + 2, "it is kept in mind");
            notes.refused.forget();
            assert_eq!(notes.level(), FULL, "for a while");
        }
        assert_eq!(plain("工作-1"), "??-1");
    }

    #[test]
    fn a_refusal_for_another_reason_leaves_them_as_they_are() {
        for (kind, expected) in [(ErrorKind::NoPermission, 1), (ErrorKind::Refused, 3)] {
            let notes = Notes::default();
            let mut asked = 0;
            let done = notes.without_if_refused(|| {
                asked += 1;
                refused(kind)
            });
            assert!(done.is_err());
            assert_eq!((asked, notes.level()), (expected, FULL));
        }
    }
}
