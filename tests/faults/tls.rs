//! If a TLS handshake fails, the call fails. The client never falls back to plaintext.

use std::net::TcpListener;

use super::world::{CONNECT, L, T, World, await_renewal, play};
use crate::support::missing;
use crate::support::observer::texts;
use crate::support::prelude::*;
use crate::support::proxy::{Direction, Then, Which};
use crate::support::server::{RedisServer, matrix};

/// Runs `body` with a server that speaks only TLS, also at an address that its certificate does not name.
#[track_caller]
fn secured(body: impl FnOnce(&mut World)) {
    alone(|| {
        let Some(binary) = matrix().iter().find(|binary| binary.has_tls()) else {
            return missing("no server that was built with TLS");
        };
        let server = RedisServer::builder(binary).tls().config("bind 127.0.0.1 127.0.0.2").start();
        play(server, body);
    });
}

/// The server's URL through the proxy, which passes TLS unchanged.
fn url(world: &World) -> String {
    format!("rediss://localhost:{}/", world.proxy.port())
}

fn builder(world: &World) -> leasehold::ClientBuilder {
    world.builder_to(&url(world)).connect_timeout(CONNECT).tls_ca(world.server.ca())
}

#[test]
fn locks_exclude_wake_waiters_and_renew_over_tls() {
    secured(|world| {
        let [client, other] = [(); 2].map(|()| builder(world).lease(2 * L).build().unwrap());
        let guard = other.get_lock("secured").acquire().unwrap();
        let lock = client.get_lock("secured");
        assert!(!lock.try_lock().unwrap());
        let waiter = call(turn(lock));
        world.await_subscription("secured");
        await_renewal(&guard);
        let unlocked = now();
        guard.unlock().unwrap();
        waiter.returns_within(unlocked, ms(50), "taking over");
        let guard = client.get_lock("kept").acquire().unwrap();
        world.proxy.kill(Which::All, Then::Reset);
        await_renewal(&guard);
        client.get_lock("another").acquire().unwrap().unlock().unwrap();
        guard.unlock().unwrap();
    });
}

#[test]
fn a_dead_network_is_noticed_in_time_over_tls() {
    secured(|world| {
        let client = builder(world).build().unwrap();
        let guard = client.get_lock("cut").acquire().unwrap();
        world.proxy.hold(Direction::ToClient, Which::All);
        let begun = now();
        let error = client.get_lock("other").try_lock().unwrap_err();
        within(begun, T, "a try");
        assert!(error.is_retryable(), "{error}");
        crate::support::comes_within(begun, L, "the loss", || guard.check().is_err());
        world.proxy.resume();
        assert!(guard.unlock().unwrap_err().is_lost());
        world.all_are_given_back(L);
    });
}

#[test]
fn a_server_without_a_valid_certificate_is_refused_in_time() {
    secured(|world| {
        let elsewhere = format!("rediss://127.0.0.2:{}/", world.server.port());
        for (builder, what, says) in [
            (builder(world).tls_ca(world.server.unknown_ca()), "a CA that did not sign it", "UnknownIssuer"),
            (builder(world).url(&elsewhere), "a name it is not certified for", "not valid for"),
            (world.builder_to(&url(world)), "the system's CAs", ""),
        ] {
            let error = in_time(Duration::from_secs(3), "the refusal", || builder.build().unwrap_err());
            assert_eq!(error.kind(), ErrorKind::Tls, "{what}: {}", texts(&error));
            assert!(!error.is_retryable() && error.to_string().contains(says), "{what}: {error}");
        }
        let before = world.proxy.accepted();
        for file in ["/nowhere/ca.crt", "/dev/null"] {
            let error = builder(world).tls_ca(file).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{file}: {}", texts(&error));
        }
        assert_eq!(world.proxy.accepted(), before);
    });
}

#[test]
fn tls_and_plaintext_never_fall_back_to_each_other() {
    secured(|world| {
        let plain =
            in_time(T * 4, "the refusal", || world.builder_to(&world.proxy.url()).build().unwrap_err());
        let kinds = [ErrorKind::Protocol, ErrorKind::Tls, ErrorKind::Unreachable, ErrorKind::TimedOut];
        assert!(kinds.contains(&plain.kind()), "{}", texts(&plain));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = start(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.set_read_timeout(Some(LONG)).unwrap();
            let mut heard = vec![0; 4096];
            let count = std::io::Read::read(&mut socket, &mut heard).unwrap_or(0);
            heard.truncate(count);
            drop(std::io::Write::write_all(&mut socket, b"-ERR Protocol error\r\n"));
            heard
        });
        let url = format!("rediss://locks:S3CR3T@localhost:{port}/");
        let error = in_time(2 * T, "the refusal", || {
            world.builder_to(&url).tls_ca(world.server.ca()).build().unwrap_err()
        });
        assert!(kinds.contains(&error.kind()), "{}", texts(&error));
        assert!(!texts(&error).contains("S3CR3T"));
        let heard = heard.join().unwrap();
        assert_eq!(heard.first(), Some(&0x16), "it began with something else than a TLS handshake");
        assert!(
            !heard.windows(6).any(|part| part == b"S3CR3T") && !heard.windows(4).any(|part| part == b"AUTH")
        );
    });
}
