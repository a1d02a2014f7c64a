//! The thread that keeps a session alive. It also deletes nodes whose leases ended, and drops silent servers.

use std::time::Duration;

use crate::stores::zookeeper::answer::{NoReply, Replied};
use crate::stores::zookeeper::jute::{Operation, code};
use crate::stores::zookeeper::places::{LockNode, PlaceKey};
use crate::stores::zookeeper::session::{Session, SessionState};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::time::{Clock, Moment};

impl Session {
    pub(super) fn keep(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            self.next_check.store(u64::MAX, Ordering::SeqCst);
            let (now, last_number) = (Clock::System.now(), state.last_number);
            let mut next = self.beat(&mut state, now);
            let lapsed = state.life.as_ref().is_some_and(|life| life.lapse(now));
            let watchdog = state.watchdog.clone().filter(|_| lapsed);
            // The leader notices a reconnect at once, but a request late, so this makes the client reconnect.
            if let Some(stream) = state.stream.as_ref().filter(|_| lapsed) {
                stream.shutdown();
            }
            let is_connected = state.stream.is_some() && !lapsed;
            if let Some(watchdog) = watchdog {
                watchdog.bounds_ended();
            }
            if is_connected {
                // Without a connection nothing can be deleted. A new connection wakes this thread.
                let (ended, until) = self.places.take_ended(now);
                next = next.min(until);
                for (key, node) in ended {
                    self.take_away(&mut state, key, node);
                }
            }
            if state.last_number != last_number {
                // During this write, changes by other threads do not wake this one, so it checks again.
                MutexGuard::unlocked(&mut state, || self.flush());
                continue;
            }
            self.next_check.store(next.nanos(), Ordering::SeqCst);
            let now = Clock::System.now();
            if !state.closed && now < next {
                self.kept.wait_for(&mut state, next.since(now).min(Duration::from_secs(3600)));
            }
        }
    }

    /// Sends a sign of life if one is due. If an earlier request has no reply for too long, drops the
    /// connection. Returns when to call this again.
    fn beat(&self, state: &mut SessionState, now: Moment) -> Moment {
        let Some(life) = state.life.clone() else { return Moment::NEVER };
        let mut next = life.lapses_at();
        let Some(stream) = state.stream.clone() else { return next };
        if let Some(oldest) = state.pending.front() {
            let enough = oldest.sent.plus(life.timeout / 4);
            if enough <= now {
                stream.shutdown(); // the reading thread connects to the next server
                return next;
            }
            next = next.min(enough);
        }
        let due = state.last_beat.map_or(now, |last| last.plus(life.timeout / 16));
        if due <= now {
            state.last_beat = Some(now);
            state.send(&Operation::Sync("/"), Box::new(drop));
            next = next.min(now.plus(life.timeout / 16));
        } else {
            next = next.min(due);
        }
        next
    }

    fn take_away(&self, state: &mut SessionState, key: PlaceKey, node: LockNode) {
        let me = self.me.clone();
        let path = node.path(&key);
        let done = move |outcome: Replied| {
            let Some(session) = me.upgrade() else { return };
            match outcome {
                Ok(_) | Err(NoReply::Code(code::NO_NODE)) => session.places.remove_node(&key, &node),
                Err(_) => session.places.put_back(&key),
            }
        };
        state.send(&Operation::Delete(&path), Box::new(done));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_channel::unbounded;

    use super::*;
    use crate::config::ServerOptions;
    use crate::ident::{ClientId, Owner};
    use crate::observe::event::Event;
    use crate::observe::reporter::Reporter;
    use crate::seam::Family;
    use crate::stores::zookeeper::fake::{ID, Reply, Server};
    use crate::stores::zookeeper::places::HeldNode;

    /// The session time-out: so long that no sign of life is due during a test.
    const SESSION: Duration = Duration::from_secs(3_600);
    const LONG: Duration = Duration::from_secs(30);

    /// If the client kept waiting for a silent server, the session would expire, with its holds.
    #[test]
    fn silence_for_a_quarter_session_timeout_makes_the_client_switch_servers() {
        let server = Server::start(SESSION, |_| Reply::Never);
        let options = ServerOptions { connect_timeout: LONG, ..server.options.clone() };
        let session = Session::open(&options, SESSION, Arc::new(Reporter::new(None))).unwrap();
        assert_eq!(server.greetings.recv_timeout(LONG), Ok(0));
        let window = {
            let mut state = session.state.lock();
            state.send(&Operation::Sync("/"), Box::new(drop));
            let sent = state.pending[0].sent;
            let enough = sent.plus(SESSION / 4);
            let next = session.beat(&mut state, enough.minus(Duration::from_millis(1)));
            assert_eq!(next, enough, "the session is checked again in time");
            session.beat(&mut state, enough);
            state.life.as_ref().unwrap().window()
        };
        assert_eq!(
            server.greetings.recv_timeout(LONG),
            Ok(ID),
            "the next connection is for the same session"
        );
        assert!(!window.is_closed(), "the session's holds ended");
        session.close(Duration::ZERO);
    }

    #[test]
    fn an_unanswered_node_deletion_is_repeated_on_the_next_connection() {
        let (asked, removals) = unbounded();
        let mut is_lost = true;
        let server = Server::start(SESSION, move |request| match request.operation {
            2 => {
                asked.send(request.path.clone()).unwrap();
                if std::mem::take(&mut is_lost) { Reply::HangsUp } else { Reply::Done(Vec::new()) }
            }
            _ => Reply::Never,
        });
        let options = ServerOptions { connect_timeout: LONG, ..server.options.clone() };
        let session = Session::open(&options, SESSION, Arc::new(Reporter::new(None))).unwrap();
        let owner = Owner::new(ClientId::random(), 7);
        let key = PlaceKey { path: "/a".into(), owner, family: Family::Lock };
        {
            let state = session.state.lock();
            let life = state.life.clone().unwrap();
            let held = HeldNode::new(1, Clock::System.now(), life.window());
            let node = LockNode { name: "n".into(), transaction: 1, life };
            session.places.set_node(&key, Some(node));
            session.places.set_held(&key, held);
            session.kept.notify_all();
        }
        for _ in 0..2 {
            assert_eq!(removals.recv_timeout(LONG).as_deref(), Ok("/a/n"));
        }
        session.close(Duration::ZERO);
    }

    #[test]
    fn each_connection_loss_and_return_is_reported() {
        let server = Server::start(SESSION, |_| Reply::HangsUp);
        let (told, events) = unbounded();
        let observer = move |event: &Event<'_>| match event {
            Event::WakeupsDown { .. } => told.send(false).unwrap(),
            Event::WakeupsUp => told.send(true).unwrap(),
            _ => {}
        };
        let options = ServerOptions { connect_timeout: LONG, ..server.options.clone() };
        let reporter = Arc::new(Reporter::new(Some(Arc::new(observer))));
        let session = Session::open(&options, SESSION, reporter).unwrap();
        for _ in 0..2 {
            session.state.lock().send(&Operation::Sync("/"), Box::new(drop));
            session.flush();
            assert_eq!([(); 2].map(|()| events.recv_timeout(LONG)), [Ok(false), Ok(true)]);
        }
        session.close(Duration::ZERO);
    }
}
