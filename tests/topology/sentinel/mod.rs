//! Locks on the master that three Sentinels name: failovers under load, and wrong answers.
//!
//! Each failover's time is printed, and stands in `docs/topologies.md`. Symbols as there: **L** lease, **R**
//! = L/3, **T** command time-out, **P** safety poll, **ε** scheduling slack.

mod answers;
mod failover;
