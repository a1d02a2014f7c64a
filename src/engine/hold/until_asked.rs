//! A hold that its client keeps until others ask for it: `lock_builder(name).cached()`.
//!
//! To the store the client holds the lock throughout, with the client's lease, which the watchdog renews. Another
//! client that waits for the lock sends a recall to this client, which gives the lock back at once, or at the end of
//! its present use. A hold that nobody here has used for `UNUSED` is given back too. As the delegations of NFSv4 (RFC
//! 7530, 10.4) and the callbacks of distributed file systems: what nobody else wants costs no request.
//! docs/decisions/0060 has the rules.
//!
//! Nothing here is I/O, and each moment is passed in.

use std::sync::Arc;
use std::time::Duration;

use crate::seam::subscription::Subscription;
use crate::time::Moment;

/// A hold that nobody here uses for so long is given back.
pub(crate) const UNUSED: Duration = Duration::from_millis(500);

/// A hold is looked at so long after its grant, and then after twice as long each time, up to `LAST_LOOK`. A
/// look sees those who wait and send no recalls.
const FIRST_LOOK: Duration = Duration::from_millis(50);
pub(crate) const LAST_LOOK: Duration = Duration::from_millis(500);

/// Two recalls within `SOON` switch keeping off for `PAUSE`: clients that take turns gain nothing by it.
const SOON: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(1);

/// The facts by which a grant may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeepTerms {
    /// The recalls that had come before it was asked for.
    pub(crate) heard: u64,
    /// Others waited for it when it was granted.
    pub(crate) is_wanted: bool,
}

/// The recalls of one lock, and the hold that is in use or kept until one comes.
#[derive(Debug)]
pub(crate) struct UntilAsked<H> {
    recalls: Option<Subscription>,
    hold: Option<KeptHold<H>>,
    /// When the last recall was seen.
    recalled: Option<Moment>,
    paused_until: Option<Moment>,
}

/// A hold that may be kept.
#[derive(Debug)]
struct KeptHold<H> {
    hold: Arc<H>,
    terms: KeepTerms,
    /// Since when nobody here uses it.
    idle_since: Option<Moment>,
    next_look: Moment,
    gap: Duration,
}

/// The next step with a hold that may be kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeptStep<H> {
    /// It is to be given back: it was recalled, or nobody here came for too long.
    GiveBack,
    /// The store is to be asked whether others want it.
    Look(Arc<H>),
    /// To be looked at again then.
    Until(Moment),
}

/// How a hold that was kept is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// It was kept until others ask, and nobody has.
    UntilAsked,
    /// It was kept for a turn.
    InTurn,
    /// Not at all: others want it, or this call would not keep it. It is to be given back.
    Never,
}

impl<H> Default for UntilAsked<H> {
    fn default() -> UntilAsked<H> {
        UntilAsked { recalls: None, hold: None, recalled: None, paused_until: None }
    }
}

impl<H> UntilAsked<H> {
    pub(crate) fn listens(&self) -> bool {
        self.recalls.is_some()
    }

    /// Listens for recalls from now on; what is not needed comes back.
    pub(crate) fn listen(&mut self, recalls: Option<Subscription>) -> Option<Subscription> {
        match &self.recalls {
            None => std::mem::replace(&mut self.recalls, recalls),
            Some(_) => recalls,
        }
    }

    /// The recalls that have come so far. `None`: none would be heard now, or too many came of late, so that
    /// nothing is to be kept.
    pub(crate) fn heard(&self, now: Moment) -> Option<u64> {
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        self.count().filter(|_| !is_paused)
    }

    fn count(&self) -> Option<u64> {
        // Looked at first, counted second. Each change of whether it is up is counted: see `Channel::set_up`.
        self.recalls.as_ref().filter(|recalls| recalls.is_up()).map(Subscription::message_count)
    }

    /// A hold was granted on these terms.
    pub(crate) fn begin(&mut self, hold: &Arc<H>, terms: KeepTerms, now: Moment) -> Moment {
        let next_look = now.plus(FIRST_LOOK);
        let hold = Arc::clone(hold);
        self.hold = Some(KeptHold { hold, terms, idle_since: None, next_look, gap: FIRST_LOOK });
        next_look
    }

    /// Whether others want the hold; a recall that is new is noted.
    fn is_wanted(&mut self, now: Moment) -> bool {
        let count = self.count();
        match &mut self.hold {
            None => false,
            Some(kept) if kept.terms.is_wanted => true,
            Some(kept) if Some(kept.terms.heard) == count => false,
            Some(kept) => {
                kept.terms.is_wanted = true;
                // A subscription that is gone says nothing of who wants it.
                if count.is_some() {
                    self.note_recall(now);
                }
                true
            }
        }
    }

    fn note_recall(&mut self, now: Moment) {
        let last = self.recalled.replace(now);
        if last.is_some_and(|last| now.since(last) < SOON) {
            self.paused_until = Some(now.plus(PAUSE));
        }
    }

    /// The store has seen others who want the hold.
    pub(crate) fn note_wanted(&mut self, hold: &Arc<H>, now: Moment) {
        let kept = self.hold.as_mut().filter(|kept| Arc::ptr_eq(&kept.hold, hold));
        if kept.is_some_and(|kept| !std::mem::replace(&mut kept.terms.is_wanted, true)) {
            self.note_recall(now);
        }
    }

    /// The last level of this hold ended; whether it stays beyond a turn.
    pub(crate) fn may_stay(&mut self, hold: &Arc<H>, now: Moment) -> bool {
        let is_wanted = self.is_wanted(now);
        let kept = self.hold.as_mut().filter(|kept| Arc::ptr_eq(&kept.hold, hold) && !is_wanted);
        kept.is_some_and(|kept| {
            kept.idle_since = Some(now);
            true
        })
    }

    /// A hold that was kept is taken out, to be used again by a call that `keeps` it, or does not. In its turn it
    /// is used again though others want it, as they do then.
    pub(crate) fn use_again(&mut self, hold: &Arc<H>, keeps: bool, now: Moment) -> Reuse {
        let is_wanted = self.is_wanted(now);
        let Some(kept) = self.hold.as_mut().filter(|kept| Arc::ptr_eq(&kept.hold, hold)) else {
            return Reuse::InTurn;
        };
        let is_idle = kept.idle_since.take().is_some();
        if !keeps || is_idle && is_wanted {
            self.hold = None;
            return Reuse::Never;
        }
        if is_idle { Reuse::UntilAsked } else { Reuse::InTurn }
    }

    /// Whether a hold is kept and not in use.
    pub(crate) fn is_idle(&self) -> bool {
        self.hold.as_ref().is_some_and(|kept| kept.idle_since.is_some())
    }

    /// Whether this hold is.
    pub(crate) fn is_idle_hold(&self, hold: &Arc<H>) -> bool {
        let is_it = |kept: &KeptHold<H>| kept.idle_since.is_some() && Arc::ptr_eq(&kept.hold, hold);
        self.hold.as_ref().is_some_and(is_it)
    }

    /// The hold is not here any more.
    pub(crate) fn forget(&mut self, hold: &Arc<H>) {
        self.hold.take_if(|kept| Arc::ptr_eq(&kept.hold, hold));
    }

    /// The next step with the hold, if there is one.
    pub(crate) fn watch(&mut self, now: Moment) -> Option<KeptStep<H>> {
        let is_wanted = self.is_wanted(now);
        let kept = self.hold.as_mut()?;
        let idle_until = kept.idle_since.map(|since| since.plus(UNUSED));
        if idle_until.is_some_and(|until| is_wanted || now >= until) {
            return Some(KeptStep::GiveBack);
        }
        // As much earlier, it goes along with others: ten thousand that are due one after the other would have all
        // of them gone through each time.
        if now.plus(kept.gap / 4) < kept.next_look {
            return Some(KeptStep::Until(
                idle_until.map_or(kept.next_look, |until| until.min(kept.next_look)),
            ));
        }
        kept.gap = (kept.gap * 2).min(LAST_LOOK);
        kept.next_look = now.plus(kept.gap);
        Some(KeptStep::Look(Arc::clone(&kept.hold)))
    }

    /// Keeps nothing any more, and listens no more; what is to be dropped where no lock is held.
    pub(crate) fn clear(&mut self) -> Option<Subscription> {
        self.hold = None;
        self.recalls.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seam::subscription::{Channel, ChannelSource};
    use crate::sync::Waker;

    const MS: Duration = Duration::from_millis(1);

    struct Nobody;

    impl ChannelSource for Nobody {
        fn left(&self, _channel: &Arc<Channel>) {}
    }

    fn at(ms: u32) -> Moment {
        Moment::from_nanos(0).plus(MS * ms)
    }

    /// A lock whose recalls are heard, with a hold granted at zero.
    fn granted() -> (UntilAsked<u8>, Arc<Channel>, Arc<u8>) {
        let channel = Arc::new(Channel::new("a", true));
        let mut kept = UntilAsked::default();
        let listening = Subscription::new(Arc::clone(&channel), Arc::new(Nobody), &Waker::default());
        assert!(kept.listen(Some(listening)).is_none() && kept.listens());
        let hold = Arc::new(0);
        grant(&mut kept, &hold, at(0));
        (kept, channel, hold)
    }

    fn grant(kept: &mut UntilAsked<u8>, hold: &Arc<u8>, now: Moment) {
        let heard = kept.heard(now).unwrap();
        kept.begin(hold, KeepTerms { heard, is_wanted: false }, now);
    }

    #[test]
    fn a_hold_stays_and_is_used_again_until_a_recall() {
        let (mut kept, channel, hold) = granted();
        for now in [1, 3] {
            assert!(kept.may_stay(&hold, at(now)) && kept.is_idle());
            assert_eq!(kept.use_again(&hold, true, at(now + 1)), Reuse::UntilAsked);
            assert!(!kept.is_idle());
        }
        assert!(kept.may_stay(&hold, at(5)));
        channel.take(b"recall");
        assert_eq!(kept.watch(at(6)), Some(KeptStep::GiveBack));
        assert_eq!(kept.use_again(&hold, true, at(6)), Reuse::Never, "the thread does not get it again");
        let (mut kept, channel, hold) = granted();
        channel.take(b"recall");
        assert!(matches!(kept.watch(at(1)), Some(KeptStep::Until(_))), "it is in use");
        assert!(!kept.may_stay(&hold, at(2)));
        let (mut kept, channel, hold) = granted();
        channel.set_up(false);
        assert!(!kept.may_stay(&hold, at(1)), "recalls are not heard");
        assert!(kept.heard(at(1)).is_none());
        channel.set_up(true);
        assert!(!kept.may_stay(&hold, at(2)), "one may have been missed");
    }

    #[test]
    fn a_hold_that_others_wait_for_when_it_is_granted_does_not_stay() {
        let (mut kept, _channel, hold) = granted();
        let heard = kept.heard(at(1)).unwrap();
        kept.begin(&hold, KeepTerms { heard, is_wanted: true }, at(1));
        assert!(!kept.may_stay(&hold, at(2)));
        assert!(!kept.may_stay(&Arc::new(0), at(2)), "nor does another than the granted one");
    }

    #[test]
    fn a_hold_that_was_kept_for_a_turn_is_used_again_though_others_want_it() {
        let (mut kept, channel, hold) = granted();
        assert_eq!(kept.use_again(&Arc::new(1), false, at(1)), Reuse::InTurn, "it is none of those");
        channel.take(b"recall");
        assert_eq!(kept.use_again(&hold, true, at(1)), Reuse::InTurn);
        assert!(!kept.may_stay(&hold, at(2)), "it does not stay beyond the turn");
        assert_eq!(kept.use_again(&hold, false, at(2)), Reuse::Never, "the call would not keep it");
        assert!(kept.watch(at(3)).is_none());
    }

    #[test]
    fn a_hold_is_looked_at_soon_and_then_less_often_and_goes_when_nobody_has_used_it_for_half_a_second() {
        let (mut kept, _channel, hold) = granted();
        let mut looks = Vec::new();
        for now in 0..1800 {
            if now == 1200 {
                assert!(kept.may_stay(&hold, at(now)));
            }
            match kept.watch(at(now)) {
                Some(KeptStep::Look(_)) => looks.push(now),
                Some(KeptStep::GiveBack) => {
                    assert_eq!(now, 1700, "half a second after it was last used");
                    break;
                }
                Some(KeptStep::Until(next)) => assert!(next > at(now) && next <= at(now).plus(LAST_LOOK)),
                None => panic!("it is granted"),
            }
        }
        // Each a quarter earlier than it must be, since it is watched all the time.
        assert_eq!(looks, [38, 113, 263, 563, 938, 1313, 1688]);
    }

    #[test]
    fn the_half_second_begins_anew_with_each_use() {
        let (mut kept, _channel, hold) = granted();
        for used in [1, 400, 800] {
            assert!(kept.may_stay(&hold, at(used)));
            assert!(!matches!(kept.watch(at(used + 499)), Some(KeptStep::GiveBack)), "{used}");
            assert_eq!(kept.use_again(&hold, true, at(used + 499)), Reuse::UntilAsked);
        }
        assert!(!matches!(kept.watch(at(5_000)), Some(KeptStep::GiveBack)), "it is in use");
        assert!(kept.may_stay(&hold, at(6_000)));
        assert_eq!(kept.watch(at(6_500)), Some(KeptStep::GiveBack));
    }

    #[test]
    fn an_unused_hold_is_watched_again_when_its_half_second_is_over() {
        let (mut kept, _channel, hold) = granted();
        (1..3_000).step_by(100).for_each(|now| drop(kept.watch(at(now))));
        assert!(kept.may_stay(&hold, at(3_000)));
        let Some(KeptStep::Look(_) | KeptStep::Until(_)) = kept.watch(at(3_400)) else { panic!("too soon") };
        assert_eq!(kept.watch(at(3_400)), Some(KeptStep::Until(at(3_500))));
    }

    #[test]
    fn two_recalls_within_a_tenth_of_a_second_switch_keeping_off_for_a_second() {
        for (second, pauses) in [(99, true), (101, false)] {
            let (mut kept, channel, hold) = granted();
            for now in [1, 1 + second] {
                grant(&mut kept, &hold, at(now));
                assert!(kept.may_stay(&hold, at(now)));
                channel.take(b"recall");
                assert_eq!(kept.watch(at(now)), Some(KeptStep::GiveBack));
                assert_eq!(kept.watch(at(now)), Some(KeptStep::GiveBack), "which is one recall");
                kept.forget(&hold);
            }
            assert_eq!(kept.heard(at(1 + second)).is_none(), pauses, "{second}");
            assert!(kept.heard(at(1001 + second)).is_some());
        }
        let (mut kept, channel, hold) = granted();
        kept.note_wanted(&hold, at(1));
        assert!(!kept.may_stay(&hold, at(2)));
        grant(&mut kept, &hold, at(3));
        channel.take(b"recall");
        assert!(!kept.may_stay(&hold, at(4)));
        assert!(kept.heard(at(5)).is_none(), "what a look has seen is a recall too");
    }

    #[test]
    fn a_pair_of_recalls_long_after_the_first_switches_keeping_off_too() {
        let (mut kept, channel, hold) = granted();
        for now in [1, 10_000, 10_050] {
            assert!(kept.heard(at(now)).is_some(), "{now}");
            grant(&mut kept, &hold, at(now));
            channel.take(b"recall");
            assert!(!kept.may_stay(&hold, at(now)));
            kept.forget(&hold);
        }
        assert!(kept.heard(at(10_060)).is_none());
    }

    #[test]
    fn what_becomes_of_another_hold_is_nothing_to_the_kept_one() {
        let (mut kept, _channel, hold) = granted();
        let other = Arc::new(1);
        assert!(kept.may_stay(&hold, at(1)));
        kept.forget(&other);
        kept.note_wanted(&other, at(2));
        assert!(kept.is_idle_hold(&hold) && !kept.is_idle_hold(&other));
        assert_eq!(kept.use_again(&hold, true, at(3)), Reuse::UntilAsked);
        assert!(kept.may_stay(&hold, at(4)), "it is kept as before");
    }

    #[test]
    fn the_end_of_the_client_leaves_nothing_kept() {
        let (mut kept, _channel, hold) = granted();
        assert!(kept.may_stay(&hold, at(1)));
        assert!(kept.clear().is_some());
        assert!(!kept.is_idle() && !kept.listens() && kept.watch(at(2)).is_none());
    }

    #[test]
    fn a_hold_that_is_wanted_is_so_once_however_often_that_is_seen() {
        let (mut kept, _channel, hold) = granted();
        [1, 50].iter().for_each(|now| kept.note_wanted(&hold, at(*now)));
        assert!(kept.heard(at(51)).is_some(), "that was one recall");
    }
}
