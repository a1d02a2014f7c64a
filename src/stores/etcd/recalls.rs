//! The locks that this client keeps until others ask for them: who comes to wait asks by putting a key.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::Result;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::stores::etcd::message::{KeyLine, OWNERS};
use crate::stores::etcd::watched::{Kept, Watch, WatchHub};
use crate::sync::Waker;
use crate::time::Clock;

impl Watch {
    /// Has `waker` woken when somebody comes to wait for a lock that this client keeps. Never waits for the
    /// server.
    pub(super) fn hear(self: &Arc<Self>, line: KeyLine, waker: &Waker) -> Option<Subscription> {
        let mut state = self.state.lock();
        let source = Arc::clone(self) as Arc<dyn ChannelSource>;
        let listening = state.join(line.text(), waker, source)?;
        let entry = state.enter(line.text(), false);
        entry.lingers = false;
        entry.note.kept.get_or_insert(Kept { line, own: None });
        let channel = Arc::clone(&entry.channel);
        if !state.is_covered(Clock::System.now()) {
            self.begin_anew(&mut state);
        } else if state.own.is_up && !channel.is_up() {
            channel.set_up(true); // else when the watch stands
        }
        Some(listening)
    }

    /// A lock is about to be asked for by this key, to be kept: that it comes is no recall.
    pub(super) fn keeps(&self, line: &KeyLine, key: &str) {
        let mut state = self.state.lock();
        if let Some(kept) = state.channels.get_mut(line.text()).and_then(|entry| entry.note.kept.as_mut()) {
            kept.own = Some(key.to_owned());
        }
    }

    /// Others wait for a lock that is to be kept.
    pub(super) fn wanted(&self, line: &KeyLine) {
        if let Some(entry) = self.state.lock().channels.get(line.text()) {
            entry.channel.notify();
        }
    }

    /// A key was put: whoever keeps the lock of its line is asked for that.
    pub(super) fn put(&self, key: &str) {
        if let Some(channel) = self.state.lock().recalled_by(key) {
            channel.notify();
        }
    }

    /// Asks for what is kept here where others have come to wait before the watch stood.
    pub(super) fn look_at_lines(&self, lines: &[KeyLine]) -> Result<()> {
        self.look_at(
            lines,
            |line| line.last(None),
            |_line, last| {
                last.iter().for_each(|last| self.put(&last.key));
            },
        )
    }
}

impl WatchHub {
    /// The channel of the lock that is wanted by a key, if this client keeps that.
    fn recalled_by(&self, key: &str) -> Option<&Arc<Channel>> {
        let text = String::from_utf8(STANDARD.decode(key).ok()?).ok()?;
        let (lock, _owner) = text.rsplit_once(OWNERS)?;
        let entry = self.channels.get(format!("{lock}{OWNERS}").as_str())?;
        let kept = entry.note.kept.as_ref()?;
        (kept.own.as_deref() != Some(key)).then_some(&entry.channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServerOptions;
    use crate::ident::{ClientId, Owner};
    use crate::observe::reporter::Reporter;
    use crate::stores::etcd::members::Members;
    use crate::stores::etcd::watch::watch;

    /// A client's, of a cluster of which no member answers.
    fn hub() -> Arc<Watch> {
        let options = ServerOptions { url: "etcd://127.0.0.1:1".to_owned(), ..ServerOptions::default() };
        watch(Arc::new(Members::new(&options).unwrap()), Arc::new(Reporter::new(None)))
    }

    fn key(line: &KeyLine) -> String {
        line.key(Owner::new(ClientId::random(), 7))
    }

    #[test]
    fn a_key_in_the_line_of_a_kept_lock_recalls_it_unless_it_is_the_holders() {
        let hub = hub();
        let (line, other) = (KeyLine::new("leasehold/", "a/b"), KeyLine::new("leasehold/", "a"));
        let (own, theirs) = (key(&line), key(&line));
        hub.put(&theirs); // nobody listens
        let listening = hub.hear(line.clone(), &Waker::default()).unwrap();
        hub.keeps(&line, &own);
        hub.keeps(&other, &own);
        let recalls = |key: &str| hub.state.lock().recalled_by(key).is_some();
        assert!(!recalls(&own) && recalls(&theirs));
        assert!(!recalls(&key(&other)), "of another lock");
        assert!(!recalls("no base 64"));
        let has = |key: &str| hub.state.lock().lines().all(|kept| kept.has(key));
        assert!(has(&own) && !has(&key(&other)));
        let second = hub.hear(other, &Waker::default()).unwrap();
        drop(listening);
        assert!(!recalls(&theirs), "nobody listens any more");
        drop(second);
        assert!(hub.is_idle());
        hub.end();
    }

    #[test]
    fn the_key_of_the_next_hold_is_no_recall_and_that_of_the_last_is() {
        let hub = hub();
        let line = KeyLine::new("leasehold/", "a/b");
        let (first, next) = (key(&line), key(&line));
        let _listening = hub.hear(line.clone(), &Waker::default()).unwrap();
        hub.keeps(&line, &first);
        hub.keeps(&line, &next);
        let recalls = |key: &str| hub.state.lock().recalled_by(key).is_some();
        assert!(!recalls(&next) && recalls(&first));
        hub.end();
    }
}
