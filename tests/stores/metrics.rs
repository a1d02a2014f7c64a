//! The feature `metrics`: real events produce each series that the documentation of `Metrics` lists.

use leasehold::{Event, Fault, Metrics, Observer};
use metrics::{Key, with_local_recorder};

use crate::support::deadlocked;
use crate::support::prelude::*;
use crate::support::recorder::Kept;

fn series_of(key: &Key) -> String {
    let labels: Vec<String> =
        key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
    format!("{}{{{}}}", key.name(), labels.join(","))
}

#[derive(Clone)]
struct Recorded(Metrics, Kept);

impl Observer for Recorded {
    fn event(&self, event: &Event<'_>) {
        with_local_recorder(&self.1, || self.0.event(event));
    }
}

impl Recorded {
    fn client(&self, store: &MemoryStore) -> LockClient {
        let builder =
            LockClient::builder().observer(self.clone()).lease(Duration::from_secs(3)).retry_timeout(ms(100));
        builder.build_in_memory(store).unwrap()
    }

    #[track_caller]
    fn eventually(&self, series: &str) {
        let has_come = eventually(LONG, || self.1.of(series) > 0.0);
        assert!(has_come, "{series} is not among {:#?}", self.1.values.lock());
    }
}

#[test]
fn waits_and_holds_have_metrics() {
    let recorded = Recorded(Metrics::new(), Kept::naming(series_of));
    let store = MemoryStore::new();
    let (client, other) = (recorded.client(&store), LockClient::in_memory_with(&store));
    let lock = client.get_lock("a");
    let held = other.get_lock("a").acquire_owned().unwrap();
    assert!(!lock.try_lock().unwrap());
    assert!(!lock.try_lock_for(ms(20)).unwrap());
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let waits = scope.spawn(|| lock.lock_interruptibly(&interrupt).unwrap_err());
        assert!(eventually(LONG, || client.stats().waiters == 1), "no thread waits");
        interrupt.interrupt();
        assert!(waits.join().unwrap().is_interrupted());
    });
    held.unlock().unwrap();
    lock.acquire().unwrap().unlock().unwrap();
    store.fail(Fault::Refused);
    assert!(lock.try_lock().is_err());
    store.heal();
    for outcome in ["granted", "busy", "timeout", "interrupted", "error"] {
        recorded.eventually(&format!("leasehold_acquire_wait_seconds{{kind=lock,outcome={outcome}}}"));
    }
    let forced = client.get_lock("forced").acquire_owned().unwrap();
    assert!(other.get_lock("forced").force_unlock().unwrap());
    assert!(forced.unlock().is_err());
    let _long = client.lock_builder("long").max_hold(ms(100)).build().acquire_owned().unwrap();
    let abandoned = client.get_lock("abandoned");
    thread::scope(|scope| scope.spawn(|| abandoned.lock().unwrap()).join().unwrap());
    for end in ["released", "lost", "max_hold"] {
        recorded.eventually(&format!("leasehold_hold_seconds{{kind=lock,end={end}}}"));
    }
    recorded.eventually("leasehold_abandoned_total{}");
    let _open = client.get_lock("open").acquire_owned().unwrap();
    client.shutdown().unwrap();
    recorded.eventually("leasehold_hold_seconds{kind=lock,end=shut_down}");
}

#[test]
fn hand_offs_renewals_and_losses_have_metrics() {
    let recorded = Recorded(Metrics::new(), Kept::naming(series_of));
    let store = MemoryStore::new();
    let (client, other) = (recorded.client(&store), LockClient::in_memory_with(&store));
    for is_local in [true, false] {
        let held = if is_local { &client } else { &other }.get_lock("handed").acquire_owned().unwrap();
        let waits = client.get_lock("handed");
        thread::scope(|scope| {
            scope.spawn(|| waits.acquire_owned().unwrap().unlock().unwrap());
            assert!(eventually(LONG, || client.stats().waiters == 1), "no thread waits");
            held.unlock().unwrap();
        });
    }
    recorded.eventually("leasehold_handoff_seconds{scope=local}");
    recorded.eventually("leasehold_handoff_seconds{scope=remote}");
    let kept = client.get_lock("kept").acquire_owned().unwrap();
    recorded.eventually("leasehold_renewal_lag_seconds{}");
    store.fail(Fault::Refused);
    assert!(eventually(LONG, || client.stats().renewals_failed > 0), "{:?}", client.stats());
    store.heal();
    let forced = client.get_lock("forced").acquire_owned().unwrap();
    assert!(other.get_lock("forced").force_unlock().unwrap());
    assert!(forced.unlock().is_err());
    let _long = client.lock_builder("long").max_hold(ms(100)).build().acquire_owned().unwrap();
    let _short = client.get_lock("short").acquire_owned_with(&leased(ms(100))).unwrap().unwrap();
    let open = client.get_lock("open").acquire_owned().unwrap();
    assert!(eventually(LONG, || client.stats().lost() >= 3), "{:?}", client.stats());
    with_local_recorder(&recorded.1, || recorded.0.sample(&client.stats()));
    for (gauge, value) in [("leasehold_waiters{}", 0.0), ("leasehold_subscription_up{}", 1.0)] {
        assert_eq!(recorded.1.of(gauge), value, "{gauge}");
    }
    // One of the two holds missed a renewal and may count as `at_risk`, so only their sum is certain.
    let holds = ["held", "at_risk"].map(|state| recorded.1.of(&format!("leasehold_holds{{state={state}}}")));
    assert_eq!(holds.iter().sum::<f64>(), 2.0, "{holds:?}");
    kept.unlock().unwrap();
    client.shutdown().unwrap();
    with_local_recorder(&recorded.1, || recorded.0.sample(&client.stats()));
    for series in [
        "leasehold_renewals_total{result=ok}",
        "leasehold_renewals_total{result=error}",
        "leasehold_lost_total{reason=gone}",
        "leasehold_lost_total{reason=held_too_long}",
        "leasehold_lost_total{reason=expired}",
        "leasehold_lost_total{reason=shut_down}",
        "leasehold_wakeups_total{cause=local}",
    ] {
        recorded.eventually(series);
    }
    drop(open);
}

/// An observer that delays the thread that is about to wait.
struct Doorkeeper(Sender<()>, Receiver<()>);

impl Observer for Doorkeeper {
    fn event(&self, event: &Event<'_>) {
        if let Event::Waiting { .. } = event {
            self.0.send(()).unwrap();
            self.1.recv().unwrap();
        }
    }
}

#[test]
fn a_thread_counts_as_a_waiter_only_when_it_sleeps() {
    let ((waits, has_come), (go_on, let_in)) = (bounded(1), bounded(1));
    let builder = LockClient::builder().observer(Doorkeeper(waits, let_in));
    let client = builder.build_in_memory(&MemoryStore::new()).unwrap();
    let held = client.get_lock("handed").acquire_owned().unwrap();
    let lock = client.get_lock("handed");
    thread::scope(|scope| {
        scope.spawn(|| lock.acquire_owned().unwrap().unlock().unwrap());
        has_come.recv_timeout(LONG).unwrap();
        let too_early = client.stats().waiters;
        go_on.send(()).unwrap();
        assert_eq!(too_early, 0);
        assert!(eventually(LONG, || client.stats().waiters == 1), "no thread waits");
        held.unlock().unwrap();
    });
}

#[test]
fn a_labelled_clone_of_metrics_keeps_its_name_groups() {
    let metrics = Metrics::new().group_names(|name| name.split(':').next().unwrap_or_default().to_owned());
    let labelled = metrics.clone().label("client", "orders");
    let recorded = Recorded(labelled, Kept::naming(series_of));
    recorded.client(&MemoryStore::new()).get_lock("stock:42").acquire().unwrap().unlock().unwrap();
    recorded.eventually("leasehold_hold_seconds{client=orders,kind=lock,end=released,group=stock}");
    drop(metrics);
}

#[test]
fn a_deadlock_is_counted_once() {
    let recorded = Recorded(Metrics::new(), Kept::naming(series_of));
    let builder = LockClient::builder().observer(recorded.clone()).detect_deadlocks_after(ms(50));
    let client = builder.build_in_memory(&MemoryStore::new()).unwrap();
    let counted = || {
        with_local_recorder(&recorded.1, || recorded.0.sample(&client.stats()));
        recorded.1.of("leasehold_deadlocks_total{}")
    };
    assert!(deadlocked(&client, ["a", "b"], || counted() > 0.0), "{:#?}", recorded.1.values.lock());
    assert_eq!(counted().to_string(), "1");
}
