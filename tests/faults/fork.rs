//! A forked child has a copy of its parent's client id, sockets and table of sleeping threads, and must use
//! none of them.
#![allow(unsafe_code, reason = "this is the one place that forks; see the notes at the calls")]

use leasehold::Error;
use leasehold::crossbeam_channel::TryRecvError;

use super::world::{ENTRIES, L, R};
use crate::support::prelude::*;
use crate::support::proxy::Command;
use crate::support::test_name;

const LEASE: Duration = Duration::from_secs(20);

/// Forks, runs `work` in the child, and returns its result; `None` if the child hangs or a signal ends it.
fn in_forked_child(work: impl FnOnce() -> u8) -> Option<u8> {
    // SAFETY: the child has one thread and the parent's memory. The library promises to use no mutex or
    // socket of the parent there, and glibc makes the allocator and threads usable after a fork. The child
    // ends by `_exit`, so no code of the test harness runs in it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(u8::MAX);
        // SAFETY: `_exit` ends the child at once, and no destructor runs.
        unsafe { libc::_exit(i32::from(code)) };
    }
    let mut status = 0;
    // SAFETY: `pid` is our own child, no other code waits for it, and `status` is a local variable.
    let ended = eventually(LONG, || unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid);
    if !ended {
        // SAFETY: as above. No `waitpid` has returned this pid, so the kernel has not reused it.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, &raw mut status, 0);
        }
        return None;
    }
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) as u8)
}

/// The child's exit code: 0, or the number of the first call that was not refused as [`ErrorKind::Forked`].
fn all_forked<const N: usize>(outcomes: [Result<(), Error>; N]) -> u8 {
    let other = |outcome: &Result<(), Error>| !matches!(outcome, Err(error) if error.kind() == ErrorKind::Forked && !error.is_retryable());
    outcomes.iter().position(other).map_or(0, |place| place as u8 + 1)
}

scenario!(a_forked_childs_calls_are_refused_and_send_nothing, |world| {
    let client = world.builder().directory(false).build().unwrap();
    // The client writes no directory entry and renews nothing, so any command after the fork is the child's.
    let lock = client.get_lock("parents");
    let guard = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
    let mut nested = Some(lock.acquire_with(&leased(LEASE)).unwrap().unwrap());
    let (sent, connections) = (world.proxy.commands().len(), world.proxy.accepted());
    let (fenced, token) = (client.get_fenced_lock("parents"), client.get_token_lock("token"));
    let code = in_forked_child(|| {
        all_forked([
            lock.lock(),
            lock.try_lock().map(drop),
            lock.try_lock_for(Duration::from_secs(1)).map(drop),
            lock.lock_with_lease(LEASE),
            lock.acquire().map(drop),
            lock.try_acquire().map(drop),
            lock.acquire_owned().map(drop),
            lock.unlock(),
            lock.force_unlock().map(drop),
            lock.is_locked().map(drop),
            lock.is_held_by_current_thread().map(drop),
            lock.hold_count().map(drop),
            lock.remaining_lease().map(drop),
            guard.check(),
            nested.take().map_or(Ok(()), leasehold::Guard::unlock),
            fenced.lock_and_get_token().map(drop),
            token.lock(),
            client.get_lock("another").lock(),
            client.with_lock("another", |_| ()),
        ])
    });
    assert_eq!(code, Some(0), "the call at this place was not refused for being in a child");
    assert_eq!(world.proxy.commands().len(), sent, "the child sent something");
    assert_eq!(world.proxy.accepted(), connections, "the child connected");
    world.assert_held("parents", guard.owner(), 2);
    nested.take().expect("only the child's copy is gone").unlock().unwrap();
    world.assert_held("parents", guard.owner(), 1);
    guard.unlock().unwrap();
    assert!(world.is_free("parents"));
});

/// Whether every query of the guard says in the child that the hold is lost.
macro_rules! is_lost_here {
    ($guard:expr) => {{
        let (guard, told) = (&$guard, Arc::new(AtomicBool::new(false)));
        let tell = Arc::clone(&told);
        guard.on_lost(move |_| tell.store(true, Ordering::SeqCst));
        let lost = guard.lost();
        guard.state() == HoldState::Lost
            && guard.remaining().is_zero()
            && guard.fencing_token().is_none()
            && guard.check().is_err_and(|error| error.kind() == ErrorKind::Forked)
            && lost.try_recv().is_ok_and(|loss| loss.reason == LossReason::Gone)
            && lost.try_recv() == Err(TryRecvError::Disconnected)
            && format!("{guard:?}").contains("..")
            && !told.load(Ordering::SeqCst)
    }};
}

scenario!(every_guard_is_lost_in_a_forked_child, |world| {
    let client = world.builder().lease(LEASE).directory(false).build().unwrap();
    let (semaphore, expirable) =
        (client.get_semaphore("test:permits"), client.get_expirable_semaphore("test:expirable"));
    assert!(semaphore.try_set_permits(1).unwrap() && expirable.try_set_permits(1).unwrap());
    let (lock, fenced, rw) =
        (client.get_lock("plain"), client.get_fenced_lock("test:fenced"), client.get_read_write_lock("rw"));
    let (pair, owned_pair) = (
        client.get_multi_lock([client.get_lock("one"), client.get_lock("two")]),
        client.get_multi_lock([client.get_lock("three"), client.get_lock("four")]),
    );
    let (latch, condition) = (client.get_count_down_latch("test:latch"), lock.condition("test:condition"));
    let candidate = client.leader("test:leader").unwrap();
    candidate.events().recv_timeout(LONG).unwrap();
    let term = candidate.term().unwrap();
    let mut plain = lock.acquire().unwrap();
    let (fence, owner) = (fenced.acquire().unwrap(), client.current_owner());
    let (write, read) = (rw.write().acquire().unwrap(), rw.read().acquire().unwrap());
    let (token, fair) =
        (client.get_token_lock("token").acquire().unwrap(), client.get_fair_lock("fair").acquire().unwrap());
    let owned = client.get_lock("owned").acquire_owned().unwrap();
    let (group, owned_group) = (pair.acquire().unwrap(), owned_pair.acquire_owned().unwrap());
    let (permit, expiring) = (semaphore.acquire(1).unwrap(), expirable.acquire().unwrap());
    let mut given_away = Some((expirable.add_permits(1).unwrap(), expirable.acquire().unwrap()));
    let mut spare = Some((
        client.get_multi_lock([client.get_lock("five"), client.get_lock("six")]).acquire().unwrap(),
        client.get_multi_lock([client.get_lock("seven"), client.get_lock("eight")]).acquire_owned().unwrap(),
        client.get_multi_lock([client.get_lock("nine"), client.get_lock("ten")]).acquire().unwrap(),
    ));
    let (stop, busy) = (AtomicBool::new(false), client.get_lock("busy"));
    let code = thread::scope(|scope| {
        // These threads keep the client's mutexes busy, so that the fork copies locked mutexes.
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    drop(busy.acquire().unwrap());
                    drop((
                        fence.fencing_token(),
                        fence.state(),
                        candidate.term(),
                        client.stats(),
                        client.contended(3),
                    ));
                }
            });
        }
        let mut code = Some(0);
        for _ in 0..20 {
            code = code.filter(|code| *code == 0).and_then(|_| {
                in_forked_child(|| {
                    let lost = [
                        is_lost_here!(plain),
                        is_lost_here!(fence),
                        is_lost_here!(write),
                        is_lost_here!(read),
                        is_lost_here!(token),
                        is_lost_here!(fair),
                        is_lost_here!(owned),
                        is_lost_here!(group),
                        is_lost_here!(owned_group),
                        is_lost_here!(permit),
                        is_lost_here!(expiring),
                        group.fencing_token_of("one").is_none()
                            && owned_group.fencing_token_of("three").is_none(),
                        candidate.term().is_none() && format!("{candidate:?}").contains("None"),
                        candidate.events().try_recv() == Err(TryRecvError::Disconnected),
                        client.stats() == leasehold::Stats::default() && client.contended(3).is_empty(),
                        client.current_owner() != owner && client.current_owner().number() == 0,
                    ];
                    candidate.step_down();
                    given_away.take().into_iter().for_each(|(_, permit)| permit.forget());
                    if let Some(place) = lost.iter().position(|lost| !lost) {
                        return 101 + place as u8;
                    }
                    let (ours, owned, dropped) = spare.take().expect("it was put there");
                    drop(dropped);
                    all_forked([
                        ours.unlock(),
                        owned.unlock(),
                        lock.is_locked().map(drop),
                        lock.holder().map(drop),
                        lock.is_held_by_current_thread().map(drop),
                        lock.hold_count().map(drop),
                        lock.remaining_lease().map(drop),
                        fenced.hold_count().map(drop),
                        rw.read().hold_count().map(drop),
                        rw.write().is_held_by_current_thread().map(drop),
                        pair.is_held_by_current_thread().map(drop),
                        pair.remaining_lease().map(drop),
                        semaphore.available_permits().map(drop),
                        expirable.available_permits().map(drop),
                        expirable.acquired_permits().map(drop),
                        expirable.permits().map(drop),
                        expirable.remaining_lease(&expiring.ids().concat()).map(drop),
                        latch.count().map(drop),
                        condition.wait_for(&mut plain, Duration::from_secs(1)).map(drop),
                        condition.notify_one().map(drop),
                        client.inspect("plain").map(drop),
                        client.ping().map(drop),
                        client.clients().next().unwrap_or_else(|| panic!("no answer")).map(drop),
                        client.list("*").next().unwrap_or_else(|| panic!("no answer")).map(drop),
                        client.deadlocks().map(drop),
                        client.leader("another").map(drop),
                    ])
                })
            });
        }
        stop.store(true, Ordering::SeqCst);
        code
    });
    assert_eq!(code, Some(0), "from 101 on: the way to ask; below: the call that was not refused");
    assert_eq!(candidate.term(), Some(term));
    for state in [plain.state(), fence.state(), write.state(), read.state(), token.state(), owned.state()] {
        assert_ne!(state, HoldState::Lost);
    }
    assert!(group.check().is_ok() && owned_group.check().is_ok() && permit.check().is_ok());
    assert!(fence.fencing_token().is_some() && client.stats().holds > 0);
    candidate.withdraw().unwrap();
    let (ours, owned, dropped) = spare.take().expect("only the child's copy is gone");
    assert!(ours.unlock().is_ok() && owned.unlock().is_ok() && dropped.unlock().is_ok());
});

scenario!(a_child_that_drops_guards_ends_no_hold_of_the_parent, |world| {
    let (client, seen) = world.watched();
    let kept = client.get_lock("kept").acquire().unwrap();
    let nested = client.get_lock("kept").acquire().unwrap();
    let owned = client.get_lock("owned").acquire_owned().unwrap();
    let token = client.get_token_lock("token").acquire().unwrap();
    let mut holds = Some((kept, nested, owned, token));
    let mut whole = Some(client.clone());
    let code = in_forked_child(|| {
        drop(holds.take());
        let client = whole.take().expect("it was put there");
        u8::from(client.shutdown().is_err())
    });
    assert_eq!(code, Some(0));
    let (kept, nested, owned, token) = holds.take().expect("only the child's copy is gone");
    throughout(L + R, || {
        kept.check().is_ok() && nested.check().is_ok() && owned.check().is_ok() && token.check().is_ok()
    });
    world.assert_held("kept", kept.owner(), 2);
    for unlocked in [nested.unlock(), kept.unlock(), owned.unlock(), token.unlock()] {
        unlocked.unwrap();
    }
    client.get_lock("kept").acquire().unwrap().unlock().unwrap();
    assert!(world.lock_keys().is_empty());
    assert_eq!(seen.losses(), 0);
});

scenario!(a_forked_child_cannot_make_a_client, |world| {
    // The client writes no directory entry and renews nothing, so any command after the fork is the child's.
    let client = world.builder().lease(LEASE).directory(false).build().unwrap();
    let guard = client.get_lock("parents").acquire().unwrap();
    let (url, store) = (world.proxy.url(), MemoryStore::new());
    let (sent, connections) = (world.proxy.commands().len(), world.proxy.accepted());
    let code = in_forked_child(|| {
        all_forked([
            LockClient::connect(&url).map(drop),
            LockClient::builder().build_in_memory(&store).map(drop),
            LockClient::redlock([&*url, "redis://127.0.0.1:1", "redis://127.0.0.1:2"]).map(drop),
        ])
    });
    assert_eq!(code, Some(0), "the client at this place was not refused for being made in a child");
    assert_eq!(world.proxy.commands().len(), sent, "the child sent something");
    assert_eq!(world.proxy.accepted(), connections, "the child connected");
    guard.unlock().unwrap();
    world.direct().get_lock("parents").acquire().unwrap().unlock().unwrap();
});

#[test]
fn both_processes_can_lock_if_the_fork_precedes_any_client() {
    alone(|| {
        let Some(binary) = default_server() else { return };
        let server = RedisServer::builder(&binary).start();
        let client = || LockClient::builder().url(server.url()).lease(LEASE).build().expect("a client");
        let contend = |client: &LockClient| {
            let cycle = || client.with_lock("both", |_| ()).expect("a cycle");
            thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| (0..50).for_each(|_| cycle())))));
        };
        let mut kept = None;
        let code = in_forked_child(|| {
            let another = client();
            contend(&another);
            another.shutdown().expect("the end");
            let own = client();
            contend(&own);
            own.get_lock("childs").lock_with_lease(LEASE).expect("the lock");
            kept = Some(own);
            0
        });
        assert_eq!(code, Some(0));
        drop(kept);
        let own = client();
        contend(&own);
        assert!(!own.get_lock("childs").try_lock().unwrap(), "parent and child are one owner");
        assert!(own.get_lock("childs").force_unlock().unwrap());
    });
}

scenario!(a_forked_childs_shutdown_spares_its_parents_directory_entry, |world| {
    let client = world.builder().lease(LEASE).build().unwrap();
    let guard = client.get_lock("parents").acquire().unwrap();
    let about = |command: &Command| command.contains(ENTRIES);
    assert!(eventually(LONG, || world.proxy.count(about) > 0));
    let key = format!("{ENTRIES}{}", client.id());
    assert!(eventually(LONG, || !world.is_free(&key)));
    let (before, sent) = (world.run::<String>(&["GET", &key]), world.proxy.count(about));
    let mut whole = Some(client.clone());
    let code = in_forked_child(|| {
        let client = whole.take().expect("it was put there");
        drop(client.get_lock("another").lock());
        u8::from(client.shutdown().is_err())
    });
    assert_eq!(code, Some(0));
    assert_eq!(world.proxy.count(about), sent, "the child sent something");
    assert_eq!(world.run::<String>(&["GET", &key]), before);
    guard.unlock().unwrap();
    drop(whole.take());
    client.shutdown().unwrap();
    assert!(world.is_free(&key));
});

/// Parent and child both have pid 1, since each is the first process of a pid namespace.
#[test]
fn a_forked_child_with_the_same_pid_is_refused() {
    const CONTAINED: &str = "LEASEHOLD_TEST_CONTAINED";
    if std::env::var_os(CONTAINED).is_none() {
        let contained = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let unshare = |command: &[String]| {
            let mut unshare = std::process::Command::new("unshare");
            unshare.args(contained).args(command).env(CONTAINED, "1").output()
        };
        if !unshare(&["true".to_owned()]).is_ok_and(|tried| tried.status.success()) {
            crate::support::missing("a system that allows namespaces");
            return;
        }
        let ran = unshare(&test_command(&test_name())).unwrap();
        let text = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let is_first = || std::process::id() == 1;
    assert!(is_first());
    let store = MemoryStore::new();
    let client = LockClient::builder().lease(LEASE).build_in_memory(&store).unwrap();
    let lock = client.get_lock("parents");
    let mut guard = Some(lock.acquire().unwrap());
    // SAFETY: this changes only the namespace of this process's next child.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0, "a namespace in the namespace");
    let code = in_forked_child(|| {
        let code = all_forked([
            guard.as_ref().map_or(Ok(()), leasehold::Guard::check),
            lock.lock(),
            guard.take().map_or(Ok(()), leasehold::Guard::unlock),
            LockClient::builder().build_in_memory(&store).map(drop),
        ]);
        if is_first() { code } else { u8::MAX }
    });
    assert_eq!(code, Some(0), "the call at this place was not refused for being in a child");
    let guard = guard.take().expect("only the child's copy is gone");
    guard.check().unwrap();
    guard.unlock().unwrap();
}
