//! A producer and two consumers with a queue of two places: conditions.
//!
//! A thread that waits for a condition releases the lock during the wait. The queue is a `VecDeque` here; in
//! a real program it is data that the processes share. `cargo run --example work_queue` needs no server; with
//! `REDIS_URL=redis://127.0.0.1:6379` lock and conditions are in Redis.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;

use leasehold::{Condition, LockClient, RedisLock, Result};

const PLACES: usize = 2;
const ORDERS: u32 = 8;

struct Queue {
    lock: RedisLock,
    not_empty: Condition,
    not_full: Condition,
    items: Mutex<VecDeque<Option<u32>>>,
}

impl Queue {
    fn items<R>(&self, look: impl FnOnce(&mut VecDeque<Option<u32>>) -> R) -> R {
        look(&mut self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Appends an item; `None` makes one consumer stop.
    fn put(&self, item: Option<u32>) -> Result<()> {
        let mut guard = self.lock.acquire()?;
        // `wait_while` loops: another thread may be quicker, or a wait may end without a notification.
        self.not_full.wait_while(&mut guard, |_guard| self.items(|items| items.len() == PLACES))?;
        self.items(|items| items.push_back(item));
        // The dropped guard releases the lock, also if `notify_one` fails.
        self.not_empty.notify_one()?;
        Ok(())
    }

    fn take(&self) -> Result<Option<u32>> {
        let mut guard = self.lock.acquire()?;
        self.not_empty.wait_while(&mut guard, |_guard| self.items(|items| items.is_empty()))?;
        let item = self.items(VecDeque::pop_front).flatten();
        self.not_full.notify_one()?;
        Ok(item)
    }
}

fn main() -> Result<()> {
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url)?,
        Err(_) => LockClient::in_memory(),
    };
    let lock = client.get_lock("example:orders");
    let (not_empty, not_full) = (lock.condition("not_empty"), lock.condition("not_full"));
    let queue = Queue { lock, not_empty, not_full, items: Mutex::default() };
    let consumer = |name: &'static str| {
        let mut done = 0;
        while let Some(order) = queue.take()? {
            println!("{name} packs order {order}");
            done += 1;
        }
        Ok::<u32, leasehold::Error>(done)
    };
    let packed = thread::scope(|scope| {
        let consumers = ["ada", "bob"].map(|name| scope.spawn(move || consumer(name)));
        for item in (1..=ORDERS).map(Some).chain([None, None]) {
            queue.put(item)?;
        }
        consumers.into_iter().try_fold(0, |sum, consumer| {
            Ok::<u32, leasehold::Error>(
                sum + consumer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
            )
        })
    })?;
    println!("packed: {packed} of {ORDERS}");
    client.shutdown()
}
