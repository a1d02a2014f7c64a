//! PostgreSQL: a lock that its client keeps until others ask for it, and those who ask in their own way.

use std::time::{Duration, Instant};

use leasehold::{LockClient, RedisLock};
use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;

use crate::databases::Database;
use crate::support::postgres::PostgresServer;
use crate::support::stalls::stalled_since;
use crate::support::{LONG, SLACK, eventually, fresh, let_pass, ms, now, start};

const TAKE: &str = include_str!("../../src/stores/sql/query/postgres/take.sql");
const RECALL: &str = include_str!("../../src/stores/sql/query/postgres/recall.sql");
const LOOK_KEPT: &str = include_str!("../../src/stores/sql/query/postgres/look_kept.sql");

/// The longest time between two looks at what is kept, and the time from a grant to the first.
const LOOK: Duration = ms(500);
const FIRST_LOOK: Duration = ms(50);

fn is_free(lock: &RedisLock, admin: &mut Client) -> bool {
    let text = "SELECT NOT EXISTS (SELECT FROM leasehold_locks WHERE id = sha256($1) AND owner <> '' AND expires_at > now())";
    admin.query_one(text, &[&lock.name().as_bytes()]).unwrap().get(0)
}

/// Uses a lock until its client keeps it.
#[track_caller]
fn use_until_kept(lock: &RedisLock, admin: &mut Client) {
    let is_kept = || {
        lock.lock().unwrap();
        lock.unlock().unwrap();
        !is_free(lock, admin)
    };
    assert!(eventually(LONG, is_kept), "it is given back each time");
}

#[track_caller]
fn is_free_within(lock: &RedisLock, admin: &mut Client, since: Instant, limit: Duration) {
    assert!(eventually(LONG, || is_free(lock, admin)), "it is never given back");
    let took = since.elapsed();
    assert!(took <= limit + SLACK + stalled_since(since), "it was given back after {took:?}");
}

fn kept_by(client: &LockClient, label: &str, admin: &mut Client) -> RedisLock {
    let lock = client.lock_with(fresh(label)).keep(LONG).build();
    use_until_kept(&lock, admin);
    lock
}

#[test]
fn a_hold_is_recalled_once_and_a_look_sees_that_or_who_stands_in_line() {
    let Some(server) = PostgresServer::start() else { return };
    server.client();
    let (mut admin, name) = (server.admin(), fresh("recalled"));
    let (key, channel) = (name.as_bytes(), "leasehold_keeper");
    admin.batch_execute(&format!("LISTEN {channel}")).unwrap();
    let take = |admin: &mut Client, keeper: Option<&str>| {
        let row = admin.query_one(
            TAKE,
            &[&key, &false, &"keeper:1", &30_000_i64, &false, &"host", &1_i64, &"thread", &keeper],
        );
        row.unwrap().get::<_, Option<String>>(5)
    };
    let look = |admin: &mut Client| {
        let idle = Some(20_i64);
        let rows =
            admin.query(LOOK_KEPT, &[&key, &false, &"keeper:1", &30_000_i64, &idle, &"keeper"]).unwrap();
        rows.first().map(|row| row.get::<_, bool>(0))
    };
    let recall = |admin: &mut Client| admin.query(RECALL, &[&key, &channel]).unwrap().len();
    assert_eq!(look(&mut admin), None, "nobody holds it");
    assert_eq!(take(&mut admin, Some(channel)), None);
    assert_eq!(look(&mut admin), Some(false));
    assert_eq!([recall(&mut admin), recall(&mut admin)], [1, 0]);
    let told = admin.notifications().timeout_iter(LONG).next().unwrap().unwrap();
    assert_eq!((told.channel(), told.payload()), (channel, "recall"));
    assert_eq!(look(&mut admin), Some(true), "it was recalled");
    take(&mut admin, None);
    assert_eq!((look(&mut admin), recall(&mut admin)), (Some(true), 0), "it is not kept");
    take(&mut admin, Some(channel));
    let stand = "INSERT INTO leasehold_locks_line (id, client, channel, since, seen, is_told)
        VALUES (sha256($1), $2, 'nobody', now(), clock_timestamp() - $3::text::interval, false)";
    for (client, asked_ago, is_wanted) in
        [("keeper", "0", false), ("dead", "6 seconds", false), ("waits", "-1 minute", true)]
    {
        admin.execute(stand, &[&key, &client, &asked_ago]).unwrap();
        assert_eq!(look(&mut admin), Some(is_wanted), "{client}");
    }
}

/// One of a version that sends no recall, or that died before it did.
#[test]
fn who_stands_in_line_and_sends_no_recall_is_seen_by_a_look() {
    let Some(server) = PostgresServer::start() else { return };
    let (client, mut admin) = (server.client(), server.admin());
    let lock = kept_by(&client, "unasked", &mut admin);
    let text = "INSERT INTO leasehold_locks_line (id, client, channel, since, seen, is_told)
        VALUES (sha256($1), 'silent', 'nobody', now(), clock_timestamp() + interval '1 minute', false)";
    let stands = now();
    admin.execute(text, &[&lock.name().as_bytes()]).unwrap();
    is_free_within(&lock, &mut admin, stands, LOOK);
}

#[test]
fn clients_that_may_not_use_the_line_ask_for_what_is_kept_and_keep_nothing_beyond_the_first_look() {
    let Some(server) = PostgresServer::start() else { return };
    let (client, mut admin) = (server.client(), server.admin());
    let permissions = "CREATE USER few; GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold_locks TO few";
    admin.batch_execute(permissions).unwrap();
    let few = LockClient::builder().url(server.url_as("few")).build().unwrap();
    let lock = kept_by(&client, "few", &mut admin);
    let_pass(ms(1_000), "until looks are half a second apart");
    let (theirs, asked) = (few.lock(lock.name()), now());
    let waiter = start(move || theirs.lock().map(|()| theirs.unlock()));
    waiter.join().unwrap().unwrap().unwrap();
    // By a look alone it would never come: nobody sees who listens.
    assert!(asked.elapsed() <= LOOK + SLACK + stalled_since(asked), "{:?}", asked.elapsed());
    let lock = few.lock_with(fresh("theirs")).keep(LONG).build();
    lock.lock().unwrap();
    lock.unlock().unwrap();
    is_free_within(&lock, &mut admin, now(), FIRST_LOOK);
}

#[test]
fn what_is_kept_is_given_back_when_the_session_that_hears_recalls_ends() {
    let Some(server) = PostgresServer::start() else { return };
    let (client, mut admin) = (server.client(), server.admin());
    let lock = kept_by(&client, "deaf", &mut admin);
    let text = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND query LIKE '%SHOW transaction_read_only'";
    let cut = now();
    assert_eq!(admin.query_one(text, &[]).unwrap().get::<_, i64>(0), 1);
    is_free_within(&lock, &mut admin, cut, FIRST_LOOK);
    use_until_kept(&lock, &mut admin);
}
