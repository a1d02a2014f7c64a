//! Holds that a client keeps after their last level: for a turn, and until others ask for them.

use super::*;
use crate::engine::acquire::terms::Terms;

/// Guards are dropped and taken again within turns, beside calls that ask for something else, questions, and
/// time that passes: one has the lock at a time, and nobody is left behind when it is given back.
#[test]
fn a_hold_that_is_kept_for_a_turn_has_one_owner_and_strands_nobody() {
    for (threads_each, trouble) in [(1, 0), (2, 1)] {
        check(move || turns(threads_each, trouble));
    }
}

fn turns(threads_each: usize, trouble: usize) {
    let world = World::new();
    let exchange = Arc::new(Exchange { has_line: true, ..Exchange::default() });
    let far: Vec<_> = (0..2).map(|_| Far::new(&world, &exchange, trouble)).collect();
    let ended = Arc::new(AtomicUsize::new(0));
    let (mut clients, mut threads, mut readers) = (Vec::new(), Vec::new(), Vec::new());
    for (store, reading) in far {
        let client = world.client_on(store);
        let entry = client.engine.registry.entry(Kind::Mutex, &name());
        entry.count_on_return();
        for _ in 0..threads_each {
            let (client, ended) = (client.clone(), Arc::clone(&ended));
            threads.push(spawn(move || {
                (0..2).for_each(|_| client.turn());
                // Gives back what is kept. Nobody else does, should time have stopped by now.
                drop(client.lock().is_locked());
                ended.fetch_add(1, Ordering::SeqCst);
            }));
        }
        clients.push((client, entry));
        readers.push(reading);
    }
    // A turn is over after six of these steps, a time-out never comes where none is needed.
    let step = Duration::from_micros(if trouble > 0 { 400_000 } else { 350 });
    let is_over = || ended.load(Ordering::SeqCst) == threads.len();
    pass_time(&world.clock, step, 60, is_over);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for (client, entry) in clients {
        client.engine.shutdown().unwrap();
        assert!(entry.take_kept().is_none());
    }
    assert!(trouble > 0 || !world.client().lock().is_locked().unwrap(), "it is left until its lease ends");
    readers.into_iter().for_each(|reading| reading.join().unwrap());
}

impl Client {
    /// Takes the lock in one of several ways, and gives it back in one of several.
    fn turn(&self) {
        let lock = self.lock();
        if toss() && toss() {
            drop(lock.is_locked());
        }
        let options = AcquireOptions::new();
        let options = if toss() && toss() { options.lease(SHORT * 300_000) } else { options };
        let guard = lock.acquire_with(&options).unwrap().unwrap();
        self.work();
        if toss() && toss() {
            if let Err(error) = guard.unlock() {
                assert!(error.outcome_unknown(), "{error:?}");
            }
        } else {
            drop(guard);
        }
    }
}

/// A client keeps the lock after each use until the other asks for it: one has it at a time, and a recall alone
/// gets it, while time stands still.
#[test]
fn a_hold_that_is_kept_until_others_ask_has_one_owner_and_strands_nobody() {
    for (threads_each, trouble) in [(1, 0), (2, 0)] {
        check(move || until_asked(threads_each, trouble));
    }
}

fn until_asked(threads_each: usize, trouble: usize) {
    let world = World::new();
    let exchange = Arc::new(Exchange { loses_recalls: trouble > 0, ..Exchange::default() });
    let far: Vec<_> = (0..2).map(|_| Far::new(&world, &exchange, trouble)).collect();
    let ended = Arc::new(AtomicUsize::new(0));
    let (mut clients, mut threads, mut readers) = (Vec::new(), Vec::new(), Vec::new());
    for (store, reading) in far {
        let client = world.client_on(store);
        let entry = client.engine.registry.entry(Kind::Mutex, &name());
        for _ in 0..threads_each {
            let (client, ended) = (client.clone(), Arc::clone(&ended));
            threads.push(spawn(move || {
                (0..4 - threads_each).for_each(|_| client.kept_cycle());
                ended.fetch_add(1, Ordering::SeqCst);
            }));
        }
        clients.push((client, entry));
        readers.push(reading);
    }
    if trouble > 0 {
        let is_over = || ended.load(Ordering::SeqCst) == threads.len();
        pass_time(&world.clock, Duration::from_millis(700), 60, is_over);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(trouble > 0 || world.grants.load(Ordering::SeqCst) == 2 * threads_each * (4 - threads_each));
    for (client, entry) in clients {
        client.engine.shutdown().unwrap();
        assert!(entry.take_kept().is_none());
    }
    assert!(trouble > 0 || !world.client().lock().is_locked().unwrap(), "it is left until its lease ends");
    readers.into_iter().for_each(|reading| reading.join().unwrap());
}

impl Client {
    /// Takes the lock to keep it, mostly, and ends its use in one of several ways.
    fn kept_cycle(&self) {
        let keep = Some(Duration::from_secs(600)).filter(|_| toss() || toss());
        let lock = self.lock().on_terms(Terms { keep, ..Terms::default() });
        let guard = lock.acquire().unwrap();
        self.work();
        if toss() && toss() {
            drop(lock.is_locked());
        }
        if toss() {
            if let Err(error) = guard.unlock() {
                assert!(error.outcome_unknown() || error.not_held().is_some(), "{error:?}");
            }
        } else {
            drop(guard);
        }
    }
}
