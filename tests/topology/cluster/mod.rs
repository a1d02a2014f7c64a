//! A Redis Cluster: its members fail, change places and pass slots on while locks are used.

mod failover;
mod load;
mod members;
mod migration;
mod waking;
