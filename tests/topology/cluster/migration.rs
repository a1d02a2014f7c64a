//! Slots move between the members of a cluster while clients use locks in them.

use leasehold::ClusterPubSub::{Auto, Plain};

use super::load::{self, T, assert_all_was_given_back, builder, on_cluster};
use crate::rounds;
use crate::support::cluster::Cluster;
use crate::support::observer::{Event, Seen};
use crate::support::prelude::*;

/// The time limit for 48 threads to hold the lock for 1 ms each, on a busy machine.
const SOON: Duration = ms(8_000);

fn is_failure(event: &Event, names: &[&String]) -> bool {
    match event {
        Event::ReleaseFailed(name, _) | Event::RenewalFailed(name, _) => names.contains(&name),
        _ => false,
    }
}

/// A key's slot, and its move from one member to another by the steps of `redis-cli --cluster reshard`.
struct Move<'a> {
    cluster: &'a Cluster,
    slot: String,
    members: [usize; 2],
    ids: [String; 2],
}

impl Move<'_> {
    /// Tells both members that the slot moves. No key moves yet.
    fn begin<'a>(cluster: &'a Cluster, key: &str, from: usize, to: usize) -> Move<'a> {
        let ids = [from, to].map(|member| cluster.id(member));
        let this = Move { cluster, slot: cluster.slot(key).to_string(), members: [from, to], ids };
        this.set(1, "IMPORTING", 0);
        this.set(0, "MIGRATING", 1);
        this
    }

    fn set(&self, at: usize, state: &str, other: usize) {
        let words = ["CLUSTER", "SETSLOT", &self.slot, state, &self.ids[other]];
        self.cluster.on(self.members[at], &words);
    }

    fn take(&self, key: &str) {
        let port = self.cluster.members[self.members[1]].port().to_string();
        // The answer NOKEY is no failure: the key has expired or was deleted.
        self.cluster.on(self.members[0], &["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }

    /// Makes the new member the slot's owner. All keys must have been moved or be gone.
    fn end(self) {
        self.set(1, "NODE", 1);
        self.set(0, "NODE", 1);
    }
}

/// Moves a key's slot with all its keys. `between` runs when both members know of the move, before keys move.
fn move_slot(cluster: &Cluster, key: &str, to: usize, between: impl FnOnce()) {
    let from = cluster.primary_seen_by(to, key);
    let slot = Move::begin(cluster, key, from, to);
    between();
    loop {
        let keys: Vec<String> = cluster.ask(from, &["CLUSTER", "GETKEYSINSLOT", &slot.slot, "1"]);
        let Some(key) = keys.first() else { break };
        slot.take(key);
    }
    slot.end();
}

#[test]
fn moving_slots_cause_no_error_or_second_holder() {
    alone_within(LONG * 6, || {
        stalled_since(now());
        let Some(cluster) = Cluster::start() else { return };
        let tag = fresh("slot");
        let mut names: Vec<String> = (0..4).map(|at| format!("{at}{{{tag}}}")).collect();
        names.push(fresh("elsewhere"));
        let (load, seen) = load::start(&cluster, &names, T * 6);
        let (home, begun) = (cluster.primary_of(&tag), now());
        let moves = 10 * rounds();
        for number in 0..moves {
            move_slot(&cluster, &tag, (home + number + 1) % 3, || {
                let_pass(ms(20), "requests are to meet the keys on either side");
            });
            let_pass(ms(30), "requests are to go to the old member first");
        }
        for name in &names {
            load.await_grant(name);
        }
        let longest = load.longest_gap(&names, begun);
        // Fair and read-write locks have several keys. While these are on two members, a release is reported
        // as failed and repeated, so only the other locks are checked.
        let single = [&names[0], &names[1], &names[4]];
        let failures: Vec<_> = seen.events().into_iter().filter(|event| is_failure(event, &single)).collect();
        assert_eq!((&failures[..], seen.losses()), (&[][..], 0));
        let (grants, unknown) = load::end(load);
        assert_eq!(unknown, 0, "unlocks of unknown outcome");
        assert_all_was_given_back(&cluster);
        shout(&format!(
            "COUNTED cluster, {moves} slot moves: {grants} grants, 0 held twice, 0 errors; \
             longest time without a grant {} ms",
            longest.as_millis()
        ));
    });
}

/// Each waiter's grants are counted, because a sum would not show a waiter without grants.
#[test]
fn every_waiter_is_granted_after_its_slot_moved() {
    const THREADS: usize = 8;
    on_cluster(|cluster| {
        let name = cluster.name_on(0, "shared");
        let clients: Vec<_> =
            (0..6).map(|_| builder(cluster).command_timeout(T * 6).build().unwrap()).collect();
        let grants: Arc<Vec<AtomicUsize>> = Arc::new((0..6 * THREADS).map(|_| AtomicUsize::new(0)).collect());
        let is_over = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..6 * THREADS)
            .map(|number| {
                let (lock, grants) = (clients[number % 6].get_lock(&name), Arc::clone(&grants));
                let is_over = Arc::clone(&is_over);
                start(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        let held = lock.acquire().unwrap();
                        let_pass(ms(1), "the work under the lock");
                        held.unlock().unwrap();
                        grants[number].fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let counts = || grants.iter().map(|count| count.load(Ordering::SeqCst)).collect::<Vec<_>>();
        let all_get_it = |within: Duration| {
            let before = counts();
            eventually(within, || counts().iter().zip(&before).all(|(now, before)| now > before))
        };
        assert!(all_get_it(LONG), "before the first move: {:?}", counts());
        for round in 0..rounds() {
            move_slot(cluster, &name, (round + 1) % 3, || {
                let_pass(ms(20), "requests are to meet the keys on either side");
            });
            // Each thread's wait for its second grant lies entirely after the move, so the test awaits two.
            for _ in 0..2 {
                let (before, begun) = (counts(), now());
                let all = all_get_it(SOON);
                let none: Vec<usize> =
                    counts().iter().zip(before).map(|(now, before)| now - before).collect();
                assert!(all, "move {round}: grants of each waiter in {:?}: {none:?}", begun.elapsed());
            }
        }
        is_over.store(true, Ordering::SeqCst);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn a_release_after_a_slot_move_wakes_the_waiter() {
    on_cluster(|cluster| {
        let seen = Seen::default();
        for (number, way) in [Auto, Plain, Auto, Plain].into_iter().enumerate() {
            let builder = || builder(cluster).cluster_pub_sub(way);
            let holder = builder().build().unwrap();
            let waiter = builder().observer(seen.clone()).build().unwrap();
            let name = cluster.name_on(0, "moving");
            let held = holder.get_fenced_lock(&name).acquire().unwrap();
            let waiting = call(turn(waiter.get_lock(&name)));
            let count = if way == Plain { "NUMSUB" } else { "SHARDNUMSUB" };
            let listens =
                |member: usize| listening_clients(&name, count, |command| cluster.ask(member, command)) > 0;
            assert!(eventually(LONG, || listens(0)));
            move_slot(cluster, &name, 1, || ());
            // When the old member ends a sharded subscription, the client tries the lock, and finds the new
            // member. A plain subscription stays, since plain messages reach all members.
            assert!(
                way == Plain || eventually(LONG, || listens(1)),
                "the client does not listen at the new member"
            );
            let released = now();
            held.unlock().unwrap();
            let (woken, _) = waiting.outcome();
            let took = woken.saturating_duration_since(released);
            // A waiter that lost its message would poll up to a second later.
            assert!(took < ms(500) + stalled_since(released), "round {number}: woken after {took:?}");
            drop((holder, waiter));
        }
        // The client must keep the subscriber connection, which may carry the messages of other locks.
        assert_eq!(seen.count(|event| matches!(event, Event::NoWakeups(_))), 0, "{:?}", seen.events());
    });
}

/// While a slot moves, the client finds moved keys, and creates new keys, on the new member.
#[test]
fn moved_and_new_locks_are_usable_while_their_slot_moves() {
    on_cluster(|cluster| {
        let client = builder(cluster).build().unwrap();
        let tag = cluster.name_on(0, "tag");
        let name = |what: &str| format!("{what}{{{tag}}}");
        let before = client.get_lock(name("before")).acquire().unwrap();
        let dropped = client.get_lock(name("dropped")).acquire().unwrap();
        let token = client.get_token_lock(name("token")).acquire().unwrap();
        let slot = Move::begin(cluster, &tag, 0, 1);
        ["before", "dropped", "token"].iter().for_each(|what| slot.take(&name(what)));
        let end = || now() + before.remaining();
        let so_far = end();
        assert!(eventually(LONG, || end() > so_far + ms(100)), "the hold was not renewed");
        assert!(client.get_lock(before.name()).is_locked().unwrap());
        crate::support::elsewhere(|| assert!(!client.get_lock(before.name()).try_lock().unwrap()));
        before.unlock().unwrap();
        token.unlock().unwrap();
        drop(dropped);
        for what in ["before", "dropped", "new"] {
            let lock = client.get_lock(name(what));
            lock.lock().unwrap();
            lock.lock().unwrap();
            assert_eq!(lock.hold_count().unwrap(), 2);
            lock.unlock().unwrap();
            lock.unlock().unwrap();
            assert!(lock.try_lock().unwrap());
            assert!(lock.force_unlock().unwrap());
        }
        client.get_token_lock(name("token")).acquire().unwrap().unlock().unwrap();
        slot.end();
        client.get_lock(name("after")).acquire().unwrap().unlock().unwrap();
    });
}

/// A lock with its key and its queue's key (`line`), whose slot begins to move from member 0 to member 1.
struct Queued<'a> {
    name: String,
    line: String,
    held: Guard,
    waiting: Call<()>,
    slot: Move<'a>,
}

fn queued<'a>(cluster: &'a Cluster, holder: &LockClient, waiter: &LockClient) -> Queued<'a> {
    let name = cluster.name_on(0, "line");
    let line = format!("leasehold_lock_queue:{{{name}}}");
    let held = holder.get_lock(&name).acquire().unwrap();
    let lock = waiter.get_lock(&name);
    let waiting = call(move || lock.acquire().unwrap().unlock().unwrap());
    assert!(eventually(LONG, || cluster.ask::<i64>(0, &["ZCARD", &line]) == 1));
    let slot = Move::begin(cluster, &name, 0, 1);
    Queued { name, line, held, waiting, slot }
}

/// The queue has moved already, and the lock has not. Then no waiter is notified, but no call fails, and the
/// client does not take the members' errors for missing permissions.
#[test]
fn a_lock_is_granted_when_only_its_queue_has_moved() {
    on_cluster(|cluster| {
        for way in [Auto, Plain] {
            let client = || builder(cluster).cluster_pub_sub(way).command_timeout(T * 6).build().unwrap();
            let (holder, waiter, other) = (client(), client(), client());
            let Queued { name, line, held, waiting, slot } = queued(cluster, &holder, &waiter);
            slot.take(&line);
            assert!(!other.get_lock(&name).try_lock().unwrap());
            assert!(!other.get_lock(&name).try_lock_for(ms(50)).unwrap());
            let released = now();
            held.unlock().unwrap();
            waiting.returns_within(released, ms(1_200), "taking over");
            let turn = other.get_lock(&name).acquire().unwrap();
            turn.unlock().unwrap();
            slot.end();
            for client in [&holder, &waiter, &other] {
                let guard = client.get_lock(&name).acquire().unwrap();
                assert_eq!(&guard.owner().to_string()[14..15], "8", "{way:?}: of {}", client.id());
                guard.unlock().unwrap();
            }
            cluster.on(1, &["DEL", &line]);
            drop((holder, waiter, other));
        }
    });
}

/// The lock has moved already, and the queue has not. A second queue, on the new member, would then make the
/// move of the queue fail with BUSYKEY.
#[test]
fn no_queue_begins_on_the_new_member_before_the_old_queue_moves() {
    on_cluster(|cluster| {
        let client = || builder(cluster).command_timeout(T * 6).build().unwrap();
        let (holder, waiter, other) = (client(), client(), client());
        let Queued { name, line, held, waiting, slot } = queued(cluster, &holder, &waiter);
        slot.take(&name);
        assert!(!other.get_lock(&name).try_lock_for(ms(300)).unwrap());
        slot.take(&line);
        slot.end();
        held.unlock().unwrap();
        waiting.outcome();
    });
}

/// A fenced lock has a key and a counter. While they are on two members, nobody can acquire the lock.
#[test]
fn fenced_locks_wait_while_their_keys_are_on_two_members() {
    on_cluster(|cluster| {
        let client = builder(cluster).build().unwrap();
        let name = cluster.name_on(0, "apart");
        let first = client.get_fenced_lock(&name).acquire().unwrap();
        let fence = first.fencing_token();
        first.unlock().unwrap();
        let slot = Move::begin(cluster, &name, 0, 1);
        // The old member has the counter, and no member has the lock's key, so the old member answers TRYAGAIN.
        let error = client.get_fenced_lock(&name).try_acquire().unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("TRYAGAIN"), "{error}");
        let is_done = Arc::new(AtomicBool::new(false));
        let waiting =
            call_on((client.clone(), name.clone(), Arc::clone(&is_done)), move |(client, name, is_done)| {
                let guard = client.get_fenced_lock(&name).acquire().unwrap();
                assert!(is_done.load(Ordering::SeqCst), "the call returned before the move was done");
                let fence = guard.fencing_token();
                guard.unlock().unwrap();
                fence
            });
        let_pass(ms(100), "the call is to be refused a few times");
        is_done.store(true, Ordering::SeqCst);
        slot.take(&format!("redisson_lock_token:{{{name}}}"));
        slot.end();
        assert!(waiting.outcome().0 > fence);
    });
}
