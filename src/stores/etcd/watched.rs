//! The keys that a client's watch reports, and those that it is on.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::park::ServiceWaker;
use crate::seam::hub::{Hub, HubState};
use crate::stores::etcd::early::Holds;
use crate::stores::etcd::members::{Members, Transport};
use crate::stores::etcd::message::{Front, KeyLine};
use crate::time::Moment;
use crate::wire::Wire;

/// The channels are those of waiters, by their keys, and those of kept locks, by their lines.
pub(super) type Watch = Hub<EtcdWatch>;
pub(super) type WatchHub = HubState<EtcdWatch>;

pub(super) struct EtcdWatch {
    pub(super) members: Arc<Members>,
    /// For the thread's questions.
    pub(super) wire: Transport,
}

#[derive(Default)]
pub(super) struct EtcdNote {
    pub(super) waiter: Waiter,
    pub(super) kept: Option<Kept>,
}

#[derive(Default)]
pub(super) struct WatchState {
    /// The holds to watch, where leases may end early; else none.
    pub(super) holds: Option<Holds>,
    pub(super) watchdog: Option<ServiceWaker>,
    /// The thread sleeps until somebody signals.
    pub(super) is_idle: bool,
    /// How often a watch was given up for another.
    pub(super) renewals: u64,
    /// The keys that the watch is on.
    pub(super) scope: Option<Scope>,
    /// It stands: keys that go from now on are reported.
    pub(super) is_up: bool,
    pub(super) connection: Option<Arc<Wire>>,
}

#[derive(Default)]
pub(super) struct Waiter {
    pub(super) place: Option<WatchPlace>,
    /// A key was asked for, so it may be there or come.
    pub(super) has_asked: bool,
    /// The key in front, until it is known to have gone.
    pub(super) front: Option<Front>,
}

/// A key that was put and not yet found to be the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WatchPlace {
    pub(super) created: i64,
    pub(super) lease: i64,
}

/// A line in which a key that is put asks this client for the lock.
pub(super) struct Kept {
    pub(super) line: KeyLine,
    /// The key by which this client holds it, or asks for it.
    pub(super) own: Option<String>,
}

impl Kept {
    /// Whether a key is one of the line.
    pub(super) fn has(&self, key: &str) -> bool {
        STANDARD.decode(key).is_ok_and(|key| key.starts_with(self.line.text().as_bytes()))
    }
}

/// A report of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// That this key goes.
    Key(String),
    /// That keys of this line come or go.
    Line(KeyLine),
    /// That keys go; and, if it says so, that they come.
    All { with_puts: bool },
}

impl Scope {
    fn is_wide(&self) -> bool {
        matches!(self, Scope::All { .. })
    }

    /// Whether it reports what the other does.
    fn covers(&self, other: &Scope) -> bool {
        match self {
            Scope::All { with_puts: true } => true,
            Scope::All { with_puts: false } => {
                matches!(other, Scope::Key(_) | Scope::All { with_puts: false })
            }
            Scope::Key(_) | Scope::Line(_) => self == other,
        }
    }
}

impl WatchHub {
    /// The keys to watch.
    fn targets(&self, now: Moment) -> impl Iterator<Item = &str> {
        let holds = self.own.holds.iter().flat_map(move |holds| holds.settled(now)).map(|(key, _)| key);
        self.fronts().map(|front| front.key.as_str()).chain(holds)
    }

    /// The keys to be watched; `None`: none.
    pub(super) fn wanted(&self, now: Moment) -> Option<Scope> {
        let mut lines = self.lines();
        let (line, is_only) = (lines.next(), lines.next().is_none());
        if let Some(kept) = line {
            let is_enough = is_only && self.targets(now).all(|key| kept.has(key));
            return Some(if is_enough {
                Scope::Line(kept.line.clone())
            } else {
                Scope::All { with_puts: true }
            });
        }
        let mut targets = self.targets(now);
        let first = targets.next()?;
        let is_one = targets.all(|other| other == first);
        Some(if is_one { Scope::Key(first.to_owned()) } else { Scope::All { with_puts: false } })
    }

    /// Whether the watch reports all that is to be watched, or will when it stands.
    pub(super) fn is_covered(&self, now: Moment) -> bool {
        let wanted = self.wanted(now);
        wanted.is_none_or(|wanted| self.own.scope.as_ref().is_some_and(|scope| scope.covers(&wanted)))
    }

    pub(super) fn is_wide(&self) -> bool {
        self.own.scope.as_ref().is_some_and(Scope::is_wide)
    }

    /// When a hold is to be watched as well for which the watch would have to be another.
    pub(super) fn next_settles(&self, now: Moment) -> Option<Moment> {
        self.own.holds.as_ref().filter(|_| !self.is_wide())?.next_settles(now)
    }

    pub(super) fn fronts(&self) -> impl Iterator<Item = &Front> {
        self.channels.values().filter_map(|entry| entry.note.waiter.front.as_ref())
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &Kept> {
        self.channels.values().filter_map(|entry| entry.note.kept.as_ref())
    }
}
