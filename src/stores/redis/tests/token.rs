//! Tests of the token lock.

use super::prelude::*;

#[test]
fn a_token_lock_is_acquired_renewed_and_released() {
    let (server, store) = served();
    let (me, you) = (claim(Kind::Token, "lk", 30_000), claim(Kind::Token, "lk", 30_000));
    assert_eq!(store.attempt(&me, 1, soon()).granted(), None);
    assert_eq!(server.text(&["GET", "lk"]), Some(me.owner.to_string()));
    assert!((29_000..=30_000).contains(&server.number(&["PTTL", "lk"])));
    let Attempt::Busy { retry_after: Some(after) } = store.attempt(&you, 1, soon()).done() else { panic!() };
    assert!(after > Duration::from_secs(29));

    server.run(&["PEXPIRE", "lk", "5000"]);
    let renew = |claim: &Claim| store.renew(std::slice::from_ref(claim), soon()).remove(0).done();
    assert!(renew(&me));
    assert!(server.number(&["PTTL", "lk"]) > 29_000);
    assert!(renew(&Claim { lease: Duration::from_secs(5), ..me.clone() }));
    assert!(server.number(&["PTTL", "lk"]) > 25_000, "the renewal shortened the lease");
    assert!(!renew(&you));

    let holder = Some(me.owner.to_string());
    assert_eq!(store.release(&you, 0, soon()).done(), Release::NotHeld { holder });
    store.release(&me, 0, soon()).freed();
    assert_eq!(store.release(&me, 0, soon()).done(), Release::NotHeld { holder: None });
    assert!(!renew(&me));
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn a_repeated_token_lock_attempt_renews_its_own_grant() {
    let (server, store) = served();
    let me = take(&store, claim(Kind::Token, "lk", 30_000));
    server.run(&["PEXPIRE", "lk", "5000"]);
    store.attempt(&me, 1, soon()).granted();
    assert!(server.number(&["PTTL", "lk"]) > 29_000);
}

#[test]
fn a_token_lock_has_no_channel_to_listen_on() {
    let (_server, store) = served();
    let me = claim(Kind::Token, "lk", 30_000);
    let waker = crate::sync::Waker::default();
    assert!(store.listen(&me, &waker).is_none());
    assert!(store.message_count(&me).is_none());
}
