//! The nodes of this client's owners, and until when each holds its lock.

use std::sync::Arc;

use crate::ident::Owner;
use crate::seam::Family;
use crate::seam::subscription::{Channel, Channels};
use crate::shrink::CrowdMap;
use crate::stores::zookeeper::life::{Life, Window};
use crate::sync::Mutex;
use crate::time::Moment;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PlaceKey {
    pub(super) path: Arc<str>,
    pub(super) owner: Owner,
    /// The two halves of a read-write lock have separate places.
    pub(super) family: Family,
}

#[derive(Debug)]
struct NodePlace {
    /// Wakes the owner when the node before its own has ended, or when the connection has ended.
    topic: Arc<Channel>,
    node: Option<LockNode>,
    /// Whether a creation had no answer, so that the node may exist, or still be created.
    in_doubt: bool,
    held: Option<HeldNode>,
}

#[derive(Debug, Clone)]
pub(super) struct LockNode {
    pub(super) name: Arc<str>,
    /// The number of the transaction that created the node: the fencing token. It grows over all locks.
    pub(super) transaction: u64,
    pub(super) life: Arc<Life>,
}

impl LockNode {
    pub(super) fn path(&self, key: &PlaceKey) -> String {
        format!("{}/{}", key.path, self.name)
    }
}

#[derive(Debug, Clone)]
pub(super) struct HeldNode {
    pub(super) count: u32,
    /// The end of the lease. This client then deletes the node, because the servers know no leases.
    pub(super) until: Moment,
    pub(super) window: Arc<Window>,
    ending: bool,
}

impl HeldNode {
    pub(super) fn new(count: u32, until: Moment, window: Arc<Window>) -> HeldNode {
        HeldNode { count, until, window, ending: false }
    }
}

#[derive(Debug, Default)]
pub(super) struct NodePlaces {
    entries: Mutex<CrowdMap<PlaceKey, NodePlace>>,
    /// The channels of cached locks, by the lock's path. A waiter, or the connection's end, notifies them.
    pub(super) recalls: Channels,
}

pub(super) struct KnownNodes {
    pub(super) node: Option<LockNode>,
    pub(super) in_doubt: bool,
}

impl NodePlaces {
    pub(super) fn topic(&self, key: &PlaceKey) -> Arc<Channel> {
        let mut entries = self.entries.lock();
        Arc::clone(&entries.entry(key.clone()).or_insert_with(|| NodePlace::new(key)).topic)
    }

    /// The node that the owner has, and whether there may be another. `None` if nothing is known of the
    /// owner. A node that ended with its session does not count.
    pub(super) fn known(&self, key: &PlaceKey) -> Option<KnownNodes> {
        let mut entries = self.entries.lock();
        let place = entries.get_mut(key)?;
        if place.node.as_ref().is_some_and(|node| node.life.is_over()) {
            (place.node, place.held) = (None, None);
        }
        Some(KnownNodes { node: place.node.clone(), in_doubt: place.in_doubt })
    }

    pub(super) fn stands(&self, key: &PlaceKey) -> bool {
        self.known(key).is_some_and(|known| known.node.is_some())
    }

    pub(super) fn holding(&self, key: &PlaceKey) -> Option<(LockNode, HeldNode)> {
        let entries = self.entries.lock();
        let place = entries.get(key)?;
        let held = place.held.clone().filter(|held| !held.ending)?;
        let node = place.node.clone().filter(|node| !node.life.is_over())?;
        Some((node, held))
    }

    pub(super) fn set_doubt(&self, key: &PlaceKey) {
        self.entries.lock().entry(key.clone()).or_insert_with(|| NodePlace::new(key)).in_doubt = true;
    }

    pub(super) fn set_node(&self, key: &PlaceKey, node: Option<LockNode>) {
        let mut entries = self.entries.lock();
        let place = entries.entry(key.clone()).or_insert_with(|| NodePlace::new(key));
        (place.node, place.held, place.in_doubt) = (node, None, false);
    }

    pub(super) fn set_held(&self, key: &PlaceKey, held: HeldNode) {
        if let Some(place) = self.entries.lock().get_mut(key) {
            place.held = Some(held);
        }
    }

    /// Sets an existing hold's count, if one is given, and prolongs the hold to `until`, unless it lasts
    /// longer already.
    pub(super) fn keep(&self, key: &PlaceKey, count: Option<u32>, until: Moment) {
        if let Some(held) = self.entries.lock().get_mut(key).and_then(|place| place.held.as_mut()) {
            held.count = count.unwrap_or(held.count);
            held.until = held.until.max(until);
        }
    }

    pub(super) fn remove(&self, key: &PlaceKey) {
        self.entries.lock().remove(key);
    }

    pub(super) fn remove_node(&self, key: &PlaceKey, node: &LockNode) {
        let mut entries = self.entries.lock();
        if entries.get(key).is_some_and(|place| place.node.as_ref().is_some_and(|own| own.name == node.name))
        {
            entries.remove(key);
        }
    }

    pub(super) fn until(&self, path: &str, name: &str) -> Option<Moment> {
        let entries = self.entries.lock();
        let mut here = entries.iter().filter(|(key, _)| *key.path == *path).map(|(_, place)| place);
        let place = here.find(|place| place.node.as_ref().is_some_and(|node| *node.name == *name))?;
        place.held.as_ref().map(|held| held.until)
    }

    pub(super) fn wake_all(&self) {
        let topics: Vec<_> = self.entries.lock().values().map(|place| Arc::clone(&place.topic)).collect();
        topics.iter().for_each(|topic| topic.notify());
        self.recalls.notify_all();
    }

    /// The nodes to delete now, because their leases or their windows ([`Window`]) have ended; and when the
    /// next lease ends.
    pub(super) fn take_ended(&self, now: Moment) -> (Vec<(PlaceKey, LockNode)>, Moment) {
        let (mut ended, mut next) = (Vec::new(), Moment::NEVER);
        let mut entries = self.entries.lock();
        entries.retain(|_, place| {
            place.held.is_none() || place.node.as_ref().is_some_and(|node| !node.life.is_over())
        });
        for (key, place) in entries.iter_mut() {
            let (Some(node), Some(held)) = (&place.node, &mut place.held) else { continue };
            if held.ending {
                continue;
            }
            if held.until <= now || held.window.is_closed() {
                held.ending = true;
                ended.push((key.clone(), node.clone()));
            } else {
                next = next.min(held.until);
            }
        }
        (ended, next)
    }

    pub(super) fn put_back(&self, key: &PlaceKey) {
        if let Some(held) = self.entries.lock().get_mut(key).and_then(|place| place.held.as_mut()) {
            held.ending = false;
        }
    }
}

impl NodePlace {
    fn new(key: &PlaceKey) -> NodePlace {
        NodePlace { topic: Arc::new(Channel::new(&key.path, true)), node: None, in_doubt: false, held: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seam::subscription::tests::Nobody;
    use crate::sync::Waker;

    #[test]
    fn wake_all_also_wakes_listeners_for_recalls() {
        let (places, waker) = (NodePlaces::default(), Waker::default());
        let _listening = places.recalls.listen("/a", Arc::new(Nobody), &waker);
        places.wake_all();
        assert!(waker.take());
    }

    fn key() -> PlaceKey {
        let owner = Owner::new(crate::ident::ClientId::random(), 7);
        PlaceKey { path: "/a".into(), owner, family: Family::Lock }
    }

    fn node(name: &str, life: &Arc<Life>) -> LockNode {
        LockNode { name: name.into(), transaction: 1, life: Arc::clone(life) }
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn held(name: &str, until: Moment) -> (NodePlaces, PlaceKey, Arc<Life>) {
        let (places, key) = (NodePlaces::default(), key());
        let life = Arc::new(Life::new(1, Vec::new(), std::time::Duration::from_secs(30)));
        places.set_node(&key, Some(node(name, &life)));
        places.set_held(&key, HeldNode::new(1, until, life.window()));
        (places, key, life)
    }

    #[test]
    fn forgetting_an_old_node_keeps_the_owners_new_node() {
        let (places, key, life) = held("old", at(10));
        places.set_doubt(&key);
        places.set_node(&key, Some(node("new", &life)));
        assert!(places.holding(&key).is_none(), "the node may not hold the lock");
        assert!(!places.known(&key).unwrap().in_doubt);
        places.remove_node(&key, &node("old", &life));
        assert!(places.stands(&key));
        places.remove_node(&key, &node("new", &life));
        assert!(!places.stands(&key));
    }

    #[test]
    fn an_expired_holds_node_is_deleted_and_failures_are_retried() {
        let (places, key, _life) = held("n", at(10));
        let ended = |now| places.take_ended(at(now)).0.len();
        assert_eq!((ended(9), places.take_ended(at(9)).1), (0, at(10)));
        places.keep(&key, None, at(8));
        assert_eq!(ended(9), 0, "the shorter lease shortened the hold");
        assert!(places.holding(&key).is_some());
        assert_eq!((ended(10), ended(11)), (1, 0));
        assert!(places.holding(&key).is_none(), "the hold is being removed");
        places.put_back(&key);
        assert_eq!(ended(12), 1);
    }

    #[test]
    fn a_node_of_an_ended_session_needs_no_deletion() {
        let (places, key, life) = held("n", at(10));
        life.end();
        assert!(places.holding(&key).is_none());
        assert!(!places.stands(&key) && places.until("/a", "n").is_none());
        let (places, key, life) = held("n", at(10));
        life.end();
        assert!(places.take_ended(at(11)).0.is_empty());
        assert!(places.known(&key).is_none());
    }

    #[test]
    fn each_hold_of_a_session_has_its_own_end() {
        let (places, key, life) = held("n", at(10));
        for (name, until) in [("m", 20), ("o", 30)] {
            let other = PlaceKey { owner: Owner::new(key.owner.client(), until), ..key.clone() };
            places.set_node(&other, Some(node(name, &life)));
            places.set_held(&other, HeldNode::new(1, at(until), life.window()));
        }
        let until = |name| places.until("/a", name);
        assert_eq!([until("n"), until("m"), until("o")], [Some(at(10)), Some(at(20)), Some(at(30))]);
        assert_eq!((until("p"), places.until("/b", "n")), (None, None));
    }
}
