//! Tests of how the mutex's scripts change keys.

use super::prelude::*;
use crate::stores::redis::script::Prefix;

/// The fields of a hash, and its time to live.
fn hash(server: &Server, key: &str) -> (Vec<String>, i64) {
    let fields = redis::from_redis_value(server.run(&["HGETALL", key])).unwrap();
    (fields, server.number(&["PTTL", key]))
}

fn held(claim: &Claim, count: u32) -> Vec<String> {
    vec![claim.owner.to_string(), count.to_string()]
}

#[test]
fn a_lock_is_acquired_reentered_and_released() {
    let (server, store) = served();
    let (me, you) = (claim(Kind::Mutex, "lk", 30_000), claim(Kind::Mutex, "lk", 30_000));

    assert_eq!(store.attempt(&me, 1, soon()).granted(), None);
    let (fields, ttl) = hash(&server, "lk");
    assert_eq!(fields, held(&me, 1));
    assert!((29_000..=30_000).contains(&ttl), "{ttl}");

    match store.attempt(&you, 1, soon()).done() {
        Attempt::Busy { retry_after: Some(after) } => assert!(after > Duration::from_secs(29), "{after:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.attempt(&you, 2, soon()).done(), Attempt::Lost);
    store.attempt(&me, 2, soon()).granted();
    assert_eq!(hash(&server, "lk").0, held(&me, 2));

    let holder = Some(me.owner.to_string());
    assert_eq!(store.release(&you, 0, soon()).done(), Release::NotHeld { holder });
    assert_eq!(store.release(&me, 1, soon()).done(), Release::StillHeld);
    assert_eq!(hash(&server, "lk").0, held(&me, 1));
    store.release(&me, 0, soon()).freed();
    assert_eq!(server.keys(), [""; 0]);
    assert_eq!(store.release(&me, 0, soon()).done(), Release::NotHeld { holder: None });
    assert_eq!(store.attempt(&me, 2, soon()).done(), Attempt::Lost);
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn a_repeated_attempt_or_release_changes_nothing() {
    let (server, store) = served();
    let me = claim(Kind::Mutex, "lk", 30_000);
    for count in [1, 1, 2, 2, 2] {
        store.attempt(&me, count, soon()).granted();
        assert_eq!(hash(&server, "lk").0, held(&me, count));
    }
    for _ in 0..3 {
        assert_eq!(store.release(&me, 1, soon()).done(), Release::StillHeld);
        assert_eq!(hash(&server, "lk").0, held(&me, 1));
    }
    store.release(&me, 0, soon()).freed();
    assert_eq!(store.release(&me, 0, soon()).done(), Release::NotHeld { holder: None });
}

#[test]
fn requests_extend_a_lease_and_never_shorten_it() {
    let (server, store) = served();
    let me = claim(Kind::Mutex, "lk", 30_000);
    let with_lease = |lease_ms| Claim { lease: Duration::from_millis(lease_ms), ..me.clone() };
    store.attempt(&me, 1, soon()).granted();
    store.attempt(&with_lease(5_000), 2, soon()).granted();
    assert!(hash(&server, "lk").1 > 25_000);
    assert!(store.renew(&[with_lease(5_000)], soon()).remove(0).done());
    assert!(hash(&server, "lk").1 > 25_000);
    assert_eq!(store.release(&with_lease(5_000), 1, soon()).done(), Release::StillHeld);
    assert!((25_000..=30_000).contains(&hash(&server, "lk").1));
    store.attempt(&with_lease(60_000), 2, soon()).granted();
    assert!(hash(&server, "lk").1 > 55_000);
    assert!(store.renew(&[with_lease(90_000)], soon()).remove(0).done());
    assert!(hash(&server, "lk").1 > 85_000);
}

#[test]
fn a_refused_hand_off_keeps_owner_and_lease() {
    let (server, store) = served();
    let (me, you) = (claim(Kind::Fenced, "lk", 30_000), claim(Kind::Fenced, "lk", 1_000));
    let counter = "redisson_lock_token:{lk}";
    store.attempt(&me, 1, soon()).granted();
    for spoil in [["SET", counter, "no number"].as_slice(), &["SET", counter, "9223372036854775807"]] {
        server.run(spoil);
        assert!(store.hand_off(&me, &you, soon()).unwrap().wait().is_err());
        let (fields, ttl) = hash(&server, "lk");
        assert_eq!(fields, held(&me, 1));
        assert!((25_000..=30_000).contains(&ttl), "{ttl}");
    }
    server.run(&["DEL", counter]);
    let handed = store.hand_off(&me, &you, soon()).unwrap().wait().done();
    assert!(matches!(handed, Handoff::Granted { fence: Some(_) }));
    let (fields, ttl) = hash(&server, "lk");
    assert_eq!(fields, held(&you, 1));
    assert!((1..=1_000).contains(&ttl), "the new lease is shorter: {ttl}");
}

#[test]
fn a_handed_off_lock_gets_a_new_lease_and_token() {
    let (server, store) = served();
    for kind in [Kind::Mutex, Kind::Fenced] {
        let [mut from, longer, shorter] = [5_000, 30_000, 5_000].map(|lease_ms| claim(kind, "lk", lease_ms));
        let mut fence = store.attempt(&from, 1, soon()).granted();
        for (to, ttls) in [(longer, 25_000..=30_000), (shorter, 1..=5_000)] {
            server.run(&["DEL", "redisson_lock_token:{lk}"]);
            let Handoff::Granted { fence: next } = store.hand_off(&from, &to, soon()).unwrap().wait().done()
            else {
                panic!("the hand-off failed");
            };
            let (fields, ttl) = hash(&server, "lk");
            assert_eq!(fields, held(&to, 1));
            assert!(ttls.contains(&ttl), "{ttl}");
            assert!(next.is_some() == (kind == Kind::Fenced) && (next.is_none() || next > fence), "{next:?}");
            assert!(matches!(
                store.hand_off(&from, &to, soon()).unwrap().wait().done(),
                Handoff::Granted { .. }
            ));
            assert_eq!(hash(&server, "lk").0, held(&to, 1));
            (from, fence) = (to, next);
        }
        store.release(&from, 0, soon()).freed();
        assert_eq!(
            store.hand_off(&from, &claim(kind, "lk", 1), soon()).unwrap().wait().done(),
            Handoff::Lost
        );
    }
}

#[test]
fn a_lease_of_a_hundred_years_is_accepted() {
    let (server, store) = served();
    let me = claim(Kind::Mutex, "lk", 100 * 365 * 24 * 3600 * 1000);
    store.attempt(&Claim { wants_fence: true, ..me.clone() }, 1, soon()).granted();
    store.attempt(&me, 2, soon()).granted();
    let expected = i64::try_from(me.lease.as_millis()).unwrap();
    assert!((expected - 10_000..=expected).contains(&hash(&server, "lk").1));
}

#[test]
fn a_persisted_key_gets_an_expiry_again() {
    let (server, store) = served();
    let me = take(&store, claim(Kind::Mutex, "lk", 30_000));
    let persist = || assert_eq!(server.number(&["PERSIST", "lk"]), 1);
    let ends = || (29_000..=30_000).contains(&hash(&server, "lk").1);

    persist();
    let you = claim(Kind::Mutex, "lk", 30_000);
    assert_eq!(store.attempt(&you, 1, soon()).done(), Attempt::Busy { retry_after: None });
    store.attempt(&me, 2, soon()).granted();
    assert!(ends());
    persist();
    assert!(store.renew(std::slice::from_ref(&me), soon()).remove(0).done());
    assert!(ends());
    persist();
    assert_eq!(store.release(&me, 1, soon()).done(), Release::StillHeld);
    assert!(ends());
}

#[test]
fn fences_grow_whatever_happens_to_the_counter() {
    let (server, store) = served();
    let counter = "redisson_lock_token:{lk}";
    let me = claim(Kind::Fenced, "lk", 30_000);
    let next = || store.attempt(&me, 1, soon()).granted().unwrap().get();

    let first = next();
    let time: (u64, u64) = redis::from_redis_value(server.run(&["TIME"])).unwrap();
    let now = time.0 * 1_000_000 + time.1;
    assert!(first <= now && now - first < 10_000_000, "{first} {now}");
    let second = next();
    assert!(second > first);
    assert_eq!(server.text(&["GET", counter]), Some(second.to_string()));
    assert_eq!(server.number(&["PTTL", counter]), -1);

    server.run(&["DEL", counter]);
    let third = next();
    assert!(third > second);

    // A counter ahead of the clock grows by one, even if Lua's numbers cannot represent it exactly.
    for ahead in [third + 1_000_000_000, (1 << 53) + 1, (1 << 62) + 7] {
        server.run(&["SET", counter, &ahead.to_string()]);
        assert_eq!(next(), ahead + 1);
        assert_eq!(next(), ahead + 2);
    }
    // Redisson's attempts raise the same counter.
    server.run(&["INCR", counter]);
    assert_eq!(next(), (1 << 62) + 7 + 4);
    let again = Claim { wants_fence: false, ..me.clone() };
    assert_eq!(store.attempt(&again, 2, soon()).granted(), None);
}

#[test]
fn an_unusable_token_counter_fails_the_acquire_before_any_write() {
    let (server, store) = served();
    let me = claim(Kind::Fenced, "lk", 30_000);
    for (command, kind) in [
        (["SET", "redisson_lock_token:{lk}", "abc"], ErrorKind::WrongType),
        (["SET", "redisson_lock_token:{lk}", "9223372036854775807"], ErrorKind::WrongType),
        (["LPUSH", "redisson_lock_token:{lk}", "abc"], ErrorKind::WrongType),
    ] {
        server.run(&["DEL", "redisson_lock_token:{lk}"]);
        server.run(&command);
        assert_eq!(store.attempt(&me, 1, soon()).refused().kind(), kind, "{command:?}");
        assert_eq!(server.keys(), ["redisson_lock_token:{lk}"]);
    }
}

#[test]
fn a_hash_of_another_program_stays_and_blocks_the_lock() {
    let (server, store) = served();
    let me = claim(Kind::Mutex, "lk", 30_000);
    server.run(&["HSET", "lk", "mode", "read", "other:1", "abc"]);
    assert_eq!(store.attempt(&me, 1, soon()).done(), Attempt::Busy { retry_after: None });
    assert_eq!(store.attempt(&me, 2, soon()).done(), Attempt::Lost);
    assert!(!store.renew(std::slice::from_ref(&me), soon()).remove(0).done());
    assert!(matches!(store.release(&me, 0, soon()).done(), Release::NotHeld { holder: Some(_) }));
    assert_eq!(hash(&server, "lk"), (["mode", "read", "other:1", "abc"].map(str::to_owned).to_vec(), -1));
}

#[test]
fn a_key_of_another_type_is_reported_and_kept() {
    for (kind, foreign, says) in [
        (
            Kind::Fenced,
            ["SET", "lk", "token"].as_slice(),
            "a token lock, a plain SET lock) or another program",
        ),
        (Kind::Token, &["HSET", "lk", "other:1", "1"], "a RedisLock's hash"),
    ] {
        let (server, store) = served();
        server.run(foreign);
        let (before, me) = (server.run(&["DUMP", "lk"]), claim(kind, "lk", 30_000));
        let mut errors = vec![
            store.attempt(&me, 1, soon()).refused(),
            store.release(&me, 0, soon()).refused(),
            store.renew(std::slice::from_ref(&me), soon()).remove(0).refused(),
            store.inspect(kind, &me.name, me.owner, soon()).refused(),
            store.force(kind, &me.name, soon()).refused(),
        ];
        if kind == Kind::Fenced {
            errors.push(store.attempt(&me, 2, soon()).refused());
            errors.push(store.release(&me, 1, soon()).refused());
        }
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::WrongType);
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.lock_name(), Some("lk"));
        }
        assert_eq!((server.keys(), server.run(&["DUMP", "lk"])), (vec!["lk".to_owned()], before));
    }
}

#[test]
fn a_lock_is_inspected_and_force_unlocked() {
    for (kind, levels) in [(Kind::Mutex, 2), (Kind::Token, 1)] {
        let (server, store) = served();
        let me = claim(kind, "lk", 30_000);
        let inspect = |who| store.inspect(kind, &me.name, who, soon()).done();
        assert_eq!(inspect(me.owner), None);
        for count in 1..=levels {
            store.attempt(&me, count, soon()).granted();
        }
        for (who, count) in [(me.owner, levels), (owner(), 0)] {
            let seen = inspect(who).unwrap();
            assert_eq!((seen.holder, seen.count), (me.owner.to_string(), count));
            assert!(seen.remaining.unwrap() > Duration::from_secs(29));
        }
        server.run(&["PERSIST", "lk"]);
        assert_eq!(inspect(me.owner).unwrap().remaining, None);
        if kind == Kind::Mutex {
            server.run(&["HSET", "lk", &me.owner.to_string(), "many"]);
            let error = store.inspect(kind, &me.name, me.owner, soon()).refused();
            assert_eq!(error.kind(), ErrorKind::WrongType);
        }
        assert!(store.force(kind, &me.name, soon()).done());
        assert!(!store.force(kind, &me.name, soon()).done());
        assert_eq!(server.keys(), [""; 0]);
    }
}

#[test]
fn a_key_of_another_type_fails_no_other_renewal() {
    let (server, store) = served();
    // These are more claims than one write to the socket carries.
    let claims: Vec<_> = (0..600).map(|n| claim(Kind::Mutex, &format!("lk{n}"), 30_000)).collect();
    for claim in &claims {
        store.attempt(claim, 1, soon()).granted();
    }
    server.run(&["SET", "lk7", "x"]);
    server.run(&["DEL", "lk8"]);
    server.run(&["PEXPIRE", "lk9", "5000"]);
    for (n, answer) in store.renew(&claims, soon()).into_iter().enumerate() {
        match n {
            7 => assert_eq!(answer.refused().kind(), ErrorKind::WrongType),
            8 => assert!(!answer.done()),
            _ => assert!(answer.done(), "{n}"),
        }
    }
    assert!(server.number(&["PTTL", "lk9"]) > 25_000);
}

#[test]
fn giving_up_a_latch_wait_leaves_the_latch_unchanged() {
    let (_server, store) = served();
    let latch = || claim(Kind::Latch, "latch", 30_000);
    let count = |what| store.count(&latch(), &what, soon()).done();
    let give_up = |is_granted| {
        let waiter = Claim { is_granted, ..latch() };
        store.clean_up(&[waiter], soon()).remove(0).done();
    };
    assert_eq!(count(Counting::SetUp { to: 1, lease: None }), Some(1));
    [true, false].into_iter().for_each(give_up);
    assert_eq!(count(Counting::Ask), Some(1));
    assert_eq!(count(Counting::CountDown), Some(0));
    [true, false].into_iter().for_each(give_up);
    store.attempt(&latch(), 1, soon()).granted();
}

/// The commands that the server runs for acquiring a lock, and for releasing it.
fn commands(server: &Server, publish_mode: Option<Prefix>) -> [BTreeSet<String>; 2] {
    let address = Arc::new(RedisAddress::new(&server.options()).unwrap());
    let mut connections = Connections::new(address, 1, Duration::from_secs(3), maintenance()).unwrap();
    connections.publish_prefix = publish_mode;
    let connections = Arc::new(connections);
    let me = claim(Kind::Mutex, "lk", 30_000);
    let kind = kinds::of(me.kind);
    let commands = [kind.acquisition(&me, 1, 0), kind.removal(&me, 0)].map(|command| {
        server.run(&["CONFIG", "RESETSTAT"]);
        connections.call(command, soon()).unwrap();
        let stats = server.text(&["INFO", "commandstats"]).unwrap();
        let names = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
        let names = names.map(|(name, _)| name.to_owned()).filter(|name| name != "evalsha" && name != "eval");
        names.collect()
    });
    connections.close(soon());
    commands
}

#[test]
fn acquiring_uses_the_same_commands_with_sharded_messages() {
    let server = Server::start(&[]);
    let [plain, _] = commands(&server, None);
    assert!(plain.contains("hset"));
    for publish_mode in [Some(Prefix::PublishSharded), Some(Prefix::PublishBoth)] {
        assert_eq!(commands(&server, publish_mode)[0], plain, "{publish_mode:?}");
    }
}

#[test]
fn releases_use_publish_spublish_or_both_as_configured() {
    let server = Server::start(&[]);
    let published = |publish_mode| {
        let [_, released] = commands(&server, publish_mode);
        ["publish", "spublish"].map(|name| released.contains(name))
    };
    assert_eq!(published(None), [true, false]);
    // Redis 6.2 has no sharded channels.
    if server.run(&["COMMAND", "INFO", "spublish"]) != redis::Value::Array(vec![redis::Value::Nil]) {
        assert_eq!(published(Some(Prefix::PublishSharded)), [false, true]);
        assert_eq!(published(Some(Prefix::PublishBoth)), [true, true]);
    }
}

/// The owner lost the lock while its release was on its way, and another owner acquired it.
#[test]
fn a_late_release_of_a_former_holder_changes_nothing() {
    let (server, store) = served();
    for kind in [Kind::Mutex, Kind::Fenced] {
        let kept = || Claim { caches: true, ..claim(kind, "lk", 30_000) };
        let (former, next) = (kept(), kept());
        store.attempt(&next, 1, soon()).granted();
        server.run(&["HSET", "lk", "leasehold:about", "where it is"]);
        let before = hash(&server, "lk").0;
        assert_eq!(before.len(), 6, "three fields with their values");
        for left in [0, 1] {
            assert!(matches!(store.release(&former, left, soon()).done(), Release::NotHeld { .. }));
        }
        store.clean_up(&[former.clone(), kept()], soon());
        assert!(!store.renew(std::slice::from_ref(&former), soon()).remove(0).done());
        assert_eq!(hash(&server, "lk").0, before);
        store.release(&next, 0, soon()).freed();
        assert_eq!(server.number(&["EXISTS", "lk"]), 0);
    }
}

/// Notes are the fields of a lock's hash beside the owner's. A hash that has only notes is no lock: clients
/// can acquire it, and a forced unlock removes it.
#[test]
fn a_lock_hash_without_owner_is_free_and_is_removed() {
    let (server, store) = served();
    for kind in [Kind::Mutex, Kind::Fenced] {
        let hold = Claim { caches: true, ..claim(kind, "lk", 30_000) };
        let plain = Claim { caches: false, ..hold.clone() };
        let other = claim(kind, "other", 30_000);
        for together in [false, true] {
            store.attempt(&hold, 1, soon()).granted();
            server.run(&["HSET", "lk", "leasehold:about", "where it is"]);
            let claims = [plain.clone(), other.clone()];
            store.clean_up(if together { &claims } else { &claims[..1] }, soon());
            assert_eq!(server.number(&["EXISTS", "lk"]), 0, "{kind:?}, together: {together}");
        }
        for queue_mode in [QueueMode::Barges, QueueMode::Yields, QueueMode::Waits] {
            server.run(&["HSET", "lk", "leasehold:about", "where it was", "leasehold:cached", ""]);
            let next = take(&store, Claim { queue_mode, ..claim(kind, "lk", 30_000) });
            assert_eq!(hash(&server, "lk").0.len(), 2, "only the owner's field");
            store.release(&next, 0, soon()).freed();
        }
        server.run(&["HSET", "lk", "leasehold:cached", ""]);
        server.run(&["HSET", "lk", "leasehold:cached", ""]);
        let both = [claim(Kind::Mutex, "lk", 30_000), claim(Kind::Mutex, "other", 30_000)];
        assert_eq!(store.begin_attempts(&both, true, soon()).wait().done().len(), 2);
        store.clean_up(&both, soon());
        server.run(&["HSET", "lk", "leasehold:cached", ""]);
        assert!(store.force(kind, &plain.name, soon()).done());
        assert_eq!(server.number(&["EXISTS", "lk"]), 0);
    }
}
