//! `doctor`'s check that the user of a Redis server has the rights that docs/permissions.md lists.
//!
//! Since Redis 7.0 the check asks ACL DRYRUN or, if the user may not call ACL, a script that calls
//! `redis.acl_check_cmd`. On older servers it tries each request, on keys of its own, which it removes.

use redis::Value;

use crate::doctor::redis::Asked;
use crate::doctor::report::Finding;
use crate::doctor::wire::{Place, Refusal, Wire, text};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    DryRun,
    Script,
    Trial,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Locks,
    Notices,
    Names,
    WaitQueue,
    Directory,
}

impl Need {
    const ALL: [Need; 5] = [Need::Locks, Need::Notices, Need::Names, Need::WaitQueue, Need::Directory];

    fn without(self) -> &'static str {
        match self {
            Need::Locks => "without this right fenced locks fail",
            Need::Notices => "without this right waiters notice a release only by polling",
            Need::Names => "without this right errors do not name the holder",
            Need::WaitQueue => "without this right each release wakes all clients that wait",
            Need::Directory => "without this right others do not see where a holder is",
        }
    }
}

type Request = (Need, Vec<String>);

/// Of the requests below, the commands that create keys without an expiry.
const LASTING: [&str; 3] = ["HSET", "INCR", "ZADD"];

const CHECK: &str = "rights";
const ADVICE: &str =
    "See docs/permissions.md for the rights of each kind of lock; --name checks those for another name";

pub(super) fn check(wire: &mut Wire, place: &Place, asked: &Asked<'_>, is_replica: bool) -> (Finding, bool) {
    let way = match way(wire) {
        Ok(way) => way,
        Err(Refusal::Silent) => return (Finding::fault(CHECK, Refusal::Silent.to_string(), ""), false),
        Err(_) => Way::Trial,
    };
    if way == Way::Trial && is_replica {
        return (
            Finding::not_checked(CHECK, "rights are checked by requests, which a replica refuses"),
            false,
        );
    }
    let name = match way {
        Way::Trial => asked.own_name.clone(),
        Way::DryRun | Way::Script => asked.name.to_owned(),
    };
    let user = text(&wire.ask(&["ACL", "WHOAMI"]).unwrap_or(Value::Nil));
    let mut requests = requests(&name);
    let mut missing: Vec<(Need, String)> = Vec::new();
    // A user who may not delete keys could not remove a key without an expiry, so the trial creates none.
    if way == Way::Trial && wire.ask(&["DEL", &name]) == Err(Refusal::NoRight) {
        let is_made = |words: &[String]| words.first().is_some_and(|word| LASTING.contains(&word.as_str()));
        requests.retain(|(_, words)| !is_made(words));
    }
    for (need, words) in &requests {
        let words = strs(words);
        let allowed = match way {
            Way::DryRun => dry_run(wire, &user, &words),
            Way::Script => in_script(wire, &words),
            Way::Trial => tried(wire, place, asked, &words),
        };
        match allowed {
            Ok(true) => {}
            Ok(false) => missing.push((*need, shown(&words, &name))),
            Err(refusal) => return (Finding::fault(CHECK, refusal.to_string(), ""), false),
        }
    }
    if way == Way::Trial {
        for key in [name.clone(), own("redisson_lock_token", &name), own("leasehold_lock_queue", &name)] {
            drop(wire.ask(&["DEL", &key]));
        }
    }
    // TIME concerns no key, so a user who may call only TIME counts as without any right on this name.
    let is_allowed = |request: &&Request| {
        request.0 == Need::Locks
            && !missing.iter().any(|(_, command)| *command == shown(&strs(&request.1), &name))
    };
    let has_none = requests.iter().filter(is_allowed).all(|(_, words)| strs(words) == ["TIME"]);
    (finding(way, asked.name, &missing, has_none), has_none)
}

fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn finding(way: Way, name: &str, missing: &[(Need, String)], has_none: bool) -> Finding {
    let how = match way {
        Way::DryRun => "asked by ACL DRYRUN",
        Way::Script => "asked in a script",
        Way::Trial => "tried on keys of its own",
    };
    if missing.is_empty() {
        return Finding::fine(CHECK, format!("all for locks with fences named {name} ({how})"));
    }
    let groups = Need::ALL.into_iter().filter_map(|need| {
        let mut commands: Vec<&str> = Vec::new();
        for (_, command) in missing.iter().filter(|(of, _)| *of == need) {
            if !commands.contains(&command.as_str()) {
                commands.push(command);
            }
        }
        (!commands.is_empty()).then(|| format!("{}: {}", commands.join(", "), need.without()))
    });
    let words = if has_none {
        format!("the user may do nothing with locks named {name} ({how})")
    } else {
        format!("the user may not {} ({how})", groups.collect::<Vec<_>>().join("; "))
    };
    let is_fault = missing.iter().any(|(need, _)| *need == Need::Locks);
    let found = if is_fault { Finding::fault } else { Finding::warning };
    let missing: Vec<&str> = missing.iter().map(|(_, command)| command.as_str()).collect();
    found(CHECK, words, ADVICE).with("missing", missing)
}

fn shown(words: &[&str], name: &str) -> String {
    let command = words.first().copied().unwrap_or_default();
    let keys = if command.starts_with("EVAL") { words.get(4..5) } else { words.get(1..2) };
    match keys.and_then(|keys| keys.first()) {
        Some(key) if *key != name => format!("{command} {key}"),
        _ => command.to_owned(),
    }
}

fn way(wire: &mut Wire) -> Result<Way, Refusal> {
    let user = text(&wire.ask(&["ACL", "WHOAMI"]).unwrap_or(Value::Nil));
    if !user.is_empty() && wire.ask(&["ACL", "DRYRUN", &user, "GET", "key"]).is_ok() {
        return Ok(Way::DryRun);
    }
    match wire.ask(&["EVAL", "return redis.acl_check_cmd and 1 or 0", "0"])? {
        Value::Int(1) => Ok(Way::Script),
        _ => Ok(Way::Trial),
    }
}

fn dry_run(wire: &mut Wire, user: &str, words: &[&str]) -> Result<bool, Refusal> {
    match wire.ask(&[&["ACL", "DRYRUN", user], words].concat()) {
        Ok(answer) => Ok(text(&answer) == "OK"),
        Err(Refusal::Silent) => Err(Refusal::Silent),
        Err(_) => Ok(false),
    }
}

fn in_script(wire: &mut Wire, words: &[&str]) -> Result<bool, Refusal> {
    const ASK: &str = "return redis.acl_check_cmd(unpack(ARGV)) and 1 or 0";
    Ok(wire.ask(&[&["EVAL", ASK, "0"], words].concat())? == Value::Int(1))
}

fn tried(wire: &mut Wire, place: &Place, asked: &Asked<'_>, words: &[&str]) -> Result<bool, Refusal> {
    let is_subscription = words.first().is_some_and(|word| word.ends_with("SUBSCRIBE"));
    // A connection that has subscribed refuses other commands, so each subscription uses a new one.
    let answer = if is_subscription { place.connect(asked.limit)?.ask(words) } else { wire.ask(words) };
    match answer {
        Err(Refusal::NoRight) => Ok(false),
        Err(Refusal::Silent) => Err(Refusal::Silent),
        _ => Ok(true),
    }
}

/// A key or channel of this lock name: `part` is its prefix, as in the library's `src/ident/derived.rs`.
pub(super) fn own(part: &str, name: &str) -> String {
    if name.contains('{') { format!("{part}:{name}") } else { format!("{part}:{{{name}}}") }
}

/// The requests of a client for locks of this name. Their order matters when they are tried: if a request
/// creates a key without an expiry, a later one gives the key an expiry or deletes it.
fn requests(name: &str) -> Vec<Request> {
    let (channel, token) = (own("redisson_lock__channel", name), own("redisson_lock_token", name));
    let (queue, next) = (own("leasehold_lock_queue", name), own("leasehold_lock_next", name));
    let wake = format!("{}:leasehold-doctor", own("leasehold_wake", name));
    let entry = "leasehold_client:leasehold-doctor";
    let hash = redis::Script::new("return 1").get_hash().to_owned();
    let requests: [(Need, &[&str]); 33] = [
        (Need::Locks, &["EVAL", "return 1", "1", name]),
        (Need::Locks, &["EVALSHA", &hash, "1", name]),
        (Need::Locks, &["HSET", name, "field", "1"]),
        (Need::Locks, &["PEXPIRE", name, "1000"]),
        (Need::Locks, &["HEXISTS", name, "field"]),
        (Need::Locks, &["HGET", name, "field"]),
        (Need::Names, &["HKEYS", name]),
        (Need::Locks, &["HDEL", name, "field"]),
        (Need::Locks, &["PTTL", name]),
        (Need::Locks, &["GET", name]),
        (Need::Locks, &["SET", name, "1", "PX", "1000"]),
        (Need::Locks, &["DEL", name]),
        (Need::Locks, &["TIME"]),
        (Need::Locks, &["INCR", &token]),
        (Need::Locks, &["GET", &token]),
        (Need::Locks, &["SET", &token, "1", "PX", "1000"]),
        (Need::Notices, &["PUBLISH", &channel, "0"]),
        (Need::Notices, &["SUBSCRIBE", &channel]),
        (Need::Notices, &["UNSUBSCRIBE", &channel]),
        (Need::WaitQueue, &["ZADD", &queue, "1", "member"]),
        (Need::WaitQueue, &["PEXPIRE", &queue, "1000"]),
        (Need::WaitQueue, &["ZRANGE", &queue, "0", "0"]),
        (Need::WaitQueue, &["ZREM", &queue, "other"]),
        (Need::WaitQueue, &["ZPOPMIN", &queue]),
        (Need::WaitQueue, &["SET", &next, "1", "PX", "1000"]),
        (Need::WaitQueue, &["GET", &next]),
        (Need::WaitQueue, &["PEXPIRE", &next, "0"]),
        (Need::WaitQueue, &["PUBLISH", &wake, "1"]),
        (Need::WaitQueue, &["SUBSCRIBE", &wake]),
        (Need::WaitQueue, &["UNSUBSCRIBE", &wake]),
        (Need::Directory, &["SET", entry, "", "PX", "1000"]),
        (Need::Directory, &["DEL", entry]),
        (Need::Locks, &["DEL", name]),
    ];
    requests
        .into_iter()
        .map(|(need, words)| (need, words.iter().map(|word| (*word).to_owned()).collect()))
        .collect()
}
