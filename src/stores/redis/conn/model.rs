//! Model of a shared connection with the real reply parser, over a socket that is a queue of bytes, under
//! shuttle's schedules. Run by `./check model`.
//!
//! Each request is a number, and the server answers with the same number. Thus a reader sees whether a reply
//! is its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use r2d2::{Pool, PooledConnection};
use redis::Value;

use crate::error::Result;
use crate::seam::{Answer, Failure};
use crate::stores::redis::conn::connection::{Connection, ConnectionSlots};
use crate::stores::redis::conn::shared::SharedConnection;
use crate::sync::{Mutex, check, move_time, spawn, thread, toss};
use crate::time::{Clock, Moment};
use crate::wire::{Pipe, Wire};

const LIMIT: Duration = Duration::from_millis(10);

/// Answers `most` requests, then hangs up or falls silent.
fn serve(pipe: &Pipe, most: usize, hangs_up: bool) {
    for _ in 0..most {
        if !pipe.answer(|number| format!(":{number}\r\n")) {
            return;
        }
    }
    if hangs_up {
        drop(pipe.shutdown());
    }
}

/// A pool slot. shuttle cannot schedule r2d2's threads, so one pool, larger than ever needed, serves all
/// runs.
fn slot() -> PooledConnection<ConnectionSlots> {
    static POOL: LazyLock<Pool<ConnectionSlots>> = LazyLock::new(|| {
        Pool::builder().max_size(32).test_on_check_out(false).build(ConnectionSlots).unwrap()
    });
    POOL.get().unwrap()
}

/// A shared connection, and its servers' behaviour.
struct World {
    shared: SharedConnection,
    /// How many requests the first connection's server answers before it hangs up or falls silent; later
    /// servers answer all.
    answers: usize,
    hangs_up: bool,
    pipes: Mutex<Vec<Pipe>>,
    servers: Mutex<Vec<thread::JoinHandle<()>>>,
    /// Outcomes that `post` received.
    taken: AtomicUsize,
    /// Threads that have their outcome.
    ended: AtomicUsize,
}

impl World {
    fn new(answers: usize, hangs_up: bool) -> Arc<World> {
        Arc::new(World {
            shared: SharedConnection::new(),
            answers,
            hangs_up,
            pipes: Mutex::default(),
            servers: Mutex::default(),
            taken: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        })
    }

    fn connect(&self) -> Result<(PooledConnection<ConnectionSlots>, Connection)> {
        let pipe = Pipe::default();
        let server = pipe.clone();
        let mut pipes = self.pipes.lock();
        let (answers, hangs_up) =
            if pipes.is_empty() { (self.answers, self.hangs_up) } else { (usize::MAX, false) };
        pipes.push(pipe.clone());
        self.servers.lock().push(spawn(move || serve(&server, answers, hangs_up)));
        Ok((slot(), Connection::new(Wire::Model(pipe))))
    }

    /// Sends one request and waits for the reply.
    fn ask(&self, number: u8, deadline: Moment) -> Answer<Value> {
        match self.shared.send(None, |to, _| to.push(number), deadline, None, |_by| self.connect()) {
            Ok(reply) => self.shared.wait(&reply),
            Err((failure, _)) => Err(failure),
        }
    }

    /// Sends one request whose reply the reading thread passes on.
    fn post(self: &Arc<World>, number: u8, deadline: Moment) {
        let world = Arc::clone(self);
        let take = Box::new(move |outcome| {
            assert_own(&outcome, number);
            world.taken.fetch_add(1, Ordering::SeqCst);
        });
        if let Err((failure, Some(take))) =
            self.shared.send(None, |to, _| to.push(number), deadline, Some(take), |_by| self.connect())
        {
            take(Err(failure));
        }
    }

    /// Moves time past the limit, and on, because a wait that began later also ends later.
    fn pass_time(&self) {
        while self.ended.load(Ordering::SeqCst) < 3 {
            move_time(LIMIT);
            thread::yield_now();
        }
    }

    fn end(&self) {
        for pipe in self.pipes.lock().iter() {
            drop(pipe.shutdown());
        }
        let servers = std::mem::take(&mut *self.servers.lock());
        servers.into_iter().for_each(|server| server.join().unwrap());
    }
}

fn assert_own(outcome: &Answer<Value>, number: u8) {
    if let Ok(value) = outcome {
        assert_eq!(*value, Value::Int(number.into()), "somebody else's reply");
    }
}

/// Runs the shared connection with a thread for each of `numbers`, each of which sends one request that it
/// waits for and one that it does not, and with the watchdog, which reads the replies that no thread waits
/// for.
fn run(
    world: &Arc<World>,
    deadline: Moment,
    event: impl FnOnce(&World) + Send + 'static,
    each: impl Fn(&World, u8, Answer<Value>) + Send + Copy + 'static,
) {
    let mut threads: Vec<_> = [10, 20, 30]
        .into_iter()
        .map(|number| {
            let world = Arc::clone(world);
            spawn(move || {
                if toss() {
                    world.post(number + 1, deadline);
                } else {
                    world.taken.fetch_add(1, Ordering::SeqCst);
                }
                let outcome = world.ask(number, deadline);
                assert_own(&outcome, number);
                each(&world, number, outcome);
                world.ended.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    let happening = Arc::clone(world);
    threads.push(spawn(move || event(&happening)));
    let watchdog = Arc::clone(world);
    threads.push(spawn(move || (0..2).for_each(|_| _ = watchdog.shared.poll_completions())));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // The remaining replies are read without waiting, as the watchdog does.
    while world.shared.poll_completions() {
        thread::yield_now();
    }
    assert_eq!(world.taken.load(Ordering::SeqCst), 3, "an outcome is missing, or came twice");
    world.end();
}

#[test]
fn every_caller_gets_its_own_reply() {
    check(|| {
        let world = World::new(usize::MAX, false);
        run(&world, Clock::System.after(LIMIT), |_| (), |_, _, outcome| assert!(outcome.is_ok()));
        assert_eq!(world.pipes.lock().len(), 1);
    });
}

/// Each request sent before the break fails, and may be repeated at once; no later request fails.
#[test]
fn a_broken_connection_fails_waiting_requests_but_no_later_ones() {
    for answers in 0..3 {
        check(move || {
            let world = World::new(answers, true);
            let deadline = Clock::System.after(LIMIT);
            run(
                &world,
                deadline,
                |_| (),
                move |world, number, outcome| {
                    if outcome.is_err() {
                        let again = world.ask(number, deadline);
                        assert_own(&again, number);
                        assert!(again.is_ok(), "a request after the break failed");
                    }
                },
            );
            assert!(world.pipes.lock().len() <= 2);
        });
    }
}

/// The server falls silent and the deadline passes at any point: every thread gets its outcome once.
#[test]
fn a_timeout_at_any_point_strands_no_thread() {
    for answers in 0..3 {
        check(move || {
            let world = World::new(answers, false);
            let deadline = Clock::System.after(LIMIT);
            run(&world, deadline, World::pass_time, |_, _, outcome| {
                if let Err(Failure::Refused(error) | Failure::Unknown(error)) = outcome {
                    assert!(error.is_retryable(), "{error:?}");
                }
            });
        });
    }
}

#[test]
fn closing_waits_for_pending_requests_and_strands_no_thread() {
    check(|| {
        let world = World::new(usize::MAX, false);
        let deadline = Clock::System.after(LIMIT);
        run(&world, deadline, move |world| world.shared.close(deadline), |_, _, _| ());
    });
}
