//! The owners at a lock, as the nodes there say.

use crate::ident::{FencingToken, LockName};
use crate::inspect::{Holder, Inspection, Mode, ObjectKind, Waiter};
use crate::seam::Family;
use crate::stores::zookeeper::ZooKeeperStore;
use crate::stores::zookeeper::answer::{described, location};
use crate::stores::zookeeper::jute::{Operation, code, data, maker};
use crate::stores::zookeeper::path::NodeLine;
use crate::stores::zookeeper::session::{Found, NoReply};
use crate::time::{Clock, Moment};

const MOST_SHOWN: usize = 100;

impl ZooKeeperStore {
    /// Needs a request for each node.
    pub(super) fn describe(&self, name: &LockName, deadline: Moment) -> Found<Inspection> {
        let lock = self.path_of(name)?;
        let line = self.line(&lock, deadline)?;
        self.shown_line(name, &lock, &line, true, deadline)
    }

    /// The same for a queue that is known; waiters that are not wanted are only counted.
    pub(super) fn shown_line(
        &self,
        name: &LockName,
        lock: &str,
        line: &NodeLine,
        with_waiters: bool,
        deadline: Moment,
    ) -> Found<Inspection> {
        let mut seen = Inspection::new(name.given(), ObjectKind::Absent);
        for one in line.all() {
            let has_it = line.in_front_of(one).is_none();
            if !has_it {
                seen.waiting += 1;
            }
            if seen.holders.len() + seen.waiters.len() >= MOST_SHOWN || !has_it && !with_waiters {
                continue;
            }
            let said =
                match self.session.call(&Operation::Data { path: &format!("{lock}/{}", one.name) }, deadline)
                {
                    Ok(reply) => {
                        if has_it {
                            // As with etcd's keys, each holder has a token, whether it asked for one or not.
                            seen.fencing_token =
                                seen.fencing_token.max(Some(FencingToken::new(maker(&reply.body)?)));
                        }
                        data(&reply.body)?
                    }
                    Err(NoReply::Code(code::NO_NODE)) => continue, // it has just gone
                    Err(failure) => return Err(failure),
                };
            let (owner, lease) = described(&one.name, &said);
            if !has_it {
                seen.waiters.push(Waiter { location: location(&said), ..Waiter::new(owner, None) });
                continue;
            }
            let mode = match one.family {
                Family::Read => Some(Mode::Read),
                Family::Write => Some(Mode::Write),
                Family::Lock | Family::Token | Family::Counted => None,
            };
            // Of a writer that reads, its writing comes first.
            if !seen.is_held() {
                seen.kind = mode.map_or(ObjectKind::FairLock, |mode| ObjectKind::ReadWriteLock { mode });
            }
            let left =
                self.session.places.until(lock, &one.name).map(|until| until.since(Clock::System.now()));
            let remaining = left.or(lease);
            seen.remaining = seen.remaining.max(remaining);
            let location = location(&said);
            seen.holders.push(Holder { mode, remaining, location, ..Holder::new(owner) });
        }
        Ok(seen)
    }
}
