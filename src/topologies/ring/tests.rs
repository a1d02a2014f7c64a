//! A ring's decisions, on nodes that answer as a test has it.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use super::*;
use crate::ident::{ClientId, unbound_number};
use crate::seam::inspection::describe_by_kinds;
use crate::seam::{Answer, Failure, Others};

/// Bears a mark, grants all that it is asked for under it, and renews all.
#[derive(Default)]
struct Node {
    mark: Mutex<String>,
    /// Whom it has granted something.
    granted: Mutex<Vec<Owner>>,
    /// The next renewal is answered when this has ended.
    hangs: Mutex<Option<Receiver<()>>>,
}

impl Node {
    fn under<T>(&self, mark: &str, answer: impl FnOnce() -> T) -> Answer<Marked<T>> {
        let borne = self.mark.lock().clone();
        Ok(if borne == mark { Marked::Under(answer()) } else { Marked::Other(borne) })
    }
}

impl RingMember for Node {
    fn bears(&self, mark: &str, deadline: Moment) -> Answer<Marked<()>> {
        self.set_mark(mark, mark, deadline)
    }

    fn set_mark(&self, expected: &str, new: &str, _: Moment) -> Answer<Marked<()>> {
        let mut borne = self.mark.lock();
        if *borne != expected && *borne != new {
            return Ok(Marked::Other(borne.clone()));
        }
        new.clone_into(&mut borne);
        Ok(Marked::Under(()))
    }

    fn attempt_under(&self, mark: &str, claim: &Claim, _: u64, _: Moment) -> Answer<Marked<Attempt>> {
        self.under(mark, || {
            self.granted.lock().push(claim.owner);
            Attempt::granted(None)
        })
    }

    fn look_under(&self, mark: &str, _: &Claim, _: Moment) -> Answer<Marked<Look>> {
        self.under(mark, || Look::Free { fence: 0 })
    }
}

impl Store for Node {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities::default()
    }

    fn check_name(&self, _: Kind, _: &LockName) -> Result<()> {
        Ok(())
    }

    fn attempt(&self, _: &Claim, _: u32, _: Moment) -> Answer<Attempt> {
        Ok(Attempt::granted(None))
    }

    fn release(&self, _: &Claim, _: u32, _: Moment) -> Answer<Release> {
        Ok(Release::Freed { others: Others::Nobody })
    }

    fn renew(&self, claims: &[Claim], _: Moment) -> Vec<Answer<bool>> {
        let hangs = self.hangs.lock().take();
        if let Some(end) = hangs {
            assert!(end.recv_timeout(HANGS).is_err(), "nothing is sent");
        }
        claims.iter().map(|_| Ok(true)).collect()
    }

    fn clean_up(&self, claims: &[Claim], _: Moment) -> Vec<Answer<Release>> {
        claims.iter().map(|_| Ok(Release::NotHeld { holder: None })).collect()
    }

    fn force(&self, _: Kind, _: &LockName, _: Moment) -> Answer<bool> {
        Ok(false)
    }

    fn listen(&self, _: &Claim, _: &Waker) -> Option<Subscription> {
        None
    }

    fn message_count(&self, _: &Claim) -> Option<u64> {
        None
    }

    fn close(&self) {}
}

impl Inspect for Node {
    fn inspect(&self, _: Kind, _: &LockName, _: Owner, _: Moment) -> Answer<Option<Snapshot>> {
        Ok(None)
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        describe_by_kinds(self, name, deadline)
    }
}

/// Longer than any wait of these tests; a node that hangs for ever would hang the test.
const HANGS: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(60);

fn soon() -> Moment {
    Clock::System.after(LONG)
}

/// The nodes `0`, `1` and `2`, and a ring over the first two.
fn ring_of_two() -> (RingStore, [Arc<Node>; 3]) {
    let nodes: [Arc<Node>; 3] = Default::default();
    let theirs = nodes.clone();
    let open = move |url: &str| -> Result<Arc<dyn RingMember>> {
        Ok(Arc::clone(&theirs[url.parse::<usize>().unwrap()]) as _)
    };
    (RingStore::open(Ring::new(["0", "1"]), LONG, Box::new(open)).unwrap(), nodes)
}

fn claim(name: &str, home: u32, lease: Duration) -> Claim {
    Claim {
        waits: true,
        home,
        ..Claim::new(
            Kind::Mutex,
            &Arc::new(LockName::new(&Arc::from(name), name.to_owned()).unwrap()),
            Owner::new(ClientId::random(), unbound_number()),
            lease,
        )
    }
}

/// A hold is renewed and released at the home that its claim names. A grant elsewhere would be lost, and
/// would keep others out for a lease.
#[test]
fn a_claim_from_before_its_name_moved_is_refused_and_granted_by_no_node() {
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
    assert!(nodes.iter().all(|node| node.granted.lock().is_empty()));
    let new = Claim { home: ring.home(&old.name), ..old.clone() };
    assert!(matches!(ring.attempt(&new, 1, soon()), Ok(Attempt::Granted { .. })));
    assert_eq!(*nodes[2].granted.lock(), [new.owner]);
    ring.close();
}

#[test]
fn a_node_that_hangs_does_not_keep_the_others_holds_from_being_renewed() {
    let (ring, [_, hanging, _]) = ring_of_two();
    let (end, ended) = bounded::<()>(0);
    *hanging.hangs.lock() = Some(ended);
    // The others are waited for for a seventh of the lease.
    let claims = [0, 1].map(|home| claim("a", home, Duration::from_millis(70)));
    let answers = ring.renew(&claims, soon());
    assert!(matches!(answers[1], Err(Failure::Unknown(_))), "it was waited for: {answers:?}");
    // The first may have been slow, on a busy machine; the second hangs still, and is not asked meanwhile.
    let begun = Clock::System.now();
    while !matches!(&ring.renew(&claims, soon())[..], [Ok(true), Err(Failure::Refused(_))]) {
        assert!(Clock::System.now().since(begun) < HANGS, "the holds of one node only are not renewed");
    }
    drop(end);
    ring.close();
}
