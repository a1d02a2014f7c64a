//! The question of a program: which deadlocks there are.

use std::collections::HashSet;

use crate::deadlock::Deadlock;
use crate::directory::ClientInfo;
use crate::engine::Engine;
use crate::engine::deadlock::SEEN_FOR;
use crate::engine::deadlock::again::read_again;
use crate::engine::deadlock::graph::{Link, RingKey, Wait, key_of, ring_of};
use crate::engine::deadlock::reading::{Asked, Reading, entry_wait};
use crate::error::Result;
use crate::park::Parker;
use crate::seam::Failure;
use crate::seam::directory::Place;
use crate::time::Moment;

const MOST_PAGES: usize = 100;

impl Engine {
    /// All rings that can be seen now, whosever threads are on them.
    pub(crate) fn deadlocks(&self) -> Result<Vec<Deadlock>> {
        self.usable("deadlocks")?;
        let own = self.stuck(self.clock.now());
        let directory = self.store.capabilities().directory;
        let here = self.announcer.here(self.clock.now());
        let asked = Asked {
            store: &*self.store,
            here: &here,
            clock: &self.clock,
            sees_others: directory.is_some(),
            deadline: Moment::NEVER,
            each: self.options.command_timeout,
        };
        let mut origins: Vec<Wait> = own.waits.iter().map(|own| own.wait.clone()).collect();
        let mut first = Reading::new(&asked, &own);
        let mut next = directory.map(|directory| (directory, Place::default()));
        for _ in 0..MOST_PAGES {
            let Some((directory, place)) = next.take() else { break };
            let page = directory.clients(&place, self.one_command()).map_err(Failure::into_read_error);
            let page = page.map_err(|error| error.during("deadlocks"))?;
            for (id, posted) in page.found.into_iter().filter(|(id, _)| *id != self.id) {
                let Some(info) = ClientInfo::read(id, &posted.text, posted.remaining) else { continue };
                origins.extend(info.uses.iter().filter_map(|one| entry_wait(id, one)));
                first.add_client(info);
            }
            next = page.next.map(|place| (directory, place));
        }
        let (mut rings, mut met): (Vec<Vec<Link>>, HashSet<RingKey>) = (Vec::new(), HashSet::new());
        for origin in &origins {
            rings.extend(ring_of(&mut first, origin).filter(|ring| met.insert(key_of(ring))));
        }
        if let Some(error) = first.refusal.take() {
            return Err(error.during("deadlocks"));
        }
        drop(first);
        if rings.is_empty() {
            return Ok(Vec::new());
        }
        // A wait that was over is out of its client's entry by then: see `SEEN_FOR`.
        Parker::new(&self.clock).park(self.clock.after(SEEN_FOR), None);
        let stuck = || self.stuck(self.clock.now());
        let again = read_again(&asked, &stuck, rings, &self.options.key_prefix);
        if let Some(error) = again.refusal {
            return Err(error.during("deadlocks"));
        }
        Ok(again.rings.into_iter().map(|(_, deadlock)| deadlock).collect())
    }
}
