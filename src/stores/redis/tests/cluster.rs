//! Tests of a cluster whose members give scripted answers.

use std::net::TcpListener;
use std::net::TcpStream;

use parking_lot::Mutex;

use super::prelude::*;
use crate::config::ClusterPubSub;
use crate::hosts::Hosts;
use crate::ident::ClientId;
use crate::seam::directory::{Directory, Entry};
use crate::stores::redis::cluster::ClusterStore;
use crate::stores::redis::cluster::slots::slot;

const GREETING: &str = "*8\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n$7\r\n\
                        cluster\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";

/// A member that answers each script with the result of `says`, or not at all for `None`.
struct FakeMember {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    ended: AtomicBool,
    /// This member's answer to CLUSTER SLOTS: of each range, the first slot, the last, and its member's port.
    slots: Mutex<Vec<(u16, u16, u16)>>,
    /// Each `ASKING`, and the fourth word of each command that `says` answers: a script's first key.
    asked: Mutex<Vec<String>>,
    has_shards: Mutex<bool>,
}

impl FakeMember {
    fn start(says: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> FakeMember {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Shared {
            ended: AtomicBool::new(false),
            slots: Mutex::default(),
            asked: Mutex::default(),
            has_shards: Mutex::new(true),
        };
        let (shared, says) = (Arc::new(shared), Arc::new(says));
        *shared.slots.lock() = vec![(0, 16_383, port)];
        let serving = Arc::clone(&shared);
        let serve = move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if serving.ended.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, says) = (Arc::clone(&serving), Arc::clone(&says));
                std::thread::Builder::new().spawn(move || talk(socket, &shared, &*says)).unwrap();
            }
        };
        std::thread::Builder::new().spawn(serve).unwrap();
        FakeMember { port, shared }
    }

    fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().clone()
    }

    fn store(&self) -> Arc<ClusterStore> {
        self.store_with(Hosts::default())
    }

    fn store_with(&self, hosts: Hosts) -> Arc<ClusterStore> {
        let url = format!("redis-cluster://:S3CR3T@127.0.0.1:{}", self.port);
        let (command_timeout, hosts) = (Duration::from_secs(3), Arc::new(hosts));
        let replicas = ReplicaRule::Nothing;
        let options = ServerOptions { url, command_timeout, hosts, replicas, ..ServerOptions::default() };
        ClusterStore::connect(&options, &Arc::new(Reporter::new(None))).unwrap()
    }
}

impl Drop for FakeMember {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn talk(mut socket: TcpStream, shared: &Shared, says: &(impl Fn(&str) -> Option<String> + ?Sized)) {
    let (mut reader, mut parser) = (socket.try_clone().unwrap(), Parser::new());
    while let Ok(Value::Array(words)) = parser.parse_value(&mut reader) {
        let word = |index: usize| match words.get(index) {
            Some(Value::BulkString(word)) => String::from_utf8_lossy(word).into_owned(),
            _ => String::new(),
        };
        let answer = match (word(0).as_str(), word(1).as_str()) {
            ("AUTH", _) => Some("+OK\r\n".to_owned()),
            ("HELLO", _) => Some(GREETING.to_owned()),
            ("PUBSUB", _) if *shared.has_shards.lock() => Some("*0\r\n".to_owned()),
            ("PUBSUB", _) => {
                Some("-ERR Unknown subcommand or wrong number of arguments for 'SHARDNUMSUB'\r\n".to_owned())
            }
            ("EVAL", "return 1") => Some(":1\r\n".to_owned()),
            ("GET", "leasehold_client:format") => Some("$-1\r\n".to_owned()),
            ("SET", "leasehold_client:format") => Some("+OK\r\n".to_owned()),
            ("CLUSTER", _) => {
                let slots = shared.slots.lock();
                let mut answer = format!("*{}\r\n", slots.len());
                for (first, last, port) in slots.iter() {
                    answer += &format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
                }
                Some(answer)
            }
            ("ASKING", _) => {
                shared.asked.lock().push("ASKING".to_owned());
                Some("+OK\r\n".to_owned())
            }
            _ => {
                shared.asked.lock().push(word(3));
                says(&word(3))
            }
        };
        if answer.is_some_and(|answer| socket.write_all(answer.as_bytes()).is_err()) {
            return;
        }
    }
}

fn granted() -> Option<String> {
    Some("*1\r\n$7\r\ngranted\r\n".to_owned())
}

fn freed() -> Option<String> {
    Some("*2\r\n$5\r\nfreed\r\n:0\r\n".to_owned())
}

#[test]
fn a_redirected_request_is_sent_to_the_named_member() {
    let there = FakeMember::start(|_| granted());
    let port = there.port;
    for redirect in ["MOVED", "ASK"] {
        there.shared.asked.lock().clear();
        let here = FakeMember::start(move |_| Some(format!("-{redirect} 5 127.0.0.1:{port}\r\n")));
        let store = here.store();
        store.attempt(&claim(Kind::Mutex, "lk", 30_000), 1, soon()).granted();
        assert_eq!(here.asked(), ["lk"]);
        let expected: &[&str] = if redirect == "ASK" { &["ASKING", "lk"] } else { &["lk"] };
        assert_eq!(there.asked(), expected);
        there.shared.asked.lock().clear();
        let renewed = store.renew(&[claim(Kind::Mutex, "lk", 30_000)], soon()).remove(0);
        assert!(matches!(renewed, Err(Failure::Unknown(_))), "`granted` is no answer to that: {renewed:?}");
        assert_eq!(there.asked(), expected);
    }
}

#[test]
fn a_directory_entry_for_a_moving_slot_is_sent_after_asking() {
    let there = FakeMember::start(|_| Some("+OK\r\n".to_owned()));
    let port = there.port;
    let here = FakeMember::start(move |_| Some(format!("-ASK 5 127.0.0.1:{port}\r\n")));
    let store = here.store();
    let entry = Entry {
        client: ClientId::random(),
        text: "entry",
        lease: Duration::from_secs(30),
        is_awaited: false,
    };
    // The first write's ASKING may be that of a request for the format number, so the test makes two writes.
    let writes = || there.asked().iter().filter(|word| *word != "ASKING").count();
    eventually(|| {
        store.poll_completions();
        store.write(entry, soon()).unwrap();
        writes() > 1
    });
    let asked = there.asked();
    let written = asked.iter().rposition(|word| word != "ASKING").unwrap();
    assert_eq!(asked[written - 1], "ASKING", "{asked:?}");
}

#[test]
fn circular_redirections_end_with_a_retryable_error() {
    let port = Arc::new(Mutex::new(0_u16));
    let named = Arc::clone(&port);
    let here = FakeMember::start(move |_| Some(format!("-MOVED 5 127.0.0.1:{}\r\n", named.lock())));
    *port.lock() = here.port;
    let store = here.store();
    let error = store.attempt(&claim(Kind::Mutex, "lk", 30_000), 1, soon()).refused();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.is_retryable());
    assert!((2..10).contains(&here.asked().len()), "{:?}", here.asked());
}

/// The refusal is retryable, so the waiter that reads it keeps waiting.
#[test]
fn a_hand_off_in_a_moved_slot_is_refused() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let here = FakeMember::start(move |_| Some(format!("-MOVED 5 127.0.0.1:{port}\r\n")));
    let store = here.store();
    let [from, to] = [(), ()].map(|()| claim(Kind::Mutex, "lk", 30_000));
    let error = store.hand_off(&from, &to, soon()).unwrap().wait().refused();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.is_retryable());
}

fn is_in_doubt<T: std::fmt::Debug>(answer: Answer<T>) {
    let Err(Failure::Unknown(error)) = answer else { panic!("not in doubt but {answer:?}") };
    assert!(error.outcome_unknown() && error.is_retryable(), "{error:?}");
}

/// The script of a read-write lock chooses keys itself. It may have changed some keys before it finds one
/// that has moved to another member.
#[test]
fn an_interrupted_script_has_unknown_outcome_unless_it_only_reads() {
    let here = FakeMember::start(|_| {
        let words =
            "Script attempted to access a non local key in a cluster node script: 01, on @user_script:20.";
        Some(format!("-ERR {words}\r\n"))
    });
    let store = here.store();
    let reader = claim(Kind::Read, "lk", 30_000);
    is_in_doubt(store.attempt(&reader, 1, soon()));
    is_in_doubt(store.begin_attempt(&reader, 1, soon()).wait());
    is_in_doubt(store.release(&reader, 0, soon()));
    is_in_doubt(store.begin_release(&reader, 0, soon()).wait());
    is_in_doubt(store.renew(std::slice::from_ref(&reader), soon()).remove(0));
    is_in_doubt(store.clean_up(std::slice::from_ref(&reader), soon()).remove(0));
    let looked = store.inspect(Kind::Read, &reader.name, reader.owner, soon()).refused();
    for error in [looked, store.describe(&reader.name, soon()).refused()] {
        assert!(!error.outcome_unknown() && error.is_retryable(), "{error:?}");
    }
}

/// If requests did not follow the release, an attempt of this owner could find its old hold at the new
/// member, and then lose it to the late release.
#[test]
fn requests_follow_an_unanswered_release_to_the_old_member() {
    let there = FakeMember::start(|_| granted());
    let here = FakeMember::start(|_| None);
    let store = here.store();
    let me = claim(Kind::Mutex, "lk", 30_000);
    let (done, outcome) = bounded(1);
    store.release_later(&me, soon(), Sink::new(move |answer| done.send(answer).unwrap()));
    eventually(|| here.asked() == ["lk"]);
    // A request about another lock learns that all slots have moved.
    *here.shared.slots.lock() = vec![(0, 16_383, there.port)];
    store.doubt();
    assert!(store.attempt(&claim(Kind::Mutex, "other", 1_000), 1, soon()).is_ok());
    let attempt = store.attempt(&me, 1, Clock::System.after(Duration::from_millis(100)));
    assert!(matches!(attempt, Err(Failure::Unknown(_))), "{attempt:?}");
    eventually(|| here.asked() == ["lk", "lk"]);
    assert_eq!(there.asked(), ["other"]);
    // The connection has ended, so the release cannot arrive any more. The next attempt goes to the lock's
    // new member.
    assert!(matches!(outcome.recv().unwrap(), Err(Failure::Unknown(_))));
    store.attempt(&me, 1, soon()).granted();
    assert_eq!(there.asked(), ["other", "lk"]);
}

#[test]
fn an_unawaited_release_follows_a_cluster_redirection() {
    for redirect in ["MOVED", "ASK"] {
        let there = FakeMember::start(|_| freed());
        let port = there.port;
        let here = FakeMember::start(move |_| Some(format!("-{redirect} 5 127.0.0.1:{port}\r\n")));
        let store = here.store();
        let (done, outcome) = bounded(1);
        let take = Sink::new(move |answer| done.send(answer).unwrap());
        store.release_later(&claim(Kind::Mutex, "lk", 30_000), soon(), take);
        eventually(|| !store.poll_completions() && !outcome.is_empty());
        let answer = outcome.recv().unwrap();
        assert!(matches!(answer, Ok(Release::Freed { .. })), "{redirect}: {answer:?}");
        assert_eq!(there.asked().last().map(String::as_str), Some("lk"));
    }
}

#[test]
fn a_hanging_member_delays_no_renewal_on_other_members() {
    let renewed = || Some("*1\r\n$7\r\nrenewed\r\n".to_owned());
    let (there, here) = (FakeMember::start(move |_| renewed()), FakeMember::start(|_| None));
    let (answering, hanging) = (slot("answering"), slot("hanging"));
    *here.shared.slots.lock() = vec![(answering, answering, there.port), (hanging, hanging, here.port)];
    let store = here.store();
    let claims = ["hanging", "answering"].map(|key| claim(Kind::Mutex, key, 30_000));
    let begun = Clock::System.now();
    let answers = store.renew(&claims, Clock::System.after(Duration::from_millis(1_500)));
    assert!(matches!(answers[0], Err(Failure::Unknown(_))), "{answers:?}");
    assert!(matches!(answers[1], Ok(true)), "{answers:?}");
    assert!(Clock::System.now().since(begun) < Duration::from_secs(4));
}

#[test]
fn a_slot_map_reload_asks_members_in_turn() {
    let there = FakeMember::start(|_| granted());
    let here = FakeMember::start(|_| None);
    let gone = FakeMember::start(|_| None);
    *here.shared.slots.lock() = vec![(0, 8_000, here.port), (8_001, 16_383, gone.port)];
    let store = here.store();
    *gone.shared.slots.lock() = vec![(0, 16_383, there.port)];
    let me = claim(Kind::Mutex, "lk", 30_000);
    eventually(|| {
        store.doubt();
        let deadline = Clock::System.after(Duration::from_millis(50));
        matches!(store.attempt(&me, 1, deadline), Ok(Attempt::Granted { .. }))
    });
}

#[test]
fn requiring_sharded_channels_is_an_error_on_servers_without_them() {
    let old = FakeMember::start(|_| None);
    *old.shared.has_shards.lock() = false;
    let connect = |cluster_pub_sub| {
        let url = format!("redis-cluster://127.0.0.1:{}", old.port);
        let replicas = ReplicaRule::Nothing;
        let options = ServerOptions { url, cluster_pub_sub, replicas, ..ServerOptions::default() };
        ClusterStore::connect(&options, &Arc::new(Reporter::new(None))).map(|store| store.close())
    };
    for way in [ClusterPubSub::Auto, ClusterPubSub::Plain] {
        connect(way).unwrap();
    }
    for way in [ClusterPubSub::Sharded, ClusterPubSub::Both] {
        assert_eq!(connect(way).err().unwrap().kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn a_hanging_host_look_up_fails_the_attempt_in_time() {
    for redirect in ["MOVED", "ASK"] {
        let here = FakeMember::start(move |_| Some(format!("-{redirect} 5 hangs.example:7000\r\n")));
        let (_never, nothing) = bounded::<()>(0);
        let hosts = Hosts::resolving(move |_| {
            assert!(nothing.recv().is_err());
            Ok(Vec::new())
        });
        let store = here.store_with(hosts);
        let begun = Clock::System.now();
        let deadline = Clock::System.after(Duration::from_secs(2));
        let error = store.attempt(&claim(Kind::Mutex, "lk", 30_000), 1, deadline).refused();
        assert!(error.is_retryable(), "{error}");
        assert!(Clock::System.now().since(begun) < Duration::from_secs(10));
    }
}

#[test]
fn redirects_to_disallowed_hosts_are_not_followed() {
    let there = TcpListener::bind("127.0.0.1:0").unwrap();
    there.set_nonblocking(true).unwrap();
    let port = there.local_addr().unwrap().port();
    let me = claim(Kind::Mutex, "lk", 30_000);
    for redirect in ["MOVED", "ASK"] {
        let here = FakeMember::start(move |_| Some(format!("-{redirect} 5 localhost:{port}\r\n")));
        let store = here.store_with(Hosts::allowing(vec!["10.0.0.1".to_owned()]));
        let error = store.attempt(&me, 1, soon()).refused();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("localhost") && !error.is_retryable(), "{error}");
        let renewed = store.renew(std::slice::from_ref(&me), soon()).remove(0);
        assert_eq!(renewed.refused().kind(), ErrorKind::Unsupported);
        store.close();
        assert_eq!(there.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "{redirect}");
    }
    // Redirects to the URL's host, at any port, and to a host in `Hosts::allowing` are followed.
    let there = FakeMember::start(|_| granted());
    let port = there.port;
    for (host, allowed) in [("127.0.0.1", "10.0.0.1"), ("localhost", "localhost")] {
        let here = FakeMember::start(move |_| Some(format!("-MOVED 5 {host}:{port}\r\n")));
        let store = here.store_with(Hosts::allowing(vec![allowed.to_owned()]));
        store.attempt(&me, 1, soon()).granted();
    }
}
