//! URLs of stores: schemes, credentials, and hosts with their ports.
//!
//! No message repeats a URL: it may hold a password.

use percent_encoding::percent_decode_str;

use crate::error::{Error, ErrorKind, Result};
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
use crate::hosts::Host;

pub(crate) fn check_scheme(url: &str) -> Result<()> {
    let words = "no URL was given: name the store by one, for example redis://127.0.0.1:6379";
    Error::unless(!url.is_empty(), || words)?;
    Error::unless(url.contains("://"), || {
        format!(
            "the URL has no scheme: a URL begins with one of {SCHEMES} (for a Redlock or ring: the first five)"
        )
    })
}

pub(crate) const SCHEMES: &str = "redis://, rediss://, redis+unix://, redis-sentinel://, rediss-sentinel://, redis-cluster://, \
                                  rediss-cluster://, postgres://, mysql://, mariadb://, sqlite://, etcd://, etcds://, zk:// or \
                                  zks://";

/// Refuses a URL with an `@` after the hosts: if its password has an unescaped `/`, `?` or `#`, a part of the
/// password would be taken for a host.
pub(crate) fn check_url(url: &str) -> Result<()> {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let (hosts, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if hosts.is_empty() || !behind.contains('@') {
        return Ok(());
    }
    let words = "the URL has an @ after its hosts: in a user name, a password or a path, write @ as %40, / as %2F, ? as %3F \
                 and # as %23";
    Err(Error::invalid("connect", words))
}

const MAX_SHOWN: usize = 32;

/// Splits off the parameters after `?`, each a name and a value. Refuses `#`: no scheme uses it.
pub(crate) fn parameters(url: &str) -> Result<(&str, Vec<(&str, &str)>)> {
    let words = "the URL has a # in it, and what follows means nothing here; in a user name, a password or a path \
        write %23";
    Error::unless(!url.contains('#'), || words)?;
    let Some((url, query)) = url.split_once('?') else { return Ok((url, Vec::new())) };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pair = |pair| str::split_once(pair, '=').ok_or_else(|| unknown_parameter(None, ""));
    Ok((url, pairs.map(pair).collect::<Result<_>>()?))
}

#[cfg(any(feature = "etcd", feature = "sqlite", feature = "zookeeper"))]
pub(crate) fn no_parameters(url: &str) -> Result<()> {
    match parameters(url)?.1.first() {
        Some((name, _)) => Err(unknown_parameter(Some(name), "")),
        None => Ok(()),
    }
}

/// The error for an unknown parameter. Repeats the name only if it is a plain word, since other text may be
/// part of a password.
pub(crate) fn unknown_parameter(name: Option<&str>, instead: &str) -> Error {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let name = name.filter(|name| name.len() <= MAX_SHOWN && name.chars().all(is_word));
    let name = name.map_or_else(|| "a parameter".to_owned(), |name| format!("the parameter {name:?}"));
    let hint = if instead.is_empty() { "leave it out" } else { instead };
    Error::invalid("connect", format!("{name} behind the ? of the URL means nothing here: {hint}"))
}

pub(crate) fn needs_feature(scheme: &str, feature: &str) -> Error {
    let words = format!("{scheme}:// needs leasehold's feature {feature:?}, which this build does not have");
    Error::new(ErrorKind::Unsupported, "connect", words)
}

/// Decodes `%` escapes; `None` if one is malformed, or the result is not UTF-8.
pub(crate) fn unescaped(text: &str) -> Option<String> {
    // The decoder would accept a `%` that begins no escape, but such a `%` is a mistake in a URL.
    let is_escape =
        |rest: &str| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    if !text.split('%').skip(1).all(is_escape) {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

/// A URL of several servers, after its scheme: `[user:password@]host[:port][,host[:port]…][/path]`.
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
pub(crate) struct HostList<'a> {
    pub(crate) login: Option<&'a str>,
    pub(crate) places: Vec<(Host, u16)>,
    /// Without the leading `/`.
    pub(crate) path: &'a str,
}

#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
impl HostList<'_> {
    /// Reads the text after `://`; `port` is the default. `None`: malformed.
    pub(crate) fn read(rest: &str, port: u16) -> Option<HostList<'_>> {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let login = authority.rsplit_once('@');
        let (login, hosts) = login.map_or((None, authority), |(login, hosts)| (Some(login), hosts));
        let places =
            hosts.split(',').map(|text| place(text, login.is_some(), port)).collect::<Option<_>>()?;
        Some(HostList { login, places, path })
    }
}

/// Reads `host[:port]`, an IPv6 address in brackets; `None`: malformed. `is_sure`: no part of a password.
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
fn place(text: &str, is_sure: bool, port: u16) -> Option<(Host, u16)> {
    let (host, said) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return None;
    }
    let is_sure = is_sure || !said.is_empty();
    let port = if said.is_empty() { port } else { said.strip_prefix(':')?.parse().ok()? };
    (port != 0).then(|| (Host::given(host, is_sure), port))
}

/// The label (with a weight, if any) and the URL of a server in a list, such as `label*2=redis://host`.
pub(crate) fn labelled(word: &str) -> (&str, &str) {
    match word.split_once("://").and_then(|(before, _)| before.rsplit_once('=')) {
        Some((label, _)) => (label, word.get(label.len() + 1..).unwrap_or_default()),
        None => ("", word),
    }
}

pub(crate) fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (servers, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let servers = servers.rsplit_once('@').map_or(servers, |(_, servers)| servers);
    format!("{scheme}://{servers}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_at_sign_behind_the_hosts_is_refused() {
        for url in ["redis://a/b@c", "redis://a?b@c", "redis://a#b@c", "redis://u:p@a/b@c"] {
            assert_eq!(check_url(url).unwrap_err().kind(), ErrorKind::InvalidInput, "{url}");
        }
        for url in
            ["redis://u:p@a/b", "redis://u:p@q@a", "redis+unix:///run/a@b?pass=c@d", "redis://a/%40", ""]
        {
            check_url(url).unwrap();
        }
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn an_error_names_an_unknown_url_parameter_but_no_secret() {
        let (rest, pairs) = parameters("redis://h/1?db=2&&x=a%20b=c").unwrap();
        assert_eq!((rest, pairs), ("redis://h/1", vec![("db", "2"), ("x", "a%20b=c")]));
        no_parameters("etcd://h/p?").unwrap();
        for (url, named) in [
            ("etcd://h?timeout=S3CR3T", "\"timeout\""),
            ("etcd://h?S3CR3T", "a parameter"),
            ("etcd://u:p?S3CR3T/with%20more=x", "a parameter"),
            ("etcd://h#S3CR3T", "%23"),
            ("rediss://h#insecure", "%23"),
        ] {
            let error = no_parameters(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(error.to_string().contains(named) && !error.to_string().contains("S3CR3T"), "{error}");
        }
    }

    #[test]
    fn escapes_are_decoded_and_invalid_ones_refused() {
        for (text, read) in [("", ""), ("plain", "plain"), ("p%40s%2fs", "p@s/s"), ("%C3%A9+%25", "é+%")] {
            assert_eq!(unescaped(text).as_deref(), Some(read), "{text}");
        }
        for text in ["%", "%4", "50%", "%zz", "%+4", "%4é", "%ff"] {
            assert_eq!(unescaped(text), None, "{text}");
        }
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn each_host_of_a_url_has_its_own_or_the_default_port() {
        let list = HostList::read("me:p%40:s@one:7,two,[::1],[::2]:3/a/b", 2379).unwrap();
        let places: Vec<_> = list.places.iter().map(|(host, port)| (host.name(), *port)).collect();
        assert_eq!(places, [("one", 7), ("two", 2379), ("::1", 2379), ("::2", 3)]);
        assert_eq!((list.login, list.path), (Some("me:p%40:s"), "a/b"));
        for bad in ["", "one,", ",one", "one:", "one:0", "one:x", "one:99999", "[::1", "[::1]7", "[]", "a b"]
        {
            assert!(HostList::read(bad, 2379).is_none(), "{bad}");
        }
    }
}

#[cfg(all(test, leasehold_fuzz))]
mod fuzz {
    use std::hint::black_box;

    use super::*;
    use crate::fuzz::{each, nearly_text};

    const SEEDS: &[&[u8]] = &[
        b"redis://user:S3CR3T@host:6379/0",
        b"redis-sentinel://S3CR3T@a:1,[::1]:2,c/master/3",
        b"etcd://user:S3CR3T@a:1,b/prefix%2Fx",
        b"postgres://u:S3CR3T@host/db?sslmode=require",
        b"sqlite:///path/of%20it",
        b"zk://[fe80::1%25eth0]:2181,b:x/p@q",
    ];

    #[test]
    fn no_error_of_a_refused_url_shows_a_password() {
        each(nearly_text(SEEDS), String::len, |url| {
            for refused in [check_scheme(url), check_url(url)].into_iter().filter_map(Result::err) {
                assert!(!refused.to_string().contains("S3CR3T"), "{refused}");
            }
            black_box(unescaped(url));
            black_box(HostList::read(url.split_once("://").map_or(url.as_str(), |(_, rest)| rest), 1));
        });
    }
}
