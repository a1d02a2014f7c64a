//! `run_once` runs a job in one of many processes, at most once in a given time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;

use crate::support::prelude::*;

const LONG: Duration = Duration::from_secs(60);

contract!(exactly_one_of_many_callers_runs_the_job, needs(RunOnce), |store| {
    let (name, clients) = store.clients::<3>("tick");
    let ran = AtomicU32::new(0);
    side_by_side([&clients; 3].into_iter().flatten(), |client| {
        client.run_once(&name, LONG, LONG, |_| ran.fetch_add(1, Ordering::SeqCst)).unwrap();
    });
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    store.client().get_lock(&name).force_unlock().unwrap();
});

contract!(a_lazily_connected_client_can_begin_with_run_once, needs(RunOnce), |store| {
    let client = store.client_with(|options| options.connect_lazily());
    assert_eq!(client.run_once(fresh("lazy"), ms(1), LONG, |_| 7).unwrap(), Some(7));
});

contract!(a_short_job_excludes_others_for_the_minimum_time, needs(RunOnce), |store| {
    let (name, [client, other]) = store.clients("short");
    let (least, begun) = (ms(2_000), now());
    assert_eq!(client.run_once(&name, least, LONG, |guard| guard.check().is_ok()).unwrap(), Some(true));
    assert_eq!(other.run_once(&name, least, LONG, |_| ()).unwrap(), None);
    assert_eq!(client.run_once(&name, least, LONG, |_| ()).unwrap(), None);
    comes_true_within(least + SLACK, || other.run_once(&name, ms(1), LONG, |_| ()).unwrap().is_some());
    assert!(begun.elapsed() >= least - ms(10), "{:?}", begun.elapsed());
});

contract!(after_its_end_a_long_job_can_run_on_another_client, needs(RunOnce), |store| {
    let (name, [client, other]) = store.clients("long");
    let inside = client.run_once(&name, ms(1), LONG, |_| {
        comes_true_within(SLACK, || other.run_once(&name, ms(1), LONG, |_| ()).unwrap().is_none());
        crate::support::let_pass(ms(5), "the least time passes");
    });
    assert!(inside.unwrap().is_some());
    assert!(other.run_once(&name, ms(1), LONG, |_| ()).unwrap().is_some());
});

contract!(a_job_that_panics_counts_as_run, needs(RunOnce), |store| {
    let (name, [client]) = store.clients("panics");
    let ended = catch_unwind(AssertUnwindSafe(|| client.run_once(&name, LONG, LONG, |_| quiet_panic())));
    assert!(ended.is_err());
    assert_eq!(client.run_once(&name, LONG, LONG, |_| ()).unwrap(), None);
    client.get_lock(&name).force_unlock().unwrap();
});

contract!(exceeding_the_maximum_time_of_a_job_is_reported, needs(RunOnce), |store| {
    let (name, [client, other]) = store.clients("outlasts");
    let mut late = Ok(None);
    // A grant that arrives after `at_most` runs no job, so on a busy machine the loop retries.
    comes_true_within(LONG, || {
        late = client.run_once(&name, ms(1), ms(200), |guard| {
            comes_true_within(ms(200) + SLACK, || guard.check().is_err());
            comes_true_within(LONG, || other.run_once(&name, ms(1), LONG, |_| ()).unwrap().is_some());
        });
        !matches!(late, Ok(None))
    });
    assert!(late.unwrap_err().is_not_held());
});

contract!(a_job_with_unusable_times_does_not_run, needs(RunOnce), |store| {
    let client = store.client();
    for (at_least, at_most) in [(ms(2), ms(1)), (Duration::ZERO, ms(1)), (ms(1), Duration::MAX)] {
        let refused = client.run_once("times", at_least, at_most, |_| panic!("the job ran")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
});

contract!(each_run_of_a_fenced_job_gets_a_larger_token, needs(RunOnce), |store| {
    let (name, [client, other]) = store.clients("fenced-job");
    let mut last = None;
    for runs in [&client, &other, &client] {
        let fence =
            || runs.run_once_fenced(&name, ms(1), LONG, |guard| guard.fencing_token().unwrap()).unwrap();
        let mut given = None;
        comes_true_within(SLACK, || {
            given = fence();
            given.is_some()
        });
        assert!(given > last, "{given:?} after {last:?}");
        last = given;
    }
    let inside =
        client.run_once_fenced(&name, LONG, LONG, |_| other.run_once(&name, ms(1), LONG, |_| ()).unwrap());
    assert!(inside.unwrap().is_none_or(|other| other.is_none()));
});

contract!(the_last_run_record_has_exit_code_and_last_success, needs(RunOnce), |store| {
    let (name, [client, other]) = store.clients("recorded");
    assert_eq!(other.last_run(&name).unwrap(), None);
    let run = |code: u8| {
        let ran = client.run_once(&name, ms(1), LONG, |guard| {
            client.record_run(guard, code, ms(70)).unwrap();
            guard.owner().to_string()
        });
        ran.unwrap()
    };
    let owner = run(0).unwrap();
    let begun = now();
    let last = other.last_run(&name).unwrap().unwrap();
    assert_eq!((last.exit_code, last.took, &last.owner), (0, ms(70), &owner));
    assert!(
        last.ended_ago <= SLACK + begun.elapsed() && last.succeeded_ago == Some(last.ended_ago),
        "{last:?}"
    );
    // The record of a run is an entry in the directory of clients, but must not be listed as a client.
    assert!(other.clients().all(|one| one.unwrap().pid == std::process::id()));
    crate::support::let_pass(ms(100), "so that the two ends differ");
    comes_true_within(SLACK, || run(3).is_some());
    let last = other.last_run(&name).unwrap().unwrap();
    assert_eq!(last.exit_code, 3);
    assert!(last.succeeded_ago.unwrap() >= last.ended_ago + ms(50), "{last:?}");
    assert_eq!(other.last_run(fresh("another")).unwrap(), None);
});
