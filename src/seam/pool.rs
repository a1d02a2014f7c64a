//! A pool of connections to one server or cluster: a limited number for requests, and one more, mostly for
//! renewals and clean-ups, so that requests cannot delay them.
//!
//! If no new connection can be opened, threads share the open ones, and renewals come first.
//! Source: docs/decisions/0035.

use crate::error::{Error, ErrorKind, Result};
use crate::seam::failure::{Answer, Failure};
use crate::sync::{Condvar, Mutex};
use crate::time::{Clock, Moment};

pub(crate) trait Connector: Send + Sync {
    type Link: Send;

    fn connect(&self, deadline: Moment) -> Result<Self::Link>;

    /// Whether an idle connection is still open. May ping the server if the connection was idle for long.
    fn is_alive(&self, link: &mut Self::Link) -> bool;

    fn is_old(&self, link: &Self::Link) -> bool;

    /// Whether to go on with an old connection, after a new one failed with `error`.
    fn serves_on(&self, _link: &mut Self::Link, _rank: Rank, _error: &Error) -> bool {
        true
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    Request,
    /// Mostly renewals and clean-ups; one at a time has a connection.
    Renewal,
}

pub(crate) struct Pool<C: Connector> {
    pub(crate) connector: C,
    size: u32,
    state: Mutex<PoolState<C::Link>>,
    changed: Condvar,
}

struct PoolState<L> {
    is_closed: bool,
    idle: Vec<L>,
    requests: u32,
    renewals: u32,
    /// Number of lent connections, which return to the pool unless they end.
    busy: usize,
    /// Number of threads that wait for a connection for renewals or clean-ups. Requests leave this many idle
    /// connections to these threads.
    urgent: usize,
}

impl<C: Connector> Pool<C> {
    pub(crate) fn new(connector: C, size: u32, idle: Vec<C::Link>) -> Pool<C> {
        let state = PoolState { is_closed: false, idle, requests: 0, renewals: 0, busy: 0, urgent: 0 };
        Pool { connector, size, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Lends a living connection, with its place in the pool. The caller returns the connection by `put` on
    /// the place, unless the connection has ended.
    ///
    /// Prefers a new connection to an old one that would need a ping: a firewall may have dropped the old one
    /// silently, and the ping would get no answer.
    pub(crate) fn lend(&self, rank: Rank, deadline: Moment) -> Answer<(Place<'_, C>, C::Link)> {
        let (mut place, idle) = self.place(rank, deadline)?;
        let mut old = None;
        match idle {
            Some(link) if self.connector.is_old(&link) => old = Some(link),
            idle => {
                if let Some(link) = idle.and_then(|link| self.alive(link)) {
                    return Ok((place, link));
                }
            }
        }
        let has_others = {
            let state = self.state.lock();
            // If no new connection opens in half of the time, the old or another open one may still serve.
            old.is_some() || state.busy > usize::from(place.is_open) || !state.idle.is_empty()
        };
        let connects_by = if has_others { Clock::System.halfway(deadline) } else { deadline };
        let error = match self.connector.connect(connects_by) {
            Ok(link) => {
                place.set_open(true);
                return Ok((place, link));
            }
            Err(error) => error,
        };
        if let Some(mut link) = old {
            if !self.connector.serves_on(&mut link, rank, &error) {
                place.put(link);
                return Err(Failure::Refused(error));
            }
            if let Some(link) = self.alive(link) {
                return Ok((place, link));
            }
        }
        let link = place.borrow(error, deadline)?;
        Ok((place, link))
    }

    fn alive(&self, mut link: C::Link) -> Option<C::Link> {
        self.connector.is_alive(&mut link).then_some(link)
    }

    fn place(&self, rank: Rank, deadline: Moment) -> Answer<(Place<'_, C>, Option<C::Link>)> {
        let most = if rank == Rank::Request { self.size } else { 1 };
        let mut state = self.state.lock();
        while !state.is_closed && *state.placed(rank) >= most {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                let words = "all connections were in use for too long (see pool_size)";
                return Err(Failure::Refused(Error::new(ErrorKind::TimedOut, "use", words)));
            }
            self.changed.wait_for(&mut state, left);
        }
        if state.is_closed {
            return Err(Failure::Refused(Error::new(ErrorKind::ShutDown, "use", "the client was shut down")));
        }
        *state.placed(rank) += 1;
        let idle = state.take_idle(rank, &self.connector);
        Ok((Place { pool: self, rank, back: None, is_open: idle.is_some() }, idle))
    }

    /// Adds a connection to the pool, unless the pool is full or closed.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn give(&self, link: C::Link) {
        let mut state = self.state.lock();
        let has_room = state.idle.len() + state.busy < usize::try_from(self.size).unwrap_or(usize::MAX);
        if !state.is_closed && has_room {
            state.idle.push(link);
            self.changed.notify_all();
        }
    }

    pub(crate) fn end_idle(&self, is_meant: impl Fn(&mut C::Link) -> bool) {
        let ended: Vec<_> = self.state.lock().idle.extract_if(.., |link| is_meant(link)).collect();
        drop(ended); // after the mutex is free: closing a connection takes time
    }

    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
        self.end_idle(|_| true);
    }
}

impl<L> PoolState<L> {
    fn placed(&mut self, rank: Rank) -> &mut u32 {
        match rank {
            Rank::Request => &mut self.requests,
            Rank::Renewal => &mut self.renewals,
        }
    }

    /// Takes out the idle connection that was used last; an old one only if all are old. `None`: no
    /// connection is idle, or the idle ones are left to renewals and clean-ups.
    fn take_idle(&mut self, rank: Rank, connector: &impl Connector<Link = L>) -> Option<L> {
        if rank == Rank::Request && self.idle.len() <= self.urgent {
            return None;
        }
        let young = self.idle.iter().rposition(|link| !connector.is_old(link));
        let at = young.or(self.idle.len().checked_sub(1))?;
        self.busy += 1;
        Some(self.idle.remove(at))
    }
}

pub(crate) struct Place<'a, C: Connector> {
    pool: &'a Pool<C>,
    rank: Rank,
    /// The connection that returns to the pool on drop. `None` during a request, so that a panic closes it.
    back: Option<C::Link>,
    /// Whether the pool counts this place's connection as `busy`.
    is_open: bool,
}

impl<C: Connector> Place<'_, C> {
    pub(crate) fn put(&mut self, link: C::Link) {
        self.back = Some(link);
    }

    fn borrow(&mut self, error: Error, deadline: Moment) -> Answer<C::Link> {
        let is_urgent = usize::from(self.rank == Rank::Renewal);
        loop {
            self.set_open(false);
            let mut state = self.pool.state.lock();
            let link = loop {
                if let Some(link) = state.take_idle(self.rank, &self.pool.connector) {
                    break link;
                }
                let left = deadline.since(Clock::System.now());
                if state.idle.is_empty() && state.busy == 0 || left.is_zero() || state.is_closed {
                    return Err(Failure::Refused(error));
                }
                state.urgent += is_urgent;
                self.pool.changed.wait_for(&mut state, left);
                state.urgent -= is_urgent;
            };
            drop(state);
            self.is_open = true;
            if let Some(link) = self.pool.alive(link) {
                return Ok(link);
            }
            // A ping without an answer may take a whole time-out, so the deadline is checked after each ping.
            if Clock::System.now() >= deadline {
                return Err(Failure::Refused(error));
            }
        }
    }

    /// Counts this place's connection as `busy`, or no longer. Also wakes threads in `borrow`, which give up
    /// when `busy` is zero and no connection is idle.
    fn set_open(&mut self, is_open: bool) {
        if std::mem::replace(&mut self.is_open, is_open) == is_open {
            return;
        }
        let mut state = self.pool.state.lock();
        state.busy = if is_open { state.busy + 1 } else { state.busy.saturating_sub(1) };
        drop(state);
        self.pool.changed.notify_all();
    }
}

impl<C: Connector> Drop for Place<'_, C> {
    fn drop(&mut self) {
        let link = self.back.take();
        let mut state = self.pool.state.lock();
        *state.placed(self.rank) -= 1;
        state.busy -= usize::from(self.is_open);
        let mut left_over = None;
        if state.is_closed {
            left_over = link;
        } else {
            state.idle.extend(link);
        }
        drop(state);
        self.pool.changed.notify_all();
        drop(left_over);
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A connector that opens no connection, so that only idle ones serve.
    struct Refusing {
        are_old: bool,
        are_alive: bool,
        connects_by: Mutex<Option<Moment>>,
        pings: Mutex<u32>,
    }

    impl Connector for Refusing {
        type Link = u32;

        fn connect(&self, deadline: Moment) -> Result<u32> {
            *self.connects_by.lock() = Some(deadline);
            Err(Error::new(ErrorKind::Unreachable, "connect", "refused"))
        }

        fn is_alive(&self, _link: &mut u32) -> bool {
            *self.pings.lock() += 1;
            self.are_alive
        }

        fn is_old(&self, _link: &u32) -> bool {
            self.are_old
        }
    }

    fn pool(are_old: bool, are_alive: bool, idle: Vec<u32>) -> Pool<Refusing> {
        let connector = Refusing { are_old, are_alive, connects_by: Mutex::new(None), pings: Mutex::new(0) };
        Pool::new(connector, 4, idle)
    }

    /// If connecting took all the time, no time would be left to use the old connection.
    #[test]
    fn a_connect_leaves_half_of_the_time_to_an_old_connection() {
        for (idle, leaves_time) in [(vec![7], true), (vec![], false)] {
            let (pool, deadline) = (pool(true, true, idle), Clock::System.after(Duration::from_secs(60)));
            let lent = pool.lend(Rank::Request, deadline).map(|(_place, link)| link);
            assert_eq!(lent.ok(), leaves_time.then_some(7));
            let connects_by = pool.connector.connects_by.lock().unwrap();
            assert_eq!(connects_by < deadline, leaves_time, "{connects_by:?} of {deadline:?}");
        }
    }

    #[test]
    fn an_expired_deadline_ends_the_search_for_a_living_connection() {
        let pool = pool(false, false, vec![1, 2, 3, 4]);
        assert!(pool.lend(Rank::Request, Clock::System.now()).is_err());
        assert_eq!(*pool.connector.pings.lock(), 2, "one ping before the attempt to connect, one after it");
        assert!(pool.lend(Rank::Request, Clock::System.after(Duration::from_secs(60))).is_err());
        assert_eq!(*pool.connector.pings.lock(), 4, "each connection is tried before the deadline");
    }
}
