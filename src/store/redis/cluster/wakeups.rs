//! Wake-ups in a cluster: a lock's channel is listened to where its slot is, and moves along with it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use super::slots::{Endpoint, SlotMap, slot};
use crate::lock::topic::{Listening, Source, Topic};
use crate::store::redis::hub::Hub;
use crate::sync::{Mutex, Waker};

pub(super) struct Wakeups {
    homes: Mutex<Homes>,
    /// For handing itself out as a topic's source.
    me: Weak<Wakeups>,
}

struct Homes {
    /// By this map the topics are where they are. It follows the one that requests go by.
    map: Arc<SlotMap>,
    hubs: HashMap<Endpoint, Arc<Hub>>,
    /// Topics that somebody listens to and whose slot no member has, as far as is known, by channel.
    astray: HashMap<Box<str>, Arc<Topic>>,
}

impl Homes {
    fn of(&self, channel: &str) -> Option<&Arc<Hub>> {
        self.hubs.get(self.map.primary(slot(channel))?)
    }

    /// The same, of a member that nothing was asked of yet too.
    fn find(&mut self, channel: &str, hub: impl FnOnce(&Endpoint) -> Option<Arc<Hub>>) -> Option<Arc<Hub>> {
        let endpoint = self.map.primary(slot(channel))?;
        if let Some(hub) = self.hubs.get(endpoint) {
            return Some(Arc::clone(hub));
        }
        let hub = hub(endpoint)?;
        self.hubs.insert(endpoint.clone(), Arc::clone(&hub));
        Some(hub)
    }
}

impl Wakeups {
    pub(super) fn new() -> Arc<Wakeups> {
        let homes = Homes { map: Arc::new(SlotMap::new()), hubs: HashMap::new(), astray: HashMap::new() };
        Arc::new_cyclic(|me| Wakeups { homes: Mutex::new(homes), me: me.clone() })
    }

    /// Has `waker` woken at each message on `channel`, at the hub that `hub` knows for a member.
    pub(super) fn listen(
        &self,
        channel: &str,
        waker: &Waker,
        hub: impl FnOnce(&Endpoint) -> Option<Arc<Hub>>,
    ) -> Option<Listening> {
        let me = self.me.upgrade()?;
        let (home, listening) = {
            let mut homes = self.homes.lock();
            let Some(home) = homes.find(channel, hub) else {
                let topic = homes.astray.entry(channel.into());
                let topic = topic.or_insert_with(|| Arc::new(Topic::new(channel, false)));
                return Some(Listening::new(Arc::clone(topic), me, waker));
            };
            if let Some(topic) = homes.astray.remove(channel) {
                home.adopt(topic, None);
            }
            let listening = home.listen_for(channel, waker, me);
            (home, listening)
        };
        // Without the lock, which each attempt takes.
        home.flush();
        listening
    }

    pub(super) fn heard(&self, channel: &str) -> Option<u64> {
        self.homes.lock().of(channel)?.heard(|| channel.to_owned())
    }

    /// Moves the topics to where their slots are by the `latest` map: under the lock, so that of two who follow at the
    /// same time the later one does not go by the older map. All who wait for one that moves look again, now and when the new
    /// subscription stands: a release in between passes unheard. One whose slot nobody has moves when somebody has it.
    pub(super) fn follow(
        &self,
        latest: impl FnOnce() -> Arc<SlotMap>,
        hub: impl Fn(&Endpoint) -> Option<Arc<Hub>>,
    ) {
        let mut homes = self.homes.lock();
        let map = latest();
        let mut moving = Vec::new();
        for (endpoint, hub) in &homes.hubs {
            let stays = map.is_primary(endpoint);
            moving.extend(
                hub.part_with(|channel| map.primary(slot(channel)).map_or(!stays, |now| now != endpoint)),
            );
        }
        moving.extend(homes.astray.drain().map(|(_, topic)| (topic, None)));
        homes.map = Arc::clone(&map);
        homes.hubs.retain(|endpoint, hub| {
            let stays = map.is_primary(endpoint);
            if !stays {
                hub.dismiss();
            }
            stays
        });
        for (topic, idle_since) in moving {
            match homes.find(topic.channel(), &hub) {
                Some(hub) => hub.adopt(topic, idle_since),
                None if topic.listeners() > 0 => drop(homes.astray.insert(topic.channel().into(), topic)),
                None => {}
            }
        }
        let hubs: Vec<_> = homes.hubs.values().cloned().collect();
        drop(homes);
        hubs.iter().for_each(|hub| hub.flush());
    }
}

impl Source for Wakeups {
    fn left(&self, topic: &Arc<Topic>) {
        let hub = {
            let mut homes = self.homes.lock();
            // Joined under this lock too: one that has just been joined is not dropped.
            if topic.listeners() == 0
                && homes.astray.get(topic.channel()).is_some_and(|own| Arc::ptr_eq(own, topic))
            {
                homes.astray.remove(topic.channel());
            }
            homes.of(topic.channel()).cloned()
        };
        if let Some(hub) = hub {
            hub.left(topic);
        }
    }
}

impl fmt::Debug for Wakeups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeups").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::RedisOptions;
    use crate::hosts::Host;
    use crate::lock::report::Reporter;
    use crate::store::redis::address::Address;
    use crate::store::redis::hub::PLAIN;

    const CHANNEL: &str = "redisson_lock__channel:{lk}";

    /// A member's hub, at a port where nobody listens.
    fn hub() -> Arc<Hub> {
        let options = RedisOptions { url: "redis://127.0.0.1:1".to_owned(), ..RedisOptions::default() };
        let address = Arc::new(Address::new(&options).unwrap());
        let (linger, silence) = (Duration::ZERO, Duration::from_secs(5));
        Hub::new(address, Arc::new(Reporter::new(None)), linger, silence, &[PLAIN])
    }

    fn has_topic(hub: &Hub) -> bool {
        hub.state.lock().topics.contains_key(CHANNEL)
    }

    #[test]
    fn a_topic_whose_slot_nobody_has_is_followed_once_somebody_has_it() {
        let [one, other] = [7001, 7002].map(|port| Endpoint { host: Host::named("127.0.0.1"), port });
        let map = |endpoint: Option<&Endpoint>| {
            let mut map = SlotMap::new();
            endpoint.into_iter().for_each(|endpoint| map.set(slot(CHANNEL), endpoint));
            Arc::new(map)
        };
        let wakeups = Wakeups::new();
        let (waker, hubs) = (Waker::default(), [hub(), hub()]);
        let of = |endpoint: &Endpoint| Some(Arc::clone(&hubs[usize::from(*endpoint == other)]));
        // Nobody has it when somebody comes to listen, and nobody again later; then its member cannot be reached yet.
        let first = wakeups.listen(CHANNEL, &waker, of).unwrap();
        wakeups.follow(|| map(Some(&one)), of);
        assert!(has_topic(&hubs[0]));
        wakeups.follow(|| map(None), of);
        assert!(!has_topic(&hubs[0]));
        wakeups.follow(|| map(Some(&other)), |_| None);
        wakeups.follow(|| map(Some(&other)), of);
        assert!(has_topic(&hubs[1]));
        // Who comes now listens to the same topic, which ends with the last of them.
        let second = wakeups.listen(CHANNEL, &waker, of).unwrap();
        assert_eq!(hubs[1].state.lock().topics[CHANNEL].topic.listeners(), 2);
        drop((first, second));
        assert!(!has_topic(&hubs[1]));
        // Nor does one stay that nobody listens to.
        wakeups.follow(|| map(None), of);
        drop(wakeups.listen(CHANNEL, &waker, of));
        assert!(wakeups.homes.lock().astray.is_empty());
        hubs.iter().for_each(|hub| hub.close());
    }
}
