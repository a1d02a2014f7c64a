//! Failovers of a master that Sentinels watch, while clients use locks.

use crate::rounds;
use crate::support::epilogue::{assert_every_hash_has_a_ttl, threads};
use crate::support::load::{Load, Outcome, Use};
use crate::support::prelude::*;
use crate::support::sentinel::{LIMIT, SentinelSet, is_master};

/// The lease of holds that must outlast a failover.
const LEASE: Duration = Duration::from_secs(60);
/// The lease of the load's locks in unplanned failovers. It is shorter than a failover, so that grants which
/// only the old master knows have ended before the new master grants.
const SHORT: Duration = ms(1500);
/// The lease of the load's locks in planned failovers. It outlasts a failover, so that no hold expires.
const OUTLASTING: Duration = ms(12_000);
const NAME: &str = "topology";
pub(crate) const T: Duration = ms(400);
const P: Duration = ms(1200);

pub(crate) fn options(set: &SentinelSet) -> ClientBuilder {
    let options = LockClient::builder().lease(LEASE).command_timeout(T).connect_timeout(ms(2000));
    // The retry time-out outlasts a failover on a machine whose Sentinels stall for a while.
    options.retry_timeout(LIMIT + LONG).unsubscribe_delay(Duration::ZERO).client_name(NAME).url(set.url())
}

struct Round {
    /// The time from the fault until all Sentinels named the new master.
    failover: Duration,
    /// The longest time in which one of the load's locks was not granted.
    gap: Duration,
    /// The time from a release after the failover to a waiter's grant.
    handed: Duration,
}

/// Runs `fault` in each round while clients use locks with this lease. `fault` gets the set and the master's
/// index, and returns the time of the fault. `after` checks the former master before all servers are healed.
fn under_load(
    what: &str,
    lease: Duration,
    fault: impl Fn(&mut SentinelSet, usize) -> Instant,
    after: impl Fn(&SentinelSet, usize),
) -> Option<Outcome> {
    let mut set = SentinelSet::start(&default_server()?);
    let short: Vec<_> = (0..3).map(|_| options(&set).lease(lease).build().unwrap()).collect();
    let (holder, waiting) = (options(&set).build().unwrap(), options(&set).build().unwrap());
    let names = [0, 1, 2].map(|number| fresh(&format!("load:{number}")));
    let fenced = |client: &LockClient, _, name: &str| RedisLock::clone(&client.get_fenced_lock(name));
    let load = Load::start(&short, &names, 6, Use { make: fenced, drops: false });
    let (mut all, mut last) = (Vec::new(), set.master());
    for round in 0..rounds() {
        let held = holder.get_fenced_lock(format!("held:{round}")).acquire().unwrap();
        let handed = holder.get_lock(format!("handed:{round}")).acquire().unwrap();
        let lock = waiting.get_lock(handed.name());
        let waiter = call(move || lock.lock().and_then(|()| lock.unlock()));
        let old = set.master();
        let waits = || subscribers(&set.servers[old], handed.name()) == 1;
        assert!(eventually(LONG, waits), "no thread waits");
        set.await_replicas();

        let begun = fault(&mut set, old);
        let new = set.await_switch(old);
        last = new;
        let switched = now();
        let failover = switched - begun;
        load.await_grants(switched);
        within(switched, P, "serving everyone after the switch");
        held.check().unwrap();
        let owner: Option<u32> = query(&set.servers[new], &["HGET", held.name(), &held.owner().to_string()]);
        assert_eq!(owner, Some(1));
        let released = now();
        handed.unlock().unwrap();
        let (outcome, at) = waiter.outcome();
        outcome.unwrap();
        let handed = at.saturating_duration_since(released);
        assert!(
            handed <= P + SLACK + crate::support::stalled_since(released),
            "the waiter got it after {handed:?}"
        );
        let gap = load.longest_gap(&names, begun);
        after(&set, old);
        held.check().unwrap();
        held.unlock().unwrap();
        all.push(Round { failover, gap, handed });
        for server in set.servers.iter().filter(|server| server.is_running()) {
            assert_every_hash_has_a_ttl(server);
        }
        set.heal();
        // The load goes on, since a faulty client would now use the former master, a replica, and fail.
        throughout(ms(300), || true);
    }
    let outcome = load.stop();
    let middle = |pick: fn(&Round) -> Duration| {
        let mut spans: Vec<_> = all.iter().map(|round| pick(round).as_millis()).collect();
        spans.sort_unstable();
        format!("{}/{} ms", spans[spans.len() / 2], spans[spans.len() - 1])
    };
    shout(&format!(
        "MEASURED sentinel, {what}, {} rounds (median/most): switched after {}, longest \
         without a grant {}, a waiter served {} after the release; {} grants, {} overlaps, {} tokens astray; {:?}",
        all.len(),
        middle(|round| round.failover),
        middle(|round| round.gap),
        middle(|round| round.handed),
        outcome.grants,
        outcome.overlaps,
        outcome.tokens,
        outcome.errors,
    ));
    drop((short, holder, waiting));
    // On a stalled machine the Sentinels may have replaced the master once more. Then releases may be lost,
    // and keys stay until their leases end.
    let limit = if set.master() == last { 2 * OUTLASTING } else { LEASE };
    assert_nothing_is_left_within(&set, limit + SLACK);
    Some(outcome)
}

pub(crate) fn query<T: redis::FromRedisValue>(server: &RedisServer, words: &[&str]) -> T {
    redis::cmd(words[0]).arg(&words[1..]).query(&mut server.admin()).unwrap()
}

fn subscribers(server: &RedisServer, lock: &str) -> usize {
    listening_clients(lock, "NUMSUB", |command| query(server, command))
}

fn connections(server: &RedisServer) -> usize {
    let name = format!("name={NAME} ");
    query::<String>(server, &["CLIENT", "LIST"]).matches(&name).count()
}

/// As [`assert_nothing_is_left`], but a key that only its expiry would remove counts as left. For tests in
/// which every release reached the server.
pub(crate) fn assert_all_was_given_back(set: &SentinelSet) {
    for server in &set.servers {
        for key in query::<Vec<String>>(server, &["KEYS", "*"]) {
            // A replica refuses PERSIST and gets the change from its master, so errors are ignored.
            redis::cmd("PERSIST").arg(key).exec(&mut server.admin()).ok();
        }
    }
    assert_nothing_is_left(set);
}

/// Checks that no thread, connection, subscription or key remains. Waits long enough for the
/// expiry of keys that a fault left.
pub(crate) fn assert_nothing_is_left(set: &SentinelSet) {
    assert_nothing_is_left_within(set, 2 * OUTLASTING + SLACK);
}

/// The key with the format number of this version of leasehold. No client deletes this key.
const FORMAT: &str = "leasehold_client:format";

fn assert_nothing_is_left_within(set: &SentinelSet, limit: Duration) {
    let mut left = Vec::new();
    let clean = eventually(limit, || {
        left.clear();
        left.extend(threads().unwrap_or_default());
        for server in &set.servers {
            let channels: Vec<String> = query(server, &["PUBSUB", "CHANNELS", "redisson*"]);
            let keys: Vec<String> = query(server, &["KEYS", "*"]);
            left.extend(
                channels
                    .into_iter()
                    .chain(keys.into_iter().filter(|key| !key.contains("token") && key != FORMAT)),
            );
            left.extend((0..connections(server)).map(|_| "a connection".to_owned()));
        }
        for sentinel in &set.sentinels {
            // Of all clients here, only this library's speak RESP3, so `resp=3` finds those that are left.
            let list: String = query(sentinel, &["CLIENT", "LIST"]);
            left.extend(list.lines().filter(|line| line.contains(" resp=3")).map(str::to_owned));
        }
        left.is_empty()
    });
    assert!(clean, "left behind: {left:#?}");
}

fn limit() -> Duration {
    Duration::from_secs(60) + (LIMIT + LONG) * rounds() as u32
}

#[test]
fn a_killed_master_loses_no_hold_and_tokens_keep_rising() {
    alone_within(limit(), || {
        let fault = |set: &mut SentinelSet, old: usize| {
            set.servers[old].kill();
            now()
        };
        let Some(outcome) = under_load("kill -9", SHORT, fault, |_, _| {}) else { return };
        assert_eq!(outcome.tokens, 0);
    });
}

#[test]
fn clients_send_nothing_new_to_a_former_master_that_resumes() {
    alone_within(limit(), || {
        let fault = |set: &mut SentinelSet, old: usize| {
            set.servers[old].stop();
            now()
        };
        let back = |set: &SentinelSet, old: usize| {
            let old = &set.servers[old];
            old.cont();
            assert!(is_master(old));
            query::<()>(old, &["SET", "test:stale", "1", "PX", "1"]);
            // Requests sent during the stop still run, so the count begins when no client is connected.
            assert!(eventually(LONG, || connections(old) == 0), "{} connections", connections(old));
            let scripts = || {
                let stats: String = query(old, &["INFO", "commandstats"]);
                stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).map(str::to_owned)
            };
            let before = scripts();
            throughout(ms(1500), || connections(old) == 0 && scripts() == before);
            assert!(is_master(old), "it was demoted before this could be seen");
        };
        let Some(outcome) = under_load("pause", SHORT, fault, back) else { return };
        assert_eq!((outcome.overlaps, outcome.tokens), (0, 0));
    });
}

#[test]
fn a_planned_failover_loses_no_hold() {
    alone_within(limit(), || {
        let fault = |set: &mut SentinelSet, _: usize| set.fail_over();
        let Some(outcome) = under_load("planned failover", OUTLASTING, fault, |_, _| {}) else { return };
        let lost: Vec<_> = outcome.errors.keys().filter(|error| error.starts_with("NotHeld")).collect();
        assert!(lost.is_empty(), "{lost:?}");
        assert_eq!((outcome.overlaps, outcome.tokens), (0, 0));
    });
}
