//! A private Redis for one test.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::Connection;
use tempfile::TempDir;

use crate::scene::{eventually, missing};

/// A redis-server on a free port of 127.0.0.1, without persistence; killed on drop.
pub(crate) struct RedisServer {
    child: Child,
    url: String,
    _folder: TempDir,
}

impl RedisServer {
    /// `None`, said loudly, where there is no redis-server; a failure in CI.
    pub(crate) fn start() -> Option<RedisServer> {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let started = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
            ])
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(problem) => return missing("redis-server", &problem.to_string()),
        };
        let server = RedisServer { child, url: format!("redis://127.0.0.1:{port}"), _folder: folder };
        let client = redis::Client::open(server.url()).unwrap();
        eventually("the server answers", Duration::from_secs(5), || {
            client
                .get_connection()
                .is_ok_and(|mut connection| redis::cmd("PING").exec(&mut connection).is_ok())
        });
        Some(server)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A connection of the test's own.
    pub(crate) fn admin(&self) -> Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // Both fail only for a child that has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
