//! Wake-ups in a cluster: a lock's channel is on the member that has its slot, and moves with it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::stores::redis::cluster::slots::{Endpoint, SlotMap, slot};
use crate::stores::redis::pubsub::Subscriber;
use crate::sync::{Mutex, Waker};

pub(super) struct ClusterWakeups {
    homes: Mutex<ChannelHomes>,
    me: Weak<ClusterWakeups>,
}

struct ChannelHomes {
    /// Decides where each channel is. Follows the map that requests use.
    map: Arc<SlotMap>,
    hubs: HashMap<Endpoint, Arc<Subscriber>>,
    /// Channels with listeners whose slot no known member has.
    astray: HashMap<Box<str>, Arc<Channel>>,
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
        let homes =
            ChannelHomes { map: Arc::new(SlotMap::new()), hubs: HashMap::new(), astray: HashMap::new() };
        Arc::new_cyclic(|me| ClusterWakeups { homes: Mutex::new(homes), me: me.clone() })
    }

    pub(super) fn listen(
        &self,
        channel: &str,
        waker: &Waker,
        subscriber: impl FnOnce(&Endpoint) -> Option<Arc<Subscriber>>,
    ) -> Option<Subscription> {
        let me = self.me.upgrade()?;
        let (home, listening) = {
            let mut homes = self.homes.lock();
            let Some(home) = homes.find(channel, subscriber) else {
                let astray = homes.astray.entry(channel.into());
                let astray = astray.or_insert_with(|| Arc::new(Channel::new(channel, false)));
                return Some(Subscription::new(Arc::clone(astray), me, waker));
            };
            if let Some(channel) = homes.astray.remove(channel) {
                home.adopt(channel, None);
            }
            let listening = home.listen_for(channel, waker, me);
            (home, listening)
        };
        // Called without the mutex, since every attempt takes that.
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

    /// Moves the channels to the members that the `latest` map has for their slots. `latest` is called under
    /// the mutex, so that the later of two threads does not use the older map. All waiters of a moved channel
    /// ask the store again, now and when the new subscription is confirmed, because a release in between is
    /// missed. A channel whose slot has no owner moves when the slot has one.
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
        moving.extend(homes.astray.drain().map(|(_, channel)| (channel, None)));
        homes.map = Arc::clone(&map);
        homes.hubs.retain(|endpoint, subscriber| {
            let stays = map.is_primary(endpoint);
            if !stays {
                subscriber.dismiss();
            }
            stays
        });
        for (channel, idle_since) in moving {
            match homes.find(channel.channel(), &subscriber) {
                Some(subscriber) => subscriber.adopt(channel, idle_since),
                None if channel.listeners() > 0 => {
                    drop(homes.astray.insert(channel.channel().into(), channel))
                }
                None => {}
            }
        }
        let hubs: Vec<_> = homes.hubs.values().cloned().collect();
        drop(homes);
        hubs.iter().for_each(|subscriber| subscriber.wake());
    }
}

impl ChannelSource for ClusterWakeups {
    fn left(&self, channel: &Arc<Channel>) {
        let subscriber = {
            let mut homes = self.homes.lock();
            // Listeners also join under this mutex, so a channel that was just joined is not dropped.
            if channel.listeners() == 0
                && homes.astray.get(channel.channel()).is_some_and(|own| Arc::ptr_eq(own, channel))
            {
                homes.astray.remove(channel.channel());
            }
            homes.of(channel.channel()).cloned()
        };
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
    use crate::stores::redis::address::RedisAddress;
    use crate::stores::redis::pubsub::PLAIN;

    const CHANNEL: &str = "redisson_lock__channel:{lk}";

    fn subscriber() -> Arc<Subscriber> {
        let options = ServerOptions { url: "redis://127.0.0.1:1".to_owned(), ..ServerOptions::default() };
        let address = Arc::new(RedisAddress::new(&options).unwrap());
        let (linger, silence) = (Duration::ZERO, Duration::from_secs(5));
        Subscriber::of(address, Arc::new(Reporter::new(None)), linger, silence, &[PLAIN])
    }

    fn has_topic(subscriber: &Subscriber) -> bool {
        subscriber.state.lock().channels.contains_key(CHANNEL)
    }

    #[test]
    fn a_channel_of_an_unserved_slot_is_subscribed_later() {
        let [one, other] = [7001, 7002].map(|port| Endpoint { host: Host::named("127.0.0.1"), port });
        let map = |endpoint: Option<&Endpoint>| {
            let mut map = SlotMap::new();
            endpoint.into_iter().for_each(|endpoint| map.set(slot(CHANNEL), endpoint));
            Arc::new(map)
        };
        let wakeups = ClusterWakeups::new();
        let (waker, hubs) = (Waker::default(), [subscriber(), subscriber()]);
        let of = |endpoint: &Endpoint| Some(Arc::clone(&hubs[usize::from(*endpoint == other)]));
        // The channel has no member when its first listener comes, then gets one, and loses it again.
        let first = wakeups.listen(CHANNEL, &waker, of).unwrap();
        wakeups.follow(|| map(Some(&one)), of);
        assert!(has_topic(&hubs[0]));
        wakeups.follow(|| map(None), of);
        assert!(!has_topic(&hubs[0]));
        wakeups.follow(|| map(Some(&other)), |_| None);
        wakeups.follow(|| map(Some(&other)), of);
        assert!(has_topic(&hubs[1]));
        // A later waiter joins the same channel, which ends with its last listener.
        let second = wakeups.listen(CHANNEL, &waker, of).unwrap();
        assert_eq!(hubs[1].state.lock().channels[CHANNEL].channel.listeners(), 2);
        drop((first, second));
        assert!(!has_topic(&hubs[1]));
        // A channel without a member is forgotten with its last listener.
        wakeups.follow(|| map(None), of);
        drop(wakeups.listen(CHANNEL, &waker, of));
        assert!(wakeups.homes.lock().astray.is_empty());
        hubs.iter().for_each(|subscriber| subscriber.close());
    }
}
