//! A Redis Cluster whose members fail, swap the roles of primary and replica, and pass on slots.

mod failover;
mod load;
mod members;
mod migration;
mod waking;
