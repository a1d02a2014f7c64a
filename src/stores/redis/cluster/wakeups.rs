//! Notifications in a cluster. A lock's channel is on the member with the lock's slot.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::stores::redis::cluster::slots::{SlotMap, slot};
use crate::stores::redis::conn::connection::Endpoint;
use crate::stores::redis::pubsub::Subscriber;
use crate::sync::{Mutex, Waker};

pub(super) struct ClusterWakeups {
    homes: Mutex<ChannelHomes>,
    me: Weak<ClusterWakeups>,
}

struct ChannelHomes {
    /// The slot map by which channels were last moved.
    map: Arc<SlotMap>,
    hubs: HashMap<Endpoint, Arc<Subscriber>>,
}

impl ChannelHomes {
    fn of(&self, channel: &str) -> Option<&Arc<Subscriber>> {
        self.hubs.get(self.map.primary(slot(channel))?)
    }

    fn find(
        &mut self,
        channel: &str,
        subscriber: impl FnOnce(&Endpoint) -> Option<Arc<Subscriber>>,
    ) -> Option<Arc<Subscriber>> {
        let endpoint = self.map.primary(slot(channel))?;
        if let Some(subscriber) = self.hubs.get(endpoint) {
            return Some(Arc::clone(subscriber));
        }
        let subscriber = subscriber(endpoint)?;
        self.hubs.insert(endpoint.clone(), Arc::clone(&subscriber));
        Some(subscriber)
    }
}

impl ClusterWakeups {
    pub(super) fn new() -> Arc<ClusterWakeups> {
        let homes = ChannelHomes { map: Arc::new(SlotMap::new()), hubs: HashMap::new() };
        Arc::new_cyclic(|me| ClusterWakeups { homes: Mutex::new(homes), me: me.clone() })
    }

    /// Subscribes at the member of the channel's slot. If no member is known, the waiter polls.
    pub(super) fn listen(
        &self,
        channel: &str,
        waker: &Waker,
        subscriber: impl FnOnce(&Endpoint) -> Option<Arc<Subscriber>>,
    ) -> Option<Subscription> {
        let me = self.me.upgrade()?;
        let (home, listening) = {
            let mut homes = self.homes.lock();
            let home = homes.find(channel, subscriber)?;
            let listening = home.listen_for(channel, waker, me);
            (home, listening)
        };
        // Waking writes to a socket, so `homes` is unlocked before: every attempt needs that mutex.
        home.wake();
        listening
    }

    pub(super) fn message_count(&self, channel: &str) -> Option<u64> {
        self.homes.lock().of(channel)?.message_count(|| Some(channel))
    }

    pub(super) fn end_soon(&self, channel: &str) {
        let subscriber = self.homes.lock().of(channel).cloned();
        if let Some(subscriber) = subscriber {
            subscriber.end_soon(channel);
        }
    }

    /// Moves each channel to the member of its slot by the `latest` map. Calls `latest` under the mutex, so
    /// that no thread replaces a newer map by an older one. All waiters of a moved channel ask the store
    /// again, now and after the new subscription, because messages sent between the two are lost.
    pub(super) fn follow(
        &self,
        latest: impl FnOnce() -> Arc<SlotMap>,
        subscriber: impl Fn(&Endpoint) -> Option<Arc<Subscriber>>,
    ) {
        let mut homes = self.homes.lock();
        let map = latest();
        let mut moving = Vec::new();
        for (endpoint, subscriber) in &homes.hubs {
            let stays = map.is_primary(endpoint);
            moving.extend(
                subscriber
                    .part_with(|channel| map.primary(slot(channel)).map_or(!stays, |now| now != endpoint)),
            );
        }
        homes.map = Arc::clone(&map);
        homes.hubs.retain(|endpoint, subscriber| {
            let stays = map.is_primary(endpoint);
            if !stays {
                subscriber.dismiss();
            }
            stays
        });
        for (channel, idle_since) in moving {
            // If no member is known for its slot, the channel is dropped, and its waiters poll.
            if let Some(subscriber) = homes.find(channel.channel(), &subscriber) {
                subscriber.adopt(channel, idle_since);
            }
        }
        let hubs: Vec<_> = homes.hubs.values().cloned().collect();
        drop(homes);
        hubs.iter().for_each(|subscriber| subscriber.wake());
    }
}

impl ChannelSource for ClusterWakeups {
    fn left(&self, channel: &Arc<Channel>) {
        let subscriber = self.homes.lock().of(channel.channel()).cloned();
        if let Some(subscriber) = subscriber {
            subscriber.left(channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::ServerOptions;
    use crate::hosts::Host;
    use crate::observe::reporter::Reporter;
    use crate::seam::hub::Hub;
    use crate::stores::redis::address::RedisAddress;
    use crate::stores::redis::pubsub::{PLAIN, RedisPubSub};

    const CHANNEL: &str = "redisson_lock__channel:{lk}";

    fn subscriber() -> Arc<Subscriber> {
        let options = ServerOptions { url: "redis://127.0.0.1:1".to_owned(), ..ServerOptions::default() };
        let address = Arc::new(RedisAddress::new(&options).unwrap());
        let protocol = RedisPubSub { address, silence: Duration::from_secs(5), modes: &[PLAIN] };
        Hub::new(protocol, Some(Arc::new(Reporter::new(None))), Duration::ZERO)
    }

    fn has_topic(subscriber: &Subscriber) -> bool {
        subscriber.state.lock().channels.contains_key(CHANNEL)
    }

    #[test]
    fn a_channel_can_be_subscribed_when_its_slot_gets_a_member() {
        let [one, other] = [7001, 7002].map(|port| Endpoint { host: Host::named("127.0.0.1"), port });
        let map = |endpoint: &Endpoint| Arc::new(SlotMap::of(slot(CHANNEL), endpoint));
        let wakeups = ClusterWakeups::new();
        let (waker, hubs) = (Waker::default(), [subscriber(), subscriber()]);
        let of = |endpoint: &Endpoint| Some(Arc::clone(&hubs[usize::from(*endpoint == other)]));
        assert!(wakeups.listen(CHANNEL, &waker, of).is_none());
        wakeups.follow(|| map(&one), of);
        let first = wakeups.listen(CHANNEL, &waker, of).unwrap();
        assert!(has_topic(&hubs[0]));
        wakeups.follow(|| map(&other), of);
        assert!(!has_topic(&hubs[0]) && has_topic(&hubs[1]));
        let second = wakeups.listen(CHANNEL, &waker, of).unwrap();
        assert_eq!(hubs[1].state.lock().channels[CHANNEL].channel.listeners(), 2);
        drop((first, second));
        assert!(!has_topic(&hubs[1]));
        // A listener drops its subscription while the channel has no member.
        let last = wakeups.listen(CHANNEL, &waker, of).unwrap();
        wakeups.follow(|| map(&one), |_| None);
        assert!(!has_topic(&hubs[1]));
        drop(last);
        hubs.iter().for_each(|subscriber| subscriber.close());
    }
}
