//! Keys and messages that Redisson leaves after its own faults do not break our locks.

use super::world::{L, P, R, T, World, about};
use crate::support::prelude::*;

const JAVA: &str = "11111111-2222-4333-8444-555555555555:7";

#[track_caller]
fn await_listener(world: &World, channel: &str) {
    let listened = || !world.run::<Vec<String>>(&["PUBSUB", "CHANNELS", &format!("{channel}*")]).is_empty();
    assert!(eventually(LONG, listened), "no waiter listens to {channel}");
}

// A Java thread that was interrupted stays in the queue, so the lock is free but closed to those behind it.
// Java's waiters then send thousands of requests a second; ours must not.
scenario!(waiters_behind_a_dead_fair_waiter_send_few_requests, |world| {
    let client = world.client();
    let ghost = ms(2_500);
    let time: Vec<String> = world.run(&["TIME"]);
    let until = time[0].parse::<u64>().unwrap() * 1_000 + u64::try_from(ghost.as_millis()).unwrap();
    world.does(&["RPUSH", "redisson_lock_queue:{ghost}", JAVA]);
    world.does(&["ZADD", "redisson_lock_timeout:{ghost}", &until.to_string(), JAVA]);
    let begun = now();
    let waiters: Vec<_> = (0..3).map(|_| call(turn(client.get_fair_lock("ghost")))).collect();
    for waiter in waiters {
        waiter.returns_within(begun, ghost + P, "the end of the ghost");
    }
    let asked = world.proxy.count(about("ghost"));
    // Each waiter begins with two requests, and then sends one each second. Grants and releases come on top.
    assert!(asked < 40, "{asked} requests");
    world.all_are_given_back(T);
});

// In Java, unlocking a free fair lock is no error, and notifies the first waiter in the queue.
scenario!(a_fair_waiter_woken_by_a_stray_message_keeps_waiting, |world| {
    let client = world.client();
    let held = world.direct().get_fair_lock("poked").acquire().unwrap();
    let waiter = call(turn(client.get_fair_lock("poked")));
    await_listener(world, "redisson_lock__channel:{poked}:");
    let channels: Vec<String> = world.run(&["PUBSUB", "CHANNELS", "redisson_lock__channel:{poked}:*"]);
    for _ in 0..20 {
        world.does(&["PUBLISH", &channels[0], "0"]);
    }
    throughout(ms(100), || !waiter.is_over() && held.check().is_ok());
    let freed = now();
    held.unlock().unwrap();
    waiter.returns_within(freed, ms(50), "the waiter's turn");
});

// A Java writer that also reads notifies no waiting reader when it releases the write lock.
scenario!(polling_finds_javas_downgrade_from_write_to_read_lock, |world| {
    let client = world.client();
    let writer = format!("{JAVA}:write");
    world.does(&["HSET", "quiet", "mode", "write", &writer, "1", JAVA, "1"]);
    world.does(&["PEXPIRE", "quiet", "30000"]);
    world.does(&["SET", &format!("{{quiet}}:{JAVA}:rwlock_timeout:1"), "1", "PX", "30000"]);
    let reader = call(turn(client.get_read_write_lock("quiet").read().clone()));
    await_listener(world, "redisson_rwlock:{quiet}");
    assert!(!elsewhere(|| client.get_read_write_lock("quiet").read().try_lock().unwrap()));
    let quietly = now();
    world.does(&["HDEL", "quiet", &writer]);
    world.does(&["HSET", "quiet", "mode", "read"]);
    reader.returns_within(quietly, P, "being let in");
    // The Java thread still reads, so our reader's release does not free the lock.
    assert_eq!(world.fields("quiet").len(), 2);
    assert!(!client.get_read_write_lock("quiet").write().try_lock().unwrap());
    world.does(&["DEL", "quiet", &format!("{{quiet}}:{JAVA}:rwlock_timeout:1")]);
});

scenario!(polling_finds_the_release_of_javas_spin_lock, |world| {
    let client = world.client();
    let kinds = [client.get_lock("spin"), client.get_spin_lock("spin"), client.get_fair_lock("spin")];
    for lock in kinds {
        world.does(&["HSET", "spin", JAVA, "1"]);
        world.does(&["PEXPIRE", "spin", "30000"]);
        let waiter = call(turn(lock.clone()));
        throughout(ms(100), || !waiter.is_over());
        let freed = now();
        world.does(&["DEL", "spin"]);
        waiter.returns_within(freed, P, "finding the lock free");
    }
});

// Other programs publish negative numbers and texts, at which Redisson's own subscriber fails.
scenario!(malformed_messages_do_not_end_a_wait, |world| {
    let client = world.client();
    let (semaphore, latch) = (client.get_semaphore("sem"), client.get_count_down_latch("latch"));
    semaphore.try_set_permits(1).unwrap();
    latch.try_set_count(1).unwrap();
    let permit = semaphore.acquire(1).unwrap();
    let waiters = [
        call_on(semaphore.clone(), move |semaphore| semaphore.acquire(1).unwrap().unlock().unwrap()),
        call_on(latch.clone(), move |latch| latch.wait().unwrap()),
    ];
    let channels = ["redisson_sc:{sem}", "redisson_countdownlatch__channel__{latch}"];
    for channel in channels {
        await_listener(world, channel);
        for payload in ["-3", "0", "99999999999999999999", "no number", ""] {
            world.does(&["PUBLISH", channel, payload]);
        }
    }
    throughout(ms(100), || waiters.iter().all(|waiter| !waiter.is_over()));
    let freed = now();
    permit.unlock().unwrap();
    latch.count_down().unwrap();
    for waiter in waiters {
        waiter.returns_within(freed, ms(50), "the waiter's turn");
    }
    drop((semaphore, latch, client));
    world.lock_keys().iter().for_each(|key| world.does(&["DEL", key]));
});

// Java's delete of a latch publishes 1, as the setting of a new count does, so waiters must read the count.
scenario!(a_latch_deleted_by_redisson_opens_for_our_waiters, |world| {
    let client = world.client();
    world.does(&["SET", "deleted", "3"]);
    let latch = client.get_count_down_latch("deleted");
    let waiter = call(move || latch.wait().unwrap());
    let channel = "redisson_countdownlatch__channel__{deleted}";
    await_listener(world, channel);
    let deleted = now();
    world.does(&["DEL", "deleted"]);
    world.does(&["PUBLISH", channel, "1"]);
    waiter.returns_within(deleted, ms(50), "going on");
});

// Java's multi-lock also sets the expiry of a fence's counter and of a fair lock's queue, so both may vanish
// while the lock is used.
scenario!(waiters_and_tokens_survive_expired_queue_and_counter_keys, |world| {
    let client = world.client();
    let fenced = client.get_fenced_lock("multi");
    let first = fenced.lock_and_get_token().unwrap();
    world.does(&["DEL", "redisson_lock_token:{multi}"]);
    fenced.unlock().unwrap();
    assert!(fenced.lock_and_get_token().unwrap() > first);
    fenced.unlock().unwrap();
    let held = world.direct().get_fair_lock("fair").acquire().unwrap();
    let waiter = call(turn(client.get_fair_lock("fair")));
    await_listener(world, "redisson_lock__channel:{fair}:");
    world.does(&["DEL", "redisson_lock_queue:{fair}", "redisson_lock_timeout:{fair}"]);
    let freed = now();
    held.unlock().unwrap();
    waiter.returns_within(freed, P, "a turn without a queue place");
    for key in world.lock_keys() {
        assert!(world.ttl(&key) > 0, "{key} has no end");
        world.does(&["DEL", &key]);
    }
});

// Redisson mistakes a lock without expiry for a grant with token -1.
scenario!(a_lock_without_expiry_counts_as_busy, |world| {
    let client = world.client();
    world.does(&["HSET", "endless", JAVA, "1"]);
    assert_eq!(client.get_fenced_lock("endless").try_lock_and_get_token(ms(20)).unwrap(), None);
    assert!(!client.get_fair_lock("endless").try_lock_for(ms(20)).unwrap());
    world.does(&["DEL", "endless"]);
    world.does(&["HSET", "endless", "mode", "write", &format!("{JAVA}:write"), "1"]);
    assert!(!client.get_read_write_lock("endless").read().try_lock_for(ms(20)).unwrap());
    assert!(client.get_read_write_lock("endless").write_fenced().try_acquire_for(ms(20)).unwrap().is_none());
    world.does(&["DEL", "endless"]);
});

scenario!(read_write_holds_acquired_after_data_loss_are_renewed, |world| {
    let client = world.client();
    let halves =
        || [client.get_read_write_lock("r").read().clone(), client.get_read_write_lock("w").write().clone()];
    let guards = halves().map(|half| half.acquire().unwrap());
    let losses = guards.each_ref().map(leasehold::Guard::lost);
    world.server.restart();
    let back = now();
    for lost in losses {
        let loss = lost.recv_timeout(LONG).unwrap();
        assert!(matches!(loss.reason, LossReason::Gone | LossReason::Expired), "{loss:?}");
    }
    comes_within(back, L + R, "the news", || guards.iter().all(|guard| guard.check().is_err()));
    for guard in guards {
        assert!(guard.unlock().unwrap_err().is_lost());
    }
    let again = halves().map(|half| half.acquire().unwrap());
    throughout(2 * L, || again.iter().all(|guard| guard.check().is_ok()));
    let rival = world.direct();
    elsewhere(|| {
        for name in ["r", "w"] {
            assert!(!rival.get_read_write_lock(name).write().try_lock().unwrap(), "{name}");
        }
    });
    again.into_iter().for_each(|guard| guard.unlock().unwrap());
    let_pass(SLACK, "so that what was sent has arrived");
});

scenario!(auxiliary_keys_use_the_mapped_lock_name, |world| {
    let client = world.builder().map_names(|name| format!("{name}:mapped")).build().unwrap();
    let held = world.direct().get_fair_lock("k:mapped").acquire().unwrap();
    let waiter = call(turn(client.get_fair_lock("k")));
    let there = |key: &str| assert!(eventually(LONG, || !world.is_free(key)), "{key}");
    there("redisson_lock_queue:{k:mapped}");
    there("redisson_lock_timeout:{k:mapped}");
    held.unlock().unwrap();
    waiter.outcome();
    let reading = client.get_read_write_lock("rw").read().acquire().unwrap();
    there(&format!("{{rw:mapped}}:{}:rwlock_timeout:1", reading.owner()));
    reading.unlock().unwrap();
    let permits = client.get_expirable_semaphore("p");
    permits.try_set_permits(1).unwrap();
    let permit = permits.acquire_with(1, &leased(Duration::from_secs(9))).unwrap().unwrap();
    there("{p:mapped}:timeout");
    permit.unlock().unwrap();
    assert!(permits.delete().unwrap());
    world.lock_keys().iter().for_each(|key| world.does(&["DEL", key]));
});
