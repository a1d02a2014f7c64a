//! All connections to a server share this knowledge of it: whether it became a replica, and which scripts it has.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::hosts::{self, LEAST_AGE, Lifetime, REPLACE_AGAIN};
use crate::stores::redis::reply::{Fitness, is_unknown_script};
use crate::stores::redis::script::{KnownScripts, Script};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::{Clock, Moment};

/// A connection whose replies were all temporary errors for this long is replaced, because its address may
/// lead to another server by now.
const PASSES_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(crate) struct Origin {
    generation: u64,
    opened: Moment,
    pub(crate) round_trip: Duration,
    replace_at: Moment,
    /// When the login ends. `None` if the credentials do not say.
    pub(crate) ends: Option<Moment>,
    unfit_since: Option<Moment>,
    is_unfit: bool,
    /// The scripts that ran over this connection. A new connection may lead to a server that lacks them.
    known: KnownScripts,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SentScript {
    pub(crate) script: &'static Script,
    pub(crate) forgotten: u64,
}

#[derive(Default)]
pub(crate) struct Ledger {
    /// The number of noticed demotions. A connection opened at a smaller number is replaced.
    generation: AtomicU64,
    /// The number of times that the server forgot its scripts.
    forgotten: AtomicU64,
    lifetime: Lifetime,
    /// The round trips of the last two handshakes in microseconds, the latest first.
    round_trips: [AtomicU64; 2],
    on_demotion: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

/// A connection is replaced this long before its login ends, or a fifth of the login's time if that is
/// longer. For logins shorter than 60 s, it is replaced after half of the time.
const BEFORE_END: Duration = Duration::from_secs(30);

fn replaced_at(origin: &Origin, age: Duration) -> Moment {
    let until_end = origin.ends.map_or(Duration::MAX, |ends| {
        let life = ends.since(origin.opened);
        life.saturating_sub((life / 5).max(BEFORE_END)).max(life / 2)
    });
    let lifetime = Lifetime { age: age.min(until_end), ..Lifetime::default() };
    origin.opened.plus(lifetime.some_age())
}

impl Origin {
    pub(crate) fn replaced_at(&self) -> Moment {
        replaced_at(self, Lifetime::default().age)
    }

    pub(crate) fn new() -> Origin {
        Origin {
            generation: 0,
            opened: Clock::System.now(),
            round_trip: Duration::ZERO,
            replace_at: Moment::NEVER,
            ends: None,
            unfit_since: None,
            is_unfit: false,
            known: KnownScripts::default(),
        }
    }
}

impl Ledger {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    pub(crate) fn lasting(lifetime: Lifetime) -> Ledger {
        Ledger { lifetime, ..Ledger::default() }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    pub(crate) fn enter(&self, origin: &mut Origin, generation: u64) {
        let [last, before] = &self.round_trips;
        let round_trip = u64::try_from(origin.round_trip.as_micros()).unwrap_or(u64::MAX);
        before.store(last.swap(round_trip, Ordering::SeqCst), Ordering::SeqCst);
        origin.generation = generation;
        origin.replace_at = replaced_at(origin, self.lifetime.age);
    }

    /// How slow the network is, see [`hosts::link`]. Uses the shorter of the last two round trips, because a
    /// busy processor may have delayed the longer one.
    pub(crate) fn link(&self) -> u32 {
        let round_trips = self.round_trips.each_ref().map(|one| one.load(Ordering::SeqCst));
        let known = round_trips.into_iter().filter(|micros| *micros > 0).min().unwrap_or(0);
        hosts::link(Duration::from_micros(known))
    }

    /// Registers `act`. The thread that first reads an error due to a demotion calls `act`.
    pub(crate) fn on_demotion(&self, act: impl Fn() + Send + Sync + 'static) {
        *self.on_demotion.lock() = Some(Arc::new(act));
    }

    pub(crate) fn is_fit(&self, origin: &Origin) -> bool {
        !origin.is_unfit && origin.generation >= self.generation()
    }

    pub(crate) fn is_stale(&self, origin: &Origin, used: Moment, now: Moment) -> bool {
        self.lifetime.is_over(origin.replace_at, used, now)
    }

    pub(crate) fn keep(&self, origin: &mut Origin, now: Moment) {
        let soon = origin.ends.map_or(REPLACE_AGAIN, |ends| (ends.since(now) / 4).max(PASSES_WITHIN));
        origin.replace_at = now.plus(REPLACE_AGAIN.min(self.lifetime.age).min(soon));
    }

    /// Notes what a reply says about the server. Returns `true` for the first reply that shows a demotion, if
    /// its connection is older than [`LEAST_AGE`]. The caller then unlocks its mutexes, and calls
    /// [`tell_demoted`](Self::tell_demoted). After that, the next request over each connection connects anew.
    pub(crate) fn note(&self, origin: &mut Origin, fitness: Fitness) -> bool {
        match fitness {
            Fitness::Fit => {
                origin.unfit_since = None;
                false
            }
            Fitness::Temporary => {
                let now = Clock::System.now();
                let since = *origin.unfit_since.get_or_insert(now);
                origin.is_unfit |= now.since(since) >= PASSES_WITHIN;
                false
            }
            Fitness::Demoted => {
                let (old, new) = (origin.generation, origin.generation + 1);
                Clock::System.now().since(origin.opened) >= LEAST_AGE
                    && self.generation.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            }
        }
    }

    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }

    /// Whether the server ran the script over this connection, and has not forgotten its scripts since.
    pub(crate) fn knows(&self, origin: &Origin, sent: SentScript) -> bool {
        origin.known.has(sent.script, sent.forgotten)
    }

    /// Notes from a reply whether the server knows the script; refusals such as `MOVED` do not show that. A
    /// server forgets all scripts at once, so if it forgot one, all connections treat all as forgotten.
    pub(crate) fn note_script(&self, origin: &mut Origin, sent: SentScript, reply: &Value) {
        let (old, new) = (sent.forgotten, sent.forgotten + 1);
        match reply {
            Value::ServerError(_) if is_unknown_script(reply) => {
                // The server forgot its scripts once, but many requests on their way get this reply. Only the
                // first reply raises the counter; for the others the counter is no longer `old`.
                self.forgotten.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).ok();
            }
            Value::ServerError(_) => {}
            _ if self.forgotten() == old => origin.known.note(sent.script, old),
            _ => {}
        }
    }

    pub(crate) fn tell_demoted(&self) {
        let act = self.on_demotion.lock().clone();
        if let Some(act) = act {
            act();
        }
    }
}
