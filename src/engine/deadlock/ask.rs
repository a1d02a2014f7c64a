//! The question of a program: which deadlocks there are.

use std::collections::HashSet;

use crate::deadlock::Deadlock;
use crate::directory::ClientInfo;
use crate::engine::Engine;
use crate::engine::deadlock::graph::{Link, RingKey, View, Wait, are_held, are_waited_for, key_of, ring_of};
use crate::engine::deadlock::maybe::{Maybe, maybe_ring};
use crate::engine::deadlock::reading::{Asked, Reading, own_wait, told_wait};
use crate::engine::deadlock::shown::{shown, shown_maybe};
use crate::error::Result;
use crate::ident::ClientId;
use crate::seam::directory::Place;
use crate::time::{Moment, wall_ms};

/// So many pages of entries are read at most.
const MOST_PAGES: usize = 100;

impl Engine {
    /// All rings that can be seen now, whosever threads are on them.
    pub(crate) fn deadlocks(&self) -> Result<Vec<Deadlock>> {
        self.usable("deadlocks")?;
        let after = self.options.deadlocks_after;
        let own = self.registry.stuck(self.clock.now(), after, wall_ms());
        let directory = self.store.capabilities().directory;
        let asked = Asked {
            store: &*self.store,
            id: self.id,
            clock: &self.clock,
            sees_others: directory.is_some(),
            deadline: Moment::NEVER,
            each: self.options.command_timeout,
        };
        let mut origins: Vec<Wait> = own.waits.iter().map(|wait| own_wait(self.id, wait)).collect();
        let mut first = Reading::new(&asked, &own);
        let mut next = directory.map(|directory| (directory, Place::default()));
        for _ in 0..MOST_PAGES {
            let Some((directory, place)) = next.take() else { break };
            let page = directory.clients(&place, self.one_command()).of_reading().into_result();
            let page = page.map_err(|error| error.during("deadlocks"))?;
            for (id, posted) in page.found.into_iter().filter(|(id, _)| *id != self.id) {
                let Some(info) = ClientInfo::read(id, &posted.text, posted.remaining) else { continue };
                origins.extend(info.uses.iter().filter_map(|one| told_wait(id, one)));
                first.add_client(info);
            }
            next = page.next.map(|place| (directory, place));
        }
        let (mut rings, mut met): (Vec<Vec<Link>>, HashSet<RingKey>) = (Vec::new(), HashSet::new());
        let mut maybes: Vec<Maybe> = Vec::new();
        for origin in &origins {
            match ring_of(&mut first, origin) {
                Some(ring) if met.insert(key_of(&ring)) => rings.push(ring),
                Some(_) => {}
                None => maybes.extend(maybe_ring(&mut first, origin)),
            }
        }
        if let Some(error) = first.refusal.take() {
            return Err(error.during("deadlocks"));
        }
        drop(first);
        if rings.is_empty() && maybes.is_empty() {
            return Ok(Vec::new());
        }
        // Begun after the first ended: see `graph`.
        let now = self.clock.now();
        let own = self.registry.stuck(now, after, wall_ms());
        let mut holds = Reading::new(&asked, &own);
        rings.retain(|ring| are_held(&mut holds, ring));
        drop(holds);
        let own = self.registry.stuck(self.clock.now(), after, wall_ms());
        let mut second = Reading::new(&asked, &own);
        let clients: Vec<ClientId> = rings.iter().flatten().map(|link| link.wait.thread.client).collect();
        second.read_clients(&clients);
        rings.retain(|ring| are_waited_for(&mut second, ring));
        let here = self.announcer.here(now);
        let prefix = &self.options.key_prefix;
        let mut found: Vec<Deadlock> =
            rings.iter().map(|ring| shown(ring, &mut second, &here, prefix)).collect();
        for maybe in maybes {
            let origin = maybe.links.first().and_then(|link| second.wait_of(link.wait.thread));
            if origin.and_then(|origin| maybe_ring(&mut second, &origin)).as_ref() == Some(&maybe) {
                found.push(shown_maybe(&maybe, &mut second, &here, prefix));
            }
        }
        Ok(found)
    }
}
