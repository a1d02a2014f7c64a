//! Read-write locks in this process.

use std::time::Duration;

use crate::ident::{ClientId, Owner};
use crate::inspect::{Holder, Mode};
use crate::seam::{Attempt, Claim, Others, PLACE_LASTS, QueueMode, Release};
use crate::stores::memory::line::{KEPT, Line};
use crate::time::Moment;

/// Once the first writer has waited for this long, readers that come later wait for it.
const PATIENCE: Duration = Duration::from_millis(50);

/// All holds of one read-write lock, and those that wait for it.
#[derive(Default)]
pub(super) struct Parties {
    holds: Vec<Party>,
    /// The waiting writers that go before readers.
    waiting: Vec<(Owner, Moment)>,
    /// The clients whose writers wait.
    pub(super) line: Line,
    /// The clients whose readers wait since the last write, and until when each counts as alive.
    readers: Vec<(ClientId, Moment)>,
    /// Those of them that had not come when the last write ended, and until when they may.
    expected: (Vec<ClientId>, Moment),
    /// When the last write ended that readers waited for.
    phase: Option<Moment>,
}

struct Party {
    half: Mode,
    owner: Owner,
    count: u32,
    until: Moment,
}

impl Parties {
    /// As on Redis, a writer's own read hold outlasts its write hold.
    pub(super) fn expire(&mut self, now: Moment) {
        let writer = self.holds.iter().find(|party| party.half == Mode::Write && party.until > now);
        let writer = writer.map(|party| party.owner);
        self.holds.retain(|party| party.until > now || Some(party.owner) == writer);
        self.waiting.retain(|(_, until)| *until > now);
        self.line.expire(now);
        self.readers.retain(|(_, until)| *until > now);
        if self.expected.1 <= now {
            self.expected.0.clear();
        }
    }

    /// No reader of this client waits any more.
    pub(super) fn forget_reader(&mut self, client: ClientId) {
        self.readers.retain(|(reader, _)| *reader != client);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
            && self.waiting.is_empty()
            && self.line.is_empty()
            && self.readers.is_empty()
            && self.expected.0.is_empty()
    }

    /// `Ok`: granted; the fencing token is added later.
    pub(super) fn attempt(
        &mut self,
        half: Mode,
        claim: &Claim,
        count: u32,
        now: Moment,
    ) -> Result<(), Attempt> {
        let until = now.plus(claim.lease);
        if let Some(own) = self.own(half, claim) {
            (own.count, own.until) = (count, own.until.max(until));
            return Ok(());
        }
        if count > 1 {
            return Err(Attempt::Lost);
        }
        let writer = self.holds.iter().find(|party| party.half == Mode::Write).map(|party| party.owner);
        let client = claim.owner.client();
        let may = match (half, writer) {
            (Mode::Read, Some(writer)) => writer == claim.owner,
            (Mode::Read, None) => {
                let comes_second = claim.writers_first && !self.waiting.is_empty();
                !comes_second && !self.is_held_back(claim, now)
            }
            (Mode::Write, _) => self.holds.is_empty() && self.may_write(claim),
        };
        self.stop_waiting(half, claim);
        if !may {
            if half == Mode::Write && claim.writers_first && claim.waits {
                self.waiting.push((claim.owner, now.plus(PLACE_LASTS)));
            }
            // Readers wait for another's write hold, not for that writer's own read hold.
            let in_its_way = |party: &&Party| half == Mode::Write || party.half == Mode::Write;
            let holds = self.holds.iter().filter(in_its_way).map(|party| party.until);
            let longest = holds.chain(self.waiting.iter().map(|(_, until)| *until)).max();
            let retry_after = longest.map(|until| until.since(now));
            if half == Mode::Write {
                return Err(self.line.stand(claim, now, retry_after));
            }
            if claim.waits && !claim.writers_first {
                self.readers.retain(|(reader, _)| *reader != client);
                self.readers.push((client, now.plus(PLACE_LASTS)));
            }
            return Err(Attempt::Busy { retry_after });
        }
        match half {
            Mode::Read => {
                self.readers.retain(|(reader, _)| *reader != client);
                self.expected.0.retain(|reader| *reader != client);
            }
            Mode::Write => self.line.leave(client),
        }
        self.holds.push(Party { half, owner: claim.owner, count, until });
        Ok(())
    }

    /// Whether a writer comes before this reader: it waited for too long by the time that the reader came, or the
    /// free lock is kept for it. The readers that waited when the last write ended enter all the same.
    fn is_held_back(&self, claim: &Claim, now: Moment) -> bool {
        let is_kept = self.holds.is_empty() && self.line.kept_for_others(None) > 0;
        let came = now.minus(claim.waited);
        is_kept || self.a_writer_waits_long(now) && came > self.phase.unwrap_or_default()
    }

    /// Whether a waiting writer goes before readers that come later.
    pub(super) fn a_writer_waits_long(&self, now: Moment) -> bool {
        self.line.first_since().is_some_and(|since| now.since(since) >= PATIENCE)
    }

    /// Whether a free lock is kept for nobody else.
    fn may_write(&self, claim: &Claim) -> bool {
        let is_next = claim.queue_mode == QueueMode::IsNext || claim.queue_mode == QueueMode::Barges;
        is_next || self.line.kept_for_others(Some(claim.owner.client())) == 0 && self.expected.0.is_empty()
    }

    /// After a release, or when a writer waits no more: the clients to notify, and of what. The readers that waited
    /// for a write go before the next writer, who asks soon in case that they do not come.
    pub(super) fn pass_on(&mut self, ends_write: bool, now: Moment) -> Vec<(ClientId, &'static [u8])> {
        if ends_write && !self.readers.is_empty() {
            let readers = std::mem::take(&mut self.readers).into_iter().map(|(reader, _)| reader);
            self.expected = (readers.collect(), now.plus(KEPT));
            self.phase = Some(now);
        }
        if !self.holds.is_empty() {
            return Vec::new();
        }
        if !self.expected.0.is_empty() {
            return self.line.first().map(|first| (first, b"standby".as_slice())).into_iter().collect();
        }
        self.line.tell(1, 0, now).into_iter().map(|client| (client, b"next".as_slice())).collect()
    }

    /// Whether a waiting writer goes before readers.
    pub(super) fn have_writers_waiting(&self, now: Moment) -> bool {
        self.waiting.iter().any(|(_, until)| *until > now)
    }

    /// Removes a waiting writer; returns whether readers may enter now.
    pub(super) fn stop_waiting(&mut self, half: Mode, claim: &Claim) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(owner, _)| half != Mode::Write || *owner != claim.owner);
        self.waiting.len() < before && self.waiting.is_empty()
    }

    pub(super) fn release(&mut self, half: Mode, claim: &Claim, left: u32) -> Release {
        match self.own(half, claim) {
            Some(own) if left > 0 => {
                own.count = left;
                Release::StillHeld
            }
            Some(_) => {
                self.holds.retain(|party| party.half != half || party.owner != claim.owner);
                Release::Freed { others: Others::Nobody }
            }
            None => Release::NotHeld { holder: self.holds.first().map(|party| party.owner.to_string()) },
        }
    }

    /// Moves the hold's end to `until`, if later.
    pub(super) fn prolong(&mut self, half: Mode, claim: &Claim, until: Moment) -> bool {
        let own = self.own(half, claim);
        own.map(|own| own.until = own.until.max(until)).is_some()
    }

    /// Mode, holders and end; `None`: free.
    pub(super) fn shown(&self, now: Moment) -> Option<(Mode, Vec<Holder>, Moment)> {
        let writer = self.holds.iter().find(|party| party.half == Mode::Write && party.until > now);
        let mode = if writer.is_some() { Mode::Write } else { Mode::Read };
        let live = |party: &&Party| party.until > now || writer.is_some_and(|one| one.owner == party.owner);
        let until = self.holds.iter().filter(live).map(|party| party.until).max()?;
        let holders = self.holds.iter().filter(live).map(|party| Holder {
            hold_count: Some(party.count),
            mode: Some(party.half),
            remaining: Some(party.until.since(now)),
            ..Holder::new(party.owner.to_string())
        });
        Some((mode, holders.collect(), until))
    }

    /// Frees the lock if this half holds it.
    pub(super) fn force(&mut self, half: Mode) -> bool {
        let is_written = self.holds.iter().any(|party| party.half == Mode::Write);
        let is_held = !self.holds.is_empty() && is_written == (half == Mode::Write);
        if is_held {
            self.holds.clear();
        }
        is_held
    }

    fn own(&mut self, half: Mode, claim: &Claim) -> Option<&mut Party> {
        self.holds.iter_mut().find(|party| party.half == half && party.owner == claim.owner)
    }
}
