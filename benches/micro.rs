//! The cost of leasehold itself, without a server: on the memory store. `cargo bench --bench micro`.
//!
//! `./bench` measures the cost of a server.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use divan::{Bencher, black_box};
use leasehold::{LockClient, MemoryStore, RedisLock};

fn main() {
    divan::main();
}

/// A client that already holds `others` locks, and one more lock, which is free.
fn holding(others: usize) -> (LockClient, RedisLock) {
    let client = LockClient::in_memory();
    for number in 0..others {
        client.get_lock(format!("other:{number}")).lock().unwrap();
    }
    let lock = client.get_lock("stock:42");
    (client, lock)
}

/// One thread locks and unlocks. `held` is the number of other locks that its client holds.
mod alone {
    use super::*;

    const HELD: [usize; 3] = [0, 1_000, 100_000];

    #[divan::bench(args = HELD)]
    fn lock_unlock(bencher: Bencher<'_, '_>, held: usize) {
        let (_client, lock) = holding(held);
        bencher.bench_local(|| {
            lock.lock().unwrap();
            lock.unlock().unwrap();
        });
    }

    #[divan::bench(args = HELD)]
    fn guard(bencher: Bencher<'_, '_>, held: usize) {
        let (_client, lock) = holding(held);
        bencher.bench_local(|| drop(lock.acquire().unwrap()));
    }

    #[divan::bench]
    fn explicit_lease(bencher: Bencher<'_, '_>) {
        let (_client, lock) = holding(0);
        bencher.bench_local(|| {
            lock.lock_with_lease(Duration::from_secs(10)).unwrap();
            lock.unlock().unwrap();
        });
    }

    #[divan::bench]
    fn second_level(bencher: Bencher<'_, '_>) {
        let (_client, lock) = holding(0);
        lock.lock().unwrap();
        bencher.bench_local(|| {
            lock.lock().unwrap();
            lock.unlock().unwrap();
        });
    }

    #[divan::bench]
    fn fenced(bencher: Bencher<'_, '_>) {
        let client = LockClient::in_memory();
        let lock = client.get_fenced_lock("stock:42");
        bencher.bench_local(|| {
            black_box(lock.lock_and_get_token().unwrap());
            lock.unlock().unwrap();
        });
    }

    #[divan::bench]
    fn busy_elsewhere(bencher: Bencher<'_, '_>) {
        let store = MemoryStore::new();
        let (ours, theirs) = (LockClient::in_memory_with(&store), LockClient::in_memory_with(&store));
        theirs.get_lock("stock:42").lock().unwrap();
        let lock = ours.get_lock("stock:42");
        bencher.bench_local(|| assert!(!lock.try_lock().unwrap()));
    }

    #[divan::bench]
    fn check(bencher: Bencher<'_, '_>) {
        let (_client, lock) = holding(0);
        let guard = lock.acquire().unwrap();
        bencher.bench_local(|| guard.check().unwrap());
    }
}

/// Up to 32 threads of one client lock at once; the figure is the time of one thread's cycle. A sample has
/// 1,000 cycles, so that the threads run at the same time.
mod together {
    use super::*;

    const THREADS: [usize; 4] = [1, 2, 8, 32];

    #[divan::bench(threads = THREADS, sample_size = 1000)]
    fn one_key(bencher: Bencher<'_, '_>) {
        let (_client, lock) = holding(0);
        bencher.bench(|| {
            lock.lock().unwrap();
            lock.unlock().unwrap();
        });
    }

    #[divan::bench(threads = THREADS, sample_size = 1000)]
    fn own_keys(bencher: Bencher<'_, '_>) {
        let client = LockClient::in_memory();
        bencher
            .with_inputs(|| client.get_lock(format!("stock:{:?}", std::thread::current().id())))
            .bench_refs(|lock| {
                lock.lock().unwrap();
                lock.unlock().unwrap();
            });
    }
}

/// The time to make a lock handle from a name, or to write an owner as text.
mod names {
    use super::*;

    const NAME: &str = "shop:7:stock:42";

    fn with_prefix() -> LockClient {
        LockClient::builder().key_prefix("tenant:3:").build_in_memory(&MemoryStore::new()).unwrap()
    }

    fn mapped() -> LockClient {
        let builder = LockClient::builder().map_names(|name| format!("{{{name}}}"));
        builder.build_in_memory(&MemoryStore::new()).unwrap()
    }

    #[divan::bench]
    fn plain(bencher: Bencher<'_, '_>) {
        let client = LockClient::in_memory();
        bencher.bench_local(|| client.get_lock(black_box(NAME)));
    }

    #[divan::bench]
    fn prefixed(bencher: Bencher<'_, '_>) {
        let client = with_prefix();
        bencher.bench_local(|| client.get_lock(black_box(NAME)));
    }

    #[divan::bench]
    fn mapped_by_a_function(bencher: Bencher<'_, '_>) {
        let client = mapped();
        bencher.bench_local(|| client.get_lock(black_box(NAME)));
    }

    #[divan::bench]
    fn owner_as_text(bencher: Bencher<'_, '_>) {
        let client = LockClient::in_memory();
        bencher.bench_local(|| client.current_owner().to_string());
    }
}
