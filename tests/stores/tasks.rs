//! Threads that run several jobs: tasks of tokio, which the feature `tokio` tells apart, and jobs of a
//! work-stealing pool, which it cannot tell apart.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use leasehold::{ErrorKind, LockClient, RedisLock, Result};

use crate::support::fails;

#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Inside {
    fn enter(&self) {
        self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

type Job<'a> = Box<dyn FnOnce(&Pool<'a>) + 'a>;

/// A thread of a work-stealing pool, as in rayon: while it waits for a job, it runs other jobs on its stack.
#[derive(Default)]
struct Pool<'a> {
    jobs: Mutex<VecDeque<Job<'a>>>,
}

impl<'a> Pool<'a> {
    fn add(&self, job: impl FnOnce(&Pool<'a>) + 'a) {
        self.jobs.lock().unwrap().push_back(Box::new(job));
    }

    fn work_until(&self, is_done: impl Fn() -> bool) {
        while !is_done() {
            let job = self.jobs.lock().unwrap().pop_front().expect("a job is queued");
            job(self);
        }
    }
}

/// Two jobs need the same lock, and the first waits for a third job while it holds the lock. Returns how many
/// jobs held the lock at once, and the second job's result.
fn stolen(lock: &RedisLock) -> (usize, Result<()>) {
    let (inside, third, second) = (Inside::default(), AtomicBool::new(false), Mutex::new(Ok(())));
    let work = |pool: &Pool<'_>, wait_for: Option<&AtomicBool>| -> Result<()> {
        let guard = lock.acquire()?;
        inside.enter();
        if let Some(done) = wait_for {
            pool.work_until(|| done.load(Ordering::SeqCst));
        }
        inside.leave();
        guard.unlock()
    };
    let pool = Pool::default();
    pool.add(|pool| *second.lock().unwrap() = work(pool, None));
    pool.add(|_| third.store(true, Ordering::SeqCst));
    work(&pool, Some(&third)).unwrap();
    drop(pool);
    (inside.most(), second.into_inner().unwrap())
}

#[test]
fn a_stolen_job_reenters_the_lock_of_its_thread() {
    let client = LockClient::in_memory();
    let (most, second) = stolen(&client.get_lock("a"));
    assert_eq!((most, second.unwrap()), (2, ()), "the stolen job did not re-enter the lock");
    let (most, second) = stolen(&client.lock_builder("a").non_reentrant().build());
    assert_eq!((most, second.unwrap_err().kind()), (1, ErrorKind::WouldDeadlock));
}

#[cfg(feature = "tokio")]
mod tokio_tasks {
    use std::future::Future;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::Poll;

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().max_blocking_threads(1).build().unwrap()
    }

    async fn request(lock: RedisLock, inside: Rc<Inside>) -> Result<()> {
        let guard = lock.acquire()?;
        inside.enter();
        for _ in 0..5 {
            yield_now().await;
        }
        inside.leave();
        guard.unlock()
    }

    /// All tasks run on one thread, as in a server with one worker (actix-web) or in a `LocalSet`.
    #[test]
    fn a_hold_across_an_await_excludes_other_tasks() {
        let client = LockClient::in_memory();
        let inside = Rc::new(Inside::default());
        let outcomes = LocalSet::new().block_on(&runtime(), async {
            let requests: Vec<_> =
                (0..6).map(|_| spawn_local(request(client.get_lock("a"), Rc::clone(&inside)))).collect();
            let mut outcomes = Vec::new();
            for request in requests {
                outcomes.push(request.await.unwrap());
            }
            outcomes
        });
        assert_eq!(inside.most(), 1);
        let refused = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        assert_eq!(refused.map(leasehold::Error::kind).collect::<Vec<_>>(), [ErrorKind::WouldDeadlock; 5]);
        assert!(!client.get_lock("a").is_locked().unwrap());
    }

    /// Runs `other` while a task holds the lock.
    fn beside_a_holder<F: Future<Output = ()> + 'static>(lock: &RedisLock, other: impl FnOnce() -> F) {
        let has_it = Rc::new(std::cell::Cell::new(false));
        let ends = Rc::new(std::cell::Cell::new(false));
        LocalSet::new().block_on(&runtime(), async {
            let (lock, held, end) = (lock.clone(), Rc::clone(&has_it), Rc::clone(&ends));
            let holder = spawn_local(async move {
                lock.lock().unwrap();
                held.set(true);
                while !end.get() {
                    yield_now().await;
                }
                assert_eq!(lock.hold_count().unwrap(), 1);
                lock.lock().unwrap();
                lock.unlock().unwrap();
                lock.unlock().unwrap();
            });
            while !has_it.get() {
                yield_now().await;
            }
            other().await;
            ends.set(true);
            holder.await.unwrap();
        });
        assert!(!lock.is_locked().unwrap());
    }

    /// Asserts that the calls of another task on the holder's thread are refused.
    fn is_not_the_holder(lock: &RedisLock) {
        fails(lock.lock(), ErrorKind::WouldDeadlock);
        assert!(!lock.try_lock().unwrap() && lock.try_acquire().unwrap().is_none());
        fails(lock.unlock(), ErrorKind::NotHeld);
        assert!(!lock.is_held_by_current_thread().unwrap() && lock.is_locked().unwrap());
        assert_eq!(lock.hold_count().unwrap(), 0);
        fails(lock.condition("c").notify_one(), ErrorKind::NotHeld);
    }

    #[test]
    fn a_hold_belongs_only_to_the_task_that_acquired_it() {
        let client = LockClient::in_memory();
        let lock = client.get_lock("a");
        beside_a_holder(&lock, || {
            let lock = client.get_lock("a");
            async move {
                is_not_the_holder(&lock); // the future of `block_on` is no task
                spawn_local(async move { is_not_the_holder(&lock) }).await.unwrap();
            }
        });
        let guard = lock.acquire().unwrap();
        let other = lock.clone();
        LocalSet::new().block_on(&runtime(), async move {
            spawn_local(async move { is_not_the_holder(&other) }).await.unwrap();
        });
        guard.unlock().unwrap();
    }

    #[test]
    fn multi_locks_are_refused_while_another_task_holds_a_member() {
        let client = LockClient::in_memory();
        let locks = || client.get_multi_lock([client.get_lock("a"), client.get_lock("b")]);
        let lock = client.get_lock("a");
        beside_a_holder(&lock, || {
            let locks = locks();
            async move {
                fails(locks.lock(), ErrorKind::WouldDeadlock);
                fails(locks.unlock(), ErrorKind::NotHeld);
            }
        });
        assert!(!client.get_lock("b").is_locked().unwrap());
    }

    /// To the store a thread is one owner, which may read while it writes. Two tasks on the thread must not.
    #[test]
    fn a_task_cannot_read_while_another_task_writes() {
        let client = LockClient::in_memory();
        let both = client.get_read_write_lock("a");
        let (read, write) = (both.read().clone(), both.write().clone());
        beside_a_holder(&write, || {
            let (read, write) = (read.clone(), write.clone());
            async move {
                fails(read.lock(), ErrorKind::WouldDeadlock);
                assert!(!read.try_lock().unwrap());
                fails(write.lock(), ErrorKind::WouldDeadlock);
            }
        });
        LocalSet::new().block_on(&runtime(), async move {
            let both = async move {
                let writing = write.acquire().unwrap();
                yield_now().await;
                read.acquire().unwrap().unlock().unwrap();
                writing.unlock().unwrap();
            };
            spawn_local(both).await.unwrap();
        });
    }

    #[test]
    fn a_guard_dropped_by_another_task_still_releases() {
        let client = LockClient::in_memory();
        let given = Rc::new(std::cell::RefCell::new(None));
        LocalSet::new().block_on(&runtime(), async {
            let (lock, to) = (client.get_lock("a"), Rc::clone(&given));
            let lock: &'static RedisLock = Box::leak(Box::new(lock));
            spawn_local(async move { *to.borrow_mut() = Some(lock.acquire().unwrap()) }).await.unwrap();
            assert!(lock.is_locked().unwrap());
            let from = Rc::clone(&given);
            spawn_local(async move { drop(from.borrow_mut().take()) }).await.unwrap();
            assert!(!lock.is_locked().unwrap());
        });
    }

    /// A closure that ends without a release leaves a hold that the next closure on its thread does not own.
    #[test]
    fn spawn_blocking_does_not_reenter_an_earlier_lock() {
        let lock = LockClient::in_memory().get_lock("a");
        let runtime = runtime();
        let outcomes = [(); 2].map(|()| {
            let lock = lock.clone();
            runtime.block_on(runtime.spawn_blocking(move || lock.lock())).unwrap()
        });
        let [first, second] = outcomes;
        first.unwrap();
        fails(second, ErrorKind::WouldDeadlock);
    }

    /// To tokio both futures are one task, as in `join!` and `select!`.
    #[test]
    fn joined_futures_are_one_owner() {
        let client = LockClient::in_memory();
        for (lock, expected) in
            [(client.get_lock("a"), 2), (client.lock_builder("a").non_reentrant().build(), 1)]
        {
            let inside = Rc::new(Inside::default());
            let joined = LocalSet::new().block_on(&runtime(), async {
                let (one, other) = (lock.clone(), lock.clone());
                let count = Rc::clone(&inside);
                spawn_local(async move {
                    let mut one = pin!(request(one, Rc::clone(&count)));
                    let mut other = pin!(request(other, count));
                    let (mut first, mut second) = (None, None);
                    std::future::poll_fn(move |context| {
                        if first.is_none()
                            && let Poll::Ready(outcome) = one.as_mut().poll(context)
                        {
                            first = Some(outcome);
                        }
                        if second.is_none()
                            && let Poll::Ready(outcome) = other.as_mut().poll(context)
                        {
                            second = Some(outcome);
                        }
                        match (&first, &second) {
                            (Some(_), Some(_)) => {
                                Poll::Ready((first.take().unwrap(), second.take().unwrap()))
                            }
                            _ => Poll::Pending,
                        }
                    })
                    .await
                })
                .await
                .unwrap()
            });
            joined.0.unwrap();
            assert_eq!(inside.most(), expected);
            assert_eq!(
                joined.1.err().map(|error| error.kind()),
                (expected == 1).then_some(ErrorKind::WouldDeadlock)
            );
        }
    }
}
