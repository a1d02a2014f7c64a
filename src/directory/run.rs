//! Directory entries under derived ids that belong to no client: the record of a job's last run, and the
//! waiting thread of a process that works under another process's hold (see [`id_under`]).
//!
//! As entries they need no other table or key, and no further rights. Lists of clients skip them, because
//! they have no `lease_ms`.

use std::time::Duration;

use super::lines::{Fields, Lines};
use super::{LONGEST_KEY, shown};
use crate::ident::{ClientId, Owner};
use crate::time::millis;

/// How long a record is kept: longer than a month, for monthly jobs.
pub(crate) const KEPT: Duration = Duration::from_secs(40 * 24 * 3600);

/// A job's last run; the answer of [`LockClient::last_run`](crate::LockClient::last_run).
///
/// # Examples
/// ```
/// use leasehold::LockClient;
/// use std::time::Duration;
///
/// let client = LockClient::in_memory();
/// let hour = Duration::from_secs(3600);
/// client.run_once_fenced("nightly", hour, hour, |guard| {
///     client.record_run(guard, 0, Duration::from_secs(3))
/// })?;
/// let last = client.last_run("nightly")?.expect("it was recorded");
/// // The owner that ran the job still holds the lock: the job is over, and kept from running again.
/// assert_eq!(client.inspect("nightly")?.holders[0].owner, last.owner);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastRun {
    /// The owner under which the job ran. If this owner still holds the lock, the job is over, and its
    /// `at_least` is not, so no run can begin. If another owner holds the lock, the job is running.
    pub owner: String,
    /// The exit code of the job; 0 is a success.
    pub exit_code: u8,
    /// How long the run took.
    pub took: Duration,
    /// How long ago the run ended, by the store's clock.
    pub ended_ago: Duration,
    /// How long ago the last successful run ended; `None`: none in the last 40 days.
    pub succeeded_ago: Option<Duration>,
    /// The machine on which the job ran.
    pub host: String,
}

pub(crate) fn id_of(key: &str) -> ClientId {
    ClientId::of_text(&["job ", key])
}

impl LastRun {
    pub(crate) fn written(&self, key: &str) -> String {
        let mut lines = Lines::new();
        lines.text("job", if key.len() <= LONGEST_KEY { key } else { "" });
        lines.text("owner", &self.owner);
        lines.text("host", &self.host);
        lines.add("code", self.exit_code);
        lines.add("took_ms", millis(self.took));
        lines.add("kept_ms", millis(KEPT));
        lines.known("succeeded_ms", self.succeeded_ago.map(millis));
        lines.into_text()
    }

    pub(crate) fn read(key: &str, text: &str, remaining: Duration) -> Option<LastRun> {
        let entry = Fields::of(text);
        let job = entry.text("job")?;
        if !job.is_empty() && job != key {
            return None;
        }
        let ms = |name: &str| entry.number(name).map(Duration::from_millis);
        let ended = ms("kept_ms")?.saturating_sub(remaining);
        Some(LastRun {
            owner: shown(&entry.text("owner")?),
            exit_code: entry.number("code").and_then(|code| u8::try_from(code).ok())?,
            took: ms("took_ms")?,
            ended_ago: ended,
            // A success older than `KEPT` is left out. Otherwise each new record would carry it on for ever.
            succeeded_ago: ms("succeeded_ms").map(|ago| ago.saturating_add(ended)).filter(|ago| *ago < KEPT),
            host: entry.text("host").map(|host| shown(&host)).unwrap_or_default(),
        })
    }
}

/// The id of the entry for the waiting thread of a process that works under the hold of `owner`.
///
/// The program `leasehold run` keeps its lock while its command waits for another lock, as a different
/// client. The command's client learns the program's owner from `LEASEHOLD_UNDER` and writes this entry,
/// which leads the search for deadlocks from the owner to the waiting thread.
pub(crate) fn id_under(owner: Owner) -> ClientId {
    ClientId::of_text(&["under ", &owner.to_string()])
}

pub(crate) fn written_under(owner: Owner, client: ClientId, thread: u64) -> String {
    let mut lines = Lines::new();
    lines.add("under", owner);
    lines.add("client", client);
    lines.add("by", thread);
    lines.into_text()
}

/// The waiting client and its thread. `None` if the entry is malformed or of a different owner.
pub(crate) fn read_under(owner: Owner, text: &str) -> Option<(ClientId, u64)> {
    let entry = Fields::of(text);
    let is_its = entry.text("under").as_deref() == Some(&*owner.to_string());
    let client = entry.text("client").filter(|_| is_its)?;
    Some((ClientId::read(&client)?, entry.number("by")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::ClientInfo;

    #[test]
    fn record_of_a_last_run_is_read_back_with_its_age() {
        let second = Duration::from_secs(1);
        let run = LastRun {
            owner: "0f0c:1".to_owned(),
            exit_code: 3,
            took: 7 * second,
            ended_ago: Duration::ZERO,
            succeeded_ago: Some(60 * second),
            host: "ada \"1\"".to_owned(),
        };
        let text = run.written("a\"b");
        let read = LastRun::read("a\"b", &text, KEPT - 5 * second).unwrap();
        assert_eq!(read, LastRun { ended_ago: 5 * second, succeeded_ago: Some(65 * second), ..run.clone() });
        assert_eq!(LastRun::read("another", &text, KEPT), None);
        assert_eq!(LastRun::read("a", "host=ada\npid=1\nlease_ms=1\n", KEPT), None);
        assert!(super::super::ClientInfo::read(id_of("a"), &text, KEPT).is_none(), "a record is no client");
        assert_ne!(id_of("a"), id_of("b"));
    }

    #[test]
    fn an_under_entry_is_not_read_as_a_client() {
        let [one, other] = [7, 8].map(|number| Owner::new(ClientId::random(), number));
        let waiter = ClientId::random();
        let text = written_under(one, waiter, 3);
        assert_eq!(read_under(one, &text), Some((waiter, 3)));
        assert_eq!(read_under(other, &text), None);
        assert_eq!(read_under(one, "under=x\nclient=y\nby=z\n"), None);
        assert!(ClientInfo::read(id_under(one), &text, Duration::ZERO).is_none());
        assert_ne!(id_under(one), id_under(other));
        assert_eq!(Owner::read(&one.to_string()), Some(one));
        assert_eq!(Owner::read("7"), None);
    }
}
