//! The local queue, and hand-offs to its head.

use super::world::NOW;
use super::*;
use crate::engine::lock::caching;
use crate::engine::lock::state::MOST_RETIRED;
use crate::engine::lock::{Look, Next, Withdrawn};

const FIRST: TicketId = TicketId(1);
const SECOND: TicketId = TicketId(2);
const THIRD: TicketId = TicketId(3);

fn at() -> At<'static> {
    At { now: NOW, recalls: None, rules: &RULES.lock }
}

/// A lock for which three threads wait.
fn lock() -> Lock {
    let mut lock = Lock::default();
    for ticket in [FIRST, SECOND, THIRD] {
        lock.queue.join(ticket, TestWaiter::default(), false);
    }
    lock
}

fn heads(lock: &Lock) -> Vec<TicketId> {
    lock.queue.tickets.iter().filter(|ticket| ticket.is_head).map(|ticket| ticket.id).collect()
}

/// The waiters that were notified of a change since the last call.
fn words(lock: &mut Lock) -> Vec<TicketId> {
    let ids: Vec<_> = lock.queue.tickets.iter().map(|ticket| ticket.id).collect();
    let has_word = |id: &TicketId| lock.queue.get_mut(*id).is_some_and(|one| std::mem::take(&mut one.word));
    ids.into_iter().filter(has_word).collect()
}

/// Makes the lock held; returns the serial number of the hold.
fn hold(lock: &mut Lock) -> u64 {
    let own = HoldState::new(TestHold(Id { serial: 1, number: 16 }), Some(0), 16, NOW, NOW.plus(RULES.lease));
    let _entered = lock.enter(own);
    1
}

#[test]
fn the_first_waiter_to_join_is_the_head() {
    let mut lock = lock();
    assert_eq!(heads(&lock), [FIRST]);
    lock.leave(FIRST);
    assert_eq!(heads(&lock), [SECOND]);
    for ticket in [SECOND, THIRD] {
        lock.leave(ticket);
    }
    assert!(lock.queue.tickets.is_empty());
}

#[test]
fn a_leaving_middle_waiter_does_not_change_the_head() {
    let mut lock = lock();
    lock.leave(SECOND);
    assert_eq!(heads(&lock), [FIRST]);
    lock.leave(FIRST);
    assert_eq!(heads(&lock), [THIRD]);
}

#[test]
fn a_waiter_that_becomes_head_is_woken() {
    let mut lock = lock();
    assert!(lock.sleep(SECOND, true, true));
    lock.leave(FIRST);
    let second = lock.queue.get(SECOND).unwrap();
    assert!(second.is_head && second.word && second.waiter.is_woken);
    assert!(!lock.sleep(SECOND, true, true), "the waiter slept before it asked");
    assert!(!lock.sleep(SECOND, true, true), "the head slept until it is the head");
    assert!(lock.sleep(SECOND, true, false));
}

#[test]
fn spinning_and_subscribed_waiters_have_separate_heads() {
    let mut lock = Lock::default();
    let tickets = [true, true, false, false].iter().zip(1..).map(|(spins, id)| {
        lock.queue.join(TicketId(id), TestWaiter::default(), *spins);
        TicketId(id)
    });
    let tickets: Vec<_> = tickets.collect();
    assert_eq!(heads(&lock), [tickets[0], tickets[2]]);
    lock.queue.nudge();
    assert_eq!(words(&mut lock), [tickets[0], tickets[2]]);
    lock.leave(tickets[0]);
    assert_eq!(heads(&lock), [tickets[1], tickets[2]]);
    assert_eq!(words(&mut lock), [tickets[1]]);
    // The new first waiter is notified: it may wait for the end of a hand-off to the waiter that leaves.
    lock.leave(tickets[1]);
    assert_eq!((words(&mut lock), heads(&lock)), (vec![tickets[2]], vec![tickets[2]]));
    lock.queue.nudge();
    assert_eq!(words(&mut lock), [tickets[2]]);
    tickets[2..].iter().for_each(|ticket| drop(lock.leave(*ticket)));
    for (id, spins) in [(5, true), (6, false)] {
        lock.queue.join(TicketId(id), TestWaiter::default(), spins);
    }
    assert_eq!(heads(&lock), [TicketId(5), TicketId(6)]);
}

#[test]
fn a_waiter_can_leave_after_its_hand_off_is_cancelled() {
    let mut lock = lock();
    let serial = hold(&mut lock);
    assert_eq!(lock.promise(at()), Next::Nobody, "nobody sleeps");
    assert!(lock.sleep(FIRST, true, false));
    assert_eq!(lock.begin_release(serial, at()), Some(Next::Local(FIRST)));
    assert_eq!(lock.withdraw(FIRST), Withdrawn::Promised);
    assert_eq!(lock.held_here(NOW), Some(Moment::NEVER));
    assert_eq!(lock.look(SECOND, true, true, NOW), Look::OnItsWay);
    lock.not_sent(serial);
    assert_eq!(words(&mut lock), [FIRST, SECOND], "the receiver, and the waiter that saw the hand-off");
    assert_eq!(lock.withdraw(FIRST), Withdrawn::Free);
    assert_eq!(lock.begin_release(serial, at()), None, "once");
}

#[test]
fn only_the_receiving_waiter_completes_a_hand_off() {
    let mut lock = lock();
    let serial = hold(&mut lock);
    assert!(lock.sleep(FIRST, true, false));
    assert_eq!(lock.begin_release(serial, at()), Some(Next::Local(FIRST)));
    assert!(lock.sent(serial).is_some());
    assert_eq!(lock.withdraw(FIRST), Withdrawn::Given);
    assert_eq!(lock.look(FIRST, false, false, NOW), Look::Receive);
    assert!(lock.received(SECOND, false).is_none(), "a waiter that receives nothing ended the hand-off");
    assert_eq!((lock.look(SECOND, true, true, NOW), words(&mut lock)), (Look::OnItsWay, vec![FIRST]));
    assert!(
        lock.received(FIRST, true).is_none() && lock.held_here(NOW).is_some(),
        "the releaser will release"
    );
    assert_eq!(words(&mut lock), [SECOND], "the waiter that saw the hand-off");
    assert!(lock.remove(serial, None).is_some() && lock.holds.is_empty());
}

#[test]
fn retired_owner_numbers_stay_retired_after_many_later_ones() {
    let mut retired = Retired::default();
    [9, 7, 7].iter().for_each(|number| retired.add(*number));
    assert_eq!([6, 7, 8, 9, 10].map(|number| retired.has(number)), [false, true, false, true, false]);
    (100..100 + MOST_RETIRED as u64).for_each(|number| retired.add(number));
    assert_eq!([7, 9, 10, 100, 200].map(|number| retired.has(number)), [true, true, false, true, false]);
}

#[test]
fn a_grant_under_a_retired_owner_number_is_no_hold() {
    let mut lock = Lock::default();
    let own = HoldState::new(TestHold(Id { serial: 1, number: 16 }), Some(0), 16, NOW, NOW.plus(RULES.lease));
    assert!(lock.counts(&own, NOW) && !lock.counts(&own, NOW.plus(RULES.lease)));
    lock.retired.add(16);
    assert!(!lock.counts(&own, NOW));
}

#[test]
fn only_the_last_local_waiter_leaves_the_wait_queue() {
    let mut lock = Lock { queued: true, ..Lock::default() };
    lock.queue.join(FIRST, TestWaiter::default(), false);
    assert!(lock.takes_queue_place() && !lock.takes_queue_place());
    lock.queued = true;
    lock.queue.join(SECOND, TestWaiter::default(), false);
    assert!(!lock.takes_queue_place(), "another waiter of this client needs the place");
}

#[test]
fn a_change_since_the_last_check_prevents_one_sleep() {
    let mut lock = lock();
    lock.queue.nudge();
    assert_eq!([(); 2].map(|()| lock.sleep(FIRST, true, false)), [false, true]);
}

#[test]
fn a_sleeping_waiter_is_chosen_for_one_hand_off_only() {
    let mut lock = lock();
    let at = At { rules: &caching::RULES, ..at() };
    assert!(lock.sleep(FIRST, true, false));
    assert_eq!([(); 2].map(|()| lock.promise(at)), [Next::Local(FIRST), Next::Nobody]);
    assert!(lock.sleep(FIRST, true, false));
    assert_eq!((lock.withdraw(FIRST), lock.promise(at)), (Withdrawn::Free, Next::Nobody));
}

#[test]
fn time_slice_and_queue_place_end_with_the_last_waiter() {
    let mut lock = Lock { queued: true, ..Lock::default() };
    lock.queue.join(FIRST, TestWaiter::default(), false);
    lock.caching.begin(1, At { rules: &caching::RULES, ..at() });
    assert!(lock.caching.ends.is_some());
    lock.leave(FIRST);
    assert!(lock.caching.ends.is_none() && !lock.queued);
}

#[test]
fn a_renewal_with_a_shorter_lease_keeps_the_longer_window() {
    let until = NOW.plus(RULES.lease);
    let mut own = HoldState::new(TestHold(Id { serial: 1, number: 16 }), Some(0), 16, NOW, until);
    assert!(own.confirm(NOW.plus(RULES.lease / 2), NOW));
    assert_eq!(own.until, until);
}

#[test]
fn shutdown_retires_owner_numbers_with_unanswered_requests() {
    let mut lock = Lock::default();
    let serial = hold(&mut lock);
    lock.spend(serial);
    lock.clear();
    assert!(lock.retired.has(16));
}
