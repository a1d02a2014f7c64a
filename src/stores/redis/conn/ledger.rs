//! The connections of a client to one address tell more than their replies: that the server which they lead
//! to is not the one to ask any more, and which of them ended with a request in doubt.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::refused::Refused;
use crate::seam::REQUEST_LASTS;
use crate::stores::redis::reply::{Fitness, is_forgotten};
use crate::stores::redis::script::{Command, KnownScripts, Script};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::{Clock, Moment, random_between};

/// A connection that is older is replaced: where a name or a proxy leads may have changed without a word, and
/// a server that was taken out of use keeps the connections that it has. Up to an eighth sooner, so that a
/// fleet does not connect at once.
const GREATEST_AGE: Duration = Duration::from_secs(30 * 60);
/// A connection that was not used for this time is replaced: routers and load balancers forget idle
/// connections after four minutes or more, and say nothing, so that the next request would wait for its
/// time-out.
const GREATEST_IDLE: Duration = Duration::from_secs(3 * 60);
/// A replacement that could not be had is tried for again after this; the old connection serves meanwhile.
const REPLACE_AGAIN: Duration = Duration::from_secs(60);
/// A connection younger than this is not given up for what the server says: else one that refuses everything
/// would be connected to for each request.
const LEAST_AGE: Duration = Duration::from_millis(250);
/// A server that is loading, or refuses writes for another reason that passes, is looked up anew after so
/// long.
const PASSES_WITHIN: Duration = Duration::from_secs(1);
/// A lock is reserved for no longer than for such a link: see `lua/line.lua`, which has the same bound.
const FARTHEST_LINK: u32 = 6;
/// The most connections in doubt that are asked about; of older ones nothing is known then.
const MOST_DOUBTS: usize = 64;
/// Between two questions about them.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long connections are used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) age: Duration,
    pub(crate) idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { age: GREATEST_AGE, idle: GREATEST_IDLE }
    }
}

/// When a connection was made, and by which number its server knows it.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// As HELLO tells it; `None`: it does not.
    pub(crate) id: Option<i64>,
    generation: u64,
    opened: Moment,
    /// How long the handshake waited for its first reply.
    pub(crate) round_trip: Duration,
    replace_at: Moment,
    /// Since when the server has refused for a reason that passes.
    unfit_since: Option<Moment>,
    is_unfit: bool,
    /// Of this connection: the next may lead to another server, or to the same after a restart.
    known: KnownScripts,
}

/// A request of a script: which one, and how often the server had forgotten scripts when it was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentScript {
    pub(crate) script: &'static Script,
    pub(crate) forgotten: u64,
}

/// Shared by all connections of a client to one address.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Counts what was found out about the server: connections of an earlier number lead to one that was
    /// demoted.
    generation: AtomicU64,
    /// Counts how often a reply over any of the connections said that the server did not know a script.
    forgotten: AtomicU64,
    limits: Limits,
    /// The round trips of the last two handshakes, in microseconds, the last one first.
    round_trips: [AtomicU64; 2],
    doubts: Mutex<Doubts>,
    on_demotion: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

/// Connections that ended while they owed a reply, and may still be read by their server.
#[derive(Debug, Default)]
struct Doubts {
    ids: Vec<i64>,
    /// Until then something may come over a connection whose number is not known.
    nameless_until: Option<Moment>,
    ask_at: Option<Moment>,
    /// The server refused the question.
    refused: Refused,
}

/// How long one connection is used.
pub(crate) fn some_age() -> Duration {
    random_between((GREATEST_AGE - GREATEST_AGE / 8, GREATEST_AGE))
}

impl Origin {
    /// Of a connection that nothing is known about.
    pub(crate) fn new(id: Option<i64>) -> Origin {
        let now = Clock::System.now();
        let replace_at = Moment::NEVER;
        Origin {
            id,
            generation: 0,
            opened: now,
            round_trip: Duration::ZERO,
            replace_at,
            unfit_since: None,
            is_unfit: false,
            known: KnownScripts::default(),
        }
    }
}

impl Ledger {
    #[cfg(all(test, unix, not(leasehold_shuttle)))]
    pub(crate) fn limited(limits: Limits) -> Ledger {
        Ledger { limits, ..Ledger::default() }
    }

    /// The number for a connection that is about to be made.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Enters a new connection, which was begun under this number.
    pub(crate) fn enter(&self, origin: &mut Origin, generation: u64) {
        let age = self.limits.age;
        let [last, before] = &self.round_trips;
        let round_trip = u64::try_from(origin.round_trip.as_micros()).unwrap_or(u64::MAX);
        before.store(last.swap(round_trip, Ordering::SeqCst), Ordering::SeqCst);
        origin.generation = generation;
        origin.replace_at = origin.opened.plus(random_between((age - age / 8, age)));
    }

    /// The link to the server: so often must 10 ms be doubled to have time for two round trips, and 8 ms for the
    /// threads. The shorter of the last two handshakes counts, since one may have met a busy processor.
    pub(crate) fn link(&self) -> u32 {
        let round_trips = self.round_trips.each_ref().map(|one| one.load(Ordering::SeqCst));
        let known = round_trips.into_iter().filter(|micros| *micros > 0).min().unwrap_or(0);
        let wanted_ms = known.saturating_mul(2) / 1000 + 8;
        (0..FARTHEST_LINK).find(|link| wanted_ms <= 10 << link).unwrap_or(FARTHEST_LINK)
    }

    /// Has `act` called when the server turns out to be demoted, by the thread that reads the reply.
    pub(crate) fn on_demotion(&self, act: impl Fn() + Send + Sync + 'static) {
        *self.on_demotion.lock() = Some(Arc::new(act));
    }

    /// Whether a connection leads, as far as is known, to a server that is of use.
    pub(crate) fn is_fit(&self, origin: &Origin) -> bool {
        !origin.is_unfit && origin.generation >= self.generation()
    }

    /// Whether a connection last used then is to be replaced if another can be had.
    pub(crate) fn is_stale(&self, origin: &Origin, used: Moment, now: Moment) -> bool {
        now >= origin.replace_at || now.since(used) >= self.limits.idle
    }

    /// It could not be replaced.
    pub(crate) fn keep(&self, origin: &mut Origin, now: Moment) {
        origin.replace_at = now.plus(REPLACE_AGAIN.min(self.limits.age));
    }

    /// Takes note of a reply that came over a connection. A server that was demoted was so for all
    /// connections: the next request over each looks up the server anew. Returns whether that has just been
    /// found out; then the caller [tells](Self::tell_demoted), without a lock.
    pub(crate) fn note(&self, origin: &mut Origin, fitness: Fitness) -> bool {
        match fitness {
            Fitness::Fit => {
                origin.unfit_since = None;
                false
            }
            Fitness::Passing => {
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

    /// How often the server has been seen to have forgotten scripts.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }

    /// Whether the server has run the script over this connection, and has not been seen to forget any since.
    pub(crate) fn knows(&self, origin: &Origin, sent: SentScript) -> bool {
        origin.known.has(sent.script, sent.forgotten)
    }

    /// Takes note of whether the server knows the script, from the reply to its request. A server that refuses
    /// a command before it looks for the script (`MOVED`, `LOADING`) says nothing about it. A server that has
    /// forgotten one script is taken to have forgotten all, whichever connection leads to it.
    pub(crate) fn note_script(&self, origin: &mut Origin, sent: SentScript, reply: &Value) {
        let (old, new) = (sent.forgotten, sent.forgotten + 1);
        match reply {
            Value::ServerError(_) if is_forgotten(reply) => {
                // Of many replies that say so at once, only the first is news.
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

    /// A connection ended that owed a reply. Comes before those are notified whom it owed.
    pub(crate) fn ended_in_doubt(&self, origin: &Origin) {
        let mut doubts = self.doubts.lock();
        match origin.id {
            Some(id) if doubts.ids.len() < MOST_DOUBTS => doubts.ids.push(id),
            Some(_) | None => doubts.nameless_until = Some(Clock::System.after(REQUEST_LASTS)),
        }
    }

    /// The numbers of connections that are to be asked about; none: nothing can come late. `None`: that
    /// cannot be known now.
    pub(crate) fn doubtful(&self) -> Option<Vec<i64>> {
        let now = Clock::System.now();
        let mut doubts = self.doubts.lock();
        if doubts.nameless_until.is_some_and(|until| now < until) {
            return None;
        }
        if doubts.ids.is_empty() {
            return Some(Vec::new());
        }
        if doubts.refused.stands(|| now) || doubts.ask_at.is_some_and(|at| now < at) {
            return None;
        }
        doubts.ask_at = Some(now.plus(ASK_AGAIN));
        Some(doubts.ids.clone())
    }

    /// Takes note of the replies to [`question`]s about these; whether all of them are gone.
    pub(crate) fn settle(&self, asked: &[i64], replies: &[Value]) -> bool {
        let mut doubts = self.doubts.lock();
        let mut all = true;
        for (id, reply) in asked.iter().zip(replies) {
            match reply {
                Value::ServerError(error) if error.details().is_some_and(|text| text.contains(NO_SUCH)) => {
                    doubts.ids.retain(|other| other != id);
                }
                Value::ServerError(_) => {
                    doubts.refused.note(Clock::System.now());
                    all = false;
                }
                _ => all = false,
            }
        }
        all
    }
}

const NO_SUCH: &str = "does not exist";

/// Asks whether the server still has a connection, in a way that needs no right over others' connections:
/// replies are to be sent on to it, which is refused if it is not there. Nothing is read before
/// [`end_of_questions`], so nothing is sent on.
pub(crate) fn question(id: i64) -> Command {
    Command::new("CLIENT").arg("TRACKING").arg("ON").arg("REDIRECT").arg(id)
}

pub(crate) fn end_of_questions() -> Command {
    Command::new("CLIENT").arg("TRACKING").arg("OFF")
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("generation", &self.generation).finish_non_exhaustive()
    }
}
