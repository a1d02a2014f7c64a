//! The places that keep locks.

#[cfg(feature = "etcd")]
pub(crate) mod etcd;
pub(crate) mod memory;
pub(crate) mod redis;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
// The public modules in it are shown with the feature of their re-export, not with this one's.
#[cfg_attr(docsrs, doc(auto_cfg = false))]
pub(crate) mod sql;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;
