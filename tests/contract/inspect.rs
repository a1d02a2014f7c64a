//! Any client can inspect any name. What inspection shows of a kind of lock is tested in that kind's file.

use leasehold::ObjectKind;

use crate::support::prelude::*;

contract!(an_unused_name_is_shown_as_absent, |store| {
    let name = fresh("unused");
    let seen = store.client().inspect(&name).unwrap();
    assert_eq!((&seen.kind, &seen.name), (&ObjectKind::Absent, &name));
    assert!(!seen.is_held() && seen.remaining.is_none() && seen.fencing_token.is_none());
    assert_eq!((seen.waiting, seen.permits_out, seen.count), (0, 0, None));
    assert_eq!(seen.to_string(), format!("{name}: nothing: it is free, or no such name is in use"));
});

contract!(a_holder_is_shown_to_every_client, |store| {
    for (kind, name, [client, other]) in store.each() {
        let held = Holding::take(&(kind.make)(&client, &name));
        for (asked, is_own) in [(&client, true), (&other, false)] {
            let seen = asked.inspect(&name).unwrap();
            let [holder] = &seen.holders[..] else { panic!("{}: {seen}", kind.label) };
            assert_eq!(holder.owner, held.owner().to_string(), "{}", kind.label);
            assert_eq!(holder.by_this_client, is_own, "{}", kind.label);
            assert!(holder.hold_count.is_none_or(|holds| holds == 1), "{}: {seen}", kind.label);
            assert!(seen.remaining.is_some_and(|left| !left.is_zero()), "{}: {seen}", kind.label);
            assert!(seen.is_held() && !matches!(seen.kind, ObjectKind::Absent), "{}: {seen}", kind.label);
            assert!(seen.to_string().contains(&holder.owner), "{seen}");
            assert!((kind.make)(&other, &name).is_locked().unwrap());
        }
        held.release();
        let seen = client.inspect(&name).unwrap();
        assert!(!seen.is_held() && seen.remaining.is_none(), "{}: {seen}", kind.label);
    }
});

contract!(inspecting_an_unusable_name_or_after_shutdown_is_an_error, |store| {
    let client = store.client();
    fails(client.inspect(""), ErrorKind::InvalidInput);
    client.shutdown().unwrap();
    fails(client.inspect("a"), ErrorKind::ShutDown);
});

contract!(a_client_sees_process_and_thread_of_its_own_hold, |store| {
    let (client, name) = (store.client(), fresh("own"));
    let guard = client.get_lock(&name).acquire().unwrap();
    let seen = client.inspect(&name).unwrap();
    let place = seen.holders[0].location.clone().unwrap();
    assert_eq!(place.pid, std::process::id());
    assert_eq!(place.thread, crate::support::shown_thread());
    assert!(seen.holders[0].held_for.is_some_and(|held| held < LONG), "{seen}");
    guard.unlock().unwrap();
});
