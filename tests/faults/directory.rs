//! The directory in which clients describe themselves: clients seldom write to it, and no lock depends on it.

use super::world::{ENTRIES, L, R, World};
use crate::support::prelude::*;
use crate::support::proxy::{Command, Do};

fn writes(command: &Command) -> bool {
    command.verb() == "SET" && command.contains(ENTRIES)
}

fn entries(world: &World) -> Vec<String> {
    world.run(&["KEYS", &format!("{ENTRIES}*-*")])
}

scenario!(a_client_writes_its_directory_entry_once_per_renewal_period, |world| {
    let (client, other) = (world.builder().lease(RENEWED).build().unwrap(), world.direct());
    let busy = other.get_lock("busy").acquire_owned().unwrap();
    let begun = now();
    let guards: Vec<_> =
        (0..300).map(|n| client.get_lock(format!("lock:{n}")).acquire_owned().unwrap()).collect();
    let waiting = ["busy", "busy"].map(|name| {
        let lock = client.get_lock(name);
        call(move || lock.acquire_owned().unwrap().unlock().unwrap())
    });
    assert!(eventually(LONG, || world.proxy.count(writes) > 0), "no entry was written for a hold");
    assert!(eventually(LONG, || world.proxy.count(writes) >= 4));
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
    let count = world.proxy.count(writes);
    let rounds = begun.elapsed().as_secs_f64() / (RENEWED / 3 - RENEWED / 30).as_secs_f64();
    assert!(count as f64 <= rounds + 1.0, "{count} writes in {rounds} rounds");
    let key = format!("{ENTRIES}{}", client.id());
    assert!((1..=RENEWED.as_millis() as i64).contains(&world.ttl(&key)), "{}", world.ttl(&key));
    let text: String = world.run(&["GET", &key]);
    assert!(text.len() < 10_000, "{} bytes", text.len());
    let says = |name: &str| {
        text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect::<Vec<_>>()
    };
    assert_eq!(says("pid"), [std::process::id().to_string()]);
    let unlisted: u64 = says("unlisted")[0].parse().unwrap();
    assert!(says("lock").len() <= 64 && unlisted > 200, "{text}");
    busy.unlock().unwrap();
    for waiter in waiting {
        waiter.outcome();
    }
    drop(guards);
    client.shutdown().unwrap();
    assert!(!entries(world).contains(&key));
});

scenario!(an_idle_client_stops_writing_its_directory_entry, |world| {
    let client = world.client();
    let guard = client.get_lock("a").acquire().unwrap();
    assert!(eventually(LONG, || world.proxy.count(writes) > 0));
    guard.unlock().unwrap();
    assert!(eventually(LONG, || entries(world).is_empty()));
    let written = world.proxy.count(writes);
    throughout(3 * R, || world.proxy.count(writes) == written);
    assert!(!client.get_lock("a").is_locked().unwrap());
});

scenario!(an_unanswered_directory_write_loses_no_hold, |world| {
    let client = world.client();
    let fault = world.proxy.each(writes, Do::HoldReply);
    let guard = client.get_lock("held").acquire().unwrap();
    throughout(3 * L, || guard.check().is_ok());
    assert!(fault.hits() >= 2, "the entry was not tried again: {}", fault.hits());
    fault.cancel();
    fault.release();
    guard.unlock().unwrap();
});

scenario!(an_unanswered_record_of_a_run_has_an_unknown_outcome, |world| {
    let client = world.client();
    let guard = client.get_lock("job").acquire_owned().unwrap();
    let fault = world.proxy.next(|command| writes(command) && command.contains("code="), Do::HoldReply);
    let error = client.record_run(&guard, 0, L).unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert_eq!(fault.hits(), 1);
    fault.release();
    guard.unlock().unwrap();
});

test_on!(a_redis_user_without_directory_rights_can_still_lock, RedisServer::start_default(), |server| {
    let run = |words: &[&str]| -> redis::Value {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut server.admin()).unwrap()
    };
    let rules =
        "on >secret ~* resetkeys ~app:* ~leasehold_lock_*:{app:* ~redisson_lock_*:{app:* ~{app:* &* +@all";
    run(&[&["ACL", "SETUSER", "narrow"][..], &rules.split(' ').collect::<Vec<_>>()].concat());
    let client =
        || LockClient::builder().url(server.url_as("narrow", "secret")).lease(RENEWED).build().unwrap();
    let (one, other) = (client(), client());
    let guard = one.get_lock("app:a").acquire().unwrap();
    let refused = || match run(&["ACL", "LOG"]) {
        redis::Value::Array(entries) => format!("{entries:?}"),
        other => panic!("{other:?}"),
    };
    // The log may also name the key `leasehold_client:format`, so the test looks for this client's own key.
    let owner = guard.owner().to_string();
    let entry = format!("{ENTRIES}{}", owner.split(':').next().unwrap());
    assert!(eventually(LONG, || refused().contains(&entry)));
    run(&["ACL", "LOG", "RESET"]);
    throughout(RENEWED, || guard.check().is_ok());
    assert!(!refused().contains(ENTRIES), "the refused entry was tried again");
    // `other` has no right to read entries either, so it sees the holder without its location.
    let seen = other.inspect("app:a").unwrap();
    assert_eq!((seen.holders.len(), &seen.holders[0].location), (1, &None));
    guard.unlock().unwrap();
});

test_on!(an_owner_without_queue_rights_is_shown_with_its_process, RedisServer::start_default(), |server| {
    let client = LockClient::builder().url(server.url()).lease(Duration::from_secs(2)).build().unwrap();
    let guard = client.get_lock("a").acquire().unwrap();
    let other = LockClient::connect(server.url()).unwrap();
    let mut unlined = client.id().to_string();
    unlined.replace_range(14..15, "4");
    let owner = format!("{unlined}:{}", guard.owner().number());
    redis::cmd("HSET").arg(&["b", &owner, "1"]).exec(&mut server.admin()).unwrap();
    assert!(eventually(LONG, || {
        let place = other.inspect("b").unwrap().holders.remove(0).location;
        place.is_some_and(|place| place.pid == std::process::id())
    }));
    guard.unlock().unwrap();
});

scenario!(locks_are_listed_where_scripts_cannot_use_scan, |world| {
    let client = world.client();
    let guard = client.get_lock("listed:1").acquire().unwrap();
    world.run::<()>(&["SET", "listed:2", "x"]);
    let sifts = |command: &Command| command.is_script() && command.contains("listed:*");
    let refusal = b"-ERR This Redis command is not allowed from script\r\n".to_vec();
    let refused = world.proxy.each(sifts, Do::GarbleReply(refusal));
    let names: Vec<String> = client.list("listed:*").map(|lock| lock.unwrap().name).collect();
    assert_eq!(names, ["listed:1"]);
    assert!(refused.hits() > 0, "no script was refused first");
    assert!(world.proxy.count(|command| command.verb() == "SCAN") > 0);
    world.does(&["DEL", "listed:2"]);
    guard.unlock().unwrap();
    client.shutdown().unwrap();
});
