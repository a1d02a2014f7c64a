//! A Redis Cluster whose members fail, change places and pass on slots.

mod failover;
mod load;
mod members;
mod migration;
mod waking;
