//! Real Curator and this crate on one ZooKeeper: its `InterProcessMutex` and our lock use one queue.

use std::path::PathBuf;
use std::process::Command;

use crate::agent::{Agent, Peer};
use crate::scene::{alone, build_once, source, turn};
use crate::support::prelude::*;
use crate::support::zookeeper::{CALM, ZooKeeper};

const LEASE: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_secs(10);

fn start() -> Option<Arc<Agent>> {
    let project = source("curator");
    let jar = project.join("target/agent.jar");
    let made_of = [
        project.join("pom.xml"),
        project.join("src/main/java/leasehold/interop/CuratorAgent.java"),
        project.join("src/main/resources/simplelogger.properties"),
    ];
    let jar = build_once("Curator by Maven", &jar, &made_of.each_ref().map(PathBuf::as_path), || {
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "package"]).current_dir(&project);
        vec![maven]
    })?;
    let mut java = Command::new("java");
    java.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx256m", "-jar"])
        .arg(jar);
    Agent::start_or_reuse("Curator", &mut java)
}

fn curator(server: &ZooKeeper) -> Option<Peer> {
    let address = format!("127.0.0.1:{}", server.port());
    Some(start()?.connect("curator", &address, &[&LEASE.as_millis().to_string()]))
}

fn rust(server: &ZooKeeper) -> LockClient {
    LockClient::builder().url(server.url()).lease(LEASE).build().unwrap()
}

fn queue_is(server: &ZooKeeper, length: usize) {
    wait_until(&format!("{length} wait"), SOON, || server.watched_below("/locks/") == length);
}

test_on!(curator_and_rust_exclude_each_other, alone(), ZooKeeper::start(CALM), |server| {
    let Some(java) = curator(&server) else { return };
    let path = "/locks/both";
    let lock = rust(&server).get_lock(path);
    java.get("one", "lock", &[path]);
    java.get("one", "lock", &[path]);
    assert!(!lock.try_lock().unwrap());
    assert!(!lock.try_lock_for(Duration::from_millis(50)).unwrap());
    assert!(lock.is_locked().unwrap());
    assert_eq!(lock.remaining_lease().unwrap(), Some(Duration::MAX), "Curator's holds have no end");
    let told = lock.unlock().unwrap_err();
    assert!(matches!(told.not_held(), Some(NotHeld::HeldBy(by)) if by.contains('.')), "{told}");
    java.get("one", "unlock", &[path]);
    assert!(!lock.try_lock().unwrap(), "the lock is held once more");
    java.get("one", "unlock", &[path]);

    lock.lock().unwrap();
    lock.lock().unwrap();
    assert!(!java.is("one", "try-for", &[path, "50"]));
    assert_eq!(java.get("one", "participants", &[path]), "1");
    lock.unlock().unwrap();
    assert!(!java.is("one", "try-for", &[path, "50"]));
    lock.unlock().unwrap();
    assert!(java.is("one", "try-for", &[path, "2000"]));
    java.get("one", "unlock", &[path]);
    assert!(!lock.is_locked().unwrap());
});

test_on!(curator_and_rust_are_served_in_order, alone(), ZooKeeper::start(CALM), |server| {
    let Some(java) = curator(&server) else { return };
    let path = "/locks/order";
    let clients = [rust(&server), rust(&server)];
    let holder: RedisLock = clients[0].get_lock(path);
    holder.lock().unwrap();
    let (mut javas, mut rusts) = (Vec::new(), Vec::new());
    for place in 0..8 {
        if place % 3 == 0 {
            let thread = format!("java-{place}");
            let locked = java.ask(&thread, "lock", &[path]);
            // The agent runs this unlock as soon as the thread has the lock.
            let unlocked = java.ask(&thread, "unlock", &[path]);
            javas.push((place, locked, unlocked));
        } else {
            rusts.push((place, turn(&clients[place % 2].get_lock(path))));
        }
        queue_is(&server, place + 1);
    }
    holder.unlock().unwrap();
    let mut order: Vec<_> = rusts.into_iter().map(|(place, task)| (task.join(), place)).collect();
    for (place, locked, unlocked) in javas {
        // `ended` is the time at which `lock` returned, so it is before the unlock and the next grant.
        order.push((locked.wait().ended, place));
        unlocked.wait().expect_ok();
    }
    order.sort_unstable();
    assert_eq!(order.iter().map(|(_, place)| *place).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
});

test_on!(curator_and_rust_readers_and_writers_share_one_lock, alone(), ZooKeeper::start(CALM), |server| {
    let Some(java) = curator(&server) else { return };
    let path = "/locks/pair";
    let client = rust(&server);
    let lock = client.get_read_write_lock(path);
    java.get("one", "read-lock", &[path]);
    lock.read().lock().unwrap();
    assert!(java.is("two", "read-try-for", &[path, "2000"]));
    assert!(!java.is("three", "write-try-for", &[path, "50"]));
    let other = rust(&server).get_read_write_lock(path);
    assert!(!other.write().try_lock().unwrap());
    java.get("one", "read-unlock", &[path]);
    java.get("two", "read-unlock", &[path]);
    let writing = java.ask("one", "write-lock", &[path]);
    queue_is(&server, 1);
    assert!(!other.read().try_lock().unwrap());
    let reading = call_on(other.read().clone(), move |read| read.acquire_owned());
    queue_is(&server, 2);
    lock.read().unlock().unwrap();
    writing.wait().expect_ok();
    assert!(reading.is_open() && lock.write().is_locked().unwrap());
    // A writer may also read, and keeps its read lock after it releases the write lock.
    java.get("one", "read-lock", &[path]);
    java.get("one", "write-unlock", &[path]);
    let guard = reading.join().unwrap();
    assert!(!lock.write().try_lock().unwrap());
    java.get("one", "read-unlock", &[path]);
    guard.unlock().unwrap();
    let guard = lock.write().acquire().unwrap();
    let downgraded = lock.read().acquire().unwrap();
    assert!(!java.is("one", "read-try-for", &[path, "50"]));
    guard.unlock().unwrap();
    assert!(java.is("one", "read-try-for", &[path, "2000"]));
    assert!(!java.is("two", "write-try-for", &[path, "50"]));
    downgraded.unlock().unwrap();
    java.get("one", "read-unlock", &[path]);
    assert!(java.is("two", "write-try-for", &[path, "2000"]));
    assert!(!lock.read().try_lock().unwrap());
    java.get("two", "write-unlock", &[path]);
});
