//! What the contract tests, which run on all stores, do not show of ZooKeeper: sessions that end, servers
//! that go and return, the order of waiters, and leftover nodes. Some scenarios come from tests of Curator's
//! mutex. `tests/interop/curator.rs` tests Curator beside this crate.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::{Barrier, OnceLock};

use crate::support::caching::cached;
use crate::support::observer::attempts;
use crate::support::prelude::*;
use crate::support::zookeeper::{CALM, Relay, Sessions, ZooKeeper};
use crate::support::{reexecuted, test_name};

/// Sessions so short that a test can wait for their end.
const SHORT: Sessions = Sessions { tick_ms: 200, least_ms: 2_000, most_ms: 60_000 };
const SESSION: Duration = ms(2_000);
const COMMAND: Duration = ms(500);

/// The server that tests share if they neither disturb it nor read its figures.
fn shared() -> Option<&'static ZooKeeper> {
    static SERVER: OnceLock<Option<ZooKeeper>> = OnceLock::new();
    SERVER.get_or_init(|| ZooKeeper::start(CALM)).as_ref()
}

/// A client without a directory entry, because an entry is a node and most tests count nodes.
fn client(url: &str) -> LockClient {
    LockClient::builder().url(url).lease(ms(20_000)).directory(false).build().unwrap()
}

fn client_with_session(url: &str, session: Duration) -> LockClient {
    client_with_times(url, session, COMMAND)
}

fn client_with_times(url: &str, session: Duration, command: Duration) -> LockClient {
    let options = || LockClient::builder().url(url).lease(session).command_timeout(command);
    connected(|| options().directory(false).build())
}

#[test]
fn a_long_zookeeper_outage_ends_holds_within_the_session_time() {
    ends_holds_and_leaves_nothing(Duration::ZERO);
}

/// The session outlives the outage with its nodes, so the client must delete the lost hold's node.
#[test]
fn a_lost_hold_is_freed_when_the_server_returns() {
    // Long enough for the client to begin the clean-up of its unanswered renewal while the server is away.
    ends_holds_and_leaves_nothing(SESSION + COMMAND * 3);
}

/// The server is killed, and restarts `away` after the holds ended.
fn ends_holds_and_leaves_nothing(away: Duration) {
    let Some(mut server) = ZooKeeper::start(SHORT) else { return };
    let one = client_with_session(&server.url(), SESSION);
    let renewed = one.get_lock("away").acquire().unwrap();
    let leased = one.get_lock("leased").acquire_with(&leased(ms(600_000))).unwrap().unwrap();
    let lost = [renewed.lost(), leased.lost()];
    server.kill();
    let killed = now();
    for lost in &lost {
        assert_eq!(receive(lost, SESSION).unwrap().reason, LossReason::Expired);
        assert!(killed.elapsed() <= SESSION + slack_since(killed), "{:?}", killed.elapsed());
    }
    assert_eq!(renewed.state(), HoldState::Lost);
    let_pass(away, "the time for which the server is away");
    server.launch_again();
    // This session outlasts the delays of a busy machine.
    let other = client_with_session(&server.url(), SESSION * 5);
    for (name, guard) in [("away", renewed), ("leased", leased)] {
        let held = Holding::take(&other.get_lock(name));
        assert!(guard.unlock().unwrap_err().is_lost());
        // The test repeats the try, because an answer may come later than this client's short time-out.
        comes_true_within(LONG, || one.get_lock(name).try_lock().is_ok_and(|taken| !taken));
        held.release();
        comes_true_within(LONG, || one.get_lock(name).try_lock().unwrap_or(false));
        drop(one.get_lock(name).unlock());
    }
    comes_true_within(SESSION * 2, || server.figure("zk_ephemerals_count") == 0);
}

test_on!(a_hanging_server_puts_holds_at_risk_and_ends_them, ZooKeeper::start(SHORT), |server| {
    // The thread that renews also writes the directory entry. While the server hangs, this request delays the
    // next renewal by the time-out, so the time-out is short.
    let options = LockClient::builder().url(server.url()).lease(SESSION).command_timeout(ms(500));
    let one = options.build().unwrap();
    let guard = one.get_lock("hung").acquire().unwrap();
    let lost = guard.lost();
    server.signal("STOP");
    let stopped = now();
    comes_true_within(SESSION, || matches!(guard.state(), HoldState::AtRisk { .. }));
    assert_eq!(receive(&lost, SESSION).unwrap().reason, LossReason::Expired);
    assert!(stopped.elapsed() <= SESSION + slack_since(stopped));
    let error = one.get_lock("hung").try_lock().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    server.signal("CONT");
    comes_true_within(LONG, || one.get_lock("hung").try_lock().unwrap_or(false));
    one.get_lock("hung").unlock().unwrap();
});

test_on!(a_timed_wait_ends_in_time_when_the_server_hangs, ZooKeeper::start(CALM), |server| {
    let one = client(&server.url());
    let held = one.get_lock("stalled").acquire_owned().unwrap();
    // The call polls once more after five to six seconds. That request times out after the wait's end.
    let (wait, timeout) = (ms(6_000), ms(2_000));
    let options = LockClient::builder().url(server.url()).command_timeout(timeout);
    let other = options.directory(false).build().unwrap();
    let lock = other.get_lock("stalled");
    let begun = now();
    let waiter = Waiter::start(move || lock.try_lock_for(wait));
    comes_true_within(LONG, || server.figure("zk_ephemerals_count") == 2);
    server.signal("STOP");
    let (result, ended) = waiter.returns_within(LONG);
    server.signal("CONT");
    let (took, promised) = (ended.duration_since(begun), wait + timeout);
    // A stall of the machine before the promised end does not lengthen the wait, so only later stalls count.
    assert!(took <= promised + slack_since(begun + promised), "{took:?}: {result:?}");
    held.unlock().unwrap();
    comes_true_within(LONG, || one.get_lock("stalled").try_lock().unwrap_or(false));
});

test_on!(an_ensemble_that_loses_its_leader_loses_no_hold, ZooKeeper::ensemble(3, CALM), |mut servers| {
    let hosts: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let url = format!("zk://{}/app", hosts.join(","));
    // The command time-out is long, because an election takes long on a busy machine.
    let [one, other] = [(); 2].map(|()| client_with_times(&url, ms(60_000), LONG));
    let guard = one.get_fenced_lock("led").acquire().unwrap();
    let waiter = Waiter::on(other.get_fenced_lock("led"), move |lock| {
        lock.acquire_owned().map(|guard| (guard.fencing_token(), guard.unlock()))
    });
    let leader = servers.iter().position(ZooKeeper::is_leader).expect("a server is the leader");
    servers[leader].kill();
    comes_true_within(LONG * 2, || one.get_lock("other").try_lock().unwrap_or(false));
    one.get_lock("other").unlock().unwrap();
    guard.check().unwrap();
    let fence = guard.fencing_token();
    guard.unlock().unwrap();
    let (next, unlocked) = waiter.returns_within(LONG).0.unwrap();
    unlocked.unwrap();
    assert!(next > fence, "{next:?} after {fence:?}");
});

/// With these long ticks, the test can kill a follower before the follower reports its clients to the leader.
const SLOW: Sessions = Sessions { tick_ms: 750, least_ms: 1_500, most_ms: 60_000 };
const STALLED: Duration = ms(6_000);

/// An environment variable that makes this program run [`check_on`], with a server's URL and a log file.
const CHECK: &str = "LEASEHOLD_ZOOKEEPER_CHECK";

#[test]
fn a_resumed_holder_does_not_trust_answers_of_a_follower() {
    if let Ok(work) = std::env::var(CHECK) {
        let (url, file) = work.split_once(' ').unwrap();
        return check_on(url, Path::new(file));
    }
    let Some(mut servers) = ZooKeeper::ensemble(3, SLOW) else { return };
    let follower = servers.iter().position(ZooKeeper::is_follower).expect("a server is a follower");
    let log = tempfile::NamedTempFile::new().unwrap();
    let held = || fs::read_to_string(log.path()).unwrap().lines().filter(|line| *line == "held").count();
    let said = |word: &str| fs::read_to_string(log.path()).unwrap().lines().any(|line| line == word);
    let work = format!("{} {}", servers[follower].url(), log.path().display());
    let holder = reexecuted(&test_name(), &[(CHECK, &work)]);
    comes_true_within(LONG * 3, || held() >= 100);
    let others = servers.iter().enumerate().filter(|(at, _)| *at != follower);
    let others: Vec<_> = others.map(|(_, server)| format!("127.0.0.1:{}", server.port())).collect();
    let waiter = Waiter::start({
        let (lock, log) =
            (client(&format!("zk://{}", others.join(","))).get_lock("stalled"), log.path().to_owned());
        move || lock.acquire_owned().map(|guard| (guard, fs::read_to_string(log).unwrap()))
    });
    holder.signal("STOP");
    let_pass(STALLED / 2, "the holder stands still");
    holder.signal("CONT");
    comes_true_within(LONG, || said("back") || said("lost"));
    servers[follower].kill();
    let (guard, at_grant) = waiter.returns_within(LONG).0.unwrap();
    let at_grant = at_grant.lines().filter(|line| *line == "held").count();
    comes_true_within(LONG, || said("lost"));
    // One check from before the grant may have been recorded after it.
    assert!(held() <= at_grant + 1, "two clients hold the lock in {} checks", held() - at_grant);
    guard.unlock().unwrap();
}

test_on!(an_ended_session_notifies_all_holders, ZooKeeper::start(CALM), |server| {
    let relay = Relay::before(&server);
    let (one, other) = (client(&relay.url()), client(&server.url()));
    let holds = ["a", "b"].map(|name| one.get_lock(name).acquire().unwrap());
    let leased = one.get_lock("c").acquire_with(&leased(ms(600_000))).unwrap().unwrap();
    let lost = [holds[0].lost(), holds[1].lost(), leased.lost()];
    let behind = Waiter::on(other.get_lock("a"), move |lock| lock.acquire_owned());
    // The client `one` also waits for `d`. Its queue place ends with the session, so it must queue again.
    let held = Holding::take(&other.get_lock("d"));
    let waits_on = Waiter::start(turn(one.get_lock("d")));
    let ended = now();
    relay.end_session(&server);
    for lost in &lost {
        receive(lost, SLACK).expect("the loss was not reported");
    }
    assert!(ended.elapsed() <= slack_since(ended), "{:?}", ended.elapsed());
    let next = behind.returns_within(LONG).0.unwrap();
    assert!(!one.get_lock("a").try_lock().unwrap());
    assert!(one.get_lock("b").try_lock().unwrap());
    one.get_lock("b").unlock().unwrap();
    for guard in holds.into_iter().chain([leased]) {
        assert!(guard.unlock().unwrap_err().is_lost());
    }
    next.check().unwrap();
    next.unlock().unwrap();
    held.release();
    waits_on.returns_within(LONG);
    comes_true_within(LONG, || server.figure("zk_ephemerals_count") == 0);
});

test_on!(broken_connections_lose_no_hold_and_no_waiter, ZooKeeper::start(CALM), |server| {
    let relay = Relay::before(&server);
    let (one, other) = (client(&relay.url()), client(&relay.url()));
    let lock = one.get_lock("cut");
    for _ in 0..5 {
        let guard = lock.acquire().unwrap();
        let waiter = Waiter::start(turn(other.get_lock("cut")));
        relay.cut();
        guard.check().unwrap();
        throughout(ms(100), || guard.check().is_ok());
        guard.unlock().unwrap();
        waiter.returns_within(LONG);
    }
    comes_true_within(LONG, || server.figure("zk_ephemerals_count") == 0);
});

test_on!(a_node_is_removed_if_its_creation_was_not_answered, ZooKeeper::start(CALM), |server| {
    let relay = Relay::before(&server);
    let one = client_with_times(&relay.url(), ms(20_000), ms(1_500));
    let other = client(&server.url());
    let lock = one.get_lock("lost");
    lock.acquire().unwrap().unlock().unwrap();
    for _ in 0..3 {
        relay.swallow_answers();
        let error = lock.try_lock_for(ms(10)).unwrap_err();
        assert!(error.outcome_unknown(), "{error}");
        comes_true_within(LONG, || server.figure("zk_ephemerals_count") == 1);
        relay.cut();
        comes_true_within(LONG, || server.figure("zk_ephemerals_count") == 0);
        elsewhere(|| {
            assert!(other.get_lock("lost").try_lock().unwrap());
            other.get_lock("lost").unlock().unwrap();
        });
        lock.acquire().unwrap().unlock().unwrap();
    }
    assert_eq!(server.figure("zk_ephemerals_count"), 0);
});

// The client does not try again, so only the clean-up of this try can remove its node from the queue.
test_on!(a_failed_try_leaves_no_node, ZooKeeper::start(CALM), |server| {
    let relay = Relay::before(&server);
    let one = client_with_session(&relay.url(), ms(20_000));
    let other = client(&server.url());
    let lock = one.get_lock("tried");
    lock.acquire().unwrap().unlock().unwrap();
    relay.cut_behind_a_new_node();
    let error = lock.try_lock().unwrap_err();
    assert!(relay.has_cut() && error.outcome_unknown(), "{error}");
    comes_true_within(LONG / 3, || server.figure("zk_ephemerals_count") == 0);
    elsewhere(|| {
        assert!(other.get_lock("tried").try_lock().unwrap());
        other.get_lock("tried").unlock().unwrap();
    });
    assert!(lock.try_lock().unwrap());
    lock.unlock().unwrap();
});

test_on!(a_repeated_release_does_not_end_the_next_hold, ZooKeeper::start(CALM), |server| {
    let relay = Relay::before(&server);
    // With this long command time-out, requests after the cut are answered in time even on a busy machine.
    let one = client_with_times(&relay.url(), ms(20_000), ms(3_000));
    let lock = one.get_lock("given");
    for drops in [false, true] {
        let guard = lock.acquire().unwrap();
        relay.swallow_answers();
        let next = Waiter::on(client(&server.url()).get_lock("given"), move |lock| lock.acquire_owned());
        if drops {
            drop(guard);
            relay.cut();
        } else {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    comes_true_within(LONG, || next.is_over()); // shows that the release has arrived
                    relay.cut();
                });
                guard.unlock().unwrap();
            });
        }
        let next = next.returns_within(LONG).0.unwrap();
        throughout(ms(300), || next.check().is_ok());
        next.unlock().unwrap();
        let again = lock.acquire().unwrap();
        throughout(ms(300), || again.check().is_ok() && lock.is_held_by_current_thread().unwrap());
        again.unlock().unwrap();
    }
    comes_true_within(LONG, || server.figure("zk_ephemerals_count") == 0);
});

/// Holds the lock. Records each successful check as `held`, and the first answer after a stop as `back`.
fn check_on(url: &str, file: &Path) {
    let client = client_with_session(url, STALLED);
    let guard = client.get_lock("stalled").acquire().unwrap();
    let lost = guard.lost();
    let mut log = fs::OpenOptions::new().append(true).open(file).unwrap();
    let (mut last, mut stood_still) = (now(), false);
    while guard.check().is_ok() {
        writeln!(log, "held").unwrap();
        stood_still |= last.elapsed() > STALLED / 4;
        last = now();
        // After a pause the client may have given up its connection. This attempt succeeds only over a working
        // connection, so its success shows that the client is back.
        if stood_still && client.get_lock("beside").try_lock().unwrap_or(false) {
            writeln!(log, "back").unwrap();
            (last, stood_still) = (now(), false);
        }
        lost.recv_timeout(ms(5)).ok(); // waits for a moment or for the loss
    }
    writeln!(log, "lost").unwrap();
}

test_on!(a_release_wakes_only_the_next_waiter, ZooKeeper::start(CALM), |server| {
    let asked = Arc::new(AtomicU32::new(0));
    let holder = client(&server.url());
    let begun = now();
    let held = Holding::take(&holder.get_lock("herd"));
    let waiters: Vec<_> = (0..20)
        .map(|place| {
            let builder = LockClient::builder().url(server.url()).observer(attempts(&asked));
            let waiter = Waiter::start(turn(builder.build().unwrap().get_lock("herd")));
            comes_true_within(LONG, || server.figure("zk_watch_count") == place + 1);
            waiter
        })
        .collect();
    held.release();
    all_return(waiters, LONG);
    // Each waiter makes one attempt that finds the lock busy, and one that acquires. Long waits add polls.
    let polls = 20 * u32::try_from(begun.elapsed().as_secs() / 5).unwrap();
    let asked = asked.load(Ordering::SeqCst);
    assert!((20..=40 + polls).contains(&asked), "{asked} attempts");
});

test_on!(a_waiter_that_gives_up_leaves_no_node, ZooKeeper::start(CALM), |server| {
    let (one, other) = (client(&server.url()), client(&server.url()));
    let held = Holding::take(&one.get_lock("left"));
    let nodes = || server.figure("zk_ephemerals_count");
    for lock in [one.get_lock("left"), other.get_lock("left")] {
        assert!(!lock.try_lock().unwrap());
        assert_eq!(nodes(), 1);
        assert!(!lock.try_lock_for(ms(50)).unwrap());
        assert_eq!(nodes(), 1);
        let interrupt = Arc::new(Interrupt::new());
        let waiter = Waiter::on((lock.clone(), Arc::clone(&interrupt)), move |(lock, interrupt)| {
            lock.lock_interruptibly(&interrupt)
        });
        let behind = Waiter::on(other.get_lock("left"), move |lock| lock.try_lock_for(ms(500)).unwrap());
        interrupt.interrupt();
        assert!(waiter.returns_within(LONG).0.unwrap_err().is_interrupted());
        assert!(!behind.returns_within(LONG).0);
        assert_eq!(nodes(), 1);
    }
    held.release();
    assert_eq!(nodes(), 0);
    assert_eq!(server.figure("zk_watch_count"), 0);
});

test_on!(child_locks_are_not_counted_as_waiters_of_the_parent, shared(), |server| {
    let (one, other) = (client(&server.url()), client(&server.url()));
    for (number, child) in ["export-lock-0", "lock-", "a__READ__00000000001", "a__WRIT__1"].iter().enumerate()
    {
        let lock = format!("/shop{number}");
        let below = one.get_lock(format!("{lock}/{child}")).acquire_owned().unwrap();
        let waiter = Waiter::on(other.get_lock(&lock), move |lock| lock.acquire_owned());
        let guard = waiter.returns_within(LONG).0.unwrap();
        assert!(!one.get_lock(&lock).try_lock().unwrap());
        let seen = one.inspect(&lock).unwrap();
        assert_eq!((seen.holders.len(), seen.waiting), (1, 0), "{seen}");
        let listed: Vec<_> =
            one.list("/*").map(|lock| lock.unwrap()).filter(|one| one.name == lock).collect();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].holders.len(), 1, "{listed:?}");
        guard.unlock().unwrap();
        assert!(!other.get_lock(&lock).force_unlock().unwrap(), "the lock is free");
        let listed: Vec<_> =
            one.list("/*").map(|lock| lock.unwrap().name).filter(|name| *name == lock).collect();
        assert_eq!(listed, [""; 0], "a free lock is listed");
        let read_write = other.get_read_write_lock(&lock);
        assert!(read_write.write().try_lock().unwrap());
        read_write.write().unlock().unwrap();
        below.check().unwrap();
        below.unlock().unwrap();
    }
});

#[test]
fn an_unreachable_zookeeper_host_is_named_without_the_password() {
    let nobody = crate::support::server::Port::claim();
    let error = fails(
        LockClient::connect(format!("zk://me:secret@127.0.0.1:{}", nobody.number())),
        ErrorKind::Unreachable,
    );
    assert!(error.to_string().contains("127.0.0.1") && !format!("{error:?}").contains("secret"), "{error:?}");
    let Some(server) = shared() else { return };
    let both = format!("zk://127.0.0.1:{},127.0.0.1:{}", nobody.number(), server.port());
    assert!(client(&both).get_lock("one").try_lock().unwrap());
}

test_on!(a_host_that_sends_single_bytes_blocks_no_other_host, shared(), |server| {
    let dripping = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = dripping.local_addr().unwrap().port();
    let (seen, drips) = unbounded();
    let spawn = std::thread::Builder::spawn::<Box<dyn FnOnce() + Send>, ()>;
    let serve = move || {
        for client in dripping.incoming() {
            let (mut client, seen) = (client.unwrap(), seen.clone());
            let drip = move || {
                seen.send(()).unwrap();
                let mut bytes = [0, 0, 1, 0].into_iter().chain(std::iter::repeat(0));
                while client.write_all(&[bytes.next().unwrap()]).is_ok() {
                    leasehold::crossbeam_channel::after(ms(100)).recv().unwrap();
                }
            };
            spawn(std::thread::Builder::new(), Box::new(drip)).unwrap();
        }
    };
    spawn(std::thread::Builder::new(), Box::new(serve)).unwrap();
    let url = format!("zk://127.0.0.1:{port},127.0.0.1:{}", server.port());
    // A client begins with a random host, so the loop runs until one begins with the dripping host.
    while drips.is_empty() {
        assert!(!client(&url).get_lock("next").is_locked().unwrap());
    }
});

test_on!(a_directory_entry_ends_with_the_zookeeper_session, ZooKeeper::start(SHORT), |server| {
    let relay = Relay::before(&server);
    let one = LockClient::builder().url(relay.url()).lease(5 * SESSION).build().unwrap();
    let other = client(&server.url());
    let held = one.get_lock("a").acquire_owned().unwrap();
    let is_listed = || other.clients().any(|client_seen| client_seen.unwrap().id == one.id());
    comes_true_within(LONG, is_listed);
    let listed: Vec<_> = other.list("*").map(|lock| lock.unwrap().name).collect();
    assert_eq!(listed, ["a"]);
    relay.end_session(&server);
    comes_true_within(LONG, || server.figure("zk_ephemerals_count") == 0);
    assert!(held.unlock().unwrap_err().is_lost());
    let held = one.get_lock("a").acquire_owned().unwrap();
    comes_true_within(LONG, is_listed);
    held.unlock().unwrap();
    one.shutdown().unwrap();
    comes_true_within(LONG, || server.figure("zk_ephemerals_count") == 0);
});

// A reader behind a waiting writer also waits for the readers before that writer. So a cycle can lead through
// the writer, although the writer holds nothing.
test_on!(a_deadlock_of_readers_through_a_waiting_writer_is_reported, shared(), |server| {
    let [reading, writing, coming] = [(); 3].map(|()| {
        let options = || LockClient::builder().url(server.url()).lease(ms(20_000));
        connected(|| options().detect_deadlocks_after(ms(200)).build())
    });
    let (both_hold, writer_waits, interrupt) = (Barrier::new(3), Barrier::new(3), Interrupt::new());
    let halves = |client: &LockClient| client.get_read_write_lock("halves");
    let (writer_is_seen, is_told) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let _held = halves(&reading).read().acquire().unwrap();
            both_hold.wait();
            writer_waits.wait();
            drop(reading.get_lock("lock").acquire_with(&AcquireOptions::new().interrupt(&interrupt)));
        });
        scope.spawn(|| {
            let _held = coming.get_lock("lock").acquire().unwrap();
            both_hold.wait();
            writer_waits.wait();
            drop(halves(&coming).read().acquire_with(&AcquireOptions::new().interrupt(&interrupt)));
        });
        both_hold.wait();
        scope.spawn(|| {
            drop(halves(&writing).write().acquire_with(&AcquireOptions::new().interrupt(&interrupt)))
        });
        let writer_is_seen =
            eventually(LONG, || writing.inspect("halves").is_ok_and(|seen| seen.waiting == 1));
        writer_waits.wait();
        let is_told = eventually(LONG, || {
            writing.deadlocks().unwrap_or_default().iter().any(|ring| {
                let mut held: Vec<String> = ring.steps.iter().map(|step| step.holds.clone()).collect();
                held.sort();
                ring.is_certain && held == ["halves", "lock"]
            })
        });
        interrupt.interrupt();
        (writer_is_seen, is_told)
    });
    assert!(
        writer_is_seen && is_told,
        "the writer was seen: {writer_is_seen}, the deadlock was reported: {is_told}"
    );
});

test_on!(a_broken_connection_releases_cached_locks, ZooKeeper::start(CALM), |server| {
    let relay = Relay::before(&server);
    let (keeper, other) = (client(&relay.url()), client(&server.url()));
    let lock = cached(&keeper, &other, "deaf");
    let cut = now();
    relay.cut();
    let theirs = other.get_lock(lock.name());
    assert!(eventually(LONG, || !theirs.is_locked().unwrap()), "the lock is never released");
    // The holder needs a new connection for the release, so this may take up to a command time-out.
    assert!(cut.elapsed() <= COMMAND + slack_since(cut), "{:?}", cut.elapsed());
});
