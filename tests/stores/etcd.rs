//! Tests for etcd only: members that are killed, stopped or cut off, leases that end early, lost quorums,
//! users and TLS.

use std::net::{Ipv4Addr, TcpListener};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold::Event;

use crate::support::etcd::Etcd;
use crate::support::observer::observe;
use crate::support::prelude::*;
use crate::support::relay::{Act, Direction, Relay};

/// How long after the end of its lease a lock may still look held (docs/decisions/0016-etcd.md).
const LATE: Duration = ms(1_500);

fn builder(url: &str) -> ClientBuilder {
    LockClient::builder().url(url).lease(Duration::from_secs(20))
}

/// Builds a client, and retries, because a busy machine may be too slow for the first attempt.
fn client(url: &str) -> LockClient {
    connected(|| builder(url).build())
}

fn url_of(members: &[Etcd]) -> String {
    let places: Vec<_> = members.iter().map(Etcd::place).collect();
    format!("etcd://{}", places.join(","))
}

fn queue_of(server: &Etcd, name: &str) -> Vec<serde_json::Value> {
    let (key, end) =
        (STANDARD.encode(format!("leasehold/{name}/%/")), STANDARD.encode(format!("leasehold/{name}/%0")));
    let order = r#""sort_target":"CREATE","sort_order":"ASCEND""#;
    let found = server.must("/v3/kv/range", &format!(r#"{{"key":"{key}","range_end":"{end}",{order}}}"#));
    found["kvs"].as_array().cloned().unwrap_or_default()
}

fn lease_of(server: &Etcd, name: &str) -> String {
    let queue = queue_of(server, name);
    queue[0]["lease"].as_str().expect("the lock is held, under a lease").to_owned()
}

/// Asserts that the waiter is woken by a message before its next poll, by the median of five rounds.
#[track_caller]
fn are_woken(held: &RedisLock, waiting: &RedisLock) {
    let begun = now();
    let rounds = (0..5).map(|_| {
        let held = Holding::take(held);
        let waiter = Waiter::start(turn(waiting.clone()));
        let released = held.release();
        waiter.returns_within(ms(1_200) + SLACK).0.duration_since(released)
    });
    assert!(median(rounds.collect()) <= ms(50) + stalled_since(begun));
}

test_on!(a_restarted_member_still_has_the_lock, Etcd::start(), |mut server| {
    let url = server.url();
    let (holder, other) = (client(&url), client(&url));
    let name = fresh("killed");
    let guard = holder.get_fenced_lock(&name).acquire().unwrap();
    let waiting = other.get_fenced_lock(&name);
    let waiter = Waiter::start(move || waiting.acquire().map(|guard| guard.fencing_token()));
    server.restart();
    guard.check().unwrap();
    assert!(!other.get_lock(&name).try_lock().unwrap());
    // If the restart still interrupts the watch, only a safety poll finds the release, within 1.2 s.
    let fence = guard.fencing_token();
    guard.unlock().unwrap();
    let (granted, _) = waiter.returns_within(ms(1_200) + SLACK);
    assert!(granted.unwrap() > fence);
    are_woken(&holder.get_lock(&name), &other.get_lock(&name));
});

test_on!(a_revoked_lease_is_found_by_the_next_renewal, Etcd::start(), |server| {
    let url = server.url();
    let (holder, other) = (builder(&url).lease(ms(3_000)).build().unwrap(), client(&url));
    let name = fresh("revoked");
    let guard = holder.get_lock(&name).acquire().unwrap();
    let lost = guard.lost();
    let lease = lease_of(&server, &name);
    server.must("/v3/lease/revoke", &format!(r#"{{"ID":"{lease}"}}"#));
    assert!(other.get_lock(&name).try_lock_for(LONG).unwrap());
    let loss = receive(&lost, ms(1_000) + SLACK).expect("the holder got no loss report");
    assert_eq!(loss.reason, LossReason::Gone);
    assert!(guard.unlock().unwrap_err().is_lost());
    assert!(other.get_lock(&name).is_held_by_current_thread().unwrap());
    other.get_lock(&name).unlock().unwrap();
    // The client reuses leases. When etcd has revoked one, the client notices and requests another.
    drop(holder.get_lock(&name).acquire_with(&leased(ms(15_000))).unwrap().unwrap());
    for lease in server.must("/v3/lease/leases", "{}")["leases"].as_array().into_iter().flatten() {
        server.must("/v3/lease/revoke", &format!(r#"{{"ID":{}}}"#, lease["ID"]));
    }
    assert!(holder.get_lock(&name).try_lock_for_with_lease(ms(0), ms(15_000)).unwrap(), "the lock is free");
    holder.get_lock(&name).unlock().unwrap();
});

/// Whether this version of etcd may revoke the leases of living holders. Clients warn of such a version.
fn may_revoke(server: &Etcd) -> bool {
    let status = server.must("/v3/maintenance/status", "{}");
    let version: Vec<u32> =
        status["version"].as_str().unwrap().split('.').map(|number| number.parse().unwrap()).collect();
    version < vec![3, 4, 31] || version[1] == 5 && version[2] < 13
}

test_on!(a_version_that_may_revoke_leases_causes_a_warning, Etcd::start(), |server| {
    let (observer, warnings) = observe(|event| match event {
        Event::Warning { text, .. } => Some((*text).to_owned()),
        _ => None,
    });
    let client = builder(&server.url()).observer(observer).build().unwrap();
    client.with_lock(fresh("warned"), |_| ()).unwrap();
    if may_revoke(&server) {
        let warning = receive(&warnings, LONG).expect("no warning came");
        assert!(warning.contains("3.5.13"), "{warning}");
    }
    throughout(ms(100), || warnings.is_empty());
});

test_on!(the_watch_reports_a_revoked_lease_at_once, Etcd::start(), |server| {
    if !may_revoke(&server) {
        return; // with this version of etcd only the next renewal finds the loss
    }
    let (holder, other) = (client(&server.url()), client(&server.url()));
    let name = fresh("beside");
    let beside = Holding::take(&other.get_lock(&name));
    let waiting = holder.get_lock(&name);
    let mut waiter = None;
    for has_others in [false, true] {
        for is_explicit in [false, true] {
            let lock = holder.get_lock(fresh("early"));
            let _more = has_others.then(|| holder.get_lock(fresh("more")).acquire().unwrap());
            if has_others && waiter.is_none() {
                waiter = Some(Waiter::start(turn(waiting.clone())));
            }
            let guard = if is_explicit {
                lock.acquire_with(&leased(ms(15_000))).unwrap().unwrap()
            } else {
                lock.acquire().unwrap()
            };
            let lost = guard.lost();
            // The client watches the key of a hold older than a second, so the watch exists after this wait.
            throughout(ms(2_500), || guard.check().is_ok());
            let lease = lease_of(&server, lock.name());
            let revoked = now();
            server.must("/v3/lease/revoke", &format!(r#"{{"ID":"{lease}"}}"#));
            let loss = receive(&lost, LONG).expect("the holder got no loss report");
            assert_eq!(loss.reason, LossReason::Gone);
            assert!(revoked.elapsed() <= ms(500) + stalled_since(revoked), "{:?}", revoked.elapsed());
            assert!(guard.unlock().unwrap_err().is_lost());
            // The next acquire makes a new hold, and late reports of the first hold's watch do not end it.
            let again = lock.acquire().unwrap();
            throughout(ms(200), || again.check().is_ok());
            again.unlock().unwrap();
        }
    }
    beside.release();
    waiter.unwrap().returns_within(LONG);
});

test_on!(holds_survive_a_killed_leader_but_not_a_lost_majority, Etcd::start_cluster(3), |mut members| {
    let url = url_of(&members);
    let options = || builder(&url).lease(ms(6_000)).command_timeout(ms(1_000)).retry_timeout(ms(1_500));
    let (holder, other) = (options().build().unwrap(), options().build().unwrap());
    let name = fresh("cluster");
    let guard = holder.get_fenced_lock(&name).acquire().unwrap();
    let leader = members.iter().position(Etcd::leads).expect("a cluster has a leader");
    members[leader].kill();
    // During an election renewals fail and are repeated, so the hold is at risk for a while.
    throughout(ms(7_000), || guard.check().is_ok());
    comes_true_within(LONG, || guard.state() == HoldState::Held);
    assert_eq!(other.get_lock(&name).try_lock_for(ms(1_500)).ok(), Some(false));
    let fence = guard.fencing_token();
    guard.unlock().unwrap();
    let next = other.get_fenced_lock(&name).acquire().unwrap();
    assert!(next.fencing_token() > fence, "a new leader's token is not higher");

    let (second, left) = ((leader + 1) % 3, (leader + 2) % 3);
    let (observer, wakeups) = observe(|event| match event {
        Event::WakeupsDown { .. } => Some("down"),
        Event::WakeupsUp => Some("up"),
        _ => None,
    });
    let beside = builder(&members[left].url()).observer(observer).build().unwrap();
    let waiting = beside.get_lock(&name);
    let interrupt = Interrupt::new();
    let waiter =
        Waiter::on(interrupt.clone(), move |interrupt| waiting.lock_interruptibly(&interrupt).is_err());
    members[second].kill();
    let begun = now();
    let error = holder.get_lock(fresh("none")).try_lock().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(begun.elapsed() <= ms(1_000) + slack_since(begun), "{:?}", begun.elapsed());
    let begun = now();
    let error = holder.get_lock(fresh("none")).lock().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Busy | ErrorKind::Unreachable),
        "{error}"
    );
    // The first attempt, the retry time-out, and an attempt that begins just before that time-out ends.
    let limit = ms(1_000 + 1_500 + 1_000) + ms(100);
    assert!(begun.elapsed() <= limit + slack_since(begun), "the call took {:?}", begun.elapsed());
    // A member without a leader ends the watch, so the client learns that wake-ups are missing.
    let change = receive(&wakeups, ms(5_000)).expect("no report says that wake-ups are missing");
    assert_eq!(change, "down", "they were there before");
    interrupt.interrupt();
    assert!(waiter.returns_within(LONG).0);
    comes_true_within(ms(4_000) + SLACK, || next.check().is_err());
    assert!(next.check().unwrap_err().is_lost());
    members[leader].restart();
    let (granted, _) = Waiter::on(holder.get_fenced_lock(&name), move |lock| {
        lock.acquire().map(|guard| guard.fencing_token())
    })
    .returns_within(ms(10_000) + LATE);
    assert!(granted.unwrap() > next.fencing_token());
});

test_on!(the_members_of_a_url_are_tried_in_turn, Etcd::start(), |server| {
    let dead = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let begun = now();
    let url = format!("etcd://127.0.0.1:{dead},{}/elsewhere", server.place());
    let lock = client(&url).get_lock(fresh("second"));
    lock.lock().unwrap();
    assert!(begun.elapsed() < slack_since(begun), "a refused connection delayed the call");
    // A URL's path is a prefix, so a URL without the path has different locks.
    assert!(client(&server.url()).get_lock(lock.name()).try_lock().unwrap());
    lock.unlock().unwrap();
    let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let begun = now();
    fails(
        builder(&format!("etcd://{}", mute.local_addr().unwrap())).connect_timeout(ms(300)).build(),
        ErrorKind::TimedOut,
    );
    assert!(begun.elapsed() <= ms(300) + slack_since(begun));
    let error = builder(&format!("etcd://127.0.0.1:{dead}")).build().unwrap_err();
    assert_eq!((error.kind(), error.action()), (ErrorKind::Unreachable, "connect"), "{error}");
    assert!(error.is_retryable() && !error.outcome_unknown());
});

test_on!(a_late_grant_of_a_stopped_member_is_undone, Etcd::start(), |server| {
    let options = || builder(&server.url()).lease(ms(8_000)).command_timeout(ms(1_000)).retry_timeout(LONG);
    let (asking, other) = (connected(|| options().build()), connected(|| options().build()));
    let name = fresh("stopped");
    let lock = asking.get_lock(&name);
    let tried = (0..20).any(|_| {
        // The `try_lock` below reuses this acquire's lease, so its only request is the attempt.
        lock.acquire().unwrap().unlock().unwrap();
        server.stop();
        let begun = now();
        let error = lock.try_lock().unwrap_err();
        assert!(begun.elapsed() <= ms(1_000) + slack_since(begun), "{:?}", begun.elapsed());
        server.cont();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let in_doubt = error.outcome_unknown();
        comes_true_within(ms(1_500) + SLACK, || other.get_lock(&name).try_lock().unwrap_or(false));
        other.get_lock(&name).unlock().unwrap();
        in_doubt
    });
    assert!(tried, "no attempt was left in doubt");
});

test_on!(a_hold_ends_by_the_clients_clock_in_an_outage, Etcd::start(), |server| {
    let options = || builder(&server.url()).lease(ms(1_500)).command_timeout(ms(300));
    let holder = connected(|| options().build());
    let name = fresh("still");
    let guard = holder.get_lock(&name).acquire().unwrap();
    let lost = guard.lost();
    server.stop();
    let begun = now();
    comes_true_within(ms(1_000) + SLACK, || guard.state() != HoldState::Held);
    let loss = receive(&lost, ms(1_500) + SLACK).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(begun.elapsed() <= ms(1_500) + slack_since(begun), "{:?}", begun.elapsed());
    server.cont();
    let (result, _) = Waiter::on(client(&server.url()).get_lock(&name), move |lock| lock.lock())
        .returns_within(ms(1_500) + LATE + SLACK);
    result.unwrap();
    assert!(guard.unlock().unwrap_err().is_lost());
});

test_on!(a_timed_wait_ends_in_time_during_an_outage, Etcd::start(), |server| {
    let name = fresh("stalled");
    let held = client(&server.url()).get_lock(&name).acquire_owned().unwrap();
    let (wait, timeout) = (ms(1_500), ms(1_500));
    let other = connected(|| builder(&server.url()).command_timeout(timeout).build());
    let lock = other.get_lock(&name);
    let begun = now();
    let waiter = Waiter::start(move || lock.try_lock_for(wait));
    server.stop();
    let (result, ended) = waiter.returns_within(LONG);
    server.cont();
    let took = ended.duration_since(begun);
    assert!(took <= wait + timeout + slack_since(begun), "{took:?}: {result:?}");
    comes_true_within(LONG, || queue_of(&server, &name).len() == 1);
    held.unlock().unwrap();
});

/// A relay that, once armed, closes the connection instead of passing on the next answer.
fn cutter(server: u16) -> (u16, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let cuts = Arc::clone(&armed);
    let relay = Relay::with("127.0.0.1", server, move |_, piece| {
        let is_answer = piece.direction == Direction::ToClient;
        if is_answer && cuts.swap(false, Ordering::SeqCst) { Act::HangUp } else { Act::Pass }
    });
    (relay.port(), armed)
}

test_on!(a_grant_with_a_lost_answer_is_undone, Etcd::start(), |server| {
    let (port, cut) = cutter(server.port());
    let asking = builder(&format!("etcd://127.0.0.1:{port}")).build().unwrap();
    let other = client(&server.url());
    let name = fresh("cut");
    let lock = asking.get_fenced_lock(&name);
    let mut in_doubt = 0;
    for _ in 0..20 {
        let first = lock.acquire().unwrap();
        let fence = first.fencing_token();
        first.unlock().unwrap();
        cut.store(true, Ordering::SeqCst);
        match lock.try_acquire() {
            Ok(guard) => drop(guard), // the relay cut off the answer to another request
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
                in_doubt += u32::from(error.outcome_unknown());
            }
        }
        cut.store(false, Ordering::SeqCst);
        let (granted, _) = Waiter::on(other.get_fenced_lock(&name), move |lock| {
            lock.acquire().map(|guard| guard.fencing_token())
        })
        .returns_within(ms(1_200) + SLACK);
        assert!(granted.unwrap() > fence);
    }
    assert!(in_doubt > 0, "no attempt was left in doubt");
    cut.store(true, Ordering::SeqCst);
    lock.acquire().unwrap().unlock().unwrap();
    comes_true_within(LONG, || !other.get_lock(&name).is_locked().unwrap());
});

test_on!(a_client_logs_in_again_when_etcd_refuses_its_token, Etcd::start(), |server| {
    // A server without users accepts any user name, and requests without one.
    let place = server.place();
    client(&format!("etcd://app:S3CR3T@{place}")).get_lock(fresh("open")).lock().unwrap();
    server.demand_passwords(&[("app", "S3CR3T", "locks")]);
    for url in [format!("etcd://{place}"), format!("etcd://app:S3CR3T-not@{place}")] {
        let error = fails(builder(&url).build(), ErrorKind::Authentication);
        assert!(!error.is_retryable() && !format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
    }
    let late = client(&format!("etcd://app:S3CR3T@{place}"));
    let (app, other) =
        (client(&format!("etcd://app:S3CR3T@{place}")), client(&format!("etcd://app:S3CR3T@{place}")));
    let name = fresh("users");
    let guard = app.get_lock(&name).acquire().unwrap();
    let waiter = Waiter::start(turn(other.get_lock(&name)));
    // Each change of the users ends the login of every client: etcd refuses the login tokens issued before.
    server.must_as(&server.token(), "/v3/auth/user/add", r#"{"name":"new","password":"x"}"#);
    guard.unlock().unwrap();
    waiter.returns_within(ms(1_200) + SLACK);
    // Each client's watch must log in again as well; otherwise no message would wake the client.
    are_woken(&app.get_lock(&name), &late.get_lock(&name));
});

#[cfg(feature = "tls")]
test_on!(etcd_works_over_tls_with_a_trusted_certificate_only, Etcd::start_tls(), |server| {
    let [ca, unknown] = server.authorities();
    let url = format!("etcds://localhost:{}", server.port());
    let options = || builder(&url).tls_ca(&ca);
    comes_true_within(LONG, || options().build().is_ok());
    let (client, other) = (options().build().unwrap(), options().build().unwrap());
    let name = fresh("secured");
    let guard = client.get_lock(&name).acquire().unwrap();
    let waiter = Waiter::start(turn(other.get_lock(&name)));
    guard.unlock().unwrap();
    waiter.returns_within(ms(500) + SLACK);
    let refused = [
        builder(&url).tls_ca(&unknown).build().unwrap_err(),
        builder(&server.url()).connect_timeout(ms(1_000)).build().unwrap_err(),
    ];
    for error in refused {
        assert!(!error.outcome_unknown(), "{error}");
    }
});

test_on!(etcd_directory_entries_expire_and_are_not_listed_as_locks, Etcd::start(), |server| {
    let client = LockClient::builder().url(url_of(std::slice::from_ref(&server))).build().unwrap();
    let held = client.get_lock("a").acquire().unwrap();
    comes_true_within(LONG, || client.clients().any(|one| one.unwrap().id == client.id()));
    let [key, end] = ["leasehold/%clients/", "leasehold/%clients0"].map(|key| STANDARD.encode(key));
    let entries = || server.must("/v3/kv/range", &format!(r#"{{"key":"{key}","range_end":"{end}"}}"#));
    let lease = entries()["kvs"][0]["lease"].as_str().unwrap().to_owned();
    let left = server.must("/v3/lease/timetolive", &format!(r#"{{"ID":"{lease}"}}"#));
    let left: u64 = left["TTL"].as_str().unwrap().parse().unwrap();
    assert!((1..=31).contains(&left), "{left}");
    for (key, value) in [("leasehold/zone", "x"), ("leasehold/config/db", "y"), ("leasehold/b/c/d", "z 1 31")]
    {
        let (key, value) = (STANDARD.encode(key), STANDARD.encode(value));
        server.must("/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
    }
    let listed: Vec<_> = client.list("*").map(|lock| lock.unwrap().name).collect();
    assert_eq!(listed, ["a"]);
    held.unlock().unwrap();
    client.shutdown().unwrap();
    assert_eq!(entries()["count"].as_str().unwrap_or("0"), "0");
});

test_on!(nested_prefixes_do_not_interfere, Etcd::start(), |server| {
    let at = |prefix: &str| LockClient::builder().url(format!("etcd://{}/{prefix}", server.place())).build();
    let (above, below) = (at("app").unwrap(), at("app/shop").unwrap());
    let inner = below.get_lock("x").acquire_owned().unwrap();
    comes_true_within(LONG, || below.clients().any(|one| one.unwrap().id == below.id()));
    let (key, value) = (STANDARD.encode("app/shop/notes"), STANDARD.encode("whatever"));
    server.must("/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
    let guard = above.get_lock("shop").try_acquire().unwrap().expect("no client holds the lock");
    let seen = above.inspect("shop").unwrap();
    assert_eq!((seen.holders.len(), seen.waiting), (1, 0), "{seen}");
    let listed: Vec<_> = above.list("*").map(|lock| lock.unwrap().name).collect();
    assert_eq!(listed, ["shop"]);
    let listed: Vec<_> = below.list("*").map(|lock| lock.unwrap().name).collect();
    assert_eq!(listed, ["x"]);
    guard.unlock().unwrap();
    inner.unlock().unwrap();
    fails(at("app/%25/x"), ErrorKind::InvalidInput);
});

// One watch of the client covers all of these locks.
test_on!(each_cached_lock_is_released_to_its_waiter, Etcd::start(), |server| {
    let (keeper, other) = (client(&server.url()), client(&server.url()));
    let locks: Vec<_> = (0..8).map(|_| keeper.lock_builder(fresh("kept")).cached().build()).collect();
    for lock in &locks {
        let is_kept = || {
            lock.acquire().unwrap().unlock().unwrap();
            !queue_of(&server, lock.name()).is_empty()
        };
        assert!(eventually(LONG, is_kept), "the lock was never cached");
    }
    let begun = now();
    while begun.elapsed() < ms(1_000) {
        // In this loop the client's checks for waiters become rarer, down to one each half second. So a fast
        // release below comes from the watch.
        locks.iter().for_each(|lock| drop(lock.acquire().unwrap()));
    }
    let begun = now();
    let took = |lock: &leasehold::RedisLock| {
        let (theirs, asked) = (other.get_lock(lock.name()), now());
        theirs.acquire().unwrap().unlock().unwrap();
        asked.elapsed()
    };
    let took: Vec<_> = locks.iter().map(took).collect();
    assert!(median(took.clone()) <= ms(100) + stalled_since(begun) / 8, "{took:?}");
});
