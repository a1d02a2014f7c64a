//! Decisions of a majority, on simulated servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::ident::unbound_number;
use crate::observe::reporter::Reporter;
use crate::seam::{Answer, Failure, Sink};
use crate::topologies::tests::{Scripted, freed, nothing, silence};

fn busy() -> Error {
    Error::new(ErrorKind::Busy, "request", "not now")
}

fn redlock() -> (Redlock, [Arc<Scripted>; 3]) {
    let servers: [Arc<Scripted>; 3] = Default::default();
    let node = |server: &Arc<Scripted>| {
        let store: Arc<dyn Store> = Arc::clone(server) as _;
        let open = move |_| {
            Ok(Voter {
                store: Arc::clone(&store),
                identity: None,
                doubts: Vec::new(),
                note_format: Box::new(|_| Ok(())),
            })
        };
        VotingNode::new("a server".to_owned(), None, Box::new(open))
    };
    let nodes = servers.iter().map(node).collect();
    let (timeout, reporter) = (Duration::from_millis(200), Arc::new(Reporter::new(None)));
    (Redlock::connect(nodes, timeout, Duration::from_secs(1), &reporter).unwrap(), servers)
}

fn claim(lease: Duration) -> Claim {
    Claim {
        waits: true,
        ..Claim::new(
            Kind::Mutex,
            &Arc::new(LockName::new(&Arc::from("a"), "a".to_owned()).unwrap()),
            Owner::new(ClientId::random(), unbound_number()),
            lease,
        )
    }
}

const LONG: Duration = Duration::from_secs(60);

fn soon() -> Moment {
    Clock::System.after(LONG)
}

fn eventually(happened: impl Fn() -> bool) {
    let deadline = soon();
    while !happened() {
        assert!(Clock::System.now() < deadline, "it did not happen");
        std::thread::yield_now();
    }
}

fn is_cleaned(server: &Scripted, claim: &Claim) -> bool {
    server.cleaned.lock().contains(&claim.owner)
}

#[test]
fn a_leases_remaining_validity_never_underflows() {
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
fn a_release_that_only_a_minority_confirms_is_in_doubt() {
    let (redlock, [_, second, third]) = redlock();
    let claim = claim(LONG);
    for server in [&second, &third] {
        server.releases.lock().push_back(Err(Failure::Refused(busy())));
    }
    assert!(matches!(redlock.release(&claim, 0, soon()), Err(Failure::Unknown(_))));
    assert!(matches!(redlock.release(&claim, 0, soon()), Ok(Release::Freed { .. })));
    redlock.close();
}

#[test]
fn an_unconfirmed_release_is_repeated() {
    let (redlock, [_, _, third]) = redlock();
    let unanswered = claim(LONG);
    third.releases.lock().push_back(Err(Failure::Unknown(busy().with_unknown_outcome())));
    assert!(matches!(redlock.release(&unanswered, 0, soon()), Ok(Release::Freed { .. })));
    eventually(|| is_cleaned(&third, &unanswered));
    let refused = claim(LONG);
    third.releases.lock().push_back(Err(Failure::Refused(busy())));
    assert!(matches!(redlock.release(&refused, 0, soon()), Ok(Release::Freed { .. })));
    eventually(|| is_cleaned(&third, &refused));
    redlock.close();
}

#[test]
fn a_lost_hold_is_cleaned_from_the_minority() {
    let (redlock, [first, second, third]) = redlock();
    let lost = claim(LONG);
    for server in [&first, &second] {
        server.renewals.lock().push_back(Ok(false));
    }
    let answers = redlock.renew(std::slice::from_ref(&lost), soon());
    assert!(matches!(answers[..], [Ok(false)]));
    eventually(|| is_cleaned(&third, &lost));
    assert!(!is_cleaned(&first, &lost) && !is_cleaned(&second, &lost));
    redlock.close();
}

#[test]
fn a_renewal_that_only_a_minority_confirms_is_in_doubt() {
    let (redlock, [first, second, _]) = redlock();
    for server in [&first, &second] {
        server.renewals.lock().push_back(Err(Failure::Refused(busy())));
    }
    assert!(matches!(redlock.renew(&[claim(LONG)], soon())[..], [Err(Failure::Unknown(_))]));
    redlock.close();
}

#[test]
fn an_answer_after_the_lease_grants_nothing() {
    let (redlock, [first, ..]) = redlock();
    assert!(matches!(redlock.attempt(&claim(LONG), 2, soon()), Ok(Attempt::Granted { .. })));
    let claim = claim(Duration::from_millis(20));
    *first.takes.lock() = Duration::from_millis(20);
    assert!(redlock.attempt(&claim, 2, soon()).is_err());
    match redlock.attempt(&claim, 1, soon()) {
        Err(Failure::Refused(error)) => {
            assert!(error.is_retryable() && error.to_string().contains("20ms"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    redlock.close();
}

#[test]
fn a_reentry_without_a_majority_is_a_loss() {
    let (redlock, [first, second, _]) = redlock();
    for server in [&first, &second] {
        server.attempts.lock().push_back(Ok(Attempt::Lost));
    }
    assert!(matches!(redlock.attempt(&claim(LONG), 2, soon()), Ok(Attempt::Lost)));
    redlock.close();
}

#[test]
fn a_split_vote_is_undone_and_followed_by_a_pause() {
    let (redlock, [first, second, third]) = redlock();
    let split = claim(LONG);
    for server in [&second, &third] {
        server.attempts.lock().push_back(Ok(Attempt::Busy { retry_after: None }));
    }
    assert!(redlock.held_off(&split).is_none());
    let answer = redlock.attempt(&split, 1, soon());
    assert!(matches!(answer, Ok(Attempt::Busy { retry_after: Some(_) })), "{answer:?}");
    assert_eq!(*first.released.lock(), [split.owner]);
    assert!(redlock.held_off(&split).is_some(), "it would meet the others again");
    assert!(redlock.held_off(&claim(LONG)).is_none(), "others need not wait");
    redlock.close();
}

#[test]
fn an_unreleased_split_vote_is_cleaned_up() {
    let (redlock, [first, second, third]) = redlock();
    let split = claim(LONG);
    for server in [&second, &third] {
        server.attempts.lock().push_back(Ok(Attempt::Busy { retry_after: None }));
    }
    first.releases.lock().push_back(Err(Failure::Refused(busy())));
    assert!(matches!(redlock.attempt(&split, 1, soon()), Ok(Attempt::Busy { .. })));
    eventually(|| is_cleaned(&first, &split));
    redlock.close();
}

#[test]
fn a_clean_up_is_done_when_all_servers_have_freed() {
    let (redlock, servers) = redlock();
    for server in &servers {
        server.cleanups.lock().push_back(freed());
    }
    let clean_up = || redlock.clean_up(&[claim(LONG)], soon());
    assert!(matches!(clean_up()[..], [Ok(Release::Freed { .. })]));
    for server in servers.iter().take(2) {
        server.cleanups.lock().push_back(freed());
    }
    // The outcome on the third server is unknown: it may still execute the request.
    assert!(matches!(clean_up()[..], [Ok(Release::NotHeld { .. })]));
    redlock.close();
}

#[test]
fn a_clean_up_continues_until_its_request_is_harmless() {
    let (redlock, [_, _, third]) = redlock();
    let late = claim(LONG);
    third.attempts.lock().push_back(Err(Failure::Unknown(busy().with_unknown_outcome())));
    third.cleanups.lock().extend([nothing(), Err(Failure::Refused(busy())), freed()]);
    assert!(matches!(redlock.attempt(&late, 1, soon()), Ok(Attempt::Granted { .. })));
    eventually(|| third.cleaned.lock().len() == 3 && third.cleanups.lock().is_empty());
    redlock.close();
}

#[test]
fn a_returned_server_is_cleaned_of_late_requests() {
    let (redlock, [_, _, third]) = redlock();
    let brief = claim(Duration::from_millis(50));
    // Silent for longer than the lease and the node's time-out.
    *third.silent_until.lock() = Some(Clock::System.after(Duration::from_millis(300)));
    third.attempts.lock().push_back(Err(Failure::Unknown(silence().with_unknown_outcome())));
    drop(redlock.attempt(&brief, 1, soon()));
    eventually(|| third.cleaned.lock().len() >= 2);
    redlock.close();
}

#[test]
fn a_silent_server_is_not_asked_until_its_return() {
    let (redlock, [_, _, third]) = redlock();
    *third.silent_until.lock() = Some(Moment::NEVER);
    third.attempts.lock().push_back(Err(Failure::Refused(silence())));
    for _ in 0..3 {
        assert!(matches!(redlock.attempt(&claim(LONG), 1, soon()), Ok(Attempt::Granted { .. })));
    }
    assert_eq!(third.asked.load(Ordering::SeqCst), 1, "each call would wait for it");
    *third.silent_until.lock() = None;
    eventually(|| {
        drop(redlock.attempt(&claim(LONG), 1, soon()));
        third.asked.load(Ordering::SeqCst) > 1
    });
    redlock.close();
}

#[test]
fn a_returned_server_gets_the_release_it_missed() {
    let (redlock, [_, _, third]) = redlock();
    let (before, other) = (claim(LONG), claim(LONG));
    assert!(matches!(redlock.attempt(&before, 1, soon()), Ok(Attempt::Granted { .. })));
    *third.silent_until.lock() = Some(Moment::NEVER);
    third.attempts.lock().push_back(Err(Failure::Refused(silence())));
    drop(redlock.attempt(&other, 1, soon()));
    let since = claim(LONG);
    for hold in [&before, &since] {
        assert!(matches!(redlock.release(hold, 0, soon()), Ok(Release::Freed { .. })));
    }
    *third.silent_until.lock() = None;
    eventually(|| is_cleaned(&third, &before));
    assert!(!is_cleaned(&third, &since), "it was never asked for that one");
    redlock.close();
}

// ---- restores

fn renew(redlock: &Redlock, claim: &Claim, lacking: &[&Arc<Scripted>]) -> Answer<bool> {
    lacking.iter().for_each(|server| server.renewals.lock().push_back(Ok(false)));
    redlock.renew(std::slice::from_ref(claim), soon()).pop().unwrap()
}

fn attempts_of(server: &Scripted, claim: &Claim) -> Vec<u32> {
    let attempted = server.attempted.lock();
    attempted.iter().filter(|(owner, ..)| *owner == claim.owner).map(|(_, count, _)| *count).collect()
}

/// Whether the server has the hold again, and the monitor has read its answer.
fn has_it_again(redlock: &Redlock, claim: &Claim, node: usize) -> bool {
    redlock.monitor.restores.is_given_back(node, claim)
}

/// Makes the third server lose a hold and get it back.
fn given_back(redlock: &Redlock, third: &Arc<Scripted>) -> Claim {
    let hold = claim(LONG);
    assert!(matches!(renew(redlock, &hold, &[third]), Ok(true)));
    eventually(|| has_it_again(redlock, &hold, 2));
    hold
}

#[test]
fn a_restored_hold_has_the_same_levels_and_end() {
    let (redlock, [first, second, third]) = redlock();
    let hold = Claim { levels: 3, ..claim(LONG) };
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| attempts_of(&third, &hold) == [1, 3]);
    assert!(third.attempted.lock().iter().all(|(_, _, lease)| *lease < LONG));
    assert!(first.attempted.lock().is_empty() && second.attempted.lock().is_empty());
    assert_eq!(redlock.hung_up(), Some(true), "so that it counts soon");
    redlock.close();
}

#[test]
fn a_hold_without_a_confirmed_majority_is_not_restored() {
    let (redlock, [first, second, third]) = redlock();
    let (lost, doubtful) = (claim(LONG), claim(LONG));
    assert!(matches!(renew(&redlock, &lost, &[&first, &second]), Ok(false)));
    second.renewals.lock().push_back(Err(Failure::Refused(busy())));
    assert!(renew(&redlock, &doubtful, &[&third]).is_err());
    // A third hold is restored. All due restores are sent together, so if a restore of `lost` or `doubtful`
    // were due, it would be sent too.
    given_back(&redlock, &third);
    for server in [&first, &second, &third] {
        assert!(attempts_of(server, &lost).is_empty() && attempts_of(server, &doubtful).is_empty());
    }
    redlock.close();
}

#[test]
fn a_restored_server_counts_only_after_a_majority_of_others() {
    let (redlock, [_, second, third]) = redlock();
    // Between the losses on the two servers another owner may have had both.
    let hold = given_back(&redlock, &third);
    assert!(matches!(renew(&redlock, &hold, &[&second]), Ok(false)));
    eventually(|| is_cleaned(&third, &hold));
    let confirmed = given_back(&redlock, &third);
    assert!(matches!(renew(&redlock, &confirmed, &[]), Ok(true)));
    assert!(matches!(renew(&redlock, &confirmed, &[&second]), Ok(true)));
    redlock.close();
}

#[test]
fn an_unconfirmed_restore_does_not_count_in_any_vote() {
    let (redlock, [_, second, third]) = redlock();
    let hold = given_back(&redlock, &third);
    second.attempts.lock().push_back(Ok(Attempt::Lost));
    assert!(matches!(redlock.attempt(&hold, 2, soon()), Ok(Attempt::Lost)));
    second.releases.lock().push_back(nothing());
    assert!(matches!(redlock.release(&hold, 0, soon()), Ok(Release::NotHeld { .. })));
    let later = Claim { waits: false, ..given_back(&redlock, &third) };
    second.releases.lock().push_back(nothing());
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    redlock.release_later(&later, soon(), Sink::new(move |answer| *tell.lock() = Some(answer)));
    assert!(matches!(*told.lock(), Some(Ok(Release::NotHeld { .. }))));
    redlock.close();
}

#[test]
fn a_majority_reentry_makes_a_restored_hold_count() {
    let (redlock, [_, second, third]) = redlock();
    let hold = given_back(&redlock, &third);
    assert!(matches!(redlock.attempt(&hold, 2, soon()), Ok(Attempt::Granted { .. })));
    assert!(matches!(renew(&redlock, &hold, &[&second]), Ok(true)));
    redlock.close();
}

#[test]
fn a_release_during_a_restore_undoes_the_restore() {
    let (redlock, [_, _, third]) = redlock();
    *third.takes.lock() = Duration::from_millis(100);
    let hold = claim(LONG);
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| !attempts_of(&third, &hold).is_empty());
    let number = unbound_number();
    assert!(matches!(redlock.release(&hold, 0, soon()), Ok(Release::Freed { .. })));
    assert!(redlock.first_unspent_number() > number, "the thread's next hold is under another number");
    eventually(|| is_cleaned(&third, &hold));
    redlock.close();
}

#[test]
fn a_release_during_a_renewal_undoes_the_restore() {
    let (redlock, [first, _, third]) = redlock();
    let hold = given_back(&redlock, &third);
    redlock.ended_meanwhile(&hold);
    eventually(|| is_cleaned(&third, &hold));
    assert!(!is_cleaned(&first, &hold), "its own release goes there");
    redlock.close();
}

#[test]
fn an_unanswered_restore_is_cleaned_up() {
    let (redlock, [_, second, third]) = redlock();
    third.attempts.lock().push_back(Err(Failure::Unknown(busy().with_unknown_outcome())));
    let hold = claim(LONG);
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| is_cleaned(&third, &hold));
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    assert!(matches!(renew(&redlock, &hold, &[&second]), Ok(false)), "it has come late, perhaps");
    assert_eq!(attempts_of(&third, &hold), [1], "what is about to be taken away is not given again");
    redlock.close();
}

#[test]
fn a_clean_up_during_a_renewal_excludes_its_server() {
    let (redlock, [first, second, third]) = redlock();
    third.attempts.lock().push_back(Err(Failure::Unknown(busy().with_unknown_outcome())));
    let hold = claim(LONG);
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| is_cleaned(&third, &hold));
    let (shared, there, its) = (Arc::clone(&redlock.monitor), Arc::clone(&third), hold.clone());
    *first.renewing.lock() = Some(Box::new(move || {
        there.cleanups.lock().push_back(freed());
        eventually(|| shared.restores.uncounted(&its).is_empty());
    }));
    second.renewals.lock().push_back(Err(Failure::Refused(busy())));
    assert!(!matches!(renew(&redlock, &hold, &[]), Ok(true)));
    redlock.close();
}

#[test]
fn all_servers_are_forced_at_the_same_time() {
    let (redlock, servers) = redlock();
    let asked = Arc::new(AtomicUsize::new(0));
    for server in &servers {
        let asked = Arc::clone(&asked);
        *server.forcing.lock() = Some(Box::new(move || {
            asked.fetch_add(1, Ordering::SeqCst);
            eventually(|| asked.load(Ordering::SeqCst) == 3);
        }));
    }
    let name = claim(LONG).name;
    assert!(matches!(redlock.force(Kind::Mutex, &name, soon()), Ok(true)));
    redlock.close();
}

#[test]
fn a_hold_lost_for_certain_is_restored_again() {
    let (redlock, [_, _, third]) = redlock();
    third.attempts.lock().push_back(Err(Failure::Unknown(busy().with_unknown_outcome())));
    third.cleanups.lock().push_back(freed());
    let hold = claim(LONG);
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| is_cleaned(&third, &hold) && redlock.monitor.restores.uncounted(&hold).is_empty());
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| attempts_of(&third, &hold) == [1, 1]);
    redlock.close();
}

#[test]
fn a_server_whose_grant_will_be_undone_does_not_count() {
    let (redlock, [_, second, third]) = redlock();
    third.attempts.lock().push_back(Err(Failure::Unknown(busy().with_unknown_outcome())));
    let hold = claim(LONG);
    assert!(matches!(redlock.attempt(&hold, 1, soon()), Ok(Attempt::Granted { .. })));
    // A late grant, which the clean-up follows.
    second.renewals.lock().push_back(Err(Failure::Refused(busy())));
    assert!(renew(&redlock, &hold, &[]).is_err());
    redlock.close();
}

#[test]
fn a_request_in_doubt_is_cleaned_up_twice() {
    let (redlock, [_, _, third]) = redlock();
    third.attempts.lock().push_back(Err(Failure::Unknown(busy().with_unknown_outcome())));
    third.cleanups.lock().extend([Err(Failure::Unknown(busy().with_unknown_outcome())), freed(), freed()]);
    let hold = claim(LONG);
    assert!(matches!(redlock.attempt(&hold, 1, soon()), Ok(Attempt::Granted { .. })));
    eventually(|| third.cleaned.lock().len() >= 4);
    assert_eq!(redlock.monitor.restores.uncounted(&hold), [2]);
    redlock.close();
}

#[test]
fn a_busy_server_is_restored_after_the_next_renewal() {
    let (redlock, [_, _, third]) = redlock();
    third.attempts.lock().push_back(Ok(Attempt::Busy { retry_after: None }));
    let hold = claim(LONG);
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| attempts_of(&third, &hold) == [1] && redlock.monitor.restores.uncounted(&hold).is_empty());
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| attempts_of(&third, &hold) == [1, 1]);
    redlock.close();
}

#[test]
fn a_refused_restore_is_repeated_after_the_next_renewal() {
    let (redlock, [_, _, third]) = redlock();
    third.attempts.lock().push_back(Err(Failure::Refused(busy())));
    let hold = claim(LONG);
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| attempts_of(&third, &hold) == [1] && redlock.monitor.restores.uncounted(&hold).is_empty());
    assert!(matches!(renew(&redlock, &hold, &[&third]), Ok(true)));
    eventually(|| attempts_of(&third, &hold) == [1, 1]);
    redlock.close();
}

#[test]
fn a_server_silent_at_the_start_joins_later() {
    let servers: [Arc<Scripted>; 3] = Default::default();
    let is_silent = Arc::new(Mutex::new(true));
    let node = |(at, server): (usize, &Arc<Scripted>)| {
        let (store, is_silent): (Arc<dyn Store>, _) = (Arc::clone(server) as _, Arc::clone(&is_silent));
        let open = move |_| {
            while at == 2 && *is_silent.lock() {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            Ok(Voter {
                store: Arc::clone(&store),
                identity: None,
                doubts: Vec::new(),
                note_format: Box::new(|_| Ok(())),
            })
        };
        VotingNode::new("a server".to_owned(), None, Box::new(open))
    };
    let nodes = servers.iter().enumerate().map(node).collect();
    let (timeout, reporter) = (Duration::from_millis(20), Arc::new(Reporter::new(None)));
    let redlock = Redlock::connect(nodes, timeout, LONG, &reporter).unwrap();
    assert!(matches!(redlock.attempt(&claim(LONG), 1, soon()), Ok(Attempt::Granted { .. })));
    assert_eq!(servers[2].asked.load(Ordering::SeqCst), 0);
    *is_silent.lock() = false;
    eventually(|| redlock.monitor.nodes[2].is_ready());
    redlock.close();
}
