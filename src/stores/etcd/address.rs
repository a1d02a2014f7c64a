//! The members' addresses, our user there, and the prefix of the locks.

use std::sync::Arc;
use std::time::Duration;

use crate::config::ServerOptions;
use crate::error::{Error, Result};
use crate::hosts::{Host, HostList, Hosts, check_url, no_parameters, unescaped};

const DEFAULT_PREFIX: &str = "leasehold/";
const DEFAULT_PORT: u16 = 2379;

/// Holds the password, so it is not `Debug`.
pub(super) struct EtcdAddress {
    pub(super) members: Vec<(Host, u16)>,
    pub(super) user: Option<(String, String)>,
    pub(super) prefix: String,
    pub(super) connect_timeout: Duration,
    pub(super) hosts: Arc<Hosts>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<crate::tls::Config>,
}

impl EtcdAddress {
    /// The fields of `options` take precedence over the URL. No message repeats the URL: it may be secret.
    pub(super) fn new(options: &ServerOptions) -> Result<EtcdAddress> {
        let (scheme, rest) = options.url.split_once("://").ok_or_else(unusable)?;
        #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "always false"))]
        let is_tls = options.tls.is_wanted_by(scheme, "etcds")?;
        check_url(&options.url)?;
        no_parameters(&options.url)?;
        let rest = rest.trim_end_matches('?');
        let HostList { login, places: members, path } =
            HostList::read(rest, DEFAULT_PORT).ok_or_else(unusable)?;
        Ok(EtcdAddress {
            members,
            user: user_of(login, options)?,
            prefix: prefix_of(&unescaped(path).ok_or_else(unusable)?)?,
            connect_timeout: options.connect_timeout,
            hosts: Arc::clone(&options.hosts),
            #[cfg(feature = "tls")]
            tls: is_tls.then(|| crate::tls::config(&options.tls)).transpose()?,
        })
    }

    pub(super) fn place(&self, at: usize) -> String {
        match self.members.get(at) {
            Some((host, port)) if host.name().contains(':') => format!("[{host}]:{port}"),
            Some((host, port)) => format!("{host}:{port}"),
            None => String::new(),
        }
    }
}

fn unusable() -> Error {
    let form = "etcd://[user:password@]host[:port][,host[:port]…][/prefix]";
    Error::invalid("connect", format!("the URL cannot be used; write it as {form}"))
}

fn user_of(login: Option<&str>, options: &ServerOptions) -> Result<Option<(String, String)>> {
    let (name, password) = match login {
        Some(login) => {
            let (name, password) = login.split_once(':').unwrap_or((login, ""));
            (Some(unescaped(name).ok_or_else(unusable)?), Some(unescaped(password).ok_or_else(unusable)?))
        }
        None => (None, None),
    };
    let (name, password) = (options.username.clone().or(name), options.password.clone().or(password));
    match (name, password) {
        (Some(name), password) if !name.is_empty() => Ok(Some((name, password.unwrap_or_default()))),
        (None, None) => Ok(None),
        _ => Err(Error::invalid("connect", "a password was given without a user name, which etcd needs too")),
    }
}

/// Refuses `%`, which separates one lock's keys from keys below a longer prefix.
fn prefix_of(path: &str) -> Result<String> {
    match path.trim_end_matches('/') {
        "" => Ok(DEFAULT_PREFIX.to_owned()),
        path if path.contains('%') => {
            Err(Error::invalid("connect", "the prefix of the URL has a '%', which it may not have"))
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
    fn a_url_is_read() {
        let read = address("etcd://me:p%40ss@one,two:2380,[::1]:7/shop/locks").unwrap();
        assert_eq!([0, 1, 2].map(|at| read.place(at)), ["one:2379", "two:2380", "[::1]:7"]);
        assert_eq!(read.user, Some(("me".to_owned(), "p@ss".to_owned())));
        assert_eq!(read.prefix, "shop/locks/");
        let read = address("etcd://localhost/").unwrap();
        assert_eq!((read.prefix.as_str(), read.user), ("leasehold/", None));
    }

    #[test]
    fn options_override_the_url() {
        let options = ServerOptions {
            url: "etcd://me:one@localhost".to_owned(),
            username: Some("you".to_owned()),
            password: Some("two".to_owned()),
            ..ServerOptions::default()
        };
        assert_eq!(EtcdAddress::new(&options).unwrap().user, Some(("you".to_owned(), "two".to_owned())));
    }

    #[test]
    fn bad_etcd_urls_are_refused_without_repeating_them() {
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
