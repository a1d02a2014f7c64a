//! A new server of each store, for tests that need only its address. Each function returns `None`, after
//! [`missing`](super::missing), if the server is not installed.

use std::any::Any;

use super::server::RedisServer;

pub struct Running {
    pub url: String,
    /// The server's TCP port; zero if the store has no server.
    pub port: u16,
    _server: Box<dyn Any>,
}

pub type Start = fn() -> Option<Running>;

pub fn redis() -> Option<Running> {
    let server = RedisServer::start_default()?;
    Some(Running { url: server.url(), port: server.port(), _server: Box::new(server) })
}

#[cfg(feature = "postgres")]
pub fn postgres() -> Option<Running> {
    let server = super::postgres::PostgresServer::start()?;
    Some(Running { url: server.url(), port: server.port(), _server: Box::new(server) }.with_tables())
}

#[cfg(feature = "mysql")]
pub fn mysql() -> Option<Running> {
    let server = super::mysql::MysqlServer::start()?;
    Some(Running { url: server.url(), port: server.port(), _server: Box::new(server) }.with_tables())
}

#[cfg(feature = "sqlite")]
pub fn sqlite() -> Option<Running> {
    let folder = super::programs::in_memory();
    let url = super::programs::sqlite_url(&folder.path().join("locks.db"));
    Some(Running { url, port: 0, _server: Box::new(folder) }.with_tables())
}

pub fn etcd() -> Option<Running> {
    let server = super::etcd::Etcd::start()?;
    Some(Running { url: server.url(), port: server.port(), _server: Box::new(server) })
}

#[cfg(feature = "zookeeper")]
pub fn zookeeper() -> Option<Running> {
    zookeeper_with(super::zookeeper::CALM)
}

#[cfg(feature = "zookeeper")]
pub fn zookeeper_with(sessions: super::zookeeper::Sessions) -> Option<Running> {
    let server = super::zookeeper::ZooKeeper::start(sessions)?;
    Some(Running { url: server.url(), port: server.port(), _server: Box::new(server) })
}

impl Running {
    fn with_tables(self) -> Running {
        leasehold::LockClient::builder()
            .url(&self.url)
            .create_schema(true)
            .build()
            .expect("a client connects");
        self
    }
}
