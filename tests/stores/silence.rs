//! New connections get no answer, as from a full proxy, while existing connections work.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::support::await_renewal;
use crate::support::observer::Seen;
use crate::support::prelude::*;
use crate::support::proxy::Proxy;
use crate::support::running::{self, Start};

/// Asserts that a hold outlasts two leases in which new connections get no answer. `opens` means that
/// renewals open a connection: the test then waits for the first renewal before the silence begins.
fn a_hold_is_kept(start: Start, opens: bool, with: &[fn(ClientBuilder) -> ClientBuilder]) {
    let Some(server) = start() else { return };
    for with in with {
        let proxy = Proxy::plain((Ipv4Addr::LOCALHOST, server.port));
        let url = server.url.replace(&format!(":{}", server.port), &format!(":{}", proxy.port()));
        let builder = LockClient::builder().url(url).lease(ms(6_000)).command_timeout(ms(1_500));
        let seen = Seen::default();
        let client = with(builder.create_schema(true)).observer(seen.clone()).build().unwrap();
        let held = client.get_lock(fresh("held")).acquire().unwrap();
        if opens {
            await_renewal(|| held.remaining());
        }
        proxy.ignore();
        let_pass(ms(13_000), "two leases");
        assert!(held.check().is_ok(), "{:?}", seen.events());
        held.unlock().unwrap();
    }
}

#[test]
fn a_hold_on_redis_survives_silent_new_connections() {
    alone_within(LONG * 2, || a_hold_is_kept(running::redis, false, &[|builder| builder]));
}

#[cfg(feature = "etcd")]
#[test]
fn a_hold_on_etcd_survives_silent_new_connections() {
    let ways: [fn(ClientBuilder) -> ClientBuilder; 2] =
        [|builder| builder, |builder| builder.directory(false)];
    alone_within(LONG * 4, || a_hold_is_kept(running::etcd, false, &ways));
}

#[cfg(feature = "postgres")]
#[test]
fn a_hold_on_postgres_survives_silent_new_connections() {
    alone_within(LONG * 2, || a_hold_is_kept(running::postgres, false, &[|builder| builder]));
}

/// A session lock is renewed over its own connection, and confirmed over another, which the renewal opens.
#[cfg(feature = "mysql")]
#[test]
fn a_hold_on_mysql_survives_silent_new_connections() {
    alone_within(LONG * 4, || {
        a_hold_is_kept(running::mysql, false, &[|builder| builder]);
        a_hold_is_kept(running::mysql, true, &[ClientBuilder::session_locks]);
    });
}

/// The first host behaves like a machine that is switched off: it neither answers nor refuses.
#[cfg(feature = "postgres")]
#[test]
fn a_silent_first_host_does_not_hide_the_second() {
    alone_within(LONG * 2, || {
        let Some(server) = crate::support::postgres::PostgresServer::start() else { return };
        let place = (Ipv4Addr::new(127, 0, 0, 2), server.port());
        let _listener = TcpListener::bind(place).unwrap();
        // These connections fill the listener's queue, so the system answers no further attempt to connect.
        let connect = || TcpStream::connect_timeout(&place.into(), ms(100)).ok();
        let _full: Vec<TcpStream> = std::iter::from_fn(connect).collect();
        let hosts = format!("{}:{},127.0.0.1:{}", place.0, place.1, place.1);
        let url = format!("postgres://admin@{hosts}/postgres");
        let client = LockClient::builder().url(url).create_schema(true).build().unwrap();
        client.get_lock(fresh("held")).acquire().unwrap().unlock().unwrap();
    });
}
