//! Tests of how scripts change permits, with and without leases.

use super::prelude::*;
use crate::stores::redis::tests::kinds::OUT;
use crate::stores::redis::tests::kinds::are_over;
use crate::stores::redis::tests::kinds::cleaned_up;
use crate::stores::redis::tests::kinds::for_ms;
use crate::stores::redis::tests::kinds::renewed;

#[test]
fn permits_are_taken_and_returned_once_per_request() {
    let (server, store) = served();
    set_up(&store, Kind::Semaphore, 3);
    let permits = || server.number(&["GET", "k"]);
    let command = |claim: &Claim| format!("leasehold_request:{{k}}:{}", claim.owner);
    let me = Claim { units: 2, ..of(Kind::Semaphore) };
    for _ in 0..2 {
        store.attempt(&me, 1, soon()).granted();
        assert_eq!(permits(), 1);
    }
    assert!(server.number(&["PTTL", &command(&me)]) > 590_000);
    let mut messages = Messages::of(&server, "redisson_sc:{k}");
    for _ in 0..2 {
        assert!(matches!(cleaned_up(&store, &me), Release::Freed { .. }));
        assert_eq!(permits(), 3);
    }
    assert_eq!(messages.payloads(), ["3"]);
    // After the clean-up, a late copy of the attempt is not granted.
    busy(&store, &me);
    let never = of(Kind::Semaphore);
    for _ in 0..2 {
        assert!(matches!(cleaned_up(&store, &never), Release::NotHeld { .. }));
    }
    busy(&store, &never);
    assert_eq!(permits(), 3);
    assert!(server.number(&["PTTL", &command(&never)]) > 590_000);
    // A release that is repeated long after the grant's record was deleted must still return one permit only.
    let you = take(&store, Claim { is_granted: true, ..of(Kind::Semaphore) });
    server.run(&["DEL", &command(&you)]);
    for _ in 0..2 {
        assert!(matches!(cleaned_up(&store, &you), Release::Freed { .. }));
        assert_eq!(permits(), 3);
    }
    assert_eq!(messages.payloads(), ["3"]);
    // A negative number is not published, because Redisson's reading thread would fail on it.
    let debt = of(Kind::Semaphore);
    assert_eq!(count(&store, &debt, &Counting::Add(-9)), Some(-6));
    assert_eq!(count(&store, &debt, &Counting::Add(-9)), Some(-6), "the repeated request changed the count");
    store.attempt(&Claim { owner: me.owner, ..of(Kind::Latch) }, 1, soon()).granted();
    assert!(matches!(cleaned_up(&store, &Claim { owner: owner(), ..you }), Release::Freed { .. }));
    assert_eq!((permits(), messages.payloads()), (-5, vec![]));
}

#[test]
fn permit_counts_beyond_two_to_the_53_are_refused() {
    let (server, store) = served();
    let most = (1_i64 << 53) - 1;
    for (there, more) in [(most - 1, 2), (most, 1), (i64::MAX, -1), (-most, -1), (0, i64::MAX)] {
        server.run(&["SET", "k", &there.to_string()]);
        let refused = store.count(&of(Kind::Semaphore), &Counting::Add(more), soon()).unwrap_err();
        let Failure::Refused(error) = refused else { panic!("{there} and {more}: {refused:?}") };
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{there} and {more}: {error}");
        assert_eq!(
            server.text(&["GET", "k"]),
            Some(there.to_string()),
            "the refused request changed the count"
        );
    }
    server.run(&["SET", "k", &(most - 1).to_string()]);
    assert_eq!(count(&store, &of(Kind::Semaphore), &Counting::Add(1)), Some(most));
}

#[test]
fn the_records_of_permit_requests_expire() {
    let (server, store) = served();
    let (setting_up, adding, kept) =
        (of(Kind::Semaphore), of(Kind::Semaphore), Claim { is_granted: true, ..of(Kind::Semaphore) });
    let commands = || -> Vec<String> {
        server.keys().into_iter().filter(|key| key.starts_with("leasehold_request:")).collect()
    };
    count(&store, &setting_up, &Counting::SetUp { to: 3, lease: None });
    count(&store, &adding, &Counting::Add(1));
    store.attempt(&kept, 1, soon()).granted();
    let permit = take(&store, Claim { is_granted: true, ..of(Kind::Semaphore) });
    freed(&store, &permit);
    // The acquire and the release of `permit` share one record, which the store deletes after the release's
    // answer: the client does not repeat the release then. The other three records stay until `Forget`.
    eventually(|| commands().len() == 3);
    assert!(commands().iter().all(|key| (1..=600_000).contains(&server.number(&["PTTL", key]))));
    for claim in [&setting_up, &adding, &kept] {
        store.count(claim, &Counting::Forget, soon()).done();
    }
    eventually(|| commands().is_empty());
    assert_eq!(server.text(&["GET", "k"]).as_deref(), Some("3"));
}

#[test]
fn a_permit_change_that_fails_leaves_no_request_record() {
    let (server, store) = served();
    // 2.5 passes the script's comparison, but DECRBY refuses it.
    server.run(&["SET", "k", "2.5"]);
    let me = of(Kind::Semaphore);
    for _ in 0..2 {
        assert_eq!(store.attempt(&me, 1, soon()).refused().kind(), ErrorKind::WrongType);
    }
    let leased = of(Kind::Permits);
    assert_eq!(store.attempt(&leased, 1, soon()).refused().kind(), ErrorKind::WrongType);
    assert_eq!(server.keys(), ["k"]);
    server.run(&["SET", "k", "1"]);
    let held = take(&store, Claim { is_granted: true, ..me });
    server.run(&["SET", "k", "0.5"]);
    assert_eq!(store.release(&held, 0, soon()).refused().kind(), ErrorKind::WrongType);
    server.run(&["SET", "k", "0"]);
    freed(&store, &held);
    assert_eq!(server.text(&["GET", "k"]).as_deref(), Some("1"));
}

#[test]
fn a_string_of_another_program_is_refused_as_a_count() {
    let (server, store) = served();
    server.run(&["SET", "k", "a token"]);
    for kind in [Kind::Semaphore, Kind::Permits, Kind::Latch] {
        for what in [Counting::SetUp { to: 1, lease: None }, Counting::Delete, Counting::Drain, Counting::Ask]
        {
            if kind == Kind::Permits && what == Counting::Ask {
                continue;
            }
            let error = store.count(&of(kind), &what, soon()).refused();
            assert_eq!(error.kind(), ErrorKind::WrongType, "{kind:?} {what:?}: {error}");
        }
    }
    assert_eq!(server.text(&["GET", "k"]).as_deref(), Some("a token"));
}

#[test]
fn leased_permits_are_taken_and_returned_once_per_request() {
    let (server, store) = served();
    set_up(&store, Kind::Permits, 3);
    let permits = || server.number(&["GET", "k"]);
    let (me, you) = (Claim { units: 2, ..of(Kind::Permits) }, of(Kind::Permits));
    for lease_ms in [30_000, 5_000] {
        store.attempt(&for_ms(&me, lease_ms), 1, soon()).granted();
        assert_eq!((permits(), server.number(&["ZCARD", OUT])), (1, 2));
    }
    assert!(renewed(&store, &for_ms(&me, 5_000)));
    let first = busy(&store, &Claim { units: 2, ..you.clone() }).unwrap();
    assert!(first > Duration::from_secs(29), "neither asking again nor a renewal cuts a lease: {first:?}");
    let mut messages = Messages::of(&server, "redisson_sc:{k}");
    freed(&store, &me);
    assert_eq!((permits(), messages.payloads()), (3, vec!["3".to_owned()]));
    assert!(matches!(store.release(&me, 0, soon()).done(), Release::NotHeld { .. }));
    assert_eq!(permits(), 3);

    store.attempt(&for_ms(&you, 20), 1, soon()).granted();
    eventually(|| are_over(&server));
    assert!(!renewed(&store, &you));
    assert!(matches!(store.release(&you, 0, soon()).done(), Release::NotHeld { .. }));
    assert_eq!(permits(), 3);
    messages.payloads();
    store.attempt(&for_ms(&you, 1), 1, soon()).granted();
    store.attempt(&for_ms(&me, 1), 1, soon()).granted();
    eventually(|| count(&store, &of(Kind::Permits), &Counting::Ask) == Some(3));
    assert!(messages.payloads().contains(&"3".to_owned()));
    store.attempt(&for_ms(&you, 1), 1, soon()).granted();
    eventually(|| are_over(&server));
    busy(&store, &Claim { units: 9, ..again(&you) });
    assert_eq!(messages.payloads(), ["3"]);
    let me = Claim { units: 1, ..me };
    store.attempt(&for_ms(&me, 1), 1, soon()).granted();
    eventually(|| are_over(&server));
    store.attempt(&me, 1, soon()).granted();
    assert_eq!((permits(), server.number(&["ZCARD", OUT])), (2, 1));
    server.run(&["PEXPIRE", "k", "60000"]);
    store.attempt(&you, 1, soon()).granted();
    assert!((1..=60_000).contains(&server.number(&["PTTL", OUT])));
}

#[test]
fn permits_of_a_deleted_semaphore_are_not_added_to_another() {
    let (server, store) = served();
    set_up(&store, Kind::Permits, 1);
    store.attempt(&for_ms(&of(Kind::Permits), 50), 1, soon()).granted();
    assert_eq!(count(&store, &of(Kind::Permits), &Counting::Delete), Some(1));
    assert_eq!(server.number(&["EXISTS", OUT]), 0);
    set_up(&store, Kind::Permits, 1);
    take(&store, for_ms(&of(Kind::Permits), 60));
    eventually(|| are_over(&server));
    assert_eq!(count(&store, &of(Kind::Permits), &Counting::Ask), Some(1));
}

#[test]
fn releases_do_not_revive_a_deleted_semaphore() {
    let (server, store) = served();
    set_up(&store, Kind::Permits, 3);
    let (unlocked, over) = (of(Kind::Permits), of(Kind::Permits));
    store.attempt(&unlocked, 1, soon()).granted();
    store.attempt(&for_ms(&over, 20), 1, soon()).granted();
    server.run(&["DEL", "k"]);
    freed(&store, &unlocked);
    eventually(|| are_over(&server));
    assert_eq!(store.attempt(&of(Kind::Permits), 1, soon()).unwrap_err().error().kind(), ErrorKind::NotSetUp);
    granted_nothing(&server);
    set_up(&store, Kind::Permits, 3);
    store.attempt(&for_ms(&again(&over), 1), 1, soon()).granted();
    server.run(&["DEL", "k"]);
    eventually(|| are_over(&server));
    assert_eq!(count(&store, &of(Kind::Permits), &Counting::Ask), None);
    granted_nothing(&server);

    set_up(&store, Kind::Semaphore, 3);
    let permit = take(&store, Claim { is_granted: true, ..of(Kind::Semaphore) });
    server.run(&["DEL", "k"]);
    for _ in 0..2 {
        freed(&store, &permit);
        granted_nothing(&server);
    }
}

#[test]
fn leased_permits_are_inspected_changed_and_released_by_id() {
    let (server, store) = served();
    let ask = |what: &Counting| count(&store, &of(Kind::Permits), what);
    assert_eq!((ask(&Counting::AskAll), ask(&Counting::AskOut)), (None, Some(0)));
    let to = of(Kind::Permits);
    for _ in 0..2 {
        assert_eq!(count(&store, &to, &Counting::SetTo(3)), Some(3));
    }
    let me = take(&store, Claim { units: 2, ..of(Kind::Permits) });
    let ids = [me.owner.permit(0), me.owner.permit(1)];
    // Redisson writes this score for a permit without a lease, so `AskLease` answers -1: no end.
    let endless = *b"0123456789abcdef";
    server.run(&["ZADD", OUT, "922337203685477", "0123456789abcdef"]);
    assert_eq!(ask(&Counting::AskLease(endless)), Some(-1));
    assert_eq!(
        (ask(&Counting::AskAll), ask(&Counting::AskOut), ask(&Counting::Ask)),
        (Some(4), Some(3), Some(1))
    );
    let left = ask(&Counting::AskLease(ids[0])).unwrap();
    assert!(left > 25_000 && left <= 30_000, "{left}");
    assert_eq!(ask(&Counting::AskLease([7; 16])), None);
    let mut messages = Messages::of(&server, "redisson_sc:{k}");
    let lower = of(Kind::Permits);
    for _ in 0..2 {
        assert_eq!(
            count(&store, &lower, &Counting::SetTo(2)),
            Some(-1),
            "the repeated request changed the count"
        );
    }
    assert_eq!(messages.payloads(), [""; 0]);
    assert_eq!(ask(&Counting::SetTo(4)), Some(1));
    assert_eq!(messages.payloads(), ["1"]);

    assert_eq!(ask(&Counting::Lease(ids[0], Duration::from_millis(1))), Some(1));
    eventually(|| server.number(&["ZCOUNT", OUT, "0", &now_ms(&server).to_string()]) == 1);
    assert_eq!(ask(&Counting::GiveBackAll(ids.to_vec())), Some(0));
    assert_eq!((ask(&Counting::AskOut), ask(&Counting::Ask)), (Some(2), Some(2)));
    assert_eq!(messages.payloads(), ["2"]);
    assert_eq!(ask(&Counting::Lease(ids[0], Duration::from_secs(1))), Some(0));

    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(ask(&Counting::Lease(endless, Duration::from_secs(60))), Some(1));
    assert!(ask(&Counting::AskLease(endless)).unwrap() <= 60_000);
    assert_eq!(ask(&Counting::GiveBackAll(vec![ids[1], endless, ids[1]])), Some(2));
    assert_eq!(messages.payloads(), ["4"]);
    server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!((ask(&Counting::AskAll), ask(&Counting::Ask)), (Some(4), Some(4)));
    store.close();

    let store = server.store();
    server.run(&["SET", "k", "none"]);
    server.run(&["ZADD", OUT, "1", "0123456789abcdef"]);
    for what in [Counting::GiveBackAll(vec![endless]), Counting::Lease(endless, Duration::from_secs(1))] {
        store.count(&of(Kind::Permits), &what, soon()).refused();
        assert_eq!(server.number(&["ZCARD", OUT]), 1);
    }
}

#[track_caller]
fn granted_nothing(server: &Server) {
    assert_eq!((server.number(&["EXISTS", "k"]), server.number(&["EXISTS", OUT])), (0, 0));
}

#[test]
fn an_answered_permit_release_leaves_no_record() {
    let (server, store) = served();
    server.run(&["SET", "k", "3"]);
    let commands = || server.keys().into_iter().filter(|key| key.starts_with("leasehold_request:")).count();
    let drop_one = || {
        let permit = take(&store, Claim { is_granted: true, ..of(Kind::Semaphore) });
        store.release_later(&permit, soon(), Sink::new(|answer| assert!(answer.is_ok())));
    };
    drop_one();
    eventually(|| !store.poll_completions() && commands() == 0);
    // The release is refused. Its repetition needs the record of the grant, so the record must remain.
    let permit = take(&store, Claim { is_granted: true, ..of(Kind::Semaphore) });
    server.run(&["SET", "k", "no number"]);
    store.release_later(
        &permit,
        soon(),
        Sink::new(|answer| assert!(matches!(answer, Err(Failure::Refused(_))))),
    );
    eventually(|| !store.poll_completions());
    assert_eq!(commands(), 1);
    server.run(&["SET", "k", "2"]);
    freed(&store, &permit);
    eventually(|| commands() == 0);
    drop_one();
    store.close();
    assert_eq!((commands(), server.text(&["GET", "k"]).as_deref()), (0, Some("3")));
}

#[test]
fn permits_are_added_once_per_request() {
    let (server, store) = served();
    assert_eq!(count(&store, &of(Kind::Semaphore), &Counting::AddIfSetUp(2)), Some(0));
    assert_eq!(server.number(&["EXISTS", "k"]), 0);
    server.run(&["SET", "k", "1", "PX", "60000"]);
    let (mut messages, add) = (Messages::of(&server, "redisson_sc:{k}"), of(Kind::Semaphore));
    for _ in 0..2 {
        assert_eq!(count(&store, &add, &Counting::AddIfSetUp(2)), Some(1));
    }
    assert_eq!(
        (server.text(&["GET", "k"]).as_deref(), messages.payloads()),
        (Some("3"), vec!["3".to_owned()])
    );
    assert!(server.number(&["PTTL", "k"]) > 0, "the semaphore's expiry was removed");
    store.attempt(&of(Kind::Permits), 1, soon()).granted();
    assert!(server.number(&["PTTL", OUT]) > 0, "the permits' leases have no end");
}
