//! Compares the machine with its table (`table.txt`), and explores all states of small worlds (`world`).
//!
//! In each state: at most one thread relies on the lock, and owns it in the store; no hold has a number under
//! which a release may still arrive; no ended window opens again; no hold is lost without a fault; no client
//! waits longer than a time slice for an unused hold that another client caches, or for more than a few
//! hand-offs of another. Each state leads to one with all threads done and the lock free.

mod caching;
mod driver;
mod event;
mod explore;
mod mistakes;
mod passing;
mod properties;
mod queue;
mod steps;
mod store;
mod table;
mod world;

use std::time::Duration;

use super::*;
use crate::engine::lock::tests::explore::{Violation, explore, random, walk};
use crate::engine::lock::tests::mistakes::Mistake;
use crate::engine::lock::tests::table::{came, has_row, moves, table};
use crate::engine::lock::tests::world::{Rules, Setup, ticks};

/// An owner number. No retired number is used for another hold.
type Number = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Id {
    serial: u64,
    number: Number,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct TestHold(Id);

impl Handle for TestHold {
    fn serial(&self) -> u64 {
        self.0.serial
    }

    fn retire(&mut self) -> bool {
        true
    }

    fn publish(&mut self, _: Stage) {}

    fn lost(&mut self, _: LossReason) {}

    fn session_ends(&self) -> Moment {
        Moment::NEVER
    }
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
struct TestWaiter {
    is_woken: bool,
}

impl Waits for TestWaiter {
    fn wake(&mut self) {
        self.is_woken = true;
    }
}

type Lock = Machine<TestHold, TestWaiter>;

/// Longer than any world lasts.
const FAR: Duration = ticks(1 << 40);

const RULES: Rules = Rules {
    lock: crate::engine::lock::Rules {
        local_handoffs: 1,
        contended: ticks(0),
        longest_slice: ticks(0),
        idle: ticks(1),
        least_score: i8::MIN,
        unused: ticks(2),
        first_check: FAR,
        longest_check_gap: FAR,
    },
    lease: ticks(3),
    renew_after: ticks(1),
    poll: Duration::MAX,
    pause: ticks(1),
    all_ask: false,
};
const BASE: Setup = Setup {
    threads: &[1],
    cycles: 1,
    faults: 0,
    unlocks: true,
    drops: true,
    reenters: false,
    gives_up: false,
    tries: false,
    forces: false,
    retires: false,
    caches: false,
    rules: RULES,
    mistake: None,
};
/// Messages and recalls may be lost, so waiters poll, and cached holds are checked.
const FAULTY_RULES: Rules = checked(Rules { poll: ticks(2), ..RULES }, ticks(2));
const FAULTY: Setup = Setup { faults: 1, rules: FAULTY_RULES, ..BASE };
const SLICES: Rules = sliced(RULES, ticks(2));
const ALL_ASK: Rules = Rules { all_ask: true, ..RULES };

const fn sliced(rules: Rules, longest_slice: Duration) -> Rules {
    Rules { lock: crate::engine::lock::Rules { longest_slice, ..rules.lock }, ..rules }
}

const fn checked(rules: Rules, after: Duration) -> Rules {
    let lock = crate::engine::lock::Rules { first_check: after, longest_check_gap: after, ..rules.lock };
    Rules { lock, ..rules }
}

/// The set-ups that each run of the tests explores; the longest run (the soak) explores [`large`] too.
fn small() -> Vec<Setup> {
    vec![
        Setup { threads: &[1, 1], cycles: 2, drops: false, ..BASE },
        Setup { threads: &[1, 1], cycles: 2, drops: false, caches: true, ..BASE },
        Setup { threads: &[1, 1, 1], unlocks: false, rules: SLICES, ..BASE },
        Setup { threads: &[2], reenters: true, ..BASE },
        Setup { threads: &[2], cycles: 2, gives_up: true, unlocks: false, ..BASE },
        Setup { threads: &[2], tries: true, caches: true, ..BASE },
        Setup { threads: &[2], rules: ALL_ASK, ..BASE },
        Setup { cycles: 2, ..FAULTY },
        Setup { reenters: true, ..FAULTY },
        Setup { cycles: 2, caches: true, drops: false, ..FAULTY },
    ]
}

/// The set-ups that only the soak, the longest run of the tests, explores.
fn large() -> Vec<Setup> {
    let all_ask = Rules { all_ask: true, ..FAULTY_RULES };
    let slices = sliced(FAULTY_RULES, ticks(2));
    vec![
        Setup { threads: &[1, 1], cycles: 2, ..BASE },
        Setup { threads: &[1, 1, 1], ..BASE },
        Setup { threads: &[1, 1, 1], caches: true, ..BASE },
        Setup { threads: &[2, 2], ..BASE },
        Setup { threads: &[2, 2], gives_up: true, tries: true, unlocks: false, ..BASE },
        Setup { threads: &[2, 2], caches: true, drops: false, ..BASE },
        Setup { threads: &[2, 2], rules: SLICES, unlocks: false, ..BASE },
        Setup { threads: &[1, 1], cycles: 2, rules: SLICES, caches: true, ..BASE },
        Setup { threads: &[2, 2], rules: ALL_ASK, ..BASE },
        Setup { threads: &[1, 1], ..FAULTY },
        Setup { threads: &[1, 1], caches: true, ..FAULTY },
        Setup { threads: &[1, 1], rules: slices, cycles: 2, unlocks: false, ..FAULTY },
        Setup { threads: &[1, 1], forces: true, ..FAULTY },
        Setup { threads: &[2], ..FAULTY },
        Setup { threads: &[2], caches: true, ..FAULTY },
        Setup { threads: &[2], reenters: true, ..FAULTY },
        Setup { threads: &[2], gives_up: true, tries: true, drops: false, ..FAULTY },
        Setup { threads: &[2], rules: all_ask, ..FAULTY },
        Setup { threads: &[2], faults: 2, retires: true, ..FAULTY },
        Setup { faults: 4, reenters: true, ..FAULTY },
        Setup { threads: &[1, 1], faults: 2, drops: false, ..FAULTY },
        Setup { threads: &[2, 2], drops: false, ..FAULTY },
    ]
}

fn mistakes() -> Vec<(Mistake, Setup)> {
    let cycles = Setup { cycles: 2, ..FAULTY };
    let two_threads = Setup { threads: &[2], ..FAULTY };
    let caching = Setup { threads: &[1, 1], cycles: 2, drops: false, caches: true, ..BASE };
    let slices = Setup { threads: &[1, 1], cycles: 2, rules: SLICES, caches: true, ..BASE };
    let two_by_two = Setup { threads: &[2, 2], drops: false, ..BASE };
    vec![
        (Mistake::FreeBeforeSent, slices),
        (Mistake::NumberUsedAgain, cycles),
        (Mistake::RetiredCounts, Setup { threads: &[2], cycles: 2, ..FAULTY }),
        (Mistake::WordIgnored, Setup { threads: &[1, 1], cycles: 2, ..BASE }),
        (Mistake::RenewalJudgedEarly, Setup { faults: 4, ..FAULTY }),
        (Mistake::GrantJudgedEarly, Setup { faults: 3, ..FAULTY }),
        (Mistake::ReceiverKeepsNumber, two_threads),
        (Mistake::RenewalForgotten, cycles),
        (Mistake::EndlessHandoffs, Setup { cycles: 2, ..two_by_two }),
        (Mistake::LeavesBeforeSent, Setup { threads: &[2, 1], gives_up: true, unlocks: false, ..BASE }),
        (Mistake::NobodyGivesBack, caching),
        (Mistake::RecallMissed, caching),
        (Mistake::SleepsOverWord, Setup { threads: &[2], ..BASE }),
    ]
}

/// More states than any small world has, and than most large ones.
const MOST: usize = 3_000_000;

fn random_world(seed: &mut u64) -> Setup {
    let mut coin = || random(seed).is_multiple_of(2);
    let all_ask = coin() && coin();
    let faults = if coin() { 4 } else { 0 };
    let slice = if coin() { ticks(2) } else { ticks(0) };
    let rules = if faults == 0 { RULES } else { FAULTY_RULES };
    Setup {
        threads: if coin() { &[3, 2] } else { &[2, 1, 1] },
        cycles: 3,
        faults,
        reenters: coin(),
        // Giving up removes the client's place in the store's queue; with `all_ask` other threads need it.
        gives_up: !all_ask && coin(),
        tries: !all_ask && coin(),
        forces: coin() && coin(),
        retires: coin() && coin(),
        caches: coin(),
        rules: Rules { all_ask, ..handing_off(sliced(rules, slice), 1 + u32::from(coin())) },
        ..BASE
    }
}

/// Explores all states of worlds, and walks randomly through larger ones. Compares the table with the machine
/// and with the events that came.
fn explore_all(worlds: &[Setup], walks: usize) {
    for setup in worlds {
        let explored = explore(setup, MOST);
        let which = if explored.is_whole { "all" } else { "the first" };
        eprintln!("{which} {} states of {setup:?}", explored.states);
        report(setup, explored.violation);
    }
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..walks {
        let setup = random_world(&mut seed);
        report(&setup, walk(&setup, &mut seed));
    }
    let written = include_str!("table.txt");
    if std::env::var_os("LEASEHOLD_BLESS").is_some_and(|value| !value.is_empty()) {
        let table = table(|slot, kind| came(slot, kind) || has_row(written, slot, kind), &moves(written));
        return std::fs::write("src/engine/lock/tests/table.txt", table).unwrap();
    }
    let table = table(
        |slot, kind| {
            let has_row = has_row(written, slot, kind);
            assert!(
                has_row || !came(slot, kind),
                "`{kind:?}` came in slot {slot}, and the table says that it never does"
            );
            has_row
        },
        &moves(written),
    );
    assert_eq!(written, table, "LEASEHOLD_BLESS=1 writes the table anew");
}

fn handing_off(rules: Rules, local_handoffs: u32) -> Rules {
    Rules { lock: crate::engine::lock::Rules { local_handoffs, ..rules.lock }, ..rules }
}

fn report(setup: &Setup, violation: Option<Violation>) {
    if let Some(violation) = violation {
        violation.print(setup);
        panic!("{} after {} steps of {setup:?}", violation.what, violation.way.len());
    }
}

#[test]
fn lock_invariants_hold_in_all_states_of_small_models() {
    explore_all(&small(), 1000);
}

/// Explores only if `LEASEHOLD_SCHEDULES` is above 10,000, as in the soak (the longest run of the tests).
#[test]
fn lock_invariants_hold_in_larger_models() {
    let schedules = std::env::var("LEASEHOLD_SCHEDULES").map_or(0, |schedules| schedules.parse().unwrap());
    if schedules > 10_000 {
        explore_all(&large(), schedules);
    }
}

#[test]
fn an_exploration_finds_each_deliberate_mistake() {
    for (mistake, setup) in mistakes() {
        let explored = explore(&Setup { mistake: Some(mistake), ..setup }, MOST);
        let Some(violation) = explored.violation else { panic!("{mistake:?} is not found") };
        eprintln!(
            "{mistake:?}: {} after {} steps, {} states",
            violation.what,
            violation.way.len(),
            explored.states
        );
    }
}
