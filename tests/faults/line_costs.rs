//! Commands that the server runs for a cycle of acquire and release, those within scripts among them.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::LockClient;

use super::world::{World, scenario};
use crate::support::{LONG, call, eventually, shout};

/// No lease is renewed here.
const LEASE: Duration = Duration::from_secs(60);

/// A client that keeps no entry of itself, and its subscriptions.
fn client(world: &World) -> LockClient {
    let builder = world.builder_to(&world.server.url()).lease(LEASE).directory(false);
    builder.unsubscribe_delay(LEASE).build().unwrap()
}

/// How often the server has run each command, but for those by which connections are opened and this is
/// asked.
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

/// The commands that were run since.
fn run_since(world: &World, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let count = |(name, count): (String, u64)| {
        let count = count - before.get(&name).unwrap_or(&0);
        (name, count)
    };
    commands_run(world).into_iter().map(count).filter(|(_, count)| *count > 0).collect()
}

fn scripts(run: &BTreeMap<String, u64>) -> u64 {
    run.iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, count)| count).sum()
}

#[test]
fn a_cycle_that_nobody_waits_for_is_nine_commands() {
    const CYCLES: u64 = 50;
    scenario(|world| {
        // Before Redis 7 a script cannot ask what its user may do, and tries two commands more.
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

#[test]
fn a_cycle_that_sixteen_clients_wait_for_is_twenty_commands() {
    const CLIENTS: u64 = 17;
    const TURNS: u64 = 40;
    const CYCLES: u64 = CLIENTS * TURNS;
    /// Of one that asks, and neither joins the line for the first time nor gets the lock.
    const VAIN: u64 = 8;
    scenario(|world| {
        let most = if world.server.binary().version() < (7, 0, 0) { 22 } else { 20 };
        let clients: Vec<_> = (0..CLIENTS).map(|_| client(world)).collect();
        for client in &clients {
            client.get_lock("crowd").acquire().unwrap().unlock().unwrap();
        }
        let held = clients[0].get_lock("crowd").acquire().unwrap();
        let turns = |client: &LockClient| {
            let lock = client.get_lock("crowd");
            call(move || (0..TURNS).for_each(|_| lock.acquire().unwrap().unlock().unwrap()))
        };
        let before = commands_run(world);
        let mut working: Vec<_> = clients[1..].iter().map(turns).collect();
        let stand = || world.run::<u64>(&["ZCARD", "leasehold_lock_line:{crowd}"]) == CLIENTS - 1;
        assert!(eventually(LONG, stand), "they do not stand in line");
        held.unlock().unwrap();
        working.push(turns(&clients[0]));
        for one in working {
            one.outcome();
        }
        let mut run = run_since(world, &before);
        run.retain(|name, _| !["zcard", "subscribe", "unsubscribe"].contains(&&**name));
        // To join the line, to be granted the lock, to release it. More of them were polls, or standbys of a
        // busy machine.
        let (all, in_vain) = (run.values().sum::<u64>(), scripts(&run).saturating_sub(3 * CYCLES));
        shout(&format!(
            "COUNTED {CYCLES} cycles of {CLIENTS} clients: {all} commands, {in_vain} asked in vain"
        ));
        assert!(all <= most * CYCLES + VAIN * in_vain, "{all}, {in_vain} in vain: {run:?}");
    });
}
