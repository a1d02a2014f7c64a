//! Cluster members fail, or a replica and its primary change places, while clients use locks.

use super::load::{self, L, POLL, T, assert_nothing_is_left, builder};
use crate::rounds;
use crate::support::cluster::Cluster;
use crate::support::load::Load;
use crate::support::prelude::*;

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Killed,
    Stopped,
    Planned,
}

#[derive(Default)]
struct Figures {
    /// For each failover: the time from the fault until the replica accepted writes.
    failover: Vec<Duration>,
    /// For each lock of the replaced primary: the longest time without a grant.
    gap: Vec<Duration>,
    /// For each failover: the time from a release after it to the grant to another client's waiter.
    woken: Vec<Duration>,
    /// For each failover: the time from a key's deletion after it to the notification of the lock's holder.
    notified: Vec<Duration>,
}

#[test]
fn a_killed_primary_never_allows_two_holders() {
    failovers(Fault::Killed, "kill -9");
}

#[test]
fn a_stopped_primary_never_allows_two_holders() {
    failovers(Fault::Stopped, "pause");
}

#[test]
fn a_planned_failover_causes_no_loss_and_no_error() {
    failovers(Fault::Planned, "planned failover");
}

fn failovers(fault: Fault, what: &str) {
    alone_within(Duration::from_secs(60 + 30 * rounds() as u64), || {
        stalled_since(now());
        let Some(mut cluster) = Cluster::start_for_failovers() else { return };
        let names: Vec<String> = (0..6).map(|at| cluster.name_on(at / 2, "load")).collect();
        // A planned failover pauses the primary for less than this longer time-out, and so loses no answer.
        let (load, seen) = load::start(&cluster, &names, if fault == Fault::Planned { T * 6 } else { T });
        let mut figures = Figures::default();
        for round in 0..rounds() {
            let first = 2 * (round % 3);
            failover(fault, &mut cluster, &load, &names[first..first + 2], &mut figures);
        }
        let lost = seen.losses();
        let (grants, unknown) = load::end(load);
        assert_eq!(lost, 0, "a hold was lost, though each stayed within its window");
        // If a member fails before it answers a hand-off (a release to a waiter of the same client), the
        // client cannot repeat the hand-off, so the unlock reports an unknown outcome.
        assert!(fault != Fault::Planned || unknown == 0, "{unknown} unlocks of unknown outcome");
        assert_nothing_is_left(&cluster);
        shout(&format!(
            "COUNTED cluster, {what}, {} rounds: {grants} grants, 0 held twice, 0 errors, {unknown} unlocks of unknown outcome; \
             failover {}, longest time without a grant {}, woken after it {}, told of a loss {}",
            rounds(),
            spread(&figures.failover),
            spread(&figures.gap),
            spread(&figures.woken),
            spread(&figures.notified)
        ));
    });
}

fn spread(all: &[Duration]) -> String {
    let millis = |duration: Option<&Duration>| duration.map_or(0, |duration| duration.as_millis());
    format!("{}–{} ms", millis(all.iter().min()), millis(all.iter().max()))
}

fn failover(fault: Fault, cluster: &mut Cluster, load: &Load, names: &[String], figures: &mut Figures) {
    let primary = cluster.primary_of(&names[0]);
    let replica = cluster.replica_of(primary);
    let (holder, waiter) = (builder(cluster).build().unwrap(), builder(cluster).build().unwrap());
    let name = cluster.name_on(primary, "held");
    let held = holder.get_fenced_lock(&name).acquire().unwrap();
    let lost_name = cluster.name_on(primary, "lost");
    let losing = holder.get_lock(&lost_name).acquire().unwrap();
    let losses = losing.lost();
    let waiting = call(turn(RedisLock::from(waiter.get_fenced_lock(&name))));
    let has = |key: &str| {
        let acknowledged: i64 = cluster.ask(primary, &["WAIT", "1", "1000"]);
        acknowledged == 1 && cluster.ask::<i64>(primary, &["EXISTS", key]) == 1
    };
    assert!(eventually(LONG, || has(&name) && has(&lost_name)), "no replication");
    load.await_grant(&names[0]);

    let begun = now();
    match fault {
        Fault::Killed => cluster.members[primary].kill(),
        Fault::Stopped => cluster.members[primary].stop(),
        Fault::Planned => drop(cluster.on(replica, &["CLUSTER", "FAILOVER"])),
    }
    let probe = format!("test:{{{}}}", names[0]);
    let mut asked = now();
    let takes_writes = || {
        let mut admin = cluster.members[replica].admin();
        let takes = redis::cmd("SET").arg(&probe).arg(1).exec(&mut admin).is_ok();
        // After 5 s the servers give a failover up without an error, so the test requests another.
        if fault == Fault::Planned && !takes && asked.elapsed() > ms(6_000) {
            asked = now();
            redis::cmd("CLUSTER").arg("FAILOVER").exec(&mut admin).ok(); // the replica may be promoted by now
        }
        takes
    };
    assert!(eventually(LONG, takes_writes), "the replica is not promoted");
    let failover = begun.elapsed();
    figures.failover.push(failover);
    for name in names {
        load.await_grant(name);
        let gap = load.longest_gap(std::slice::from_ref(name), begun);
        figures.gap.push(gap);
        assert!(gap <= failover + POLL + stalled_since(begun), "no grant for {gap:?}, failover {failover:?}");
    }

    held.check().unwrap();
    let released = now();
    held.unlock().unwrap();
    let (woken, _) = waiting.outcome();
    figures.woken.push(woken.saturating_duration_since(released));
    within(released, woken, POLL, "woken after the failover");

    // The key is deleted, as if the hold had not been replicated in time.
    let gone = now();
    assert_eq!(cluster.ask::<i64>(replica, &["DEL", &lost_name]), 1);
    losses.recv_timeout(LONG).unwrap();
    let told = now();
    figures.notified.push(told - gone);
    within(gone, told, L / 3 + T + SLACK, "told of a loss");
    assert!(losing.unlock().unwrap_err().is_lost());

    match fault {
        Fault::Killed => cluster.members[primary].restart(),
        Fault::Stopped => cluster.members[primary].cont(),
        Fault::Planned => {}
    }
    cluster.wait_until_whole();
    holder.shutdown().unwrap();
    waiter.shutdown().unwrap();
}

#[track_caller]
fn within(from: Instant, to: Instant, promised: Duration, what: &str) {
    let (took, stalled) = (to.saturating_duration_since(from), stalled_since(from));
    assert!(
        took <= promised + stalled,
        "{what} after {took:?}, not {promised:?} (the machine stood still for {stalled:?})"
    );
}

#[test]
fn timed_waits_fail_in_time_while_slots_have_no_server() {
    alone_within(Duration::from_secs(120), || {
        stalled_since(now());
        let Some(mut cluster) = Cluster::start_for_failovers() else { return };
        let client = builder(&cluster).retry_timeout(ms(8000)).build().unwrap();
        let (here, gone) = (cluster.name_on(0, "here"), cluster.name_on(1, "gone"));
        client.get_lock(&here).acquire().unwrap().unlock().unwrap();
        let replica = cluster.replica_of(1);
        cluster.members[1].kill();
        cluster.members[replica].kill();
        // A third of the slots has no owner, so all members refuse requests.
        let refused = || client.get_lock(&here).try_acquire().is_err_and(|error| error.is_retryable());
        assert!(eventually(LONG, refused), "CLUSTERDOWN");
        for name in [&here, &gone] {
            let begun = now();
            let error = client.get_lock(name).try_lock_for(ms(300)).unwrap_err();
            assert!(error.is_retryable() && !error.outcome_unknown(), "{error:?}");
            within(begun, now(), ms(300) + T + SLACK, "given up");
        }
        let waiting = [here, gone].map(|name| {
            let client = client.clone();
            call(move || client.get_lock(&name).acquire().unwrap().unlock().unwrap())
        });
        cluster.members[1].restart();
        cluster.members[replica].restart();
        for call in waiting {
            call.outcome();
        }
        drop(client);
        assert_nothing_is_left(&cluster);
    });
}
