//! The halves of a read-write lock.

use crate::ident::{LockName, Owner};
use crate::seam::{Answer, Attempt, Claim, Release, Snapshot};
use crate::stores::memory::kinds::kind::MemoryKind;
use crate::stores::memory::parties::{Half, Parties};
use crate::stores::memory::state::{Turn, rw_channel};

/// Runs one request on the read-write lock of `name`, after expired leases were removed.
fn with_parties<T>(
    turn: &mut Turn<'_>,
    name: &LockName,
    request: impl FnOnce(&mut Parties, &mut Turn<'_>) -> T,
) -> T {
    let mut parties = turn.state.read_writes.remove(name.key()).unwrap_or_default();
    parties.expire(turn.now);
    let result = request(&mut parties, turn);
    if !parties.is_empty() {
        turn.state.read_writes.insert(name.key().into(), parties);
    }
    result
}

impl MemoryKind for Half {
    fn channel(&self, claim: &Claim) -> Option<String> {
        Some(rw_channel(claim.name.key()))
    }

    fn attempt(&self, turn: &mut Turn<'_>, claim: &Claim, count: u32) -> Answer<Attempt> {
        with_parties(turn, &claim.name, |parties, turn| {
            Ok(match parties.attempt(*self, claim, count, turn.now) {
                Ok(()) => Attempt::granted(turn.fence(claim.name.key(), claim.wants_fence)),
                Err(attempt) => attempt,
            })
        })
    }

    fn release(&self, turn: &mut Turn<'_>, claim: &Claim, left: u32) -> Release {
        with_parties(turn, &claim.name, |parties, turn| {
            let lets_readers_in = parties.stop_waiting(*self, claim);
            let release = parties.release(*self, claim, left);
            if lets_readers_in || matches!(release, Release::Freed { .. }) {
                turn.notify(&rw_channel(claim.name.key()));
            }
            release
        })
    }

    fn renew(&self, turn: &mut Turn<'_>, claim: &Claim) -> bool {
        with_parties(turn, &claim.name, |parties, turn| {
            parties.prolong(*self, claim, turn.now.plus(claim.lease))
        })
    }

    fn inspect(&self, turn: &mut Turn<'_>, name: &LockName, owner: Owner) -> Option<Snapshot> {
        with_parties(turn, name, |parties, turn| parties.inspect(*self, owner, turn.now))
    }

    fn force(&self, turn: &mut Turn<'_>, name: &LockName) -> bool {
        with_parties(turn, name, |parties, turn| {
            let was_held = parties.force(*self);
            if was_held {
                turn.notify(&rw_channel(name.key()));
            }
            was_held
        })
    }
}
