//! Tests of refusals by the server: no right, no memory, a replica. A script that is refused midway must
//! leave no key without an expiry, and lose no permit.

use super::prelude::*;

/// The rights that the page on permissions lists for plain and fenced locks.
const MUTEX: &str = "~app:* ~redisson_*:{app:* &redisson_*:{app:* +eval +evalsha +exists +hexists +hget \
    +hset +hdel +pexpire +pttl +get +set +del +publish +subscribe +unsubscribe";

/// The store of a user with the rights of `MUTEX`, changed by `rules`.
fn user(server: &Server, rules: &str) -> Opened {
    let client_name = Some("leasehold".to_owned());
    open(&ServerOptions { client_name, ..server.user(&format!("{MUTEX} {rules}")) })
}

/// The store of a user with every right but this one. With an empty text, no right is missing.
fn without(server: &Server, right: &str) -> Opened {
    let refused = if right.is_empty() { String::new() } else { format!(" -{right}") };
    user(server, &format!("~* &* +@all{refused}"))
}

#[test]
fn a_missing_redis_right_leaves_no_lock_without_expiry() {
    let server = Server::start(&[]);
    let rights = "-hexists,-hget,-hset,-hdel,-pexpire,-pttl,-get,-set,-del,-publish,-pexpire -del -hdel -set";
    for missing in rights.split(',') {
        server.run(&["FLUSHALL"]);
        let store = user(&server, &format!("+incr +time {missing}"));
        let me = claim(Kind::Fenced, "app:a", 30_000);
        let ends = || server.number(&["EXISTS", "app:a"]) == 0 || server.number(&["PTTL", "app:a"]) > 29_000;
        let right = |answer: Answer<Attempt>| match answer {
            Ok(done) => done == Attempt::Lost || matches!(done, Attempt::Granted { .. }),
            Err(Failure::Refused(error)) => {
                assert_eq!(error.kind(), ErrorKind::NoPermission, "{missing}: {error}");
                false
            }
            Err(Failure::Unknown(error)) => panic!("{missing}: {error}"),
        };
        let taken = right(store.attempt(&me, 1, soon()));
        assert_eq!(taken, server.number(&["EXISTS", "app:a"]) == 1, "{missing}");
        assert!(ends(), "{missing}");
        right(store.attempt(&me, 2, soon()));
        assert!(ends(), "{missing}");
        for left in [1, 0] {
            let before = server.run(&["HGETALL", "app:a"]);
            if let Err(Failure::Refused(_)) = store.release(&me, left, soon()) {
                assert_eq!(server.run(&["HGETALL", "app:a"]), before, "{missing}");
            }
            assert!(ends(), "{missing}");
        }
    }
}

/// If a command is refused, the keys that the script wrote before it remain, so they must expire: the waiter
/// may be killed before it removes them.
#[test]
fn a_missing_redis_right_leaves_no_queue_key_without_expiry() {
    let rights = "pexpire zadd zrem zscore zrange zrangebyscore zremrangebyscore rpush lpop lrem lpos llen lindex \
        hexists hdel time publish ";
    let server = Server::start(&[]);
    for right in rights.split(' ') {
        let store = without(&server, right);
        for kind in [Kind::Mutex, Kind::Fair, Kind::Write, Kind::Signal] {
            server.run(&["FLUSHALL"]);
            // A Redisson client, whose user has other rights, holds the lock.
            let field = if kind == Kind::Write { "mode" } else { "03c6e5aa-0000-4000-8000-000000000001:1" };
            server.run(&["HSET", "app:a", field, if kind == Kind::Write { "read" } else { "1" }]);
            server.run(&["PEXPIRE", "app:a", "30000"]);
            let me =
                Claim { writers_first: true, queue_mode: QueueMode::Waits, ..claim(kind, "app:a", 30_000) };
            if kind == Kind::Signal {
                drop(store.count(&me, &Counting::Enlist, soon()));
            }
            drop(store.attempt(&me, 1, soon()));
            drop(store.attempt(&me, 1, soon()));
            for key in server.keys() {
                assert!(server.number(&["PTTL", &key]) > 0, "{kind:?} without {right}: {key}");
            }
        }
    }
}

/// After each step, the key of acquired permits has an expiry, and free plus acquired permits are still five.
#[test]
fn a_missing_right_loses_no_permit() {
    let rights = "get pttl pexpire time zscore zrange zrangebyscore zremrangebyscore zcount zcard zrem zadd incrby \
        decrby publish ";
    let server = Server::start(&[]);
    for right in rights.split(' ') {
        let store = without(&server, right);
        let me = Claim { units: 2, ..claim(Kind::Permits, "app:a", 30_000) };
        server.run(&["FLUSHALL"]);
        server.run(&["SET", "app:a", "5", "PX", "60000"]);
        let agree = |step: &str| {
            let (free, out) =
                (server.number(&["GET", "app:a"]), server.number(&["ZCARD", "{app:a}:timeout"]));
            assert_eq!(free + out, 5, "{step} without {right}");
            let ttl = server.number(&["PTTL", "{app:a}:timeout"]);
            assert!(ttl != -1, "{step} without {right}: taken permits never expire");
        };
        let another_client_takes = |id: &str, until: &str| {
            server.run(&["DECRBY", "app:a", "1"]);
            server.run(&["ZADD", "{app:a}:timeout", until, id]);
            server.run(&["PEXPIRE", "{app:a}:timeout", "60000"]);
        };
        for what in ["none out", "one over", "one out"] {
            match what {
                "one over" => another_client_takes("over", "1"),
                "one out" => another_client_takes("out", "99999999999999"),
                _ => {}
            }
            let granted = store.attempt(&me, 1, soon());
            agree(what);
            drop(store.count(&me, &Counting::AskAll, soon()));
            agree("asked");
            drop(store.count(&me, &Counting::GiveBackAll(vec![me.owner.permit(0)]), soon()));
            agree("one given back");
            let released = store.release(&me, 0, soon());
            agree("released");
            assert!(!right.is_empty() || granted.is_ok() && released.is_ok());
        }
    }
}

/// If the failed removal from the queue became a refusal, the client would not release the lock that it has
/// been granted.
#[test]
fn a_fair_grant_is_valid_though_leaving_the_queue_fails() {
    let server = Server::start(&[]);
    for right in ["zrem", "lpop"] {
        server.run(&["FLUSHALL"]);
        let store = without(&server, right);
        let me = claim(Kind::Fair, "app:a", 30_000);
        server.run(&["HSET", "app:a", "another", "1"]);
        assert!(matches!(store.attempt(&me, 1, soon()).done(), Attempt::Busy { .. }));
        server.run(&["DEL", "app:a"]);
        store.attempt(&me, 1, soon()).granted();
    }
}

#[test]
fn a_release_needs_no_right_to_publish() {
    let server = Server::start(&[]);
    let store = user(&server, "-publish +hkeys");
    let me = take(&store, claim(Kind::Mutex, "app:a", 30_000));
    store.release(&me, 0, soon()).freed();
    store.attempt(&me, 1, soon()).granted();
    assert!(store.force(Kind::Mutex, &me.name, soon()).done());
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn a_store_out_of_memory_refuses_only_new_holds() {
    let (server, store) = served();
    let (held, new) = (claim(Kind::Mutex, "held", 30_000), claim(Kind::Fenced, "new", 30_000));
    let token = claim(Kind::Token, "token", 30_000);
    store.attempt(&held, 1, soon()).granted();
    store.attempt(&token, 1, soon()).granted();
    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    for wants_fence in [false, true] {
        let error = store.attempt(&Claim { wants_fence, ..new.clone() }, 1, soon()).refused();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(error.is_retryable());
    }
    let error = store.attempt(&claim(Kind::Token, "new", 30_000), 1, soon()).refused();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    store.attempt(&held, 2, soon()).granted();
    assert!(store.renew(&[held.clone(), token.clone()], soon()).into_iter().all(Said::done));
    assert_eq!(store.release(&held, 1, soon()).done(), Release::StillHeld);
    assert_eq!(server.text(&["HGET", "held", &held.owner.to_string()]).as_deref(), Some("1"));
    store.release(&held, 0, soon()).freed();
    store.release(&token, 0, soon()).freed();
    assert_eq!(server.keys(), [""; 0]);
}

/// A replica that lags behind may lack the hold. If it answered, the client would report a loss.
#[test]
fn a_replica_refuses_requests_and_reports_no_loss() {
    let (server, store) = served();
    let claims = |key: &str| [claim(Kind::Mutex, key, 30_000), claim(Kind::Token, key, 30_000)];
    let warm: Vec<Claim> = [claim(Kind::Mutex, "a", 30_000), claim(Kind::Token, "b", 30_000)].to_vec();
    store.renew(&warm, soon());
    server.run(&["REPLICAOF", "127.0.0.1", "1"]);
    for me in claims("lk") {
        let errors = [
            store.attempt(&me, 1, soon()).refused(),
            store.release(&me, 0, soon()).refused(),
            store.renew(std::slice::from_ref(&me), soon()).remove(0).refused(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        }
    }
    let me = claim(Kind::Mutex, "lk", 30_000);
    assert_eq!(store.attempt(&me, 2, soon()).refused().kind(), ErrorKind::ReadOnly);
}
