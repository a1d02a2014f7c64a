//! Commands that the server runs for a cycle of acquire and release, those within scripts included.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::LockClient;

use super::world::{World, scenario};

const LEASE: Duration = Duration::from_secs(60);

/// A client without a directory entry, and its subscriptions.
fn client(world: &World) -> LockClient {
    let builder = world.builder_to(&world.server.url()).lease(LEASE).directory(false);
    builder.unsubscribe_delay(LEASE).build().unwrap()
}

/// How often the server has run each command, without those that open connections or ask this.
fn commands_run(world: &World) -> BTreeMap<String, u64> {
    let said: String = world.run(&["INFO", "commandstats"]);
    let calls = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_other = ["info", "hello", "auth", "select", "ping", "client"]
            .iter()
            .any(|other| name.split('|').next() == Some(other));
        let count = rest.split(',').next()?.parse().ok()?;
        (!is_other).then(|| (name.to_owned(), count))
    };
    said.lines().filter_map(calls).collect()
}

fn run_since(world: &World, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let count = |(name, count): (String, u64)| {
        let count = count - before.get(&name).unwrap_or(&0);
        (name, count)
    };
    commands_run(world).into_iter().map(count).filter(|(_, count)| *count > 0).collect()
}

#[test]
fn a_cycle_that_nobody_waits_for_is_nine_commands() {
    const CYCLES: u64 = 50;
    scenario(|world| {
        // Before Redis 7 a script cannot ask what its user may do, and tries two more commands.
        let most = if world.server.binary().version() < (7, 0, 0) { 11 } else { 9 };
        let client = client(world);
        let lock = client.get_lock("alone");
        lock.acquire().unwrap().unlock().unwrap(); // the server learns the scripts
        let before = commands_run(world);
        (0..CYCLES).for_each(|_| lock.acquire().unwrap().unlock().unwrap());
        let run = run_since(world, &before);
        let all: u64 = run.values().sum();
        assert!(all <= most * CYCLES, "{all} commands in {CYCLES} cycles: {run:?}");
    });
}
