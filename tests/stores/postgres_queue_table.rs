//! PostgreSQL: the wait queue's table is missing or locked, or the user may not use it.

use crate::databases::Database;
use crate::support::postgres::PostgresServer;
use crate::support::prelude::*;

test_on!(a_client_without_the_queues_table_is_refused, PostgresServer::start(), |server| {
    let mut admin = server.admin();
    server.client();
    let as_few = || LockClient::builder().url(server.url_as("few")).build();
    admin.batch_execute("CREATE USER few; GRANT SELECT ON leasehold_locks TO few").unwrap();
    assert!(!as_few().unwrap().get_lock("a").is_locked().unwrap(), "who takes no locks needs no queue");
    admin.batch_execute("GRANT INSERT, UPDATE, DELETE ON leasehold_locks TO few").unwrap();
    fails_saying(as_few(), ErrorKind::NoPermission, "public.leasehold_locks_wait_queue");
    admin.batch_execute("DROP TABLE leasehold_locks_wait_queue").unwrap();
    fails_saying(LockClient::builder().url(server.url()).build(), ErrorKind::Unsupported, "create_schema()");
    admin.batch_execute("REVOKE INSERT, UPDATE, DELETE ON leasehold_locks FROM few").unwrap();
    assert!(!as_few().unwrap().get_lock("a").is_locked().unwrap(), "a user who may only read needs no queue");
});

// An administrator revokes permissions or drops the table while clients run.
test_on!(locks_are_released_without_the_queues_table, PostgresServer::start(), |server| {
    let mut admin = server.admin();
    let watcher = server.client();
    admin.batch_execute("CREATE USER few; GRANT ALL ON ALL TABLES IN SCHEMA public TO few").unwrap();
    let client = LockClient::builder().url(server.url_as("few")).build().unwrap();
    let locks = ["revoked", "dropped", "forced"].map(|name| client.get_lock(name));
    locks.iter().for_each(|lock| lock.lock().unwrap());
    admin.batch_execute("REVOKE ALL ON leasehold_locks_wait_queue FROM few").unwrap();
    locks[0].unlock().unwrap();
    assert!(!watcher.get_lock("revoked").is_locked().unwrap());
    fails(locks[0].try_lock_for(ms(100)), ErrorKind::NoPermission);
    admin.batch_execute("DROP TABLE leasehold_locks_wait_queue").unwrap();
    locks[1].unlock().unwrap();
    assert!(locks[2].force_unlock().unwrap());
    for name in ["dropped", "forced"] {
        assert!(!watcher.get_lock(name).is_locked().unwrap(), "{name}");
    }
});

test_on!(a_locked_queue_table_delays_no_release, PostgresServer::start(), |server| {
    watch_for_stalls();
    let (client, mut admin) = (server.client(), server.admin());
    let locks = ["released", "forced"].map(|name| client.get_lock(name));
    locks.iter().for_each(|lock| lock.lock().unwrap());
    admin.batch_execute("BEGIN; LOCK TABLE leasehold_locks_wait_queue").unwrap();
    let begun = now();
    locks[0].unlock().unwrap();
    assert!(own_time_since(begun) < ms(2_500), "{:?}", begun.elapsed());
    let begun = now();
    assert!(locks[1].force_unlock().unwrap());
    assert!(own_time_since(begun) < ms(2_500), "{:?}", begun.elapsed());
    locks.iter().for_each(|lock| assert!(!lock.is_locked().unwrap()));
    fails(locks[0].try_lock_for(ms(100)), ErrorKind::TimedOut);
    admin.batch_execute("COMMIT").unwrap();
});
