//! One candidate leads at a time, the terms increase, and the next leader follows at once when a leader
//! leaves.

use leasehold::crossbeam_channel::RecvTimeoutError;
use leasehold::{Leader, LeaderEvent};

use crate::support::prelude::*;

fn elected(leader: &Leader) -> leasehold::FencingToken {
    match receive(leader.events(), LONG) {
        Ok(LeaderEvent::Elected { term }) => term,
        other => panic!("{other:?}"),
    }
}

fn stepped_down(leader: &Leader) -> Option<LossReason> {
    match receive(leader.events(), LONG) {
        Ok(LeaderEvent::SteppedDown { lost, .. }) => lost,
        other => panic!("{other:?}"),
    }
}

contract!(exactly_one_candidate_leads_and_terms_increase, |store| {
    let (name, clients) = store.clients::<3>("leader");
    let mut candidates: Vec<_> = clients.iter().map(|client| client.leader(&name).unwrap()).collect();
    let mut last = None;
    while !candidates.is_empty() {
        comes_true_within(LONG, || candidates.iter().any(|candidate| candidate.term().is_some()));
        let leading: Vec<_> = (0..candidates.len()).filter(|at| candidates[*at].term().is_some()).collect();
        assert_eq!(leading.len(), 1);
        let leader = candidates.remove(leading[0]);
        let term = elected(&leader);
        assert_eq!(leader.term(), Some(term));
        assert!(Some(term) > last);
        last = Some(term);
        leader.withdraw().unwrap();
    }
});

contract!(a_withdrawing_leader_is_replaced_at_once, |store| {
    let name = fresh("gap");
    let (first, second) = (store.client().leader(&name).unwrap(), store.client());
    let term = elected(&first);
    let second = second.leader(&name).unwrap();
    throughout(ms(50), || second.term().is_none());
    let begun = now();
    first.withdraw().unwrap();
    assert!(elected(&second) > term);
    // Only a message can elect the successor so soon: the safety poll and the end of the lease come later.
    assert!(begun.elapsed() < ms(100) + slack_since(begun), "{:?}", begun.elapsed());
});

contract!(a_leader_that_steps_down_rejoins_behind_other_candidates, |store| {
    let (name, [client, stranger]) = store.clients("resign");
    let first = client.leader(&name).unwrap();
    let alone = elected(&first);
    first.step_down();
    assert_eq!(stepped_down(&first), None);
    let mut term = elected(&first);
    assert!(first.term() == Some(term) && term > alone);
    // Only a store whose fenced locks are fair orders candidates of different clients.
    let is_fair = store.kinds.iter().any(|kind| kind.label == "fenced_lock" && kind.traits.fair);
    for other in [&client, &client, &client].into_iter().chain(is_fair.then_some(&stranger)) {
        let lock = other.get_fenced_lock(&name);
        let waiter = Waiter::start(move || lock.acquire_owned().unwrap());
        if is_fair {
            comes_true_within(LONG, || stranger.inspect(&name).unwrap().waiting == 1);
        }
        first.step_down();
        assert_eq!(stepped_down(&first), None);
        let (guard, _) = waiter.returns_within(LONG);
        assert!(guard.fencing_token() > Some(term), "granted before the leader's new term");
        assert!(first.events().is_empty() && first.term().is_none());
        let between = guard.fencing_token().unwrap();
        guard.unlock().unwrap();
        term = elected(&first);
        assert!(term > between);
    }
    first.withdraw().unwrap();
});

contract!(a_leader_that_steps_down_is_replaced_by_another_candidate, |store| {
    let (name, stranger) = (fresh("turns"), store.client());
    let is_fair = store.kinds.iter().any(|kind| kind.label == "fenced_lock" && kind.traits.fair);
    let mut leading = store.client().leader(&name).unwrap();
    let mut term = elected(&leading);
    for _ in 0..4 {
        let waiting = store.client().leader(&name).unwrap();
        if is_fair {
            comes_true_within(LONG, || stranger.inspect(&name).unwrap().waiting == 1);
        }
        throughout(ms(50), || waiting.term().is_none());
        let begun = now();
        leading.step_down();
        assert_eq!(stepped_down(&leading), None);
        comes_true_within(LONG, || leading.term().is_some() || waiting.term().is_some());
        if let Some(again) = leading.term() {
            // A leader that stepped down pauses or queues behind others, so only a stall elects it again.
            let stalled = stalled_since(begun);
            assert!(
                stalled > ms(200),
                "the former leader was elected at once; the machine stood still for {stalled:?}"
            );
            (term, _) = (again, elected(&leading));
            continue;
        }
        let next = elected(&waiting);
        assert!(next > term);
        let begun = now();
        leading.withdraw().unwrap();
        assert!(begun.elapsed() < slack_since(begun), "{:?}", begun.elapsed());
        (leading, term) = (waiting, next);
    }
});

contract!(a_late_step_down_does_not_end_a_later_term, |store| {
    let leader = store.client().leader(fresh("late")).unwrap();
    let term = elected(&leader);
    while leader.term() == Some(term) {
        leader.step_down();
    }
    assert_eq!(stepped_down(&leader), None);
    let next = elected(&leader);
    assert!(next > term);
    throughout(ms(50), || leader.term() == Some(next) && leader.events().is_empty());
    leader.withdraw().unwrap();
});

contract!(a_leader_that_lost_its_hold_is_elected_again, |store| {
    let name = fresh("lost");
    let leader = store.client_with_lease(RENEWED).leader(&name).unwrap();
    let term = elected(&leader);
    assert!(store.client().get_fenced_lock(&name).force_unlock().unwrap());
    assert_eq!(stepped_down(&leader), Some(LossReason::Gone));
    assert!(elected(&leader) > term);
});

contract!(shutting_down_a_client_closes_the_events_of_its_candidates, |store| {
    let (name, [leading, waiting]) = store.clients("ends");
    let first = leading.leader(&name).unwrap();
    elected(&first);
    let second = waiting.leader(&name).unwrap();
    waiting.shutdown().unwrap();
    assert_eq!(receive(second.events(), SLACK), Err(RecvTimeoutError::Disconnected));
    leading.shutdown().unwrap();
    assert_eq!(stepped_down(&first), Some(LossReason::ShutDown));
    assert_eq!(receive(first.events(), SLACK), Err(RecvTimeoutError::Disconnected));
    assert_eq!(first.term(), None);
    assert!(leading.leader(&name).is_err());
});

contract!(dropping_a_leader_ends_its_term, |store| {
    let (name, [client]) = store.clients("dropped");
    let leader = client.leader(&name).unwrap();
    elected(&leader);
    drop(leader);
    assert!(!client.get_lock(&name).is_locked().unwrap());
});
