//! Inspection, counts, statistics, records of jobs' runs, removal of old data, and forced releases.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::directory::host;
use crate::directory::run::{KEPT, LastRun, id_of};
use crate::engine::Engine;
use crate::engine::hold::{Hold, LocalLock, Standing};
use crate::error::{Error, ErrorKind, Result};
use crate::fork::is_forked;
use crate::ident::{LockName, Owner, ThreadMarker};
use crate::inspect::Inspection;
use crate::observe::LossReason;
use crate::observe::stats::Stats;
use crate::seam::directory::{Directory, Entry};
use crate::seam::failure::named;
use crate::seam::{Answer, Claim, Counting, Failure, Kind, REQUEST_LASTS, Snapshot};
use crate::time::Moment;

impl Engine {
    /// Reads or changes a count, such as a semaphore's permits; `None`: it does not exist. Repeats a failed
    /// request; the store makes each change only once.
    pub(crate) fn count(&self, action: &'static str, claim: &Claim, what: &Counting) -> Result<Option<i64>> {
        let _call = self.calls.begin();
        self.usable_for(action, claim.kind, &claim.name)?;
        // Stops before the store forgets the first request, which could then be carried out twice.
        let give_up = self.clock.after(self.options.retry_timeout.min(REQUEST_LASTS / 2));
        let ask = || {
            let answer = self.store.count(claim, what, self.one_command());
            if what.only_asks() { answer.map_err(Failure::of_reading) } else { answer }
        };
        let repeated = self.repeat(give_up, None, ask, |_| self.usable(action).is_ok());
        let (count, in_doubt) = repeated.map_err(|error| error.during(action).on(claim.name.given()))?;
        if in_doubt && count == Some(0) && matches!(what, Counting::GiveBack(_) | Counting::GiveBackAll(_)) {
            return Ok(Some(1)); // an unanswered request released the permits
        }
        if !in_doubt && what.is_remembered() {
            drop(self.store.count(claim, &Counting::Forget, self.one_command()));
        }
        Ok(count)
    }

    /// The state of a lock in the store, with the hold count of the calling thread and task. If the store
    /// does not know the calling thread's live hold, that hold is lost.
    pub(crate) fn inspect(
        &self,
        action: &'static str,
        kind: Kind,
        name: &Arc<LockName>,
    ) -> Result<Option<Snapshot>> {
        self.usable_for(action, kind, name)?;
        let local = self.registry.found(kind, name);
        local.iter().for_each(|local| self.core.release_cached(local, None));
        let thread = ThreadMarker::current();
        let hold = local.and_then(|local| local.of_thread(thread.id()));
        let owner = hold.as_ref().map_or_else(|| Owner::new(self.id, thread.number()), |hold| hold.owner());
        let mut snapshot = self.read(action, name, |by| self.store.inspect(kind, name, owner, by))?;
        if let Some(hold) = &hold
            && snapshot.as_ref().is_none_or(|snapshot| snapshot.count == 0)
        {
            self.lose(hold, LossReason::Gone);
        }
        if let Some(snapshot) = &mut snapshot {
            // The count is zero if the hold is lost, is being released, or is another task's.
            let own =
                hold.filter(|hold| hold.holder.is_this_task() && hold.loss_at(self.clock.now()).is_none());
            snapshot.count = snapshot.count.min(own.map_or(0, |hold| hold.count()));
        }
        Ok(snapshot)
    }

    /// Asks the store about a name. The error never says that the outcome is unknown.
    fn read<T>(
        &self,
        action: &'static str,
        name: &LockName,
        ask: impl FnOnce(Moment) -> Answer<T>,
    ) -> Result<T> {
        named(ask(self.one_command()), action, name.given()).map_err(Failure::into_read_error)
    }

    /// The hold of the calling thread and task, even if lost.
    pub(crate) fn own_hold(&self, local: &LocalLock) -> Option<Arc<Hold>> {
        let hold = local.of_thread(ThreadMarker::current().id());
        hold.filter(|hold| hold.holder.is_this_task())
    }

    pub(crate) fn describe(&self, action: &'static str, name: &LockName) -> Result<Inspection> {
        self.usable(action)?;
        let seen = self.read(action, name, |by| self.store.describe(name, by))?.seen_by(self.id);
        let mut seen = [(name.key().to_owned(), seen)];
        self.locate(&mut seen, &mut HashMap::new());
        let [(key, mut seen)] = seen;
        self.add_waiters(&key, &mut seen);
        Ok(seen)
    }

    pub(crate) fn stats(&self) -> Stats {
        if is_forked() {
            return Stats::default();
        }
        let now = self.clock.now();
        let mut stats = Stats {
            subscription_up: self.store.capabilities.wakes && self.reporter.can_wake(),
            ..self.reporter.counters.stats()
        };
        let mut ends = Moment::NEVER;
        for hold in self.registry.holds().iter().filter(|hold| !hold.is_releasing() && !hold.is_cached()) {
            match hold.standing(now) {
                Standing::Lost(_) => stats.holds_lost += 1,
                standing => {
                    stats.holds += 1;
                    stats.holds_at_risk += u64::from(matches!(standing, Standing::AtRisk(_)));
                    ends = ends.min(hold.until());
                    stats.longest_overdue = stats.longest_overdue.max(hold.with(|own| own.overdue(now)));
                }
            }
        }
        stats.shortest_window = (ends != Moment::NEVER).then(|| ends.since(now));
        stats
    }

    pub(crate) fn force(&self, action: &'static str, kind: Kind, name: &Arc<LockName>) -> Result<bool> {
        self.usable_for(action, kind, name)?;
        let local = self.registry.found(kind, name);
        local.iter().for_each(|local| self.core.release_cached(local, None));
        let holds = local.map(|local| local.holds()).unwrap_or_default();
        // The request is not repeated: a late second one could free the next owner's lock.
        let answer = self.store.force(kind, name, self.one_command());
        if let Ok(true) = answer {
            holds.iter().for_each(|hold| self.lose(hold, LossReason::Gone));
            self.registry.nudge(kind, name);
        }
        answer.map_err(|failure| failure.into_error().during(action).on(name.given()))
    }

    pub(crate) fn vacuum_blockers(&self, age: Duration) -> Result<Vec<String>> {
        self.usable("vacuum_blockers")?;
        let Some(sweeping) = &self.store.capabilities.sweeping else { return Ok(Vec::new()) };
        let found = sweeping.old_versions(age, self.one_command());
        found.map_err(|failure| failure.into_read_error().during("vacuum_blockers"))
    }

    pub(crate) fn sweep(&self, age: Duration) -> Result<u64> {
        let mut all = 0;
        loop {
            self.usable("sweep")?;
            let Some(sweeping) = &self.store.capabilities.sweeping else { return Ok(0) };
            match sweeping.sweep(age, self.one_command()).map_err(Failure::into_error)? {
                0 => return Ok(all),
                removed => all += removed,
            }
        }
    }

    /// Records how a job's run ended. The run still has the job's lock, so no other client writes the record.
    pub(crate) fn record_run(&self, name: &LockName, owner: Owner, code: u8, took: Duration) -> Result<()> {
        const ACTION: &str = "record_run";
        let succeeded = if code == 0 {
            Some(Duration::ZERO)
        } else {
            self.last_run(name).map_err(|error| error.during(ACTION))?.and_then(|last| last.succeeded_ago)
        };
        let (owner, exit_code, ended_ago, host) = (owner.to_string(), code, Duration::ZERO, host());
        let run = LastRun { owner, exit_code, took, ended_ago, succeeded_ago: succeeded, host };
        let records = self.records(ACTION, name)?;
        let (client, text) = (id_of(name.key()), &*run.written(name.key()));
        let entry = Entry { client, text, lease: KEPT, is_awaited: true };
        named(records.write(entry, self.one_command()), ACTION, name.given()).map_err(Failure::into_error)
    }

    pub(crate) fn last_run(&self, name: &LockName) -> Result<Option<LastRun>> {
        const ACTION: &str = "last_run";
        let records = self.records(ACTION, name)?;
        let page = self.read(ACTION, name, |by| records.read(&[id_of(name.key())], by))?;
        let posted = page.found.into_iter().flatten().next();
        Ok(posted.and_then(|posted| LastRun::read(name.key(), &posted.text, posted.remaining)))
    }

    /// The directory, which also has the records of jobs' runs. An error if the store cannot change the lease
    /// of a held lock (`expire_in`): in such a store entries end with their client, so no record would last.
    fn records(&self, action: &'static str, name: &LockName) -> Result<&dyn Directory> {
        self.usable(action).map_err(|error| error.on(name.given()))?;
        let capabilities = &self.store.capabilities;
        capabilities.directory.as_deref().filter(|_| capabilities.can_expire_in).ok_or_else(|| {
            let words =
                "this store keeps no records of jobs: Redis, PostgreSQL, MySQL, MariaDB and SQLite do";
            Error::new(ErrorKind::Unsupported, action, words).on(name.given())
        })
    }
}
