//! The trait by which people inspect a store: who holds a lock, and what a name contains.

use std::time::Duration;

use crate::error::ErrorKind;
use crate::ident::{ClientId, LockName, Owner};
use crate::inspect::{Holder, Inspection, ObjectKind};
use crate::seam::Store;
use crate::seam::failure::{Answer, Failure};
use crate::seam::kind::Kind;
use crate::time::Moment;

pub(crate) trait Inspect {
    /// `None`: the lock is free.
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>>;

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// One of the holders, as the store writes it; empty if the store does not say who holds the lock.
    pub(crate) holder: String,
    /// The hold count of the `owner` in the request; zero if it holds nothing.
    pub(crate) count: u32,
    /// The remaining lease; `None`: the lease has no end.
    pub(crate) remaining: Option<Duration>,
}

impl Snapshot {
    pub(crate) fn of(seen: Inspection, kind: Kind, owner: Owner) -> Option<Snapshot> {
        let (mode, owner) = (kind.family().mode(), owner.to_string());
        let holders: Vec<Holder> = seen.holders.into_iter().filter(|holder| holder.mode == mode).collect();
        let own = holders.iter().find(|holder| holder.owner == owner);
        let count = own.and_then(|own| own.hold_count).unwrap_or(0);
        let remaining = holders.iter().filter_map(|holder| holder.remaining).max();
        let holder = holders.into_iter().next()?.owner;
        Some(Snapshot { holder, count, remaining: remaining.filter(|left| *left != Duration::MAX) })
    }

    pub(crate) fn described(self, kind: Kind, name: &LockName) -> Inspection {
        let mode = kind.family().mode();
        let kind = match mode {
            Some(mode) => ObjectKind::ReadWriteLock { mode },
            None if kind.is_token() => ObjectKind::TokenLock,
            None => ObjectKind::Lock,
        };
        let mut seen = Inspection::new(name.given(), kind);
        seen.remaining = Some(self.remaining.unwrap_or(Duration::MAX));
        seen.holders.push(Holder { mode, remaining: self.remaining, ..Holder::new(self.holder) });
        seen
    }
}

/// [`Inspect::describe`] for a store that implements only [`Inspect::inspect`]: tries each of [`Kind::HELD`].
pub(crate) fn describe_by_kinds(store: &dyn Store, name: &LockName, deadline: Moment) -> Answer<Inspection> {
    let nobody = Owner::new(ClientId::random(), 0);
    let mut kind = ObjectKind::Absent;
    for asked in Kind::HELD {
        if store.check_name(asked, name).is_err() {
            continue;
        }
        match store.inspect(asked, name, nobody, deadline).map_err(Failure::into_error) {
            Ok(Some(snapshot)) => return Ok(snapshot.described(asked, name)),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::WrongType => {
                kind = ObjectKind::Foreign { what: "something else".to_owned() };
            }
            Err(error) => return Failure::refused(error),
        }
    }
    Ok(Inspection::new(name.given(), kind))
}
