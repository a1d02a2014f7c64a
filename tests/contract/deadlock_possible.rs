//! A cycle through holds that any thread may release is reported as a possible deadlock, and not broken.

use super::deadlock::{Member, Threads, are_told};
use crate::support::observer::deadlocks;
use crate::support::prelude::*;

// Any thread may release an owned guard, so the cycle of `a` and `b` is perhaps no deadlock, and no wait is
// broken. The cycle of `c` and `d` is not found: no client knows that one thread uses two clients.
contract!(cycles_through_owned_guards_are_reported_only_as_possible, needs(Directory), |store| {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(fresh);
    let [one, waits_by, other] = [(); 3].map(|()| Member::quick_to_break(store));
    let mut threads = Threads::of(4);
    let owned = one.lock(&a);
    threads.add(one.lock(&b), move || {
        let held = owned.acquire_owned()?;
        Ok(Box::new(|| held.unlock()))
    });
    threads.add_each([
        [other.lock(&b), other.lock(&a)],
        [one.lock(&c), waits_by.lock(&d)],
        [other.lock(&d), other.lock(&c)],
    ]);
    threads.begin();
    for (deadlock, _) in are_told(&[&one, &other], &a, &b) {
        assert!(!deadlock.is_certain, "{deadlock}");
    }
    for member in [&one, &other] {
        assert_eq!(member.client.stats().deadlocks, 0, "an uncertain deadlock was counted");
    }
    // Each client's next search, within this time, must not report the cycle of `a` and `b` again.
    let members = [&one, &waits_by, &other];
    throughout(ms(2_500), || members.iter().all(|member| member.is_told_nothing()));
    assert!(!threads.is_any_over(), "no wait was ended");
    threads.end();
});

// Each client stands for a command of `leasehold run`: `under_hold` names the hold under which it runs.
contract!(a_deadlock_through_commands_run_under_holds_is_reported, needs(Directory), |store| {
    let names: Vec<String> = ["a", "b", "c"].map(fresh).into();
    let holding = store.client();
    let guards: Vec<_> = names.iter().map(|name| holding.get_lock(name).acquire_owned().unwrap()).collect();
    let members = [0, 1, 2].map(|at: usize| {
        let (observer, told) = deadlocks(now);
        let under = guards[at].owner().to_string();
        let client = store.client_with(|options| {
            let options = options.detect_deadlocks_after(ms(200)).observer(observer);
            options.under_hold("no owner").under_hold(&under)
        });
        Member { client, told }
    });
    let threads = Threads::holding([0, 1, 2].map(|at| [members[at].lock(&names[(at + 1) % 3])]));
    threads.begin();
    for member in &members {
        let (deadlock, _) = member.next(true);
        assert_eq!((deadlock.steps.len(), deadlock.is_certain), (3, false), "{deadlock}");
    }
    let asking = store.client();
    // Other tests may use the same store at the same time, and the list may contain their deadlocks.
    let rings = asking.deadlocks().unwrap();
    let of_these = rings.iter().filter(|ring| ring.steps.iter().any(|step| step.holds == names[0]));
    assert_eq!(of_these.count(), 1, "the deadlock was listed more than once");
    assert_eq!(threads.end(), 0);
    members.iter().for_each(|member| drop(member.next(false)));
});
