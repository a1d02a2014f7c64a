//! The columns of a lock's row that only people read: where its holder is. No failure here costs a lock.

use crate::error::ErrorKind;
use crate::inspect::Location;
use crate::refused::Refused;
use crate::seam::{Answer, Failure};
use crate::time::Clock;

/// Whether the database has refused these columns: a database may be unable to store a character, or a text
/// of that length. After a while the client tries again.
#[derive(Default)]
pub(super) struct Notes(Refused);

impl Notes {
    pub(super) fn here(&self) -> Location {
        let here = Location::here();
        if self.are_refused() { Location::new(String::new(), here.pid, String::new()) } else { here }
    }

    fn are_refused(&self) -> bool {
        self.0.stands(|| Clock::System.now())
    }

    /// Runs `ask` without these columns. Only for a client under construction, which no other thread uses.
    pub(super) fn without<T>(&self, ask: impl FnOnce() -> Answer<T>) -> Answer<T> {
        self.0.note(Clock::System.now());
        let answer = ask();
        self.0.forget();
        answer
    }

    /// Runs `ask` once more, without these columns, if the server refuses for an unknown reason.
    pub(super) fn without_if_refused<T>(&self, mut ask: impl FnMut() -> Answer<T>) -> Answer<T> {
        // Read before `ask`: another thread may note its own refusal meanwhile.
        let said_nothing = self.are_refused();
        match ask() {
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::Refused && !said_nothing => {
                self.0.note(Clock::System.now());
                ask().inspect_err(|_| self.0.forget())
            }
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn refused(kind: ErrorKind) -> Answer<()> {
        Err(Failure::Refused(Error::new(kind, "lock", "no")))
    }

    #[test]
    fn notes_are_dropped_while_the_server_refuses_them() {
        let notes = Notes::default();
        let mut asked = 0;
        for _ in 0..2 {
            let done = notes.without_if_refused(|| {
                asked += 1;
                if notes.here().host.is_empty() { Ok(()) } else { refused(ErrorKind::Refused) }
            });
            assert!(done.is_ok());
        }
        assert_eq!(asked, 3, "it is kept in mind");
        notes.0.forget();
        assert!(!notes.are_refused(), "for a while");
    }

    #[test]
    fn a_refusal_is_retried_although_another_thread_noted_its_own() {
        let notes = Notes::default();
        let done = notes.without_if_refused(|| {
            let here = notes.here();
            notes.0.note(Clock::System.now()); // as the other thread does
            if here.host.is_empty() { Ok(()) } else { refused(ErrorKind::Refused) }
        });
        assert!(done.is_ok());
    }

    #[test]
    fn a_refusal_for_another_reason_does_not_drop_notes() {
        for (kind, expected) in [(ErrorKind::NoPermission, 1), (ErrorKind::Refused, 2)] {
            let notes = Notes::default();
            let mut asked = 0;
            let done = notes.without_if_refused(|| {
                asked += 1;
                refused(kind)
            });
            assert!(done.is_err());
            assert_eq!((asked, notes.are_refused()), (expected, false));
        }
    }
}
