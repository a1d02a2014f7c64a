//! Users who lack a right, on each store: each call works, or fails at once with `NoPermission` and the
//! store's words, and then has changed nothing.

use std::collections::BTreeSet;

use leasehold::{Error, Result};

use crate::databases::{DOCUMENTED, Database, Rows as _};
use crate::sqlite::{FILES, other_process, shared, users};
use crate::support::epilogue::{Baseline, assert_every_hash_has_a_ttl, threads};
use crate::support::etcd::Etcd;
use crate::support::observer::texts;
use crate::support::postgres::PostgresServer;
use crate::support::prelude::*;
use crate::support::zookeeper::{CALM, ZooKeeper};

/// The time limit of a grant or a refusal; it is shorter than the command time-out (3 s).
const AT_ONCE: Duration = ms(400);

/// A store that refuses calls of users who lack a right.
struct Refusing<'a> {
    /// A client of a user who lacks nothing.
    owner: LockClient,
    /// A part of the text of each refusal.
    words: &'a str,
    /// Asserts what must be true of the store after each call. If a name is given, its lock must be free.
    check: &'a dyn Fn(Option<&str>),
}

impl Refusing<'_> {
    /// Makes each sort of call with the client from `build`, whose user lacks the right `missing`. Returns
    /// the sorts that were refused.
    fn refused(&self, missing: &str, build: impl FnOnce() -> Result<LockClient>) -> Vec<&'static str> {
        let (mut refused, begun) = (BTreeSet::new(), now());
        let mut judge = |call, error: &Error| {
            let said = texts(error);
            assert_eq!(error.kind(), ErrorKind::NoPermission, "{call} without {missing}: {said}");
            assert!(!error.is_retryable() && !error.outcome_unknown(), "{call} without {missing}: {said}");
            assert!(said.contains(self.words), "{call} without {missing}: {said}");
            assert!(!format!("{said} {error:?}").contains("S3CR3T"), "{error:?}");
            refused.insert(call);
        };
        let client = match build() {
            Ok(client) => client,
            Err(error) => {
                within(begun, AT_ONCE, "the refusal");
                judge("connect", &error);
                return vec!["connect"];
            }
        };
        let held = self.owner.get_lock("app:held").acquire().unwrap();
        let theirs = client.get_lock("app:held");
        theirs.is_locked().map_or_else(|error| judge("read", &error), |is_locked| assert!(is_locked));
        theirs.try_lock().map_or_else(|error| judge("try", &error), |is_granted| assert!(!is_granted));
        held.check().unwrap();
        held.unlock().unwrap();
        for name in ["app:a", "app:b"] {
            let (plain, fenced) = (client.get_lock(name), client.get_fenced_lock(name));
            let half = if name == "app:a" { &plain } else { &*fenced };
            let taken = in_time(AT_ONCE, "a lock or its refusal", || half.lock());
            if let Err(error) = taken {
                judge("lock", &error);
                self.holds(name, &client, 0);
                continue;
            }
            self.holds(name, &client, 1);
            let again = plain.lock().inspect_err(|error| judge("re-enter", error));
            let levels = if again.is_ok() { 2 } else { 1 };
            self.holds(name, &client, levels);
            for left in (0..levels).rev() {
                if let Err(error) = plain.unlock() {
                    judge("unlock", &error);
                    self.holds(name, &client, left + 1);
                    break;
                }
                self.holds(name, &client, left);
            }
            plain.hold_count().map_or_else(|error| judge("count", &error), drop);
            plain.force_unlock().map_or_else(|error| judge("force", &error), drop);
            self.owner.get_lock(name).force_unlock().unwrap();
        }
        let token = client.get_token_lock("app:t");
        match token.lock() {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                fails(self.owner.get_token_lock("app:t").lock(), ErrorKind::Unsupported);
            }
            Err(error) => judge("token", &error),
            Ok(()) => token.unlock().unwrap_or_else(|error| judge("token", &error)),
        }
        (self.check)(None);
        refused.into_iter().collect()
    }

    /// Panics unless one owner of the client holds the lock with this count, or, if it is 0, nobody does.
    #[track_caller]
    fn holds(&self, name: &str, client: &LockClient, count: u32) {
        let (seen, id) = (self.owner.inspect(name).unwrap().holders, client.id().to_string());
        // The fifteenth character says whether the client may use the wait queue. It may change, so it is
        // left out.
        let same = |owner: &str| owner.get(..14) == id.get(..14) && owner.get(15..36) == id.get(15..);
        let is_of = |owner: &str| same(owner) && owner.get(36..37) == Some(":");
        let counts: Vec<_> = seen.iter().map(|one| one.hold_count.filter(|_| is_of(&one.owner))).collect();
        let expected: &[_] = if count == 0 { &[] } else { &[Some(count)] };
        assert_eq!(counts, expected, "{name}: {seen:?}");
        (self.check)((count == 0).then_some(name));
    }
}

on_databases!(calls_lacking_a_right_fail_with_words_of_the_database, D::start(), |server| {
    let store = Refusing { owner: server.client(), words: D::LOCKS_IN_ERRORS, check: &|_| () };
    let as_user = |user: &str| server.options_as(user).build();
    server.execute("CREATE USER reader");
    server.grant("SELECT", "leasehold_locks", "reader");
    assert_eq!(store.refused("rights to write", || as_user("reader")), D::WRITES);
    let all = ["lock", "read", "token", "try"];
    for (right, refused) in
        [("SELECT", &all[..]), ("INSERT", D::WRITES), ("UPDATE", D::WRITES), ("DELETE", &[])]
    {
        let user = format!("without_{}", right.to_lowercase());
        server.make_user(&user, "");
        let running = as_user(&user).unwrap();
        running.get_lock("app:used").acquire().unwrap().unlock().unwrap();
        server.execute(&format!("REVOKE {right} ON {}.leasehold_locks FROM {user}", D::SCHEMA));
        for client in [as_user(&user), Ok(running)] {
            assert_eq!(store.refused(right, || client), refused, "without {right}");
        }
    }
    server.make_user("unlisted", "");
    let clients = format!("{}.leasehold_locks_clients", D::SCHEMA);
    server.execute(&format!("REVOKE {DOCUMENTED} ON {clients} FROM unlisted"));
    assert!(store.refused("the directory", || as_user("unlisted")).is_empty());
});

test_on!(a_client_without_rights_on_the_queue_table_is_refused, PostgresServer::start(), |server| {
    let few = || server.options_as("few").build();
    let words = "public.leasehold_locks_wait_queue";
    let store = Refusing { owner: server.client(), words, check: &|_| () };
    server.execute("CREATE USER few");
    server.grant(DOCUMENTED, "leasehold_locks", "few");
    assert_eq!(store.refused("the queue", few), ["connect"]);
    server.execute("DROP TABLE leasehold_locks_wait_queue");
    fails_saying(server.options_as("admin").build(), ErrorKind::Unsupported, "create_schema()");
    server.execute("REVOKE INSERT, UPDATE, DELETE ON leasehold_locks FROM few");
    assert!(!few().unwrap().get_lock("a").is_locked().unwrap());
});

test_on!(calls_lacking_a_right_fail_with_words_of_etcd, Etcd::start(), |server| {
    server.demand_passwords(&[("app", "S3CR3T", "locks"), ("guest", "S3CR3T", "")]);
    let build = |user: &str, path: &str| {
        LockClient::builder().url(format!("etcd://{user}:S3CR3T@{}{path}", server.place())).build()
    };
    let words = "permission denied";
    let store = Refusing { owner: build("app", "").unwrap(), words, check: &|_| () };
    assert_eq!(store.refused("a role", || build("guest", "")), ["connect"]);
    assert_eq!(store.refused("the prefix", || build("app", "/other")), ["connect"]);
});

test_on!(calls_lacking_a_right_fail_with_words_of_zookeeper, ZooKeeper::start(CALM), |server| {
    let build = |login: &str| LockClient::connect(format!("zk://{login}127.0.0.1:{}/private", server.port()));
    let words = "permission denied by the ACL";
    let store = Refusing { owner: build("me:S3CR3T@").unwrap(), words, check: &|_| () };
    let _held = store.owner.get_lock("first").acquire().unwrap();
    for login in ["", "me:wrong@", "you:S3CR3T@"] {
        assert_eq!(store.refused("the login", || build(login)), ["lock", "read", "try"]);
    }
    assert!(!build("me:S3CR3T@").unwrap().get_lock("first").try_lock().unwrap());
});

// On SQLite the file's mode gives the rights, so a process of each system user makes the calls.
#[test]
fn calls_lacking_a_right_fail_with_words_of_sqlite() {
    const NO_USERS: &str = "no other users: only root can be them";
    let Some([owner, other]) = users() else { return crate::support::missing(NO_USERS) };
    let (folder, url) = shared("644", &owner);
    let said = other_process(&other, "take", &url);
    assert!(said.contains("failed NoPermission") && said.contains("may not be written"), "{said}");
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert_eq!(left, [FILES[0]], "files were left behind");
    let said = other_process(&owner, "take", &url);
    assert!(said.contains("took Ok(true)"), "{said}");
    // The database's owner may not write these files, which another user left, so the error must name them.
    for name in &FILES[1..] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let said = other_process(&owner, "take", &url);
    assert!(said.contains("failed NoPermission") && said.contains("locks.db-"), "{said}");
}

/// The rights on Redis: the commands of docs/permissions.md for plain locks, and the keys and channels of
/// names that begin with `app:`.
fn on_redis() -> [Vec<&'static str>; 2] {
    let page = include_str!("../../docs/permissions.md");
    let (_, rule) = page.split_once("ACL SETUSER locks reset resetchannels on >PASSWORD").expect("a rule");
    let words = rule.split_once("```").expect("the rule ends").0.split_whitespace();
    let commands: Vec<_> = words.filter(|word| word.starts_with('+')).collect();
    assert!(commands.len() > 10, "{commands:?}");
    [commands, vec!["~app:*", "~redisson_*:{app:*", "&redisson_*:{app:*"]]
}

#[test]
fn calls_lacking_a_right_fail_with_words_of_redis() {
    // A user without one of these commands may succeed with all calls that this test makes.
    const OPTIONAL: &str = "hkeys publish subscribe unsubscribe hget hdel zadd zcard zpopmin zrange zrem";
    let optional = |right: &str| OPTIONAL.split(' ').any(|command| command == &right[1..]);
    alone(|| {
        let Some(server) = RedisServer::start_default() else { return };
        let does = |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).exec(&mut server.admin()).unwrap();
        let options = || LockClient::builder().url(server.url()).unsubscribe_delay(Duration::ZERO);
        options().build().unwrap().with_lock("warm-up", |_| ()).unwrap();
        assert!(eventually(LONG, || threads().is_none_or(|threads| threads.is_empty())), "{:?}", threads());
        let baseline = Baseline::take(&server).alone();
        let check = |free: Option<&str>| {
            assert_every_hash_has_a_ttl(&server);
            if let Some(name) = free {
                let is_there: bool = redis::cmd("EXISTS").arg(name).query(&mut server.admin()).unwrap();
                assert!(!is_there, "{name}");
            }
        };
        let store = Refusing {
            owner: options().build().unwrap(),
            words: "permission denied by the server's ACL",
            check: &check,
        };
        // The long time-out keeps a busy machine from turning refusals into time-outs.
        let user = || options().username("locks").password("S3CR3T").client_name("leasehold");
        let user = || user().lease(ms(6_000)).command_timeout(LONG).build();
        let [commands, patterns] = on_redis();
        let needed = commands.iter().chain(&patterns);
        for missing in needed.clone() {
            let rights: Vec<_> = needed.clone().filter(|right| *right != missing).copied().collect();
            does(&[&["ACL", "SETUSER", "locks", "reset", "on", ">S3CR3T"], &rights[..]].concat());
            let refused = store.refused(missing, user);
            assert!(!refused.is_empty() || patterns.contains(missing) || optional(missing), "{missing}");
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.admin()).unwrap();
            for key in keys.iter().filter(|key| !key.starts_with("redisson_lock_token:")) {
                let left: i64 = redis::cmd("PTTL").arg(key).query(&mut server.admin()).unwrap();
                assert!(left != -1 || key == "leasehold_client:format", "{key} without {missing}");
            }
            does(&["FLUSHALL"]);
        }
        drop(store);
        baseline.assert_clean(&server);
    });
}
