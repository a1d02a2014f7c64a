//! Tests of requests for several locks.

use super::prelude::*;

/// Claims for plain locks, and for fenced ones if the name begins with `f`.
fn wishes(keys: &[&str]) -> Vec<Claim> {
    let wish = |key: &&str| {
        let wants_fence = key.rsplit(':').next().unwrap().starts_with('f');
        claim(if wants_fence { Kind::Fenced } else { Kind::Mutex }, key, 30_000)
    };
    keys.iter().map(wish).collect()
}

fn ask(store: &RedisStore, wishes: &[Claim], or_none: bool) -> Answer<Vec<Option<FencingToken>>> {
    store.begin_attempts(wishes, or_none, soon()).wait()
}

fn locks(server: &Server) -> Vec<String> {
    server.keys().into_iter().filter(|key| !key.starts_with("redisson_lock_token")).collect()
}

#[test]
fn a_multi_lock_request_stops_at_the_first_busy_lock() {
    let (server, store) = served();
    take(&store, claim(Kind::Mutex, "c", 30_000));
    assert_eq!(ask(&store, &wishes(&["a", "f", "c", "d"]), true).done(), []);
    assert_eq!(locks(&server), ["c"]);
    let some = wishes(&["a", "f", "c", "d"]);
    let fences = ask(&store, &some, false).done();
    assert!(matches!(fences.as_slice(), [None, Some(_)]), "{fences:?}");
    assert_eq!(locks(&server), ["a", "c", "f"]);
    for wish in &some[..2] {
        let (key, owner) = (wish.name.key(), wish.owner.to_string());
        assert_eq!(server.text(&["HGET", key, &owner]).as_deref(), Some("1"));
        assert!(server.number(&["PTTL", key]) > 29_000, "{key}");
    }
    let released = store.begin_releases(&some[..2], soon()).wait().done();
    assert_eq!(
        released,
        [Release::Freed { others: Others::Nobody }, Release::Freed { others: Others::Nobody }]
    );
    let again = wishes(&["f", "f2"]);
    let fences = [fences[1], ask(&store, &again, true).done()[0]];
    store.begin_releases(&again, soon()).wait().done();
    let alone = claim(Kind::Fenced, "f", 30_000);
    let alone = store.attempt(&alone, 1, soon()).granted();
    assert!(fences[0] < fences[1] && fences[1] < alone, "{fences:?} {alone:?}");
    assert_eq!(server.number(&["PTTL", "redisson_lock_token:{f}"]), -1);
}

#[test]
fn releasing_a_multi_lock_says_which_locks_were_held() {
    let (server, store) = served();
    let held = wishes(&["a", "b", "c", "d"]);
    assert_eq!(ask(&store, &held, true).done().len(), 4);
    server.run(&["DEL", "b"]);
    server.run(&["SET", "c", "something"]);
    take(&store, claim(Kind::Mutex, "b", 30_000));
    let released = store.begin_releases(&held, soon()).wait().done();
    let (freed, not_held) = (Release::Freed { others: Others::Nobody }, Release::NotHeld { holder: None });
    assert_eq!(released, [freed.clone(), not_held.clone(), not_held, freed]);
    assert_eq!(server.keys(), ["b", "c"]);
    let released = store.begin_releases(&held[..2], soon()).wait().done();
    assert!(released.iter().all(|release| matches!(release, Release::NotHeld { .. })));
    assert_eq!(server.keys(), ["b", "c"]);
}

#[test]
fn a_multi_lock_request_refused_for_one_lock_changes_nothing() {
    let (server, store) = served();
    for (command, kind) in [
        (["SET", "b", "something"], ErrorKind::WrongType),
        (["SET", "redisson_lock_token:{f}", "abc"], ErrorKind::WrongType),
        (["SET", "redisson_lock_token:{f}", "9223372036854775807"], ErrorKind::WrongType),
        (["LPUSH", "redisson_lock_token:{f}", "abc"], ErrorKind::WrongType),
        (["CONFIG", "SET", "maxmemory"], ErrorKind::OutOfMemory),
    ] {
        server.run(&["FLUSHALL"]);
        let command: Vec<&str> =
            command.into_iter().chain((kind == ErrorKind::OutOfMemory).then_some("1")).collect();
        server.run(&command);
        let before = server.keys();
        for (keys, or_none) in [(["a", "b", "f"], true), (["f", "a", "b"], false), (["a", "f", "b"], false)] {
            assert_eq!(ask(&store, &wishes(&keys), or_none).refused().kind(), kind, "{command:?} {keys:?}");
            assert_eq!(server.keys(), before, "{command:?} {keys:?}");
        }
    }
    server.run(&["CONFIG", "SET", "maxmemory", "0"]);
}

#[test]
fn a_missing_right_leaves_no_multi_lock_key_without_expiry() {
    let server = Server::start(&[]);
    for right in "hexists hset hdel pexpire pttl get set del publish incr time".split(' ') {
        server.run(&["FLUSHALL"]);
        let store = open(&server.user(&format!("~* &* +@all -{right}")));
        let all = wishes(&["a", "f", "b", "f2"]);
        let taken = match ask(&store, &all, true) {
            Ok(fences) => fences.len(),
            Err(Failure::Refused(error)) => {
                assert_eq!(error.kind(), ErrorKind::NoPermission, "{right}: {error}");
                0
            }
            Err(Failure::Unknown(error)) => panic!("{right}: {error}"),
        };
        let left = locks(&server);
        assert_eq!(left.len(), taken, "{right}: {left:?}");
        for key in &left {
            assert!(server.number(&["PTTL", key]) > 29_000, "{right}: {key}");
        }
        if taken > 0 {
            let answer = store.begin_releases(&all, soon()).wait();
            let is_done = answer.is_ok();
            assert_eq!(locks(&server).is_empty(), is_done, "{right}: {answer:?}");
        }
    }
}

#[test]
fn only_plain_and_fenced_locks_share_one_multi_lock_request() {
    let (_server, store) = served();
    let name = Arc::clone(&claim(Kind::Mutex, "a", 1).name);
    for kind in [Kind::Mutex, Kind::Fenced] {
        assert!(store.group(kind, &name).is_some());
    }
    for kind in [Kind::Fair, Kind::Read, Kind::Write, Kind::Token] {
        assert_eq!(store.group(kind, &name), None, "{kind:?}");
    }
}

#[test]
fn every_grant_waits_for_required_replicas() {
    let server = Server::start(&[]);
    let within = Duration::from_millis(20);
    let replicas = ReplicaRule::Required(Replicas { count: 1, within });
    let options = ServerOptions { replicas, ..server.options() };
    let (store, careless) = (open(&options), server.store());
    let (me, you) = (claim(Kind::Mutex, "a", 30_000), claim(Kind::Mutex, "a", 30_000));
    assert_eq!(store.attempt(&me, 1, soon()).refused().kind(), ErrorKind::Busy);
    let ahead = store.begin_attempt(&me, 1, soon()).wait();
    assert_eq!(ahead.refused().kind(), ErrorKind::Busy);
    let several = wishes(&["a", "fenced", "b"]);
    assert_eq!(ask(&store, &several, true).map(drop).refused().kind(), ErrorKind::Busy);
    assert_eq!(locks(&server), [""; 0], "the grants were not undone");
    careless.attempt(&me, 1, soon()).granted();
    let handed = store.hand_off(&me, &you, soon()).unwrap().wait();
    assert!(matches!(handed, Err(Failure::Unknown(_))), "a hand-off is a grant: {handed:?}");
}

#[test]
fn fencing_tokens_of_a_multi_lock_grow_despite_lost_counters() {
    let (server, store) = served();
    let mut last = vec![None; 2];
    let mut messages = Messages::of(&server, "redisson_lock__channel:");
    for round in 0..4 {
        let all = wishes(&["f1", "f2"]);
        let fences = ask(&store, &all, true).done();
        assert!(fences.iter().zip(&last).all(|(fence, last)| fence > last), "{fences:?} after {last:?}");
        let kept = server.text(&["GET", "redisson_lock_token:{f1}"]);
        assert_eq!(kept, fences[0].map(|fence| fence.get().to_string()), "the counter is not the last token");
        store.begin_releases(&all, soon()).wait().done();
        // Waiters outside the wait queue, such as Redisson's, get these messages.
        assert_eq!(messages.payloads(), ["0", "0"]);
        if round == 1 {
            server.run(&["DEL", "redisson_lock_token:{f1}", "redisson_lock_token:{f2}"]);
        }
        last = fences;
    }
    server.run(&["HSET", "a", "somebody", "1"]);
    assert_eq!(ask(&store, &wishes(&["a"]), true).done(), []);
}

/// A cached lock's hash has a second field beside the owner's. If it remained, the key would remain too.
#[test]
fn undoing_several_cached_locks_frees_each_of_them() {
    let (server, store) = served();
    let kept = |key| Claim { caches: true, ..claim(Kind::Mutex, key, 30_000) };
    let all = [kept("a"), kept("b"), claim(Kind::Mutex, "c", 30_000), claim(Kind::Mutex, "d", 30_000)];
    for claim in &all {
        store.attempt(claim, 1, soon()).granted();
    }
    assert_eq!(locks(&server), ["a", "b", "c", "d"]);
    for answer in store.clean_up(&all, soon()) {
        assert_eq!(answer.done(), Release::Freed { others: Others::Nobody });
    }
    assert_eq!(locks(&server), [""; 0]);
}
