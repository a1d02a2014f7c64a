//! Locks exclude while connections are cut and scripts are flushed. The server keeps its data, so no hold may
//! be lost.

use crate::support::observer::{Event, Seen};
use crate::support::prelude::*;

const LOCKS: [&str; 3] = ["one", "two", "three"];
const CLIENTS: usize = 2;
const THREADS: usize = 6;
const RUN: Duration = Duration::from_secs(4);
const MIN_ACQUIRES: usize = 500;

test_on!(cut_connections_and_flushed_scripts_lose_no_hold, RedisServer::start_default(), |server| {
    let seen = Seen::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            LockClient::builder()
                .url(server.unix_url())
                .observer(seen.clone())
                .command_timeout(Duration::from_secs(1))
                .build()
                .unwrap()
        })
        .collect();
    let inside: Vec<AtomicU64> = LOCKS.iter().map(|_| AtomicU64::new(0)).collect();
    let (ended, done, broken) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for client in &clients {
            for number in 0..THREADS {
                let (inside, ended, done, broken) = (&inside, &ended, &done, &broken);
                scope.spawn(move || {
                    let mut turn = number;
                    while !ended.load(Ordering::SeqCst) {
                        turn += 1;
                        let at = turn % LOCKS.len();
                        let lock = client.get_lock(LOCKS[at]);
                        let is_alone = || {
                            if inside[at].fetch_add(1, Ordering::SeqCst) != 0 {
                                broken.fetch_add(1, Ordering::SeqCst);
                            }
                            thread::yield_now();
                            inside[at].fetch_sub(1, Ordering::SeqCst);
                            done.fetch_add(1, Ordering::SeqCst);
                        };
                        let had = |guard: Option<Guard>| {
                            if guard.is_some() {
                                is_alone();
                            }
                        };
                        match turn % 5 {
                            0 => drop(lock.acquire().and_then(|guard| {
                                is_alone();
                                guard.unlock()
                            })),
                            1 | 2 => {
                                had(lock.acquire().ok());
                                (0..3).for_each(|_| had(lock.try_acquire().ok().flatten()));
                            }
                            3 => drop(
                                lock.try_acquire_owned_for(ms(5)).map(|guard| guard.map(|_guard| is_alone())),
                            ),
                            _ => had(lock.try_acquire_for(ms(2)).ok().flatten()),
                        }
                    }
                });
            }
        }
        // `Raise` ends the workers even if this thread panics, so that the scope ends too.
        let ends = Raise(&ended);
        let mut admin = server.admin();
        let begun = now();
        let mut round = 0_u32;
        let has_shown_enough = || done.load(Ordering::SeqCst) > MIN_ACQUIRES || begun.elapsed() > LONG;
        while begun.elapsed() < RUN || !has_shown_enough() {
            round += 1;
            let command = match round % 3 {
                0 => "SCRIPT FLUSH",
                _ => "CLIENT KILL TYPE normal SKIPME yes",
            };
            let words: Vec<&str> = command.split(' ').collect();
            redis::cmd(words[0]).arg(&words[1..]).exec(&mut admin).unwrap();
            thread::park_timeout(Duration::from_millis(u64::from(5 + 7 * (round % 7))));
        }
        drop(ends);
    });
    let failed = seen.count(|event| matches!(event, Event::ReleaseFailed(..)));
    eprintln!("{} turns, {failed} failed releases, {} lost", done.load(Ordering::SeqCst), seen.losses());
    assert!(done.load(Ordering::SeqCst) > MIN_ACQUIRES, "too few locks were acquired");
    assert_eq!(broken.load(Ordering::SeqCst), 0, "two threads held a lock");
    assert_eq!(seen.losses(), 0, "a hold was lost: {:?}", seen.events());
    let mut admin = server.admin();
    let is_free = || redis::cmd("EXISTS").arg(&LOCKS).query::<usize>(&mut admin).unwrap() == 0;
    assert!(eventually(LONG, is_free), "a lock's key remains");
});
