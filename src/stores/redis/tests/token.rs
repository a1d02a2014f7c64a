//! The token lock.

use std::time::Duration;

use crate::error::ErrorKind;
use crate::seam::{Attempt, Claim, Kind, Release, Store};
use crate::stores::redis::tests::harness::{Said, Server, claim, granted, owner, soon};

fn with_server(test: impl Fn(&Server, &dyn Store)) {
    let server = Server::start(&[]);
    let store = server.store();
    test(&server, &store);
    store.close();
}

#[test]
fn a_token_lock_is_acquired_renewed_and_released() {
    with_server(|server, store| {
        let (me, you) = (claim(Kind::Token, "lk", 30_000), claim(Kind::Token, "lk", 30_000));
        assert_eq!(granted(store.attempt(&me, 1, soon())), None);
        assert_eq!(server.text(&["GET", "lk"]), Some(me.owner.to_string()));
        assert!((29_000..=30_000).contains(&server.number(&["PTTL", "lk"])));
        let Attempt::Busy { retry_after: Some(after) } = store.attempt(&you, 1, soon()).done() else {
            panic!()
        };
        assert!(after > Duration::from_secs(29));

        server.run(&["PEXPIRE", "lk", "5000"]);
        let renew = |claim: &Claim| store.renew(std::slice::from_ref(claim), soon()).remove(0).done();
        assert!(renew(&me));
        assert!(server.number(&["PTTL", "lk"]) > 29_000);
        assert!(renew(&Claim { lease: Duration::from_secs(5), ..me.clone() }));
        assert!(server.number(&["PTTL", "lk"]) > 25_000, "a renewal never shortens");
        assert!(!renew(&you));

        let holder = Some(me.owner.to_string());
        assert_eq!(store.release(&you, 0, soon()).done(), Release::NotHeld { holder });
        assert!(matches!(store.release(&me, 0, soon()).done(), Release::Freed { .. }));
        assert_eq!(store.release(&me, 0, soon()).done(), Release::NotHeld { holder: None });
        assert!(!renew(&me));
        assert_eq!(server.keys(), [""; 0]);
    });
}

#[test]
fn a_repeated_attempt_finds_its_own_earlier_grant() {
    with_server(|server, store| {
        let me = claim(Kind::Token, "lk", 30_000);
        granted(store.attempt(&me, 1, soon()));
        server.run(&["PEXPIRE", "lk", "5000"]);
        granted(store.attempt(&me, 1, soon()));
        assert!(server.number(&["PTTL", "lk"]) > 29_000);
    });
}

#[test]
fn a_token_lock_is_inspected_and_forced() {
    with_server(|server, store| {
        let me = claim(Kind::Token, "lk", 30_000);
        let inspect = |who| store.inspect(Kind::Token, &me.name, who, soon()).done();
        assert_eq!(inspect(me.owner), None);
        granted(store.attempt(&me, 1, soon()));
        let seen = inspect(me.owner).unwrap();
        assert_eq!((seen.holder, seen.count), (me.owner.to_string(), 1));
        assert_eq!(inspect(owner()).unwrap().count, 0);
        server.run(&["PERSIST", "lk"]);
        assert_eq!(inspect(me.owner).unwrap().remaining, None);
        assert!(store.force(Kind::Token, &me.name, soon()).done());
        assert!(!store.force(Kind::Token, &me.name, soon()).done());
        assert_eq!(server.keys(), [""; 0]);
    });
}

#[test]
fn a_redis_lock_in_the_key_is_kept() {
    with_server(|server, store| {
        server.run(&["HSET", "lk", "other:1", "1"]);
        let me = claim(Kind::Token, "lk", 30_000);
        let errors = [
            store.attempt(&me, 1, soon()).refused(),
            store.release(&me, 0, soon()).refused(),
            store.renew(std::slice::from_ref(&me), soon()).remove(0).refused(),
            store.inspect(Kind::Token, &me.name, me.owner, soon()).refused(),
            store.force(Kind::Token, &me.name, soon()).refused(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::WrongType);
            assert!(error.to_string().contains("a RedisLock's hash"), "{error}");
        }
        assert_eq!(server.text(&["HGET", "lk", "other:1"]).as_deref(), Some("1"));
    });
}

#[test]
fn a_token_lock_publishes_no_messages() {
    with_server(|_, store| {
        let me = claim(Kind::Token, "lk", 30_000);
        let waker = crate::sync::Waker::default();
        assert!(store.listen(&me, &waker).is_none());
        assert!(store.message_count(&me).is_none());
    });
}
