//! A model of the shared connection, run by `./check model` under the thread schedules of the crate
//! `shuttle`. The reply parser is the real one, and the socket is a queue of bytes.
//!
//! Each request is a number, and the server answers with the same number, so each reader can check that a
//! reply is its own.

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

/// Answers `most` requests, then closes the connection or falls silent.
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

/// A slot of r2d2's pool. One pool serves all runs, and is so large that no thread waits in r2d2, whose waits
/// shuttle cannot schedule.
fn slot() -> PooledConnection<ConnectionSlots> {
    static POOL: LazyLock<Pool<ConnectionSlots>> = LazyLock::new(|| {
        Pool::builder().max_size(32).test_on_check_out(false).build(ConnectionSlots).unwrap()
    });
    POOL.get().unwrap()
}

/// A shared connection, and the behaviour of its servers, one for each connect.
struct World {
    shared: SharedConnection,
    /// The number of requests that the first connection's server answers before it fails. Later servers
    /// answer all.
    answers: usize,
    hangs_up: bool,
    pipes: Mutex<Vec<Pipe>>,
    servers: Mutex<Vec<thread::JoinHandle<()>>>,
    /// How many of the three threads await no outcome of `post`: it has come, or they posted nothing.
    taken: AtomicUsize,
    /// The number of threads whose `ask` has returned.
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

    fn ask(&self, number: u8, deadline: Moment) -> Answer<Value> {
        match self.shared.send(None, |to, _| to.push(number), deadline, None, |_by| self.connect()) {
            Ok(reply) => self.shared.wait(&reply),
            Err((failure, _)) => Err(failure),
        }
    }

    /// Sends a request for whose reply no thread waits: the thread that reads the reply calls `take` with it.
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

/// Each of three threads sends a request and passes the outcome to `each`. At random it first posts a request
/// for which no thread waits. A fourth thread runs `event`, and a fifth reads replies, as the watchdog does.
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

/// The server falls silent after each possible number of answers. Each thread gets its outcome once.
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
fn closing_the_shared_connection_strands_no_thread() {
    check(|| {
        let world = World::new(usize::MAX, false);
        let deadline = Clock::System.after(LIMIT);
        run(&world, deadline, move |world| world.shared.close(deadline), |_, _, _| ());
    });
}
