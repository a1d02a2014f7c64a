//! A list of the store's locks, as an object for programs and as numbers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use leasehold::{ClientInfo, Error, LastRun, ListedLock, LockClient};
use serde_json::{Map, Value, json};

use crate::clock::Moment;
use crate::list::lock_as_json;
use crate::rings;
use crate::serve::fresh::{Progress, Seen};

/// The number of locks that are listed by name; all are counted.
const MOST_LOCKS: usize = 10_000;
/// The most of a lock's waiters that are named.
const MOST_WAITERS: usize = 100;
/// The number of groups that have numbers of their own, and the longest name of one.
const MOST_GROUPS: usize = 64;
const LONGEST_GROUP: usize = 100;
/// The group of locks that have no other.
const OTHER: &str = "other";

/// The locks of the store at one moment, more or less.
pub(crate) struct Listing {
    /// The fields of the object for programs that do not change with its age, each with a comma before it.
    fields: String,
    pub(crate) groups: BTreeMap<String, Group>,
    /// The jobs that were asked for, with the last run of each that has one, and whether it runs now.
    pub(crate) jobs: Vec<Job>,
    pub(crate) requests: u64,
    pub(crate) keys: u64,
    pub(crate) took: Duration,
}

/// A job of `once`.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) last: Option<LastRun>,
    pub(crate) runs: bool,
}

/// The locks whose names begin alike.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Group {
    pub(crate) held: u64,
    pub(crate) waiting: u64,
    pub(crate) without_end: u64,
    /// Of those whose holders say since when.
    pub(crate) oldest: Option<Duration>,
}

/// The groups that have numbers of their own: the first that were seen, so that series neither come and go
/// nor grow in number.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    known: BTreeSet<String>,
}

impl Groups {
    /// A name's text before its first colon.
    fn of(&mut self, name: &str) -> String {
        let Some((group, _)) = name.split_once(':') else { return OTHER.to_owned() };
        let group: String = group.chars().take(LONGEST_GROUP).collect();
        if !self.known.contains(&group) {
            if self.known.len() >= MOST_GROUPS {
                return OTHER.to_owned();
            }
            self.known.insert(group.clone());
        }
        group
    }

    /// Each of them, with nothing in it yet.
    fn empty(&self) -> BTreeMap<String, Group> {
        let names = self.known.iter().cloned().chain([OTHER.to_owned()]);
        names.map(|name| (name, Group::default())).collect()
    }
}

/// Asks the store.
pub(crate) fn list(
    client: &LockClient,
    groups: &mut Groups,
    jobs: &[String],
    progress: &Progress<'_>,
) -> Result<Listing, Error> {
    let start = Moment::now();
    let mut counted = groups.empty();
    let (mut shown, mut found, mut waiting) = (Vec::new(), 0_u64, 0_u64);
    let mut owners: HashMap<String, String> = HashMap::new();
    let mut locks = client.list("*");
    for lock in locks.by_ref() {
        let lock = lock?;
        progress.report();
        found += 1;
        waiting += lock.waiting;
        counted.entry(groups.of(&lock.name)).or_default().add(&lock);
        if let Some(holder) = lock.holders.first().filter(|_| jobs.contains(&lock.name)) {
            owners.insert(lock.name.clone(), holder.owner.clone());
        }
        if shown.len() < MOST_LOCKS {
            shown.push(lock);
        }
    }
    let cost = locks.cost();
    let (mut requests, mut keys) = (cost.requests, cost.keys);
    let mut told = Vec::with_capacity(jobs.len());
    for name in jobs {
        let last = client.last_run(name)?;
        progress.report();
        requests += 1;
        // An owner that has run the job keeps others from it for a while.
        let runs =
            owners.get(name).is_some_and(|owner| last.as_ref().is_none_or(|last| last.owner != *owner));
        told.push(Job { name: name.clone(), last, runs });
    }
    let mut waiters = Waiters::default();
    let mut deadlocks = Vec::new();
    if shown.iter().any(|lock| lock.waiting > 0) {
        let mut clients = client.clients();
        for one in clients.by_ref() {
            // A user without rights to the clients' own accounts has the locks all the same.
            let Ok(one) = one else { break };
            progress.report();
            waiters.add(&one);
        }
        if waiters.may_be_deadlocked {
            deadlocks = rings::seen(client);
        }
        requests += clients.cost().requests;
        keys += clients.cost().keys;
    }
    let took = Moment::now().since(start);
    shown.sort_by(|one, other| one.name.cmp(&other.name));
    let mut fields = String::new();
    for (field, value) in [
        ("found", json!(found)),
        ("unlisted", json!(found.saturating_sub(u64::try_from(shown.len()).unwrap_or(u64::MAX)))),
        ("waiting", json!(waiting)),
        ("requests", json!(requests)),
        ("keys", json!(keys)),
        ("took_seconds", json!(took.as_secs_f64())),
        ("deadlocks", rings::all_as_json(&deadlocks)),
        ("locks", shown.iter().map(|lock| waiters.with(lock)).collect()),
    ] {
        fields += &format!(",\"{field}\":{value}");
    }
    Ok(Listing { fields, groups: counted, jobs: told, requests, keys, took })
}

impl Group {
    fn add(&mut self, lock: &ListedLock) {
        self.held += 1;
        self.waiting += lock.waiting;
        self.without_end += u64::from(lock.remaining == Some(Duration::MAX));
        self.oldest = self.oldest.max(lock.holders.iter().filter_map(|holder| holder.held_for).max());
    }
}

/// Those who say that they wait, by the lock's name. The longest wait is first.
#[derive(Default)]
struct Waiters {
    by_name: HashMap<String, Vec<(Duration, Value)>>,
    /// A client waits that holds something too, as all members of a deadlock do.
    may_be_deadlocked: bool,
}

impl Waiters {
    fn add(&mut self, client: &ClientInfo) {
        self.may_be_deadlocked |=
            client.uses.iter().any(|one| one.waits) && client.uses.iter().any(|one| !one.waits);
        for one in client.uses.iter().filter(|one| one.waits) {
            let known = |text: &String| (!text.is_empty()).then_some(text.clone());
            let waiter = json!({
                "owner": format!("{}:{}", client.id, one.owner),
                "host": known(&client.host),
                "pid": client.pid,
                "program": known(&client.program),
                "label": client.label,
                "thread": known(&one.thread),
                "waiting_for_seconds": one.since.as_secs_f64(),
            });
            self.by_name.entry(one.name.clone()).or_default().push((one.since, waiter));
        }
    }

    fn with(&mut self, lock: &ListedLock) -> Value {
        let mut waiters = self.by_name.remove(&lock.name).unwrap_or_default();
        waiters.sort_by(|(one, _), (other, _)| other.cmp(one));
        let waiters: Vec<Value> = waiters.into_iter().map(|(_, waiter)| waiter).take(MOST_WAITERS).collect();
        let mut object = match lock_as_json(lock) {
            Value::Object(object) => object,
            _ => Map::new(),
        };
        object.insert("waiters".to_owned(), json!(waiters));
        Value::Object(object)
    }
}

/// The object for programs, with the last locks that are known, also where the store is in trouble.
pub(crate) fn as_json(seen: &Seen<Listing>) -> String {
    let error = json!(seen.trouble.map(|trouble| trouble.words()));
    let error_for = json!(seen.trouble.map(|trouble| trouble.lasting.as_secs_f64()));
    let age = json!(seen.last.as_ref().map(|(_, age)| age.as_secs_f64()));
    let fields = seen.last.as_ref().map_or(",\"deadlocks\":[],\"locks\":[]", |(listing, _)| &listing.fields);
    format!("{{\"error\":{error},\"error_for_seconds\":{error_for},\"age_seconds\":{age}{fields}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_what_is_before_the_first_colon_and_there_are_64() {
        let mut groups = Groups::default();
        assert_eq!(groups.of("orders:7:lines"), "orders");
        assert_eq!(groups.of("nightly-import"), OTHER);
        for number in 0..1000 {
            groups.of(&format!("g{number}:x"));
        }
        assert_eq!(groups.of("g5:y"), "g5");
        assert_eq!(groups.of("g900:y"), OTHER);
        assert_eq!(groups.of("orders:8"), "orders");
        assert_eq!(groups.empty().len(), MOST_GROUPS + 1);
        let mut groups = Groups::default();
        assert_eq!(groups.of(&format!("{}:x", "é".repeat(1000))), "é".repeat(LONGEST_GROUP));
    }

    #[test]
    fn the_object_is_json_with_and_without_locks() {
        let client = LockClient::in_memory();
        let _guard = client.get_lock("a:1").acquire().unwrap();
        let listing = list(&client, &mut Groups::default(), &[], &Progress::none()).unwrap();
        assert_eq!(listing.groups.get("a").map(|group| group.held), Some(1));
        let seen = |last| Seen { last, trouble: None, made_total: 0, failed_total: 0 };
        let text = as_json(&seen(Some((std::sync::Arc::new(listing), Duration::from_secs(2)))));
        let object: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&object["locks"][0]["name"], &object["age_seconds"]), (&json!("a:1"), &json!(2.0)));
        assert_eq!(object["locks"][0]["waiters"], json!([]));
        let object: Value = serde_json::from_str(&as_json(&seen(None))).unwrap();
        assert_eq!((&object["locks"], &object["age_seconds"]), (&json!([]), &Value::Null));
    }
}
