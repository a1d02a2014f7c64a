//! Reads an etcd URL: the members' addresses, the user, and the prefix of the locks' keys.

use std::time::Duration;

use crate::config::ServerOptions;
use crate::error::{Error, Result};
use crate::hosts::unescaped;
use crate::servers::ServerList;

const DEFAULT_PREFIX: &str = "leasehold/";
const DEFAULT_PORT: u16 = 2379;

pub(super) struct EtcdAddress {
    pub(super) members: ServerList,
    pub(super) prefix: String,
    pub(super) connect_timeout: Duration,
}

impl EtcdAddress {
    pub(super) fn new(options: &ServerOptions) -> Result<EtcdAddress> {
        let unusable = || {
            let form = "etcd://[user:password@]host[:port][,host[:port]…][/prefix]";
            let wrong = "a part of the URL is missing or wrong (a port is from 1 to 65535)";
            Error::invalid("connect", format!("{wrong}; write it as {form}"))
        };
        let members = ServerList::read(options, "etcds", [DEFAULT_PORT; 2], unusable)?;
        let prefix = prefix_of(&unescaped(&members.path).ok_or_else(unusable)?)?;
        Ok(EtcdAddress { members, prefix, connect_timeout: options.connect_timeout })
    }
}

/// A prefix may contain no `%`, because `/%/` and `%clients/` mark the keys of leasehold below a prefix.
fn prefix_of(path: &str) -> Result<String> {
    match path.trim_end_matches('/') {
        "" => Ok(DEFAULT_PREFIX.to_owned()),
        path if path.contains('%') => {
            Err(Error::invalid("connect", "the prefix in the URL contains a '%', which is not allowed"))
        }
        path => Ok(format!("{path}/")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn address(url: &str) -> Result<EtcdAddress> {
        EtcdAddress::new(&ServerOptions { url: url.to_owned(), ..ServerOptions::default() })
    }

    #[test]
    fn an_etcd_url_names_members_login_and_prefix() {
        let read = address("etcd://me:p%40ss@one,two:2380,[::1]:7/shop/locks").unwrap();
        assert_eq!([0, 1, 2].map(|at| read.members.place(at)), ["one:2379", "two:2380", "[::1]:7"]);
        assert_eq!(read.members.login, Some(("me".to_owned(), "p@ss".to_owned())));
        assert_eq!(read.prefix, "shop/locks/");
        let read = address("etcd://localhost/").unwrap();
        assert_eq!((read.prefix.as_str(), read.members.login), ("leasehold/", None));
    }

    #[test]
    fn options_override_the_login_in_an_etcd_url() {
        let options = ServerOptions {
            url: "etcd://me:one@localhost".to_owned(),
            username: Some("you".to_owned()),
            password: Some("two".to_owned()),
            ..ServerOptions::default()
        };
        assert_eq!(
            EtcdAddress::new(&options).unwrap().members.login,
            Some(("you".to_owned(), "two".to_owned()))
        );
    }

    #[test]
    fn the_error_for_a_bad_etcd_url_hides_the_password() {
        for url in [
            "etcd:",
            "etcd://",
            "etcd://me:S3CR3T@",
            "etcd://me:S3CR3T@localhost:port",
            "etcd://me:S3CR3T@localhost:99999",
            "etcd://me:S3CR3T@one,,two",
            "etcd://me:S3CR3T@[::1",
            "etcd://me:S3CR3T@[::1]x",
            "etcd://me:S3CR3T%@localhost",
            "etcd://me:S3CR3T%zz@localhost",
            "etcd://:S3CR3T@localhost",
            "etcd://me:S3CR3T@localhost/?a=b",
            "etcd://me:S3CR3T@local host",
        ] {
            let error = address(url).err().unwrap_or_else(|| panic!("{url} was accepted"));
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_missing_tls_feature_is_named_in_the_error() {
        let error = address("etcds://localhost").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("feature \"tls\""));
    }
}
