//! Random programs that lock in any order: all reports are true, and every lasting deadlock is reported.

use leasehold::{Event, Observer};

use crate::deadlock_log::{Notes, Player, Report};
use crate::support::prelude::*;
use crate::support::{deadlocked, random, reexecuted, test_name};

const PROCESSES: usize = 6;
const NAMES: usize = 5;

/// The longest wait, and the age at which a wait is searched.
const WAIT: Duration = ms(2_000);
const LOOKED_AT_AFTER: Duration = ms(30);

/// A lasting cycle must be reported within this: the search for its youngest wait, and the readings.
const REPORTED_WITHIN: Duration = ms(1_350);

/// Records the reports of one client, which stands for a process.
struct Reporting(usize, Arc<Notes>);

impl Observer for Reporting {
    fn event(&self, event: &Event<'_>) {
        if let Event::Deadlock { deadlock, .. } = event
            && deadlock.is_certain
        {
            self.1.report(Report::new(self.0, deadlock));
        }
    }
}

/// Runs one program and checks its reports; returns the number of cycles.
fn run(program: u64, open: &(dyn Fn(usize, Reporting) -> LockClient + Sync)) -> usize {
    let names: Vec<String> = (0..NAMES).map(|at| format!("program:{program}:{at}")).collect();
    let (notes, interrupt) = (Arc::new(Notes::default()), Interrupt::new());
    let clients: Vec<LockClient> =
        (0..PROCESSES).map(|at| open(at, Reporting(at, Arc::clone(&notes)))).collect();
    std::thread::scope(|scope| {
        for (process, client) in clients.iter().enumerate() {
            let (notes, names, interrupt) = (&*notes, &*names, &interrupt);
            scope.spawn(move || {
                let make = &|client: &LockClient, at: usize| client.get_lock(&names[at]);
                let player = Player { client, notes, process, names, make, interrupt };
                (0..2).for_each(|_| player.take_some(WAIT, ms(random() % 30)));
            });
        }
    });
    // The reports are complete then.
    clients.iter().for_each(|client| client.shutdown().unwrap());
    let_pass(ms(5), "what is told, is told on threads of the clients");
    notes.log().check(REPORTED_WITHIN).rings
}

/// Without an observer or a log, standard error remains.
#[test]
fn an_unobserved_deadlock_is_printed_once() {
    const HEARD: &str = "LEASEHOLD_DEADLOCK_HEARD";
    let stand = |builder: leasehold::ClientBuilder| {
        let client = builder.detect_deadlocks_after(ms(100)).build_in_memory(&MemoryStore::new()).unwrap();
        let is_over = || client.stats().deadlocks > 0;
        assert!(deadlocked(&client, ["a", "b"], || is_over() && !eventually(ms(3_500), || false)));
        client.shutdown().unwrap();
    };
    match std::env::var(HEARD).as_deref() {
        Ok("no") => return stand(LockClient::builder()),
        Ok(_) => return stand(LockClient::builder().observer(|_: &Event<'_>| ())),
        Err(_) => {}
    }
    let said = |heard: &str| {
        let (is_good, text) = reexecuted(&test_name(), &[(HEARD, heard)]).ends_within(LONG * 3);
        assert!(is_good, "{text}");
        text.matches("leasehold: deadlock: 2 threads wait for each other").count()
    };
    assert_eq!((said("no"), said("yes")), (1, 0));
}

#[test]
fn random_programs_report_exactly_their_deadlocks() {
    let (next, rings) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                loop {
                    let program = next.fetch_add(1, Ordering::Relaxed);
                    if program >= 200 {
                        return;
                    }
                    let store = MemoryStore::new();
                    let found = run(program, &|at, observer| {
                        let builder = LockClient::builder().label(at.to_string()).observer(observer);
                        builder.detect_deadlocks_after(LOOKED_AT_AFTER).build_in_memory(&store).unwrap()
                    });
                    rings.fetch_add(found as u64, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(rings.into_inner() > 20, "hardly any program has a deadlock");
}
