//! Servers that refuse, and wrong addresses: each call fails at once with a typed error and changes nothing.

use std::net::{Ipv4Addr, TcpListener};

use super::world::{CONNECT, KEPT, R, T, World, await_renewal, scenario_on};
use crate::support::epilogue::assert_every_hash_has_a_ttl;
use crate::support::observer::texts;
use crate::support::prelude::*;
use crate::support::proxy::{Then, Which};
use crate::support::server::{Port, default_server};
use crate::support::spawn;
use crate::support::talk::{saying, talking};

#[derive(Clone)]
struct Rights {
    patterns: Vec<String>,
    commands: Vec<String>,
}

/// The permissions of the user in `docs/permissions.md`.
fn documented() -> Rights {
    let text = include_str!("../../docs/permissions.md");
    let (_, rest) = text
        .split_once("ACL SETUSER locks reset resetchannels on >PASSWORD")
        .expect("the rule is in the document");
    let rule = rest.split_once("```").expect("the rule ends").0;
    let (commands, patterns): (Vec<_>, Vec<_>) =
        rule.split_whitespace().map(str::to_owned).partition(|word| word.starts_with('+'));
    assert!(commands.len() > 10 && patterns.len() > 1, "{rule}");
    Rights { patterns, commands }
}

fn smaller() -> Rights {
    let patterns = ["~app:*", "~redisson_*:{app:*", "&redisson_*:{app:*"].map(str::to_owned).to_vec();
    let mut commands = documented().commands;
    commands.retain(|command| command != "+hkeys");
    Rights { patterns, commands }
}

fn as_user(world: &World) -> leasehold::ClientBuilder {
    // The time-out is long, because this test judges the refusal. Other tests measure its time.
    let builder = world.builder().username("locks").password("pw").client_name("leasehold");
    builder.lease(KEPT).command_timeout(LONG)
}

fn grant(world: &World, rights: &Rights) {
    let words = ["ACL", "SETUSER", "locks", "reset", "on", ">pw"].into_iter();
    let rules = rights.patterns.iter().chain(&rights.commands).map(String::as_str);
    world.does(&words.chain(rules).collect::<Vec<_>>());
}

fn with_a_user(builder: crate::support::server::Builder) -> crate::support::server::Builder {
    builder.user("locks off")
}

#[test]
fn a_missing_right_is_a_typed_error() {
    scenario_on(with_a_user, |world| {
        let all = Rights { commands: documented().commands, ..smaller() };
        // These commands are for some answers only, for the wait queue, or for operations not tested here.
        let optional = "hkeys publish subscribe unsubscribe hget hdel zadd zcard zpopmin zrange zrem";
        for missing in &all.commands {
            let mut rights = all.clone();
            rights.commands.retain(|command| command != missing);
            grant(world, &rights);
            let refused = with_rights(world, missing);
            assert!(
                refused > 0 || optional.split(' ').any(|command| command == &missing[1..]),
                "nothing needs {missing}"
            );
        }
        for missing in &all.patterns {
            let mut rights = all.clone();
            rights.patterns.retain(|pattern| pattern != missing);
            grant(world, &rights);
            with_rights(world, missing);
        }
    });
}

fn with_rights(world: &World, missing: &str) -> usize {
    let mut refused = 0;
    let mut judge = |error: &leasehold::Error| {
        assert_eq!(error.kind(), ErrorKind::NoPermission, "without {missing}: {}", texts(error));
        assert!(!error.is_retryable() && !error.outcome_unknown(), "without {missing}: {error}");
        refused += 1;
    };
    let begun = now();
    let client = match as_user(world).build() {
        Ok(client) => client,
        Err(error) => {
            within(begun, T, "the refusal");
            judge(&error);
            return refused;
        }
    };
    for name in ["app:a", "app:b"] {
        let plain = client.get_lock(name);
        let fenced = client.get_fenced_lock(name);
        let half = if name == "app:a" { &plain } else { &*fenced };
        let taken = in_time(T, "a lock or its refusal", || half.lock());
        assert_every_hash_has_a_ttl(&world.server);
        match taken {
            Err(error) => {
                judge(&error);
                assert!(world.is_free(name), "without {missing}: a refused lock is there");
                continue;
            }
            Ok(()) => world.assert_held_by(name, &client, 1),
        }
        let levels = match plain.lock() {
            Ok(()) => 2,
            Err(error) => {
                judge(&error);
                1
            }
        };
        world.assert_held_by(name, &client, levels);
        for left in (0..levels).rev() {
            let before = world.fields(name);
            if let Err(error) = plain.unlock() {
                judge(&error);
                assert_eq!(world.fields(name), before, "without {missing}: half a release");
                break;
            }
            assert_eq!(world.fields(name).values().next().map(String::as_str), (left > 0).then_some("1"));
        }
        assert_every_hash_has_a_ttl(&world.server);
        [plain.hold_count().map(drop), plain.force_unlock().map(drop)]
            .iter()
            .filter_map(|x| x.as_ref().err())
            .for_each(&mut judge);
        world.does(&["DEL", name]);
    }
    let token = client.get_token_lock("app:t");
    match token.lock() {
        Err(error) => judge(&error),
        Ok(()) => {
            if let Err(error) = token.unlock() {
                judge(&error);
            }
        }
    }
    assert!(
        world.lock_keys().iter().all(|key| world.ttl(key) > 0),
        "without {missing}: {:?}",
        world.lock_keys()
    );
    drop(client);
    world.lock_keys().iter().for_each(|key| world.does(&["DEL", key]));
    refused
}

#[test]
fn a_changed_password_loses_no_hold() {
    let password = |builder: crate::support::server::Builder| builder.requirepass("right");
    scenario_on(password, |world| {
        let begun = now();
        for (builder, what) in [(world.builder(), "none"), (world.builder().password("wrong"), "wrong")] {
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Authentication, "{what}: {error}");
            assert!(!error.is_retryable(), "{what}: {error}");
        }
        within(begun, T, "two refusals");
        let client = world.builder().password("right").lease(KEPT).build().unwrap();
        let guard = client.get_lock("kept").acquire().unwrap();
        await_renewal(&guard);
        world.does(&["CONFIG", "SET", "requirepass", "new"]);
        // Connections that have already logged in still work after the password changes.
        await_renewal(&guard);
        // New connections are refused with a typed error, and no hold is lost.
        world.proxy.kill(Which::Others, Then::Reset);
        fails(in_time(T, "the refusal", || client.get_lock("other").lock()), ErrorKind::Authentication);
        guard.check().unwrap();
        world.does(&["CONFIG", "SET", "requirepass", "right"]);
        await_renewal(&guard);
        // After a refused login, calls get the same error for 50 ms, and renewals try again at once.
        comes_within(now(), R, "the way in", || client.get_lock("kept").is_locked().is_ok());
        guard.unlock().unwrap();
    });
}

scenario!(a_new_replica_refuses_without_a_loss, |world| {
    let (client, seen) = world.watched_keeping();
    let nobody = Port::claim();
    let guard = client.get_lock("replica").acquire().unwrap();
    await_renewal(&guard);
    world.does(&["REPLICAOF", "127.0.0.1", &nobody.number().to_string()]);
    let error = fails(client.get_lock("other").try_lock(), ErrorKind::ReadOnly);
    assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
    let begun = now();
    fails(world.builder().build(), ErrorKind::ReadOnly);
    within(begun, T, "the refusal");
    comes_within(begun, KEPT / 3 + T, "the risk", || matches!(guard.state(), HoldState::AtRisk { .. }));
    world.does(&["REPLICAOF", "NO", "ONE"]);
    comes_within(now(), R, "the renewal", || guard.state() == HoldState::Held);
    guard.unlock().unwrap();
    client.get_lock("other").acquire().unwrap().unlock().unwrap();
    assert_eq!(seen.losses(), 0);
});

scenario!(a_full_server_is_busy_and_keeps_holders, |world| {
    let (client, seen) = world.watched_keeping();
    let guard = client.get_lock("kept").acquire().unwrap();
    await_renewal(&guard);
    let mut admin = world.server.admin();
    let mut most = |number: usize| {
        redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(number).exec(&mut admin).unwrap();
    };
    most(1);
    let error = fails(in_time(T, "the refusal", || world.builder().build()), ErrorKind::Busy);
    assert!(error.is_retryable(), "{error}");
    await_renewal(&guard);
    most(1000);
    guard.unlock().unwrap();
    assert_eq!(seen.losses(), 0);
    world.client().with_lock("kept", |_guard| ()).unwrap();
});

#[test]
fn an_unsuitable_server_is_refused_with_the_reason() {
    let hello = b"*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.0.16\r\n$5\r\nproto\r\n:2\r\n\
        $2\r\nid\r\n:3\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";
    let cases: [(&[u8], ErrorKind, &str); 4] = [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", ErrorKind::Protocol, "protocol"),
        (b"220 mail.example ESMTP\r\n", ErrorKind::Protocol, "protocol"),
        (hello, ErrorKind::TooOld, "6.0.16"),
        (b"-ERR unknown command `HELLO`, with args beginning with: \r\n", ErrorKind::Unsupported, "proxy"),
    ];
    alone(|| {
        for (bytes, kind, word) in cases {
            let server = saying(bytes.to_vec());
            let url = format!("redis://{}/", server.address);
            let error = in_time(T, "the refusal", || {
                LockClient::builder().url(&url).connect_timeout(CONNECT).build().unwrap_err()
            });
            assert_eq!(error.kind(), kind, "{}", texts(&error));
            assert!(error.to_string().contains(word), "{error}");
        }
        // One address never answers, one closes each connection, and no server listens at the third.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let (hanging_up, nobody) = (talking(drop), Port::claim());
        let nobody = (Ipv4Addr::LOCALHOST, nobody.number()).into();
        for address in [silent.local_addr().unwrap(), hanging_up.address, nobody] {
            let url = format!("redis://{address}/");
            let error = in_time(T, "the refusal", || {
                LockClient::builder().url(&url).connect_timeout(T).build().unwrap_err()
            });
            assert!(
                matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut),
                "{}",
                texts(&error)
            );
        }
    });
}

#[test]
fn a_sentinel_used_as_a_server_is_refused_with_advice() {
    alone(|| {
        let Some(binary) = default_server() else { return };
        let folder = tempfile::tempdir().unwrap();
        let port = Port::claim();
        let config = folder.path().join("sentinel.conf");
        std::fs::write(&config, format!("port {}\nbind 127.0.0.1\n", port.number())).unwrap();
        let program = [binary.path.to_str().unwrap(), config.to_str().unwrap(), "--sentinel"];
        let nothing = std::process::Stdio::null;
        let mut sentinel =
            spawn(&program, |command| command.current_dir(folder.path()).stdout(nothing()).stderr(nothing()));
        let up = eventually(Duration::from_secs(20), || {
            std::net::TcpStream::connect(("127.0.0.1", port.number())).is_ok()
        });
        let url = format!("redis://127.0.0.1:{}/", port.number());
        let refused = LockClient::builder().url(&url).connect_timeout(CONNECT).build();
        sentinel.kill().unwrap();
        sentinel.wait().unwrap();
        assert!(up, "the sentinel did not start");
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", texts(&error));
        assert!(error.to_string().contains("Sentinel"), "{error}");
    });
}
