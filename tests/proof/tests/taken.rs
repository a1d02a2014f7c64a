//! Explores the scripts without modelled clients: owners of three sorts (plain, with a maximum hold time,
//! caching) send any requests in any order. In each state: a lock that nobody owns can be acquired, whatever
//! fields its hash still has; no key lacks an expiry; no permit is lost or counted twice.

mod changed;

use std::collections::{HashSet, VecDeque};

use changed::Change;
use leasehold_proof::kinds::Kind;
use leasehold_proof::lua::{self, Scripts};
use leasehold_proof::server::{Entry, Reply, Server, Value, commands};

const LOCKS: [&str; 2] = ["{l}", "{m}"];
const LEASE: &str = "1000";
const CHANNEL: &str = "channel";
/// A value in the place of a refused command's name: the server is out of memory.
const MEMORY: &str = "memory";
/// How many requests are sent in a row: six for two owners that acquire, re-enter and release one after the
/// other, and one more of any sort.
const DEPTH: usize = 7;

/// An owner of each sort, and one that only tests whether a lock is free. The first two belong to one client.
const PLAIN: &str = "00000000-0000-8000-8000-000000000001:1";
const LIMITED: &str = "00000000-0000-8000-8000-000000000001:2";
const KEEPS: &str = "00000000-0000-8000-8000-000000000002:1";
const FRESH: &str = "00000000-0000-8000-8000-000000000003:1";

/// A script with its keys and arguments.
#[derive(Clone, Debug)]
struct Request(&'static str, Vec<String>, Vec<String>);

fn request(script: &'static str, keys: &[&str], arguments: &[&str]) -> Request {
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Request(script, texts(keys), texts(arguments))
}

/// The number of owners in the lock's hash. Notes (`leasehold:…`) and the field `mode` are no owners.
fn owners(server: &Server, lock: &str) -> usize {
    match server.keys.get(lock).map(|entry| &entry.value) {
        Some(Value::Hash(fields)) => {
            fields.iter().filter(|(name, _)| !name.starts_with("leasehold:") && name != "mode").count()
        }
        _ => 0,
    }
}

/// What to explore: `requests` are sent in any order. Whenever nobody owns the lock, the server must grant
/// each request of `fresh`.
struct Scene {
    name: &'static str,
    requests: Vec<Request>,
    fresh: Vec<Request>,
    /// The lock's hashes to start from: empty, or as an earlier version of the crate may have left them.
    begins: Vec<Vec<(&'static str, &'static str)>>,
    kind: Kind,
}

/// The scene of plain locks, acquired one at a time and several at once. With `counters` they are fenced.
fn mutex(name: &'static str, counters: bool) -> Scene {
    let (lock, other) = (LOCKS[0], LOCKS[1]);
    let keys = if counters { vec![lock, "redisson_lock_token:{l}"] } else { vec![lock] };
    let mut requests = Vec::new();
    for owner in [PLAIN, LIMITED, KEEPS] {
        let note: &[&str] = match owner {
            LIMITED => &["5000", "here"],
            KEEPS => &["cached"],
            _ => &[],
        };
        let has_notes = if owner == PLAIN { "0" } else { "1" };
        for (count, turn) in [("1", "barge"), ("1", "wait"), ("2", "barge")] {
            requests.push(request("ACQUIRE", &keys, &[&[owner, count, LEASE, turn], note].concat()));
        }
        for left in ["1", "0"] {
            requests.push(request("RELEASE", &[lock], &[owner, left, LEASE, has_notes, CHANNEL]));
        }
        // A clean-up passes '1' (has_notes), because an earlier request of this owner may have left notes.
        requests.push(request("RELEASE", &[lock], &[owner, "0", LEASE, "1", CHANNEL]));
        requests.push(request("RELEASE_ALL", &[lock, other], &[owner, CHANNEL, owner, CHANNEL]));
        requests.push(request("RENEW", &[lock], &[owner, LEASE]));
        requests.push(request("EXPIRE_IN", &[lock], &[owner, "500"]));
        let heir: &[&str] = match owner {
            PLAIN => &[LIMITED, LEASE, "5000", "there"],
            _ => &[PLAIN, LEASE, "", ""],
        };
        requests.push(request("HAND_OFF", &keys, &[&[owner], heir].concat()));
    }
    requests.push(request("CHECK_CACHED", &[lock], &[KEEPS, CHANNEL, "0"]));
    let all = |owner: &str, or_none: &str| {
        request("ACQUIRE_ALL", &LOCKS, &[or_none, "2", owner, LEASE, "0", owner, LEASE, "0"])
    };
    requests.extend([all(PLAIN, "0"), all(PLAIN, "1"), request("FORCE", &[lock], &[CHANNEL])]);
    let one = request("ACQUIRE_ALL", &[lock], &["1", "1", FRESH, LEASE, "0"]);
    Scene {
        name,
        requests,
        fresh: vec![request("ACQUIRE", &keys, &[FRESH, "1", LEASE, "barge"]), one],
        begins: vec![
            vec![],
            vec![("leasehold:about", "x")],
            vec![("leasehold:cached", ""), ("leasehold:about", "x")],
        ],
        kind: if counters { Kind::Fenced } else { Kind::Plain },
    }
}

fn fair() -> Scene {
    let parts =
        ["{l}", "redisson_lock_queue:{l}", "redisson_lock_timeout:{l}", "leasehold_lock_heartbeat:{l}"];
    let with_counter = [&parts[..], &["redisson_lock_token:{l}"]].concat();
    let acquire = |owner: &str, count: &str| {
        request("FAIR_ACQUIRE", &with_counter, &[owner, count, LEASE, "1", "600", "channel:"])
    };
    let mut requests = vec![request("FORCE", &["{l}"], &[CHANNEL])];
    for owner in [PLAIN, KEEPS] {
        requests.extend([
            acquire(owner, "1"),
            acquire(owner, "2"),
            request("RENEW", &["{l}"], &[owner, LEASE]),
        ]);
        for (left, way) in [("1", "release"), ("0", "release"), ("0", "leave")] {
            requests.push(request("FAIR_RELEASE", &parts, &[owner, left, LEASE, way, "channel:"]));
        }
    }
    Scene { name: "fair", requests, fresh: vec![acquire(FRESH, "1")], begins: vec![vec![]], kind: Kind::Fair }
}

fn read_write() -> Scene {
    let marker = |owner: &str, count: &str| format!("{{l}}:{owner}:rwlock_timeout:{count}");
    let acquire = |owner: &str, half: &str, count: &str, turn: &str| {
        let arguments = [half, owner, count, LEASE, "6000", turn, "0"];
        request("RW_ACQUIRE", &["{l}", &marker(owner, count), "{l}"], &arguments)
    };
    let mut requests = Vec::new();
    for owner in [PLAIN, KEEPS] {
        for half in ["read", "write"] {
            requests.extend([acquire(owner, half, "1", "wait"), acquire(owner, half, "2", "wait")]);
            for left in ["1", "0"] {
                let arguments = [half, owner, left, LEASE, "{l}", "", CHANNEL];
                requests.push(request("RW_RELEASE", &["{l}"], &arguments));
            }
        }
        requests.push(request("RW_RENEW", &["{l}"], &[owner, LEASE, &marker(owner, "")]));
    }
    for half in ["read", "write"] {
        requests.push(request("RW_FORCE", &["{l}"], &[half, CHANNEL]));
    }
    requests.push(request("RW_LEAVE", &["{l}"], &[&PLAIN[..36], CHANNEL]));
    let fresh = vec![acquire(FRESH, "write", "1", "barge")];
    Scene { name: "read-write", requests, fresh, begins: vec![vec![]], kind: Kind::ReadWrite }
}

const PERMITS: i64 = 2;
/// A value in the place of a script's name: no script runs, and more time than a lease passes.
const PASS: &str = "time";

/// The scene of a semaphore whose permits have no lease.
fn semaphore() -> Scene {
    let (permits, lasts) = (LOCKS[0], "5000");
    let key = |owner: &str| format!("leasehold_request:{{l}}:{owner}");
    let acquire = |owner: &str, turn: &str| {
        request("SEMAPHORE_ACQUIRE", &[permits, &key(owner)], &["1", lasts, &owner[..36], turn, "0"])
    };
    let mut requests = Vec::new();
    for owner in [PLAIN, LIMITED, KEEPS] {
        requests.push(acquire(owner, "wait"));
        for way in ["release", "undo"] {
            let arguments = ["1", lasts, way, CHANNEL];
            requests.push(request("SEMAPHORE_RELEASE", &[permits, &key(owner)], &arguments));
        }
    }
    requests.push(request("PERMITS_LEAVE", &[permits], &[&PLAIN[..36]]));
    let fresh = vec![acquire(FRESH, "barge")];
    Scene { name: "semaphore", requests, fresh, begins: vec![vec![]], kind: Kind::Semaphore(2) }
}

/// The scene of a semaphore whose permits have ids and leases, and are acquired one or two at a time.
fn permits() -> Scene {
    let keys = [LOCKS[0], OUT];
    let acquire = |client: &str, turn: &str, ids: &[&str]| {
        request("PERMITS_ACQUIRE", &keys, &[&[CHANNEL, LEASE, &client[..36], turn, "0"], ids].concat())
    };
    let mut requests = vec![request(PASS, &[], &[])];
    for (client, ids) in [(PLAIN, &["a"][..]), (PLAIN, &["b"]), (KEEPS, &["c", "d"])] {
        requests.push(acquire(client, "wait", ids));
        requests.push(request("PERMITS_RELEASE", &keys, &[&[CHANNEL], ids].concat()));
        requests.push(request("PERMITS_RENEW", &[OUT], &[&[LEASE], ids].concat()));
    }
    let fresh = vec![acquire(FRESH, "barge", &["e"])];
    Scene { name: "permits", requests, fresh, begins: vec![vec![]], kind: Kind::Semaphore(2) }
}

const OUT: &str = "{l}:timeout";

fn is_granted(script: &str, reply: &Reply) -> bool {
    // ACQUIRE_ALL adds a fence, or '', for each acquired lock, so a reply of one element acquired nothing.
    let least = if script == "ACQUIRE_ALL" { 2 } else { 1 };
    match reply {
        Reply::Text(word) => word == "granted",
        Reply::Array(items) => {
            items.first() == Some(&Reply::Text("granted".to_owned())) && items.len() >= least
        }
        _ => false,
    }
}

impl Scene {
    /// Whether a client would send the request: it releases permits without ids only after their grant.
    fn is_sent(request: &Request, server: &Server) -> bool {
        let is_release = request.0 == "SEMAPHORE_RELEASE" && request.2[2] == "release";
        !is_release || server.keys.contains_key(&request.1[1])
    }

    /// The number of permits that owners have, and how many of them have an ended lease.
    fn out(server: &Server) -> (i64, i64) {
        let (mut out, mut over) = (0, 0);
        for (key, entry) in &server.keys {
            match &entry.value {
                Value::Sorted(members) if key == OUT => {
                    let is_over = |(until, _): &&(i64, String)| *until <= server.now_ms() as i64;
                    out += members.len() as i64;
                    over += members.iter().filter(is_over).count() as i64;
                }
                Value::Text(text) if text == "granted" => out += 1,
                _ => {}
            }
        }
        (out, over)
    }

    /// The fault of the state `server`, in words; `None` if there is none. A request led from `before` to it.
    fn fault(&self, scripts: &Scripts, before: &Server, server: &Server) -> Option<String> {
        let endless = |(key, entry): &(&String, &Entry)| entry.ends_ms.is_none() && !self.kind.may_stay(key);
        if let Some((key, _)) = server.keys.iter().find(endless) {
            return Some(format!("{key} has no end"));
        }
        for lock in LOCKS {
            if owners(before, lock) > 0 && owners(server, lock) == 0 && server.keys.contains_key(lock) {
                return Some(format!("{lock} is left without an owner, which keeps Redisson out"));
            }
        }
        if let Kind::Semaphore(_) = self.kind {
            let (free, (out, over)) = (self.kind.permits(server).unwrap_or(0), Scene::out(server));
            if free + out != PERMITS {
                return Some(format!("{free} permits are free and {out} out, of {PERMITS}"));
            }
            if free + over == 0 {
                return None;
            }
        }
        // While clients wait in a fair lock's queue, a new owner cannot get it, so `fresh` is not sent.
        let is_queue = |key: &String| key.starts_with("redisson_lock_queue:");
        if owners(server, LOCKS[0]) > 0 || server.keys.keys().any(is_queue) {
            return None;
        }
        let refused = self.fresh.iter().find(|request| {
            let mut server = Server { refused: None, is_full: false, ..server.clone() };
            !is_granted(request.0, &scripts.run(&mut server, request.0, &request.1, &request.2))
        });
        refused.map(|request| format!("nobody owns it, and {} does not get it", request.0))
    }

    /// Explores all states that up to `DEPTH` requests lead to, while the server refuses the command
    /// `refused`. Returns their number, or the first fault with the requests that led to it.
    fn explore(&self, scripts: &Scripts, refused: Option<&str>) -> Result<usize, String> {
        let (mut seen, mut ahead) = (HashSet::new(), VecDeque::new());
        for fields in &self.begins {
            let (now_us, is_full) = (1_000_000_000, refused == Some(MEMORY));
            let mut server =
                Server { now_us, is_full, refused: refused.map(str::to_owned), ..Server::default() };
            if let Kind::Semaphore(_) = self.kind {
                let value = Value::Text(PERMITS.to_string());
                // The permits expire here: the scripts give the set of granted permits (`OUT`) the same
                // expiry, and `fault` reports an `OUT` without one.
                server.keys.insert(LOCKS[0].to_owned(), Entry { value, ends_ms: Some(1_060_000) });
            }
            if !fields.is_empty() {
                let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
                let value = Value::Hash(fields.iter().map(text).collect());
                server.keys.insert(LOCKS[0].to_owned(), Entry { value, ends_ms: Some(1_030_000) });
            }
            ahead.push_back((server, Vec::<String>::new()));
        }
        while let Some((server, way)) = ahead.pop_front() {
            if way.is_empty()
                && let Some(fault) = self.fault(scripts, &server, &server)
            {
                return Err(format!("{}: {fault}", self.name));
            }
            let requests = if way.len() < DEPTH { &self.requests[..] } else { &[] };
            for request in requests.iter().filter(|request| Scene::is_sent(request, &server)) {
                let mut after = server.clone();
                if request.0 == PASS {
                    after.now_us += 1_500_000;
                } else {
                    scripts.run(&mut after, request.0, &request.1, &request.2);
                }
                after.published.clear();
                after.has_written = false;
                let mut way = way.clone();
                way.push(format!("{} {:?}", request.0, request.2));
                if let Some(fault) = self.fault(scripts, &server, &after) {
                    return Err(format!("{}: {fault} after {way:#?}", self.name));
                }
                if seen.insert((after.keys.clone(), after.now_us)) {
                    ahead.push_back((after, way));
                }
            }
        }
        Ok(seen.len())
    }
}

fn scenes() -> [Scene; 6] {
    [mutex("plain", false), mutex("fenced", true), fair(), read_write(), semaphore(), permits()]
}

#[test]
fn after_any_refused_command_locks_stay_obtainable_and_keys_expire() {
    let texts = lua::load(&|_, text| text);
    for scene in scenes() {
        for knows_acl in [true, false] {
            let scripts = Scripts::new(&texts, knows_acl);
            for refused in [None, Some(MEMORY)].into_iter().chain(commands().map(Some)) {
                if let Err(fault) = scene.explore(&scripts, refused) {
                    panic!("without {refused:?}: {fault}");
                }
            }
        }
    }
}

/// Changes of scripts, in the format of [`changed`]. Each head has the scene, the file, words of the expected
/// fault and perhaps a command that the users may not run.
const MUTANTS: &str = r#"
plain | acquire_rest.lua | ACQUIRE does not get it
-   if ttl_ms ~= -2 and drop_ownerless(lock, holders) then
+   if false then

plain | acquire_all.lua | ACQUIRE_ALL does not get it
-  and not drop_ownerless(lock)

plain | release_all.lua | is left without an owner
-     redis.call('hdel', lock, 'leasehold:about', 'leasehold:cached')

plain | release.lua | is left without an owner
-   if has_notes == '1' then
+     if false then

fenced | hand_off.lua | is left without an owner
-   redis.call('hdel', lock, 'leasehold:about', 'leasehold:cached')
- elseif
+ elseif

plain | acquire.lua | has no end
-   local expiring = redis.pcall('pexpire', lock, lease_ms)
+   local expiring = 1

read-write | rw_release.lua | is left without an owner | del
-   for _, gone in ipairs(fields) do
-     redis.call('hdel', lock, gone)
-   end
+   redis.call('hdel', lock, field)
+   redis.call('del', lock)

semaphore | semaphore_acquire.lua | of 2 | decrby
-   redis.call('del', request)

semaphore | semaphore_release.lua | of 2
- if was == 'released' then
+ if false then

permits | permits_acquire.lua | of 2 | zadd
-       redis.call('incrby', permits, units)

permits | permits_release.lua | of 2
-   redis.call('zrem', acquired, unpack(back))

permits | permits_acquire.lua | does not get it
- if #back > 0 then
-   -- This write changes nothing, but fails here
+ if false then
+   -- This write changes nothing, but fails here
"#;

#[test]
fn the_exploration_without_clients_finds_each_mutated_script() {
    for change in Change::all(MUTANTS) {
        let [name, file, words, refused] = change.head();
        let texts = lua::load(&|of, text| {
            assert!(of != file || text.matches(&change.from).count() == 1, "{file}: {}", change.from);
            change.made(file, of, text)
        });
        let scene = scenes().into_iter().find(|scene| scene.name == name).expect(name);
        let refused = Some(refused).filter(|command| !command.is_empty());
        let found = scene.explore(&Scripts::new(&texts, true), refused);
        let fault = found.expect_err(&format!("{file} without {}", change.from));
        assert!(fault.contains(words), "{file} without {}: {fault}", change.from);
    }
}
