//! A list of the store's locks, as JSON and as metrics.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use leasehold::program::MAY_BE_DEADLOCKED;
use leasehold::{ClientInfo, Error, Holder, LastRun, ListedLock, LockClient, ObjectKind};
use serde_json::{Map, Value, json};

use crate::args::ServeArgs;
use crate::clock::{Moment, wall};
use crate::cycles;
use crate::job::{self, State};
use crate::list::{has_no_end, lock_as_json};
use crate::serve::fresh::{Progress, Seen, Trouble};

const MOST_LOCKS: usize = 10_000;
const MOST_WAITERS: usize = 100;
const MOST_GROUPS: usize = 64;
const LONGEST_GROUP: usize = 100;
const OTHER: &str = "other";
const SHARE: u32 = 100;
/// The store's processor time, measured on Redis 7, to list a key that is no lock (`LOCK_COST`: a lock).
const KEY_COST: Duration = Duration::from_micros(2);
const LOCK_COST: Duration = Duration::from_micros(20);
/// A run's end is computed from two clocks, so it may differ between lists, by less than this many seconds.
const JITTER: u64 = 2;

pub(crate) struct Listing {
    /// The JSON fields that do not change with the list's age, with a comma before each.
    pub(super) fields: String,
    pub(crate) groups: BTreeMap<(String, Use), Group>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) deadlocks: [usize; 2],
    pub(crate) requests: u64,
    pub(crate) keys: u64,
    pub(crate) took: Duration,
}

pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) last: Option<LastRun>,
    /// When the job's last run ended (`succeeded`: the last successful one), in seconds since 1970. 0: none
    /// in the last 40 days.
    pub(crate) ended: u64,
    pub(crate) succeeded: u64,
    owner: Option<String>,
}

pub(crate) struct Lists {
    client: LockClient,
    pattern: String,
    interval: Option<Duration>,
    groups: Groups,
    jobs: Vec<(String, u64, u64)>,
}

/// How a lock is used: the label `kind` of the metrics. Alerts on long holds or many waiters are for `Lock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    Lock,
    /// A lock whose hold ends by itself: a job of `once`, or `--max-hold`.
    Bounded,
    Leader,
    Permits,
}

impl Use {
    fn of(lock: &ListedLock) -> Use {
        if matches!(lock.kind, ObjectKind::ExpirableSemaphore | ObjectKind::Semaphore) {
            return Use::Permits;
        }
        let all = |is_such: fn(&Holder) -> bool| !lock.holders.is_empty() && lock.holders.iter().all(is_such);
        if all(|holder| holder.is_leader) {
            Use::Leader
        } else if all(|holder| holder.ends_within.is_some()) {
            Use::Bounded
        } else {
            Use::Lock
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Use::Lock => "lock",
            Use::Bounded => "bounded",
            Use::Leader => "leader",
            Use::Permits => "permits",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Group {
    pub(crate) held: u64,
    pub(crate) waiting: u64,
    pub(crate) without_end: u64,
    pub(crate) oldest: Option<Duration>,
}

/// The groups (the texts before the colon in lock names) that have metrics of their own: the first ones seen.
/// All others share the group `other`, so the number of series is bounded, and no series comes and goes.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    known: BTreeSet<String>,
    used: BTreeSet<(String, Use)>,
}

impl Groups {
    fn of(&mut self, lock: &ListedLock) -> (String, Use) {
        let group = (self.of_name(&lock.name), Use::of(lock));
        if !self.used.contains(&group) {
            self.used.insert(group.clone());
        }
        group
    }

    fn of_name(&mut self, name: &str) -> String {
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

    fn empty(&self) -> BTreeMap<(String, Use), Group> {
        let names = self.known.iter().cloned().chain([OTHER.to_owned()]);
        let all = names.map(|name| (name, Use::Lock)).chain(self.used.iter().cloned());
        all.map(|group| (group, Group::default())).collect()
    }
}

impl Lists {
    pub(crate) fn new(client: &LockClient, args: &ServeArgs) -> Lists {
        Lists {
            client: client.clone(),
            pattern: args.pattern.clone(),
            interval: args.interval,
            groups: Groups::default(),
            jobs: args.jobs.iter().map(|name| (name.clone(), 0, 0)).collect(),
        }
    }

    pub(crate) fn list(&mut self, progress: Progress<'_>) -> Result<(Listing, Duration), Error> {
        let start = Moment::now();
        let mut counted = self.groups.empty();
        let (mut shown, mut found, mut waiting) = (Vec::new(), 0_u64, 0_u64);
        let mut owners: HashMap<String, String> = HashMap::new();
        let mut locks = self.client.list(&self.pattern);
        while let Some(page) = locks.next_page() {
            for lock in page? {
                found += 1;
                waiting += lock.waiting;
                counted.entry(self.groups.of(&lock)).or_default().add(&lock);
                if let Some(holder) = lock.holders.first()
                    && self.jobs.iter().any(|(job, ..)| *job == lock.name)
                {
                    owners.insert(lock.name.clone(), holder.owner.clone());
                }
                if shown.len() < MOST_LOCKS {
                    shown.push(lock);
                }
            }
            progress(locks.cost().keys);
        }
        let cost = locks.cost();
        let (mut requests, mut keys) = (cost.requests, cost.keys);
        let mut jobs = Vec::with_capacity(self.jobs.len());
        for (name, ended, succeeded) in &mut self.jobs {
            let last = self.client.last_run(&name)?;
            requests += 1;
            *ended = steady(*ended, last.as_ref().map(|last| last.ended_ago));
            *succeeded = steady(*succeeded, last.as_ref().and_then(|last| last.succeeded_ago));
            let owner = owners.remove(name);
            jobs.push(Job { name: name.clone(), last, ended: *ended, succeeded: *succeeded, owner });
        }
        let mut waiters = Waiters::default();
        let mut deadlocks = Vec::new();
        // The clients' entries show possible deadlocks, and who waits for permits. The locks show neither.
        if shown.iter().any(|lock| lock.waiting > 0 || Use::of(lock) == Use::Permits) {
            let mut clients = self.client.clients();
            for one in clients.by_ref() {
                // A user without rights to the clients' entries still gets the locks.
                let Ok(one) = one else { break };
                waiters.add(&one);
            }
            if waiters.may_be_deadlocked {
                deadlocks = cycles::seen(&self.client);
            }
            for lock in shown.iter().filter(|lock| lock.waiting == 0 && Use::of(lock) == Use::Permits) {
                counted.entry(self.groups.of(lock)).or_default().waiting += waiters.number(&lock.name);
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
            ("deadlocks", cycles::all_as_json(&deadlocks)),
            ("jobs", jobs.iter().map(Job::as_json).collect()),
            ("locks", shown.iter().map(|lock| waiters.with(lock)).collect()),
        ] {
            fields += &format!(",\"{field}\":{value}");
        }
        let certain = deadlocks.iter().filter(|cycle| cycle.is_certain).count();
        let deadlocks = [certain, deadlocks.len() - certain];
        let fresh = self.interval.unwrap_or_else(|| rest(keys, found));
        Ok((Listing { fields, groups: counted, jobs, deadlocks, requests, keys, took }, fresh))
    }
}

impl Job {
    pub(crate) fn runs(&self) -> bool {
        let state = |last| State::under(self.owner.as_deref(), last);
        self.owner.is_some() && self.last.as_ref().is_none_or(|last| state(last) == State::Runs)
    }

    fn as_json(&self) -> Value {
        let state = |last| State::under(self.owner.as_deref(), last);
        let last = self.last.as_ref().map(|last| job::as_json(state(last), last));
        json!({ "name": self.name, "runs": self.runs(), "last_run": last })
    }
}

fn rest(keys: u64, locks: u64) -> Duration {
    let times = |cost: Duration, number: u64| cost * u32::try_from(number).unwrap_or(u32::MAX);
    (times(KEY_COST, keys) + times(LOCK_COST, locks)).saturating_mul(SHARE)
}

/// When a job's run ended, in seconds since 1970; 0 if there was none (`ago` is `None`). Returns `before`,
/// the result of the last list, unless the time differs by more than the clocks' inaccuracy.
fn steady(before: u64, ago: Option<Duration>) -> u64 {
    let Some(ago) = ago else { return 0 };
    let now = wall().saturating_sub(ago).as_secs();
    if now.abs_diff(before) < JITTER { before } else { now }
}

impl Group {
    fn add(&mut self, lock: &ListedLock) {
        self.held += 1;
        self.waiting += lock.waiting;
        self.without_end += u64::from(has_no_end(lock));
        self.oldest = self.oldest.max(lock.holders.iter().filter_map(|holder| holder.held_for).max());
    }
}

#[derive(Default)]
struct Waiters {
    by_name: HashMap<String, Vec<(Duration, Value)>>,
    may_be_deadlocked: bool,
}

impl Waiters {
    fn add(&mut self, client: &ClientInfo) {
        self.may_be_deadlocked |= MAY_BE_DEADLOCKED(client);
        for one in client.uses.iter().filter(|one| one.is_waiting) {
            let known = |text: &String| (!text.is_empty()).then_some(text.clone());
            let waiter = json!({
                "owner": format!("{}:{}", client.id, one.owner),
                "host": known(&client.host),
                "pid": client.pid,
                "program": known(&client.program),
                "label": client.label,
                "thread": known(&one.thread),
                "waiting_for_seconds": one.lasted.as_secs_f64(),
            });
            self.by_name.entry(one.name.clone()).or_default().push((one.lasted, waiter));
        }
    }

    fn number(&self, name: &str) -> u64 {
        self.by_name.get(name).map_or(0, |waiters| u64::try_from(waiters.len()).unwrap_or(u64::MAX))
    }

    fn with(&mut self, lock: &ListedLock) -> Value {
        let mut waiters = self.by_name.remove(&lock.name).unwrap_or_default();
        waiters.sort_by(|(one, _), (other, _)| other.cmp(one));
        let waiters: Vec<Value> = waiters.into_iter().map(|(_, waiter)| waiter).take(MOST_WAITERS).collect();
        let mut object = match lock_as_json(lock) {
            Value::Object(object) => object,
            _ => Map::new(),
        };
        object.insert("use".to_owned(), json!(Use::of(lock).label()));
        object.insert("waiters".to_owned(), json!(waiters));
        Value::Object(object)
    }
}

pub(crate) fn as_json(seen: &Seen<Listing>, trouble: Option<Trouble>) -> String {
    let error = json!(trouble.map(Trouble::words));
    let error_for = json!(trouble.map(|trouble| trouble.lasting.as_secs_f64()));
    let age = json!(seen.last.as_ref().map(|(_, age)| age.as_secs_f64()));
    let next = json!(seen.running.map(|(lasting, keys)| json!({
        "for_seconds": lasting.as_secs_f64(),
        "keys": keys,
    })));
    let fields = seen
        .last
        .as_ref()
        .map_or(",\"deadlocks\":[],\"jobs\":[],\"locks\":[]", |(listing, _)| &listing.fields);
    format!(
        "{{\"error\":{error},\"error_for_seconds\":{error_for},\"age_seconds\":{age},\"next_list\":{next}{fields}}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_prefixes_seen_in_lock_names_become_groups() {
        let mut groups = Groups::default();
        assert_eq!(groups.of_name("orders:7:lines"), "orders");
        assert_eq!(groups.of_name("nightly-import"), OTHER);
        for number in 0..1000 {
            groups.of_name(&format!("g{number}:x"));
        }
        assert_eq!(groups.of_name("g5:y"), "g5");
        assert_eq!(groups.of_name("g900:y"), OTHER);
        assert_eq!(groups.of_name("orders:8"), "orders");
        assert_eq!(groups.empty().len(), MOST_GROUPS + 1);
        let mut groups = Groups::default();
        assert_eq!(groups.of_name(&format!("{}:x", "é".repeat(1000))), "é".repeat(LONGEST_GROUP));
    }

    #[test]
    fn pauses_keep_listings_below_one_percent_of_the_store_cpu() {
        assert_eq!(rest(500_000, 0), Duration::from_secs(100));
        assert_eq!(rest(0, 1000), Duration::from_secs(2));
        assert!(rest(100, 100) < Duration::from_secs(1));
        assert!(rest(u64::MAX, u64::MAX) > Duration::from_secs(100_000), "nothing overflows");
    }

    #[test]
    fn the_end_time_of_a_run_is_equal_in_all_listings() {
        let ago = Duration::from_secs(1000);
        let first = steady(0, Some(ago));
        assert!(first.abs_diff((wall() - ago).as_secs()) <= 1);
        assert_eq!(steady(first, Some(ago + Duration::from_millis(900))), first);
        assert!(steady(first, Some(ago / 2)) > first, "another run began later");
        assert_eq!(steady(first, None), 0, "the record has expired");
    }
}
