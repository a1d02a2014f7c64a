//! The servers' addresses, and our user there.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::config::ServerOptions;
use crate::error::{Error, Result};
use crate::hosts::{Host, HostList, Hosts, check_url, no_parameters, unescaped};
use crate::stores::zookeeper::path;

const PORT: u16 = 2181;
/// From ZooKeeper's documentation of `secureClientPort`.
const TLS_PORT: u16 = 2281;

/// Not `Debug`: it holds the password.
pub(super) struct ZooKeeperAddress {
    pub(super) hosts: Vec<(Host, u16)>,
    pub(super) names: Arc<Hosts>,
    pub(super) login: Option<String>,
    pub(super) chroot: String,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<crate::tls::Config>,
}

impl ZooKeeperAddress {
    /// Random, so that clients spread over the servers.
    pub(super) fn any_host(&self) -> usize {
        let random = RandomState::new().hash_one(0_u8);
        usize::try_from(random).unwrap_or(0).checked_rem(self.hosts.len()).unwrap_or(0)
    }

    /// Reads `zk://[user:password@]host[:port][,host[:port]…][/path]`, or `zks://…`. The fields of `options`
    /// take precedence over the URL. No message repeats the URL, since it may hold a password.
    pub(super) fn new(options: &ServerOptions) -> Result<ZooKeeperAddress> {
        let refuse = || {
            let form = "zk://[user:password@]host[:port][,host[:port]…][/path]";
            Error::invalid("connect", format!("the URL cannot be used; write it as {form}"))
        };
        let (scheme, rest) = options.url.split_once("://").ok_or_else(refuse)?;
        let is_tls = options.tls.is_wanted_by(scheme, "zks")?;
        check_url(&options.url)?;
        no_parameters(&options.url)?;
        let rest = rest.trim_end_matches('?');
        let HostList { login, places: hosts, path } =
            HostList::read(rest, if is_tls { TLS_PORT } else { PORT }).ok_or_else(refuse)?;
        // Only `@` needs an escape.
        let chroot = format!("/{path}").trim_end_matches('/').replace("%40", "@");
        if !chroot.is_empty() {
            path::check(&chroot).map_err(|_said_below| refuse())?;
        }
        let (user, password) = match login.map(|login| login.split_once(':')) {
            Some(Some((user, password))) => (Some(unescaped(user)), Some(unescaped(password))),
            Some(None) => return Err(refuse()),
            None => (None, None),
        };
        let user = options.username.clone().or(user.flatten());
        let password = options.password.clone().or(password.flatten());
        let login = match (user, password) {
            (Some(user), Some(password)) if !user.is_empty() => Some(format!("{user}:{password}")),
            (None, None) => None,
            _ => return Err(refuse()),
        };
        Ok(ZooKeeperAddress {
            hosts,
            names: Arc::clone(&options.hosts),
            login,
            chroot,
            #[cfg(feature = "tls")]
            tls: is_tls.then(|| crate::tls::config(&options.tls)).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<ZooKeeperAddress> {
        ZooKeeperAddress::new(&ServerOptions { url: url.to_owned(), ..ServerOptions::default() })
    }

    #[test]
    fn a_url_is_read() {
        let read = address("zk://me:p%40:ss@h1:7000,h2,[::1]:3/app/x").unwrap();
        let hosts: Vec<_> = read.hosts.iter().map(|(host, port)| (host.name(), *port)).collect();
        assert_eq!(hosts, [("h1", 7000), ("h2", 2181), ("::1", 3)]);
        assert_eq!(read.login.as_deref(), Some("me:p@:ss"));
        assert_eq!(read.chroot, "/app/x");
        let plain = address("zk://localhost/").unwrap();
        assert_eq!((plain.chroot.as_str(), plain.login), ("", None));
    }

    #[test]
    fn options_override_the_url() {
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
    fn bad_zookeeper_urls_are_refused_without_repeating_them() {
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
