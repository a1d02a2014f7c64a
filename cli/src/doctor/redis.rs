//! The checks of one Redis or Valkey server.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::{Moment, wall};
use crate::doctor::report::{Finding, Report};
use crate::doctor::wire::{Place, Refusal, Wire, list, pairs, text};
use crate::doctor::{Latency, add_latency, reached, rights, spell};

const OLDEST: (u32, u32) = (6, 2);

const CLOCKS_AGREE: f64 = 1.0;

const SCRIPT: &str = "return ARGV[1]";

pub(super) struct Asked<'a> {
    pub(super) name: &'a str,
    /// A lock name that only this run of `doctor` uses. It begins with `name`, so rights on a prefix of
    /// `name` cover it too.
    pub(super) own_name: String,
    pub(super) lease: Duration,
    pub(super) limit: Duration,
    pub(super) is_cluster: bool,
}

const REST: [&str; 9] =
    ["rights", "persistence", "eviction", "replicas", "clock", "scripts", "pub/sub", "latency", "lease"];

pub(super) fn check(report: &mut Report, place: &Place, asked: &Asked<'_>) -> bool {
    let begun = Moment::now();
    let connected = place.connect(asked.limit).and_then(|mut wire| {
        let greeting = wire.ask(&["HELLO"]);
        if greeting == Err(Refusal::Silent) { Err(Refusal::Silent) } else { Ok((wire, greeting)) }
    });
    let (mut wire, greeting) = match connected {
        Ok(connected) => connected,
        Err(refusal) => {
            report.add(Finding::fault(
                "reach",
                refusal.to_string(),
                "Is the server up, and can it be reached from here?",
            ));
            none_of(report, &["version", "role"], "the server cannot be reached");
            none_of(report, &REST, "the server cannot be reached");
            return false;
        }
    };
    let took = Moment::now().since(begun);
    report.add(reached(took));
    let greeting = greeting.map(|answer| pairs(&answer)).unwrap_or_default();
    if !version(report, &mut wire, &greeting) {
        none_of(report, &["role"], "the server is too old");
        none_of(report, &REST, "the server is too old");
        return false;
    }
    if greeting.get("mode").is_some_and(|mode| mode == "sentinel") {
        let advice = "Give the URL redis-sentinel://host,host/master-name";
        report.add(Finding::fault("role", "a Sentinel, which keeps no locks", advice));
        none_of(report, &REST, "the server keeps no locks");
        return false;
    }
    let is_replica = role(report, &greeting, asked);
    let (finding, has_none) = rights::check(&mut wire, place, asked, is_replica);
    report.add(finding);
    report.add(info(&mut wire, "persistence", "persistence", persistence));
    report.add(info(&mut wire, "eviction", "memory", |_, info| eviction(info)));
    report.add(info(&mut wire, "replicas", "replication", |_, info| replicas(info)));
    report.add(clock(&mut wire).unwrap_or_else(|found| found));
    let hash = scripts(report, &mut wire);
    report.add(messages(&mut wire, place, asked));
    let latency = match hash {
        Some(hash) => Latency::measure(|| wire.ask(&["EVALSHA", &hash, "0", "x"]).map(drop)),
        None => Latency::measure(|| wire.ask(&["TIME"]).map(drop)),
    };
    add_latency(report, latency.map_err(|refusal| failed("latency", &refusal)), asked.lease, asked.limit);
    has_none
}

pub(super) fn none_of(report: &mut Report, checks: &[&'static str], why: &str) {
    for check in checks {
        report.add(Finding::not_checked(check, why));
    }
}

/// The finding if a check's request failed: a fault if the server is silent, otherwise "not checked".
pub(super) fn failed(check: &'static str, refusal: &Refusal) -> Finding {
    match refusal {
        Refusal::Silent => Finding::fault(check, refusal.to_string(), ""),
        _ => Finding::not_checked(check, refusal.to_string()),
    }
}

fn version(report: &mut Report, wire: &mut Wire, greeting: &HashMap<String, String>) -> bool {
    const ADVICE: &str = "Install Redis 6.2 or later, or Valkey";
    let mut version = greeting.get("version").cloned().unwrap_or_default();
    // Servers before 6.0 and some proxies do not answer HELLO with a version, so `doctor` sends INFO.
    let greets = !version.is_empty();
    if !greets {
        version =
            wire.info("server").ok().and_then(|info| info.get("redis_version").cloned()).unwrap_or_default();
    }
    let is_valkey = greeting.get("server").is_some_and(|server| server == "valkey");
    let name = if is_valkey { "Valkey" } else { "Redis" };
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    let number = numbers.next().flatten().zip(numbers.next().flatten());
    let is_old = !is_valkey && number.is_some_and(|number| number < OLDEST);
    let is_too_old = !greets || is_old;
    let words = match (is_old, greets, version.as_str()) {
        (true, ..) => format!("{name} {version} is older than 6.2, the oldest that is supported"),
        (false, false, "") => {
            "the server does not know HELLO: it is older than Redis 6.0, or a proxy stands in front of it"
                .to_owned()
        }
        (false, false, _) => format!("{name} {version}, and a proxy before it that does not know HELLO"),
        (false, true, _) => format!("{name} {version}"),
    };
    let advice = if is_old { ADVICE } else { "Give the address of the server itself" };
    let found =
        if is_too_old { Finding::fault("version", words, advice) } else { Finding::fine("version", words) };
    report.add(found.with("version", version));
    !is_too_old
}

fn role(report: &mut Report, greeting: &HashMap<String, String>, asked: &Asked<'_>) -> bool {
    let field = |name: &str| greeting.get(name).map(String::as_str).unwrap_or_default();
    let is_replica = matches!(field("role"), "replica" | "slave");
    let found = if is_replica {
        Finding::fault(
            "role",
            "a replica, which refuses locks",
            "Name the primary in LEASEHOLD_URL, or its Sentinels: redis-sentinel://host,host/master-name",
        )
    } else if field("mode") == "cluster" && !asked.is_cluster {
        Finding::warning(
            "role",
            "a member of a cluster that is used as one server: it refuses names of other members' slots",
            "Use redis-cluster://",
        )
    } else {
        Finding::fine("role", "a primary")
    };
    report.add(found);
    is_replica
}

fn info(
    wire: &mut Wire,
    check: &'static str,
    section: &str,
    find: impl FnOnce(&mut Wire, &HashMap<String, String>) -> Finding,
) -> Finding {
    match wire.info(section) {
        Ok(info) => find(wire, &info),
        Err(Refusal::NoRight) => Finding::not_checked(check, "the user may not ask for INFO"),
        Err(refusal) => failed(check, &refusal),
    }
}

fn persistence(wire: &mut Wire, info: &HashMap<String, String>) -> Finding {
    const CHECK: &str = "persistence";
    const ADVICE: &str = "Turn on appendonly, or let what the lock protects refuse old fencing tokens";
    let is = |field: &str, value: &str| info.get(field).is_some_and(|found| found == value);
    if is("rdb_last_bgsave_status", "err") || is("aof_last_write_status", "err") {
        let words = "the last write to the disk failed: the server may refuse all writes";
        return Finding::warning(CHECK, words, "Look at the server's log and its disk");
    }
    if is("aof_enabled", "1") {
        return match wire.setting("appendfsync").as_deref() {
            Some("always") => Finding::fine(CHECK, "append-only file, on the disk before each answer"),
            Some("no") => Finding::warning(
                CHECK,
                "append-only file, written to the disk when the system likes: a crash of the machine forgets the last locks, while their holders go on",
                "Set appendfsync to everysec or always, or let what the lock protects refuse old fencing tokens",
            ),
            _ => Finding::fine(
                CHECK,
                "append-only file: a crash of the machine forgets the locks of about the last second",
            ),
        };
    }
    match wire.setting("save").as_deref() {
        Some("") => {
            Finding::warning(CHECK, "none: a restart forgets all locks, while their holders go on", ADVICE)
        }
        Some(_) => {
            let words = "snapshots: a crash forgets the locks since the last one, while their holders go on";
            Finding::warning(CHECK, words, ADVICE)
        }
        None => {
            let words = "no append-only file: a crash forgets the locks since the last snapshot, if there is one, while their holders go on";
            Finding::warning(CHECK, words, ADVICE)
        }
    }
}

fn eviction(info: &HashMap<String, String>) -> Finding {
    const CHECK: &str = "eviction";
    const ADVICE: &str = "Set maxmemory-policy to noeviction, or keep locks on a server of their own";
    let (Some(policy), limit) = (info.get("maxmemory_policy"), info.get("maxmemory")) else {
        return Finding::not_checked(CHECK, "the server does not say");
    };
    let has_limit = limit.is_some_and(|limit| limit != "0");
    let found = match (policy.as_str(), has_limit) {
        ("noeviction", _) => Finding::fine(CHECK, "noeviction"),
        (_, true) => {
            let words = format!("{policy}: a server whose memory is full evicts locks that are held");
            Finding::fault(CHECK, words, ADVICE)
        }
        (_, false) => {
            let words = format!("{policy}: it would evict locks that are held if maxmemory were set");
            Finding::warning(CHECK, words, ADVICE)
        }
    };
    found.with("policy", policy.clone())
}

fn replicas(info: &HashMap<String, String>) -> Finding {
    const CHECK: &str = "replicas";
    let count = info.get("connected_slaves").and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
    let lags = (0..count).filter_map(|number| info.get(&format!("slave{number}"))).map(|line| {
        let fields: HashMap<&str, &str> = line.split(',').filter_map(|field| field.split_once('=')).collect();
        let is_online = fields.get("state") == Some(&"online");
        fields.get("lag").and_then(|lag| lag.parse::<u64>().ok()).filter(|_| is_online)
    });
    let lags: Vec<Option<u64>> = lags.collect();
    let words = "a failover forgets locks that had not reached the replica, while their holders go on";
    let found = if count == 0 {
        Finding::fine(CHECK, "none: no other server takes over")
    } else if lags.iter().any(|lag| lag.is_none_or(|lag| lag > 5)) {
        let words = format!("{count}, not all of which keep up: {words}");
        Finding::warning(CHECK, words, "Look at the replicas' logs and the network between")
    } else {
        Finding::fine(
            CHECK,
            format!("{count}: {words}. Fencing tokens help, or require_replicas() in programs (WAIT)"),
        )
    };
    found.with("replicas", count)
}

fn clock(wire: &mut Wire) -> Result<Finding, Finding> {
    let mut best: Option<(Duration, f64)> = None;
    for _ in 0..5 {
        let before = wall().as_secs_f64();
        let (answer, took) = wire.timed(&["TIME"]).map_err(|refusal| failed("clock", &refusal))?;
        let words: Vec<f64> = list(&answer).iter().filter_map(|word| text(word).parse().ok()).collect();
        let [seconds, micros] = words.as_slice() else {
            return Err(Finding::not_checked("clock", "the answer to TIME is not a time"));
        };
        let difference = seconds + micros / 1e6 - (before + took.as_secs_f64() / 2.0);
        if best.is_none_or(|(fastest, _)| took < fastest) {
            best = Some((took, difference));
        }
    }
    let (took, difference) = best.ok_or_else(|| Finding::not_checked("clock", "no answer"))?;
    Ok(clock_finding(difference, took / 2))
}

/// Judges the server's clock, which is `ahead` seconds ahead of this machine's, give or take `unsure`.
pub(super) fn clock_finding(ahead: f64, unsure: Duration) -> Finding {
    let words = format!(
        "the server's clock is {:.3} s {} this machine's",
        ahead.abs(),
        if ahead < 0.0 { "behind" } else { "ahead of" }
    );
    let found = if ahead.abs() - unsure.as_secs_f64() > CLOCKS_AGREE {
        Finding::warning(
            "clock",
            words,
            "Let both be set by NTP. Leases here run by the server's clock alone; fair locks of Redisson and times that people compare do not",
        )
    } else {
        Finding::fine("clock", words)
    };
    found.with("seconds", ahead)
}

fn scripts(report: &mut Report, wire: &mut Wire) -> Option<String> {
    let hash = redis::Script::new(SCRIPT).get_hash().to_owned();
    let ran = wire.ask(&["EVAL", SCRIPT, "0", "x"]).and_then(|_| wire.ask(&["EVALSHA", &hash, "0", "x"]));
    let (found, runs) = match ran {
        Ok(answer) if text(&answer) == "x" => (Finding::fine("scripts", "EVAL and EVALSHA run"), true),
        Ok(_) => (Finding::fault("scripts", "a script gave another answer than it should", ""), false),
        Err(refusal) => {
            let advice = "Allow EVAL and EVALSHA: locks of other kinds than token locks need them";
            (Finding::fault("scripts", refusal.to_string(), advice), false)
        }
    };
    report.add(found);
    runs.then_some(hash)
}

fn messages(wire: &mut Wire, place: &Place, asked: &Asked<'_>) -> Finding {
    const CHECK: &str = "pub/sub";
    const ADVICE: &str = "Waiters notice a release only by polling: allow PUBLISH and SUBSCRIBE on the channels of docs/permissions.md";
    let channel = rights::own("redisson_lock__channel", &asked.own_name);
    let heard = (|| {
        let mut listener = place.connect(asked.limit)?;
        let mut subscription = listener.connection().as_pubsub();
        subscription.subscribe(&channel).map_err(|error| Refusal::from(&error))?;
        let begun = Moment::now();
        wire.ask(&["PUBLISH", &channel, "0"])?;
        subscription.get_message().map_err(|error| Refusal::from(&error))?;
        Ok(Moment::now().since(begun))
    })();
    match heard {
        Ok(took) => {
            let words = format!("a message came back within {}", spell(took));
            Finding::fine(CHECK, words).with("seconds", took.as_secs_f64())
        }
        Err(Refusal::Silent) => {
            Finding::warning(CHECK, format!("no message came back within {}", spell(asked.limit)), ADVICE)
        }
        Err(refusal) => Finding::warning(CHECK, refusal.to_string(), ADVICE),
    }
}
