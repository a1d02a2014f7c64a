//! Locks that Java and Rust share on a Redis Cluster, with plain and with sharded messages to waiters.

use leasehold::ClusterPubSub;

use crate::agent::{Peer, Pending};
use crate::java;
use crate::scene::{alone, monotonic, own_time_between, turn};
use crate::support::cluster::Cluster;
use crate::support::prelude::*;
use crate::waking::{javas_unlock_wakes_rust, kept_the_promise, our_unlock_wakes_java};

/// A Java waiter that misses its message would try again only at the end of this long lease.
const LEASE: Duration = Duration::from_secs(30);

struct Sides {
    cluster: Cluster,
    java: Peer,
    rust: LockClient,
    counted: &'static [&'static str],
}

fn sides(mode: &str, way: ClusterPubSub, counted: &'static [&'static str]) -> Option<Sides> {
    let cluster = Cluster::start()?;
    let java = java::connect_to_cluster(&cluster.members[0].url(), LEASE, mode)?;
    let builder = LockClient::builder().url(cluster.url()).cluster_pub_sub(way).lease(LEASE);
    let rust = builder.command_timeout(Duration::from_millis(500)).build().unwrap();
    Some(Sides { cluster, java, rust, counted })
}

impl Sides {
    /// Waits until a PUBSUB command in `counted` shows a waiter's subscription, and the waiter has retried.
    fn somebody_waits(&self, name: &str) {
        self.somebody_listens(name, &format!("redisson_lock__channel:{{{name}}}"));
    }

    fn somebody_listens(&self, name: &str, channel: &str) {
        let primary = self.cluster.primary_of(name);
        let listens = |count: &&str| {
            let (_, count): (String, i64) = self.cluster.ask(primary, &["PUBSUB", count, channel]);
            count > 0
        };
        wait_until("a waiter has subscribed", Duration::from_secs(10), || self.counted.iter().any(&listens));
        // The waiter tries again right after it subscribes. That attempt must not find the lock free, so this
        // waits until no more scripts run.
        let scripts = || -> u64 { self.cluster.scripts_run(primary) };
        let mut before = scripts();
        let is_quiet = || {
            let now = scripts();
            std::mem::replace(&mut before, now) == now
        };
        wait_until("the waiter has tried again", Duration::from_secs(10), is_quiet);
    }

    fn wake_each_other(&self, what: &str) {
        let waits = |name: &str, _| self.somebody_waits(name);
        let delays = javas_unlock_wakes_rust(&self.java, &self.rust, (&|| 0, &waits));
        kept_the_promise(&format!("cluster, {what}, Java to Rust"), delays);
        let delays = our_unlock_wakes_java(&self.java, &self.rust, (&|| 0, &waits));
        kept_the_promise(&format!("cluster, {what}, Rust to Java"), delays);
    }

    fn queue_up(&self) {
        for primary in 0..3 {
            let name = self.cluster.name_on(primary, "fair");
            let lock = self.rust.get_fair_lock(&name);
            self.java.get("holder", "fair-lock", &[&name]);
            let mut waiters = Vec::new();
            for place in 0..6 {
                if place % 2 == 0 {
                    let thread = format!("{name}-{place}");
                    let got = self.java.ask(&thread, "fair-lock", &[&name]);
                    let unlocked = self.java.ask(&thread, "fair-unlock", &[&name]);
                    waiters.push(call(move || {
                        let got = got.wait();
                        unlocked.wait().expect_ok();
                        got.ended
                    }));
                } else {
                    waiters.push(turn(&lock));
                }
                wait_until("the waiter is in the queue", Duration::from_secs(20), || {
                    let queue = format!("redisson_lock_queue:{{{name}}}");
                    self.cluster.ask::<usize>(primary, &["LLEN", &queue]) == place + 1
                });
            }
            self.java.get("holder", "fair-unlock", &[&name]);
            let got: Vec<u64> = waiters.into_iter().map(Call::join).collect();
            assert!(got.is_sorted(), "{got:?}");
        }
    }

    /// Two Java readers that wait for our writer are both granted the lock when it releases.
    fn readers_are_told(&self, name: &str) {
        let lock = self.rust.get_read_write_lock(name);
        let writing = lock.write().acquire().unwrap();
        assert!(!self.java.is("reader", "read-try", &[name]));
        let readers = ["one", "two"].map(|thread| self.java.ask(thread, "read-lock", &[name]));
        // A reader between its failed attempt and its sleep may miss the message, so both must sleep.
        wait_until("both sleep", Duration::from_secs(20), || {
            self.java.get("main", "asleep", &["one,two"]) == "2"
        });
        assert!(readers.iter().all(Pending::is_open), "a reader came in while Rust writes");
        let begun = monotonic();
        writing.unlock().unwrap();
        let got = readers.map(|reader| reader.wait_for(LEASE * 2));
        assert!(!lock.write().try_lock().unwrap());
        for thread in ["one", "two"] {
            self.java.get(thread, "read-unlock", &[name]);
        }
        for got in got {
            assert_eq!(got.result, Ok(String::new()));
            let took = own_time_between(begun, got.ended);
            assert!(took < LEASE / 2, "Java was not notified: {took:?}");
        }
    }

    /// On each primary, two readers share a lock, a writer excludes all, and each language wakes the other.
    fn read_and_write(&self) {
        for primary in 0..3 {
            let name = self.cluster.name_on(primary, "rw");
            let channel = format!("redisson_rwlock:{{{name}}}");
            let lock = self.rust.get_read_write_lock(&name);
            let reading = lock.read().acquire().unwrap();
            assert!(self.java.is("reader", "read-try", &[&name]));
            assert!(!self.java.is("writer", "write-try", &[&name]));
            reading.unlock().unwrap();
            let waiter = turn(lock.write());
            self.somebody_listens(&name, &channel);
            assert!(waiter.is_open(), "a writer came in while Java reads");
            self.java.get("reader", "read-unlock", &[&name]);
            waiter.join();
            self.readers_are_told(&name);
            assert!(self.java.is("writer", "write-try", &[&name]));
            assert!(!lock.read().try_lock().unwrap());
            self.java.get("writer", "write-unlock", &[&name]);
        }
    }

    fn exclude_each_other(&self) {
        for primary in 0..3 {
            let name = self.cluster.name_on(primary, "shared");
            let lock = self.rust.get_fenced_lock(&name);
            self.java.get("holder", "lock", &[&name]);
            assert!(!lock.try_lock().unwrap());
            assert!(lock.is_locked().unwrap());
            let error = lock.unlock().unwrap_err();
            assert!(error.to_string().contains(&self.java.owner("holder")), "{error}");
            self.java.get("holder", "unlock", &[&name]);
            let guard = lock.acquire().unwrap();
            assert!(!self.java.is("holder", "try", &[&name]));
            guard.unlock().unwrap();
            assert!(self.java.is("holder", "try", &[&name]));
            self.java.get("holder", "unlock", &[&name]);
        }
    }
}

#[test]
fn sharded_messages_wake_java_and_rust_waiters_on_a_cluster() {
    let _alone = alone();
    let Some(sides) = sides("AUTO", ClusterPubSub::Auto, &["SHARDNUMSUB"]) else { return };
    sides.exclude_each_other();
    sides.wake_each_other("sharded");
}

#[test]
fn java_and_rust_share_fair_and_read_write_locks_on_a_cluster() {
    let _alone = alone();
    let Some(sides) = sides("AUTO", ClusterPubSub::Auto, &["SHARDNUMSUB"]) else { return };
    sides.queue_up();
    sides.read_and_write();
    let Sides { cluster, java, .. } = sides;
    drop(java);
    let Some(java) = java::connect_to_cluster(&cluster.members[0].url(), LEASE, "OFF") else { return };
    let builder = LockClient::builder().url(cluster.url()).cluster_pub_sub(ClusterPubSub::Plain).lease(LEASE);
    let rust = builder.command_timeout(Duration::from_millis(500)).build().unwrap();
    let sides = Sides { cluster, java, rust, counted: &["NUMSUB"] };
    sides.queue_up();
    sides.read_and_write();
}

#[test]
fn plain_messages_wake_java_and_rust_waiters_on_a_cluster() {
    let _alone = alone();
    let Some(sides) = sides("OFF", ClusterPubSub::Plain, &["NUMSUB"]) else { return };
    sides.exclude_each_other();
    sides.wake_each_other("plain");
}

#[test]
fn on_a_cluster_plain_and_sharded_messages_wake_java_waiters() {
    let _alone = alone();
    let Some(sides) = sides("OFF", ClusterPubSub::Both, &["NUMSUB"]) else { return };
    sides.wake_each_other("both beside plain");
    let Sides { cluster, java, rust, .. } = sides;
    drop(java);
    let Some(java) = java::connect_to_cluster(&cluster.members[0].url(), LEASE, "ON") else { return };
    Sides { cluster, java, rust, counted: &["SHARDNUMSUB"] }.wake_each_other("both beside sharded");
}
