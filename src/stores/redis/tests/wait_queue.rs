//! Tests of the wait queue: how its scripts change keys, and which messages they send.

use super::prelude::*;
use crate::ident::ClientId;
use crate::ident::unbound_number;
use crate::inspect::Location;
use crate::seam::HoldNote;
use crate::seam::ListensFor;
use crate::stores::redis::script::ACQUIRE;
use crate::stores::redis::store::RedisStore;

pub(super) const WAIT_QUEUE: &str = "leasehold_lock_queue:{k}";
pub(super) const NEXT: &str = "leasehold_lock_next:{k}";

/// A claim of a new client that waits.
fn waiter() -> Claim {
    Claim { queue_mode: QueueMode::Waits, ..claim(Kind::Mutex, "k", 30_000) }
}

/// Claims of `N` new clients, of which the first has acquired the lock.
fn held<const N: usize>(store: &RedisStore) -> [Claim; N] {
    let claims = std::array::from_fn(|_| waiter());
    store.attempt(&claims[0], 1, soon()).granted();
    claims
}

pub(super) fn by(claim: &Claim, queue_mode: QueueMode) -> Claim {
    Claim { queue_mode, ..claim.clone() }
}

/// Waits for the next tenth of a millisecond, the unit in which the server orders clients, so that the next
/// client joins behind all others.
fn begin_place() {
    let begun = Clock::System.now();
    while Clock::System.now().since(begun) < Duration::from_micros(150) {
        std::hint::spin_loop();
    }
}

fn queued(store: &RedisStore, claim: &Claim) -> (Duration, ListensFor) {
    begin_place();
    match store.attempt(claim, 1, soon()).done() {
        Attempt::InWaitQueue { retry_after: Some(after), listens_for, .. } => (after, listens_for),
        other => panic!("not in the wait queue but {other:?}"),
    }
}

fn is_busy(store: &RedisStore, claim: &Claim) -> bool {
    matches!(store.attempt(claim, 1, soon()).done(), Attempt::Busy { .. })
}

/// The outcome of an attempt while the lock is reserved for a client. If a busy machine makes the attempt too
/// late, the attempt is undone and repeated.
fn while_kept_for(next: &Claim, server: &Server, attempt: impl Fn() -> Attempt) -> Attempt {
    for _ in 0..1_000 {
        server.run(&["COPY", WAIT_QUEUE, "line before", "REPLACE"]);
        let begun = Clock::System.now();
        server.run(&["SET", NEXT, &client(next), "PX", "40"]);
        let outcome = attempt();
        if Clock::System.now().since(begun) < Duration::from_millis(40) {
            server.run(&["DEL", "line before"]);
            return outcome;
        }
        server.run(&["COPY", "line before", WAIT_QUEUE, "REPLACE"]);
        server.run(&["DEL", "k", NEXT]);
    }
    panic!("each attempt came late");
}

fn release(store: &RedisStore, claim: &Claim) -> Others {
    store.release(claim, 0, soon()).freed()
}

fn clients_in_queue(server: &Server) -> Vec<String> {
    redis::from_redis_value(server.run(&["ZRANGE", WAIT_QUEUE, "0", "-1"])).unwrap()
}

pub(super) fn client(claim: &Claim) -> String {
    claim.owner.client().to_string()
}

pub(super) fn message(to: &Claim, word: &str) -> (String, String) {
    (format!("leasehold_wake:{{k}}:{}", client(to)), word.to_owned())
}

#[test]
fn a_release_notifies_the_first_client_and_reserves_the_lock() {
    let (server, store) = served();
    let [holder, first, second, stranger] = held(&store);
    assert_eq!(server.keys(), ["k"], "a lock without waiters has a queue");
    for claim in [&first, &second, &first] {
        let (after, listens_for) = queued(&store, claim);
        assert!(after > Duration::from_secs(15) && after <= Duration::from_millis(30_200), "{after:?}");
        assert_eq!(listens_for, ListensFor::OwnTurn);
    }
    assert_eq!(clients_in_queue(&server), [client(&first), client(&second)], "asking again moved the client");
    assert!((30_000..=60_000).contains(&server.number(&["PTTL", WAIT_QUEUE])));

    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    let mut releases = Messages::of(&server, "redisson_lock__channel:{k}");
    assert_eq!(release(&store, &holder), Others::Next);
    // On a busy machine the reservation may have ended.
    assert!(server.text(&["GET", NEXT]).is_none_or(|next| next == client(&first)));
    assert_eq!(messages.take(), [message(&first, "next"), message(&second, "standby")]);
    assert_eq!(releases.payloads(), ["0"], "Redisson's waiters got another message");
    assert_eq!(clients_in_queue(&server), [client(&second)], "a notified client is still in the queue");

    let kept = |claim: &Claim| while_kept_for(&first, &server, || store.attempt(claim, 1, soon()).done());
    match kept(&stranger) {
        Attempt::InWaitQueue { retry_after: Some(after), .. } => {
            assert!(after <= Duration::from_millis(60), "{after:?}")
        }
        other => panic!("not in the wait queue but {other:?}"),
    }
    assert!(matches!(kept(&by(&again(&stranger), QueueMode::Yields)), Attempt::Busy { .. }));
    assert!(matches!(kept(&by(&first, QueueMode::IsNext)), Attempt::Granted { .. }));
    assert_eq!(server.text(&["GET", NEXT]), None, "the reservation remains");
    assert_eq!(clients_in_queue(&server), [client(&second), client(&stranger)]);
}

/// The usual reservation, 10 ms, would end before the request of a distant client arrives.
#[test]
fn a_reservation_lasts_longer_on_a_slow_link() {
    let (server, store) = served();
    let run = |claim: &Claim, queue_mode: &str| {
        let ask = ACQUIRE.on(&["k"]).arg(claim.owner).arg(1_u32).arg(30_000_u64).arg(queue_mode);
        store.server.connections.call(ask, soon()).unwrap()
    };
    // A busy machine reads the remaining time late, so each round shows only a lower bound.
    let left = (0..20).map(|_| {
        let (holder, near, far) = (waiter(), waiter(), waiter());
        store.attempt(&holder, 1, soon()).granted();
        run(&far, "wait3");
        begin_place();
        run(&near, "wait");
        let _listeners = [&far, &near].map(|claim| Messages::of(&server, &message(claim, "").0));
        assert_eq!(release(&store, &holder), Others::Next);
        let for_far = server.number(&["PTTL", NEXT]);
        assert_eq!(server.text(&["GET", NEXT]).unwrap_or_else(|| client(&far)), client(&far));
        run(&far, "next3");
        assert_eq!(release(&store, &far), Others::Next);
        let for_near = server.number(&["PTTL", NEXT]);
        run(&near, "next");
        freed(&store, &near);
        [for_far, for_near]
    });
    let [far, near] = left.reduce(|a, b| [a[0].max(b[0]), a[1].max(b[1])]).unwrap();
    assert!(far > 40 && far <= 80 && near <= 10, "{far} ms for the far one, {near} ms for the near one");
}

#[test]
fn a_single_try_takes_a_lock_reserved_for_another_client() {
    let (server, store) = served();
    let (next, trying) = (waiter(), by(&waiter(), QueueMode::Barges));
    server.run(&["SET", NEXT, &client(&next), "PX", "50"]);
    store.attempt(&trying, 1, soon()).granted();
    // The notified client found the lock taken, so it gets a place before clients that came later.
    let other = waiter();
    queued(&store, &other);
    queued(&store, &by(&next, QueueMode::IsNext));
    assert_eq!(clients_in_queue(&server), [client(&next), client(&other)]);
}

#[test]
fn an_overlong_reservation_is_ignored() {
    let (server, store) = served();
    // A promoted replica whose clock is behind could have a reservation as long as this.
    server.run(&["SET", NEXT, &client(&waiter()), "PX", "5000"]);
    store.attempt(&waiter(), 1, soon()).granted();
    server.run(&["DEL", "k"]);
    server.run(&["SET", NEXT, &client(&waiter())]);
    store.attempt(&waiter(), 1, soon()).granted();
}

#[test]
fn a_queued_client_leaves_the_wait_queue_when_granted() {
    let (server, store) = served();
    let [_holder, first, second] = held(&store);
    queued(&store, &first);
    queued(&store, &second);
    server.run(&["DEL", "k"]); // as after lost data, or an expired lease
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    store.attempt(&by(&first, QueueMode::InWaitQueue), 1, soon()).granted();
    assert_eq!(clients_in_queue(&server), [client(&second)]);
    assert_eq!(
        messages.take(),
        [message(&second, "standby")],
        "the new first client is not told to ask soon"
    );
}

/// Puts clients into the wait queue. `places` says how many seconds ago each joined, and last attempted. One
/// script sets all places, so that they have the same base time on a busy machine.
fn stand(server: &Server, places: &[(&String, i64, i64)]) {
    let script = "local now = redis.call('time')[1]
        for i = 1, #ARGV, 3 do
          redis.call('zadd', KEYS[1], (now - ARGV[i + 1] - 1700000000) * 10000000 + (now - ARGV[i + 2]) % 100, ARGV[i])
        end
        redis.call('pexpire', KEYS[1], 60000)";
    let places = places.iter().flat_map(|(client, joined_s, asked_s)| {
        [(*client).clone(), joined_s.to_string(), asked_s.to_string()]
    });
    let words: Vec<String> =
        ["EVAL", script, "1", WAIT_QUEUE].map(str::to_owned).into_iter().chain(places).collect();
    server.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The clients have only just died, so their places have not expired.
#[test]
fn a_release_skips_a_thousand_queued_clients_without_subscription() {
    let (server, store) = served();
    let [holder, alive, behind] = held(&store);
    let dead: Vec<_> = (0..1_000).map(|_| client(&waiter())).collect();
    stand(&server, &dead.iter().map(|dead| (dead, 1, 1)).collect::<Vec<_>>());
    queued(&store, &alive);
    queued(&store, &waiter()); // a client without subscription, right behind the notified one
    queued(&store, &behind);
    let mut messages = Messages::of(&server, &message(&alive, "").0);
    let mut standbys = Messages::of(&server, &message(&behind, "").0);
    assert_eq!(release(&store, &holder), Others::Next);
    assert_eq!(messages.take(), [message(&alive, "next")]);
    assert_eq!(standbys.take(), [message(&behind, "standby")]);
    assert_eq!(clients_in_queue(&server).len(), 2);
}

/// Silent clients are removed even if they have a subscription, because the subscription of a host that lost
/// power remains.
#[test]
fn silent_clients_are_removed_from_the_wait_queue() {
    let (server, store) = served();
    let [_holder, long, new] = held(&store);
    queued(&store, &long);
    let dead: Vec<_> = (0..40).map(|_| client(&waiter())).collect();
    let ages = [(0, 7), (3_600, 7), (3_600, 40)].into_iter().cycle();
    let lives = client(&waiter());
    let (long_lives, new_lives) = (client(&long), client(&new));
    let mut places: Vec<_> =
        dead.iter().zip(ages).map(|(dead, (joined, asked))| (dead, joined, asked)).collect();
    places.extend([(&lives, 3_599, 1), (&long_lives, 100, 1)]);
    stand(&server, &places);
    queued(&store, &new);
    assert_eq!(clients_in_queue(&server), [&lives, &long_lives, &new_lives].map(String::clone));
    stand(&server, &places);
    queued(&store, &by(&long, QueueMode::InWaitQueue));
    assert_eq!(clients_in_queue(&server), [&lives, &long_lives, &new_lives].map(String::clone));
    server.run(&["ZREM", WAIT_QUEUE, &lives]);
    stand(&server, &[(&long_lives, 2, 2), (&dead[0], -1, 9), (&new_lives, -2, 1)]);
    queued(&store, &by(&long, QueueMode::InWaitQueue));
    assert_eq!(clients_in_queue(&server), [long_lives, new_lives]);
}

/// The server's clock went back, so the client's last request seems to be twenty seconds in the future.
#[test]
fn a_clock_set_back_removes_no_waiter() {
    let (server, store) = served();
    let [_holder, new] = held(&store);
    let ahead = client(&waiter());
    stand(&server, &[(&ahead, 3_600, -20)]);
    queued(&store, &new);
    assert_eq!(clients_in_queue(&server), [ahead, client(&new)]);
}

#[test]
fn only_polls_extend_the_expiry_of_queues_with_live_clients() {
    let (server, store) = served();
    let [_holder, first, second] = held(&store);
    queued(&store, &first);
    server.run(&["PEXPIRE", WAIT_QUEUE, "20000"]);
    queued(&store, &second);
    assert!((1..=20_000).contains(&server.number(&["PTTL", WAIT_QUEUE])));
    stand(&server, &[(&client(&second), 2, 2)]);
    server.run(&["PEXPIRE", WAIT_QUEUE, "20000"]);
    queued(&store, &by(&second, QueueMode::InWaitQueue));
    assert!((40_000..=60_000).contains(&server.number(&["PTTL", WAIT_QUEUE])));
    // Dead clients do not prolong the queue's expiry, so a client that finds only dead ones must prolong it.
    server.run(&["DEL", WAIT_QUEUE]);
    stand(&server, &[(&client(&waiter()), 50, 30)]);
    server.run(&["PEXPIRE", WAIT_QUEUE, "1000"]);
    queued(&store, &waiter());
    assert!((40_000..=60_000).contains(&server.number(&["PTTL", WAIT_QUEUE])));
}

#[test]
fn the_first_queued_client_also_listens_for_releases() {
    let watches = |store: &RedisStore, claim: &Claim| {
        begin_place();
        match store.attempt(claim, 1, soon()).done() {
            Attempt::InWaitQueue { watches, .. } => watches,
            other => panic!("not in the wait queue but {other:?}"),
        }
    };
    let (server, store) = served();
    let [_holder, first, second] = held(&store);
    assert!(watches(&store, &first));
    assert!(!watches(&store, &second));
    assert!(watches(&store, &by(&first, QueueMode::InWaitQueue)));
    server.run(&["ZREM", WAIT_QUEUE, &client(&first)]);
    assert!(watches(&store, &by(&second, QueueMode::InWaitQueue)));
    assert!(watches(&store, &by(&first, QueueMode::IsNext)));
    server.run(&["DEL", "k"]);
    server.run(&["HSET", "k", &format!("{}:7", uuid::Uuid::new_v4()), "1"]);
    assert!(!watches(&store, &by(&first, QueueMode::InWaitQueue)), "all clients listen to releases then");
}

#[test]
fn at_most_three_candidates_of_an_election_join_the_queue() {
    let (server, store) = served();
    store.attempt(&waiter(), 1, soon()).granted();
    let full = |leads| queued(&store, &Claim { leads, ..waiter() }).1 == ListensFor::Nothing;
    assert_eq!([true, true, true, true, false].map(full), [false, false, false, true, false]);
    assert_eq!(server.number(&["ZCARD", WAIT_QUEUE]), 4);
}

#[test]
fn a_leaving_client_passes_its_reservation_on() {
    let (server, store) = served();
    let [_holder, first, second, third] = held(&store);
    for claim in [&first, &second, &third] {
        queued(&store, claim);
    }
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    let leave = |claim: &Claim| {
        let gone = client(claim);
        store.leave_wait_queue(claim, soon());
        eventually(|| {
            store.poll_completions();
            !clients_in_queue(&server).contains(&gone) && server.text(&["GET", NEXT]) != Some(gone.clone())
        });
    };
    leave(&first);
    assert_eq!(messages.take(), [message(&second, "standby")]);
    // `second` was notified, and leaves while the lock is free, so `third` is notified.
    server.run(&["DEL", "k"]);
    server.run(&["ZREM", WAIT_QUEUE, &client(&second)]);
    server.run(&["SET", NEXT, &client(&second), "PX", "60000"]);
    leave(&second);
    assert_eq!(messages.take(), [message(&third, "next")]);
    assert_eq!(clients_in_queue(&server), [""; 0]);
    // `second` was notified, and leaves while the lock is held, so `first` gets only the message `standby`.
    store.attempt(&by(&waiter(), QueueMode::Barges), 1, soon()).granted();
    queued(&store, &first);
    server.run(&["SET", NEXT, &client(&second), "PX", "60000"]);
    leave(&second);
    assert_eq!(messages.take(), [message(&first, "standby")]);
    server.run(&["SET", NEXT, &client(&second), "PX", "60000"]);
    leave(&first);
    assert_eq!(server.text(&["GET", NEXT]), Some(client(&second)));
    assert_eq!(messages.take(), []);
}

/// Other programs notify no client in the queue. Redisson's ids are UUIDs of version 4, ours of version 8.
#[test]
fn waiters_behind_another_programs_holder_also_listen_for_releases() {
    let (server, store) = served();
    let redissons = format!("{}:7", uuid::Uuid::new_v4());
    let foreign = [
        &*redissons,
        "worker-of-shop8:1",
        "8a3f0e0e0000-0-8000-8000-00000001:1",
        "8a3f0e0e-0000-8000-8000-000000000001",
    ];
    let ours = Owner::new(ClientId::random(), unbound_number()).to_string();
    let foreign = foreign.map(|id| (id, ListensFor::OwnTurnAndReleases));
    for (id, listens_for) in foreign.into_iter().chain([(&*ours, ListensFor::OwnTurn)]) {
        for about in [false, true] {
            server.run(&["DEL", "k"]);
            if about {
                server.run(&["HSET", "k", "leasehold:about", "text"]);
            }
            server.run(&["HSET", "k", id, "1"]);
            server.run(&["PEXPIRE", "k", "30000"]);
            assert_eq!(queued(&store, &waiter()).1, listens_for, "{id} {about}");
        }
    }
}

#[test]
fn the_first_waiter_recalls_a_cached_lock_once() {
    let (server, store) = served();
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    for caches in [false, true] {
        let holder = take(&store, Claim { caches, ..by(&waiter(), QueueMode::Barges) });
        queued(&store, &waiter());
        queued(&store, &waiter());
        let recalls: Vec<_> = caches.then(|| message(&holder, "recall")).into_iter().collect();
        assert_eq!(messages.take(), recalls);
        server.run(&["DEL", WAIT_QUEUE]);
        release(&store, &holder);
        assert_eq!(server.run(&["EXISTS", "k"]), Value::Int(0));
        messages.take();
    }
    let holder = take(&store, Claim { caches: true, ..by(&waiter(), QueueMode::Barges) });
    let look = || store.check_holds(std::slice::from_ref(&holder), soon()).pop().unwrap().done();
    server.run(&["PEXPIRE", "k", "9000"]);
    assert_eq!(look(), CachedCheck::Stays);
    assert!(matches!(server.run(&["PTTL", "k"]), Value::Int(..=9000)), "the check changed the expiry");
    server.run(&["HDEL", "k", "leasehold:cached"]);
    assert_eq!(look(), CachedCheck::Wanted, "the waiter's recall was lost");
    let next = by(&again(&holder), QueueMode::Barges);
    store.hand_off(&holder, &next, soon()).unwrap().wait().done();
    assert_eq!(server.run(&["HEXISTS", "k", "leasehold:cached"]), Value::Int(0));
    assert_eq!(look(), CachedCheck::Lost);
    server.run(&["HSET", "k", "leasehold:cached", ""]);
    let note = HoldNote { max_hold: Duration::from_secs(9), place: Arc::new(Location::here()) };
    let noted = Claim { note: Some(note), ..by(&again(&holder), QueueMode::Barges) };
    store.hand_off(&next, &noted, soon()).unwrap().wait().done();
    let fields: BTreeSet<String> = redis::from_redis_value(server.run(&["HKEYS", "k"])).unwrap();
    assert_eq!(fields, BTreeSet::from([noted.owner.to_string(), "leasehold:about".to_owned()]));
}

#[test]
fn force_unlock_recalls_a_cached_lock() {
    let (server, store) = served();
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    for caches in [false, true] {
        let holder = take(&store, Claim { caches, ..by(&waiter(), QueueMode::Barges) });
        assert!(store.force(Kind::Mutex, &holder.name, soon()).done());
        let recalls: Vec<_> = caches.then(|| message(&holder, "recall")).into_iter().collect();
        assert_eq!(messages.take(), recalls);
    }
}

/// Every client that waits sends a recall, even if its queue mode keeps it out of the wait queue. A client
/// that only tries once sends none.
#[test]
fn a_waiter_outside_the_queue_recalls_a_cached_lock() {
    let (server, store) = served();
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    for (queue_mode, waits, is_asked) in
        [(QueueMode::Barges, false, false), (QueueMode::Barges, true, true), (QueueMode::Yields, true, true)]
    {
        let holder = take(&store, Claim { caches: true, ..by(&waiter(), QueueMode::Barges) });
        let other = Claim { waits, ..by(&waiter(), queue_mode) };
        let busy = store.attempt(&other, 1, soon());
        assert!(matches!(busy, Ok(Attempt::Busy { .. })), "{busy:?}");
        let recalls: Vec<_> = is_asked.then(|| message(&holder, "recall")).into_iter().collect();
        assert_eq!(messages.take(), recalls, "{queue_mode:?}");
        release(&store, &holder);
    }
}

#[test]
fn a_multi_lock_attempt_takes_a_reserved_lock_only_if_all_or_none() {
    let (server, store) = served();
    let [holder, first, second] = held(&store);
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    queued(&store, &first);
    assert!(store.force(Kind::Mutex, &holder.name, soon()).done());
    assert_eq!(messages.take(), [message(&first, "next")]);

    server.run(&["SET", NEXT, &client(&first), "PX", "50"]);
    let all = [by(&holder, QueueMode::Barges)];
    assert_eq!(store.begin_attempts(&all, false, soon()).wait().done(), []);
    // `true`: all or none. Such an attempt takes even a reserved lock, as a single try does.
    server.run(&["SET", NEXT, &client(&first), "PX", "50"]);
    assert_eq!(store.begin_attempts(&all, true, soon()).wait().done(), [None]);
    freed(&store, &all[0]);
    server.run(&["DEL", NEXT]);
    assert_eq!(store.begin_attempts(&all, false, soon()).wait().done(), [None]);
    queued(&store, &second);
    let released = store.begin_releases(&all, soon()).wait().done();
    assert_eq!(released, [Release::Freed { others: Others::Next }]);
    assert_eq!(messages.take(), [message(&second, "next")]);
}

/// Trouble with the wait queue (no memory, no right, a key of another type) makes no request fail.
#[test]
fn no_request_fails_because_the_wait_queue_is_unusable() {
    let no_rights = "~k &redisson_* +@all";
    let no_wake = "~* &redisson_* +@all";
    let no_commands = "~* &* +@all -zadd -zpopmin -zrange";
    for (what, rules) in [("keys", no_rights), ("channel", no_wake), ("commands", no_commands)] {
        let server = Server::start(&[]);
        let (store, others) = (open(&server.user(rules)), server.store());
        let (holder, waits) = (waiter(), waiter());
        store.attempt(&holder, 1, soon()).granted();
        if what != "channel" {
            assert!(is_busy(&store, &waits), "{what}");
            assert_eq!(server.keys(), ["k"], "{what}");
        }
        // Another client, which has the right, waits in the queue. The holder's release cannot notify that
        // client, and leaves it in the queue.
        queued(&others, &waits);
        let mut messages = Messages::of(&server, "redisson_lock__channel:{k}");
        freed(&store, &holder);
        assert_eq!(messages.payloads(), ["0"], "{what}");
        assert_eq!(clients_in_queue(&server), [client(&waits)], "{what}");
    }

    let (server, store) = served();
    server.run(&["SET", WAIT_QUEUE, "text"]);
    server.run(&["LPUSH", NEXT, "text"]);
    let [holder, waits] = held(&store);
    assert!(is_busy(&store, &waits));
    freed(&store, &holder);
    server.run(&["DEL", WAIT_QUEUE, NEXT]);

    store.attempt(&holder, 1, soon()).granted();
    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(is_busy(&store, &waits));
    freed(&store, &holder);
    assert_eq!(server.keys(), [""; 0]);
}

/// One user has only the rights that plain locks needed before this crate had wait queues. The other user
/// lacks only TIME.
#[test]
fn a_waiter_without_rights_for_the_queue_gets_the_answer_busy() {
    let before_queues =
        "~k &redisson_* +eval +evalsha +hexists +hset +hdel +pexpire +pttl +get +set +del +publish";
    for rules in [before_queues, "~* &* +@all -time"] {
        let server = Server::start(&[]);
        let (store, holder) = (open(&server.user(rules)), waiter());
        server.store().attempt(&holder, 1, soon()).granted();
        for queue_mode in [QueueMode::Waits, QueueMode::InWaitQueue, QueueMode::IsNext] {
            assert!(is_busy(&store, &by(&waiter(), queue_mode)), "{rules}, {queue_mode:?}");
        }
        assert_eq!(server.keys(), ["k"]);
    }
}

/// The grant does not touch the wait queue, so the release is the first request that shows the missing right.
#[test]
fn a_release_reports_missing_queue_rights() {
    type Way = fn(&RedisStore, &Claim);
    let ways: [(&str, Way); 5] = [
        ("waited for", |store, claim| {
            release(store, claim);
        }),
        ("not waited for", |store, claim| {
            let (sender, done) = crossbeam_channel::bounded(1);
            store.release_later(claim, soon(), Sink::new(move |answer| sender.send(answer).unwrap()));
            let mut answer = None;
            eventually(|| {
                store.poll_completions();
                answer = done.try_recv().ok();
                answer.is_some()
            });
            assert!(matches!(answer.unwrap().done(), Release::Freed { .. }));
        }),
        ("begun", |store, claim| {
            store.begin_release(claim, 0, soon()).wait().done();
        }),
        ("of several", |store, claim| {
            let released = store.begin_releases(std::slice::from_ref(claim), soon()).wait().done();
            assert_eq!(released, [Release::Freed { others: Others::Nobody }]);
        }),
        ("cleaned_up", |store, claim| {
            store.clean_up(std::slice::from_ref(claim), soon()).remove(0).done();
        }),
    ];
    for rules in ["~k &* +@all", "~* &redisson_* +@all", "~* &* +@all -zpopmin"] {
        let server = Server::start(&[]);
        let options = server.user(rules);
        for (way, release) in ways {
            let store = open(&options);
            let holder = take(&store, by(&waiter(), QueueMode::Barges));
            // If the wait queue were empty, no message would be sent, and the missing right would not show.
            server.run(&["ZADD", WAIT_QUEUE, "1", &client(&waiter())]);
            assert!(!store.is_refused(), "{way}");
            release(&store, &holder);
            assert!(store.is_refused(), "{way}: {rules}");
            store.server.queues_refused.forget();
            store.attempt(&holder, 1, soon()).granted();
            assert!(!store.is_refused(), "{way}");
            release(&store, &holder);
            assert!(store.is_refused(), "{way}: {rules}");
        }
    }
}

/// A key of another type affects only this lock, so other locks keep their wait queues.
#[test]
fn a_queue_key_of_another_type_does_not_count_as_missing_right() {
    let (server, store) = served();
    let holder = waiter();
    server.run(&["SET", WAIT_QUEUE, "text"]);
    store.attempt(&holder, 1, soon()).granted();
    freed(&store, &holder);
    assert!(!store.is_refused());
}

/// The client's poll was on its way when the client was notified, and put the client back into the queue.
#[test]
fn a_grant_removes_a_client_that_requeued_after_its_notification() {
    let (server, store) = served();
    let [holder, first] = held(&store);
    queued(&store, &first);
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    assert_eq!(release(&store, &holder), Others::Next);
    assert_eq!(messages.take(), [message(&first, "next")]);
    take(&store, by(&waiter(), QueueMode::Barges));
    queued(&store, &by(&first, QueueMode::InWaitQueue));
    server.run(&["DEL", "k"]);
    store.attempt(&by(&first, QueueMode::IsNext), 1, soon()).granted();
    assert_eq!(clients_in_queue(&server), [""; 0]);
}

#[test]
fn a_client_does_not_count_as_its_own_listener() {
    let server = Server::start(&[]);
    let (store, other) = (server.store(), server.store());
    let holder = claim(Kind::Mutex, "k", 30_000);
    let listening = store.listen(&holder, &Waker::default()).unwrap();
    eventually(|| listening.is_up());
    store.attempt(&holder, 1, soon()).granted();
    assert_eq!(release(&store, &holder), Others::Nobody);
    let theirs = other.listen(&holder, &Waker::default()).unwrap();
    eventually(|| theirs.is_up());
    store.attempt(&holder, 1, soon()).granted();
    assert_eq!(release(&store, &holder), Others::Listen(1));
    drop((listening, theirs));
}

#[test]
fn a_client_gets_its_reserved_lock_in_every_queue_mode() {
    let (server, store) = served();
    for queue_mode in [QueueMode::Waits, QueueMode::Yields, QueueMode::InWaitQueue, QueueMode::IsNext] {
        let next = by(&waiter(), queue_mode);
        let outcome = while_kept_for(&next, &server, || store.attempt(&next, 1, soon()).done());
        assert!(matches!(outcome, Attempt::Granted { .. }), "{queue_mode:?}: {outcome:?}");
        release(&store, &next);
    }
}
