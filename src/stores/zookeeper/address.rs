//! Reads a ZooKeeper URL: the servers' addresses, the login, and the chroot.

use std::hash::{BuildHasher, RandomState};

use crate::config::ServerOptions;
use crate::error::{Error, Result};
use crate::servers::ServerList;
use crate::stores::zookeeper::path;

/// The default ports without and with TLS. The second is from the documentation of `secureClientPort`.
const PORTS: [u16; 2] = [2181, 2281];

/// Not `Debug`, because it contains the password.
pub(super) struct ZooKeeperAddress {
    pub(super) servers: ServerList,
    pub(super) login: Option<String>,
    pub(super) chroot: String,
}

impl ZooKeeperAddress {
    pub(super) fn count(&self) -> usize {
        self.servers.hosts.len().max(1)
    }

    /// A random server, so that clients spread over the servers.
    pub(super) fn any_host(&self) -> usize {
        let random = RandomState::new().hash_one(0_u8);
        usize::try_from(random).unwrap_or(0) % self.count()
    }

    pub(super) fn new(options: &ServerOptions) -> Result<ZooKeeperAddress> {
        let unusable = || {
            let form = "zk://[user:password@]host[:port][,host[:port]…][/path]";
            let wrong = "a part of the URL is missing or wrong (a port is from 1 to 65535)";
            Error::invalid("connect", format!("{wrong}; write it as {form}"))
        };
        let servers = ServerList::read(options, "zks", PORTS, unusable)?;
        // In the path only `%40` is an escape; any other `%` stands for itself.
        let chroot = format!("/{}", servers.path).trim_end_matches('/').replace("%40", "@");
        if !chroot.is_empty() {
            path::check(&chroot).map_err(|_said_below| unusable())?;
        }
        let login = match &servers.login {
            Some((_, password)) if password.is_empty() => return Err(unusable()),
            login => login.as_ref().map(|(user, password)| format!("{user}:{password}")),
        };
        Ok(ZooKeeperAddress { servers, login, chroot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<ZooKeeperAddress> {
        ZooKeeperAddress::new(&ServerOptions { url: url.to_owned(), ..ServerOptions::default() })
    }

    #[test]
    fn a_zookeeper_url_names_servers_login_and_chroot() {
        let read = address("zk://me:p%40:ss@h1:7000,h2,[::1]:3/app/x").unwrap();
        let hosts: Vec<_> = read.servers.hosts.iter().map(|(host, port)| (host.name(), *port)).collect();
        assert_eq!(hosts, [("h1", 7000), ("h2", 2181), ("::1", 3)]);
        assert_eq!(read.login.as_deref(), Some("me:p@:ss"));
        assert_eq!(read.chroot, "/app/x");
        let plain = address("zk://localhost/").unwrap();
        assert_eq!((plain.chroot.as_str(), plain.login), ("", None));
    }

    #[test]
    fn options_override_the_login_in_a_zookeeper_url() {
        let options = ServerOptions {
            url: "zk://me:one@h".to_owned(),
            username: Some("you".to_owned()),
            password: Some("two".to_owned()),
            ..ServerOptions::default()
        };
        assert_eq!(ZooKeeperAddress::new(&options).unwrap().login.as_deref(), Some("you:two"));
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_missing_tls_feature_is_named_in_the_error() {
        let error = address("zks://localhost").unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
        assert!(error.to_string().contains("feature \"tls\""));
    }

    #[test]
    fn errors_about_bad_zookeeper_urls_do_not_show_their_login() {
        for url in [
            "zk://",
            "zk://u:S3CR3T@",
            "zk://u:S3CR3T@h:port",
            "zk://u:S3CR3T@h:99999",
            "zk://u:S3CR3T@h,,g",
            "zk://S3CR3T@h",
            "zk://:S3CR3T@h",
            "zk://u:S3CR3T@h//a",
            "zk://u:S3CR3T@h/zookeeper",
            "zk://u:S3CR3T%4@h",
            "zk://u:S3CR3T@[::1",
        ] {
            let error = address(url).err().unwrap_or_else(|| panic!("{url} was accepted"));
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput, "{url}");
            assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
        }
    }
}
