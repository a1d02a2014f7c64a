//! Locks on the master that three Sentinels name: failovers under load, and wrong answers.
//!
//! The tests print counts of grants, and durations, which `docs/topologies.md` shows. Symbols as in
//! `docs/guarantees.md`: **L** lease, **R** = L/3, **T** command time-out, **P** safety poll.

mod answers;
mod failover;
