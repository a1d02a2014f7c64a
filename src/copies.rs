//! How many copies of a grant there must be before it counts: in the memory of replicas, and in files.

use std::time::Duration;

use crate::error::{Error, Result};

/// The longest wait for one connected replica, by default.
const WITHIN: Duration = Duration::from_secs(1);
/// The longest wait for append-only files: a server may sync them only once a second, and a sync takes time.
const DURABLE_WITHIN: Duration = Duration::from_secs(2);

/// How many replicas a grant waits for, as the program has set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ReplicaRule {
    /// One connected replica, if the URL names Sentinels or a cluster; otherwise none.
    #[default]
    ByUrl,
    Nothing,
    Required(Replicas),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

/// In how many append-only files a grant must be: the server's own (0 or 1), and those of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Durable {
    pub(crate) local: u32,
    pub(crate) replicas: u32,
}

/// The copies without which a grant is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copies {
    pub(crate) replicas: u32,
    /// Whether the grant also counts if no replica is connected.
    pub(crate) unless_alone: bool,
    pub(crate) durable: Option<Durable>,
    pub(crate) within: Duration,
}

impl ReplicaRule {
    /// The copies that each grant needs besides the one in the server's memory; `None`: no others.
    /// `has_replicas`: Sentinels or a cluster replace a failed server by a replica.
    pub(crate) fn copies(
        self,
        durable: Option<Durable>,
        command_timeout: Duration,
        has_replicas: bool,
    ) -> Option<Copies> {
        // `within` is shorter than the command time-out, so that WAIT answers before it times out.
        let limit = if durable.is_some() { DURABLE_WITHIN } else { WITHIN };
        let within = limit.min(command_timeout.mul_f64(2.0 / 3.0));
        match self {
            ReplicaRule::ByUrl if has_replicas => {
                Some(Copies { replicas: 1, unless_alone: true, durable, within })
            }
            ReplicaRule::ByUrl | ReplicaRule::Nothing => {
                durable.map(|_| Copies { replicas: 0, unless_alone: false, durable, within })
            }
            ReplicaRule::Required(Replicas { count, within }) => {
                Some(Copies { replicas: count, unless_alone: false, durable, within })
            }
        }
    }
}

impl Replicas {
    pub(crate) fn check(self, command_timeout: Duration) -> Result<()> {
        let Replicas { count, within } = self;
        Error::unless(count > 0, || "require_replicas needs a count of at least 1")?;
        Error::unless(within < command_timeout, || {
            format!(
                "a time-out of {within:?} for require_replicas is too long: it must be less than the \
                 command_timeout, {command_timeout:?}"
            )
        })
    }
}

impl Durable {
    pub(crate) fn check(self) -> Result<()> {
        let Durable { local, replicas } = self;
        let why = match (local, replicas) {
            (0, 0) => "waits for no append-only file: ask for at least one, or leave durable() out",
            (0 | 1, _) => return Ok(()),
            _ => "is not possible: the first number counts the server's own append-only file: it is 0 or 1",
        };
        Err(Error::invalid("connect", format!("durable({local}, {replicas}) {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_on_sentinels_or_clusters_await_one_replica_by_default() {
        let (rule, time) = (ReplicaRule::ByUrl, Duration::from_secs(3));
        let copies = rule.copies(None, time, true).unwrap();
        assert_eq!((copies.replicas, copies.unless_alone, copies.within), (1, true, WITHIN));
        assert_eq!(rule.copies(None, time, false), None);
        assert_eq!(ReplicaRule::Nothing.copies(None, time, true), None);
        let quick = rule.copies(None, Duration::from_millis(300), true).unwrap();
        assert_eq!(quick.within, Duration::from_millis(200));
    }

    #[test]
    fn grants_can_require_both_a_synced_file_and_a_replica() {
        let (rule, time, durable) =
            (ReplicaRule::ByUrl, Duration::from_secs(3), Some(Durable { local: 1, replicas: 0 }));
        let copies = rule.copies(durable, time, true).unwrap();
        assert_eq!((copies.replicas, copies.durable, copies.within), (1, durable, DURABLE_WITHIN));
        assert_eq!(rule.copies(durable, time, false).unwrap().replicas, 0);
    }
}
