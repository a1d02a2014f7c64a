//! How often waits are looked at, and how many requests that may take.

use std::collections::HashMap;
use std::time::Duration;

use crate::time::Moment;

/// The pause after the first look at a wait, then doubled up to the most.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The part of a client's time for them that a request takes: so all looks together send 33 a second at most.
const EACH: Duration = Duration::from_millis(30);
/// The most of that time that may be taken ahead, after a time without.
const AHEAD: Duration = Duration::from_millis(960);

/// When each wait is looked at, by its id.
#[derive(Debug, Default)]
pub(super) struct Pace {
    next: HashMap<u64, (Moment, Duration)>,
    /// Until then what was asked takes its time.
    spent_until: Option<Moment>,
}

impl Pace {
    /// Forgets the waits that are over. A new one is due at once.
    pub(super) fn keep(&mut self, ids: &[u64], now: Moment) {
        self.next.retain(|id, _| ids.binary_search(id).is_ok());
        for id in ids {
            self.next.entry(*id).or_insert((now, FIRST_PAUSE));
        }
    }

    /// The waits that are due, those that have been due for longest first.
    pub(super) fn due(&self, now: Moment) -> Vec<u64> {
        let mut due: Vec<(Moment, u64)> =
            self.next.iter().filter(|(_, (at, _))| *at <= now).map(|(id, (at, _))| (*at, *id)).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// It was looked at.
    pub(super) fn looked(&mut self, id: u64, now: Moment) {
        if let Some((at, pause)) = self.next.get_mut(&id) {
            *at = now.plus(*pause);
            *pause = (*pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// It is to be looked at by then, whatever its pause.
    pub(super) fn look_by(&mut self, id: u64, by: Moment) {
        if let Some((at, _)) = self.next.get_mut(&id) {
            *at = by.min(*at);
        }
    }

    /// How many requests may be sent now.
    pub(super) fn room(&self, now: Moment) -> u64 {
        let free_from = now.plus(AHEAD);
        let spent = self.spent_until.unwrap_or(now).max(now);
        let room = free_from.since(spent).as_millis() / EACH.as_millis();
        u64::try_from(room).unwrap_or(0)
    }

    pub(super) fn spend(&mut self, requests: u64, now: Moment) {
        let taken = EACH.saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX));
        self.spent_until = Some(self.spent_until.unwrap_or(now).max(now).plus(taken));
    }

    /// When the next wait may be looked at; `None`: there is none.
    pub(super) fn next(&self, now: Moment) -> Option<Moment> {
        let first = self.next.values().map(|(at, _)| *at).min()?;
        // Not before there is room for a few requests.
        let has_room = self.spent_until.map_or(now, |spent| spent.minus(AHEAD / 2));
        Some(first.max(if self.room(now) > 0 { now } else { has_room }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_looked_at_at_once_and_then_less_and_less_often() {
        let (mut pace, mut now) = (Pace::default(), Moment::from_nanos(0));
        pace.keep(&[7], now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            assert_eq!(pace.due(now), [7]);
            pace.looked(7, now);
            let next = pace.next(now).unwrap();
            pauses.push(next.since(now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
        pace.keep(&[], now);
        assert_eq!(pace.next(now), None);
    }

    #[test]
    fn requests_take_their_time_however_many_waits_are_due() {
        let (mut pace, begun) = (Pace::default(), Moment::from_nanos(0));
        let ids: Vec<u64> = (0..1_000).collect();
        pace.keep(&ids, begun);
        let (mut now, mut sent) = (begun, 0);
        while now < begun.plus(Duration::from_secs(10)) {
            let room = pace.room(now);
            for id in pace.due(now).into_iter().take(usize::try_from(room).unwrap()) {
                pace.looked(id, now);
                pace.spend(1, now);
                sent += 1;
            }
            now = now.plus(Duration::from_millis(10));
        }
        assert!((300..=32 + 334).contains(&sent), "{sent} in ten seconds");
    }
}
