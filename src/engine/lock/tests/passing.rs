//! How time passes in a small world.

use super::event::{Effect, Request};
use super::world::{Cleaning, Client, NOW, TICK, World, ticks};
use super::*;
use crate::time::Lease;

impl World {
    pub(super) fn tick(&mut self) {
        let caches =
            self.clients.iter().position(|client| client.lock.holds.iter().any(HoldState::is_cached));
        let waits =
            |(c, client): (usize, &Client)| Some(c) != caches && !client.lock.queue.tickets.is_empty();
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

/// Moves a moment one tick into the past, at most to `floor` ticks ago: all older moments count as equal.
fn age(moment: &mut Moment, floor: u64) {
    if *moment != Moment::NEVER {
        *moment = moment.minus(TICK).max(NOW.minus(ticks(floor)));
    }
}

/// The greatest age, in ticks: an older moment is given this age.
const OLDEST: u64 = 4;

impl Client {
    fn tick(&mut self) {
        let lock = &mut self.lock;
        lock.holds.iter_mut().for_each(tick);
        let caching = &mut lock.caching;
        [&mut caching.began, &mut caching.last].into_iter().for_each(|moment| age(moment, OLDEST));
        caching.ends.iter_mut().for_each(|moment| age(moment, 0));
        age(&mut self.watch_at, 0);
        self.renewals.iter_mut().for_each(|(_, at)| age(at, 0));
        for user in &mut self.users {
            age(&mut user.wake_at, 0);
            age(&mut user.poll_at, 0);
            user.pause_until.iter_mut().for_each(|moment| age(moment, 0));
        }
        let requests =
            self.wires.iter_mut().flatten().chain(self.answers.iter_mut().map(|(request, _)| request));
        requests.filter_map(Request::sent).for_each(|sent| age(sent, OLDEST));
        for (_, until, state) in &mut self.cleanups {
            age(until, 0);
            if *state == Cleaning::Pauses {
                *state = Cleaning::Due;
            }
        }
    }

    /// Resets what no rule reads any more: recalls, past moments, and the caching score (at each release the
    /// explorer decides whether it suffices). So states that differ only in these count as one.
    pub(super) fn forget_what_is_past(&mut self) {
        let recalls = std::mem::take(&mut self.recalls);
        let anew = |before: u64| if before == recalls { 0 } else { u64::MAX };
        for own in &mut self.lock.holds {
            own.kept_alive_at = NOW;
            if let Some(recallable) = &mut own.recallable {
                recallable.heard = anew(recallable.heard);
            }
        }
        self.users.iter_mut().for_each(|user| user.heard = user.heard.map(anew));
        let holds = &self.lock.holds;
        self.renewals.retain(|(serial, _)| holds.iter().any(|own| own.hold.0.serial == *serial));
        let lock = &mut self.lock;
        for own in &mut lock.holds {
            let levels = own.levels.open.len();
            own.levels = Default::default();
            (0..levels).for_each(|_| {
                own.levels.add(Lease::Renewed);
            });
        }
        // Forgets the retired numbers under which no grant can arrive any more.
        let (users, outbox, wires, answers) = (&self.users, &self.outbox, &self.wires, &self.answers);
        let requests = wires.iter().flatten().chain(answers.iter().map(|(request, _)| request));
        let grants: Vec<_> = requests.filter_map(Request::grants).collect();
        let hands_on = |effect: &Effect, number| matches!(effect, Effect::HandOff { number: other, .. } if *other == number);
        lock.retired.last.retain(|number| {
            let mut effects = users.iter().flat_map(|user| &user.outbox).chain(outbox);
            grants.contains(number)
                || users.iter().any(|user| user.number == *number)
                || effects.any(|effect| hands_on(effect, *number))
        });
        lock.contended = None;
        lock.local_handoffs = lock.local_handoffs.map(|(handed, _)| (handed, NOW));
        let caching = &mut lock.caching;
        (caching.score, caching.dropped, caching.recalled) = (0, None, None);
        if caching.ends.is_none() {
            (caching.began, caching.last) = (NOW, NOW);
        }
    }
}

fn tick(own: &mut HoldState<TestHold>) {
    age(&mut own.until, 0);
    if let Stage::Cached(CachedFor::UntilRecall(since)) = &mut own.stage {
        age(since, OLDEST);
    }
    if let Some(recallable) = &mut own.recallable
        && recallable.gap < FAR
    {
        age(&mut recallable.next_check, 0);
    }
}
