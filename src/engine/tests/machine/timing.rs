//! Deadlines, renewals, checks of cached holds, and losses.

use crate::engine::tests::machine::{
    CachedFor, Check, Checked, Effect, Hold, Machine, Number, Rules, Said, Slot, Step,
};
use crate::time::Moment;

impl Machine {
    /// When [`Time`](crate::engine::tests::machine::Event::Time) has to come at the latest.
    pub(crate) fn next(&self, rules: &Rules) -> Moment {
        match self.slot {
            Slot::Held(hold) => hold.until.min(renewal(&hold)).min(self.check_due(&hold)),
            Slot::Cached { hold, why, since } => {
                let unused = self.unused_until(why, since, rules);
                let next = hold.until.min(unused);
                match why {
                    CachedFor::TimeSlice => next,
                    CachedFor::UntilRecall => next.min(renewal(&hold)).min(self.check_due(&hold)),
                }
            }
            Slot::Free | Slot::HandingOff { .. } | Slot::Returning { .. } => Moment::NEVER,
        }
    }

    fn check_due(&self, hold: &Hold) -> Moment {
        let is_checked = hold.unrecalled.is_some() && self.check == Check::None;
        if is_checked { hold.check_at } else { Moment::NEVER }
    }

    pub(super) fn unused_until(&self, why: CachedFor, since: Moment, rules: &Rules) -> Moment {
        let [slice, recall] = rules.unused;
        match why {
            CachedFor::TimeSlice => {
                let ends = self.slice.map_or(since, |slice| slice.ends);
                ends.min(since.plus(slice))
            }
            CachedFor::UntilRecall => since.plus(recall),
        }
    }
}

fn renewal(hold: &Hold) -> Moment {
    if hold.is_renewing { Moment::NEVER } else { hold.renew_at }
}

impl Step<'_> {
    pub(super) fn time(&mut self) {
        match self.lock.slot {
            Slot::Held(hold) if self.is_over(&hold) => self.lose(hold, true),
            Slot::Held(hold) => self.lock.slot = Slot::Held(self.renewed_and_checked(hold)),
            Slot::Cached { hold, .. } if self.is_over(&hold) => self.lose(hold, false),
            Slot::Cached { hold, why, since } => {
                let is_recalled = why == CachedFor::UntilRecall && hold.unrecalled.is_none();
                if is_recalled || self.inputs.now >= self.unused_until(why, since) {
                    self.give_back(hold);
                } else if why == CachedFor::UntilRecall {
                    self.lock.slot = Slot::Cached { hold: self.renewed_and_checked(hold), why, since };
                }
            }
            Slot::Free | Slot::HandingOff { .. } | Slot::Returning { .. } => {}
        }
    }

    /// The hold, after the requests about it that are due.
    fn renewed_and_checked(&mut self, hold: Hold) -> Hold {
        let now = self.inputs.now;
        if self.lock.check_due(&hold) <= now {
            self.lock.check = Check::Sent;
            self.effect(Effect::Check { number: hold.number });
        }
        let renews = renewal(&hold) <= now;
        if renews {
            self.effect(Effect::Renew { number: hold.number });
        }
        Hold { is_renewing: hold.is_renewing || renews, ..hold }
    }

    /// The hold has ended, and this process has nothing. `is_used`: a thread has levels of the hold.
    pub(super) fn lose(&mut self, hold: Hold, is_used: bool) {
        self.retire(hold.number);
        if hold.is_renewing || hold.is_in_doubt {
            self.effect(Effect::CleanUp { number: hold.number });
        }
        if is_used {
            self.effect(Effect::Lost { number: hold.number });
        }
        self.free();
    }

    pub(super) fn renewed(&mut self, number: Number, sent: Moment, answer: Said) {
        let (now, rules) = (self.inputs.now, self.inputs.rules);
        let (hold, is_used) = match &mut self.lock.slot {
            Slot::Held(hold) if hold.number == number => (hold, true),
            Slot::Cached { hold, .. } if hold.number == number => (hold, false),
            _ => return, // the number was retired with the end of the hold, and a clean-up undoes a late renewal
        };
        hold.is_renewing = false;
        let is_over = now >= hold.until;
        match answer {
            // A window that has ended does not open again.
            Said::Yes if is_over => hold.is_in_doubt = true,
            Said::Yes => {
                hold.until = hold.until.max(sent.plus(rules.lease));
                hold.renew_at = now.plus(rules.renew_after);
            }
            Said::No => {}
            Said::Refused | Said::Unknown => {
                hold.is_in_doubt = true;
                hold.renew_at = now.plus(rules.pause);
            }
        }
        if is_over || answer == Said::No {
            let hold = *hold;
            self.lose(hold, is_used);
        }
    }

    pub(super) fn checked(&mut self, number: Number, answer: Checked) {
        let check = std::mem::replace(&mut self.lock.check, Check::None);
        let is_cached = matches!(self.lock.slot, Slot::Cached { why: CachedFor::UntilRecall, .. });
        let (Slot::Held(hold) | Slot::Cached { hold, .. }) = &mut self.lock.slot else { return };
        if check != Check::Sent || hold.number != number {
            return; // of a hold that has ended
        }
        hold.check_at = self.inputs.now.plus(self.inputs.rules.check_after);
        match answer {
            Checked::Unwanted | Checked::Unknown => {}
            Checked::Wanted => {
                hold.unrecalled = None;
                let hold = *hold;
                if is_cached {
                    self.give_back(hold);
                }
            }
            Checked::NotHeld => {
                let (hold, is_used) = (*hold, matches!(self.lock.slot, Slot::Held(_)));
                self.lose(hold, is_used);
            }
        }
    }
}
