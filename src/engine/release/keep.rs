//! The hold of a dropped guard that is kept for a turn, and the thread that gives back what nobody comes for.
//!
//! `hold/turn.rs` says when a hold is kept. It stays among the entry's holds, so that the lock counts as held
//! here, but is no thread's until its own takes it again.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted};
use crate::engine::calls::{Call, Calls};
use crate::engine::core::Core;
use crate::engine::hold::turn::{IDLE, Keeping, Watched};
use crate::engine::hold::{Hold, LockEntry};
use crate::engine::release::handoff::HandoffStart;
use crate::ident::ThreadMark;
use crate::observe::spans::WaitSpan;
use crate::park::Service;
use crate::time::Moment;

impl Engine {
    /// Keeps the hold of a guard that was dropped, its last level ended at `now`, if the thread is likely to
    /// be back at once; whether it is kept. If not, it is to be released.
    pub(super) fn keeps(&self, hold: &Arc<Hold>, now: Moment) -> bool {
        if !hold.can_be_kept() || hold.loss_at(now).is_some() || self.calls.is_closed() {
            return false;
        }
        let Some(keeper) = self.keeper() else { return false };
        let held = now.since(hold.since());
        // Noted first: from the next step on others may give it back.
        hold.note_kept(true);
        let Keeping::Kept { is_new } = hold.entry().keep(hold, ThreadMark::current().id(), now) else {
            hold.note_kept(false);
            return false;
        };
        if is_new {
            // Listed first, woken second: it looks at what is listed.
            self.core.keeper.locks.lock().push(Arc::clone(hold.entry()));
        }
        keeper.look_by(now.plus(IDLE));
        self.tell_released(hold, held);
        true
    }

    fn keeper(&self) -> Option<&Service> {
        let start = || {
            let (service, parker) = Service::new(&self.clock);
            let (service, core, calls) = (Arc::new(service), Arc::clone(&self.core), Arc::clone(&self.calls));
            let own = Arc::clone(&service);
            let work = move || own.run(&parker, |_| core.give_back_idle(&calls));
            service.start("leasehold-turn", work).ok().map(|()| service)
        };
        self.core.keeper.service.get_or_init(start).as_deref()
    }

    /// Gives the thread its kept hold again, without a request. `None`: it is given back, since it is lost, or
    /// this call asks for something else than it is; the call goes on by asking the store.
    pub(crate) fn take_again(
        &self,
        call: &AcquireCall<'_>,
        hold: Arc<Hold>,
        (begun, under): (Moment, &Call),
    ) -> Option<Granted> {
        if !call.may_keep() || !hold.holder.is_this_task() {
            self.core.give_back(&hold, self.clock.now(), under.another());
            return None;
        }
        let level = hold.begin_again(begun);
        let now = self.clock.now();
        // Begun first, looked second. Pairs with `Hold::lose`, which changes the phase first, and looks second
        // whether anybody is to hear of it.
        if hold.loss_at(now).is_some() {
            hold.note_kept(true);
            hold.end_level(Some(level));
            self.core.give_back(&hold, now, under.another());
            return None;
        }
        self.watch(&hold); // without a level it was not to be renewed
        self.registry.note_grant();
        let span = WaitSpan::open(call.name.given(), call.kind.label());
        self.tell_granted(call, &hold, (begun, 0, None), &span);
        Some(Granted { hold, level })
    }

    /// Gives back what is kept of this lock: to the program it is not held. What this thread asks then goes
    /// behind the release.
    pub(crate) fn give_back_kept(&self, entry: &LockEntry) {
        if let Some(hold) = entry.take_kept() {
            let now = self.clock.now();
            self.core.give_back(&hold, now, self.calls.begin().detached());
        }
    }
}

impl Core {
    /// Gives back a hold that was kept, and was taken out for this.
    pub(crate) fn give_back(self: &Arc<Core>, hold: &Arc<Hold>, now: Moment, call: Call) {
        if !self.still_held(hold, 0, now) {
            return;
        }
        let settled = || self.settle_later(hold, call.another());
        if let HandoffStart::Nobody | HandoffStart::Others = self.start_handoff(hold, now, settled) {
            self.release_later(hold, now, call);
            // As in `drop_level`.
            self.registry.remove(hold);
        }
    }

    /// Gives back what nobody has come for, and says when to look next. The keeper's thread runs it: it sends
    /// on nobody's time.
    fn give_back_idle(self: &Arc<Core>, calls: &Arc<Calls>) -> Moment {
        let locks = std::mem::take(&mut *self.keeper.locks.lock());
        let mut next = Moment::NEVER;
        let mut watched = Vec::new();
        for entry in locks {
            let now = self.clock.now();
            match entry.watch_turn(now) {
                Watched::Over => continue,
                Watched::Until(moment) => next = next.min(moment),
                Watched::Idle(hold) => {
                    self.give_back(&hold, now, calls.begin().detached());
                    next = next.min(now.plus(IDLE));
                }
            }
            watched.push(entry);
        }
        self.keeper.locks.lock().append(&mut watched);
        next
    }
}
