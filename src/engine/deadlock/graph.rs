//! Follows waits from thread to thread, until the path comes back to its beginning: a cycle.
//!
//! The search reads a [`View`]: who holds a lock, to which thread a hold belongs, what a thread waits for.
//! The threads go on meanwhile, so a cycle in one view may never have existed. A cycle counts if a second
//! view, begun after the first ended, shows the same waits and owners: see `docs/decisions/0047`.

use crate::directory::WaitRecord;
use crate::ident::{ClientId, Owner};
use crate::seam::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Thread {
    pub(crate) client: ClientId,
    pub(crate) id: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) thread: Thread,
    pub(crate) number: u64,
    pub(crate) key: String,
    pub(crate) kind: Kind,
    pub(crate) record: WaitRecord,
}

/// A wait, and an owner that it waits for. The next link is the wait of that owner's thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) wait: Wait,
    pub(crate) holder: Owner,
    /// Whether only one thread can release the lock. If any thread can, the cycle may be no deadlock.
    pub(crate) is_certain: bool,
}

pub(crate) trait View {
    /// The owners that must release the lock before it can be granted to this waiter.
    fn holders(&mut self, wait: &Wait) -> Vec<Owner>;

    /// The threads that will probably release this owner's hold. `true`: the one thread that can. `false`:
    /// the thread that acquired the guard, and waiting threads of a process that works under the hold.
    fn keepers_of(&mut self, holder: Owner, key: &str) -> (Vec<Thread>, bool);

    fn wait_of(&mut self, thread: Thread) -> Option<Wait>;
}

pub(crate) fn ring_of(view: &mut dyn View, origin: &Wait) -> Option<Vec<Link>> {
    let (mut met, mut path) = (vec![origin.thread], Vec::new());
    follow(view, origin, &mut met, &mut path).then_some(path)
}

/// Whether a path from `wait` leads back to the first thread in `met`. `path` then contains the path.
fn follow(view: &mut dyn View, wait: &Wait, met: &mut Vec<Thread>, path: &mut Vec<Link>) -> bool {
    for holder in view.holders(wait) {
        let (keepers, is_certain) = view.keepers_of(holder, &wait.key);
        for thread in keepers {
            path.push(Link { wait: wait.clone(), holder, is_certain });
            if met.first() == Some(&thread) {
                return true;
            }
            if !met.contains(&thread) {
                met.push(thread);
                if let Some(next) = view.wait_of(thread)
                    && follow(view, &next, met, path)
                {
                    return true;
                }
            }
            path.pop();
        }
    }
    false
}

pub(crate) fn are_held(view: &mut dyn View, ring: &[Link]) -> bool {
    ring.iter().all(|link| view.holders(&link.wait).contains(&link.holder))
}

/// The second half of a confirmation, after [`are_held`]: whether the threads are still in the same waits, by
/// their ids. Then they acquired nothing since the first reading, so the holders have not changed either.
pub(crate) fn are_waited_for(view: &mut dyn View, ring: &[Link]) -> bool {
    ring.iter().zip(ring.iter().cycle().skip(1)).all(|(link, next)| {
        let is_same =
            view.wait_of(link.wait.thread).is_some_and(|wait| wait.record.id == link.wait.record.id);
        is_same && view.keepers_of(link.holder, &link.wait.key).0.contains(&next.wait.thread)
    })
}

/// The wait to end if the client breaks deadlocks: the youngest that may be ended. All clients choose the
/// same one, because they compare the same published times.
pub(crate) fn youngest(ring: &[Link]) -> Option<&Wait> {
    let can_end = ring.iter().map(|link| &link.wait).filter(|wait| !wait.record.takes_again);
    can_end.max_by_key(|wait| (wait.record.at_ms, wait.thread.client.as_u128(), wait.record.id))
}

pub(crate) type RingKey = Vec<(u128, u64)>;

pub(crate) fn key_of(ring: &[Link]) -> RingKey {
    let of_wait = |link: &Link| (link.wait.thread.client.as_u128(), link.wait.record.id);
    let mut key: RingKey = ring.iter().map(of_wait).collect();
    key.sort_unstable();
    key
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::directory::LockUse;
    use crate::engine::stuck::OwnWait;

    pub(crate) fn wait(thread: Thread, id: u64, key: &str, number: u64) -> Wait {
        let (key, kind) = (key.to_owned(), Kind::Mutex);
        let record = WaitRecord { id, kind: kind.label().to_owned(), ..WaitRecord::default() };
        Wait { thread, number, key, kind, record }
    }

    pub(crate) fn own_wait(wait: Wait) -> OwnWait {
        let shown = LockUse {
            is_waiting: true,
            by: Some(wait.thread.id),
            published: Some(wait.record),
            ..LockUse::new(&wait.key, wait.number, "", Duration::ZERO)
        };
        OwnWait { shown, known: Arc::default() }
    }

    fn link(client: ClientId, id: u64, at_ms: u64, takes_again: bool) -> Link {
        let mut wait = wait(Thread { client, id }, id, "", 1);
        (wait.record.at_ms, wait.record.takes_again) = (at_ms, takes_again);
        Link { wait, holder: Owner::new(client, 1), is_certain: true }
    }

    #[test]
    fn all_clients_of_a_deadlock_choose_the_same_youngest_wait() {
        let mut clients = [ClientId::random(), ClientId::random()];
        clients.sort_by_key(|client| client.as_u128());
        let [low, high] = clients;
        let chosen = |ring: &[Link]| {
            let mut turned = ring.to_vec();
            let mut each = (0..ring.len()).map(|_| {
                turned.rotate_left(1);
                youngest(&turned).map(|wait| wait.record.id)
            });
            let first = each.next().unwrap();
            assert!(each.all(|one| one == first), "two members of the cycle choose different waits");
            first
        };
        assert_eq!(chosen(&[link(high, 1, 500, false), link(low, 2, 501, false)]), Some(2));
        assert_eq!(chosen(&[link(high, 1, 500, false), link(low, 2, 500, false)]), Some(1));
        assert_eq!(chosen(&[link(low, 1, 500, false), link(low, 2, 500, false)]), Some(2));
        // A wait that reacquires its lock after a condition is never ended.
        assert_eq!(chosen(&[link(low, 1, 500, false), link(high, 2, 501, true)]), Some(1));
        assert_eq!(chosen(&[link(low, 1, 500, true), link(high, 2, 501, true)]), None);
    }

    /// Two owners, each of which holds the lock that the other waits for. Owner `1` also waits for `7`, which
    /// waits for nobody.
    struct Crossed(ClientId);

    impl View for Crossed {
        fn holders(&mut self, wait: &Wait) -> Vec<Owner> {
            let of = |number| Owner::new(self.0, number);
            if wait.record.id == 1 { vec![of(7), of(2)] } else { vec![of(1)] }
        }

        fn keepers_of(&mut self, holder: Owner, _key: &str) -> (Vec<Thread>, bool) {
            (vec![Thread { client: self.0, id: holder.number() }], true)
        }

        fn wait_of(&mut self, thread: Thread) -> Option<Wait> {
            (thread.id < 3).then(|| link(self.0, thread.id, 0, false).wait)
        }
    }

    #[test]
    fn a_holder_that_does_not_wait_is_in_no_cycle() {
        let client = ClientId::random();
        let mut view = Crossed(client);
        let ring = ring_of(&mut view, &link(client, 1, 0, false).wait).unwrap();
        assert_eq!(ring.iter().map(|link| link.holder.number()).collect::<Vec<_>>(), [2, 1]);
        assert!(are_held(&mut view, &ring) && are_waited_for(&mut view, &ring));
    }
}
