//! The words of a lock's row that are only for people: where its holder is. They never cost anybody a lock.

use crate::error::{Error, ErrorKind};
use crate::inspect::Whereabouts;
use crate::seam::{Answer, Failure};
use crate::sync::atomic::{AtomicU8, Ordering};

/// How much a row says. A database may have no place for a character, or a table none for a text of that
/// length.
#[derive(Default)]
pub(super) struct Notes(AtomicU8);

/// All of it, as it is.
const FULL: u8 = 0;
/// Other characters than ASCII are a question mark each.
const PLAIN: u8 = 1;
const NOTHING: u8 = 2;

impl Notes {
    /// The whereabouts of the calling thread, as the row is to say them.
    pub(super) fn here(&self) -> Whereabouts {
        let mut here = Whereabouts::here();
        match self.0.load(Ordering::Relaxed) {
            FULL => {}
            PLAIN => [&mut here.host, &mut here.thread].into_iter().for_each(|text| *text = plain(text)),
            _ => [&mut here.host, &mut here.thread].into_iter().for_each(String::clear),
        }
        here
    }

    /// Asks for what is not about words: says nothing meanwhile. For a client that is being made, which
    /// nobody else uses.
    pub(super) fn without<T>(&self, ask: impl FnOnce() -> T) -> T {
        self.0.store(NOTHING, Ordering::Relaxed);
        let answer = ask();
        self.0.store(FULL, Ordering::Relaxed);
        answer
    }

    /// Asks for a lock, and says less and less `here` for as long as the server refuses without a reason that
    /// is known. A client keeps to the first that is taken.
    pub(super) fn without_if_refused<T>(&self, mut ask: impl FnMut() -> Answer<T>) -> Answer<T> {
        let known = self.0.load(Ordering::Relaxed);
        let mut outcome = ask();
        for less in known.saturating_add(1)..=NOTHING {
            match &outcome {
                Err(Failure::Refused(error)) if may_be_of_notes(error) => {}
                Ok(_) | Err(_) => return outcome,
            }
            self.0.store(less, Ordering::Relaxed);
            outcome = ask();
            if outcome.is_err() {
                self.0.store(known, Ordering::Relaxed);
            }
        }
        outcome
    }
}

/// Errors that are known to be about something else have kinds of their own.
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
    fn words_for_people_are_left_out_one_after_the_other_until_the_server_takes_them() {
        for taken in [FULL, PLAIN, NOTHING] {
            let notes = Notes::default();
            let mut asked = 0;
            for _ in 0..2 {
                let done = notes.without_if_refused(|| {
                    asked += 1;
                    if notes.0.load(Ordering::Relaxed) == taken {
                        Ok(())
                    } else {
                        refused(ErrorKind::Refused)
                    }
                });
                assert!(done.is_ok());
            }
            assert_eq!(asked, u32::from(taken) + 2, "it is kept in mind");
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
            assert_eq!((asked, notes.0.load(Ordering::Relaxed)), (expected, FULL));
        }
    }
}
