//! Tests of what clients do when a connection, a server or the whole pool fails.

use std::io::Read;
use std::sync::LazyLock;

use super::prelude::*;
use crate::error::Error;
use crate::seam::capabilities::ConnectionWatch;

/// A call that ends within this time did not wait for the deadline [`soon`], 10 s. Much longer than the
/// command time-out of `Fake::options`, 1 s, as the machine may be busy.
const MOST: Duration = Duration::from_secs(5);

fn unknown<T: std::fmt::Debug>(answer: Answer<T>) -> Error {
    match answer {
        Err(Failure::Unknown(error)) => {
            assert!(error.outcome_unknown());
            error
        }
        other => panic!("not unknown but {other:?}"),
    }
}

/// Runs one attempt on a server that answers with `act`.
fn attempt_on(act: Act) -> (Answer<Attempt>, Fake) {
    let fake = Fake::start(move |_| act);
    let store = open(&fake.options());
    let before = (Clock::System.now(), fake.commands());
    let answer = store.attempt(&claim(Kind::Mutex, "lk", 30_000), 1, soon());
    assert!(Clock::System.now().since(before.0) < MOST);
    assert_eq!(fake.commands(), before.1 + 1, "sent once");
    store.close();
    (answer, fake)
}

#[test]
fn an_unanswered_request_is_not_repeated() {
    static LONG: LazyLock<String> = LazyLock::new(|| format!("${}\r\n{}\r\n", 3 << 20, "x".repeat(3 << 20)));
    assert_eq!(unknown(attempt_on(Act::Nothing).0).kind(), ErrorKind::TimedOut);
    assert_eq!(unknown(attempt_on(Act::HangUp).0).kind(), ErrorKind::Unreachable);
    let unreadable = [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "+OK\r\n",
        "*1\r\n$4\r\nwhat\r\n",
        "*2\r\n$4\r\nbusy\r\n$1\r\nx\r\n",
        &LONG,
    ];
    for reply in unreadable {
        assert_eq!(unknown(attempt_on(Act::Say(reply)).0).kind(), ErrorKind::Protocol);
    }
    for reply in
        ["$536870912\r\nx", "*1000000000\r\n", "*9223372036854775807\r\n", "$9223372036854775807\r\nx"]
    {
        unknown(attempt_on(Act::Say(reply)).0);
    }
}

#[test]
fn an_unanswered_inspection_is_known_to_change_nothing() {
    let fake = Fake::start(|_| Act::HangUp);
    let store = open(&fake.options());
    let me = claim(Kind::Mutex, "lk", 30_000);
    let error = store.inspect(Kind::Mutex, &me.name, me.owner, soon()).refused();
    assert!(!error.outcome_unknown(), "{error}");
}

#[test]
fn an_attempt_returns_by_its_deadline() {
    let fake = Fake::start(|_| Act::Nothing);
    let store = open(&ServerOptions { command_timeout: Duration::from_secs(30), ..fake.options() });
    let before = Clock::System.now();
    let deadline = Clock::System.after(Duration::from_millis(50));
    unknown(store.attempt(&claim(Kind::Mutex, "lk", 30_000), 1, deadline));
    assert!(Clock::System.now().since(before) < MOST);
    let commands = fake.commands();
    let late = store.attempt(&claim(Kind::Mutex, "lk", 30_000), 1, Clock::System.now()).refused();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    assert_eq!(fake.commands(), commands);
}

#[test]
fn answered_requests_of_a_broken_batch_have_known_outcomes() {
    let fake = Fake::start(|command| match command {
        _ if command.contains("lk1") => Act::Nothing,
        _ => Act::Say("*1\r\n$7\r\nrenewed\r\n"),
    });
    let store = open(&fake.options());
    let claims = ["lk0", "lk0", "lk1", "lk1"].map(|key| claim(Kind::Mutex, key, 30_000));
    let mut answers = store.renew(&claims, soon()).into_iter();
    assert!(answers.next().unwrap().done() && answers.next().unwrap().done());
    assert_eq!(answers.by_ref().map(unknown).filter(|e| e.kind() == ErrorKind::TimedOut).count(), 2);
    assert!(store.renew(&claims[..1], soon()).remove(0).done(), "the renewal did not use a new connection");
}

#[test]
fn an_absent_server_is_not_flooded_with_connects() {
    let (server, store) = served();
    let me = take(&store, claim(Kind::Mutex, "lk", 30_000));
    let server = server.restart(|| {
        let before = Clock::System.now();
        // The first attempt may only notice that its old connection has ended.
        drop(store.attempt(&me, 1, soon()));
        let error = store.attempt(&me, 1, soon()).refused();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("no server listens at"), "{error}");
        assert!(Clock::System.now().since(before) < MOST);
    });
    eventually(|| store.attempt(&me, 1, soon()).is_ok());
    store.release(&me, 0, soon()).freed();
    drop(server);

    let fake = Fake::start_raw({
        let first = std::sync::atomic::AtomicBool::new(true);
        move |command| {
            if command.starts_with("get leasehold_client:") {
                Act::Say("$-1\r\n")
            } else if command.starts_with("set leasehold_client:") {
                Act::Say("+OK\r\n")
            } else if command.starts_with("eval return 1") {
                Act::Say(":1\r\n")
            } else if first.swap(false, std::sync::atomic::Ordering::SeqCst) {
                crate::stores::redis::tests::fake::GREETING
            } else {
                Act::HangUp
            }
        }
    });
    let store = open(&fake.options());
    let before = Clock::System.now();
    let spent = || Clock::System.now().since(before);
    let mut attempts = 0;
    while attempts <= 100 || spent() < Duration::from_millis(100) {
        assert!(spent() < Duration::from_secs(30), "{attempts} attempts only");
        drop(store.attempt(&me, 1, soon()));
        attempts += 1;
    }
    let most = 10 * spent().as_millis().div_ceil(100);
    assert!(u128::from(fake.connects() as u64) < most, "{attempts} attempts, {} connects", fake.connects());
}

#[test]
fn a_connection_closed_while_idle_fails_no_request() {
    let (server, store) = served();
    let me = claim(Kind::Mutex, "lk", 30_000);
    for _ in 0..3 {
        store.attempt(&me, 1, soon()).granted();
        assert!(store.renew(std::slice::from_ref(&me), soon()).remove(0).done());
        assert_eq!(server.number(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]), 2);
        let_pass(Duration::from_millis(150));
        assert!(store.renew(std::slice::from_ref(&me), soon()).remove(0).done());
        store.release(&me, 0, soon()).freed();
    }
}

#[test]
fn scripts_that_the_server_forgot_are_sent_again() {
    let (server, store) = served();
    let claims: Vec<_> = (0..3).map(|n| claim(Kind::Mutex, &format!("lk{n}"), 30_000)).collect();
    let token = claim(Kind::Token, "token", 30_000);
    let flush = || server.run(&["SCRIPT", "FLUSH"]);
    store.attempt(&token, 1, soon()).granted();
    for claim in &claims {
        flush();
        store.attempt(claim, 1, soon()).granted();
    }
    flush();
    let mixed: Vec<_> = claims.iter().chain([&token]).cloned().collect();
    assert!(store.renew(&mixed, soon()).into_iter().all(Said::done));
    for claim in &claims {
        flush();
        store.release(claim, 0, soon()).freed();
    }
    flush();
    store.release(&token, 0, soon()).freed();
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn pipelined_requests_resend_scripts_that_the_server_forgot() {
    let (server, store) = served();
    let (me, you) = (claim(Kind::Mutex, "lk", 30_000), claim(Kind::Mutex, "lk", 30_000));
    for forgets in [false, true] {
        let flush = || {
            if forgets {
                drop(server.run(&["SCRIPT", "FLUSH"]))
            }
        };
        flush();
        store.begin_attempt(&me, 1, soon()).wait().granted();
        flush();
        let handed = store.hand_off(&me, &you, soon()).unwrap().wait().done();
        assert!(matches!(handed, Handoff::Granted { .. }));
        flush();
        assert!(matches!(store.begin_release(&you, 0, soon()).wait().done(), Release::Freed { .. }));
    }
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn unawaited_releases_send_scripts_that_the_server_lacks() {
    let (server, store) = served();
    let me = claim(Kind::Mutex, "lk", 30_000);
    let is_freed = || {
        let (tell, told) = bounded(1);
        store.release_later(&me, soon(), Sink::new(move |answer| tell.send(answer).unwrap()));
        eventually(|| !store.poll_completions());
        matches!(told.recv().unwrap(), Ok(Release::Freed { .. }))
    };
    for _ in 0..2 {
        store.attempt(&me, 1, soon()).granted();
        assert!(is_freed());
    }
    // A renewal gets NOSCRIPT on its own connection. The next release, on the shared connection, must then
    // send the script's body.
    store.attempt(&me, 1, soon()).granted();
    let renewed = || store.renew(std::slice::from_ref(&me), soon()).remove(0).done();
    assert!(renewed());
    server.run(&["SCRIPT", "FLUSH"]);
    assert!(renewed());
    assert!(is_freed());
    // A new connection must not rely on known scripts: it may lead to another server, or to a restarted one.
    store.attempt(&me, 1, soon()).granted();
    server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    server.run(&["SCRIPT", "FLUSH"]);
    eventually(|| store.hung_up() == Some(true));
    assert!(is_freed());
}

/// NOAUTH means that the server ran nothing. The client logs in over a new connection, and asks again.
#[test]
fn a_request_refused_for_an_expired_login_is_resent() {
    type Ask = fn(&RedisStore, &Claim) -> bool;
    let asks: [(&str, Ask); 4] = [
        ("*1\r\n$7\r\ngranted\r\n", |store, me| store.attempt(me, 1, soon()).is_ok()),
        ("*1\r\n$5\r\nfreed\r\n", |store, me| store.release(me, 0, soon()).is_ok()),
        ("*1\r\n$7\r\nrenewed\r\n", |store, me| {
            matches!(&store.renew(std::slice::from_ref(me), soon())[..], [Ok(true)])
        }),
        ("*1\r\n$7\r\ngranted\r\n", |store, me| {
            let next = claim(Kind::Mutex, "lk", 30_000);
            store.hand_off(me, &next, soon()).is_some_and(|pending| pending.wait().is_ok())
        }),
    ];
    for (answer, ask) in asks {
        let answers = Mutex::new(["-NOAUTH Authentication required.\r\n", answer].into_iter());
        let server = Fake::start(move |_| answers.lock().next().map_or(Act::HangUp, Act::Say));
        let store = open(&server.options());
        assert!(ask(&store, &claim(Kind::Mutex, "lk", 30_000)), "{answer}");
    }
}

#[test]
fn a_script_resent_after_a_disconnect_uses_another_connection() {
    const GRANTED: &str = "*1\r\n$7\r\ngranted\r\n";
    let answers = [
        Act::Say(GRANTED),
        Act::Last("-NOSCRIPT No matching script. Please use EVAL.\r\n"),
        Act::Say(GRANTED),
    ];
    let answers = Mutex::new(answers.into_iter());
    let server = Fake::start(move |_| answers.lock().next().unwrap_or(Act::HangUp));
    let store = open(&server.options());
    let me = take(&store, claim(Kind::Mutex, "lk", 30_000));
    let pending = store.begin_attempt(&me, 1, soon());
    eventually(|| !store.poll_completions());
    eventually(|| store.hung_up() == Some(true));
    pending.wait().granted();
}

#[test]
fn a_script_is_sent_as_eval_until_the_server_has_run_it() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let server = Fake::start({
        let sent = Arc::clone(&sent);
        move |command| {
            sent.lock().push(command.split(' ').next().unwrap().to_owned());
            Act::Say("-MOVED 1 127.0.0.1:1\r\n")
        }
    });
    let store = open(&server.options());
    for _ in 0..2 {
        drop(store.begin_attempt(&claim(Kind::Mutex, "lk", 30_000), 1, soon()).wait());
    }
    assert_eq!(*sent.lock(), ["eval", "eval"]);
}

#[test]
fn renewals_continue_while_calls_use_all_connections() {
    let fake = Fake::start(|_| Act::Say("*1\r\n$7\r\nrenewed\r\n"));
    let store = open(&ServerOptions { pool_size: 1, ..fake.options() });
    let connections = &store.server.connections;
    // A pool has at least two connections. The dialogs use both, so only the connection for renewals is left.
    let renewed = connections.dialog(soon(), |_first| {
        connections.dialog(soon(), |_second| {
            let another = connections.dialog(Clock::System.now(), |_third| Ok(()));
            let error = another.unwrap_err().into_error();
            assert!(error.to_string().contains("all connections of the pool are in use"), "{error}");
            Ok(store.renew(&[claim(Kind::Mutex, "lk", 30_000)], soon()).remove(0))
        })
    });
    assert!(matches!(renewed, Ok(Ok(true))), "{renewed:?}");
}

#[test]
fn a_large_pool_is_allocated_on_demand() {
    let server = Server::start(&[]);
    let store = open(&ServerOptions { pool_size: 10_000, ..server.options() });
    let places = store.server.connections.places();
    assert!(places <= 32, "{places} places were made");
    store.close();
    let too_many = ServerOptions { pool_size: 100_000, ..server.options() }.checked().err().unwrap();
    assert_eq!(too_many.kind(), ErrorKind::InvalidInput, "{too_many}");
}

#[test]
fn a_closed_store_sends_nothing() {
    let (server, store) = served();
    let me = take(&store, claim(Kind::Mutex, "lk", 30_000));
    store.close();
    assert_eq!(store.attempt(&me, 1, soon()).refused().kind(), ErrorKind::ShutDown);
    assert_eq!(store.release(&me, 0, soon()).refused().kind(), ErrorKind::ShutDown);
    assert_eq!(
        store.renew(std::slice::from_ref(&me), soon()).remove(0).refused().kind(),
        ErrorKind::ShutDown
    );
    assert_eq!(server.number(&["EXISTS", "lk"]), 1);
}

#[test]
fn connect_errors_name_their_cause_without_the_password() {
    let error = no_store(&ServerOptions {
        url: "redis://me:S3CR3T@127.0.0.1:1".to_owned(),
        ..ServerOptions::default()
    });
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(!format!("{error} {error:?}").contains("S3CR3T"));

    let server = Server::start(&["--requirepass", "S3CR3T"]);
    let with =
        |password: Option<&str>| ServerOptions { password: password.map(str::to_owned), ..server.options() };
    for password in [None, Some("N0T-S3CR3T")] {
        let error = no_store(&with(password));
        assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
        assert!(!format!("{error} {error:?}").contains("S3CR3T"));
    }
    open(&with(Some("S3CR3T"))).close();

    let server = Server::start(&[]);
    let options = server.options();
    let error = no_store(&ServerOptions { password: Some("S3CR3T".to_owned()), ..options.clone() });
    assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
    let error = no_store(&ServerOptions { database: Some(99), ..options.clone() });
    assert!(error.to_string().contains("DB index"), "{error}");
    server.run(&["ACL", "SETUSER", "lk", "reset", "on", "nopass", "+@all", "-eval", "~*", "&*"]);
    let error = no_store(&ServerOptions { username: Some("lk".to_owned()), ..options });
    assert_eq!(error.kind(), ErrorKind::NoPermission, "{error}");
    assert!(error.to_string().contains("run scripts"));
    server.run(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(no_store(&server.options()).kind(), ErrorKind::ReadOnly);
}

#[test]
fn a_server_at_its_client_limit_gives_a_busy_error() {
    for settings in [&["--maxclients", "1"][..], &["--maxclients", "1", "--requirepass", "S3CR3T"]] {
        let server = Server::start(settings);
        // The reply shows that this client is connected, so the next one exceeds the limit. The test retries,
        // because the harness's own connection may still be open.
        let only = || {
            let mut only = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
            only.write_all(b"PING\r\n").unwrap();
            let mut reply = [0; 64];
            let read = only.read(&mut reply).unwrap();
            (!reply[..read].starts_with(b"-ERR max")).then_some(only)
        };
        let mut is_in = None;
        eventually(|| {
            is_in = only();
            is_in.is_some()
        });
        let password = Some("S3CR3T".to_owned()).filter(|_| settings.len() > 2);
        eventually(|| {
            let error = no_store(&ServerOptions { password: password.clone(), ..server.options() });
            assert!(error.is_retryable(), "{error:?}");
            error.kind() == ErrorKind::Busy
        });
    }
}

#[test]
fn database_and_client_name_are_set_on_every_connection() {
    let server = Server::start(&[]);
    let client_name = Some("till-3".to_owned());
    let store = open(&ServerOptions { database: Some(5), client_name, ..server.options() });
    let me = take(&store, claim(Kind::Mutex, "lk", 30_000));
    assert!(store.renew(std::slice::from_ref(&me), soon()).remove(0).done());
    let waker = crate::sync::Waker::default();
    let listening = store.listen(&me, &waker).unwrap();
    eventually(|| listening.is_up());
    let clients = server.text(&["CLIENT", "LIST"]).unwrap();
    let ours = clients.lines().filter(|line| line.contains("name=till-3") && line.contains("db=5"));
    assert_eq!(ours.count(), 3, "{clients}");
    assert_eq!(server.number(&["EXISTS", "lk"]), 0);
}

#[test]
fn over_tcp_a_release_wakes_a_listener() {
    let (server, port) = Server::start_on_port("--port", &[]);
    let store = open(&ServerOptions { url: format!("redis://localhost:{port}/2"), ..server.options() });
    let me = claim(Kind::Mutex, "lk", 30_000);
    let waker = crate::sync::Waker::default();
    let listening = store.listen(&me, &waker).unwrap();
    eventually(|| listening.is_up() && waker.take());
    store.attempt(&me, 1, soon()).granted();
    store.release(&me, 0, soon()).freed();
    assert!(waker.sleep(Some(Duration::from_secs(5))));
}

/// If one address leads to a master and its replicas, each connection may reach another server.
#[test]
fn connecting_is_repeated_until_a_master_answers() {
    const REPLICA: Act = Act::Say(
        "*6\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nrole\r\n$7\r\nreplica\r\n",
    );
    let greeted = std::sync::atomic::AtomicUsize::new(0);
    let fake = Fake::start_raw(move |command| match command {
        "hello" if greeted.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % 3 < 2 => REPLICA,
        "hello" => GREETING,
        _ => Act::Say(":1\r\n"),
    });
    open(&fake.options()).close();
    assert_eq!(fake.connects(), 3);
    let fake = Fake::start_raw(|_| REPLICA);
    assert_eq!(no_store(&fake.options()).kind(), ErrorKind::ReadOnly);
    assert!(fake.connects() <= 8, "{}", fake.connects());
}

#[test]
fn without_hello_only_old_versions_are_reported_as_too_old() {
    const LACKING: [&str; 4] = [
        "-ERR unknown command 'HELLO', with args beginning with: \r\n",
        "-ERR handle request, command 'HELLO' is not allowed\r\n",
        "-ERR unsupported command 'hello'\r\n",
        "-invalid request\r\n",
    ];
    const VERSIONS: [(&str, ErrorKind); 3] = [
        ("$22\r\nredis_version:7.0.15\r\n\r\n", ErrorKind::Unsupported),
        ("$22\r\nredis_version:5.0.14\r\n\r\n", ErrorKind::TooOld),
        ("-ERR unknown command 'INFO'\r\n", ErrorKind::Unsupported),
    ];
    for lacking in LACKING {
        for (info, kind) in VERSIONS {
            let fake = Fake::start_raw(move |command| match command {
                "hello" => Act::Say(lacking),
                "info server" => Act::Say(info),
                _ => Act::Say("+OK\r\n"),
            });
            let client_name = Some("till-3".to_owned());
            let error = no_store(&ServerOptions { client_name, ..fake.options() });
            assert_eq!(error.kind(), kind, "{lacking}: {error}");
            assert_eq!(error.to_string().contains("proxy"), kind == ErrorKind::Unsupported, "{error}");
        }
    }
}
