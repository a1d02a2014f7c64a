//! How time passes in a small world.

use super::store::Request;
use super::world::{Cleaning, Client, NOW, TICK, World, ticks};
use crate::engine::tests::machine::*;
use crate::time::Moment;

impl World {
    pub(super) fn tick(&mut self) {
        let caches =
            self.clients.iter().position(|client| matches!(client.machine.slot, Slot::Cached { .. }));
        let waits = |(c, client): (usize, &Client)| Some(c) != caches && !client.machine.queue.is_empty();
        let is_waited_for = caches.is_some() && self.clients.iter().enumerate().any(waits);
        self.idle_wait = if is_waited_for { self.idle_wait + 1 } else { 0 };
        self.store.tick();
        for c in 0..self.clients.len() {
            self.clients[c].tick();
            for t in 0..self.clients[c].users.len() {
                let has_ended = self.counts_on(c, t).is_none();
                let user = &mut self.clients[c].users[t];
                user.saw_end |= user.levels > 0 && has_ended;
            }
        }
    }
}

/// A tick nearer, but no further back than `floor` ticks ago.
fn age(moment: &mut Moment, floor: u64) {
    if *moment != Moment::NEVER {
        *moment = moment.minus(TICK).max(NOW.minus(ticks(floor)));
    }
}

/// Older moments are as old as this.
const OLDEST: u64 = 4;

impl Client {
    fn tick(&mut self) {
        match &mut self.machine.slot {
            Slot::Held(hold) | Slot::HandingOff { from: hold, .. } | Slot::Returning { hold, .. } => {
                hold.tick()
            }
            Slot::Cached { hold, since, .. } => {
                hold.tick();
                age(since, OLDEST);
            }
            Slot::Free => {}
        }
        if let Some(slice) = &mut self.machine.slice {
            age(&mut slice.began, OLDEST);
            age(&mut slice.ends, 0);
        }
        self.machine.queue.iter_mut().for_each(|ticket| age(&mut ticket.poll_at, 0));
        let requests =
            self.wires.iter_mut().flatten().chain(self.answers.iter_mut().map(|(request, _)| request));
        requests.filter_map(Request::sent).for_each(|sent| age(sent, OLDEST));
        for (_, event) in &mut self.answers {
            if let Some(
                Event::Answer { sent, .. }
                | Event::Counted { sent, .. }
                | Event::HandoffAnswer { sent, .. }
                | Event::RenewAnswer { sent, .. },
            ) = event
            {
                age(sent, OLDEST);
            }
        }
        for (_, until, state) in &mut self.cleanups {
            age(until, 0);
            if *state == Cleaning::Pauses {
                *state = Cleaning::Due;
            }
        }
    }

    /// Only whether a recall came since a grant makes states differ, not how many came.
    pub(super) fn begin_counting_anew(&mut self) {
        let recalls = std::mem::take(&mut self.recalls);
        if let Slot::Held(hold) | Slot::Cached { hold, .. } = &mut self.machine.slot {
            hold.unrecalled = hold.unrecalled.filter(|before| *before == recalls).map(|_| 0);
        }
        for ticket in &mut self.machine.queue {
            ticket.recalls = ticket.recalls.map(|before| if before == recalls { 0 } else { u64::MAX });
        }
    }
}

impl Hold {
    fn tick(&mut self) {
        [&mut self.until, &mut self.renew_at, &mut self.check_at]
            .into_iter()
            .for_each(|moment| age(moment, 0));
    }
}
