//! A plain, fair, token or read-write lock of the memory store.

use std::time::Duration;

use crate::ident::{ClientId, Owner};
use crate::inspect::{Holder, Mode};
use crate::seam::{Attempt, Claim, Family, HoldNote, Kind, Others, PLACE_LASTS, QueueMode, Release};
use crate::stores::memory::wait_queue::{RESERVED_FOR, TimedQueue, WaitQueue};
use crate::time::Moment;

/// When the first writer in the queue has waited this long, later readers wait behind it.
const PATIENCE: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockKind {
    Plain,
    Fair,
    Token,
    Read,
    Write,
}

impl LockKind {
    pub(super) fn mode(self) -> Option<Mode> {
        match self {
            LockKind::Plain | LockKind::Fair | LockKind::Token => None,
            LockKind::Read => Some(Mode::Read),
            LockKind::Write => Some(Mode::Write),
        }
    }
}

#[derive(Default)]
pub(super) struct Lock {
    holds: Vec<Hold>,
    pub(super) queue: TimedQueue<Owner>,
    /// The waiting writers of a lock with `writers_first`, which come before readers.
    pub(super) waiting: TimedQueue<Owner>,
    pub(super) wait_queue: WaitQueue,
    /// The clients with readers that wait without `writers_first`. The end of a write makes them `expected`.
    pub(super) readers: TimedQueue<ClientId>,
    /// The clients whose readers go before the next writer, until they read or `RESERVED_FOR` is over.
    expected: TimedQueue<ClientId>,
    /// The end of the last write during which readers waited.
    write_ended: Option<Moment>,
}

pub(super) struct Hold {
    is_token: bool,
    mode: Option<Mode>,
    owner: Owner,
    count: u32,
    pub(super) until: Moment,
    since: Moment,
    /// Whether waiters send the holder a recall (a message that the lock is wanted).
    pub(super) is_heard: bool,
    note: Option<HoldNote>,
}

impl Hold {
    pub(super) fn new(kind: LockKind, claim: &Claim, count: u32, now: Moment) -> Hold {
        Hold {
            is_token: kind == LockKind::Token,
            mode: kind.mode(),
            owner: claim.owner,
            count,
            until: now.plus(claim.lease),
            since: now,
            is_heard: false,
            note: claim.note.clone(),
        }
    }

    fn shown(&self, now: Moment) -> Holder {
        Holder {
            hold_count: Some(self.count),
            mode: self.mode,
            remaining: Some(self.until.since(now)),
            held_for: self.mode.is_none().then(|| now.since(self.since)),
            ends_within: self.note.as_ref().map(|note| self.since.plus(note.max_hold).since(now)),
            location: self.note.as_ref().map(|note| note.place.as_ref().clone()),
            ..Holder::new(self.owner.to_string())
        }
    }
}

impl Lock {
    /// Removes what has expired. A writer's own read hold stays while its write hold does, as on Redis.
    pub(super) fn expire(&mut self, now: Moment) {
        let writer = self.holds.iter().find(|hold| hold.mode == Some(Mode::Write) && hold.until > now);
        let writer = writer.map(|hold| hold.owner);
        self.holds.retain(|hold| hold.until > now || Some(hold.owner) == writer);
        self.queue.expire_first(now);
        self.waiting.expire(now);
        self.wait_queue.expire(now);
        self.readers.expire(now);
        self.expected.expire(now);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
            && self.queue.is_empty()
            && self.waiting.is_empty()
            && self.wait_queue.is_empty()
            && self.readers.is_empty()
            && self.expected.is_empty()
    }

    pub(super) fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    pub(super) fn is_heard(&self) -> bool {
        self.holds.iter().any(|hold| hold.is_heard)
    }

    pub(super) fn is_token(&self) -> bool {
        self.holds.iter().any(|hold| hold.is_token)
    }

    /// Whether the holds are of another kind of lock, so that `kind` is refused under this name.
    pub(super) fn is_strange_to(&self, kind: Kind) -> bool {
        let mut holds = self.holds.iter();
        match kind.family() {
            Family::Lock | Family::Token => {
                holds.any(|hold| hold.mode.is_some() || hold.is_token != kind.is_token())
            }
            Family::Read | Family::Write => holds.any(|hold| hold.mode.is_none()),
            Family::Counted => self.is_token(),
        }
    }

    /// Grants the lock if the claim may have it. Returns `Ok` for a grant, to which the caller adds the
    /// fencing token, otherwise the refusal.
    pub(super) fn attempt(
        &mut self,
        kind: LockKind,
        claim: &Claim,
        count: u32,
        now: Moment,
    ) -> Result<(), Attempt> {
        let (owner, client) = (claim.owner, claim.owner.client());
        if let Some(own) = self.own(kind, owner) {
            (own.count, own.until) = (count, own.until.max(now.plus(claim.lease)));
            return Ok(());
        }
        if count > 1 {
            return Err(Attempt::Lost);
        }
        let is_free = self.holds.is_empty();
        let may = match kind {
            LockKind::Plain | LockKind::Token => is_free,
            LockKind::Fair => is_free && self.queue.first().is_none_or(|first| first == owner),
            LockKind::Read => match self.holds.iter().find(|hold| hold.mode == Some(Mode::Write)) {
                Some(writer) => writer.owner == owner,
                None => {
                    let comes_second = claim.writers_first && !self.waiting.is_empty();
                    !comes_second && !self.is_held_back(claim, now)
                }
            },
            LockKind::Write => is_free && self.may_write(claim),
        };
        self.stop_waiting(kind, owner);
        if !may {
            return Err(self.busy(kind, claim, now));
        }
        self.queue.leave(owner);
        match kind {
            LockKind::Plain | LockKind::Fair | LockKind::Token => {}
            LockKind::Read => {
                self.readers.leave(client);
                self.expected.leave(client);
            }
            LockKind::Write => self.wait_queue.leave(client),
        }
        self.holds.push(Hold::new(kind, claim, count, now));
        Ok(())
    }

    fn busy(&mut self, kind: LockKind, claim: &Claim, now: Moment) -> Attempt {
        let (owner, alive_until) = (claim.owner, now.plus(PLACE_LASTS));
        if kind == LockKind::Write && claim.writers_first && claim.waits {
            self.waiting.join_or_renew(owner, alive_until);
        }
        let in_its_way = |hold: &&Hold| kind != LockKind::Read || hold.mode == Some(Mode::Write);
        let holds = self.holds.iter().filter(in_its_way).map(|hold| hold.until);
        let longest = holds.chain(self.waiting.iter().map(|(_, until)| until)).max();
        let retry_after = longest.map(|until| until.since(now));
        match kind {
            LockKind::Plain | LockKind::Token => {}
            LockKind::Fair => {
                if claim.waits {
                    self.queue.join_or_renew(owner, alive_until);
                }
                // If the waiters in front died, no message comes, so the waiter polls when their places end.
                return Attempt::Busy { retry_after: retry_after.or(Some(PLACE_LASTS)) };
            }
            LockKind::Read => {
                if claim.waits && !claim.writers_first {
                    self.readers.join_or_renew(owner.client(), alive_until);
                }
            }
            LockKind::Write => return self.wait_queue.refuse(claim, now, retry_after),
        }
        Attempt::Busy { retry_after }
    }

    /// Whether a writer goes before this reader: the free lock is reserved for a writer, or a writer has
    /// waited for `PATIENCE`. In the second case, readers that came before the last write's end still enter.
    fn is_held_back(&self, claim: &Claim, now: Moment) -> bool {
        let is_kept = self.holds.is_empty() && self.wait_queue.kept_for_others(None) > 0;
        let came = now.minus(claim.waited);
        is_kept || self.a_writer_waits_long(now) && came > self.write_ended.unwrap_or_default()
    }

    pub(super) fn a_writer_waits_long(&self, now: Moment) -> bool {
        self.wait_queue.first_since().is_some_and(|since| now.since(since) >= PATIENCE)
    }

    fn may_write(&self, claim: &Claim) -> bool {
        let is_next = claim.queue_mode == QueueMode::IsNext || claim.queue_mode == QueueMode::Barges;
        is_next
            || self.wait_queue.kept_for_others(Some(claim.owner.client())) == 0 && self.expected.is_empty()
    }

    /// Returns the clients to notify after a release, or after a writer stopped waiting, with their messages.
    /// If readers waited for the write, the caller wakes them by the channel, and only the first writer is
    /// listed: its message "standby" makes it ask soon, in case no reader asks.
    pub(super) fn pass_on(&mut self, ends_write: bool, now: Moment) -> Vec<(ClientId, &'static [u8])> {
        if ends_write && !self.readers.is_empty() {
            self.expected = TimedQueue::default();
            let readers = std::mem::take(&mut self.readers);
            self.expected.join(readers.iter().map(|(reader, _)| reader), now.plus(RESERVED_FOR));
            self.write_ended = Some(now);
        }
        if self.is_held() {
            return Vec::new();
        }
        if !self.expected.is_empty() {
            return self.wait_queue.first().map(|first| (first, b"standby".as_slice())).into_iter().collect();
        }
        self.wait_queue.take_next(1, 0, now).into_iter().map(|client| (client, b"next".as_slice())).collect()
    }

    /// Removes a waiting writer. Returns whether it was the last one, so that readers may enter.
    pub(super) fn stop_waiting(&mut self, kind: LockKind, owner: Owner) -> bool {
        kind == LockKind::Write && self.waiting.leave(owner) && self.waiting.is_empty()
    }

    pub(super) fn release(&mut self, kind: LockKind, owner: Owner, left: u32) -> Release {
        match self.own(kind, owner) {
            Some(own) if left > 0 => {
                own.count = left;
                Release::StillHeld
            }
            Some(_) => {
                self.holds.retain(|hold| hold.mode != kind.mode() || hold.owner != owner);
                Release::Freed { others: Others::Nobody }
            }
            None => Release::NotHeld { holder: self.holds.first().map(|hold| hold.owner.to_string()) },
        }
    }

    pub(super) fn shown(&self, now: Moment) -> Option<(Vec<Holder>, Option<Mode>, Moment)> {
        let until = self.holds.iter().map(|hold| hold.until).max()?;
        let writer = self.holds.iter().find(|hold| hold.mode == Some(Mode::Write));
        let mode = writer.or(self.holds.first())?.mode;
        Some((self.holds.iter().map(|hold| hold.shown(now)).collect(), mode, until))
    }

    pub(super) fn force(&mut self, kind: LockKind) -> bool {
        let is_written = self.holds.iter().any(|hold| hold.mode == Some(Mode::Write));
        let is_held = self.is_held() && is_written == (kind == LockKind::Write);
        if is_held {
            self.holds.clear();
        }
        is_held
    }

    pub(super) fn own(&mut self, kind: LockKind, owner: Owner) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.mode == kind.mode() && hold.owner == owner)
    }
}
