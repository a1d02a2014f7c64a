//! The locks that this client keeps until others ask for them: who comes to wait asks by putting a key.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::room::CrowdMap;
use crate::seam::subscription::Channel;
use crate::stores::etcd::message::{Front, KeyLine, OWNERS};

/// The lines in which a key that is put asks this client for the lock.
#[derive(Default)]
pub(super) struct Recalls {
    lines: CrowdMap<Box<str>, KeptLine>,
}

struct KeptLine {
    line: KeyLine,
    /// Told that others want the lock.
    channel: Arc<Channel>,
    /// The key by which this client holds it, or asks for it.
    own: Option<String>,
}

impl Recalls {
    /// The channel of a line, which is listened to from now on.
    pub(super) fn channel(&mut self, line: KeyLine) -> Arc<Channel> {
        let kept = self.lines.entry(line.text().into()).or_insert_with(|| KeptLine {
            channel: Arc::new(Channel::new(line.text(), false)),
            line,
            own: None,
        });
        Arc::clone(&kept.channel)
    }

    /// Forgets a line if nobody listens to its channel any more.
    pub(super) fn left(&mut self, channel: &Arc<Channel>) {
        let line = self.lines.get(channel.channel());
        if line.is_some_and(|kept| Arc::ptr_eq(&kept.channel, channel) && channel.listeners() == 0) {
            self.lines.remove(channel.channel());
        }
    }

    /// A lock is about to be asked for by this key, to be kept: that it comes is no recall.
    pub(super) fn keeps(&mut self, line: &KeyLine, key: &str) {
        if let Some(kept) = self.lines.get_mut(line.text()) {
            kept.own = Some(key.to_owned());
        }
    }

    /// Others stand behind this client's key.
    pub(super) fn wanted(&self, line: &KeyLine) -> Option<Arc<Channel>> {
        self.lines.get(line.text()).map(|kept| Arc::clone(&kept.channel))
    }

    /// A key was put; the channel of the lock that is wanted by it, if this client keeps that.
    pub(super) fn put(&self, key: &str) -> Option<Arc<Channel>> {
        if self.lines.is_empty() {
            return None;
        }
        let text = String::from_utf8(STANDARD.decode(key).ok()?).ok()?;
        let (lock, _owner) = text.rsplit_once(OWNERS)?;
        let kept = self.lines.get(format!("{lock}{OWNERS}").as_str())?;
        (kept.own.as_deref() != Some(key)).then(|| Arc::clone(&kept.channel))
    }

    /// The lines, and their channels.
    pub(super) fn all(&self) -> impl Iterator<Item = (&KeyLine, &Arc<Channel>)> {
        self.lines.values().map(|kept| (&kept.line, &kept.channel))
    }

    /// Whether one who stands in a line is another than this client's holder.
    pub(super) fn is_other(&self, line: &KeyLine, last: &Front) -> bool {
        self.lines.get(line.text()).is_some_and(|kept| kept.own.as_ref() != Some(&last.key))
    }

    /// The only line; `None`: there is none, or several.
    pub(super) fn only(&self) -> Option<&KeyLine> {
        let mut lines = self.lines.values();
        lines.next().filter(|_| lines.next().is_none()).map(|kept| &kept.line)
    }

    /// Whether a key is one of a line.
    pub(super) fn is_in(line: &KeyLine, key: &str) -> bool {
        STANDARD.decode(key).is_ok_and(|key| key.starts_with(line.text().as_bytes()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::{ClientId, Owner};
    use crate::seam::subscription::{ChannelSource, Subscription};
    use crate::sync::Waker;

    struct Nobody;

    impl ChannelSource for Nobody {
        fn left(&self, _channel: &Arc<Channel>) {}
    }

    #[test]
    fn a_key_in_the_line_of_a_kept_lock_recalls_it_unless_it_is_the_holders() {
        let mut recalls = Recalls::default();
        let (line, other) = (KeyLine::new("leasehold/", "a/b"), KeyLine::new("leasehold/", "a"));
        let owner = || Owner::new(ClientId::random(), 7);
        let (own, theirs) = (line.key(owner()), line.key(owner()));
        assert!(recalls.put(&theirs).is_none(), "nobody listens");
        let channel = recalls.channel(line.clone());
        recalls.keeps(&line, &own);
        recalls.keeps(&other, &own);
        assert!(recalls.put(&own).is_none());
        assert!(recalls.put(&theirs).is_some_and(|told| Arc::ptr_eq(&told, &channel)));
        assert!(recalls.put(&other.key(owner())).is_none(), "of another lock");
        assert!(recalls.put("no base 64").is_none());
        let front = |key: &String| Front { key: key.clone(), created: 1 };
        assert_eq!([&own, &theirs].map(|key| recalls.is_other(&line, &front(key))), [false, true]);
        assert!(recalls.only().is_some());
        assert_eq!([&line, &other].map(|line| Recalls::is_in(line, &own)), [true, false]);
        let second = recalls.channel(other);
        assert!(recalls.only().is_none());
        // One who listens keeps a line.
        let listening = Subscription::new(Arc::clone(&second), Arc::new(Nobody), &Waker::default());
        recalls.left(&second);
        recalls.left(&channel);
        assert!(recalls.put(&theirs).is_none() && !recalls.is_empty());
        drop(listening);
        recalls.left(&second);
        assert!(recalls.is_empty());
    }

    #[test]
    fn the_key_of_the_next_hold_is_no_recall_and_that_of_the_last_is() {
        let mut recalls = Recalls::default();
        let line = KeyLine::new("leasehold/", "a/b");
        let (first, next) =
            (line.key(Owner::new(ClientId::random(), 7)), line.key(Owner::new(ClientId::random(), 8)));
        recalls.channel(line.clone());
        recalls.keeps(&line, &first);
        recalls.keeps(&line, &next);
        assert!(recalls.put(&next).is_none() && recalls.put(&first).is_some());
        let front = |key: &String| Front { key: key.clone(), created: 1 };
        assert_eq!([&first, &next].map(|key| recalls.is_other(&line, &front(key))), [true, false]);
    }

    #[test]
    fn the_end_of_an_old_channel_leaves_the_new_one_of_its_line() {
        let mut recalls = Recalls::default();
        let line = KeyLine::new("leasehold/", "a");
        let old = recalls.channel(line.clone());
        recalls.left(&old);
        let new = recalls.channel(line.clone());
        recalls.left(&old);
        assert!(recalls.wanted(&line).is_some_and(|told| Arc::ptr_eq(&told, &new)));
    }
}
