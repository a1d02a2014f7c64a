//! Tests of decisions by a majority, on scripted servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::bounded;

use super::*;
use crate::ident::unbound_number;
use crate::observe::reporter::Reporter;
use crate::seam::{Answer, Failure, Sink};
use crate::tests::scripted::{Question, Scripted, busy, freed, in_doubt, not_held, refused};
use crate::tests::{Attempted, Open, Released, Said, eventually, soon};

fn silent<T>() -> Answer<T> {
    Failure::refused(Error::new(ErrorKind::TimedOut, "request", "no answer"))
}

fn node(open: impl Fn() + Send + Sync + 'static, server: &Arc<Scripted>) -> VotingNode {
    let store: Arc<dyn Store> = Arc::clone(server) as _;
    let open = move |_| {
        open();
        let store = Arc::clone(&store);
        Ok(Voter {
            store: store.into(),
            identity: None,
            doubts: Vec::new(),
            note_format: Box::new(|_| Ok(())),
        })
    };
    VotingNode::new("a server".to_owned(), None, Box::new(open))
}

fn connect(nodes: Vec<VotingNode>, node_timeout: Duration, lease: Duration) -> Open<Box<Redlock>> {
    Open(Box::new(Redlock::connect(nodes, node_timeout, lease, &Arc::new(Reporter::new(None))).unwrap()))
}

fn redlock() -> (Open<Box<Redlock>>, [Arc<Scripted>; 3]) {
    let servers: [Arc<Scripted>; 3] = Default::default();
    let nodes = servers.iter().map(|server| node(|| (), server)).collect();
    (connect(nodes, Duration::from_millis(200), Duration::from_secs(1)), servers)
}

fn claim(lease: Duration) -> Claim {
    Claim { waits: true, ..crate::tests::claim(Kind::Mutex, "a", lease) }
}

const LONG: Duration = Duration::from_secs(60);

fn is_cleaned(server: &Scripted, claim: &Claim) -> bool {
    server.cleanups.owners().contains(&claim.owner)
}

fn takes(time: Duration) -> impl FnOnce() + Send + 'static {
    move || {
        let until = Clock::System.after(time);
        eventually(|| Clock::System.now() >= until);
    }
}

#[test]
fn a_leases_valid_part_excludes_elapsed_time_and_clock_drift() {
    let ms = Duration::from_millis;
    assert_eq!(validity(ms(1000), ms(100)), Some(ms(888)));
    assert_eq!(validity(ms(1000), ms(987)), Some(ms(1)));
    assert_eq!(validity(ms(1000), ms(988)), None);
    assert_eq!(validity(ms(1000), ms(1001)), None);
    assert_eq!(validity(ms(1), Duration::ZERO), None);
    assert_eq!(validity(ms(1), Duration::MAX), None);
    assert!(validity(crate::time::LONGEST_LEASE, ms(1)).is_some());
}

#[test]
fn a_release_confirmed_by_a_minority_has_an_unknown_outcome() {
    let (redlock, [_, second, third]) = redlock();
    let claim = claim(LONG);
    for server in [&second, &third] {
        server.releases.say(refused);
    }
    redlock.release(&claim, 0, soon()).unknown();
    redlock.release(&claim, 0, soon()).freed();
}

#[test]
fn servers_that_did_not_confirm_a_release_are_cleaned_up() {
    let (redlock, [_, _, third]) = redlock();
    let unanswered = claim(LONG);
    third.releases.say(in_doubt);
    redlock.release(&unanswered, 0, soon()).freed();
    eventually(|| is_cleaned(&third, &unanswered));
    let rejected = claim(LONG);
    third.releases.say(refused);
    redlock.release(&rejected, 0, soon()).freed();
    eventually(|| is_cleaned(&third, &rejected));
}

#[test]
fn a_lost_hold_is_deleted_on_the_remaining_minority() {
    let (redlock, [first, second, third]) = redlock();
    let lost = claim(LONG);
    for server in [&first, &second] {
        server.renewals.say(|| Ok(false));
    }
    let answers = redlock.renew(std::slice::from_ref(&lost), soon());
    assert!(matches!(answers[..], [Ok(false)]));
    eventually(|| is_cleaned(&third, &lost));
    assert!(!is_cleaned(&first, &lost) && !is_cleaned(&second, &lost));
}

#[test]
fn a_renewal_confirmed_by_a_minority_has_an_unknown_outcome() {
    let (redlock, [first, second, _]) = redlock();
    for server in [&first, &second] {
        server.renewals.say(refused);
    }
    assert!(matches!(redlock.renew(&[claim(LONG)], soon())[..], [Err(Failure::Unknown(_))]));
}

#[test]
fn an_answer_after_the_lease_grants_nothing() {
    let (redlock, [first, ..]) = redlock();
    redlock.attempt(&claim(LONG), 2, soon()).granted();
    let claim = claim(Duration::from_millis(20));
    (0..2).for_each(|_| first.attempts.before(takes(Duration::from_millis(20))));
    assert!(redlock.attempt(&claim, 2, soon()).is_err());
    match redlock.attempt(&claim, 1, soon()) {
        Err(Failure::Refused(error)) => {
            assert!(error.is_retryable() && error.to_string().contains("20ms"), "{error}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reentry_that_a_majority_denies_is_a_loss() {
    let (redlock, [first, second, _]) = redlock();
    for server in [&first, &second] {
        server.attempts.say(|| Ok(Attempt::Lost));
    }
    assert!(matches!(redlock.attempt(&claim(LONG), 2, soon()), Ok(Attempt::Lost)));
}

#[test]
fn a_split_vote_is_undone_and_followed_by_a_pause() {
    let (redlock, [first, second, third]) = redlock();
    let split = claim(LONG);
    for server in [&second, &third] {
        server.attempts.say(busy);
    }
    assert!(redlock.held_off(&split).is_none());
    let answer = redlock.attempt(&split, 1, soon());
    assert!(matches!(answer, Ok(Attempt::Busy { retry_after: Some(_) })), "{answer:?}");
    assert_eq!(first.releases.owners(), [split.owner]);
    assert!(redlock.held_off(&split).is_some(), "the client did not pause after a split vote");
    assert!(redlock.held_off(&claim(LONG)).is_none(), "another owner has to pause too");
}

#[test]
fn a_split_vote_is_undone_even_if_the_release_fails() {
    let (redlock, [first, second, third]) = redlock();
    let split = claim(LONG);
    for server in [&second, &third] {
        server.attempts.say(busy);
    }
    first.releases.say(refused);
    redlock.attempt(&split, 1, soon()).busy();
    eventually(|| is_cleaned(&first, &split));
}

#[test]
fn an_undo_is_complete_only_when_all_servers_confirm() {
    let (redlock, servers) = redlock();
    for server in &servers {
        server.cleanups.say(freed);
    }
    let clean_up = || redlock.clean_up(&[claim(LONG)], soon());
    assert!(matches!(clean_up()[..], [Ok(Release::Freed { .. })]));
    for server in servers.iter().take(2) {
        server.cleanups.say(freed);
    }
    assert!(matches!(clean_up()[..], [Ok(Release::NotHeld { .. })]));
}

#[test]
fn the_undo_of_an_unanswered_grant_is_repeated_until_confirmed() {
    let (redlock, [_, _, third]) = redlock();
    let late = claim(LONG);
    third.attempts.say(in_doubt);
    third.cleanups.say_each([not_held(), refused(), freed()]);
    redlock.attempt(&late, 1, soon()).granted();
    eventually(|| third.cleanups.count() == 3 && third.cleanups.left() == 0);
}

#[test]
fn late_grants_of_a_returning_server_are_undone() {
    let (redlock, [_, _, third]) = redlock();
    let brief = claim(Duration::from_millis(50));
    let lease_and_node_timeout_pass = takes(Duration::from_millis(300));
    third.inspections.always(silent);
    let unanswered = |failure: Failure| Failure::Unknown(failure.into_error().with_unknown_outcome());
    third.attempts.say(move || silent().map_err(unanswered));
    drop(redlock.attempt(&brief, 1, soon()));
    lease_and_node_timeout_pass();
    third.inspections.rightly();
    eventually(|| third.cleanups.count() >= 2);
}

#[test]
fn a_silent_server_is_not_asked_until_its_return() {
    let (redlock, [_, _, third]) = redlock();
    third.inspections.always(silent);
    third.attempts.say(silent);
    for _ in 0..3 {
        redlock.attempt(&claim(LONG), 1, soon()).granted();
    }
    assert_eq!(third.attempts.count(), 1, "a silent server was asked again");
    third.inspections.rightly();
    eventually(|| {
        drop(redlock.attempt(&claim(LONG), 1, soon()));
        third.attempts.count() > 1
    });
}

#[test]
fn a_returned_server_gets_the_release_it_missed() {
    let (redlock, [_, _, third]) = redlock();
    let (before, other) = (claim(LONG), claim(LONG));
    redlock.attempt(&before, 1, soon()).granted();
    third.inspections.always(silent);
    third.attempts.say(silent);
    drop(redlock.attempt(&other, 1, soon()));
    let since = claim(LONG);
    for hold in [&before, &since] {
        redlock.release(hold, 0, soon()).freed();
    }
    third.inspections.rightly();
    eventually(|| is_cleaned(&third, &before));
    assert!(!is_cleaned(&third, &since), "the server was never asked for this hold");
}

fn renew(redlock: &Redlock, claim: &Claim, lacking: &[&Arc<Scripted>]) -> Answer<bool> {
    lacking.iter().for_each(|server| server.renewals.say(|| Ok(false)));
    redlock.renew(std::slice::from_ref(claim), soon()).pop().unwrap()
}

fn attempts_of(server: &Scripted, claim: &Claim) -> Vec<u32> {
    let of_claim = |asked: Question| (asked.owner == claim.owner).then_some(asked.count);
    server.attempts.all().into_iter().filter_map(of_claim).collect()
}

/// Whether the server has granted the restore, and the monitor has read the answer.
fn has_it_again(redlock: &Redlock, claim: &Claim, node: usize) -> bool {
    redlock.monitor.restores.is_restored(node, claim)
}

/// Renews a hold that the third server has lost, and returns the hold's claim.
fn lacking(redlock: &Redlock, third: &Arc<Scripted>) -> Claim {
    let hold = claim(LONG);
    assert!(matches!(renew(redlock, &hold, &[third]), Ok(true)));
    hold
}

/// Lets the third server lose a hold, and waits until the hold is restored there.
fn given_back(redlock: &Redlock, third: &Arc<Scripted>) -> Claim {
    let hold = lacking(redlock, third);
    eventually(|| has_it_again(redlock, &hold, 2));
    hold
}

#[test]
fn a_restored_hold_has_the_same_hold_count_and_end() {
    let (redlock, [first, second, third]) = redlock();
    let hold = Claim { levels: 3, ..claim(LONG) };
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| attempts_of(&third, &hold) == [1, 3]);
    assert!(third.attempts.all().iter().all(|asked| asked.lease < LONG));
    assert_eq!((first.attempts.count(), second.attempts.count()), (0, 0));
    assert_eq!(redlock.hung_up(), Some(true), "a renewal soon counts the restored hold");
}

#[test]
fn a_hold_without_a_confirmed_majority_is_not_restored() {
    let (redlock, [first, second, third]) = redlock();
    let (lost, doubtful) = (claim(LONG), claim(LONG));
    assert!(matches!(renew(&redlock, &lost, &[&first, &second]), Ok(false)));
    second.renewals.say(refused);
    assert!(renew(&redlock, &doubtful, &[&third]).is_err());
    // The monitor sends all due restores together. So if `lost` or `doubtful` were due, its restore would be
    // sent before `given_back` returns.
    given_back(&redlock, &third);
    for server in [&first, &second, &third] {
        assert!(attempts_of(server, &lost).is_empty() && attempts_of(server, &doubtful).is_empty());
    }
}

#[test]
fn a_restored_server_counts_only_after_other_servers_confirm_the_hold() {
    let (redlock, [_, second, third]) = redlock();
    // If `second` has lost the hold too, another owner may have held the lock on `second` and `third` at
    // once. So the vote of the restored `third` must not count.
    let hold = given_back(&redlock, &third);
    assert!(matches!(renew(&redlock, &hold, &[&second]), Ok(false)));
    eventually(|| is_cleaned(&third, &hold));
    let confirmed = given_back(&redlock, &third);
    assert!(matches!(renew(&redlock, &confirmed, &[]), Ok(true)));
    assert!(matches!(renew(&redlock, &confirmed, &[&second]), Ok(true)));
}

#[test]
fn an_unconfirmed_restore_does_not_count_in_any_vote() {
    let (redlock, [_, second, third]) = redlock();
    let hold = given_back(&redlock, &third);
    second.attempts.say(|| Ok(Attempt::Lost));
    assert!(matches!(redlock.attempt(&hold, 2, soon()), Ok(Attempt::Lost)));
    second.releases.say(not_held);
    assert!(matches!(redlock.release(&hold, 0, soon()), Ok(Release::NotHeld { .. })));
    let later = Claim { waits: false, ..given_back(&redlock, &third) };
    second.releases.say(not_held);
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    redlock.release_later(&later, soon(), Sink::new(move |answer| *tell.lock() = Some(answer)));
    assert!(matches!(*told.lock(), Some(Ok(Release::NotHeld { .. }))));
}

#[test]
fn a_reentry_confirmed_by_a_majority_makes_a_restored_hold_count() {
    let (redlock, [_, second, third]) = redlock();
    let hold = given_back(&redlock, &third);
    redlock.attempt(&hold, 2, soon()).granted();
    assert!(matches!(renew(&redlock, &hold, &[&second]), Ok(true)));
}

#[test]
fn a_release_during_a_restore_undoes_the_restore() {
    let (redlock, [_, _, third]) = redlock();
    third.attempts.before(takes(Duration::from_millis(100)));
    let hold = lacking(&redlock, &third);
    eventually(|| !attempts_of(&third, &hold).is_empty());
    let number = unbound_number();
    redlock.release(&hold, 0, soon()).freed();
    assert!(redlock.first_unspent_number() > number, "the thread's next hold is under another number");
    eventually(|| is_cleaned(&third, &hold));
}

#[test]
fn a_release_during_a_renewal_undoes_the_restore() {
    let (redlock, [first, _, third]) = redlock();
    let hold = given_back(&redlock, &third);
    redlock.ended_meanwhile(&hold);
    eventually(|| is_cleaned(&third, &hold));
    assert!(!is_cleaned(&first, &hold), "the owner's own release goes there");
}

#[test]
fn an_unanswered_restore_is_undone_and_not_counted() {
    let (redlock, [_, second, third]) = redlock();
    third.attempts.say(in_doubt);
    let hold = lacking(&redlock, &third);
    eventually(|| is_cleaned(&third, &hold));
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    assert!(matches!(renew(&redlock, &hold, &[&second]), Ok(false)), "the server may have answered late");
    assert_eq!(attempts_of(&third, &hold), [1], "a hold that is being removed was restored");
}

#[test]
fn a_server_cleaned_up_during_a_renewal_does_not_count() {
    let (redlock, [first, second, third]) = redlock();
    third.attempts.say(in_doubt);
    let hold = lacking(&redlock, &third);
    eventually(|| is_cleaned(&third, &hold));
    let (shared, there, its) = (Arc::clone(&redlock.monitor), Arc::clone(&third), hold.clone());
    first.renewals.before(move || {
        there.cleanups.say(freed);
        eventually(|| shared.restores.uncounted(&its).is_empty());
    });
    second.renewals.say(refused);
    assert!(!matches!(renew(&redlock, &hold, &[]), Ok(true)));
}

#[test]
fn force_unlock_asks_all_servers_at_the_same_time() {
    let (redlock, servers) = redlock();
    let asked = Arc::new(AtomicUsize::new(0));
    for server in &servers {
        let asked = Arc::clone(&asked);
        server.forces.before(move || {
            asked.fetch_add(1, Ordering::SeqCst);
            eventually(|| asked.load(Ordering::SeqCst) == 3);
        });
    }
    let name = claim(LONG).name;
    assert!(matches!(redlock.force(Kind::Mutex, &name, soon()), Ok(true)));
}

#[test]
fn a_hold_is_restored_after_its_clean_up_has_finished() {
    let (redlock, [_, _, third]) = redlock();
    third.attempts.say(in_doubt);
    third.cleanups.say(freed);
    let hold = lacking(&redlock, &third);
    eventually(|| is_cleaned(&third, &hold) && redlock.monitor.restores.uncounted(&hold).is_empty());
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| attempts_of(&third, &hold) == [1, 1]);
}

#[test]
fn a_server_whose_grant_will_be_undone_does_not_count() {
    let (redlock, [_, second, third]) = redlock();
    third.attempts.say(in_doubt);
    let hold = claim(LONG);
    redlock.attempt(&hold, 1, soon()).granted();
    second.renewals.say(refused);
    assert!(renew(&redlock, &hold, &[]).is_err());
}

#[test]
fn a_clean_up_once_unanswered_is_repeated_even_after_success() {
    let (redlock, [_, _, third]) = redlock();
    third.attempts.say(in_doubt);
    third.cleanups.say_each([in_doubt(), freed(), freed()]);
    let hold = claim(LONG);
    redlock.attempt(&hold, 1, soon()).granted();
    eventually(|| third.cleanups.count() >= 4);
    assert_eq!(redlock.monitor.restores.uncounted(&hold), [2]);
}

#[test]
fn an_unsuccessful_restore_is_repeated_after_the_next_renewal() {
    for answer in [busy, refused] {
        let (redlock, [_, _, third]) = redlock();
        third.attempts.say(answer);
        let hold = lacking(&redlock, &third);
        eventually(|| {
            attempts_of(&third, &hold) == [1] && redlock.monitor.restores.uncounted(&hold).is_empty()
        });
        assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
        eventually(|| attempts_of(&third, &hold) == [1, 1]);
    }
}

#[test]
fn a_server_silent_at_the_start_joins_later() {
    let servers: [Arc<Scripted>; 3] = Default::default();
    let (speaks, is_silent) = bounded::<()>(0);
    let hangs = move || assert!(is_silent.recv().is_err(), "the channel has no message");
    let [first, second, third] = &servers;
    let nodes = vec![node(|| (), first), node(|| (), second), node(hangs, third)];
    let redlock = connect(nodes, Duration::from_millis(20), LONG);
    redlock.attempt(&claim(LONG), 1, soon()).granted();
    assert_eq!(third.attempts.count(), 0);
    drop(speaks);
    eventually(|| redlock.monitor.nodes[2].is_ready());
}

/// A server that still names the holder, but by whose clock the lease has ended, has no remaining time.
#[test]
fn a_missing_remaining_time_does_not_hide_other_servers_times() {
    let (redlock, servers) = redlock();
    let left = [None, Some(Duration::from_secs(20)), Some(Duration::from_secs(10))];
    for (server, remaining) in servers.iter().zip(left) {
        let mut seen = Inspection { remaining, ..Inspection::new("a", ObjectKind::Lock) };
        seen.holders.push(crate::inspect::Holder::new("somebody".to_owned()));
        server.descriptions.say(move || Ok(seen));
    }
    let seen = redlock.describe(&crate::tests::name("a"), soon()).unwrap();
    assert_eq!(seen.remaining, Some(Duration::from_secs(10)));
}
