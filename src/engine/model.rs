//! Tests of everything above the stores under many schedules, which the crate shuttle chooses: waiting, the
//! queue, hand-offs, registration, giving up, and the watchdog. Run by `./check model`.
//!
//! Time stands still unless a test moves it, and never reaches the next safety poll. So a thread whose
//! wake-up is lost sleeps for good, and shuttle reports a deadlock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::config::Options;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::inspect::Inspection;
use crate::interrupt::Interrupt;
use crate::locks::group::Group;
use crate::locks::guard::Guard;
use crate::locks::named::RedisLock;
use crate::locks::options::AcquireOptions;
use crate::observe::reporter::Reporter;
use crate::seam::capabilities::{CachedCheck, Capabilities, HoldCaching};
use crate::seam::inspection::Inspect;
use crate::seam::inspection::describe_by_kinds;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::seam::{
    Answer, Attempt, Claim, Failure, Handoff, Kind, Others, Pending, Release, Snapshot, Store,
};
use crate::stores::memory::{MemoryAccess, MemoryStore};
use crate::sync::channel::{Sender, unbounded};
use crate::sync::{Mutex, Waker, check, spawn, thread, toss};
use crate::time::{Clock, Lease, ManualClock, Moment};

mod cached;

const NAME: &str = "a";

/// One server, its clock, and the number of threads inside the lock.
struct World {
    clock: ManualClock,
    server: MemoryStore,
    inside: AtomicUsize,
    grants: AtomicUsize,
}

impl World {
    fn new() -> Arc<World> {
        let clock = ManualClock::new();
        let server = MemoryStore::with_clock(clock.clone());
        Arc::new(World { clock, server, inside: AtomicUsize::new(0), grants: AtomicUsize::new(0) })
    }

    fn client(self: &Arc<World>) -> Client {
        self.client_on(Arc::new(self.server.open()))
    }

    fn client_on(self: &Arc<World>, store: Arc<dyn Store>) -> Client {
        let clock = Clock::Manual(self.clock.clone());
        let reporter = Arc::new(Reporter::new(None));
        let engine = Arc::new(Engine::start(Options::default(), clock, store, reporter).unwrap());
        Client { world: Arc::clone(self), engine }
    }
}

#[derive(Clone)]
struct Client {
    world: Arc<World>,
    engine: Arc<Engine>,
}

impl Client {
    fn lock(&self) -> RedisLock {
        RedisLock::new(&self.engine, Kind::Mutex, NAME)
    }

    /// Checks for a while that no other thread has the caller's lock.
    fn work(&self) {
        self.work_for(3);
    }

    fn work_for(&self, points: usize) {
        let others = self.world.inside.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "two threads own the lock");
        (0..points).for_each(|_| thread::sleep(Duration::ZERO));
        self.world.inside.fetch_sub(1, Ordering::SeqCst);
        self.world.grants.fetch_add(1, Ordering::SeqCst);
    }

    fn cycle(&self, waits_for_release: bool) {
        let guard = self.lock().acquire().unwrap();
        self.work();
        end(guard, waits_for_release).unwrap();
    }

    /// Checks that no hold or waiter is left, and ends the client.
    fn end(self) {
        assert!(!self.lock().is_locked().unwrap());
        assert!(self.engine.registry.holds().is_empty());
        assert_eq!(
            self.engine.registry.found(Kind::Mutex, &name()).map_or(0, |local| local
                .state()
                .queue
                .tickets
                .len()),
            0
        );
        self.engine.shutdown().unwrap();
    }
}

fn end(guard: Guard, waits_for_release: bool) -> Result<()> {
    if waits_for_release { guard.unlock() } else { Ok(drop(guard)) }
}

/// Fails unless the release succeeded, or its outcome is unknown because a request got lost.
fn is_known_or_in_doubt(released: Result<()>) {
    assert!(released.as_ref().err().is_none_or(Error::outcome_unknown), "{released:?}");
}

fn name() -> Arc<LockName> {
    Arc::new(LockName::new(&Arc::from(NAME), NAME.to_owned()).unwrap())
}

#[test]
fn local_waiters_get_the_lock_one_at_a_time() {
    check(|| {
        let world = World::new();
        let client = world.client();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let client = client.clone();
                spawn(move || (0..2).for_each(|_| client.cycle(toss())))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(world.grants.load(Ordering::SeqCst), 6);
        client.end();
    });
}

fn wait_for_queue(client: &Client, length: usize) {
    while client
        .engine
        .registry
        .found(Kind::Mutex, &name())
        .map_or(0, |local| local.state().queue.tickets.len())
        < length
    {
        thread::yield_now();
    }
}

/// How a thread in the local queue waits, and whether it gives up.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Stays,
    GivesUp,
    IsInterrupted,
}

const WAYS: [Way; 3] = [Way::Stays, Way::GivesUp, Way::IsInterrupted];
const SHORT: Duration = Duration::from_millis(10);

#[test]
fn waiters_keep_their_order_when_others_leave() {
    for first in WAYS {
        check(move || queue_up([first, any(), any()]));
    }
}

fn any() -> Way {
    let [one, other, third] = WAYS;
    if toss() {
        one
    } else if toss() {
        other
    } else {
        third
    }
}

fn queue_up(ways: [Way; 3]) {
    let world = World::new();
    let (store, reading) = Far::new(&world, &Arc::default(), 0);
    let client = world.client_on(store);
    let interrupt = Interrupt::new();
    let served = Arc::new(Mutex::new(Vec::new()));
    let first = client.lock().acquire().unwrap();
    let mut threads = Vec::new();
    for (at, way) in ways.into_iter().enumerate() {
        let (client, interrupt, served) = (client.clone(), interrupt.clone(), Arc::clone(&served));
        threads.push(spawn({
            let client = client.clone();
            move || {
                let lock = client.lock();
                let got = match way {
                    Way::Stays => Some(lock.acquire().unwrap()),
                    Way::GivesUp => lock.try_acquire_for(SHORT).unwrap(),
                    Way::IsInterrupted => {
                        match lock.acquire_with(&AcquireOptions::new().interrupt(&interrupt)) {
                            Ok(guard) => guard,
                            Err(error) => {
                                assert!(error.is_interrupted(), "{error:?}");
                                None
                            }
                        }
                    }
                };
                let Some(guard) = got else { return false };
                served.lock().push(at);
                client.work();
                end(guard, toss()).unwrap();
                true
            }
        }));
        wait_for_queue(&client, at + 1);
    }
    let clock = world.clock.clone();
    let events = [spawn(move || clock.advance(SHORT)), spawn(move || interrupt.interrupt())];
    client.work();
    end(first, toss()).unwrap();
    let got: Vec<bool> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    events.into_iter().for_each(|event| event.join().unwrap());
    let served = served.lock().clone();
    let expected: Vec<usize> = (0..ways.len()).filter(|at| got[*at]).collect();
    assert_eq!(served, expected, "out of order");
    assert!((0..ways.len()).all(|at| got[at] || ways[at] != Way::Stays));
    client.end();
    reading.join().unwrap();
}

/// A store whose wake-ups come as Redis's do: over a connection of its own, which sometimes breaks, and whose
/// subscriptions are confirmed later. A message without subscribers is lost; a request or answer may be, too.
struct Far {
    server: MemoryAccess,
    line: Arc<Line>,
    /// How many more requests or answers may get lost.
    trouble: AtomicUsize,
    /// Whether the next hand-off gets lost.
    loses_handoff: AtomicBool,
}

/// All clients of a server share this: the subscriptions, each with the stream of events to its client.
#[derive(Default)]
struct Exchange {
    /// Whether a release learns that other clients listen, so that its process stands back.
    gives_way: bool,
    /// Whether answers to grants say that a client is in the wait queue, so that a time slice may begin.
    has_queue: bool,
    subscribed: Mutex<Vec<(Arc<Channel>, Sender<Event>)>>,
    /// Whether a client caches the hold, and got no recall since the grant.
    is_cached: Mutex<bool>,
    /// Whether a recall may get lost although the subscription stands, as in a cluster.
    loses_recalls: bool,
}

/// An event that a client's reading thread handles. Events keep the order in which they were sent.
enum Event {
    Subscribe(Arc<Channel>),
    Unsubscribe(Arc<Channel>),
    Confirmed(Arc<Channel>),
    Message(Arc<Channel>),
    Break(Arc<Channel>),
    End,
}

struct Line {
    exchange: Arc<Exchange>,
    channels: Mutex<HashMap<Box<str>, Arc<Channel>>>,
    events: Sender<Event>,
}

impl Line {
    fn send(&self, event: Event) {
        drop(self.events.send(event));
    }
}

impl Exchange {
    fn publish(&self, key: &str) -> bool {
        let subscribed = self.subscribed.lock();
        for (channel, stream) in subscribed.iter().filter(|(channel, _)| channel.channel() == key) {
            drop(stream.send(Event::Message(Arc::clone(channel))));
        }
        self.gives_way && subscribed.len() > 1
    }

    /// Sends a recall to the clients that cache the hold. Returns whether any client listens.
    fn recall(&self, key: &str) -> bool {
        let is_heard = self.subscribed.lock().iter().any(|(channel, _)| channel.channel() == key);
        if !(self.loses_recalls && toss()) {
            self.publish(key);
        }
        is_heard
    }

    fn forget(&self, channel: &Arc<Channel>) {
        self.subscribed.lock().retain(|(other, _)| !Arc::ptr_eq(other, channel));
    }
}

impl Far {
    fn new(world: &World, exchange: &Arc<Exchange>, trouble: usize) -> (Arc<Far>, thread::JoinHandle<()>) {
        let (sender, events) = unbounded();
        let line =
            Line { exchange: Arc::clone(exchange), channels: Mutex::default(), events: sender.clone() };
        let exchange = Arc::clone(exchange);
        let reading = spawn(move || {
            let mut breaks = 0;
            for event in events.iter() {
                match event {
                    Event::Subscribe(channel) => {
                        let stream = sender.clone();
                        drop(stream.send(Event::Confirmed(Arc::clone(&channel))));
                        exchange.subscribed.lock().push((Arc::clone(&channel), stream));
                        if breaks < 1 && toss() {
                            breaks += 1;
                            drop(sender.send(Event::Break(channel)));
                        }
                    }
                    Event::Unsubscribe(channel) => exchange.forget(&channel),
                    Event::Confirmed(channel) => channel.set_up(true),
                    Event::Message(channel) => channel.notify(),
                    Event::Break(channel) => {
                        exchange.forget(&channel);
                        channel.set_up(false);
                        drop(sender.send(Event::Subscribe(channel)));
                    }
                    Event::End => return,
                }
            }
        });
        (
            Arc::new(Far {
                server: world.server.open(),
                line: Arc::new(line),
                trouble: trouble.into(),
                loses_handoff: AtomicBool::new(false),
            }),
            reading,
        )
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::TimedOut, "ask", "the answer got lost").with_unknown_outcome()
}

impl Far {
    /// Carries out a request. The request or its answer may get lost.
    fn ask<T>(&self, request: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let left = self.trouble.load(Ordering::SeqCst);
        if left == 0 || toss() {
            return request();
        }
        self.trouble.store(left - 1, Ordering::SeqCst);
        if toss() {
            drop(request());
        }
        Err(Failure::Unknown(lost()))
    }

    fn published(&self, claim: &Claim, answer: Answer<Release>) -> Answer<Release> {
        match answer {
            Ok(Release::Freed { .. }) => {
                let others = Others::listening(u32::from(self.line.exchange.publish(claim.name.key())));
                Ok(Release::Freed { others })
            }
            other => other,
        }
    }
}

struct Later(Answer<Handoff>);

impl Pending for Later {
    fn wait(self: Box<Self>) -> Answer<Handoff> {
        (0..20).for_each(|_| thread::sleep(Duration::ZERO)); // lets other threads run
        self.0
    }
}

impl ChannelSource for Line {
    fn left(&self, channel: &Arc<Channel>) {
        let mut channels = self.channels.lock();
        let is_current = channels.get(channel.channel()).is_some_and(|current| Arc::ptr_eq(current, channel));
        if is_current && channel.listeners() == 0 && toss() {
            channels.remove(channel.channel());
            self.send(Event::Unsubscribe(Arc::clone(channel)));
        }
    }
}

impl Store for Far {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        Capabilities { hold_caching: Some(self), ..Capabilities::default() }
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        let queued = if self.line.exchange.has_queue && toss() { 1 + u32::from(toss()) } else { 0 };
        self.ask(|| {
            let mut is_cached = self.line.exchange.is_cached.lock();
            match self.server.attempt(claim, count, deadline) {
                Ok(Attempt::Granted { fence, .. }) => {
                    if count == 1 {
                        *is_cached = claim.caches;
                    }
                    Ok(Attempt::Granted { fence, queued })
                }
                answer => {
                    if *is_cached && claim.waits && self.line.exchange.recall(claim.name.key()) {
                        *is_cached = false;
                    }
                    answer
                }
            }
        })
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        self.ask(|| self.published(claim, self.server.release(claim, left, deadline)))
    }

    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        if self.loses_handoff.swap(false, Ordering::SeqCst) {
            return Some(Box::new(Later(Err(Failure::Unknown(lost())))));
        }
        if toss() && toss() {
            return None;
        }
        let known = || {
            let pending = self.server.hand_off(from, to, deadline);
            pending.map_or_else(|| Err(Failure::Unknown(lost())), Pending::wait)
        };
        Some(Box::new(Later(self.ask(known))))
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        (0..20).for_each(|_| thread::sleep(Duration::ZERO)); // the request is on its way
        self.server.renew(claims, deadline)
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        let one = |claim: &Claim| {
            let release = || self.server.release(claim, 0, deadline);
            self.ask(|| self.published(claim, release()))
        };
        claims.iter().map(one).collect()
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        self.server.force(kind, name, deadline)
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        let name = &claim.name;
        let mut channels = self.line.channels.lock();
        let channel = channels.entry(name.key().into()).or_insert_with(|| {
            let channel = Arc::new(Channel::new(name.key(), false));
            self.line.send(Event::Subscribe(Arc::clone(&channel)));
            channel
        });
        let source: Arc<dyn ChannelSource> = Arc::<Line>::clone(&self.line);
        Some(Subscription::new(Arc::clone(channel), source, waker))
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        let name = &claim.name;
        let channels = self.line.channels.lock();
        channels.get(name.key()).filter(|channel| channel.is_up()).map(|channel| channel.message_count())
    }

    fn close(&self) {
        self.server.close();
        self.line.send(Event::End);
    }
}

impl HoldCaching for Far {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.listen(&claim.by_own_turn(), waker)
    }

    fn check_holds(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<CachedCheck>> {
        (0..20).for_each(|_| thread::sleep(Duration::ZERO)); // the request is on its way
        let one = |claim: &Claim| {
            self.ask(|| {
                let is_cached = self.line.exchange.is_cached.lock();
                let seen = self.server.inspect(claim.kind, &claim.name, claim.owner, deadline)?;
                Ok(match seen {
                    Some(seen) if seen.count > 0 && *is_cached => CachedCheck::Stays,
                    Some(seen) if seen.count > 0 => CachedCheck::Wanted,
                    _ => CachedCheck::Lost,
                })
            })
        };
        claims.iter().map(one).collect()
    }
}

impl Inspect for Far {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        self.server.inspect(kind, name, owner, by)
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        describe_by_kinds(self, name, deadline)
    }
}

fn pass_time(clock: &ManualClock, step: Duration, steps: usize, is_over: impl Fn() -> bool) {
    for _ in 0..steps {
        if is_over() {
            return;
        }
        clock.advance(step);
        thread::yield_now();
    }
}

/// Time stands still: moving it would wake all threads, also one whose wake-up was lost.
#[test]
fn nobody_sleeps_through_a_release_by_another_process() {
    check(|| processes(2, 1, false));
    // In the later cycles a subscription may stand already, so the waiter only compares message counts.
    check(|| processes(1, 3, false));
    check(|| processes(2, 2, false));
}

/// Time passes here, because threads pause to let other processes go first.
#[test]
fn yielding_to_other_processes_strands_no_waiter() {
    check(|| processes(2, 2, true));
}

fn processes(threads_each: usize, cycles: usize, gives_way: bool) {
    let world = World::new();
    let exchange = Arc::new(Exchange { gives_way, ..Exchange::default() });
    let far: Vec<_> = (0..2).map(|_| Far::new(&world, &exchange, 0)).collect();
    let (clients, readers): (Vec<_>, Vec<_>) =
        far.into_iter().map(|(store, reading)| (world.client_on(store), reading)).unzip();
    let threads: Vec<_> = clients
        .iter()
        .flat_map(|client| vec![client.clone(); threads_each])
        .map(|client| spawn(move || (0..cycles).for_each(|_| client.cycle(toss()))))
        .collect();
    let all_had_it = || world.grants.load(Ordering::SeqCst) == threads.len() * cycles;
    if gives_way {
        pass_time(&world.clock, Duration::from_millis(1), 300, all_had_it);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    clients.into_iter().for_each(Client::end);
    readers.into_iter().for_each(|reading| reading.join().unwrap());
}

/// Time passes here while any thread waits, because time-outs make up for lost messages.
#[test]
fn lost_requests_and_answers_cause_no_second_owner_or_hang() {
    check(|| {
        let world = World::new();
        let exchange = Arc::default();
        let (store, reading) = Far::new(&world, &exchange, 2);
        let client = world.client_on(Arc::<Far>::clone(&store));
        let ended = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (client, ended) = (client.clone(), Arc::clone(&ended));
                spawn(move || {
                    let guard = client.lock().acquire().unwrap();
                    client.work();
                    if toss() {
                        is_known_or_in_doubt(guard.unlock());
                    } else {
                        drop(guard);
                        // This thread asks again, perhaps while its hold is on the way to another thread.
                        if let Ok(true) = client.lock().try_lock() {
                            client.work_for(50);
                            drop(client.lock().unlock());
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        let is_over = || ended.load(Ordering::SeqCst) == threads.len() && !client.lock().is_locked().unwrap();
        pass_time(&world.clock, Duration::from_millis(100), 300, is_over);
        store.trouble.store(0, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        client.end();
        reading.join().unwrap();
    });
}

/// After a lost hand-off the old owner has the lock until a clean-up. Until then no attempt may use the old
/// owner's number, because the clean-up would also end the grant of that attempt.
#[test]
fn no_grant_uses_an_owner_number_that_is_being_cleaned_up() {
    check(|| {
        let world = World::new();
        let (store, reading) = Far::new(&world, &Arc::default(), 0);
        store.loses_handoff.store(true, Ordering::SeqCst);
        let client = world.client_on(store);
        let guard = client.lock().acquire().unwrap();
        let waiter = client.clone();
        let waiter = spawn(move || waiter.cycle(true));
        wait_for_queue(&client, 1);
        let (clock, is_over) = (world.clock.clone(), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&is_over);
        let time = spawn(move || pass_time(&clock, 2 * SHORT, 300, || ended.load(Ordering::SeqCst)));
        drop(guard);
        if client.lock().try_lock().unwrap() {
            client.work_for(100);
            is_known_or_in_doubt(client.lock().unlock()); // fails if a clean-up ended the grant
        }
        waiter.join().unwrap();
        is_over.store(true, Ordering::SeqCst);
        time.join().unwrap();
        client.end();
        reading.join().unwrap();
    });
}

/// Whatever threads do while their client ends, nothing of theirs is left afterwards.
#[test]
fn a_shutdown_leaves_no_hold_and_no_waiter() {
    check(|| {
        let world = World::new();
        let (store, reading) = Far::new(&world, &Arc::default(), 1);
        let client = world.client_on(store);
        let ended = Arc::new(AtomicUsize::new(0));
        let work = |body: fn(&Client) -> Result<()>| {
            let (client, ended) = (client.clone(), Arc::clone(&ended));
            spawn(move || {
                if let Err(error) = body(&client) {
                    let is_over = error.kind() == ErrorKind::ShutDown || error.is_lost();
                    assert!(is_over || error.outcome_unknown(), "{error:?}");
                }
                ended.fetch_add(1, Ordering::SeqCst);
            })
        };
        let threads = [
            work(|client| client.lock().acquire()?.unlock()),
            work(|client| client.lock().acquire().map(drop)),
            work(|client| client.lock().try_lock().map(drop)),
        ];
        let ending = client.clone();
        let ending = spawn(move || ending.engine.shutdown());
        pass_time(&world.clock, 2 * SHORT, 300, || ended.load(Ordering::SeqCst) == threads.len());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        if let Err(error) = ending.join().unwrap() {
            // The lost request was the release of this shutdown. The next shutdown repeats it.
            assert!(error.outcome_unknown(), "{error:?}");
            client.engine.shutdown().unwrap();
        }
        assert!(!world.client().lock().is_locked().unwrap(), "the lock stays held until its lease ends");
        assert_eq!(
            client.engine.registry.found(Kind::Mutex, &name()).map_or(0, |local| local
                .state()
                .queue
                .tickets
                .len()),
            0
        );
        reading.join().unwrap();
    });
}

/// The timer notices the end of a hold in time, even if it is just checking other holds, which come and go.
#[test]
fn an_expired_hold_is_reported_while_other_holds_end() {
    check(|| {
        let world = World::new();
        let client = world.client();
        let named = |name| RedisLock::new(&client.engine, Kind::Mutex, name);
        let short_lived = [named("a"), named("b")];
        let others = spawn(move || {
            for (lock, lease) in short_lived.iter().zip([SHORT, SHORT / 2]) {
                let guard = lock.acquire_with(&AcquireOptions::new().lease(lease)).unwrap().unwrap();
                drop(guard.lost());
                guard.unlock().unwrap();
            }
        });
        let (lock, ready, look) = (named("c"), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let stays = spawn({
            let (ready, look) = (Arc::clone(&ready), Arc::clone(&look));
            move || {
                let guard = lock.acquire_with(&AcquireOptions::new().lease(SHORT)).unwrap().unwrap();
                let lost = guard.lost();
                ready.store(1, Ordering::SeqCst);
                while look.load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
                assert!(lost.try_recv().is_ok(), "the end of the lease was not noticed");
            }
        });
        others.join().unwrap();
        while ready.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        world.clock.advance(2 * SHORT);
        look.store(1, Ordering::SeqCst);
        stays.join().unwrap();
        client.engine.shutdown().unwrap();
    });
}

/// A multi-lock with an explicit lease renews its locks until the last one is acquired. A renewal at that
/// moment must not extend a lock beyond this lease: the client's lease is a hundred times as long.
#[test]
fn no_renewal_extends_the_explicit_lease_of_a_multi_lock() {
    check(|| {
        let world = World::new();
        let (client, other) = (world.client(), world.client());
        let lease = 30 * SHORT;
        let clock = world.clock.clone();
        let time = spawn(move || clock.advance(lease / 2));
        let lock = client.lock();
        let want = RedisLock::want(&lock, "lock", Lease::Kept(lease), Moment::NEVER, None).unwrap();
        let mut group = Group::default();
        if let Some(entered) = client.engine.acquire(&want).unwrap() {
            group.push(&client.engine, entered);
        }
        group.settle();
        time.join().unwrap();
        drop(client.engine.stop()); // waits for requests of the client
        let remaining = other.lock().remaining_lease().unwrap();
        assert!(remaining.is_some_and(|remaining| remaining <= lease), "{remaining:?}");
        drop(group);
        client.engine.shutdown().unwrap();
        other.end();
    });
}

/// The next hold has a lease of its own, which a late renewal of the hold before it must not prolong.
#[test]
fn a_renewal_during_a_release_prolongs_no_later_hold() {
    check(|| {
        let world = World::new();
        let (store, reading) = Far::new(&world, &Arc::default(), 0);
        let (client, other) = (world.client_on(store), world.client());
        let guard = client.lock().acquire().unwrap();
        let clock = world.clock.clone();
        let time = spawn(move || clock.advance(client_lease() / 3));
        end(guard, toss()).unwrap();
        // Tries again, because a grant whose window has ended does not count. A call that waits would pause
        // after such a grant, and nothing moves the clock to the end of that pause.
        while !matches!(client.lock().try_lock_for_with_lease(Duration::ZERO, SHORT), Ok(true)) {
            thread::yield_now();
        }
        time.join().unwrap();
        drop(client.engine.stop()); // waits for requests of the client
        let remaining = other.lock().remaining_lease().unwrap();
        assert!(remaining.is_none_or(|remaining| remaining <= SHORT), "{remaining:?}");
        client.engine.shutdown().unwrap();
        reading.join().unwrap();
        other.engine.shutdown().unwrap();
    });
}

fn client_lease() -> Duration {
    Options::default().lease
}
