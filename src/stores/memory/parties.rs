//! Read-write locks in this process.

use crate::ident::Owner;
use crate::inspect::{Holder, Mode};
use crate::seam::{Attempt, Claim, Others, PLACE_LASTS, Release};
use crate::time::Moment;

/// All holds of one lock, and the waiting writers, which go before readers.
#[derive(Default)]
pub(super) struct Parties {
    holds: Vec<Party>,
    waiting: Vec<(Owner, Moment)>,
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
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.waiting.is_empty()
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
        let may = match (half, writer) {
            (Mode::Read, Some(writer)) => writer == claim.owner,
            (Mode::Read, None) => !claim.writers_first || self.waiting.is_empty(),
            (Mode::Write, _) => self.holds.is_empty(),
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
            return Err(Attempt::Busy { retry_after: longest.map(|until| until.since(now)) });
        }
        self.holds.push(Party { half, owner: claim.owner, count, until });
        Ok(())
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
