//! The decisions of a majority, on servers that answer as a test has it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::ident::unbound_number;
use crate::observe::reporter::Reporter;
use crate::seam::Others;
use crate::seam::fallbacks::describe_by_kinds;

/// Answers in turn what was put down for it; then grants, releases and renews, and finds nothing to clean up.
#[derive(Default)]
struct Server {
    attempts: Mutex<VecDeque<Answer<Attempt>>>,
    releases: Mutex<VecDeque<Answer<Release>>>,
    renewals: Mutex<VecDeque<Answer<bool>>>,
    cleanups: Mutex<VecDeque<Answer<Release>>>,
    /// Whose requests were cleaned up.
    cleaned: Mutex<Vec<Owner>>,
    /// Whose single attempts were released.
    released: Mutex<Vec<Owner>>,
    /// How many attempts came.
    asked: AtomicUsize,
    /// Answers nothing until then.
    silent_until: Mutex<Option<Moment>>,
    /// Answers attempts when that has passed.
    takes: Mutex<Duration>,
}

fn freed() -> Answer<Release> {
    Answer::Done(Release::Freed { others: Others::Nobody })
}

fn nothing() -> Answer<Release> {
    Answer::Done(Release::NotHeld { holder: None })
}

fn busy() -> Error {
    Error::new(ErrorKind::Busy, "request", "not now")
}

fn silence() -> Error {
    Error::new(ErrorKind::TimedOut, "request", "no answer")
}

fn next<T>(answers: &Mutex<VecDeque<Answer<T>>>, otherwise: Answer<T>) -> Answer<T> {
    answers.lock().pop_front().unwrap_or(otherwise)
}

impl Server {
    fn is_silent(&self) -> bool {
        self.silent_until.lock().is_some_and(|until| Clock::System.now() < until)
    }
}

impl Store for Server {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities::default()
    }

    fn check_name(&self, _: Kind, _: &LockName) -> Result<()> {
        Ok(())
    }

    fn attempt(&self, _: &Claim, _: u32, _: Moment) -> Answer<Attempt> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let until = Clock::System.after(*self.takes.lock());
        while Clock::System.now() < until {
            std::thread::yield_now();
        }
        next(&self.attempts, Answer::Done(Attempt::Granted { fence: None }))
    }

    fn release(&self, claim: &Claim, _: u32, _: Moment) -> Answer<Release> {
        self.released.lock().push(claim.owner);
        next(&self.releases, freed())
    }

    fn renew(&self, claims: &[Claim], _: Moment) -> Vec<Answer<bool>> {
        claims.iter().map(|_| next(&self.renewals, Answer::Done(true))).collect()
    }

    fn abandon(&self, claims: &[Claim], _: Moment) -> Vec<Answer<Release>> {
        self.cleaned.lock().extend(claims.iter().map(|claim| claim.owner));
        claims.iter().map(|_| next(&self.cleanups, nothing())).collect()
    }

    fn force(&self, _: Kind, _: &LockName, _: Moment) -> Answer<bool> {
        Answer::Done(false)
    }

    fn listen(&self, _: &Claim, _: &Waker) -> Option<Subscription> {
        None
    }

    fn message_count(&self, _: &Claim) -> Option<u64> {
        None
    }

    fn close(&self) {}
}

impl Inspect for Server {
    fn inspect(&self, _: Kind, _: &LockName, _: Owner, _: Moment) -> Answer<Option<Snapshot>> {
        if self.is_silent() { Answer::Refused(silence()) } else { Answer::Done(None) }
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        describe_by_kinds(self, name, deadline)
    }
}

/// Three servers, and Redlock on them.
fn redlock() -> (Redlock, [Arc<Server>; 3]) {
    let servers: [Arc<Server>; 3] = Default::default();
    let node = |server: &Arc<Server>| {
        let store: Arc<dyn Store> = Arc::clone(server) as _;
        let open = move |_| Ok(Voter { store: Arc::clone(&store), identity: None, doubts: Vec::new() });
        VotingNode::new("a server".to_owned(), None, Box::new(open))
    };
    let nodes = servers.iter().map(node).collect();
    let (timeout, reporter) = (Duration::from_millis(20), Arc::new(Reporter::new(None)));
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

fn is_cleaned(server: &Server, claim: &Claim) -> bool {
    server.cleaned.lock().contains(&claim.owner)
}

#[test]
fn what_is_left_of_a_lease_never_underflows() {
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
        server.releases.lock().push_back(Answer::Refused(busy()));
    }
    assert!(matches!(redlock.release(&claim, 0, soon()), Answer::Unknown(_)));
    assert!(matches!(redlock.release(&claim, 0, soon()), Answer::Done(Release::Freed { .. })));
    redlock.close();
}

#[test]
fn a_server_that_did_not_confirm_a_release_is_told_again() {
    let (redlock, [_, _, third]) = redlock();
    let unanswered = claim(LONG);
    third.releases.lock().push_back(Answer::Unknown(busy().with_unknown_outcome()));
    assert!(matches!(redlock.release(&unanswered, 0, soon()), Answer::Done(Release::Freed { .. })));
    eventually(|| is_cleaned(&third, &unanswered));
    let refused = claim(LONG);
    third.releases.lock().push_back(Answer::Refused(busy()));
    assert!(matches!(redlock.release(&refused, 0, soon()), Answer::Done(Release::Freed { .. })));
    eventually(|| is_cleaned(&third, &refused));
    redlock.close();
}

#[test]
fn the_minority_that_keeps_a_lost_hold_is_told_to_forget_it() {
    let (redlock, [first, second, third]) = redlock();
    let lost = claim(LONG);
    for server in [&first, &second] {
        server.renewals.lock().push_back(Answer::Done(false));
    }
    let answers = redlock.renew(std::slice::from_ref(&lost), soon());
    assert!(matches!(answers[..], [Answer::Done(false)]));
    eventually(|| is_cleaned(&third, &lost));
    assert!(!is_cleaned(&first, &lost) && !is_cleaned(&second, &lost));
    redlock.close();
}

#[test]
fn a_renewal_that_only_a_minority_confirms_is_in_doubt() {
    let (redlock, [first, second, _]) = redlock();
    for server in [&first, &second] {
        server.renewals.lock().push_back(Answer::Refused(busy()));
    }
    assert!(matches!(redlock.renew(&[claim(LONG)], soon())[..], [Answer::Unknown(_)]));
    redlock.close();
}

#[test]
fn what_takes_longer_than_the_lease_is_neither_a_hold_nor_a_re_entry() {
    let (redlock, [first, ..]) = redlock();
    assert!(matches!(redlock.attempt(&claim(LONG), 2, soon()), Answer::Done(Attempt::Granted { .. })));
    let claim = claim(Duration::from_millis(20));
    *first.takes.lock() = Duration::from_millis(20);
    assert!(!matches!(redlock.attempt(&claim, 2, soon()), Answer::Done(_)));
    match redlock.attempt(&claim, 1, soon()) {
        Answer::Refused(error) => {
            assert!(error.is_retryable() && error.to_string().contains("20ms"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    redlock.close();
}

#[test]
fn a_re_entry_that_a_majority_does_not_know_is_a_loss() {
    let (redlock, [first, second, _]) = redlock();
    for server in [&first, &second] {
        server.attempts.lock().push_back(Answer::Done(Attempt::Lost));
    }
    assert!(matches!(redlock.attempt(&claim(LONG), 2, soon()), Answer::Done(Attempt::Lost)));
    redlock.close();
}

#[test]
fn after_a_split_vote_its_owner_gives_back_what_it_got_and_waits() {
    let (redlock, [first, second, third]) = redlock();
    let split = claim(LONG);
    for server in [&second, &third] {
        server.attempts.lock().push_back(Answer::Done(Attempt::Busy { retry_after: None }));
    }
    assert!(redlock.held_off(&split).is_none());
    let answer = redlock.attempt(&split, 1, soon());
    assert!(matches!(answer, Answer::Done(Attempt::Busy { retry_after: Some(_) })), "{answer:?}");
    assert_eq!(*first.released.lock(), [split.owner]);
    assert!(redlock.held_off(&split).is_some(), "it would meet the others again");
    assert!(redlock.held_off(&claim(LONG)).is_none(), "others need not wait");
    redlock.close();
}

#[test]
fn what_cannot_be_given_back_after_a_split_vote_is_cleaned_up() {
    let (redlock, [first, second, third]) = redlock();
    let split = claim(LONG);
    for server in [&second, &third] {
        server.attempts.lock().push_back(Answer::Done(Attempt::Busy { retry_after: None }));
    }
    first.releases.lock().push_back(Answer::Refused(busy()));
    assert!(matches!(redlock.attempt(&split, 1, soon()), Answer::Done(Attempt::Busy { .. })));
    eventually(|| is_cleaned(&first, &split));
    redlock.close();
}

#[test]
fn a_clean_up_is_done_when_all_servers_have_freed() {
    let (redlock, servers) = redlock();
    for server in &servers {
        server.cleanups.lock().push_back(freed());
    }
    let abandon = || redlock.abandon(&[claim(LONG)], soon());
    assert!(matches!(abandon()[..], [Answer::Done(Release::Freed { .. })]));
    for server in servers.iter().take(2) {
        server.cleanups.lock().push_back(freed());
    }
    // The request in doubt may yet happen at the third: that is to be looked at again.
    assert!(matches!(abandon()[..], [Answer::Done(Release::NotHeld { .. })]));
    redlock.close();
}

#[test]
fn a_clean_up_goes_on_until_the_request_can_do_no_harm_or_has_been_undone() {
    let (redlock, [_, _, third]) = redlock();
    let late = claim(LONG);
    third.attempts.lock().push_back(Answer::Unknown(busy().with_unknown_outcome()));
    third.cleanups.lock().extend([nothing(), Answer::Refused(busy()), freed()]);
    assert!(matches!(redlock.attempt(&late, 1, soon()), Answer::Done(Attempt::Granted { .. })));
    eventually(|| third.cleaned.lock().len() == 3 && third.cleanups.lock().is_empty());
    redlock.close();
}

#[test]
fn a_server_that_was_away_is_looked_at_for_requests_that_were_on_their_way() {
    let (redlock, [_, _, third]) = redlock();
    let brief = claim(Duration::from_millis(50));
    // Away for longer than the lease and the time-out of a node.
    *third.silent_until.lock() = Some(Clock::System.after(Duration::from_millis(300)));
    third.attempts.lock().push_back(Answer::Unknown(silence().with_unknown_outcome()));
    drop(redlock.attempt(&brief, 1, soon()));
    eventually(|| third.cleaned.lock().len() >= 2);
    redlock.close();
}

#[test]
fn a_server_that_was_silent_is_asked_nothing_until_it_is_back() {
    let (redlock, [_, _, third]) = redlock();
    *third.silent_until.lock() = Some(Moment::NEVER);
    third.attempts.lock().push_back(Answer::Refused(silence()));
    for _ in 0..3 {
        assert!(matches!(redlock.attempt(&claim(LONG), 1, soon()), Answer::Done(Attempt::Granted { .. })));
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
fn a_server_that_went_out_while_it_had_a_hold_is_told_of_its_release_when_it_is_back() {
    let (redlock, [_, _, third]) = redlock();
    let (before, other) = (claim(LONG), claim(LONG));
    assert!(matches!(redlock.attempt(&before, 1, soon()), Answer::Done(Attempt::Granted { .. })));
    *third.silent_until.lock() = Some(Moment::NEVER);
    third.attempts.lock().push_back(Answer::Refused(silence()));
    drop(redlock.attempt(&other, 1, soon()));
    let since = claim(LONG);
    for hold in [&before, &since] {
        assert!(matches!(redlock.release(hold, 0, soon()), Answer::Done(Release::Freed { .. })));
    }
    *third.silent_until.lock() = None;
    eventually(|| is_cleaned(&third, &before));
    assert!(!is_cleaned(&third, &since), "it was never asked for that one");
    redlock.close();
}
