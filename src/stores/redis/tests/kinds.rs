//! Tests of how scripts change keys, for fair and read-write locks, permits, latches and conditions.

use std::os::unix::net::UnixStream;

use super::prelude::*;
use crate::stores::redis::tests::harness::name;

pub(super) const QUEUE: &str = "redisson_lock_queue:{k}";
pub(super) const TIMEOUTS: &str = "redisson_lock_timeout:{k}";
pub(super) const OUT: &str = "{k}:timeout";
pub(super) const HEARTBEATS: &str = "leasehold_lock_heartbeat:{k}";

pub(super) fn of(kind: Kind) -> Claim {
    claim(kind, "k", 30_000)
}

pub(super) fn for_ms(claim: &Claim, lease_ms: u64) -> Claim {
    Claim { lease: Duration::from_millis(lease_ms), ..claim.clone() }
}

pub(super) fn once(claim: &Claim) -> Claim {
    Claim { waits: false, ..claim.clone() }
}

pub(super) fn again(claim: &Claim) -> Claim {
    Claim { owner: owner(), ..claim.clone() }
}

pub(super) fn busy(store: &RedisStore, claim: &Claim) -> Option<Duration> {
    store.attempt(claim, 1, soon()).busy()
}

pub(super) fn freed(store: &RedisStore, claim: &Claim) {
    store.release(claim, 0, soon()).freed();
}

pub(super) fn cleaned_up(store: &RedisStore, claim: &Claim) -> Release {
    store.clean_up(std::slice::from_ref(claim), soon()).remove(0).done()
}

pub(super) fn renewed(store: &RedisStore, claim: &Claim) -> bool {
    store.renew(std::slice::from_ref(claim), soon()).remove(0).done()
}

pub(super) fn count(store: &RedisStore, claim: &Claim, what: &Counting) -> Option<i64> {
    store.count(claim, what, soon()).done()
}

pub(super) fn set_up(store: &RedisStore, kind: Kind, to: u32) {
    assert_eq!(count(store, &of(kind), &Counting::SetUp { to, lease: None }), Some(1));
}

pub(super) fn list(server: &Server, command: &[&str]) -> Vec<String> {
    redis::from_redis_value(server.run(command)).unwrap()
}

pub(super) fn texts(owners: &[&Claim]) -> Vec<String> {
    owners.iter().map(|claim| claim.owner.to_string()).collect()
}

pub(super) fn now_ms(server: &Server) -> i64 {
    let time = list(server, &["TIME"]);
    time[0].parse::<i64>().unwrap() * 1_000 + time[1].parse::<i64>().unwrap() / 1_000
}

/// Whether no acquired permit has a lease that still runs.
pub(super) fn are_over(server: &Server) -> bool {
    server.number(&["ZCOUNT", OUT, &now_ms(server).to_string(), "+inf"]) == 0
}

/// The waiter's score in the sorted set `key` is a time of the server. Returns the milliseconds until then.
pub(super) fn time_left(server: &Server, key: &str, owner: Owner) -> i64 {
    server.number(&["ZSCORE", key, &owner.to_string()]) - now_ms(server)
}

/// Makes a waiter of this crate look dead, by a heartbeat that ended long ago.
pub(super) fn dies(server: &Server, claim: &Claim) {
    server.run(&["ZADD", HEARTBEATS, "1", &claim.owner.to_string()]);
}

/// Collects the messages on channels that begin with a prefix.
pub(super) struct Messages(UnixStream, Parser);

impl Messages {
    pub(super) fn of(server: &Server, channel: &str) -> Messages {
        let mut socket = UnixStream::connect(server.socket()).unwrap();
        let subscribe = redis::cmd("PSUBSCRIBE").arg(channel.to_owned() + "*").get_packed_command();
        socket.write_all(&subscribe).unwrap();
        let mut parser = Parser::new();
        parser.parse_value(&mut socket).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        Messages(socket, parser)
    }

    /// The channel and payload of each message since the last call.
    pub(super) fn take(&mut self) -> Vec<(String, String)> {
        self.0.write_all(&redis::cmd("PING").get_packed_command()).unwrap();
        let mut taken = Vec::new();
        loop {
            let words: Vec<String> =
                redis::from_redis_value(self.1.parse_value(&mut self.0).unwrap()).unwrap();
            if words[0] == "pong" {
                return taken;
            }
            taken.push((words[2].clone(), words[3].clone()));
        }
    }

    pub(super) fn payloads(&mut self) -> Vec<String> {
        self.take().into_iter().map(|(_, payload)| payload).collect()
    }
}

#[test]
fn a_fair_lock_notifies_its_next_waiter() {
    let (server, store) = served();
    let (holder, first, second) = (of(Kind::Fair), of(Kind::Fair), of(Kind::Fair));
    store.attempt(&once(&holder), 1, soon()).granted();
    assert!(server.number(&["PTTL", "k"]) > 29_000);
    assert_eq!(server.keys(), ["k"]);
    for _ in 0..2 {
        for waiter in [&first, &second] {
            assert!(busy(&store, waiter).unwrap() > Duration::from_secs(29));
        }
    }
    busy(&store, &once(&of(Kind::Fair)));
    assert_eq!(list(&server, &["LRANGE", QUEUE, "0", "-1"]), texts(&[&first, &second]));
    for waiter in [&first, &second] {
        assert!((5_000..=6_000).contains(&time_left(&server, TIMEOUTS, waiter.owner)));
        assert!((5_000..=6_000).contains(&time_left(&server, HEARTBEATS, waiter.owner)));
    }
    assert!((6_000..=12_000).contains(&server.number(&["PTTL", HEARTBEATS])));

    server.run(&["ZADD", HEARTBEATS, &(now_ms(&server) + 1_000).to_string(), &first.owner.to_string()]);
    busy(&store, &first);
    assert!((5_000..=6_000).contains(&time_left(&server, HEARTBEATS, first.owner)));

    let mut messages = Messages::of(&server, "redisson_lock__channel:{k}:");
    freed(&store, &holder);
    let told =
        |waiter: &Claim| vec![(format!("redisson_lock__channel:{{k}}:{}", waiter.owner), "0".to_owned())];
    assert_eq!(messages.take(), told(&first));
    assert!(busy(&store, &once(&second)).unwrap() <= Duration::from_secs(6));
    assert!(matches!(cleaned_up(&store, &first), Release::NotHeld { .. }));
    assert_eq!(messages.take(), told(&second), "a first waiter that leaves notifies the next");
    for key in [TIMEOUTS, HEARTBEATS] {
        assert_eq!(list(&server, &["ZRANGE", key, "0", "-1"]), texts(&[&second]));
    }
    store.attempt(&second, 1, soon()).granted();
    assert_eq!(server.keys(), ["k"], "the queue's keys remain");
}

#[test]
fn dead_waiters_of_a_fair_lock_are_skipped() {
    let (server, store) = served();
    let (holder, dead, first, second) = (of(Kind::Fair), of(Kind::Fair), of(Kind::Fair), of(Kind::Fair));
    store.attempt(&once(&holder), 1, soon()).granted();
    for waiter in [&dead, &first, &second] {
        busy(&store, waiter);
    }
    dies(&server, &dead);
    // A waiter without a time in `TIMEOUTS` is skipped too.
    server.run(&["LPUSH", QUEUE, "nobody:1"]);
    let mut messages = Messages::of(&server, "redisson_lock__channel:{k}:");
    freed(&store, &holder);
    assert_eq!(messages.take()[0].0, format!("redisson_lock__channel:{{k}}:{}", first.owner));
    assert_eq!(list(&server, &["LRANGE", QUEUE, "0", "-1"]), texts(&[&first, &second]));
    dies(&server, &first);
    let (third, _) = (of(Kind::Fair), ());
    busy(&store, &third);
    assert_eq!(messages.take()[0].0, format!("redisson_lock__channel:{{k}}:{}", second.owner));
    assert_eq!(list(&server, &["LRANGE", QUEUE, "0", "-1"]), texts(&[&second, &third]));
    for key in [TIMEOUTS, HEARTBEATS] {
        assert_eq!(list(&server, &["ZRANGE", key, "0", "-1"]).len(), 2, "{key}");
    }
    // Redisson's waiters have no heartbeat, and count as alive until their time in `TIMEOUTS`.
    server.run(&["FLUSHALL"]);
    server.run(&["RPUSH", QUEUE, "java:1"]);
    server.run(&["ZADD", TIMEOUTS, "9999999999999", "java:1"]);
    assert!(busy(&store, &once(&third)).is_some());
    server.run(&["ZADD", TIMEOUTS, "1", "java:1"]);
    store.attempt(&third, 1, soon()).granted();
    assert_eq!(server.keys(), ["k"]);
}

/// Regression: the times in `TIMEOUTS` moved hours into the future or the past as waiters came and left.
#[test]
fn timeouts_of_fair_waiters_do_not_drift() {
    let (server, store) = served();
    let holder = of(Kind::Fair);
    store.attempt(&once(&holder), 1, soon()).granted();
    let staying: Vec<Claim> = (0..3).map(|_| of(Kind::Fair)).collect();
    for waiter in &staying {
        busy(&store, waiter);
    }
    for round in 0..50 {
        let (gives_up, dead) = (of(Kind::Fair), of(Kind::Fair));
        busy(&store, &gives_up);
        busy(&store, &dead);
        cleaned_up(&store, &gives_up);
        if round % 10 == 0 {
            // Redisson does this when it grants one of its waiters the lock: it subtracts that waiter's wait.
            for waiter in &staying {
                server.run(&["ZINCRBY", TIMEOUTS, "-300000", &waiter.owner.to_string()]);
            }
        }
        cleaned_up(&store, &dead);
        for (place, waiter) in staying.iter().enumerate() {
            busy(&store, waiter);
            let left = time_left(&server, TIMEOUTS, waiter.owner);
            assert!((5_000..=6_000).contains(&left), "{place}: {left}");
        }
    }
    assert_eq!(list(&server, &["LRANGE", QUEUE, "0", "-1"]), texts(&staying.iter().collect::<Vec<_>>()));
}

/// Adds a Redisson waiter with this wait behind the last waiter, as Redisson does.
fn redisson_comes(server: &Server, who: &str, wait_ms: i64) {
    let now = now_ms(server);
    let left = match list(server, &["LRANGE", QUEUE, "-1", "-1"]).first() {
        Some(last) => server.number(&["ZSCORE", TIMEOUTS, last]) - now,
        None => server.number(&["PTTL", "k"]),
    };
    server.run(&["ZADD", TIMEOUTS, &(now + left + wait_ms).to_string(), who]);
    server.run(&["RPUSH", QUEUE, who]);
}

/// Removes the first waiter, one of Redisson's, as Redisson does: subtracts its wait from the other times.
fn redisson_goes(server: &Server, who: &str, wait_ms: i64) {
    assert_eq!(list(server, &["LRANGE", QUEUE, "0", "0"]), [who]);
    server.run(&["LPOP", QUEUE]);
    server.run(&["ZREM", TIMEOUTS, who]);
    for waiter in list(server, &["ZRANGE", TIMEOUTS, "0", "-1"]) {
        server.run(&["ZINCRBY", TIMEOUTS, &(-wait_ms).to_string(), &waiter]);
    }
}

#[test]
fn a_fair_waiter_keeps_its_place_behind_redisson_waiters() {
    let (server, store) = served();
    for wait_ms in [5_000, 300_000, 600_000] {
        let holder = of(Kind::Fair);
        store.attempt(&once(&holder), 1, soon()).granted();
        let ours: Vec<Claim> = (0..5).map(|_| of(Kind::Fair)).collect();
        busy(&store, &ours[0]);
        redisson_comes(&server, "java:1", wait_ms);
        busy(&store, &ours[1]);
        busy(&store, &ours[2]);
        redisson_comes(&server, "java:2", wait_ms);
        busy(&store, &ours[3]);
        for _ in 0..20 {
            for waiter in &ours[..4] {
                busy(&store, waiter);
            }
        }
        cleaned_up(&store, &ours[0]);
        busy(&store, &ours[4]);
        cleaned_up(&store, &ours[4]);
        let left = |waiter: &Claim, ahead: i64| time_left(&server, TIMEOUTS, waiter.owner) - ahead * wait_ms;
        for (at, ahead) in [(1, 1), (2, 1), (3, 2)] {
            let left = left(&ours[at], ahead);
            assert!((5_000..=19_000).contains(&left), "{wait_ms}, {at}: {left}");
        }
        // `java:1` acquires and releases the lock before a waiter of ours attempts again.
        freed(&store, &holder);
        redisson_goes(&server, "java:1", wait_ms);
        for waiter in &ours[1..3] {
            assert!((4_000..=19_000).contains(&left(waiter, 0)), "{wait_ms}: {}", left(waiter, 0));
            store.attempt(waiter, 1, soon()).granted();
            freed(&store, waiter);
        }
        redisson_goes(&server, "java:2", wait_ms);
        assert!((4_000..=19_000).contains(&left(&ours[3], 0)), "{wait_ms}: {}", left(&ours[3], 0));
        store.attempt(&ours[3], 1, soon()).granted();
        freed(&store, &ours[3]);
        assert_eq!(server.keys(), [""; 0]);
    }
}

#[test]
fn a_fair_waiter_that_redisson_removed_rejoins_at_the_front() {
    let (server, store) = served();
    let (holder, first, dead, last) = (of(Kind::Fair), of(Kind::Fair), of(Kind::Fair), of(Kind::Fair));
    store.attempt(&once(&holder), 1, soon()).granted();
    for waiter in [&first, &dead, &last] {
        busy(&store, waiter);
    }
    redisson_comes(&server, "java:1", 300_000);
    let queue = || list(&server, &["LRANGE", QUEUE, "0", "-1"]);
    let is_passed_over = |waiter: &Claim| {
        assert_eq!(queue()[0], waiter.owner.to_string());
        server.run(&["LPOP", QUEUE]);
        server.run(&["ZREM", TIMEOUTS, &waiter.owner.to_string()]);
    };
    let in_order = |waiters: &[&Claim], at: usize| {
        let mut texts = texts(waiters);
        texts.insert(at, "java:1".to_owned());
        assert_eq!(queue(), texts);
    };
    is_passed_over(&first);
    busy(&store, &first);
    in_order(&[&first, &dead, &last], 3);
    assert!((5_000..=6_000).contains(&time_left(&server, TIMEOUTS, first.owner)));
    // Our waiter keeps its place after its time in `TIMEOUTS`, while its heartbeat is fresh.
    server.run(&["ZADD", TIMEOUTS, "1", &first.owner.to_string()]);
    freed(&store, &holder);
    in_order(&[&first, &dead, &last], 3);
    // The lock is free, so our first waiter is granted it, although Redisson has removed that waiter.
    is_passed_over(&first);
    store.attempt(&first, 1, soon()).granted();
    in_order(&[&dead, &last], 2);
    for key in [TIMEOUTS, HEARTBEATS] {
        assert!(!list(&server, &["ZRANGE", key, "0", "-1"]).contains(&first.owner.to_string()), "{key}");
    }
    is_passed_over(&dead);
    dies(&server, &dead);
    busy(&store, &dead);
    in_order(&[&last, &dead], 1);
}

#[test]
fn a_fair_lock_can_be_reentered_and_force_unlocked() {
    let (server, store) = served();
    let (holder, waiter) = (of(Kind::Fair), of(Kind::Fair));
    assert_eq!(store.attempt(&holder, 2, soon()).done(), Attempt::Lost);
    store.attempt(&holder, 1, soon()).granted();
    store.attempt(&for_ms(&holder, 5), 2, soon()).granted();
    assert!(server.number(&["PTTL", "k"]) > 29_000, "a shorter lease shortened the key's expiry");
    let own = holder.owner.to_string();
    server.run(&["RPUSH", QUEUE, &own]);
    server.run(&["ZADD", TIMEOUTS, "9999999999999", &own]);
    server.run(&["ZADD", HEARTBEATS, "9999999999999", &own]);
    store.attempt(&holder, 2, soon()).granted();
    assert_eq!(server.keys(), ["k"]);
    assert_eq!(store.release(&holder, 1, soon()).done(), Release::StillHeld);
    busy(&store, &waiter);
    let mut messages = Messages::of(&server, "redisson_lock__channel:{k}:");
    assert!(store.force(Kind::Fair, &name("k"), soon()).done());
    assert_eq!(messages.take().len(), 1);
    assert!(!store.force(Kind::Fair, &name("k"), soon()).done());
}

fn marker(claim: &Claim, level: u32) -> String {
    format!("{{k}}:{}:rwlock_timeout:{level}", claim.owner)
}

#[test]
fn the_timeout_of_a_reader_is_prolonged_but_never_shortened() {
    let (server, store) = served();
    let (reader, other, writer) = (of(Kind::Read), for_ms(&of(Kind::Read), 60_000), of(Kind::Write));
    for kind in [Kind::Read, Kind::Write] {
        assert_eq!(store.attempt(&of(kind), 2, soon()).done(), Attempt::Lost);
    }
    store.attempt(&reader, 1, soon()).granted();
    store.attempt(&for_ms(&reader, 5_000), 2, soon()).granted();
    store.attempt(&for_ms(&reader, 5_000), 1, soon()).granted();
    let ttl = |key: &str| server.number(&["PTTL", key]);
    assert!(ttl(&marker(&reader, 1)) > 29_000, "the repeated request shortened the lease");
    store.attempt(&reader, 2, soon()).granted();
    store.attempt(&other, 1, soon()).granted();
    assert!(ttl("k") > 59_000);
    assert!(renewed(&store, &reader));
    assert!(ttl("k") > 59_000, "the renewal shortened another reader's lease");
    server.run(&["PEXPIRE", &marker(&reader, 1), "60000"]);
    server.run(&["PEXPIRE", &marker(&reader, 2), "10"]);
    assert!(renewed(&store, &reader));
    assert!(ttl(&marker(&reader, 1)) > 59_000 && ttl(&marker(&reader, 2)) > 29_000);
    assert!(!renewed(&store, &again(&reader)));

    assert_eq!(store.release(&reader, 1, soon()).done(), Release::StillHeld);
    assert_eq!((ttl(&marker(&reader, 2)), ttl("k") > 59_000), (-2, true));
    server.run(&["PEXPIRE", &marker(&reader, 1), "30000"]);
    let mut messages = Messages::of(&server, "redisson_rwlock:{k}");
    freed(&store, &other);
    let left = ttl("k");
    assert!(left > 29_000 && left <= 30_000, "not the longest remaining lease: {left}");
    assert_eq!(messages.payloads(), [""; 0]);
    freed(&store, &reader);
    assert_eq!(messages.payloads(), ["0"]);
    assert_eq!(server.keys(), [""; 0], "a reader's marker remains");

    store.attempt(&writer, 1, soon()).granted();
    freed(&store, &writer);
    assert_eq!(messages.payloads(), ["1", "0"], "a writer wakes all of Redisson's readers");
    assert_eq!(server.keys(), [""; 0]);
    store.attempt(&reader, 1, soon()).granted();
    assert!(store.force(Kind::Read, &name("k"), soon()).done());
    assert_eq!(messages.payloads(), ["1", "0"]);
}

/// Redisson differs: the renewals of its watchdog shorten a writer's longer lease.
#[test]
fn a_nested_read_or_renewal_never_shortens_the_write_lease() {
    let (server, store) = served();
    let writer = for_ms(&of(Kind::Write), 60_000);
    let reader = Claim { owner: writer.owner, ..for_ms(&of(Kind::Read), 5_000) };
    let ttl = || server.number(&["PTTL", "k"]);
    store.attempt(&writer, 1, soon()).granted();
    for count in [1, 2] {
        store.attempt(&reader, count, soon()).granted();
    }
    assert_eq!(store.release(&reader, 1, soon()).done(), Release::StillHeld);
    freed(&store, &reader);
    assert!(ttl() > 59_000, "{}", ttl());
    assert!(renewed(&store, &for_ms(&writer, 30_000)));
    assert!(ttl() > 59_000, "{}", ttl());
    // A re-entry must not add its lease to the remaining one.
    store.attempt(&writer, 2, soon()).granted();
    assert!(ttl() <= 60_000, "{}", ttl());
}

const WRITERS: &str = "leasehold_rwlock_waiting:{k}";

#[test]
fn with_writers_first_a_waiting_writer_goes_before_readers() {
    let (server, store) = served();
    let first = |kind| Claim { writers_first: true, ..of(kind) };
    let (reader, late, writer) = (first(Kind::Read), first(Kind::Read), first(Kind::Write));
    store.attempt(&reader, 1, soon()).granted();
    busy(&store, &once(&writer));
    busy(&store, &of(Kind::Write));
    assert_eq!(server.keys().len(), 2, "only a waiting writer with writers_first is listed");
    busy(&store, &writer);
    busy(&store, &writer);
    assert_eq!(server.number(&["ZCARD", WRITERS]), 1);
    assert!((6_000..=12_000).contains(&server.number(&["PTTL", WRITERS])));
    let left = busy(&store, &late).unwrap();
    assert!(left > Duration::from_secs(4) && left <= Duration::from_secs(6), "{left:?}");
    assert_eq!(server.number(&["HLEN", "k"]), 2, "the late reader was granted the lock");
    for count in [1, 2] {
        store.attempt(&reader, count, soon()).granted();
    }
    let heedless = take(&store, of(Kind::Read));
    freed(&store, &heedless);
    // A waiting writer that has died holds no reader back.
    server.run(&["ZADD", WRITERS, "1", &writer.owner.to_string()]);
    store.attempt(&late, 1, soon()).granted();
    freed(&store, &late);
    busy(&store, &again(&writer));
    assert_eq!(server.number(&["ZCARD", WRITERS]), 1, "the dead writer is still listed");
    server.run(&["DEL", WRITERS]);

    busy(&store, &writer);
    freed(&store, &reader);
    assert!(busy(&store, &late).unwrap() <= Duration::from_secs(6));
    let other = first(Kind::Write);
    store.attempt(&Claim { wants_fence: true, ..writer.clone() }, 1, soon()).granted();
    assert_eq!(server.number(&["EXISTS", WRITERS]), 0);
    busy(&store, &other);
    let own = take(&store, Claim { owner: writer.owner, ..first(Kind::Read) });
    busy(&store, &late);
    let third = first(Kind::Write);
    busy(&store, &third);
    let mut messages = Messages::of(&server, "redisson_rwlock:{k}");
    assert!(matches!(cleaned_up(&store, &other), Release::NotHeld { .. }));
    assert_eq!(messages.payloads(), [""; 0]);
    freed(&store, &writer);
    assert_eq!(messages.payloads(), ["1", "0"]);
    busy(&store, &late);
    assert!(matches!(cleaned_up(&store, &third), Release::NotHeld { .. }));
    assert_eq!(messages.payloads(), ["1"]);
    store.attempt(&late, 1, soon()).granted();
    freed(&store, &late);
    freed(&store, &own);
    server.run(&["DEL", "redisson_lock_token:{k}"]);
    assert_eq!(server.keys(), [""; 0]);

    // A server without memory cannot list the writer, but answers that the lock is busy.
    store.attempt(&reader, 1, soon()).granted();
    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    busy(&store, &writer);
    assert!(matches!(cleaned_up(&store, &writer), Release::NotHeld { .. }));
    freed(&store, &reader);
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn a_server_out_of_memory_still_renews_and_releases() {
    let (server, store) = served();
    set_up(&store, Kind::Semaphore, 3);
    let permit = take(&store, of(Kind::Semaphore));
    let held = |kind: Kind, key: &str| take(&store, claim(kind, key, 30_000));
    let (fair, write, read) = (held(Kind::Fair, "f"), held(Kind::Write, "w"), held(Kind::Read, "r"));
    for twice in [&read, &write] {
        store.attempt(twice, 2, soon()).granted();
    }
    server.run(&["SET", "p", "2"]);
    let leased = held(Kind::Permits, "p");
    let keys = server.keys();
    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    let out_of_memory = |claim: &Claim| {
        let error = store.attempt(claim, 1, soon()).refused();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{claim:?}: {error}");
    };
    for kind in [Kind::Fair, Kind::Read, Kind::Write] {
        out_of_memory(&claim(kind, "new", 30_000));
    }
    out_of_memory(&again(&permit));
    out_of_memory(&again(&leased));
    assert_eq!(server.keys(), keys);
    for claim in [&fair, &write, &read, &leased] {
        assert!(renewed(&store, claim), "{claim:?}");
    }
    for twice in [&read, &write] {
        assert_eq!(store.release(twice, 1, soon()).done(), Release::StillHeld);
    }
    for claim in [&fair, &write, &read, &leased, &Claim { is_granted: true, ..permit }] {
        freed(&store, claim);
    }
    assert_eq!(server.text(&["GET", "k"]).as_deref(), Some("3"));
    assert_eq!(server.text(&["GET", "p"]).as_deref(), Some("2"));
}

#[test]
fn semaphores_and_latches_publish_the_messages_of_redisson() {
    let (server, store) = served();
    let mut messages = Messages::of(&server, "redisson_");
    let mut told = |channel: &str, payload: &str| {
        assert_eq!(messages.take(), [(channel.to_owned(), payload.to_owned())]);
    };
    set_up(&store, Kind::Semaphore, 2);
    told("redisson_sc:{k}", "2");
    count(&store, &of(Kind::Semaphore), &Counting::Add(3));
    told("redisson_sc:{k}", "5");
    server.run(&["PEXPIRE", "k", "60000"]);
    assert_eq!(count(&store, &of(Kind::Semaphore), &Counting::Drain), Some(5));
    assert!(server.number(&["PTTL", "k"]) > 0, "the semaphore's own expiry was removed");
    server.run(&["DEL", "k"]);
    set_up(&store, Kind::Latch, 1);
    told("redisson_countdownlatch__channel__{k}", "1");
    assert_eq!(count(&store, &of(Kind::Latch), &Counting::SetUp { to: 5, lease: None }), Some(0));
    assert_eq!(server.text(&["GET", "k"]).as_deref(), Some("1"));
    assert_eq!(count(&store, &of(Kind::Latch), &Counting::CountDown), Some(0));
    told("redisson_countdownlatch__channel__{k}", "0");
    assert_eq!(server.number(&["EXISTS", "k"]), 0);
    set_up(&store, Kind::Latch, 2);
    told("redisson_countdownlatch__channel__{k}", "1");
    assert_eq!(count(&store, &of(Kind::Latch), &Counting::Delete), Some(1));
    told("redisson_countdownlatch__channel__{k}", "0");
    server.run(&["SET", "k", "0"]);
    store.attempt(&of(Kind::Latch), 1, soon()).granted();
    // Redisson leaves an open latch's key at 0, so a latch whose key is 0 can be set up anew.
    set_up(&store, Kind::Latch, 1);
    assert_eq!(server.text(&["GET", "k"]).as_deref(), Some("1"));
    server.run(&["DEL", "k"]);
    set_up(&store, Kind::Latch, 0);
    assert_eq!(server.number(&["EXISTS", "k"]), 0);
}

const WAITING: &str = "leasehold_condition_queue:{k}";
const ALIVE: &str = "leasehold_condition_heartbeat:{k}";
const NOTIFIED: &str = "leasehold_condition_notified:{k}";

#[test]
fn an_unread_condition_notification_goes_to_the_next_waiter() {
    let (server, store) = served();
    let waiters: Vec<Claim> = (0..4).map(|_| of(Kind::Signal)).collect();
    for waiter in waiters.iter().chain(&waiters) {
        count(&store, waiter, &Counting::Enlist);
    }
    assert_eq!(server.number(&["LLEN", WAITING]), 4, "each waiter is listed once");
    for key in [WAITING, ALIVE] {
        assert!(server.number(&["PTTL", key]) > 0, "{key}");
    }
    server.run(&["ZADD", ALIVE, "1", &waiters[0].owner.to_string()]);
    let mut messages = Messages::of(&server, "leasehold_condition_channel:{k}");
    let told = |waiter: &Claim| {
        vec![(format!("leasehold_condition_channel:{{k}}:{}", waiter.owner), "0".to_owned())]
    };
    assert_eq!(count(&store, &of(Kind::Signal), &Counting::Notify { all: false }), Some(1));
    assert_eq!(messages.take(), told(&waiters[1]), "a dead waiter was notified");
    cleaned_up(&store, &waiters[1]);
    assert_eq!(messages.take(), told(&waiters[2]));
    // A notified waiter dies before it reads its notification. Any waiter's attempt then passes the
    // notification to the next waiter.
    server.run(&["ZADD", NOTIFIED, "1", &waiters[2].owner.to_string()]);
    let last = of(Kind::Signal);
    count(&store, &last, &Counting::Enlist);
    busy(&store, &last);
    assert_eq!(messages.take(), told(&waiters[3]));
    for key in [WAITING, ALIVE, NOTIFIED] {
        assert!(server.number(&["PTTL", key]) > 0, "{key}");
    }
    store.attempt(&waiters[3], 1, soon()).granted();
    busy(&store, &last);
    server.run(&["ZADD", ALIVE, "1", &last.owner.to_string()]);
    busy(&store, &last);
    assert!(time_left(&server, ALIVE, last.owner) > 5_000);
    cleaned_up(&store, &last);
    assert_eq!(server.keys(), [""; 0]);
    store.attempt(&last, 1, soon()).granted();
    assert_eq!(count(&store, &of(Kind::Signal), &Counting::Notify { all: true }), Some(0));
}

#[test]
fn passing_on_a_condition_notification_restores_its_expiry() {
    let (server, store) = served();
    let waiters: Vec<Claim> = (0..3).map(|_| of(Kind::Signal)).collect();
    for waiter in &waiters {
        count(&store, waiter, &Counting::Enlist);
    }
    for _ in 0..2 {
        count(&store, &of(Kind::Signal), &Counting::Notify { all: false });
    }
    // The first waiter died with its notification. The second waiter's attempt passes it to the third waiter,
    // and must set the expiry of `NOTIFIED`, which PERSIST has removed.
    server.run(&["ZADD", NOTIFIED, "1", &waiters[0].owner.to_string()]);
    server.run(&["PERSIST", NOTIFIED]);
    store.attempt(&waiters[1], 1, soon()).granted();
    assert!(server.number(&["PTTL", NOTIFIED]) > 0);
    store.attempt(&waiters[2], 1, soon()).granted();
}

#[test]
fn keys_of_other_programs_are_refused_before_any_write() {
    let (server, store) = served();
    let me = of(Kind::Signal);
    let all = [Counting::Enlist, Counting::Notify { all: false }, Counting::Notify { all: true }];
    for foreign in [WAITING, ALIVE, NOTIFIED] {
        server.run(&["FLUSHALL"]);
        count(&store, &me, &Counting::Enlist);
        server.run(&["SET", foreign, "text"]);
        let state = || {
            let mut keys = server.keys();
            keys.sort();
            keys.into_iter().map(|key| server.run(&["DUMP", &key])).collect::<Vec<_>>()
        };
        let before = state();
        for what in &all {
            assert!(
                matches!(store.count(&of(Kind::Signal), what, soon()), Err(Failure::Refused(_))),
                "{foreign}"
            );
        }
        assert!(matches!(store.attempt(&me, 1, soon()), Err(Failure::Refused(_))), "{foreign}");
        assert_eq!(state(), before, "{foreign}");
    }
    server.run(&["FLUSHALL"]);
    server.run(&["HSET", "k", "field", "1"]);
    server.run(&["ZADD", OUT, "1", "over"]);
    assert!(matches!(store.attempt(&of(Kind::Permits), 1, soon()), Err(Failure::Refused(_))));
    assert_eq!(server.number(&["ZCARD", OUT]), 1);
}

/// Redisson gives the queue's keys no expiry, so they would remain for ever if the last waiter is killed.
#[test]
fn a_fair_queue_with_our_waiters_expires() {
    let (server, store) = served();
    redisson_comes(&server, "java:1", 300_000);
    let (holder, waits) = (of(Kind::Fair), of(Kind::Fair));
    server.run(&["HSET", "k", &holder.owner.to_string(), "1"]);
    busy(&store, &waits);
    for key in [QUEUE, TIMEOUTS] {
        assert!((86_000_000..=86_400_000).contains(&server.number(&["PTTL", key])), "{key}");
    }
    // This Redisson waiter's time is 900,000 s ahead. The keys must not expire earlier, although they usually
    // expire after a day.
    server.run(&["DEL", QUEUE, TIMEOUTS, HEARTBEATS]);
    redisson_comes(&server, "java:1", 900_000_000);
    busy(&store, &waits);
    assert!(server.number(&["PTTL", QUEUE]) > 900_000_000);
}

#[test]
fn only_the_owner_can_change_the_lease() {
    let (server, store) = served();
    let (me, you) = (of(Kind::Mutex), of(Kind::Mutex));
    store.attempt(&me, 1, soon()).granted();
    assert!(!store.expire_in(&you, Duration::from_secs(1), soon()).done());
    assert!(server.number(&["PTTL", "k"]) > 29_000);
    assert!(store.expire_in(&me, Duration::from_secs(9), soon()).done());
    assert!((1..=9_000).contains(&server.number(&["PTTL", "k"])));
}
