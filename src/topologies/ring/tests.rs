//! Tests of a ring's decisions, on scripted nodes.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::seam::Failure;
use crate::tests::scripted::Scripted;
use crate::tests::{Attempted, Open, Said, soon};

/// A hanging node answers only after this time. A test that took as long has waited for it, and fails.
const HANGS: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(60);

/// A ring over the nodes `0` and `1`, and the three nodes from which tests build further rings.
fn ring_of_two() -> (Open<Box<RingStore>>, [Arc<Scripted>; 3]) {
    let nodes: [Arc<Scripted>; 3] = Default::default();
    let theirs = nodes.clone();
    let open = move |url: &str| -> Result<Arc<dyn RingMember>> {
        Ok(Arc::clone(&theirs[url.parse::<usize>().unwrap()]) as _)
    };
    let ring = RingStore::open(Ring::new(["0", "1"]), LONG, Box::new(open)).unwrap();
    (Open(Box::new(ring)), nodes)
}

fn claim(name: &str, home: u32, lease: Duration) -> Claim {
    Claim { waits: true, home, ..crate::tests::claim(Kind::Mutex, name, lease) }
}

/// A claim names the node that will renew and release its hold. If another node granted the claim, nobody
/// would release that grant, which would block others for a lease.
#[test]
fn a_moved_name_is_refused_at_its_old_node() {
    let (ring, nodes) = ring_of_two();
    let claims: Vec<Claim> = (0..100).map(|name| claim(&format!("name-{name}"), 0, LONG)).collect();
    let claims: Vec<Claim> =
        claims.into_iter().map(|claim| Claim { home: ring.home(&claim.name), ..claim }).collect();
    ring.change(Ring::new(["0", "1", "2"]).epoch(2).moving_from(["0", "1"])).unwrap();
    let old = claims.iter().find(|claim| ring.home(&claim.name) != claim.home).unwrap();
    let error = match ring.attempt(old, 1, soon()) {
        Err(Failure::Refused(error)) => error,
        other => panic!("not refused but {other:?}"),
    };
    assert!(error.is_retryable(), "{error}");
    assert!(nodes.iter().all(|node| node.attempts.count() == 0));
    let new = Claim { home: ring.home(&old.name), ..old.clone() };
    ring.attempt(&new, 1, soon()).granted();
    assert_eq!(nodes[2].attempts.owners(), [new.owner]);
}

#[test]
fn a_request_for_an_unknown_ring_node_is_refused() {
    let (ring, _) = ring_of_two();
    let unknown = claim("a", 7, LONG);
    let answers = ring.renew(&[unknown.clone(), claim("a", 0, LONG)], soon());
    assert!(matches!(&answers[..], [Err(Failure::Refused(_)), Ok(true)]), "{answers:?}");
    ring.release(&unknown, 0, soon()).refused();
}

#[test]
fn a_hanging_node_delays_no_other_renewal() {
    let (ring, [_, hanging, _]) = ring_of_two();
    let begun = Clock::System.now();
    *hanging.silent_until.lock() = Some(begun.plus(HANGS));
    let claims = [0, 1].map(|home| claim("a", home, Duration::from_millis(70)));
    let answers = ring.renew(&claims, soon());
    assert!(matches!(&answers[..], [Ok(true), Err(Failure::Unknown(_))]), "{answers:?}");
    assert!(Clock::System.now().since(begun) < HANGS, "the renewal waited for the silent node");
}
