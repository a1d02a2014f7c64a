//! Tests of holds that want recalls (`Claim::hears`): who sends a recall, and what `check_holds` answers.

use super::prelude::*;
use crate::stores::redis::store::RedisStore;

/// The kind of a hold, the kind of its waiters, and the result of the hold's first check.
const FIRST_CHECKS: [(Kind, Kind, CachedCheck); 4] = [
    (Kind::Mutex, Kind::Mutex, CachedCheck::Unmarked),
    (Kind::Fair, Kind::Fair, CachedCheck::Unmarked),
    (Kind::Read, Kind::Write, CachedCheck::Stays),
    (Kind::Write, Kind::Read, CachedCheck::Stays),
];

fn holder(kind: Kind) -> Claim {
    Claim { hears: true, ..claim(kind, "k", 30_000) }
}

fn check(store: &RedisStore, holder: &Claim) -> CachedCheck {
    store.check_holds(std::slice::from_ref(holder), soon()).pop().unwrap().done()
}

#[test]
fn waiters_of_each_kind_send_one_recall_after_each_check() {
    for (held, wanted, first) in FIRST_CHECKS {
        let (server, store) = served();
        let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
        let (holder, channels) = (holder(held), "leasehold_wake:{k}:");
        store.attempt(&holder, 1, soon()).granted();
        let tries = Claim { waits: false, ..claim(wanted, "k", 30_000) };
        let waits = Claim { waits: true, queue_mode: QueueMode::Waits, ..claim(wanted, "k", 30_000) };
        let asks = |claim: &Claim| _ = store.attempt(claim, 1, soon()).done();
        asks(&waits);
        assert_eq!(messages.payloads(), [""; 0], "{held:?}: not marked");
        store.clean_up(std::slice::from_ref(&waits), soon());
        server.run(&["DEL", "leasehold_lock_queue:{k}"]);
        assert_eq!(check(&store, &holder), first, "{held:?}");
        assert_eq!(check(&store, &holder), CachedCheck::Stays, "{held:?}");
        for _ in 0..2 {
            asks(&tries);
            assert_eq!(messages.payloads(), [""; 0], "{held:?}: a single try recalled the hold");
            asks(&waits);
            asks(&waits);
            let recall = (format!("{channels}{}", holder.owner.client()), "recall".to_owned());
            assert_eq!(messages.take(), [recall], "{held:?}: once");
            assert_eq!(check(&store, &holder), CachedCheck::Wanted, "{held:?}");
        }
    }
}

/// A check sets the field `leasehold:cached`. A waiter that finds the field removes it, and sends a recall.
#[test]
fn each_check_lets_the_next_waiter_send_a_recall() {
    let (server, store) = served();
    let mut listening = Messages::of(&server, "leasehold_wake:{k}:");
    let holder = take(&store, holder(Kind::Mutex));
    let spins = Claim { waits: true, ..claim(Kind::Mutex, "k", 30_000) };
    for _ in 0..2 {
        assert_eq!(check(&store, &holder), CachedCheck::Unmarked);
        _ = store.attempt(&spins, 1, soon()).done();
        assert_eq!(listening.payloads(), ["recall"]);
    }
}

/// The check arrives after the release, or after the next grant.
#[test]
fn a_late_contention_check_leaves_no_mark_on_later_holds() {
    for (held, _, _) in FIRST_CHECKS {
        let (server, store) = served();
        let (holder, next) = (holder(held), claim(held, "k", 30_000));
        store.attempt(&holder, 1, soon()).granted();
        check(&store, &holder);
        let ttl_ms = server.number(&["PTTL", "leasehold_rwlock_hearers:{k}"]);
        assert_eq!(ttl_ms > 0, matches!(held, Kind::Read | Kind::Write), "{held:?}: the expiry of the key");
        _ = store.release(&holder, 0, soon()).done();
        assert_eq!(server.number(&["EXISTS", "k"]), 0, "{held:?}");
        assert_eq!(check(&store, &holder), CachedCheck::Lost);
        assert_eq!(server.number(&["EXISTS", "k"]), 0, "{held:?}: free");
        store.attempt(&next, 1, soon()).granted();
        assert_eq!(check(&store, &holder), CachedCheck::Lost);
        assert_eq!(server.number(&["HEXISTS", "k", "leasehold:cached"]), 0, "{held:?}: another's");
    }
}

#[test]
fn a_check_finds_only_live_waiters_of_other_clients() {
    let (server, store) = served();
    let holder = take(&store, holder(Kind::Mutex));
    check(&store, &holder);
    let (now_s, other) =
        (server.number(&["EVAL", "return redis.call('time')[1]", "0"]), claim(Kind::Mutex, "k", 1));
    let stands = |client: String, ago_s: i64| {
        server.run(&["DEL", "leasehold_lock_queue:{k}"]);
        let score = ((now_s - ago_s) % 100).to_string();
        server.run(&["ZADD", "leasehold_lock_queue:{k}", &score, &client]);
    };
    stands(other.owner.client().to_string(), 20);
    assert_eq!(check(&store, &holder), CachedCheck::Stays, "the other client is dead");
    stands(holder.owner.client().to_string(), 0);
    assert_eq!(check(&store, &holder), CachedCheck::Stays, "the holder's own client waits");
    stands(other.owner.client().to_string(), 0);
    assert_eq!(check(&store, &holder), CachedCheck::Wanted);
}

#[test]
fn the_holder_is_found_although_the_hash_has_other_fields() {
    let (server, store) = served();
    for kind in [Kind::Mutex, Kind::Fair] {
        let (holder, other) = (holder(kind), claim(kind, "k", 30_000));
        server.run(&[
            "HSET",
            "k",
            "leasehold:about",
            "where",
            "leasehold:cached",
            "",
            &holder.owner.to_string(),
            "1",
        ]);
        server.run(&["PEXPIRE", "k", "30000"]);
        let released = store.release(&other, 0, soon()).done();
        assert_eq!(released, Release::NotHeld { holder: Some(holder.owner.to_string()) });
        let seen = Inspect::inspect(&*store, kind, &other.name, other.owner, soon()).done();
        assert_eq!(seen.unwrap().holder, holder.owner.to_string());
        server.run(&["DEL", "k"]);
    }
}
