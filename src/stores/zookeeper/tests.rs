//! Tests of unanswered requests, of used-up numbers, and of recalls, with a simulated server.

use super::*;
use crate::ident::ClientId;
use crate::seam::Failure;
use crate::stores::zookeeper::fake::{Reply, Request, Server, text};
use crate::sync::Mutex;
use crate::tests::{Attempted, Open, Released, Said, soon};

const SESSION: Duration = Duration::from_secs(3_600);
const LOCK: &str = "/lock";

/// The nodes of one lock, on a server that creates each node, but then closes the connection without a reply.
#[derive(Default)]
struct Nodes {
    names: Vec<String>,
    made: usize,
}

impl Nodes {
    fn make(&mut self, path: &str) -> String {
        self.made = (self.made + 1).min(i32::MAX as usize);
        let path = format!("{path}{:010}", self.made);
        self.names.push(path.strip_prefix(LOCK).unwrap().trim_start_matches('/').to_owned());
        path
    }

    fn reply(&mut self, request: &Request) -> Reply {
        match request.operation {
            2 => {
                let path = request.path.as_str();
                let at = self.names.iter().position(|name| path == format!("{LOCK}/{name}"));
                match at {
                    Some(at) => {
                        self.names.remove(at);
                        Reply::Done(Vec::new())
                    }
                    None => Reply::Code(code::NO_NODE),
                }
            }
            8 => {
                let count = i32::try_from(self.names.len()).unwrap().to_be_bytes();
                let names = self.names.iter().flat_map(|name| text(name));
                Reply::Done(count.into_iter().chain(names).collect())
            }
            // The client first reads which format is stored. NO_AUTH makes it go on without storing one.
            4 => Reply::Code(code::NO_AUTH),
            9 => Reply::Done(text(&request.path)),
            15 => {
                self.make(&request.path);
                Reply::HangsUp
            }
            _ => Reply::Never,
        }
    }
}

fn claim() -> Claim {
    Claim { waits: true, ..crate::tests::claim(Kind::Mutex, LOCK, Duration::from_secs(60)) }
}

fn connect(server: &Server) -> Open<Box<ZooKeeperStore>> {
    let reporter = Arc::new(Reporter::new(None));
    Open(Box::new(ZooKeeperStore::connect(&server.options, SESSION, reporter).unwrap()))
}

/// An owner whose attempt was carried out without an answer, and the server's nodes.
fn in_doubt() -> (Open<Box<ZooKeeperStore>>, Claim, Arc<Mutex<Nodes>>) {
    let nodes = Arc::new(Mutex::new(Nodes::default()));
    let server = Server::start(SESSION, {
        let nodes = Arc::clone(&nodes);
        move |request| nodes.lock().reply(request)
    });
    let store = connect(&server);
    let claim = claim();
    store.attempt(&claim, 1, soon()).unknown();
    assert_eq!(nodes.lock().names.len(), 1);
    (store, claim, nodes)
}

/// The answer to a clean-up, which may have to wait for the next connection.
fn clean_up(store: &ZooKeeperStore, claim: &Claim) -> Release {
    match store.clean_up(std::slice::from_ref(claim), soon()).pop() {
        Some(Ok(release)) => release,
        other => panic!("not done but {other:?}"),
    }
}

#[test]
fn undoing_an_unanswered_attempt_deletes_only_its_own_node() {
    let (store, claim, nodes) = in_doubt();
    let another = path::prefix(Owner::new(ClientId::random(), 1), Family::Lock) + "0000000007";
    nodes.lock().names.push(another.clone());
    assert_eq!(clean_up(&store, &claim), Release::Freed { others: Others::Nobody });
    assert_eq!(nodes.lock().names, [another], "another node was deleted");
}

#[test]
fn a_second_clean_up_deletes_a_node_created_late() {
    let (store, claim, nodes) = in_doubt();
    let late = nodes.lock().names.pop().unwrap();
    assert_eq!(clean_up(&store, &claim), Release::NotHeld { holder: None });
    nodes.lock().names.push(late);
    assert_eq!(clean_up(&store, &claim), Release::Freed { others: Others::Nobody });
    assert!(nodes.lock().names.is_empty());
}

#[test]
fn an_attempt_repeated_after_no_answer_leaves_one_node() {
    let (store, claim, nodes) = in_doubt();
    store.attempt(&claim, 1, soon()).unknown();
    let names = nodes.lock().names.clone();
    assert_eq!((names.len(), nodes.lock().made), (1, 2), "{names:?}");
}

/// A client of a server with `nodes`. `reply` can change each of the server's replies.
fn on(
    nodes: &Arc<Mutex<Nodes>>,
    reply: impl Fn(&Request, Reply) -> Reply + Send + 'static,
) -> Open<Box<ZooKeeperStore>> {
    let nodes = Arc::clone(nodes);
    let server = Server::start(SESSION, move |request| {
        let done = match request.operation {
            15 => {
                let path = nodes.lock().make(&request.path);
                Reply::Done(text(&path).into_iter().chain([0; 68]).collect())
            }
            _ => nodes.lock().reply(request),
        };
        reply(request, done)
    });
    connect(&server)
}

/// When the numbers run out, today's ZooKeeper servers repeat the last number.
#[test]
fn a_lock_whose_sequence_numbers_are_used_up_is_refused() {
    let nodes = Arc::new(Mutex::new(Nodes { made: i32::MAX as usize - 2, ..Nodes::default() }));
    let store = on(&nodes, |_, reply| reply);
    let attempt = || store.attempt(&claim(), 1, soon());
    attempt().granted();
    for _ in 0..2 {
        let Err(Failure::Refused(error)) = attempt() else { panic!("two owners") };
        assert!(error.to_string().contains("2147483647 numbers"), "{error}");
    }
    assert_eq!(nodes.lock().names.len(), 1, "only the owner's node is left");
}

#[test]
fn a_cached_locks_grant_sets_a_watch_for_waiters() {
    let watches = Arc::new(Mutex::new(Vec::new()));
    let store = on(&Arc::default(), {
        let watches = Arc::clone(&watches);
        move |request, reply| {
            watches.lock().extend(request.watches.then(|| (request.operation, request.path.clone())));
            reply
        }
    });
    for caches in [false, true] {
        let claim = Claim { caches, ..claim() };
        let waker = Waker::default();
        let _listening = HoldCaching::hear(&*store, &claim, &waker).unwrap();
        store.attempt(&claim, 1, soon()).granted();
        let set = std::mem::take(&mut *watches.lock());
        assert_eq!(set, vec![(8, LOCK.to_owned()); usize::from(caches)]);
        assert!(!waker.take(), "a waiter was woken");
        store.release(&claim, 0, soon()).freed();
    }
}

#[test]
fn a_node_already_queued_on_zookeeper_recalls_a_new_grant() {
    let nodes = Arc::new(Mutex::new(Nodes::default()));
    let behind = path::prefix(Owner::new(ClientId::random(), 1), Family::Lock) + "0000000007";
    nodes.lock().names.push(behind);
    let store = on(&nodes, |_, reply| reply);
    let (claim, waker) = (Claim { caches: true, ..claim() }, Waker::default());
    let _listening = HoldCaching::hear(&*store, &claim, &waker).unwrap();
    store.attempt(&claim, 1, soon()).granted();
    assert!(waker.take());
}

/// The server reports the end of the client's own node before it replies to the deletion.
#[test]
fn a_clients_own_release_is_no_recall() {
    let store = on(&Arc::default(), |request, reply| match (request.operation, reply) {
        (2, Reply::Done(body)) => Reply::DoneAfterEvent(LOCK, body),
        (_, reply) => reply,
    });
    let (claim, waker) = (Claim { caches: true, ..claim() }, Waker::default());
    let _listening = HoldCaching::hear(&*store, &claim, &waker).unwrap();
    for _ in 0..2 {
        store.attempt(&claim, 1, soon()).granted();
        store.release(&claim, 0, soon()).freed();
        assert!(!waker.take());
    }
}
