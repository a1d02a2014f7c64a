//! Tests of one node of a ring. The node's *mark* is a key that contains the version of the ring.

use super::prelude::*;
use crate::seam::ring_member::Marked;
use crate::seam::ring_member::Probe;
use crate::seam::ring_member::RingMember;

#[test]
fn a_ring_node_replaces_only_the_expected_mark() {
    let (server, store) = served();
    let mark = |expected: &str, new: &str| store.set_mark(expected, new, soon()).done();
    assert_eq!(mark("", "1"), Marked::Under(()));
    assert_eq!(mark("1", "2"), Marked::Under(()));
    assert_eq!(mark("1", "2"), Marked::Under(()), "the repeated request failed");
    assert_eq!(mark("1", "3"), Marked::Other("2".to_owned()));
    assert_eq!(mark("", "3"), Marked::Other("2".to_owned()));
    for kind in [Kind::Mutex, Kind::Fenced, Kind::Fair, Kind::Read, Kind::Write, Kind::Token] {
        let claim = claim(kind, "lk", 30_000);
        let attempt = |mark: &str| store.attempt_under(mark, &claim, 0, soon()).done();
        assert_eq!(attempt("1"), Marked::Other("2".to_owned()), "{kind:?}");
        assert_eq!(server.number(&["EXISTS", "lk"]), 0, "{kind:?}");
        assert!(matches!(attempt("2"), Marked::Under(Attempt::Granted { .. })), "{kind:?}");
        store.release(&claim, 0, soon()).freed();
    }
    let looked = store.probe_under("1", &claim(Kind::Mutex, "lk", 1), soon()).done();
    assert_eq!(looked, Marked::Other("2".to_owned()));
}

#[test]
fn a_ring_node_grants_a_token_lock_to_one_token() {
    let (_server, store) = served();
    store.set_mark("", "1", soon()).done();
    let (me, you) = (claim(Kind::Token, "lk", 30_000), claim(Kind::Token, "lk", 30_000));
    let attempt = |claim| store.attempt_under("1", claim, 0, soon()).done();
    assert!(matches!(attempt(&me), Marked::Under(Attempt::Granted { .. })));
    assert!(matches!(attempt(&you), Marked::Under(Attempt::Busy { .. })));
    assert!(matches!(attempt(&me), Marked::Under(Attempt::Granted { .. })), "the repeated attempt failed");
}

#[test]
fn fencing_tokens_of_a_moved_name_keep_rising() {
    let (server, store) = served();
    store.set_mark("", "1", soon()).done();
    let fenced = claim(Kind::Fenced, "lk", 30_000);
    let look = || store.probe_under("1", &fenced, soon()).done();
    assert_eq!(look(), Marked::Under(Probe::Free { fence: 0 }));
    // The node from which the name moved gave this token, which is far ahead of the clock.
    let earlier = 5_000_000_000_000_000;
    match store.attempt_under("1", &fenced, earlier, soon()).done() {
        Marked::Under(Attempt::Granted { fence, .. }) => {
            assert_eq!(fence, Some(FencingToken::new(earlier + 1)))
        }
        other => panic!("{other:?}"),
    }
    let Marked::Under(Probe::Busy { retry_after: Some(left) }) = look() else { panic!("the lock is held") };
    assert!(left > Duration::from_secs(25));
    server.run(&["PERSIST", "lk"]);
    assert_eq!(look(), Marked::Under(Probe::Busy { retry_after: None }), "the lock is held without an end");
    store.release(&fenced, 0, soon()).freed();
    assert_eq!(look(), Marked::Under(Probe::Free { fence: earlier + 1 }));
}
