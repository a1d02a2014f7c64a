//! Records of the last runs of jobs: see `directory/run.rs`.

use std::time::Duration;

use crate::directory::host;
use crate::directory::run::{KEPT, LastRun, id_of};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::seam::Failure;
use crate::seam::directory::Directory;

impl Engine {
    /// Writes how a run ended that has the job's lock still, so nobody else writes.
    pub(crate) fn record_run(&self, name: &LockName, owner: Owner, code: u8, took: Duration) -> Result<()> {
        const ACTION: &str = "record_run";
        let succeeded = if code == 0 {
            Some(Duration::ZERO)
        } else {
            self.last_run(name).map_err(|error| error.during(ACTION))?.and_then(|last| last.succeeded_ago)
        };
        let owner = owner.to_string();
        let run = LastRun {
            owner,
            exit_code: code,
            took,
            ended_ago: Duration::ZERO,
            succeeded_ago: succeeded,
            host: host(),
        };
        let records = self.records(ACTION).map_err(|error| error.on(name.given()))?;
        let (id, text) = (id_of(name.key()), run.written(name.key()));
        let written =
            records.write_now(id, &text, KEPT, self.one_command()).map_err(Failure::into_read_error);
        written.map_err(|error| error.during(ACTION).on(name.given()))
    }

    pub(crate) fn last_run(&self, name: &LockName) -> Result<Option<LastRun>> {
        const ACTION: &str = "last_run";
        let on_this = |error: Error| error.during(ACTION).on(name.given());
        let records = self.records(ACTION).map_err(on_this)?;
        let page = records.read(&[id_of(name.key())], self.one_command()).map_err(Failure::into_read_error);
        let posted = page.map_err(on_this)?.found.into_iter().flatten().next();
        Ok(posted.and_then(|posted| LastRun::read(name.key(), &posted.text, posted.remaining)))
    }

    /// A job has a record wherever it can be kept from running again. Elsewhere an entry goes with its
    /// client.
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
