//! The store against a real server.

use std::time::Duration;

use redis::Value;

use super::harness::{Server, claim, eventually, name, open, owner, soon};
use super::keys;
use crate::config::RedisOptions;
use crate::error::ErrorKind;
use crate::lock::store::{Answer, Attempt, Claim, Kind, Release, Snapshot, Store};
use crate::time::{Clock, Moment};

const GRANTED: Attempt = Attempt::Granted { fence: None };

/// What the key holds, and for how long.
fn hash(server: &Server, key: &str) -> (Vec<String>, i64) {
    let fields = redis::from_redis_value(server.run(&["HGETALL", key])).unwrap();
    (fields, server.number(&["PTTL", key]))
}

fn held(claim: &Claim, count: u32) -> Vec<String> {
    vec![claim.owner.to_string(), count.to_string()]
}

#[test]
fn a_lock_is_taken_re_entered_left_and_freed() {
    let server = Server::start(&[]);
    let store = server.store();
    let (me, you) = (claim(Kind::Mutex, "lk", 30_000), claim(Kind::Mutex, "lk", 30_000));

    assert_eq!(store.attempt(&me, 1, false, soon()).done(), GRANTED);
    let (fields, ttl) = hash(&server, "lk");
    assert_eq!(fields, held(&me, 1));
    assert!((29_000..=30_000).contains(&ttl), "{ttl}");

    match store.attempt(&you, 1, false, soon()).done() {
        Attempt::Busy { retry_after: Some(after) } => assert!(after > Duration::from_secs(29), "{after:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.attempt(&you, 2, false, soon()).done(), Attempt::Lost);
    assert_eq!(store.attempt(&me, 2, false, soon()).done(), GRANTED);
    assert_eq!(hash(&server, "lk").0, held(&me, 2));

    let by = Some(me.owner.to_string());
    assert_eq!(store.release(&you, 0, soon()).done(), Release::NotHeld { by });
    assert_eq!(store.release(&me, 1, soon()).done(), Release::StillHeld);
    assert_eq!(hash(&server, "lk").0, held(&me, 1));
    assert_eq!(store.release(&me, 0, soon()).done(), Release::Freed);
    assert_eq!(server.keys(), [""; 0]);
    assert_eq!(store.release(&me, 0, soon()).done(), Release::NotHeld { by: None });
    assert_eq!(store.attempt(&me, 2, false, soon()).done(), Attempt::Lost);
    assert_eq!(server.keys(), [""; 0]);
    store.close();
}
