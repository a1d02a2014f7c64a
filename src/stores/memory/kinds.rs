//! The requests of each kind of lock, on the memory store's data.

use crate::ident::{LockName, Owner};
use crate::seam::capabilities::CachedCheck;
use crate::seam::{Answer, Attempt, Claim, Counting, Handoff, Kind, Release};
use crate::stores::memory::counted::{Counted, CountedKind, FREED};
use crate::stores::memory::lock::{Hold, Lock, LockKind};
use crate::stores::memory::state::{Access, Context, MemoryKind, recall_channel, rw_channel};
use crate::time::Moment;

pub(super) fn of(kind: Kind) -> &'static dyn MemoryKind {
    match kind {
        Kind::Mutex | Kind::Fenced => &LockKind::Plain,
        Kind::Fair => &LockKind::Fair,
        Kind::Token => &LockKind::Token,
        Kind::Read => &LockKind::Read,
        Kind::Write => &LockKind::Write,
        Kind::Semaphore => &CountedKind::Semaphore,
        Kind::Permits => &CountedKind::Permits,
        Kind::Latch => &CountedKind::Latch,
        Kind::Signal => &CountedKind::Signal,
    }
}

fn channel_of_one(channel: &str, owner: Owner) -> String {
    format!("{channel}:{owner}")
}

/// While the store has no more locks than this, an unused lock stays until the next sweep, so that the next
/// hold allocates nothing.
const SPARE: usize = 1_000;

/// Runs a request on the lock, whose expired holds [`MemoryAccess`](super::access::MemoryAccess) has removed.
fn with_lock<T>(
    access: &mut Access<'_>,
    name: &LockName,
    request: impl FnOnce(&mut Lock, &Context<'_>) -> T,
) -> T {
    let Access { state, context } = access;
    let lock = match state.locks.get_mut(name.key()) {
        Some(lock) => lock,
        None => state.locks.entry(name.key().into()).or_default(),
    };
    let result = request(lock, context);
    if lock.is_empty() && state.locks.len() > SPARE {
        state.locks.remove(name.key());
    }
    result
}

impl LockKind {
    /// Wakes those who may take the lock now: all listeners of a plain or read-write lock, the first owner in
    /// a fair lock's queue, and the clients that `pass_on` returns. Waiters for a token lock poll.
    fn publish(self, lock: &mut Lock, context: &Context<'_>, name: &LockName, ends_write: bool) {
        let key = name.key();
        match self {
            LockKind::Plain => context.notify(key),
            LockKind::Fair => {
                if let Some(first) = lock.queue.first() {
                    context.notify(&channel_of_one(key, first));
                }
            }
            LockKind::Token => {}
            LockKind::Read | LockKind::Write => {
                let told = lock.pass_on(ends_write, context.now);
                context.notify(&rw_channel(key));
                told.into_iter().for_each(|(client, word)| context.tell(key, client, word));
            }
        }
    }
}

impl MemoryKind for LockKind {
    fn channel(&self, claim: &Claim) -> Option<String> {
        let key = claim.name.key();
        match self {
            LockKind::Plain => Some(key.to_owned()),
            LockKind::Fair => Some(channel_of_one(key, claim.owner)),
            LockKind::Token => None,
            LockKind::Read | LockKind::Write => Some(rw_channel(key)),
        }
    }

    fn attempt(&self, access: &mut Access<'_>, claim: &Claim, count: u32) -> Answer<Attempt> {
        let granted = with_lock(access, &claim.name, |lock, context| {
            let granted = lock.attempt(*self, claim, count, context.now);
            if claim.waits && lock.is_heard() && matches!(granted, Err(Attempt::Busy { .. })) {
                context.notify(&recall_channel(claim.name.key()));
            }
            granted
        });
        Ok(match granted {
            Ok(()) => Attempt::granted(access.fence(claim.name.key(), claim.wants_fence)),
            Err(attempt) => attempt,
        })
    }

    fn release(&self, access: &mut Access<'_>, claim: &Claim, left: u32) -> Release {
        with_lock(access, &claim.name, |lock, context| {
            let lets_readers_in = lock.stop_waiting(*self, claim.owner);
            let release = lock.release(*self, claim.owner, left);
            let is_freed = matches!(release, Release::Freed { .. });
            if lets_readers_in || is_freed {
                self.publish(lock, context, &claim.name, is_freed && *self == LockKind::Write);
            }
            release
        })
    }

    fn clean_up(&self, access: &mut Access<'_>, claim: &Claim) -> Release {
        if *self == LockKind::Fair {
            with_lock(access, &claim.name, |lock, context| {
                let was_first = lock.queue.first() == Some(claim.owner);
                lock.queue.leave(claim.owner);
                if was_first && !lock.is_held() {
                    self.publish(lock, context, &claim.name, false);
                }
            });
        }
        self.release(access, claim, 0)
    }

    fn has_line(&self) -> bool {
        *self == LockKind::Write
    }

    fn leave_line(&self, access: &mut Access<'_>, claim: &Claim) {
        with_lock(access, &claim.name, |lock, context| match self {
            LockKind::Plain | LockKind::Fair | LockKind::Token => {}
            LockKind::Read => drop(lock.readers.leave(claim.owner.client())),
            LockKind::Write => {
                lock.wait_queue.leave(claim.owner.client());
                self.publish(lock, context, &claim.name, false);
            }
        });
    }

    fn renew(&self, access: &mut Access<'_>, claim: &Claim) -> bool {
        let end = access.context.now.plus(claim.lease);
        with_lock(access, &claim.name, |lock, _| {
            lock.own(*self, claim.owner).map(|own| own.until = own.until.max(end)).is_some()
        })
    }

    /// Whether others want the lock. Waiters that spin are not seen, because they do not listen. After this
    /// call each waiter's attempt sends the holder a message (a recall).
    fn hear(&self, access: &mut Access<'_>, claim: &Claim) -> CachedCheck {
        let key = claim.name.key();
        with_lock(access, &claim.name, |lock, context| {
            let is_wanted = match self {
                LockKind::Plain | LockKind::Token => context.is_listened_to(key),
                LockKind::Fair => lock.queue.first().is_some(),
                LockKind::Read | LockKind::Write => {
                    context.is_listened_to(&rw_channel(key)) || !lock.wait_queue.is_empty()
                }
            };
            match lock.own(*self, claim.owner).map(|own| own.is_heard = true) {
                None => CachedCheck::Lost,
                Some(()) if is_wanted => CachedCheck::Wanted,
                Some(()) => CachedCheck::Stays,
            }
        })
    }

    fn hand_off(&self, access: &mut Access<'_>, from: &Claim, to: &Claim) -> Handoff {
        let is_moved = with_lock(access, &to.name, |lock, context| {
            lock.own(*self, from.owner).map(|own| *own = Hold::new(*self, to, 1, context.now)).is_some()
        });
        match is_moved {
            true => Handoff::Granted { fence: access.fence(to.name.key(), to.wants_fence) },
            false => Handoff::Lost,
        }
    }

    /// Sets the end of a hold. `false` without a hold, and for read-write locks, which do not support it.
    fn expire_at(&self, access: &mut Access<'_>, claim: &Claim, end: Moment) -> bool {
        self.mode().is_none()
            && with_lock(access, &claim.name, |lock, _| {
                lock.own(*self, claim.owner).map(|own| own.until = end).is_some()
            })
    }

    fn force(&self, access: &mut Access<'_>, name: &LockName) -> bool {
        with_lock(access, name, |lock, context| {
            let was_held = lock.force(*self);
            if was_held {
                self.publish(lock, context, name, false);
            }
            was_held
        })
    }
}

fn with_counted<T>(
    kind: CountedKind,
    access: &mut Access<'_>,
    claim: &Claim,
    request: impl FnOnce(&mut Counted, Moment) -> T,
) -> T {
    let Access { state, context } = access;
    let (key, now) = (claim.name.key(), context.now);
    let channel = kind.channel(key);
    let counted = state.counted.entry((kind, key.into())).or_default();
    let before = counted.expire(now);
    let result = request(counted, now);
    let (is_for_all, signalled, told) = counted.news(before, now);
    if is_for_all {
        context.notify(&channel);
    }
    signalled.into_iter().for_each(|owner| context.notify(&channel_of_one(&channel, owner)));
    told.into_iter().for_each(|client| context.tell(key, client, b"next"));
    result
}

impl MemoryKind for CountedKind {
    fn channel(&self, claim: &Claim) -> Option<String> {
        let channel = CountedKind::channel(*self, claim.name.key());
        Some(match self {
            CountedKind::Semaphore | CountedKind::Permits | CountedKind::Latch => channel,
            CountedKind::Signal => channel_of_one(&channel, claim.owner),
        })
    }

    fn has_line(&self) -> bool {
        matches!(self, CountedKind::Semaphore | CountedKind::Permits)
    }

    fn leave_line(&self, access: &mut Access<'_>, claim: &Claim) {
        with_counted(*self, access, claim, |counted, _| counted.wait_queue.leave(claim.owner.client()));
    }

    fn attempt(&self, access: &mut Access<'_>, claim: &Claim, _count: u32) -> Answer<Attempt> {
        with_counted(*self, access, claim, |counted, now| match self {
            CountedKind::Semaphore => counted.take(claim, now),
            CountedKind::Permits => counted.take_leased(claim, now),
            CountedKind::Latch => Ok(counted.pass()),
            CountedKind::Signal => Ok(counted.notice(claim, now)),
        })
    }

    fn release(&self, access: &mut Access<'_>, claim: &Claim, _left: u32) -> Release {
        with_counted(*self, access, claim, |counted, _| match self {
            CountedKind::Semaphore => counted.give_back_taken(claim),
            CountedKind::Permits => counted.give_back_leased(claim),
            CountedKind::Latch | CountedKind::Signal => FREED,
        })
    }

    fn clean_up(&self, access: &mut Access<'_>, claim: &Claim) -> Release {
        if *self == CountedKind::Signal {
            with_counted(*self, access, claim, |counted, now| counted.leave(claim.owner, now));
        }
        self.release(access, claim, 0)
    }

    fn renew(&self, access: &mut Access<'_>, claim: &Claim) -> bool {
        with_counted(*self, access, claim, |counted, now| counted.renew(claim, now))
    }

    fn count(&self, access: &mut Access<'_>, claim: &Claim, what: &Counting) -> Option<i64> {
        with_counted(*self, access, claim, |counted, now| counted.change(*self, claim, what, now))
    }
}
