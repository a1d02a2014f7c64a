//! Locks on the master that three Sentinels name: failovers under load, and answers that must not be
//! believed.
//!
//! The time of each failover is printed, and is what `docs/topologies.md` says. Symbols as there: **L**
//! lease, **R** = L/3, **T** command time-out, **P** safety poll, **ε** scheduling slack.

mod answers;
mod failover;
