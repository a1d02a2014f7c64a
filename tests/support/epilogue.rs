//! A check that the clients of a test left nothing behind.
//! ```ignore
//! let baseline = Baseline::take(&server);
//! // … clients come, hold, lose, wait, and are dropped …
//! baseline.assert_clean(&server);
//! ```

use super::eventually;
use super::server::{ADMIN, RedisServer};
use std::collections::BTreeSet;
use std::time::Duration;

/// The beginning of the names of the library's threads. (The kernel shows 15 bytes of a name.)
pub const THREAD_PREFIX: &str = "leasehold";

pub struct Baseline {
    clients: BTreeSet<u64>,
    threads: Option<usize>,
    descriptors: Option<usize>,
    limit: Duration,
}

impl Baseline {
    pub fn take(server: &RedisServer) -> Baseline {
        let clients = clients(&mut server.admin()).into_iter().map(|(id, _)| id).collect();
        Baseline { clients, threads: None, descriptors: None, limit: Duration::from_secs(5) }
    }

    /// Sets how long the library may take to clean up; 5 s by default.
    pub fn within(mut self, limit: Duration) -> Baseline {
        self.limit = limit;
        self
    }

    /// Makes the check also count the library's threads, and the descriptors of the process. The test must be
    /// alone in its process.
    pub fn alone(mut self) -> Baseline {
        self.threads = threads().map(|names| names.len());
        self.descriptors = descriptors();
        self
    }

    /// Waits until the clients left nothing. After the limit, panics with all that is left: subscriptions,
    /// connections, hashes without a TTL and, after [`alone`](Baseline::alone), threads and descriptors.
    #[track_caller]
    pub fn assert_clean(&self, server: &RedisServer) {
        let mut left = Vec::new();
        let clean = eventually(self.limit, || {
            left = self.left_behind(server);
            left.is_empty()
        });
        assert!(clean, "left behind after {:?}:\n  {}", self.limit, left.join("\n  "));
    }

    pub fn left_behind(&self, server: &RedisServer) -> Vec<String> {
        let mut left = Vec::new();
        // The count comes before the admin connection below, which would be one more descriptor.
        if let (Some(before), Some(now)) = (self.threads, threads())
            && now.len() > before
        {
            left.push(format!("threads: {before} before, now {}: {now:?}", now.len()));
        }
        if let (Some(before), Some(now)) = (self.descriptors, descriptors())
            && now > before
        {
            left.push(format!("file descriptors: {before} before, now {now}"));
        }
        let mut admin = server.admin();
        left.extend(
            channels(server, &mut admin).into_iter().map(|channel| format!("subscription to {channel}")),
        );
        for (id, line) in clients(&mut admin) {
            if !self.clients.contains(&id) {
                left.push(format!("connection {line}"));
            }
        }
        left.extend(hashes_without_ttl(&mut admin).into_iter().map(|key| format!("hash without TTL: {key}")));
        left
    }
}

/// Returns those of the keys that exist, and removes their expiries. So a test that awaits a release does not
/// take an expiry for the release.
pub fn not_given_back<'a>(server: &RedisServer, keys: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut admin = server.admin();
    let mut is_there = |key: &str| -> bool {
        redis::cmd("PERSIST").arg(key).exec(&mut admin).unwrap();
        redis::cmd("EXISTS").arg(key).query(&mut admin).unwrap()
    };
    keys.into_iter().filter(|key| is_there(key)).collect()
}

/// Panics if a hash in any database has no TTL: if its holder died, nobody would ever free that lock. A test
/// may call this at any time.
#[track_caller]
pub fn assert_every_hash_has_a_ttl(server: &RedisServer) {
    let found = hashes_without_ttl(&mut server.admin());
    assert!(found.is_empty(), "hashes without TTL: {found:?}");
}

/// The hash keys without an expiry, written `database:key`.
fn hashes_without_ttl(admin: &mut redis::Connection) -> Vec<String> {
    let keyspace: String = redis::cmd("INFO").arg("keyspace").query(admin).unwrap();
    let databases =
        keyspace.lines().filter_map(|line| line.strip_prefix("db")?.split_once(':')?.0.parse::<i64>().ok());
    let mut found = Vec::new();
    for database in databases {
        redis::cmd("SELECT").arg(database).exec(admin).unwrap();
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<Vec<u8>>) =
                redis::cmd("SCAN").arg(cursor).arg(&["COUNT", "1000", "TYPE", "hash"]).query(admin).unwrap();
            for key in keys {
                // -1 means that the key has no expiry, and -2 that the key is gone by now.
                if redis::cmd("PTTL").arg(&key).query::<i64>(admin).unwrap() == -1 {
                    found.push(format!("{database}:{}", String::from_utf8_lossy(&key)));
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    redis::cmd("SELECT").arg(0).exec(admin).unwrap();
    found
}

fn channels(server: &RedisServer, admin: &mut redis::Connection) -> Vec<String> {
    let mut kinds = vec!["CHANNELS"];
    if server.binary().version() >= (7, 0, 0) {
        kinds.push("SHARDCHANNELS");
    }
    let found =
        kinds.iter().flat_map(|kind| redis::cmd("PUBSUB").arg(kind).query::<Vec<Vec<u8>>>(admin).unwrap());
    found.map(|channel| String::from_utf8_lossy(&channel).into_owned()).collect()
}

fn clients(admin: &mut redis::Connection) -> Vec<(u64, String)> {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(admin).unwrap();
    let name = format!("name={ADMIN}");
    list.lines()
        .filter(|line| !line.split(' ').any(|field| field == name))
        .filter_map(|line| {
            let id = line.split(' ').find_map(|field| field.strip_prefix("id="))?.parse().ok()?;
            Some((id, line.to_owned()))
        })
        .collect()
}

/// The names of the library's threads in this process; `None` if the system does not show them.
pub fn threads() -> Option<Vec<String>> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    // A thread may end between the listing and the read.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    Some(
        names.map(|name| name.trim_end().to_owned()).filter(|name| name.starts_with(THREAD_PREFIX)).collect(),
    )
}

/// The number of open files outside `/proc`, as the stall meter opens those inside; `None` if unknown.
fn descriptors() -> Option<usize> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?;
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    Some(targets.filter(|target| !target.starts_with("/proc")).count())
}
