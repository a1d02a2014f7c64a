//! The worlds (clients, a server, and what may happen to them) in which each kind of lock is explored.

use crate::explore::{Explored, explore};
use crate::foreign::Foreign;
use crate::kinds::{FOREIGN, Kind};
use crate::lua::Scripts;
use crate::world::{Limits, World};

/// Three owners of two clients. Each acquires once, and nothing goes wrong.
const CALM: Limits = Limits {
    owners: &[0, 0, 1],
    idle: None,
    cycles: 1,
    faults: 0,
    kills: 0,
    losses: 0,
    spans: 0,
    ticks: 0,
    renewals: 0,
    reentries: 0,
    gives_up: 0,
    fills: 0,
    refused: None,
};

/// Two clients whose user may not run a command; the test sets which one. Time may jump once to an expiry.
pub const REFUSED: Limits = Limits { spans: 1, renewals: 1, reentries: 1, gives_up: 1, ..TWO };

/// As [`CALM`], but with only one owner in each client, so that worlds with more events stay small.
const TWO: Limits = Limits { owners: &[0, 1], ..CALM };

const THREE: Limits = Limits { owners: &[0, 1, 2], ..CALM };

pub const KINDS: [Kind; 6] =
    [Kind::Plain, Kind::Fenced, Kind::Fair, Kind::ReadWrite, Kind::Semaphore(1), Kind::Semaphore(2)];

/// A world: its name, its description for docs/figures/proof.md, and how often each event may happen.
pub struct Described {
    pub name: &'static str,
    pub words: &'static str,
    pub limits: Limits,
}

const fn world(name: &'static str, words: &'static str, limits: Limits) -> Described {
    Described { name, words, limits }
}

/// The worlds without Redisson. Small ones come first, because some tests explore only the first few.
pub const WORLDS: [Described; 15] = [
    world("kill", "three owners of two clients; a client is killed", Limits { kills: 1, ..CALM }),
    world(
        "all",
        "three owners; one gives up; a renewal, a re-entry",
        Limits { gives_up: 1, renewals: 1, reentries: 1, ..CALM },
    ),
    world("twice", "three owners, each twice", Limits { cycles: 2, ..CALM }),
    world(
        "loss",
        "two owners, each twice; the server loses its data; a renewal",
        Limits { cycles: 2, losses: 1, renewals: 1, ..TWO },
    ),
    world("fault", "three owners; a request or an answer is lost or late", Limits { faults: 1, ..CALM }),
    world(
        "full",
        "three owners; memory is full for a while; one gives up, a renewal, a re-entry",
        Limits { fills: 1, gives_up: 1, renewals: 1, reentries: 1, ..CALM },
    ),
    world(
        "time",
        "two owners; something ends, 5 ms pass; a renewal, a re-entry",
        Limits { spans: 1, ticks: 1, renewals: 1, reentries: 1, ..TWO },
    ),
    world("ends", "two owners; one is killed; two things end", Limits { kills: 1, spans: 2, ..TWO }),
    world("late", "two owners; a fault; something ends", Limits { faults: 1, spans: 1, ..TWO }),
    world("heir", "three owners; something ends, 5 ms pass", Limits { spans: 1, ticks: 1, ..CALM }),
    world(
        "half",
        "two readers; a renewal; something ends, 5 ms pass",
        Limits { idle: Some(1), spans: 1, ticks: 1, renewals: 1, ..CALM },
    ),
    world(
        "turns",
        "two writers and a reader; one gives up; something ends",
        Limits { owners: &[0, 1, 2, 3], idle: Some(0), gives_up: 1, spans: 1, ..CALM },
    ),
    world("three", "three clients; one gives up; something ends", Limits { gives_up: 1, spans: 1, ..THREE }),
    world(
        "long",
        "two owners, each twice; two faults; one gives up",
        Limits { cycles: 2, faults: 2, gives_up: 1, ..TWO },
    ),
    world("killed", "three clients; one is killed; something ends", Limits { kills: 1, spans: 1, ..THREE }),
];

/// The kinds that this crate and Redisson share in [`MIXED_WORLDS`].
pub const MIXED_KINDS: [Kind; 4] = [Kind::Plain, Kind::Fenced, Kind::Fair, Kind::ReadWrite];

/// Two clients of this crate with one owner each, and Redisson.
const MIXED: Limits = Limits { owners: &[0, 1, FOREIGN], ..CALM };

/// The worlds with Redisson. In a read-write lock's worlds, Redisson reads in one run and writes in another.
pub const MIXED_WORLDS: [Described; 8] = [
    world(
        "threads",
        "two threads of one client, and Redisson; one gives up; a renewal, a re-entry",
        Limits { owners: &[0, 0, FOREIGN], gives_up: 1, renewals: 1, reentries: 1, ..CALM },
    ),
    world(
        "clients",
        "two clients, and Redisson; one gives up; a renewal, a re-entry",
        Limits { gives_up: 1, renewals: 1, reentries: 1, ..MIXED },
    ),
    world("kill", "two clients, and Redisson; one of the three is killed", Limits { kills: 1, ..MIXED }),
    world("twice", "two clients, and Redisson, each twice", Limits { cycles: 2, ..MIXED }),
    world(
        "fault",
        "two clients, and Redisson; a request or an answer is lost or late",
        Limits { faults: 1, ..MIXED },
    ),
    world(
        "time",
        "two clients, and Redisson; something ends; a renewal",
        Limits { spans: 1, renewals: 1, ..MIXED },
    ),
    world(
        "late",
        "a client, and Redisson; a fault; something ends",
        Limits { owners: &[0, FOREIGN], faults: 1, spans: 1, ..CALM },
    ),
    world(
        "four",
        "three clients, and Redisson; one gives up",
        Limits { owners: &[0, 1, 2, FOREIGN], gives_up: 1, ..CALM },
    ),
];

/// The worlds that matter for a kind. The world `heir` is about hand-offs, so its kinds need threads that
/// queue locally. The worlds `half` and `turns` are about readers.
pub fn worlds(kind: Kind) -> impl Iterator<Item = &'static Described> {
    WORLDS.iter().filter(move |world| match world.name {
        "heir" => kind.queues_here(),
        "half" | "turns" => kind == Kind::ReadWrite,
        _ => true,
    })
}

#[must_use]
pub fn explored(scripts: &Scripts, kind: Kind, limits: Limits) -> Explored {
    explore(World::new(scripts, kind, limits), 5_000_000)
}

/// The worlds with Redisson for a kind. Each item is a text (for a read-write lock: whether Redisson reads or
/// writes), a world, and its limits. Owners with even indexes read, so Redisson's place in `owners` decides.
pub fn mixed_worlds(kind: Kind) -> impl Iterator<Item = (&'static str, &'static Described, Limits)> {
    let orders = move |world: &'static Described| {
        let last = world.limits.owners;
        if kind != Kind::ReadWrite {
            return vec![("", world, world.limits)];
        }
        let other: &[usize] = match *last {
            [0, FOREIGN] => &[FOREIGN, 1],
            [0, 0, FOREIGN] => &[0, FOREIGN, 0],
            [0, 1, FOREIGN] => &[0, FOREIGN, 1],
            _ => &[0, 1, FOREIGN, 2],
        };
        let half = |owners: &'static [usize]| {
            let reads = owners.iter().position(|client| *client == FOREIGN).is_some_and(|at| at % 2 == 0);
            (if reads { ", it reads" } else { ", it writes" }, world, Limits { owners, ..world.limits })
        };
        vec![half(last), half(other)]
    };
    // A fenced lock differs from a plain lock only by its counter, so these worlds would show nothing new.
    let adds_nothing =
        move |world: &&Described| kind == Kind::Fenced && ["twice", "time", "late"].contains(&world.name);
    MIXED_WORLDS.iter().filter(move |world| !adds_nothing(world)).flat_map(orders)
}

#[must_use]
pub fn explored_beside(scripts: &Scripts, foreign: &Foreign, kind: Kind, limits: Limits) -> Explored {
    explore(World::new(scripts, kind, limits).beside(foreign), 5_000_000)
}
