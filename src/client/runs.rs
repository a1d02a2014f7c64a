//! Jobs with a fencing token, and the records of their last runs.

use std::time::Duration;

use crate::client::LockClient;
use crate::directory::run::LastRun;
use crate::error::Result;
use crate::locks::guard::OwnedGuard;
use crate::locks::run_once::run_once;
use crate::seam::Kind;

impl LockClient {
    /// As [`run_once`](Self::run_once), with the [fenced](Self::get_fenced_lock) lock of the name: by the
    /// guard's token, a resource refuses writes of a run that took longer than `at_most`.
    ///
    /// # Blocking
    /// As [`run_once`](Self::run_once).
    ///
    /// # Errors
    /// As [`run_once`](Self::run_once).
    ///
    /// # Panics
    /// When `job` does; it counts as run.
    ///
    /// # Guarantees
    /// Those of [`run_once`](Self::run_once). Tokens grow from run to run.
    ///
    /// # Examples
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// let hour = std::time::Duration::from_secs(3600);
    /// let fence = client.run_once_fenced("nightly", hour, hour, |guard| guard.fencing_token())?;
    /// assert!(fence.flatten().is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn run_once_fenced<R>(
        &self,
        name: impl AsRef<str>,
        at_least: Duration,
        at_most: Duration,
        job: impl FnOnce(&OwnedGuard) -> R,
    ) -> Result<Option<R>> {
        let lock = self.get_fenced_lock(name);
        run_once(&self.engine, (Kind::Fenced, lock.checked("run_once")?), at_least, at_most, job)
    }

    /// Records how a run ended, for [`last_run`](Self::last_run). The job calls this at its end, with its
    /// guard. A `code` of 0 is a success. The record stays for 40 days beside the directory's entries, and
    /// needs the same rights.
    ///
    /// # Blocking
    /// One round trip, two for another code than 0: up to a command time-out (default 3 s) each.
    ///
    /// # Errors
    /// The store could not be used, or the user lacks the right to its directory entry. Of kind
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where [`run_once`](Self::run_once) is, and in a
    /// database without the table of clients.
    ///
    /// # Examples
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// # let hour = std::time::Duration::from_secs(3600);
    /// let begun = std::time::Instant::now();
    /// client.run_once("nightly", hour, hour, |guard| client.record_run(guard, 0, begun.elapsed()))?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn record_run(&self, guard: &OwnedGuard, code: u8, took: Duration) -> Result<()> {
        let lock = self.get_lock(guard.name());
        self.engine.record_run(lock.checked("record_run")?, guard.owner(), code, took)
    }

    /// How the last [recorded](Self::record_run) run of a job ended; `None` if there was none in the last 40
    /// days.
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Errors
    /// As [`record_run`](Self::record_run).
    ///
    /// # Examples
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// match client.last_run("nightly")?.and_then(|last| last.succeeded_ago) {
    ///     Some(ago) => println!("the last success was {ago:?} ago"),
    ///     None => println!("there was no success in the last 40 days"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn last_run(&self, name: impl AsRef<str>) -> Result<Option<LastRun>> {
        self.engine.last_run(self.get_lock(name).checked("last_run")?)
    }
}
