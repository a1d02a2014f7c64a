//! The waiters that the watch knows of, and what reaches them.

use super::*;
use crate::stores::etcd::message::Front;
use crate::stores::etcd::watch::{WatchPlace, id};

const PLACE: WatchPlace = WatchPlace { created: 5, lease: 1 };

fn front(key: &str) -> Front {
    Front { key: key.to_owned(), created: 3 }
}

#[test]
fn a_waiter_is_told_of_the_key_that_is_in_front_of_it_now_and_of_no_other() {
    let (_member, store) = start();
    let id = id(&claim(LEASE, true));
    let listening = store.watch.listen(id.clone(), &Waker::default()).unwrap();
    store.watch.close(); // no thread of it asks meanwhile
    let told = || listening.message_count();
    store.watch.follow(id.clone(), PLACE, front("first"));
    store.watch.follow(id.clone(), PLACE, front("second"));
    let before = told();
    store.watch.gone("first");
    assert_eq!(told(), before);
    assert_eq!(store.watch.place(&id), Some((PLACE, Some(front("second")))));
    store.watch.gone("second");
    assert_eq!(told(), before + 1);
    assert_eq!(store.watch.place(&id), Some((PLACE, None)), "nobody is known to be in front of it");
    store.watch.gone("second");
    assert_eq!(told(), before + 1, "once");
    store.watch.follow(id.clone(), PLACE, front("third"));
    store.watch.leave(&id, false);
    assert_eq!(store.watch.place(&id), None, "it has lost its place");
}
