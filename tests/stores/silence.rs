//! New connections get no answer, as from a full proxy; existing connections work.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::support::await_renewal;
use crate::support::observer::Seen;
use crate::support::prelude::*;
use crate::support::proxy::Proxy;

/// A hold outlasts two leases without answers on new connections, and is released. It is renewed once before,
/// if that `opens` a connection.
fn a_hold_is_kept(url: &str, port: u16, opens: bool, with: impl FnOnce(ClientBuilder) -> ClientBuilder) {
    let proxy = Proxy::plain((Ipv4Addr::LOCALHOST, port));
    let url = url.replace(&format!(":{port}"), &format!(":{}", proxy.port()));
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
    drop(client);
}

#[test]
fn a_hold_on_redis_survives_silent_new_connections() {
    alone_within(LONG * 2, || {
        let Some(server) = default_server() else { return };
        let server = RedisServer::builder(&server).start();
        a_hold_is_kept(&server.url(), server.port(), false, |builder| builder);
    });
}

#[cfg(feature = "etcd")]
#[test]
fn a_hold_on_etcd_survives_silent_new_connections() {
    alone_within(LONG * 4, || {
        let Some(server) = crate::support::etcd::Etcd::start() else { return };
        for directory in [true, false] {
            a_hold_is_kept(&server.url(), server.port(), false, |builder| builder.directory(directory));
        }
    });
}

#[cfg(feature = "postgres")]
#[test]
fn a_hold_on_postgres_survives_silent_new_connections() {
    alone_within(LONG * 2, || {
        let Some(server) = crate::support::postgres::PostgresServer::start() else { return };
        a_hold_is_kept(&server.url(), server.port(), false, |builder| builder);
    });
}

/// A session's lock is renewed over its own connection, once the server has answered over another, which the
/// first renewal opens.
#[cfg(feature = "mysql")]
#[test]
fn a_hold_on_mysql_survives_silent_new_connections() {
    alone_within(LONG * 4, || {
        let Some(server) = crate::support::mysql::MysqlServer::start() else { return };
        a_hold_is_kept(&server.url(), server.port(), false, |builder| builder);
        a_hold_is_kept(&server.url(), server.port(), true, ClientBuilder::session_locks);
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
        // Fills its queue, so that it answers no further connect.
        let connect = || TcpStream::connect_timeout(&place.into(), ms(100)).ok();
        let _full: Vec<TcpStream> = std::iter::from_fn(connect).collect();
        let hosts = format!("{}:{},127.0.0.1:{}", place.0, place.1, place.1);
        let url = format!("postgres://admin@{hosts}/postgres");
        let client = LockClient::builder().url(url).create_schema(true).build().unwrap();
        client.get_lock(fresh("held")).acquire().unwrap().unlock().unwrap();
    });
}
