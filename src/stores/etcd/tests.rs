//! Tests of ended and unneeded leases, recalls and watched keys, with a simulated member.

use std::collections::{HashSet, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use super::*;
use crate::seam::capabilities::{CachedCheck, HoldCaching};
use crate::seam::format::format_text;
use crate::seam::{Answer, Others};
use crate::stores::etcd::message::{Front, value};
use crate::stores::etcd::watched::WatchPlace;
use crate::sync::thread;
use crate::tests::{Attempted, Open, Released, Said, soon};

/// The lease of the claims. The etcd lease has a second more, but the client counts on only 99 % of it, which
/// is less than 1000 s. So each grant must renew the etcd lease.
const LEASE: Duration = Duration::from_secs(1_000);
/// The id of a lease that this client did not create.
const STRANGE: i64 = 77;

#[derive(Default)]
struct Member {
    /// Whether the member answers requests to keep leases alive with an error.
    is_in_trouble: bool,
    granted: Vec<i64>,
    ended: HashSet<i64>,
    kept: Vec<i64>,
    revoked: Vec<i64>,
    transactions: VecDeque<Value>,
    last_transaction: Value,
}

impl Member {
    /// The answer to a request; `None` if none is sent.
    fn answer(&mut self, path: &str, asked: &Value) -> Option<Value> {
        let number = |field: &str| asked[field].as_str().and_then(|number| number.parse().ok());
        Some(match path {
            "/v3/lease/grant" => {
                let id = i64::try_from(self.granted.len()).unwrap() + 1;
                self.granted.push(id);
                json!({ "ID": id.to_string(), "TTL": asked["TTL"] })
            }
            "/v3/lease/keepalive" => {
                let id = number("ID").unwrap();
                self.kept.push(id);
                if self.is_in_trouble {
                    return Some(
                        json!({ "error": { "grpc_code": 14, "message": "etcdserver: request timed out" } }),
                    );
                }
                let ttl = if self.ended.contains(&id) { "0" } else { "1001" };
                json!({ "result": { "ID": id.to_string(), "TTL": ttl } })
            }
            "/v3/lease/revoke" => {
                self.revoked.extend(number("ID"));
                json!({})
            }
            "/v3/kv/txn" => {
                self.last_transaction = asked.clone();
                self.transactions.pop_front().expect("more transactions were sent than the test expects")
            }
            "/v3/kv/range" => json!({}),
            "/v3/maintenance/status" => json!({ "version": "3.6.0" }),
            _ => return None,
        })
    }
}

fn start() -> (Arc<Mutex<Member>>, Open<Box<EtcdStore>>) {
    let noted = json!({ "value": STANDARD.encode(format_text()) });
    let noted = json!({ "responses": [{ "response_range": { "kvs": [noted] } }] });
    let member = Arc::new(Mutex::new(Member { transactions: VecDeque::from([noted]), ..Member::default() }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = ServerOptions {
        url: format!("etcd://{}", listener.local_addr().unwrap()),
        ..ServerOptions::default()
    };
    let serves = Arc::clone(&member);
    let serve = move || {
        for client in listener.incoming().flatten() {
            let member = Arc::clone(&serves);
            drop(thread::Builder::new().spawn(move || serve_client(client, &member)).unwrap());
        }
    };
    drop(thread::Builder::new().spawn(serve).unwrap());
    let store = EtcdStore::connect(&options, Arc::new(Reporter::new(None))).unwrap();
    (member, Open(Box::new(store)))
}

fn serve_client(mut client: TcpStream, member: &Mutex<Member>) {
    let mut from = BufReader::new(client.try_clone().unwrap());
    while let Some((path, body)) = request(&mut from) {
        let Some(answer) = member.lock().answer(&path, &body) else { continue };
        let answer = answer.to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
        if client.write_all((head + &answer).as_bytes()).is_err() {
            return;
        }
    }
}

fn request(from: &mut impl BufRead) -> Option<(String, Value)> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line == "\r\n" {
            break;
        }
        head.push(line);
    }
    let path = head[0].split(' ').nth(1)?.to_owned();
    let length = head.iter().find_map(|line| line.strip_prefix("Content-Length: "))?.trim().parse().ok()?;
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some((path, serde_json::from_slice(&body).ok()?))
}

fn claim(lease: Duration, waits: bool) -> Claim {
    Claim { waits, wants_fence: true, ..crate::tests::claim(Kind::Fenced, "a", lease) }
}

fn key_of(claim: &Claim, created: i64, lease: i64) -> Value {
    let ttl = lease::ttl_of(claim.lease);
    json!({ "key": "a2V5", "value": value(claim.owner, 1, ttl), "lease": lease.to_string(),
        "create_revision": created.to_string(), "mod_revision": created.to_string() })
}

fn done(succeeded: bool, revision: i64, responses: &[Value]) -> Value {
    json!({ "header": { "revision": revision.to_string() }, "succeeded": succeeded, "responses": responses })
}

fn found(pairs: &[Value]) -> Value {
    json!({ "response_range": { "kvs": pairs } })
}

/// The answer if the claim's key was put, and the queue has these keys in front.
fn joined(revision: i64, in_front: &[Value]) -> Value {
    done(true, revision, &[found(in_front), json!({ "response_put": {} })])
}

/// The answer if the claim's key was put into an empty queue.
fn put_alone(revision: i64) -> Value {
    done(true, revision, &[json!({ "response_put": {} })])
}

fn taken_away(key: Value) -> Value {
    done(true, 20, &[json!({ "response_delete_range": { "prev_kvs": [key] } })])
}

fn fence(attempt: Answer<Attempt>) -> u64 {
    match attempt {
        Ok(Attempt::Granted { fence: Some(fence), .. }) => fence.get(),
        other => panic!("not granted but {other:?}"),
    }
}

/// A lease may end just before its key is found to be the first. Another owner may then have the lock.
#[test]
fn a_waiter_whose_key_ended_rejoins_at_the_end_of_the_queue() {
    let (member, store) = start();
    let (claim, other) = (claim(LEASE, true), claim(LEASE, true));
    let in_front = key_of(&other, 3, STRANGE);
    member.lock().transactions.push_back(joined(5, std::slice::from_ref(&in_front)));
    store.attempt(&claim, 1, soon()).busy();
    {
        let mut member = member.lock();
        member.ended.insert(1);
        // The key in front has been deleted. The waiter's key is now the first, but its lease has ended.
        let first = done(false, 8, &[found(&[key_of(&claim, 5, 1)]), found(&[])]);
        member.transactions.extend([first, joined(9, &[])]);
    }
    assert_eq!(fence(store.attempt(&claim, 1, soon())), 9, "the key's lease lives");
    assert_eq!(member.lock().kept, [1, 2]);
}

#[test]
fn a_key_found_with_an_ended_lease_is_no_hold() {
    let (member, store) = start();
    let claim = claim(LEASE, false);
    let left = key_of(&claim, 5, STRANGE);
    {
        let mut member = member.lock();
        member.ended.insert(STRANGE);
        let is_there = done(false, 8, &[found(std::slice::from_ref(&left))]);
        let is_first = done(true, 8, &[found(std::slice::from_ref(&left)), found(&[])]);
        let seen = done(true, 8, &[found(std::slice::from_ref(&left))]);
        member.transactions.extend([is_there, is_first, seen, put_alone(9)]);
    }
    assert_eq!(fence(store.attempt(&claim, 1, soon())), 9);
    assert_eq!(member.lock().kept.first(), Some(&STRANGE));
}

/// If the outcome were "refused", no clean-up would follow, and the key would block others for a lease.
#[test]
fn an_etcd_grant_whose_lease_renewal_fails_has_an_unknown_outcome() {
    let (member, store) = start();
    member.lock().is_in_trouble = true;
    let tries = claim(LEASE, false);
    member.lock().transactions.push_back(put_alone(5));
    store.attempt(&tries, 1, soon()).unknown();
    // For a waiter "refused" is right: the wait continues, or the end of the wait deletes the key.
    let waits = claim(LEASE, true);
    member.lock().transactions.push_back(joined(6, &[]));
    store.attempt(&waits, 1, soon()).refused();
}

/// Otherwise each attempt for a busy lock would add a lease on the server.
#[test]
fn an_unsuccessful_attempt_keeps_or_revokes_its_etcd_lease() {
    let (member, store) = start();
    for (lease, revoked) in [(Duration::from_secs(30), vec![]), (LEASE, vec![2])] {
        member.lock().transactions.push_back(done(false, 5, &[found(&[])]));
        store.attempt(&claim(lease, false), 1, soon()).busy();
        assert_eq!(member.lock().revoked, revoked, "{lease:?}");
    }
}

#[test]
fn the_etcd_lease_of_an_ended_hold_is_reused_or_revoked() {
    let (member, store) = start();
    let short = claim(Duration::from_secs(30), false);
    for _ in 0..2 {
        member.lock().transactions.extend([put_alone(5), taken_away(key_of(&short, 5, 1))]);
        fence(store.attempt(&short, 1, soon()));
        let freed = store.release(&short, 0, soon());
        assert!(matches!(freed, Ok(Release::Freed { others: Others::Nobody })), "{freed:?}");
    }
    assert_eq!(member.lock().granted, [1]);
    assert!(member.lock().revoked.is_empty());
    let long = claim(LEASE, false);
    member.lock().transactions.extend([put_alone(6), taken_away(key_of(&long, 6, 2))]);
    fence(store.attempt(&long, 1, soon()));
    store.release(&long, 0, soon()).freed();
    assert_eq!(member.lock().revoked, [2]);
    // The clean-up finds a key of an attempt without an answer. A repetition of that attempt may still arrive
    // and use the key's lease, so the client revokes the lease and does not reuse it.
    let key = taken_away(key_of(&short, 7, STRANGE));
    member.lock().transactions.push_back(done(true, 9, &[json!({ "response_txn": key })]));
    let freed = store.clean_up(std::slice::from_ref(&short), soon()).pop();
    assert!(matches!(freed, Some(Ok(Release::Freed { .. }))), "{freed:?}");
    assert_eq!(member.lock().revoked, [2, STRANGE]);
}

/// With the shorter lease, the key could end while the holder still counts on it.
#[test]
fn a_granted_key_with_a_too_short_lease_gets_a_longer_one() {
    let (member, store) = start();
    let waits = claim(LEASE, true);
    let short = Duration::from_millis(1_500);
    let caches = Claim { caches: true, lease: short, ..waits.clone() };
    let in_front = key_of(&claim(LEASE, true), 3, STRANGE);
    member.lock().transactions.push_back(joined(5, std::slice::from_ref(&in_front)));
    store.attempt(&caches, 1, soon()).busy();
    // `waits` does not cache the lock, so its attempt does not ask for keys behind its own.
    let own = key_of(&caches, 5, 1);
    let is_first = done(false, 8, &[found(std::slice::from_ref(&own)), found(&[])]);
    let seen = done(true, 8, &[found(std::slice::from_ref(&own))]);
    let put = done(true, 9, &[json!({ "response_put": {} })]);
    member.lock().transactions.extend([is_first, seen, put]);
    assert_eq!(fence(store.attempt(&waits, 1, soon())), 5);
    assert_eq!(member.lock().granted, [1, 2]);
    let put = member.lock().last_transaction["success"][0]["request_put"].clone();
    assert_eq!(
        (put["lease"].clone(), put["value"].clone()),
        (json!("2"), json!(value(waits.owner, 1, 1_001)))
    );
}

/// No event reports waiters that came before the client listened, so the grant looks for them.
#[test]
fn a_cached_etcd_grant_finds_waiters_that_no_event_reported() {
    let (member, store) = start();
    let caches = Claim { caches: true, ..claim(LEASE, true) };
    let listening = HoldCaching::hear(&*store, &caches, &Waker::default()).unwrap();
    let in_front = key_of(&claim(LEASE, true), 3, STRANGE);
    member.lock().transactions.push_back(joined(5, std::slice::from_ref(&in_front)));
    store.attempt(&caches, 1, soon()).busy();
    let before = listening.message_count();
    let own = key_of(&caches, 5, 1);
    let mut behind = key_of(&caches, 6, STRANGE);
    behind["key"] = json!("b3RoZXI=");
    member.lock().transactions.push_back(done(false, 8, &[found(&[own]), found(&[]), found(&[behind])]));
    assert_eq!(fence(store.attempt(&caches, 1, soon())), 5);
    assert_eq!(listening.message_count(), before + 1);
}

/// The check also finds waiters that came while no watch was open.
#[test]
fn one_request_checks_a_cached_etcd_lock_for_waiters() {
    let (member, store) = start();
    let kept = Claim { caches: true, ..claim(LEASE, false) };
    let look = |claim: &Claim, held: &Value, last: &Value| {
        let seen = done(true, 8, &[found(std::slice::from_ref(held)), found(std::slice::from_ref(last))]);
        member.lock().transactions.extend([seen, done(true, 9, &[])]);
        let look =
            HoldCaching::check_holds(&*store, std::slice::from_ref(claim), soon()).pop().unwrap().unwrap();
        assert_eq!(member.lock().transactions.drain(..).count(), 1, "one transaction was sent");
        look
    };
    let held = key_of(&kept, 5, STRANGE);
    let mut behind = key_of(&kept, 6, STRANGE);
    behind["key"] = json!("b3RoZXI=");
    assert_eq!(look(&kept, &held, &behind), CachedCheck::Wanted);
    assert_eq!(look(&kept, &held, &held), CachedCheck::Stays);
    assert_eq!(look(&claim(LEASE, false), &held, &held), CachedCheck::Lost, "another owner holds the lock");
}

const PLACE: WatchPlace = WatchPlace { created: 5, lease: 1 };

fn front(key: &str) -> Front {
    Front { key: key.to_owned(), created: 3 }
}

#[test]
fn a_waiter_watches_the_key_before_it() {
    let (_member, store) = start();
    let id = store.key(&claim(LEASE, true));
    let listening = store.watch.wait_at(&id, &Waker::default()).unwrap();
    store.watch.close(); // without a thread, nothing else sends requests
    let told = || listening.message_count();
    store.watch.follow(&id, PLACE, front("first"));
    store.watch.follow(&id, PLACE, front("second"));
    let before = told();
    store.watch.gone("first");
    assert_eq!(told(), before);
    assert_eq!(store.watch.place(&id), Some((PLACE, Some(front("second")))));
    store.watch.gone("second");
    assert_eq!(told(), before + 1);
    assert_eq!(store.watch.place(&id), Some((PLACE, None)), "no waiter is known in front");
    store.watch.gone("second");
    assert_eq!(told(), before + 1, "once");
    store.watch.follow(&id, PLACE, front("third"));
    store.watch.leave(&id, false);
    assert_eq!(store.watch.place(&id), None, "the waiter has lost its place");
}
