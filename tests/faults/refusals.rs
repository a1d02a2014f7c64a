//! Servers that refuse, and wrong addresses: each call fails at once with a typed error and changes nothing.

use std::net::{Ipv4Addr, TcpListener};

use super::world::{CONNECT, KEPT, R, T, await_renewal, scenario_on};
use crate::support::observer::texts;
use crate::support::prelude::*;
use crate::support::proxy::{Then, Which};
use crate::support::server::{Port, default_server};
use crate::support::spawn;
use crate::support::talk::{saying, talking};

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
        world.proxy.kill(Which::Others, Then::Reset);
        fails(in_time(T, "the refusal", || client.get_lock("other").lock()), ErrorKind::Authentication);
        guard.check().unwrap();
        world.does(&["CONFIG", "SET", "requirepass", "right"]);
        await_renewal(&guard);
        // For 50 ms after a refused login all calls get its error, so `is_locked` may fail a few times first.
        comes_within(now(), R, "the way in", || client.get_lock("kept").is_locked().is_ok());
        guard.unlock().unwrap();
    });
}

scenario!(a_server_turned_replica_refuses_acquires_and_loses_no_hold, |world| {
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

scenario!(a_server_at_its_client_limit_refuses_only_new_clients, |world| {
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
