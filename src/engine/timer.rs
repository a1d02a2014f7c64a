//! The timer: one thread for each client, which notices ended windows and ended threads, and tells the
//! watchdog which renewals are due. It does no I/O and runs none of the program's code, so nothing delays it.

use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::core::Core;
use crate::engine::hold::{Hold, LocalLock, take_free};
use crate::engine::pace::{renewal_period, renewal_slack};
use crate::error::Result;
use crate::observe::LossReason;
use crate::observe::event::Event;
use crate::park::Parker;
use crate::time::Moment;

struct Timer {
    core: Arc<Core>,
    next_hung_up: Moment,
    /// Until when connections are checked, even if nothing is held.
    held_until: Moment,
}

/// Maximum number of locks taken from the timer table at a time.
const AT_A_TIME: usize = 256;

const LEAST: Duration = Duration::from_millis(1);

/// A sleeping thread does not notice that the machine was suspended, so the timer sleeps this long at most.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

const HUNG_UP_EVERY: Duration = Duration::from_millis(50);

/// The timer checks connections for this long after the last hold, so that the next hold need not wake it.
const HELD_LATELY: Duration = Duration::from_secs(1);

/// Shortest time between renewals after ended connections, because a server may end each new connection.
const HUNG_UP_APART: Duration = Duration::from_secs(1);

pub(crate) fn start(core: &Arc<Core>, parker: Parker) -> Result<()> {
    let now = core.clock.now();
    let mut timer = Timer { core: Arc::clone(core), next_hung_up: now, held_until: now };
    core.timer.start("leasehold-time", move || {
        let core = Arc::clone(&timer.core);
        core.timer.run(&parker, |woken_for| timer.round(&parker, woken_for));
    })
}

impl Timer {
    /// Handles what is due, checks connections, and returns when to continue: at the latest at `woken_for`,
    /// the time that a hold asked for. If that hold has ended, the next short hold need not wake the timer.
    fn round(&mut self, parker: &Parker, woken_for: Moment) -> Moment {
        if parker.take_bounds_ended() {
            let (mut holds, now) = (self.core.registry.holds(), self.core.clock.now());
            holds.retain(|hold| hold.bound.is_some() && self.check_hold(hold, now));
            self.core.renew_queued(holds);
        }
        let next = self.check(woken_for);
        let now = self.core.clock.now();
        if self.core.registry.first_check() != Moment::NEVER || woken_for != Moment::NEVER {
            self.held_until = now.plus(HELD_LATELY);
        }
        if now < self.held_until {
            if now >= self.next_hung_up {
                self.next_hung_up = self.check_connections(now);
            }
            self.core.announce(now);
            next.min(self.next_hung_up)
        } else {
            Moment::NEVER // nothing is held: the next hold wakes this thread
        }
    }

    fn check(&self, woken_for: Moment) -> Moment {
        let mut taken = Vec::new();
        loop {
            let now = self.core.clock.now();
            let due = self.take_due(now, &mut taken);
            if due.is_empty() {
                break;
            }
            if self.check_locks(&due, now, Duration::ZERO) {
                // Renewals that are due soon join these, so that many holds need few rounds.
                let slack = renewal_slack(self.core.options.lease);
                let soon = self.take_due(now.plus(slack), &mut taken);
                self.check_locks(&soon, now, slack);
            }
        }
        let now = self.core.clock.now();
        let first = self.core.registry.first_check();
        let longest = LONGEST_SLEEP.min(renewal_period(self.core.options.lease));
        let asked = if woken_for > now { woken_for } else { Moment::NEVER };
        first.min(asked).min(now.plus(longest)).max(now.plus(LEAST))
    }

    /// Takes locks with checks due by `by`. Locks whose mutex another thread has stay in `taken`, for later.
    fn take_due(&self, by: Moment, taken: &mut Vec<Arc<LocalLock>>) -> Vec<Arc<LocalLock>> {
        taken.append(&mut self.core.registry.take_due(by, AT_A_TIME));
        take_free(taken, |local| local)
    }

    /// Renews a sample of the holds if a connection has ended; returns when to check next.
    fn check_connections(&self, now: Moment) -> Moment {
        match self.core.store.capabilities.hung_up() {
            None => Moment::NEVER,
            Some(false) => now.plus(HUNG_UP_EVERY),
            Some(true) => {
                self.core.renew_some(now);
                now.plus(HUNG_UP_APART)
            }
        }
    }

    /// Handles the holds that are due within `slack`; returns whether any is to be renewed.
    fn check_locks(&self, locks: &[Arc<LocalLock>], now: Moment, slack: Duration) -> bool {
        let mut renewals = Vec::new();
        for local in locks {
            let mut due = local.holds_to_check(now.plus(slack));
            due.retain(|hold| self.check_hold(hold, now));
            local.plan_check();
            renewals.append(&mut due);
        }
        let is_any_renewed = !renewals.is_empty();
        self.core.renew_queued(renewals);
        is_any_renewed
    }

    /// Whether the hold is to be renewed. If so, the hold counts as queued.
    fn check_hold(&self, hold: &Arc<Hold>, now: Moment) -> bool {
        let by = now.plus(renewal_slack(hold.renewed_lease()));
        let is_renewed = self.is_to_be_kept(hold, now)
            && hold.with(|own| own.due() <= by && own.is_renewable() && !replace(&mut own.is_queued, true));
        hold.plan_check(now);
        is_renewed
    }

    fn is_to_be_kept(&self, hold: &Arc<Hold>, now: Moment) -> bool {
        if hold.is_releasing() {
            return false;
        }
        let orphaned = hold.is_orphaned();
        // A cached hold of an ended thread is not abandoned: the cache thread releases it.
        if orphaned && !hold.is_cached() && hold.is_first(|own| &mut own.is_abandoned) {
            let (name, kind, owner) = (Arc::clone(hold.name()), hold.kind().label(), hold.owner());
            self.core.reporter.observe_later(move |observer| {
                observer.event(&Event::Abandoned { name: name.given(), kind, owner });
            });
        }
        if hold.is_live(now, &self.core.reporter) {
            return !orphaned;
        }
        self.let_lapse(hold, now);
        false
    }

    fn let_lapse(&self, hold: &Arc<Hold>, now: Moment) {
        let is_first = hold.is_first(|own| &mut own.has_lapsed);
        if is_first
            && hold.with(|own| own.is_in_doubt())
            && matches!(hold.loss_at(now), Some(LossReason::Expired | LossReason::HeldTooLong))
        {
            self.core.undo_renewal(hold, now);
        }
        if hold.holder.thread().is_none() || hold.is_cached() {
            self.core.registry.remove(hold); // no thread will try to release it
        } else if is_first && !hold.with(|own| own.levels.was_renewed) {
            self.core.registry.remember_lapsed(hold);
        }
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::engine::hold::Holder;
    use crate::ident::Owner;
    use crate::observe::reporter::Reporter;
    use crate::seam::{Claim, Kind, Store};
    use crate::stores::memory::MemoryStore;
    use crate::time::{Clock, Lease, ManualClock};

    /// A renewal is due, and more than `AT_A_TIME` others are due 1 ms later, within `renewal_slack`.
    #[test]
    fn renewals_due_soon_join_a_batch_of_limited_size() {
        let (clock, options) = (ManualClock::new(), Options::default());
        let (begun, lease) = (clock.now(), options.lease);
        clock.advance(renewal_period(lease));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new().open());
        let reporter = Arc::new(Reporter::new(None));
        let (core, _parkers) = Core::new(options, Clock::Manual(clock), store.into(), reporter);
        let held = |at: usize| {
            let name = crate::tests::name(&at.to_string());
            let local = core.registry.local(Kind::Mutex, &name);
            let claim = Claim::new(Kind::Mutex, &name, Owner::new(core.id, 1), lease);
            let sent = if at == 0 { begun } else { begun.plus(LEAST) };
            let hold = Hold::new(&claim, Holder::Guard { taker: None }, sent, lease, &local);
            let (hold, state, _level) = hold.begin(Lease::Renewed);
            local.enter(state, &mut None, &core.clock).unwrap();
            hold
        };
        let _holds: Vec<Arc<Hold>> = (0..3 * AT_A_TIME).map(held).collect();
        let timer = Timer { core: Arc::clone(&core), next_hung_up: Moment::NEVER, held_until: Moment::NEVER };
        timer.check(Moment::NEVER);
        assert_eq!(core.inbox.lock().renewals.len(), 1 + AT_A_TIME);
    }
}
