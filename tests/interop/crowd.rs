//! Several Java and Rust processes use a lock at once. Each thread records the times of its grants and of the
//! beginnings of its releases, by one clock. If times overlap, two threads held the lock together.

use std::collections::BTreeMap;
use std::env;
use std::hash::{BuildHasher, RandomState};

use redis::Commands;

use crate::agent::Peer;
use crate::java;
use crate::scene::{alone, ends_well, monotonic, own_time_between, rust};
use crate::support::prelude::*;
use crate::support::{Process, reexecuted};

/// A lease that outlasts the test, even on a busy machine.
const LEASE: Duration = Duration::from_secs(60);
/// The environment variable that makes this program a worker. Its value describes the work.
const WORKER: &str = "LEASEHOLD_INTEROP_CROWD";
/// The maximum time from the end of a crowd's work to the end of its last thread.
const LAST: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct Work<'a> {
    name: &'a str,
    lasts: Duration,
    pause: Duration,
    threads: &'a [(&'a str, usize)],
}

#[derive(Debug)]
struct Had {
    begun: u64,
    ended: u64,
    by: String,
}

type Turn = Box<dyn Fn() -> (u64, u64) + Send>;

fn turn(client: &LockClient, kind: &str, name: &str) -> Turn {
    fn keep() -> (u64, u64) {
        let begun = monotonic();
        let_pass(ms(1), "the lock is held for a moment");
        (begun, monotonic())
    }
    fn held(lock: &RedisLock) -> Turn {
        let lock = lock.clone();
        Box::new(move || {
            let guard = lock.acquire().unwrap();
            let had = keep();
            guard.unlock().unwrap();
            had
        })
    }
    match kind {
        "semaphore" => {
            let semaphore = client.get_semaphore(name);
            Box::new(move || {
                let permit = semaphore.acquire(1).unwrap();
                let had = keep();
                permit.unlock().unwrap();
                had
            })
        }
        "permits" => {
            let permits = client.get_expirable_semaphore(name);
            Box::new(move || {
                let permit = permits.acquire().unwrap();
                let had = keep();
                permit.unlock().unwrap();
                had
            })
        }
        "read" => held(client.get_read_write_lock(name).read()),
        "write" => held(client.get_read_write_lock(name).write()),
        "read, writers first" => held(client.get_read_write_lock(name).writers_first().read()),
        "write, writers first" => held(client.get_read_write_lock(name).writers_first().write()),
        "lock" => held(&client.get_lock(name)),
        "spin" => held(&client.get_spin_lock(name)),
        _ => panic!("{kind}?"),
    }
}

impl Work<'_> {
    fn run(&self, client: &LockClient) -> Vec<(String, Vec<(u64, u64)>)> {
        let end = monotonic() + u64::try_from(self.lasts.as_nanos()).unwrap();
        let most = u64::try_from(self.pause.as_millis()).unwrap();
        std::thread::scope(|scope| {
            let threads = self.threads.iter().flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count));
            let threads: Vec<_> = threads
                .map(|kind| {
                    let turn = turn(client, kind, self.name);
                    let working = scope.spawn(move || {
                        let mut had = Vec::new();
                        while monotonic() < end {
                            let pause = RandomState::new().hash_one(0_u8) % (most + 1);
                            let_pass(ms(pause), "between two turns");
                            had.push(turn());
                        }
                        had
                    });
                    (kind.to_owned(), working)
                })
                .collect();
            threads.into_iter().map(|(kind, thread)| (kind, thread.join().unwrap())).collect()
        })
    }

    fn ask(&self, jvm: &Peer) -> Vec<(String, crate::agent::Pending)> {
        let millis = |span: Duration| span.as_millis().to_string();
        let ask = |(kind, count): &(&str, usize)| {
            let more = [*kind, self.name, &count.to_string(), &millis(self.lasts), &millis(self.pause)];
            (format!("Java: {kind}"), jvm.ask(kind, "work", &more))
        };
        self.threads.iter().map(ask).collect()
    }

    fn start(&self, url: &str) -> Process {
        let threads: Vec<String> =
            self.threads.iter().map(|(kind, count)| format!("{kind}={count}")).collect();
        let told = ["work", url, self.name, &self.lasts.as_millis().to_string()].join("\t");
        let told = [told, self.pause.as_millis().to_string(), threads.join("\t")].join("\t");
        rust_process(&told)
    }
}

fn rust_process(told: &str) -> Process {
    reexecuted("crowd::rust_readers_and_writers_of_one_client_exclude_each_other", &[(WORKER, told)])
}

/// The work of a process that [`rust_process`] started, as `told` describes it.
fn worker(told: &str) {
    let words: Vec<&str> = told.split('\t').collect();
    match words[..] {
        ["work", url, name, lasts, pause, ref threads @ ..] => {
            let threads: Vec<_> = threads
                .iter()
                .map(|thread| thread.split_once('=').map(|(kind, n)| (kind, n.parse().unwrap())).unwrap())
                .collect();
            let (lasts, pause) = (ms(lasts.parse().unwrap()), ms(pause.parse().unwrap()));
            let client = rust(url, LEASE);
            let mut server = redis::Client::open(url).unwrap().get_connection().unwrap();
            for (kind, had) in (Work { name, lasts, pause, threads: &threads }).run(&client) {
                let had: Vec<String> = had.iter().map(|(begun, ended)| format!("{begun}-{ended}")).collect();
                let report = format!("Rust: {kind}\t{}", had.join(","));
                let _: () = server.rpush(format!("report:{name}"), report).unwrap();
            }
            client.shutdown().unwrap();
        }
        ["turns", url, list] => take_turns(url, list),
        _ => panic!("{told:?}?"),
    }
}

fn read(by: &str, times: &str) -> Vec<Had> {
    let parse = |time: &str| {
        let (begun, ended) = time.split_once('-').unwrap();
        Had { begun: begun.parse().unwrap(), ended: ended.parse().unwrap(), by: by.to_owned() }
    };
    times.split(',').filter(|time| !time.is_empty()).map(parse).collect()
}

fn crowd(server: &RedisServer, jvms: &[(&Peer, Work<'_>)], processes: &[Work<'_>]) -> Vec<Had> {
    let asked: Vec<_> = jvms.iter().flat_map(|(jvm, work)| work.ask(jvm)).collect();
    let workers: Vec<_> = processes.iter().map(|work| work.start(&server.url())).collect();
    let mut had = Vec::new();
    for (by, answer) in asked {
        had.extend(read(&by, &answer.wait_for(jvms[0].1.lasts + LAST).expect_ok()));
    }
    workers.into_iter().for_each(ends_well);
    let mut admin = server.admin();
    let key = format!("report:{}", jvms[0].1.name);
    let reports: Vec<String> = admin.lrange(&key, 0, -1).unwrap();
    let _: () = admin.del(&key).unwrap();
    for report in reports {
        let (by, times) = report.split_once('\t').unwrap();
        had.extend(read(by, times));
    }
    had
}

/// Repeats the crowd's work, each time for longer, until `kinds` sorts of threads (a language and a kind of
/// lock) have `least` grants each. `check` judges each round.
fn crowd_of(
    server: &RedisServer,
    jvms: &[(&Peer, Work<'_>)],
    processes: &[Work<'_>],
    (kinds, least): (usize, usize),
    check: impl Fn(&[Had]),
) -> Vec<Had> {
    for longer in [1, 3, 9] {
        let last = |work: &Work<'_>| work.lasts * longer;
        let jvms: Vec<_> =
            jvms.iter().map(|(jvm, work)| (*jvm, Work { lasts: last(work), ..*work })).collect();
        let processes: Vec<_> = processes.iter().map(|work| Work { lasts: last(work), ..*work }).collect();
        let had = crowd(server, &jvms, &processes);
        check(&had);
        let counts = counts(&had);
        if counts.len() == kinds && counts.values().all(|count| *count >= least) {
            return had;
        }
    }
    panic!("each round had too few grants");
}

fn counts(had: &[Had]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    had.iter().for_each(|had| *counts.entry(had.by.as_str()).or_default() += 1);
    eprintln!("{counts:?}");
    counts
}

/// Goes through the holds in the order of time, and calls `begins` with each new hold and the present ones.
fn sweep<'a>(had: &'a [Had], mut begins: impl FnMut(&'a Had, &[&'a Had])) {
    let ends = had.iter().enumerate().map(|(at, had)| (had.ended, false, at));
    let mut events: Vec<_> =
        had.iter().enumerate().map(|(at, had)| (had.begun, true, at)).chain(ends).collect();
    events.sort_unstable();
    let mut inside: Vec<&Had> = Vec::new();
    for (_, is_begin, at) in events {
        let this = &had[at];
        if is_begin {
            begins(this, &inside);
            inside.push(this);
        } else {
            inside.retain(|other| !std::ptr::eq(*other, this));
        }
    }
}

fn writers_are_alone(had: &[Had]) {
    let writes = |had: &Had| had.by.contains(": write");
    sweep(had, |had, inside| {
        let is_meeting = !inside.is_empty() && (writes(had) || inside.iter().any(|other| writes(other)));
        assert!(!is_meeting, "{had:?} met {inside:?}");
    });
}

fn no_more_than(most: usize, had: &[Had]) {
    sweep(had, |had, inside| assert!(inside.len() < most, "{had:?} met {inside:?}"));
}

#[test]
fn java_and_rust_writers_always_hold_alone() {
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
    let Some(other_java) = java::connect(&server.url(), LEASE) else { return };
    // The pauses are long, because a writer needs a moment without readers.
    let work = |threads| Work { name: "crowd", lasts: Duration::from_secs(20), pause: ms(400), threads };
    let plain = work(&[("read", 20), ("write", 5)]);
    let first = work(&[("read, writers first", 20), ("write, writers first", 5)]);
    crowd_of(&server, &[(&java, plain), (&other_java, plain)], &[plain, first], (6, 20), writers_are_alone);
    assert!(!rust(&server.url(), LEASE).get_read_write_lock("crowd").write().is_locked().unwrap());
}

test_on!(java_and_rust_together_never_exceed_the_permits, java::set_up(LEASE), |(_alone, server, java)| {
    let client = rust(&server.url(), LEASE);
    for kind in ["semaphore", "permits"] {
        assert!(java.is("main", &format!("{kind}-set"), &[kind, "3"]));
        let threads = [(kind, 8)];
        let work = Work { name: kind, lasts: Duration::from_secs(4), pause: ms(4), threads: &threads };
        crowd_of(&server, &[(&java, work)], &[work, work], (2, 20), |had| no_more_than(3, had));
        let left = match kind {
            "semaphore" => client.get_semaphore(kind).available_permits(),
            _ => client.get_expirable_semaphore(kind).available_permits(),
        };
        assert_eq!(left.unwrap(), 3, "{kind}");
        assert_eq!(java.get("main", &format!("{kind}-available"), &[kind]), "3");
    }
});

test_on!(java_and_rust_spin_locks_exclude_each_other, java::set_up(LEASE), |(_alone, server, java)| {
    // No plain locks take part, because Java's spin lock does not wake their waiters. The threads pause,
    // because a spinning thread gets the lock only if it polls while the lock is free.
    let work = Work { name: "spun", lasts: Duration::from_secs(5), pause: ms(100), threads: &[("spin", 4)] };
    crowd_of(&server, &[(&java, work)], &[work, work], (2, 5), |had| no_more_than(1, had));
});

fn fleet_lasts() -> Duration {
    let seconds = env::var("LEASEHOLD_FLEET_SECONDS");
    Duration::from_secs(seconds.map_or(10, |seconds| seconds.parse().expect("a number of seconds")))
}

/// Rust's waiters have a queue that Java's waiters do not use. Yet no language may starve.
#[test]
fn two_java_and_eight_rust_processes_share_a_lock() {
    const PROCESSES: usize = 10;
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
    let Some(other_java) = java::connect(&server.url(), LEASE) else { return };
    let work = Work { name: "shared", lasts: fleet_lasts(), pause: ms(4), threads: &[("lock", 1)] };
    let jvms = [(&java, work), (&other_java, work)];
    let had = crowd_of(&server, &jvms, &[work; PROCESSES - 2], (2, 100), |had| no_more_than(1, had));
    let counts = counts(&had);
    let share = counts["Java: lock"] as f64 / 2.0 / (had.len() as f64 / PROCESSES as f64);
    eprintln!("a Java process gets {share:.2} of a fair share beside eight of Rust's");
    assert!((0.2..=4.0).contains(&share), "{counts:?}");
    // Some process waits at any time, so only a lost message would leave the lock free until the next poll.
    let mut times: Vec<_> = had.iter().map(|had| (had.begun, had.ended)).collect();
    times.sort_unstable();
    let free = |pair: &[(u64, u64)]| own_time_between(pair[0].1, pair[1].0.max(pair[0].1));
    let longest = times.windows(2).map(free).max().unwrap_or_default();
    assert!(longest < ms(1450), "the lock was free for {longest:?}");
    let left: Vec<String> = server.admin().keys("leasehold_[^c]*").unwrap();
    assert!(left.is_empty(), "{left:?}");
}

/// Without [`WORKER`] this test runs a small crowd. With it, the test is one process of a larger crowd.
#[test]
fn rust_readers_and_writers_of_one_client_exclude_each_other() {
    if let Ok(told) = env::var(WORKER) {
        return worker(&told);
    }
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let client = rust(&server.url(), LEASE);
    let threads = [("read", 4), ("write", 2), ("read, writers first", 4), ("write, writers first", 2)];
    let work = Work { name: "small", lasts: ms(700), pause: ms(20), threads: &threads };
    let mut had = Vec::new();
    for (kind, times) in work.run(&client) {
        let by = format!("Rust: {kind}");
        had.extend(times.into_iter().map(|(begun, ended)| Had { begun, ended, by: by.clone() }));
    }
    assert_eq!(counts(&had).len(), 4);
    writers_are_alone(&had);
    let meeting = |by: &str, other: &str| {
        let had = |by: &str, begun, ended| Had { begun, ended, by: by.to_owned() };
        let two = [had(by, 1, 3), had(other, 2, 4)];
        std::panic::catch_unwind(|| writers_are_alone(&two)).is_err()
    };
    assert!(meeting("Java: read", "Rust: write") && meeting("Java: write", "Rust: read"));
    assert!(meeting("Java: write", "Rust: write") && !meeting("Java: read", "Rust: read"));
}

/// The work of a Rust process: takes orders from the Redis list `list`, each with a fair lock, a second list
/// and a text. For each order a thread waits for the lock, and appends the text to the second list while it
/// holds the lock.
fn take_turns(url: &str, list: &str) {
    let client = rust(url, LEASE);
    let server = redis::Client::open(url).unwrap();
    let mut orders = server.get_connection().unwrap();
    std::thread::scope(|scope| {
        loop {
            let order: Option<(String, String)> =
                redis::cmd("BLPOP").arg(list).arg(LAST.as_secs()).query(&mut orders).unwrap();
            let (_, order) = order.expect("the list has an order");
            let words: Vec<&str> = order.split('\t').collect();
            let [lock, served, turn] = words[..] else { return };
            let (lock, served, turn) = (client.get_fair_lock(lock), served.to_owned(), turn.to_owned());
            let mut server = server.get_connection().unwrap();
            scope.spawn(move || {
                let guard = lock.acquire().unwrap();
                let _: () = server.rpush(served, turn).unwrap();
                guard.unlock().unwrap();
            });
        }
    });
    client.shutdown().unwrap();
}

test_on!(fair_waiters_of_both_languages_are_served_in_order, java::set_up(LEASE), |(
    _alone,
    server,
    java,
)| {
    let Some(other_java) = java::connect(&server.url(), LEASE) else { return };
    let mut admin = server.admin();
    let client = rust(&server.url(), LEASE);
    let lists = ["orders:0", "orders:1"];
    let processes = lists.map(|list| rust_process(&["turns", &server.url(), list].join("\t")));
    for holder in ["java", "rust"] {
        let (name, served) = (format!("fair-{holder}"), format!("served-{holder}"));
        let queue = format!("redisson_lock_queue:{{{name}}}");
        let held = client.get_fair_lock(&name);
        if holder == "java" {
            java.get("holder", "fair-lock", &[&name]);
        } else {
            held.lock().unwrap();
        }
        let mut asked = Vec::new();
        for turn in 0..12 {
            let text = turn.to_string();
            match turn % 4 {
                even @ (0 | 2) => {
                    let java = if even == 0 { &java } else { &other_java };
                    asked.push(java.ask(&format!("waiter-{turn}"), "fair-turn", &[&name, &served, &text]));
                }
                odd => {
                    let order = format!("{name}\t{served}\t{turn}");
                    let _: () = admin.rpush(lists[odd / 2], order).unwrap();
                }
            }
            wait_until("the waiter is in the queue", Duration::from_secs(20), || {
                admin.llen::<_, usize>(&queue).unwrap() == turn + 1
            });
        }
        if holder == "java" {
            java.get("holder", "fair-unlock", &[&name]);
        } else {
            held.unlock().unwrap();
        }
        for asked in asked {
            asked.wait().expect_ok();
        }
        wait_until("all had their turn", Duration::from_secs(20), || {
            admin.llen::<_, usize>(&served).unwrap() == 12
        });
        assert_eq!(
            admin.lrange::<_, Vec<usize>>(&served, 0, -1).unwrap(),
            (0..12).collect::<Vec<_>>(),
            "{holder}"
        );
        wait_until("nothing is left", Duration::from_secs(10), || {
            admin.keys::<_, Vec<String>>(format!("*{name}*")).unwrap().is_empty()
        });
    }
    for (process, list) in processes.into_iter().zip(lists) {
        let _: () = admin.rpush(list, "end").unwrap();
        ends_well(process);
    }
});
