//! Properties of the public types, such as which types another thread may get. The compiler checks most of
//! them. `compile_fail` examples of `Guard` and `MultiGuard` show that these cannot leave their thread.

use std::error::Error as StdError;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};

use leasehold::{
    ClientId, ClusterPubSub, Condition, CountDownLatch, Error, Event, ExpirableSemaphore, FencedLock,
    FencingToken, Holder, Inspection, Leader, Lock, Loss, Mode, MultiGuard, MultiLock, ObjectKind,
    OwnedMultiGuard, Owner, Permit, ReadWriteLock, RedlockNode, Result, Ring, RingNode, Semaphore,
};

use crate::support::prelude::*;

fn is<T: ?Sized>() -> Probe<T> {
    Probe(PhantomData)
}

/// `is::<T>().send()` calls the inherent method (`true`) if `T: Send`, otherwise the trait's one (`false`).
struct Probe<T: ?Sized>(PhantomData<T>);

impl<T: ?Sized + Send> Probe<T> {
    #[expect(clippy::unused_self, reason = "which method is found is the answer")]
    const fn send(&self) -> bool {
        true
    }
}

trait NotSend {
    fn send(&self) -> bool {
        false
    }
}

impl<T: ?Sized> NotSend for Probe<T> {}

fn shared_by_threads<T: Send + Sync + 'static>() {}
fn cloned<T: Clone>() {}
fn value<T: Copy + Eq + Debug + Send + Sync + 'static>() {}
fn key<T: Copy + Eq + Hash + Display + Debug + Send + Sync + 'static>() {}

macro_rules! each {
    ($checks:tt: $($type:ty),+ $(,)?) => { $(each!(of $checks $type);)+ };
    (of ($($check:ident),+) $type:ty) => { $($check::<$type>();)+ };
}

#[test]
fn clients_and_locks_can_be_shared_by_threads_and_cloned() {
    each!((shared_by_threads, cloned): LockClient, RedisLock, FencedLock, MultiLock, ReadWriteLock, Semaphore,
        ExpirableSemaphore, CountDownLatch, Interrupt, MemoryStore, ManualClock, Ring, RingNode);
    shared_by_threads::<ClientBuilder>();
    assert!(size_of::<LockClient>() == size_of::<usize>(), "a clone only raises a count");
}

/// The list lacks `ClientBuilder`, because a program's closures in it may not be unwind-safe.
#[test]
fn public_types_stay_usable_after_a_caught_panic() {
    fn unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
    each!((unwind_safe): LockClient, RedisLock, FencedLock, MultiLock, ReadWriteLock, Semaphore, ExpirableSemaphore,
        CountDownLatch, Condition, Leader, Guard, OwnedGuard, MultiGuard, OwnedMultiGuard, Interrupt, AcquireOptions,
        Permit, Error, MemoryStore, ManualClock);
    let (lock, options) = (LockClient::in_memory().get_lock("unwound"), AcquireOptions::new());
    let caught = std::panic::catch_unwind(|| {
        options.with_lock(&lock, |_| std::panic::resume_unwind(Box::new("meant")))
    });
    assert!(caught.is_err());
    assert_eq!(options.with_lock(&lock, |_| 1).unwrap(), Some(1));
}

#[test]
fn only_owned_guards_can_move_to_another_thread() {
    assert!(!is::<Guard>().send());
    assert!(is::<OwnedGuard>().send());
    assert!(!is::<MultiGuard>().send());
    assert!(is::<OwnedMultiGuard>().send());
    fn seen_by_threads<T: Sync + 'static>() {}
    seen_by_threads::<Guard>();
    shared_by_threads::<OwnedGuard>();
    seen_by_threads::<MultiGuard>();
    shared_by_threads::<OwnedMultiGuard>();
    assert!(is::<String>().send() && !is::<std::rc::Rc<()>>().send());
}

#[test]
fn an_error_is_pointer_sized_and_becomes_a_boxed_error() {
    assert_eq!(size_of::<Error>(), size_of::<usize>());
    assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    shared_by_threads::<Error>();
    fn boxed(error: Error) -> Box<dyn StdError + Send + Sync> {
        error.into()
    }
    let error = boxed(LockClient::in_memory().get_lock("").lock().unwrap_err());
    assert!(error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::InvalidInput));
}

#[test]
fn public_value_types_implement_the_standard_traits_they_need() {
    fn ordered<T: Ord>() {}
    fn printed<T: Display>() {}
    each!((value): HoldState, LossReason, ErrorKind, ClusterPubSub, Mode);
    each!((key): Owner, ClientId, FencingToken);
    each!((shared_by_threads, cloned): Loss, NotHeld, RedlockNode, Inspection);
    each!((printed): Inspection, Holder, ObjectKind);
    ordered::<FencingToken>();
}

#[test]
fn a_closure_can_be_an_observer() {
    let (sender, seen) = unbounded();
    let builder = LockClient::builder().observer(move |event: &Event<'_>| {
        if let Event::Acquired { name, .. } = event {
            sender.send((*name).to_owned()).unwrap();
        }
    });
    let client = builder.build_in_memory(&MemoryStore::new()).unwrap();
    client.get_lock("seen").acquire().unwrap().unlock().unwrap();
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), ["seen"]);
}

#[test]
fn lock_names_are_accepted_as_any_string_type() {
    let client = LockClient::in_memory();
    let (text, shared): (String, std::sync::Arc<str>) = ("a".to_owned(), "a".into());
    let names = ["a", &text];
    for lock in [
        client.get_lock(&text),
        client.get_lock(&shared),
        client.get_lock(names.iter().next().unwrap()),
        client.get_lock(std::borrow::Cow::Borrowed("a")),
        client.get_lock(text.clone()),
        client.get_lock(text),
    ] {
        assert_eq!(lock.name(), "a");
    }
    let url = "redis://127.0.0.1:1".to_owned();
    let prefix = "shop:".to_owned();
    let lazy = LockClient::builder().url(url).key_prefix(prefix).connect_lazily().build().unwrap();
    assert_eq!(lazy.get_fair_lock(String::from("b")).name(), "b");
}

#[test]
fn generic_code_can_use_any_lock() {
    let client = LockClient::in_memory();
    let locks: [Box<dyn Lock>; 3] = [
        Box::new(client.get_lock("plain")),
        Box::new(client.get_fenced_lock("fenced")),
        Box::new(client.get_multi_lock([client.get_lock("one of several")])),
    ];
    for lock in &locks {
        lock.lock().unwrap();
        lock.unlock().unwrap();
        lock.lock_interruptibly(&Interrupt::new()).unwrap();
        lock.unlock().unwrap();
        assert!(lock.try_lock().unwrap());
        lock.unlock().unwrap();
        assert!(lock.try_lock_for(ms(10)).unwrap());
        lock.unlock().unwrap();
        assert!(lock.unlock().unwrap_err().is_not_held());
    }
}

#[test]
fn a_multi_lock_accepts_a_tuple_of_mixed_kinds() {
    let client = LockClient::in_memory();
    let (ledger, rates) = (client.get_fenced_lock("ledger"), client.get_read_write_lock("rates"));
    let mixed = client.get_multi_lock((
        &ledger,
        rates.read(),
        client.get_read_write_lock("prices").write_fenced(),
        client.get_fair_lock("queue"),
        client.get_spin_lock("spin"),
        client.lock_builder("once").non_reentrant().build(),
        &client.get_token_lock("token"),
        client.get_lock("plain"),
    ));
    let guard = mixed.acquire().unwrap();
    assert_eq!(guard.names().count(), 8);
    assert!(guard.fencing_token_of("ledger").is_some() && guard.fencing_token_of("prices").is_some());
    guard.unlock().unwrap();
    let pair = [client.get_lock("a"), client.get_lock("b")];
    assert_eq!(client.get_multi_lock(&pair[..]).names().count(), 2);
    assert_eq!(client.get_multi_lock(pair.to_vec()).names().count(), 2);
    assert_eq!(client.get_multi_lock((ledger,)).names().collect::<Vec<_>>(), ["ledger"]);
}

#[test]
fn debug_output_and_connection_errors_contain_no_password() {
    fn shown<T: Debug>() {}
    each!((shown): RedisLock, FencedLock, Guard, OwnedGuard, MultiLock, MultiGuard, OwnedMultiGuard, Interrupt,
        MemoryStore, ManualClock);
    let builder = LockClient::builder()
        .url("redis://somebody:S3CR3T-in-the-url@127.0.0.1:1/")
        .username("somebody")
        .password("S3CR3T-by-option");
    let database = LockClient::builder().url("postgres://somebody:S3CR3T@127.0.0.1:1/x").password("S3CR3T");
    assert!(!format!("{database:?}").contains("S3CR3T"));
    let sentinels = LockClient::builder()
        .url("redis-sentinel://somebody:S3CR3T-in-the-url@127.0.0.1:1,127.0.0.1:2/master")
        .sentinel_username("somebody")
        .sentinel_password("S3CR3T-of-the-sentinels");
    let node = RedlockNode::new("redis://somebody:S3CR3T-of-a-node@127.0.0.1:1/");
    assert!(!format!("{node:?} {:?}", LockClient::builder().redlock([node.clone()])).contains("S3CR3T"));
    let node = RingNode::new("redis://somebody:S3CR3T-in-the-url@127.0.0.1:1/");
    assert!(!format!("{node:?} {:?}", Ring::new([node.clone()])).contains("S3CR3T"));
    for builder in [builder, sentinels] {
        assert!(!format!("{builder:?}").contains("S3CR3T"));
        let error = builder.connect_timeout(std::time::Duration::from_millis(50)).build().unwrap_err();
        let mut cause: Option<&dyn StdError> = Some(&error);
        while let Some(level) = cause {
            assert!(!format!("{level} {level:?}").contains("S3CR3T"), "{level}");
            cause = level.source();
        }
    }
}

#[cfg(all(feature = "postgres", feature = "mysql"))]
#[test]
fn transaction_locks_are_send_sync_and_name_tables_are_clone() {
    use leasehold::{mysql, postgres};
    each!((shared_by_threads): postgres::NameTable, postgres::TxLock, mysql::NameTable, mysql::TxLock);
    each!((cloned): postgres::NameTable, mysql::NameTable);
}

#[cfg(not(any(feature = "etcd", feature = "postgres", feature = "mysql", feature = "sqlite")))]
#[test]
fn the_error_for_an_uncompiled_store_names_its_feature() {
    for (url, feature) in [
        ("etcd://localhost", "etcd"),
        ("ETCDS://me:S3CR3T@localhost", "etcd"),
        ("postgres://me:S3CR3T@localhost", "postgres"),
        ("mariadb://me:S3CR3T@localhost/x", "mysql"),
        ("sqlite:///x", "sqlite"),
    ] {
        let error = leasehold::LockClient::connect(url).unwrap_err();
        assert_eq!(error.kind(), leasehold::ErrorKind::Unsupported, "{url}");
        assert!(error.to_string().contains(&format!("feature {feature:?}")), "{error}");
        assert!(!format!("{error:?}").contains("S3CR3T"));
    }
}

#[cfg(feature = "serde")]
#[test]
fn inspections_lists_and_statistics_serialize_by_field_name() {
    let client = LockClient::in_memory();
    let guard = client.get_fenced_lock("ledger").acquire().unwrap();
    let shown = serde_json::to_value(client.inspect("ledger").unwrap()).unwrap();
    assert_eq!(
        (&shown["kind"], &shown["fencing_token"]),
        (&"FencedLock".into(), &guard.fencing_token().unwrap().get().into())
    );
    assert_eq!(shown["holders"][0]["owner"], guard.owner().to_string());
    assert_eq!(serde_json::to_value(client.id()).unwrap(), client.id().to_string());
    let listed = client.list("*").map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(serde_json::to_value(listed).unwrap()[0]["name"], "ledger");
    assert_eq!(serde_json::to_value(client.stats()).unwrap()["holds"], 1);
    assert_eq!(serde_json::to_value(client.ping().unwrap()).unwrap()["store"], "memory");
}
