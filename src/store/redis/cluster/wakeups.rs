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
}

impl Homes {
    fn of(&self, channel: &str) -> Option<&Arc<Hub>> {
        self.hubs.get(self.map.primary(slot(channel))?)
    }
}

impl Wakeups {
    pub(super) fn new() -> Arc<Wakeups> {
        let homes = Homes { map: Arc::new(SlotMap::new()), hubs: HashMap::new() };
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
            if homes.of(channel).is_none() {
                let endpoint = homes.map.primary(slot(channel))?.clone();
                let hub = hub(&endpoint)?;
                homes.hubs.insert(endpoint, hub);
            }
            let home = Arc::clone(homes.of(channel)?);
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
    /// subscription stands: a release in between passes unheard.
    pub(super) fn follow(
        &self,
        latest: impl FnOnce() -> Arc<SlotMap>,
        hub: impl Fn(&Endpoint) -> Option<Arc<Hub>>,
    ) {
        let mut homes = self.homes.lock();
        let map = latest();
        let mut moving = Vec::new();
        for (endpoint, hub) in &homes.hubs {
            moving.extend(
                hub.part_with(|channel| map.primary(slot(channel)).is_some_and(|now| now != endpoint)),
            );
        }
        homes.map = Arc::clone(&map);
        homes.hubs.retain(|endpoint, hub| {
            let stays = map.is_primary(endpoint);
            if !stays {
                hub.dismiss();
            }
            stays
        });
        for (topic, idle_since) in moving {
            let Some(endpoint) = map.primary(slot(topic.channel())) else { continue };
            if !homes.hubs.contains_key(endpoint)
                && let Some(hub) = hub(endpoint)
            {
                homes.hubs.insert(endpoint.clone(), hub);
            }
            if let Some(hub) = homes.hubs.get(endpoint) {
                hub.adopt(topic, idle_since);
            }
        }
        let hubs: Vec<_> = homes.hubs.values().cloned().collect();
        drop(homes);
        hubs.iter().for_each(|hub| hub.flush());
    }
}

impl Source for Wakeups {
    fn left(&self, topic: &Arc<Topic>) {
        let hub = self.homes.lock().of(topic.channel()).cloned();
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
