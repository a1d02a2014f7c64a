//! Tests of how the client subscribes to channels, and wakes waiters when messages arrive.

use std::sync::atomic::AtomicUsize;

use super::prelude::*;
use crate::seam::hub::Hub;
use crate::seam::subscription::Subscription;
use crate::stores::redis::pubsub::{PLAIN, RedisPubSub, Subscriber};
use crate::stores::redis::tests::harness::wakeups;

const CHANNEL: &str = "redisson_lock__channel:{lk}";

fn listen(store: &RedisStore, waker: &Waker) -> Subscription {
    store.listen(&claim(Kind::Mutex, "lk", 30_000), waker).unwrap()
}

fn waker() -> (Waker, Waker) {
    let waker = Waker::default();
    (waker.clone(), waker)
}

fn subscribers(server: &Server) -> i64 {
    let (_, count): (String, i64) =
        redis::from_redis_value(server.run(&["PUBSUB", "NUMSUB", CHANNEL])).unwrap();
    count
}

/// Waits for the subscription, and for the wake-up that it causes.
fn stands(listening: &Subscription, woken: &Waker) {
    eventually(|| listening.is_up());
    eventually(|| woken.take());
}

/// A subscription that the server has confirmed.
fn listens(store: &RedisStore) -> (Subscription, Waker) {
    let (waker, woken) = waker();
    let listening = listen(store, &waker);
    stands(&listening, &woken);
    (listening, woken)
}

fn is_woken(woken: &Waker) -> bool {
    woken.sleep(Some(Duration::from_secs(5)))
}

fn with_linger(server: &Server, linger: Duration) -> Opened {
    open(&ServerOptions { unsubscribe_delay: linger, ..server.options() })
}

#[test]
fn a_release_and_a_forced_release_wake_a_listener() {
    let (_server, store) = served();
    assert_eq!(store.message_count(&claim(Kind::Mutex, "lk", 30_000)), None);
    let (listening, woken) = listens(&store);
    let me = claim(Kind::Mutex, "lk", 30_000);
    for force in [false, true] {
        let message_count = store.message_count(&claim(Kind::Mutex, "lk", 30_000)).unwrap();
        assert_eq!(message_count, listening.message_count());
        store.attempt(&me, 1, soon()).granted();
        if force {
            assert!(store.force(Kind::Mutex, &me.name, soon()).done());
        } else {
            store.release(&me, 0, soon()).freed();
        }
        assert!(is_woken(&woken));
        assert_eq!(listening.message_count(), message_count + 1);
    }
    drop(listening);
}

#[test]
fn all_listeners_share_one_subscription_on_one_connection() {
    let (server, store) = served();
    let wakers: Vec<_> = (0..20).map(|_| waker()).collect();
    let listening: Vec<_> = wakers.iter().map(|(waker, _)| listen(&store, waker)).collect();
    let (other, _woken) = waker();
    let _other = store.listen(&claim(Kind::Mutex, "other", 30_000), &other).unwrap();
    for (listening, (_, woken)) in listening.iter().zip(&wakers) {
        stands(listening, woken);
    }
    assert_eq!(subscribers(&server), 1);
    let clients = server.text(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap();
    assert_eq!(clients.lines().count(), 1, "{clients}");
    assert_eq!(server.number(&["PUBLISH", CHANNEL, "anything at all"]), 1);
    assert!(wakers.iter().all(|(_, woken)| is_woken(woken)));
    drop(listening);
}

#[test]
fn a_subscription_outlasts_its_last_listener_by_the_unsubscribe_delay() {
    let server = Server::start(&[]);
    let store = with_linger(&server, Duration::from_millis(100));
    let (waker, woken) = waker();
    let first = listen(&store, &waker);
    stands(&first, &woken);
    drop(first);
    let again = listen(&store, &waker);
    assert!(again.is_up());
    drop(again);
    eventually(|| subscribers(&server) == 0);
    assert_eq!(store.message_count(&claim(Kind::Mutex, "lk", 30_000)), None);
}

#[test]
fn without_an_unsubscribe_delay_a_subscription_ends_with_its_listeners() {
    let server = Server::start(&[]);
    let store = with_linger(&server, Duration::ZERO);
    let (waker, woken) = waker();
    let (first, second) = (listen(&store, &waker), listen(&store, &waker));
    stands(&first, &woken);
    drop(first);
    assert!(second.is_up());
    assert_eq!(subscribers(&server), 1);
    drop(second);
    eventually(|| subscribers(&server) == 0);
    // Each new listener gets a working subscription, although commands of earlier ones are still under way.
    for _ in 0..100 {
        let listening = listen(&store, &waker);
        eventually(|| listening.is_up());
    }
    eventually(|| subscribers(&server) == 0);
}

#[test]
fn a_new_subscription_repeats_no_earlier_message_count() {
    let server = Server::start(&[]);
    let store = with_linger(&server, Duration::ZERO);
    let (waker, _woken) = waker();
    let mut counts = std::collections::HashSet::new();
    for _ in 0..10 {
        let listening = listen(&store, &waker);
        eventually(|| listening.is_up());
        assert!(counts.insert(listening.message_count()));
    }
}

#[test]
fn a_reconnect_resubscribes_and_wakes_the_listener() {
    let server = Server::start(&[]);
    let (reporter, told) = wakeups();
    let store = reporting(&server.options(), reporter);
    let (listening, woken) = listens(&store);
    for _ in 0..5 {
        let before = listening.message_count();
        assert_eq!(server.number(&["CLIENT", "KILL", "TYPE", "pubsub"]), 1);
        // Waiters wake when the subscription breaks, and when it is restored, so the count rises by two.
        eventually(|| listening.message_count() >= before + 2 && listening.is_up());
        assert!(is_woken(&woken));
        assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(false));
        assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(true));
        eventually(|| subscribers(&server) == 1);
        while woken.take() {}
        assert_eq!(server.number(&["PUBLISH", CHANNEL, "0"]), 1);
        assert!(is_woken(&woken));
    }
}

#[test]
fn a_refused_subscription_stays_down_and_is_reported_once() {
    let server = Server::start(&[]);
    let (reporter, told) = wakeups();
    let store = reporting(&server.user("~* +@all"), reporter);
    let (waker, woken) = waker();
    for round in 0..3 {
        let listening = listen(&store, &waker);
        if round == 0 {
            assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(false));
        }
        assert!(!listening.is_up());
    }
    // Waiters of a refused channel wake, so that they can listen to another channel.
    eventually(|| woken.take());
    assert!(told.try_recv().is_err());
    server.run(&["ACL", "SETUSER", "lk", "allchannels"]);
    eventually(|| {
        let listening = listen(&store, &waker);
        let_pass(Duration::from_millis(5));
        listening.is_up()
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(true));
}

/// The user gets the right while a waiter listens. The client later subscribes again.
#[test]
fn a_refused_subscription_is_retried() {
    let server = Server::start(&[]);
    let store = open(&server.user("~* +@all"));
    let (waker, _woken) = waker();
    let listening = listen(&store, &waker);
    eventually(|| listening.is_refused());
    // `Server::user` would reset the user, which ends its connections. This command only adds rights.
    server.run(&["ACL", "SETUSER", "lk", "allchannels"]);
    let channels = || &store.server.subscriber.state;
    for entry in channels().lock().channels.values_mut() {
        let remembered = entry.refused.unwrap().since(Clock::System.now());
        assert!(remembered > Duration::from_secs(60), "each refused try may fill a line of the server's log");
    }
    channels().lock().refused_until(Clock::System.now());
    // A message from the server, here about a second channel, makes the reading thread subscribe again.
    let other = Waker::default();
    let _second = store.listen(&claim(Kind::Mutex, "other", 30_000), &other).unwrap();
    eventually(|| listening.is_up());
    assert!(!listening.is_refused());
}

/// A cluster's member without the channel's slot answers MOVED.
#[test]
fn a_redirected_subscription_does_not_count_as_refused() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let fake = Fake::start(move |command| match command {
        "ping" => Act::Say("+PONG\r\n"),
        _ if counted.fetch_add(1, Ordering::SeqCst) < 3 => Act::Say("-MOVED 3999 127.0.0.1:6381\r\n"),
        _ => Act::Say("*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"),
    });
    let (_subscriber, listening, woken) = impatient(&fake, Duration::from_secs(60));
    assert!(is_woken(&woken), "the waiters were not woken at once");
    eventually(|| {
        assert!(!listening.is_refused());
        listening.is_up()
    });
    assert_eq!((asked.load(Ordering::SeqCst), fake.connects()), (4, 1));
}

#[test]
fn the_loss_and_return_of_a_server_are_reported() {
    let server = Server::start(&[]);
    let (reporter, told) = wakeups();
    let store = reporting(&server.options(), reporter);
    let (listening, _woken) = listens(&store);
    let server = server.restart(|| {
        assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(false));
        eventually(|| !listening.is_up());
    });
    eventually(|| listening.is_up());
    assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(true));
    assert_eq!(subscribers(&server), 1);
}

#[test]
fn messages_of_other_programs_do_not_end_a_subscription() {
    let (server, store) = served();
    let (listening, _woken) = listens(&store);
    let big = "x".repeat(1_000_000);
    let before = listening.message_count();
    for payload in ["", "-1", "\r\n*3\r\n", big.as_str()] {
        assert_eq!(server.number(&["PUBLISH", CHANNEL, payload]), 1);
    }
    eventually(|| listening.message_count() == before + 4);
    assert!(listening.is_up());
}

/// Only another program sends a message this long. The client does not read it into memory.
#[test]
fn an_overlong_message_costs_a_reconnect() {
    let (server, store) = served();
    let (listening, woken) = listens(&store);
    let before = listening.message_count();
    assert_eq!(server.number(&["PUBLISH", CHANNEL, &"x".repeat(3_000_000)]), 1);
    eventually(|| listening.message_count() >= before + 2 && listening.is_up());
    assert!(is_woken(&woken));
}

#[test]
fn closing_twice_ends_the_subscription_connection() {
    let (server, store) = served();
    let (listening, woken) = listens(&store);
    store.close();
    store.close();
    assert!(!listening.is_up());
    assert!(is_woken(&woken));
    assert!(store.listen(&claim(Kind::Mutex, "lk", 30_000), &woken).is_none());
    drop(listening);
    // The remaining connection is the one that runs this command.
    eventually(|| server.text(&["CLIENT", "LIST"]).unwrap().lines().count() == 1);
}

const SHORT: Duration = Duration::from_millis(40);

struct Subscribes(Arc<Subscriber>);

impl Drop for Subscribes {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn subscriber(options: &ServerOptions, linger: Duration, silence: Duration) -> Subscribes {
    let address = Arc::new(RedisAddress::new(options).unwrap());
    let protocol = RedisPubSub { address, silence, modes: &[PLAIN] };
    Subscribes(Hub::new(protocol, Some(Arc::new(Reporter::new(None))), linger))
}

/// A listener, and its subscriber, which gives a connection up after `silence`.
fn impatient(fake: &Fake, silence: Duration) -> (Subscribes, Subscription, Waker) {
    let subscriber = subscriber(&fake.options(), Duration::from_secs(5), silence);
    let (waker, woken) = waker();
    let listening = subscriber.0.listen(CHANNEL, &waker).unwrap();
    (subscriber, listening, woken)
}

#[test]
fn a_silent_subscription_connection_is_abandoned() {
    let fake = Fake::start(|command| match command {
        "ping" => Act::Nothing,
        _ => Act::Say("*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"),
    });
    let _subscriber = impatient(&fake, SHORT);
    eventually(|| fake.connects() >= 3);
}

#[test]
fn an_endless_reply_counts_as_silence() {
    let endless: &str = Box::leak(format!("+{}", "x".repeat(100_000)).into_boxed_str());
    let fake = Fake::start(move |_| Act::Drip(endless));
    let _subscriber = impatient(&fake, SHORT);
    eventually(|| fake.connects() >= 3);
}

#[test]
fn a_reply_beyond_the_limit_is_not_buffered() {
    /// Bytes: enough for a reply, and for the socket buffers of both ends.
    const MOST: usize = 3 * 1024 * 1024;
    for begins in ["+", "$9000000000000\r\n", "*9000000000000\r\n:", "*3\r\n$7\r\nmessage\r\n$2000000\r\n"] {
        let fake = Fake::start(move |_| Act::Flood(begins));
        let _subscriber = impatient(&fake, Duration::from_secs(5));
        eventually(|| fake.connects() >= 2);
        assert!(fake.flooded() <= MOST * fake.connects(), "{begins:?}: {} bytes", fake.flooded());
    }
}

#[test]
fn a_refused_ping_also_counts_as_a_sign_of_life() {
    let fake = Fake::start(|command| match command {
        "ping" => Act::Say("-NOPERM this user has no permissions to run the 'ping' command\r\n"),
        _ => Act::Say("*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"),
    });
    let (_subscriber, listening, _woken) = impatient(&fake, Duration::from_secs(1));
    // The client sends HELLO, a subscription, and three PINGs that are refused.
    eventually(|| fake.commands() >= 5);
    assert!(listening.is_up());
    assert_eq!(fake.connects(), 1);
}

#[test]
fn a_server_that_always_hangs_up_is_not_flooded() {
    let fake = Fake::start(|_| Act::HangUp);
    let _subscriber = impatient(&fake, SHORT);
    let begun = Clock::System.now();
    let spent = || Clock::System.now().since(begun);
    eventually(|| fake.connects() >= 2 && spent() >= Duration::from_millis(400));
    // The pauses between connects are at least 20 ms, 40 ms, 80 ms, …: n connects take 20 · (2ⁿ⁻¹ - 1) ms or
    // longer.
    let connects = fake.connects();
    let most = 2 + (spent().as_millis() / 20 + 1).ilog2();
    assert!(connects as u32 <= most, "{connects} in {:?}", spent());
}

#[test]
fn closing_does_not_wait_for_a_connect_that_hangs() {
    let fake = Fake::start_raw(|_| Act::Nothing);
    let (subscriber, ..) = &impatient(&fake, SHORT);
    eventually(|| fake.commands() == 1);
    let before = Clock::System.now();
    subscriber.0.close();
    // The connect would time out only after three seconds.
    assert!(Clock::System.now().since(before) < Duration::from_millis(2500));
}

/// A read with a time-out fails with EINTR when the process is stopped and continued, and sometimes when a
/// child ends. Neither may cause a reconnect.
#[test]
fn a_subscription_survives_a_short_stop_of_its_process() {
    const ALONE: &str = "LEASEHOLD_TEST_STOPS_ITSELF";
    if std::env::var_os(ALONE).is_none() {
        // The test stops its own process, so it runs in a child process: other tests measure time.
        let this = std::thread::current();
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let ended =
            again.args([this.name().unwrap(), "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (_server, store) = served();
    let (listening, _woken) = listens(&store);
    let seen = listening.message_count();
    let stop = format!("kill -STOP {0}; sleep 0.02; kill -CONT {0}", std::process::id());
    for _ in 0..3 {
        assert!(std::process::Command::new("sh").args(["-c", &stop]).status().unwrap().success());
    }
    let me = take(&store, claim(Kind::Mutex, "lk", 30_000));
    assert!(store.force(Kind::Mutex, &me.name, soon()).done());
    eventually(|| listening.message_count() > seen);
    assert_eq!(listening.message_count(), seen + 1, "a reconnect would have counted too");
    drop(listening);
}

/// If a client handed the lock only to its own threads, the other client would starve.
#[test]
fn two_busy_clients_share_a_lock_fairly() {
    let server = Server::start(&[]);
    let clients = [0, 1].map(|_| LockClient::connect(&server.options().url).unwrap());
    let (cycles, is_over) = ([0, 1].map(AtomicUsize::new), AtomicBool::new(false));
    let ends = Clock::System.after(Duration::from_secs(90));
    std::thread::scope(|scope| {
        for (client, cycles) in clients.iter().zip(&cycles) {
            for _ in 0..4 {
                let (lock, is_over) = (client.get_lock("shared"), &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) && Clock::System.now() < ends {
                        drop(lock.acquire().unwrap());
                        cycles.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        }
        // 2,000 cycles take many time slices of each client, which last a few milliseconds.
        eventually(|| cycles.iter().all(|cycles| cycles.load(Ordering::SeqCst) >= 2_000));
        is_over.store(true, Ordering::SeqCst);
    });
    let mut cycles = cycles.map(AtomicUsize::into_inner);
    cycles.sort_unstable();
    assert!(cycles[0] * 10 >= cycles[1], "{cycles:?}");
}

#[test]
fn many_megabytes_of_subscriptions_all_succeed() {
    let server = Server::start(&[]);
    all_of_many_stand(&server.options());
}

/// Checks that megabytes of subscriptions succeed. The time-outs are so long that the check fails if the
/// reading thread writes only after a time-out.
pub(super) fn all_of_many_stand(options: &ServerOptions) {
    let late = Duration::from_secs(60);
    let Subscribes(subscriber) = &subscriber(options, late, late);
    let (waker, _woken) = waker();
    let channel = |number| format!("{number}:{}", "x".repeat(60_000));
    let listening: Vec<_> =
        (0..200).map(|number| subscriber.listen(&channel(number), &waker).unwrap()).collect();
    eventually(|| listening.iter().all(Subscription::is_up));
}

/// A listener for recalls stays for hours. If the user gets the missing right meanwhile, the next connection
/// must subscribe.
#[test]
fn a_refused_channel_is_subscribed_to_on_the_next_connection() {
    let server = Server::start(&[]);
    let store = open(&server.user("~* +@all"));
    let (waker, _woken) = waker();
    let listening = listen(&store, &waker);
    eventually(|| listening.is_refused());
    server.run(&["ACL", "SETUSER", "lk", "allchannels"]);
    server.run(&["CLIENT", "KILL", "USER", "lk"]);
    eventually(|| listening.is_up());
    assert!(!listening.is_refused());
}

#[test]
fn a_new_listener_restores_the_unsubscribe_delay_of_a_channel() {
    let server = Server::start(&[]);
    let linger = Duration::from_secs(3_600);
    let Subscribes(subscriber) = &subscriber(&server.options(), linger, Duration::from_secs(60));
    let (waker, _woken) = waker();
    let listen = || subscriber.listen(CHANNEL, &waker).unwrap();
    let first = listen();
    eventually(|| first.is_up());
    subscriber.end_soon(CHANNEL);
    drop((listen(), first));
    assert!(!subscriber.is_idle(), "a new listener came");
    subscriber.end_soon(CHANNEL);
    assert!(subscriber.is_idle(), "no listener has come since");
}
