use std::io::{Read, Write};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use r2d2::Pool;

use super::*;

#[cfg(unix)]
type Peer = std::os::unix::net::UnixStream;
#[cfg(windows)]
type Peer = std::net::TcpStream;

#[cfg(unix)]
fn pair() -> (Wire, Peer) {
    let (ours, theirs) = Peer::pair().unwrap();
    (Wire::Unix(ours), theirs)
}

#[cfg(windows)]
fn pair() -> (Wire, Peer) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (Wire::Tcp(crate::system::socket(ours).unwrap()), theirs)
}

const LONG: Duration = Duration::from_secs(10);

type Connected = (PooledConnection<ConnectionSlots>, Connection);

fn pool() -> Pool<ConnectionSlots> {
    Pool::builder().max_size(4).test_on_check_out(false).build(ConnectionSlots).unwrap()
}

fn connection(pool: &Pool<ConnectionSlots>) -> (Connected, Peer) {
    let (ours, theirs) = pair();
    ((pool.get().unwrap(), Connection::new(ours)), theirs)
}

fn soon() -> Moment {
    Clock::System.after(LONG)
}

fn nowhere(_by: Moment) -> Result<Connected> {
    panic!("no connect was expected now")
}

fn question(to: &mut Vec<u8>, _is_known: bool) {
    to.extend(b"ask");
}

fn send(
    shared: &SharedConnection,
    connection: Connected,
    deadline: Moment,
    take: Option<ReplySink>,
) -> Arc<Reply> {
    let sent = shared.send(None, question, deadline, take, |_by| Ok(connection));
    sent.map_err(|(failure, _)| failure).unwrap()
}

fn ask(shared: &SharedConnection, take: Option<ReplySink>) -> Arc<Reply> {
    shared.send(None, question, soon(), take, nowhere).map_err(|(failure, _)| failure).unwrap()
}

fn first(shared: &SharedConnection, pool: &Pool<ConnectionSlots>) -> (Arc<Reply>, Peer) {
    let (connection, server) = connection(pool);
    (send(shared, connection, soon(), None), server)
}

/// A shared connection over which one request was sent.
fn asked() -> (SharedConnection, Pool<ConnectionSlots>, Arc<Reply>, Peer) {
    let (shared, pool) = (SharedConnection::new(), pool());
    let (one, server) = first(&shared, &pool);
    (shared, pool, one, server)
}

/// Lets the server answer with this number, and checks that the request gets the answer.
fn is_answered(shared: &SharedConnection, reply: &Reply, server: &mut Peer, number: i64) {
    server.write_all(format!(":{number}\r\n").as_bytes()).unwrap();
    assert_eq!(shared.wait(reply).unwrap(), Value::Int(number));
}

/// Sends a request. Its `connect` reports that it has begun, waits for a signal, and fails.
fn connecting(shared: &SharedConnection, begun: &Sender<()>, go_on: &crossbeam_channel::Receiver<()>) {
    let connect = |_by| {
        begun.send(()).unwrap();
        go_on.recv().unwrap();
        Err(shut_down())
    };
    assert!(shared.send(None, question, soon(), None, connect).is_err());
}

#[test]
fn replies_reach_their_callers_whichever_thread_reads() {
    let (shared, _pool, one, mut server) = asked();
    let (taken, take) = bounded(1);
    ask(&shared, Some(Box::new(move |outcome| taken.send(outcome.unwrap()).unwrap())));
    let three = ask(&shared, None);
    server.write_all(b":1\r\n:2\r\n:3\r\n").unwrap();
    assert_eq!(shared.wait(&three).unwrap(), Value::Int(3));
    assert_eq!(take.try_recv().unwrap(), Value::Int(2));
    assert_eq!(shared.wait(&one).unwrap(), Value::Int(1));
    assert!(!shared.poll_completions());
}

#[test]
fn an_unrequested_message_is_not_taken_as_a_reply() {
    let (shared, pool, one, mut server) = asked();
    server.write_all(b":1\r\n:2\r\n").unwrap();
    assert_eq!(shared.wait(&one).unwrap(), Value::Int(1));
    let (next, mut server) = connection(&pool);
    let three = send(&shared, next, soon(), None);
    drop(server.write_all(b":3\r\n"));
    assert_eq!(shared.wait(&three).unwrap(), Value::Int(3));
}

#[test]
fn a_hang_up_of_the_server_is_reported_once() {
    let (shared, pool) = (SharedConnection::new(), pool());
    assert!(!shared.hung_up(), "there is no connection yet");
    let (reply, mut server) = first(&shared, &pool);
    assert!(!shared.hung_up(), "a request waits for its reply");
    server.write_all(b":1\r\n").unwrap();
    shared.wait(&reply).unwrap();
    assert!(!shared.hung_up());
    drop(server);
    assert!(shared.hung_up());
    assert!(!shared.hung_up());
    let (reply, server) = first(&shared, &pool);
    drop(server);
    shared.wait(&reply).unwrap_err();
    assert!(shared.hung_up());
    assert!(!shared.hung_up());
    let (connection, _server) = connection(&pool);
    let deadline = Clock::System.after(Duration::from_millis(300));
    let reply = send(&shared, connection, deadline, None);
    shared.wait(&reply).unwrap_err();
    assert!(!shared.hung_up());
}

#[test]
fn a_reply_is_not_matched_to_an_unsent_request() {
    let (shared, _pool, one, mut server) = asked();
    {
        let mut out = shared.out.lock();
        out.buffer.extend_from_slice(b"ask");
        out.awaited.push_back(Reply::new(soon(), None, None));
        out.unsent = 1;
        out.is_writing = true; // as if a thread were writing
    }
    server.write_all(b":1\r\n").unwrap();
    let mut reading = shared.reading.lock();
    assert_eq!(shared.read_until(&mut reading, &one).unwrap().unwrap(), Value::Int(1));
    server.write_all(b":2\r\n").unwrap();
    let two = shared.out.lock().awaited.front().cloned().unwrap();
    assert!(!shared.read_some(&mut reading, soon(), false));
    // The second request was never written, so its outcome is known: refused.
    assert!(matches!(two.state.lock().outcome, Some(Err(Failure::Refused(_)))));
}

#[test]
fn opening_a_connection_delays_neither_poll_completions_nor_close() {
    let (shared, _pool, reply, server) = asked();
    drop(server);
    shared.wait(&reply).unwrap_err();
    let ((begun, has_begun), (go_on, may_go_on), (done, is_done)) = (bounded(1), bounded(1), bounded(2));
    std::thread::scope(|scope| {
        let connecting = || connecting(&shared, &begun, &may_go_on);
        scope.spawn(connecting);
        has_begun.recv().unwrap();
        let others = || {
            shared.poll_completions();
            shared.close(soon());
            done.send(()).unwrap();
        };
        scope.spawn(others);
        let ended = is_done.recv_timeout(LONG);
        go_on.send(()).unwrap();
        ended.expect("the call waited for the connect");
    });
}

#[test]
fn all_waiting_callers_fail_before_a_new_connection_opens() {
    let (shared, pool, one, server) = asked();
    let ((told, is_told), (go_on, may_go_on)) = (bounded(1), bounded::<()>(1));
    ask(
        &shared,
        Some(Box::new(move |outcome| {
            outcome.unwrap_err();
            told.send(()).unwrap();
            may_go_on.recv().unwrap();
        })),
    );
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| shared.wait(&one));
        drop(server);
        is_told.recv().unwrap();
        // The second request's closure still runs, so its owner number is not yet retired. A request sent now
        // might use that number.
        let (next, _server) = connection(&pool);
        let deadline = Clock::System.after(Duration::from_millis(50));
        let early = shared.send(None, question, deadline, None, |_by| Ok(next));
        go_on.send(()).unwrap();
        assert!(
            matches!(early, Err((Failure::Refused(_), _))),
            "a request was sent before all callers knew of the break"
        );
        reader.join().unwrap().unwrap_err();
    });
    let (two, mut server) = first(&shared, &pool);
    is_answered(&shared, &two, &mut server, 2);
}

#[test]
fn a_late_timeout_does_not_close_the_next_connection() {
    let (shared, pool, one, server) = asked();
    drop(server);
    shared.wait(&one).unwrap_err();
    let (two, mut server) = first(&shared, &pool);
    shared.give_up(&one);
    is_answered(&shared, &two, &mut server, 2);
}

#[test]
fn a_blocked_write_delays_no_new_connection() {
    let (shared, pool, one, old) = asked();
    let much = vec![b'x'; 8 << 20];
    std::thread::scope(|scope| {
        // The request is larger than the socket's buffers, and the server does not read it: the write blocks.
        let (connected, has_connected) = bounded::<()>(1);
        let (shared, much) = (&shared, &much);
        let stuck = move || {
            let reply = shared
                .send(None, |to, _| to.extend(much), soon(), None, nowhere)
                .map_err(|(failure, _)| failure)
                .unwrap();
            has_connected.recv().unwrap();
            shared.wait(&reply)
        };
        let stuck = scope.spawn(stuck);
        let late = Clock::System.after(Duration::from_secs(30));
        while !shared.out.lock().is_writing {
            assert!(Clock::System.now() < late, "the thread does not write");
            std::thread::yield_now();
        }
        shared.give_up(&one);
        let (two, mut server) = first(shared, &pool);
        let mut got = [0; 3];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ask");
        is_answered(shared, &two, &mut server, 2);
        connected.send(()).unwrap();
        stuck.join().unwrap().unwrap_err();
        // The failed write must not end the next connection.
        let three = ask(shared, None);
        is_answered(shared, &three, &mut server, 3);
    });
    drop(old);
}

#[test]
fn a_sender_writes_when_too_many_requests_are_unsent() {
    let (shared, _pool, one, mut server) = asked();
    shared.out.lock().has_reader = true;
    let mut replies = vec![one, ask(&shared, None)];
    for left in 1..=LEFT_TO_READER {
        replies.push(ask(&shared, None));
        assert_eq!(shared.out.lock().unsent, left);
    }
    replies.push(ask(&shared, None));
    assert_eq!(shared.out.lock().unsent, 0);
    server.write_all(b":1\r\n".repeat(replies.len()).as_slice()).unwrap();
    for reply in replies {
        assert_eq!(shared.wait(&reply).unwrap(), Value::Int(1));
    }
}

#[test]
fn queued_requests_are_written_before_replies_are_passed_on() {
    let (shared, pool) = (Arc::new(SharedConnection::new()), pool());
    let (_one, mut server) = first(&shared, &pool);
    let (told, is_told) = bounded(1);
    let shared_too = Arc::clone(&shared);
    let take = Box::new(move |_| {
        let out = shared_too.out.lock();
        told.send((out.awaited.len(), out.unsent)).unwrap();
    });
    ask(&shared, Some(take));
    shared.out.lock().has_reader = true;
    ask(&shared, None);
    assert_eq!(shared.out.lock().unsent, 1);
    // Both replies arrive in one read, so the server has nothing more to do: `read_some` must write the third
    // request before it calls `take`.
    server.write_all(b":1\r\n:2\r\n").unwrap();
    assert!(shared.read_some(&mut shared.reading.lock(), soon(), false));
    assert_eq!(is_told.try_recv().unwrap(), (1, 0));
}

/// Sends a request with a near deadline, lets the server answer in time, and waits until the deadline has
/// passed.
fn answered_in_time(
    shared: &SharedConnection,
    pool: &Pool<ConnectionSlots>,
    take: Option<ReplySink>,
) -> (Arc<Reply>, Peer) {
    let (connection, mut server) = connection(pool);
    let deadline = Clock::System.after(Duration::from_millis(300));
    let reply = send(shared, connection, deadline, take);
    server.write_all(b":1\r\n").unwrap();
    while Clock::System.now() < deadline {
        std::thread::yield_now();
    }
    (reply, server)
}

#[test]
fn a_timely_reply_is_returned_even_if_read_late() {
    let (shared, pool) = (SharedConnection::new(), pool());
    let (reply, _server) = answered_in_time(&shared, &pool, None);
    assert_eq!(shared.wait(&reply).unwrap(), Value::Int(1));
}

#[test]
fn a_timely_unawaited_reply_is_delivered_even_if_read_late() {
    let (shared, pool) = (SharedConnection::new(), pool());
    let (told, is_told) = bounded(1);
    let take = Box::new(move |outcome: Answer<Value>| told.send(outcome).unwrap());
    let (_reply, _server) = answered_in_time(&shared, &pool, Some(take));
    assert!(!shared.poll_completions());
    assert_eq!(is_told.try_recv().unwrap().unwrap(), Value::Int(1));
}

#[test]
fn unsent_requests_are_written_when_the_reading_thread_leaves() {
    let (shared, _pool, one, mut server) = asked();
    shared.out.lock().has_reader = true;
    let replies = [one, ask(&shared, None), ask(&shared, None)];
    assert_eq!(shared.out.lock().unsent, 1);
    shared.pass_on(Clock::System.now());
    let mut got = [0; 9];
    server.read_exact(&mut got).unwrap();
    server.write_all(b":1\r\n:1\r\n:1\r\n").unwrap();
    for reply in replies {
        assert_eq!(shared.wait(&reply).unwrap(), Value::Int(1));
    }
}

/// This test needs Unix sockets: over TCP the first write after the server's close succeeds.
#[cfg(unix)]
#[test]
fn only_a_failed_write_of_a_sole_request_has_a_known_outcome() {
    let (shared, pool, one, server) = asked();
    drop(server);
    let two = ask(&shared, None);
    for sent in [one, two] {
        assert!(matches!(shared.wait(&sent), Err(Failure::Unknown(_))));
    }
    let (next, server) = connection(&pool);
    drop(server);
    let alone = send(&shared, next, soon(), None);
    assert!(matches!(shared.wait(&alone), Err(Failure::Refused(_))));
}

#[test]
fn without_a_reading_thread_callers_write_their_own_requests() {
    let (shared, _pool, one, mut server) = asked();
    is_answered(&shared, &one, &mut server, 1);
    for _ in 0..ENOUGH_SENT + 2 {
        ask(&shared, None);
        assert_eq!(shared.out.lock().unsent, 0, "no thread would write the request");
    }
}

#[test]
fn a_new_connection_sets_its_own_read_timeout() {
    let (shared, pool) = (SharedConnection::new(), pool());
    let limit = Duration::from_secs(1);
    let within = |limit, connection| {
        let deadline = Clock::System.after(limit);
        send(&shared, connection, deadline, None)
    };
    let (connection_of_one, mut server) = connection(&pool);
    let reply = within(limit + limit / 32, connection_of_one);
    server.write_all(b":1\r\n").unwrap();
    shared.wait(&reply).unwrap();
    drop(server);
    assert!(shared.hung_up());
    let (next, server) = connection(&pool);
    let reply = within(limit, next);
    let (gives_up, gave_up) = bounded(1);
    std::thread::scope(|scope| {
        scope.spawn(|| gives_up.send(shared.wait(&reply).is_err()).unwrap());
        let outcome = gave_up.recv_timeout(LONG);
        drop(server); // ends the read, if it still blocks
        assert_eq!(outcome, Ok(true));
    });
}
