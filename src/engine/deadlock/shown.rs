//! A ring as it is shown to programs and people.

use std::time::Duration;

use crate::deadlock::{Deadlock, DeadlockStep};
use crate::directory::ClientInfo;
use crate::engine::deadlock::graph::{Link, youngest};
use crate::engine::deadlock::reading::Reading;
use crate::inspect::Location;

/// The ring, with what the reading knows of its threads. `here` is this client.
pub(super) fn shown(ring: &[Link], seen: &mut Reading<'_>, here: &ClientInfo, prefix: &str) -> Deadlock {
    let given = |key: &str| key.strip_prefix(prefix).unwrap_or(key).to_owned();
    let youngest = youngest(ring).map(|wait| (wait.thread, wait.id));
    let before = ring.iter().cycle().skip(ring.len().saturating_sub(1));
    let steps = before.zip(ring).map(|(before, link)| {
        let wait = &link.wait;
        let (client, thread) = (wait.thread.client, wait.thread.id);
        let (location, waiting_for) = if client == here.id {
            let (name, waiting_for) = seen.own_thread(thread);
            (place(here, name), waiting_for)
        } else {
            seen.client(client).map_or(
                (Location::new(String::new(), 0, String::new()), Duration::ZERO),
                |info| {
                    let one = info.uses.iter().find(|one| one.by == Some(thread) && one.told.is_some());
                    let name = one.map(|one| one.thread.clone()).unwrap_or_default();
                    (place(info, name), one.map(|one| one.lasted).unwrap_or_default())
                },
            )
        };
        DeadlockStep {
            owner: format!("{client}:{}", wait.number),
            wait_id: wait.id,
            location,
            by_this_client: client == here.id,
            holds: given(&before.wait.key),
            waits_for: given(&wait.key),
            kind: wait.kind.label().to_owned(),
            waiting_for,
            is_youngest: youngest == Some((wait.thread, wait.id)),
        }
    });
    Deadlock { steps: steps.collect(), is_certain: ring.iter().all(|link| link.is_certain) }
}

fn place(info: &ClientInfo, thread: String) -> Location {
    Location {
        program: info.program.clone(),
        label: info.label.clone(),
        ..Location::new(info.host.clone(), info.pid, thread)
    }
}
