//! Records of the last runs of jobs: see `directory/run.rs`.

use std::time::Duration;

use crate::directory::host;
use crate::directory::run::{KEPT, LastRun, id_of};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::park::Parker;
use crate::seam::directory::Directory;
use crate::sync::channel::{TryRecvError, bounded};

/// From one look for the answer to a write to the next.
const LOOK: Duration = Duration::from_millis(1);

impl Engine {
    /// Writes how a run ended that has the job's lock still, so nobody else writes.
    pub(crate) fn record_run(&self, name: &LockName, owner: Owner, code: u8, took: Duration) -> Result<()> {
        const ACTION: &str = "record_run";
        let succeeded = if code == 0 {
            Some(Duration::ZERO)
        } else {
            self.last_run(name).map_err(|error| error.during(ACTION))?.and_then(|last| last.succeeded)
        };
        let owner = owner.to_string();
        let run = LastRun { owner, code, took, ended: Duration::ZERO, succeeded, host: host() };
        let records = self.records(ACTION).map_err(|error| error.on(name.given()))?;
        let (sender, answer) = bounded(1);
        let deadline = self.one_command();
        let done = move |answer| drop(sender.send(answer));
        records.write(id_of(name.key()), &run.written(name.key()), KEPT, deadline, Box::new(done));
        // Where the answer is read by whoever comes by, nobody else may.
        let written = loop {
            match answer.try_recv() {
                Ok(answer) => break answer.of_reading().into_result(),
                Err(TryRecvError::Empty) if self.clock.now() < deadline => {
                    self.store.poll_completions();
                    Parker::new(&self.clock).park(self.clock.after(LOOK), None);
                }
                Err(_) => {
                    let words = "the store has not answered in time";
                    break Err(Error::new(ErrorKind::TimedOut, ACTION, words));
                }
            }
        };
        written.map_err(|error| error.during(ACTION).on(name.given()))
    }

    /// How the last run of a job ended.
    pub(crate) fn last_run(&self, name: &LockName) -> Result<Option<LastRun>> {
        const ACTION: &str = "last_run";
        let on_this = |error: Error| error.during(ACTION).on(name.given());
        let records = self.records(ACTION).map_err(on_this)?;
        let page = records.read(&[id_of(name.key())], self.one_command()).of_reading().into_result();
        let posted = page.map_err(on_this)?.found.into_iter().flatten().next();
        Ok(posted.and_then(|posted| LastRun::read(name.key(), &posted.text, posted.remaining)))
    }

    /// Where a job can be kept from running again, it has a record too. Elsewhere an entry goes with its client.
    fn records(&self, action: &'static str) -> Result<&dyn Directory> {
        self.usable(action)?;
        let capabilities = self.store.capabilities();
        capabilities.directory.filter(|_| capabilities.can_expire_in).ok_or_else(|| {
            let words =
                "this store keeps no records of jobs: Redis, PostgreSQL, MySQL, MariaDB and SQLite do";
            Error::new(ErrorKind::Unsupported, action, words)
        })
    }
}
