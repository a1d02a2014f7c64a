//! A builder from environment variables.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::client::ClientBuilder;
use crate::config::{ClusterPubSub, client_options, read_secret, read_urls};
use crate::error::{Error, Result};
use crate::hosts::{check_scheme, labelled};
use crate::secrets::password_in;
use crate::topologies::ring::plan::{Ring, RingNode};

const ACTION: &str = "from_env";

/// Variables that may hold a secret. For each, the variable `NAME_FILE` may name a file with the value.
const SECRETS: [&str; 6] = [
    "LEASEHOLD_URL",
    "LEASEHOLD_REDLOCK",
    "LEASEHOLD_RING",
    "LEASEHOLD_RING_FROM",
    "LEASEHOLD_PASSWORD",
    "LEASEHOLD_SENTINEL_PASSWORD",
];
const FILE: &str = "_FILE";

/// Sets an option from a variable's text, or returns why the text cannot be used.
type Setter = fn(ClientBuilder, &str) -> std::result::Result<ClientBuilder, &'static str>;

macro_rules! setters {
    ($($(#[$_about:meta])* $_options:ident {
        $($(#[$_doc:meta])* $_field:ident: $_type:ty = $_default:expr $(, $variable:literal $set:ident($read:ident) $_example:literal)?;)*
    })*) => {
        &[$($($(($variable, |builder, text| $read(text).map(|value| builder.$set(value))),)?)*)*]
    };
}

const OPTIONS: &[(&str, Setter)] = client_options!(setters);

/// Options that `client_options` has no parser for: their setters take no value, or two.
const OTHER_OPTIONS: &[(&str, Setter)] = &[
    ("LEASEHOLD_SESSION_LOCKS", |builder, text| {
        Ok(if switch(text)? { builder.session_locks() } else { builder })
    }),
    ("LEASEHOLD_REPLICAS", |builder, text| {
        if switch(text) == Ok(false) {
            return Ok(builder.without_replicas());
        }
        let (count, within) = text.split_once(' ').ok_or("it is a number and a time, or no")?;
        Ok(builder.require_replicas(number(count)?, time(within)?))
    }),
    ("LEASEHOLD_DURABLE", |builder, text| {
        let (local, replicas) = text.split_once(' ').ok_or("it is two numbers")?;
        Ok(builder.durable(number(local)?, number(replicas)?))
    }),
];

macro_rules! rows {
    ($($(#[$_about:meta])* $_options:ident {
        $($(#[$_doc:meta])* $_field:ident: $_type:ty = $_default:expr $(, $variable:literal $set:ident($_read:ident) $example:literal)?;)*
    })*) => {
        concat!($($($("| `", $variable, "` | [`", stringify!($set), "`](Self::", stringify!($set), ") | `", $example, "` |\n",)?)*)*)
    };
}

impl ClientBuilder {
    /// A builder with the values of the environment variables below. A variable that is not set, or empty,
    /// leaves the default; the builder's methods can override each value.
    ///
    /// | Variable | As | Example |
    /// |---|---|---|
    /// | `LEASEHOLD_URL` | [`url`](Self::url) | `redis://127.0.0.1:6379` |
    /// | `LEASEHOLD_REDLOCK` | [`redlock`](Self::redlock) | `redis://a redis://b redis://c` |
    /// | `LEASEHOLD_RING` | [`ring`](Self::ring) | `redis://a eight=redis://b *2=redis://c` |
    /// | `LEASEHOLD_RING_EPOCH` | [`Ring::epoch`] | `2` |
    /// | `LEASEHOLD_RING_FROM` | [`Ring::moving_from`] | `redis://a redis://b` |
    /// | `LEASEHOLD_PASSWORD`, `LEASEHOLD_SENTINEL_PASSWORD` | [`password`](Self::password), [`sentinel_password`](Self::sentinel_password) | |
    /// | `LEASEHOLD_TLS_CA` | `tls_ca` (feature `tls`) | `/etc/locks/ca.pem` |
    /// | `LEASEHOLD_TLS_CERT`, `LEASEHOLD_TLS_KEY` | `tls_identity` (feature `tls`), both together | `/etc/locks/client.pem` |
    /// | `LEASEHOLD_SESSION_LOCKS` | `yes`: [`session_locks`](Self::session_locks) | `yes` |
    /// | `LEASEHOLD_REPLICAS` | [`require_replicas`](Self::require_replicas); `no`: [`without_replicas`](Self::without_replicas) | `1 100ms`, `no` |
    /// | `LEASEHOLD_DURABLE` | [`durable`](Self::durable): the server's file, and how many replicas' | `1 1` |
    #[doc = client_options!(rows)]
    ///
    /// Times are seconds, or numbers with `ms`, `s`, `m`, `h` or `d` in sequence: `30`, `500ms`, `1h30m`.
    /// Switches are `yes` or `no`, `true` or `false`, `on` or `off`, `1` or `0`. Spaces or line ends
    /// separate the items of lists. A server of a ring may have its [label](crate::RingNode::label), `*` and
    /// its [weight](crate::RingNode::weight), or both, and `=` before its URL. `leasehold run` sets
    /// `LEASEHOLD_UNDER`. Only code can set an observer, a provider of credentials, a mapping of names, the
    /// options for deadlocks, and connecting lazily.
    ///
    /// `LEASEHOLD_URL`, `LEASEHOLD_REDLOCK`, `LEASEHOLD_RING`, `LEASEHOLD_RING_FROM`, `LEASEHOLD_PASSWORD`
    /// and `LEASEHOLD_SENTINEL_PASSWORD` may be secret. The same name with `_FILE` (`LEASEHOLD_URL_FILE`)
    /// names a file with the value. In files of URLs, spaces around lines and lines that begin with `#` are
    /// ignored; in files of passwords, line ends at the end are ignored. The files are read again for new
    /// connections and after a refused login; those of `LEASEHOLD_TLS_*` after a refused handshake.
    ///
    /// # Errors
    /// Of kind [`InvalidInput`](crate::ErrorKind::InvalidInput), for an unusable value, an unreadable file,
    /// and variables that conflict or need each other. The text names the variable and never repeats the
    /// value, which may be secret. Of kind [`Unsupported`](crate::ErrorKind::Unsupported), for
    /// `LEASEHOLD_TLS_*` without the feature `tls`.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold::ClientBuilder;
    ///
    /// let client = ClientBuilder::from_env()?.client_name("shop").build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn from_env() -> Result<ClientBuilder> {
        ClientBuilder::from_variables(|name| env::var_os(name))
    }

    fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Result<ClientBuilder> {
        let variables = Variables { get: &get };
        let mut builder = ClientBuilder::default();
        builder.is_from_env = true;
        builder = servers(builder, &variables)?;
        for &(name, set) in OPTIONS.iter().chain(OTHER_OPTIONS) {
            let Some(text) = variables.text(name)? else { continue };
            builder = set(builder, &text).map_err(|why| unusable(name, why))?;
            builder.check_times().map_err(|error| unusable(name, error.detail()))?;
        }
        if let Some(password) = variables.text("LEASEHOLD_PASSWORD")? {
            builder = builder.password(&password);
            builder.server.credentials = variables.file("LEASEHOLD_PASSWORD")?.map(password_in);
        }
        if let Some(password) = variables.text("LEASEHOLD_SENTINEL_PASSWORD")? {
            builder = builder.sentinel_password(&password);
            builder.server.sentinel_credentials =
                variables.file("LEASEHOLD_SENTINEL_PASSWORD")?.map(password_in);
        }
        with_tls(builder, &variables)
    }
}

struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Variables<'_> {
    /// The value of a variable, or for one of [`SECRETS`] the content of the file that `NAME_FILE` names.
    fn text(&self, name: &str) -> Result<Option<String>> {
        let value = self.value(name)?;
        if !SECRETS.contains(&name) {
            return Ok(value);
        }
        let file = format!("{name}{FILE}");
        match (value, self.value(&file)?) {
            (value, None) => Ok(value),
            (Some(_), Some(_)) => Err(unusable(&file, &format!("{name} is set too: set one of them"))),
            // The path may be the secret itself, set by mistake, so no error shows the path.
            (None, Some(path)) => {
                let read = if name.ends_with("PASSWORD") { read_secret } else { read_urls };
                read(&path.into()).map(Some).map_err(|why| unusable(&file, &why))
            }
        }
    }

    fn file(&self, name: &str) -> Result<Option<PathBuf>> {
        Ok(self.value(&format!("{name}{FILE}"))?.map(PathBuf::from))
    }

    fn value(&self, name: &str) -> Result<Option<String>> {
        match (self.get)(name).filter(|value| !value.is_empty()).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(_unreadable)) => Err(unusable(name, "it is not Unicode")),
        }
    }

    /// The values of two variables, of which neither may stand alone.
    #[cfg(feature = "tls")]
    fn pair(&self, one: &str, other: &str) -> Result<Option<(String, String)>> {
        match (self.text(one)?, self.text(other)?) {
            (Some(first), Some(second)) => Ok(Some((first, second))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(unusable(one, &format!("{other} is not set, and both are needed"))),
            (None, Some(_)) => Err(unusable(other, &format!("{one} is not set, and both are needed"))),
        }
    }
}

fn servers(mut builder: ClientBuilder, variables: &Variables<'_>) -> Result<ClientBuilder> {
    let mut given = None;
    let mut one_of = |name: &'static str| match (variables.text(name)?, given) {
        (Some(_), Some(other)) => Err(unusable(name, &format!("{other} is set too: set one of them"))),
        (None, _) => Ok(None),
        (text, None) => {
            given = Some(name);
            Ok(text)
        }
    };
    if let Some(url) = one_of("LEASEHOLD_URL")? {
        check_scheme(&url).map_err(|error| unusable("LEASEHOLD_URL", error.detail()))?;
        builder = builder.url(&url);
        builder.server.url_files.extend(variables.file("LEASEHOLD_URL")?);
    }
    if let Some(urls) = one_of("LEASEHOLD_REDLOCK")? {
        let urls: Vec<&str> = urls.split_whitespace().collect();
        for url in &urls {
            check_scheme(url).map_err(|error| unusable("LEASEHOLD_REDLOCK", error.detail()))?;
        }
        builder = builder.redlock(urls);
        builder.server.url_files.extend(variables.file("LEASEHOLD_REDLOCK")?);
    }
    let (epoch, from) = (variables.text("LEASEHOLD_RING_EPOCH")?, variables.text("LEASEHOLD_RING_FROM")?);
    if let Some(nodes) = one_of("LEASEHOLD_RING")? {
        let mut ring = Ring::new(ring_nodes("LEASEHOLD_RING", &nodes)?);
        if let Some(epoch) = epoch {
            ring = ring.epoch(number(&epoch).map_err(|why| unusable("LEASEHOLD_RING_EPOCH", why))?);
        }
        if let Some(from) = from {
            ring = ring.moving_from(ring_nodes("LEASEHOLD_RING_FROM", &from)?);
        }
        builder = builder.ring(ring);
        for name in ["LEASEHOLD_RING", "LEASEHOLD_RING_FROM"] {
            builder.server.url_files.extend(variables.file(name)?);
        }
    } else if epoch.is_some() || from.is_some() {
        let name = if epoch.is_some() { "LEASEHOLD_RING_EPOCH" } else { "LEASEHOLD_RING_FROM" };
        return Err(unusable(name, "LEASEHOLD_RING is not set"));
    }
    Ok(builder)
}

/// Reads a ring's servers, with optional labels and weights: `label*2=redis://host`.
fn ring_nodes(name: &str, text: &str) -> Result<Vec<RingNode>> {
    let node = |word: &str| {
        let (before, url) = labelled(word);
        check_scheme(url).map_err(|error| unusable(name, error.detail()))?;
        let (label, weight) = before.rsplit_once('*').unwrap_or((before, ""));
        let mut node = RingNode::new(url);
        if !label.is_empty() {
            node = node.label(label);
        }
        if !weight.is_empty() {
            node = node.weight(number(weight).map_err(|why| unusable(name, why))?);
        }
        Ok(node)
    };
    text.split_whitespace().map(node).collect()
}

/// Applies the variables for TLS. Without the feature they are refused rather than ignored.
fn with_tls(builder: ClientBuilder, variables: &Variables<'_>) -> Result<ClientBuilder> {
    #[cfg(feature = "tls")]
    let builder = {
        let builder = variables.text("LEASEHOLD_TLS_CA")?.into_iter().fold(builder, ClientBuilder::tls_ca);
        let identity = variables.pair("LEASEHOLD_TLS_CERT", "LEASEHOLD_TLS_KEY")?;
        identity
            .into_iter()
            .fold(builder, |builder, (certificate, key)| builder.tls_identity(certificate, key))
    };
    #[cfg(not(feature = "tls"))]
    for name in ["LEASEHOLD_TLS_CA", "LEASEHOLD_TLS_CERT", "LEASEHOLD_TLS_KEY"] {
        if variables.text(name)?.is_some() {
            let words = format!("{name} cannot be used: this build lacks the feature \"tls\"");
            return Err(Error::new(crate::ErrorKind::Unsupported, ACTION, words));
        }
    }
    Ok(builder)
}

/// The error of an unusable variable, which names the variable but never its content.
fn unusable(name: &str, why: &str) -> Error {
    Error::invalid(ACTION, format!("{name} cannot be used: {why}"))
}

fn text(text: &str) -> std::result::Result<&str, &'static str> {
    Ok(text)
}

fn list(text: &str) -> std::result::Result<std::str::SplitWhitespace<'_>, &'static str> {
    Ok(text.split_whitespace())
}

fn time(text: &str) -> std::result::Result<Duration, &'static str> {
    ClientBuilder::parse_duration(text)
}

fn number<N: std::str::FromStr>(text: &str) -> std::result::Result<N, &'static str> {
    text.trim().parse().map_err(|_none| "its value is not a whole number, or is too large or too small")
}

fn switch(text: &str) -> std::result::Result<bool, &'static str> {
    match text.trim().to_ascii_lowercase().as_str() {
        "yes" | "true" | "on" | "1" => Ok(true),
        "no" | "false" | "off" | "0" => Ok(false),
        _ => Err("its value must be yes or no"),
    }
}

fn pub_sub(text: &str) -> std::result::Result<ClusterPubSub, &'static str> {
    match text.trim().to_ascii_lowercase().as_str() {
        "auto" => Ok(ClusterPubSub::Auto),
        "sharded" => Ok(ClusterPubSub::Sharded),
        "plain" => Ok(ClusterPubSub::Plain),
        "both" => Ok(ClusterPubSub::Both),
        _ => Err("its value must be auto, sharded, plain or both"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::copies::{Durable, ReplicaRule, Replicas};
    #[cfg(unix)]
    use std::os::unix::ffi::OsStringExt;
    #[cfg(windows)]
    use std::os::windows::ffi::OsStringExt;

    fn with(variables: &[(&str, &str)]) -> Result<ClientBuilder> {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        ClientBuilder::from_variables(value)
    }

    #[test]
    fn unset_or_empty_variables_keep_the_default() {
        let plain = with(&[("LEASEHOLD_LEASE", "")]).unwrap();
        let lease = |builder: &ClientBuilder| builder.options.lease;
        assert_eq!(lease(&plain), lease(&ClientBuilder::default()));
        let set = with(&[
            ("LEASEHOLD_URL", "redis://u:p@localhost"),
            ("LEASEHOLD_KEY_PREFIX", "shop:"),
            ("LEASEHOLD_LEASE", "7s"),
            ("LEASEHOLD_COMMAND_TIMEOUT", "1s"),
            ("LEASEHOLD_CONNECT_TIMEOUT", "2s"),
            ("LEASEHOLD_RETRY_TIMEOUT", "3s"),
        ]);
        let ClientBuilder { options, server, .. } = set.unwrap();
        let seconds = Duration::from_secs;
        assert_eq!((server.url.as_str(), options.key_prefix.as_str()), ("redis://u:p@localhost", "shop:"));
        assert_eq!((options.lease, options.retry_timeout), (seconds(7), seconds(3)));
        assert_eq!((options.command_timeout, server.command_timeout), (seconds(1), seconds(1)));
        assert_eq!(server.connect_timeout, seconds(2));
    }

    /// The tests of the command-line program cover the variables that this test leaves out.
    #[test]
    fn variables_set_their_options() {
        let set = with(&[
            ("LEASEHOLD_USERNAME", "u"),
            ("LEASEHOLD_PASSWORD", "p"),
            ("LEASEHOLD_SENTINEL_USERNAME", "su"),
            ("LEASEHOLD_SENTINEL_PASSWORD", "sp"),
            ("LEASEHOLD_DATABASE", "3"),
            ("LEASEHOLD_CLIENT_NAME", "named"),
            ("LEASEHOLD_LABEL", "labelled"),
            ("LEASEHOLD_DIRECTORY", "No"),
            ("LEASEHOLD_POOL_SIZE", "9"),
            ("LEASEHOLD_UNSUBSCRIBE_DELAY", "4s"),
            ("LEASEHOLD_CLUSTER_PUB_SUB", "Both"),
            ("LEASEHOLD_REPLICAS", "2 20ms"),
            ("LEASEHOLD_DURABLE", "1 2"),
            ("LEASEHOLD_TABLE", "s.t"),
            ("LEASEHOLD_CREATE_SCHEMA", "1"),
            ("LEASEHOLD_SESSION_LOCKS", "true"),
            ("LEASEHOLD_DESIGNATED_POLLER", "0"),
            ("LEASEHOLD_ALLOWED_HOSTS", "a *.b"),
        ]);
        let ClientBuilder { options, server, .. } = set.unwrap();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!((server.username, server.password), (text("u"), text("p")));
        assert_eq!((server.sentinel_username, server.sentinel_password), (text("su"), text("sp")));
        assert_eq!((server.database, server.client_name, server.pool_size), (Some(3), text("named"), 9));
        assert_eq!((options.label, options.directory), (text("labelled"), false));
        assert_eq!(
            (server.unsubscribe_delay, server.cluster_pub_sub),
            (Duration::from_secs(4), ClusterPubSub::Both)
        );
        let replicas = Replicas { count: 2, within: Duration::from_millis(20) };
        assert_eq!(server.replicas, ReplicaRule::Required(replicas));
        assert_eq!(server.durable, Some(Durable { local: 1, replicas: 2 }));
        assert_eq!((server.table.name.as_str(), server.table.create), ("s.t", true));
        assert_eq!((server.table.session_locks, server.table.designated_poller), (true, false));
        assert!(server.hosts.check_options().is_ok());
    }

    #[test]
    fn the_documentation_and_the_man_pages_name_each_variable() {
        let read = |file: &str| fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let (this, man) = (read("src/client/env.rs"), read("cli/src/help.rs"));
        let (code, _tests) = this.split_once("mod tests").unwrap();
        let is_documentation = |line: &&str| line.trim_start().starts_with("///");
        let documentation: String = code.lines().filter(is_documentation).collect();
        let is_name = |word: &&str| {
            word.starts_with("LEASEHOLD_") && word.bytes().all(|c| c.is_ascii_uppercase() || c == b'_')
        };
        for name in code.split('"').filter(is_name) {
            assert!(documentation.contains(&format!("`{name}`")), "from_env lacks {name}");
            assert!(man.contains(name), "the man pages lack {name}");
        }
        let of_the_table = OPTIONS.iter().map(|(name, _)| (*name).to_owned());
        for name in of_the_table.chain(SECRETS.map(|name| format!("{name}{FILE}"))) {
            assert!(man.contains(&name), "the man pages lack {name}");
        }
    }

    #[test]
    fn ring_nodes_and_redlock_servers_are_read_from_variables() {
        let set = with(&[
            ("LEASEHOLD_RING", "redis://u:p=w@a\n  eight=redis://b *2=redis://c d*3=redis://d"),
            ("LEASEHOLD_RING_EPOCH", "7"),
            ("LEASEHOLD_RING_FROM", "redis://a"),
        ]);
        let nodes = [
            RingNode::new("redis://u:p=w@a"),
            RingNode::new("redis://b").label("eight"),
            RingNode::new("redis://c").weight(2),
            RingNode::new("redis://d").label("d").weight(3),
        ];
        let ring = Ring::new(nodes).epoch(7).moving_from(["redis://a"]);
        assert_eq!(set.unwrap().ring, Some(ring));
        let set = with(&[
            ("LEASEHOLD_REDLOCK", "redis://a redis://b  redis://c"),
            ("LEASEHOLD_NODE_TIMEOUT", "9ms"),
        ]);
        let ClientBuilder { redlock, node_timeout, .. } = set.unwrap();
        let urls: Vec<String> = redlock.unwrap().nodes.into_iter().map(|node| node.url).collect();
        assert_eq!(urls, ["redis://a", "redis://b", "redis://c"]);
        assert_eq!(node_timeout, Some(Duration::from_millis(9)));
    }

    #[test]
    fn secrets_can_be_read_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret").display().to_string();
        fs::write(&path, "redis://:S3CR3T@a\r\n").unwrap();
        assert_eq!(with(&[("LEASEHOLD_URL_FILE", &path)]).unwrap().server.url, "redis://:S3CR3T@a");
        fs::write(&path, "# the locks\n\n  redis://:S3CR3T@a \n").unwrap();
        assert_eq!(with(&[("LEASEHOLD_URL_FILE", &path)]).unwrap().server.url, "redis://:S3CR3T@a");
        fs::write(&path, " with spaces \n").unwrap();
        let password = with(&[("LEASEHOLD_PASSWORD_FILE", &path)]).unwrap().server.password;
        assert_eq!(password.as_deref(), Some(" with spaces "));
        fs::write(&path, "\n").unwrap();
        let error = with(&[("LEASEHOLD_SENTINEL_PASSWORD_FILE", &path)]).map(drop).unwrap_err();
        assert!(error.to_string().contains("LEASEHOLD_SENTINEL_PASSWORD_FILE"), "{error}");
        assert!(with(&[("LEASEHOLD_PREFIX_FILE", "/no/such/file")]).is_ok(), "it has no _FILE form");
    }

    #[test]
    fn the_variable_leasehold_replicas_can_turn_off_waiting_for_replicas() {
        for word in ["no", "Off", "0"] {
            let server = with(&[("LEASEHOLD_REPLICAS", word)]).unwrap().server;
            assert_eq!(server.replicas, ReplicaRule::Nothing, "{word}");
        }
    }

    #[test]
    fn contradictory_or_incomplete_variables_are_refused() {
        let (url, three) = (("LEASEHOLD_URL", "redis://a"), "redis://a redis://b redis://c");
        for (variables, names) in [
            (&[url, ("LEASEHOLD_URL_FILE", "/no/such/file")][..], ["LEASEHOLD_URL", "LEASEHOLD_URL_FILE"]),
            (&[url, ("LEASEHOLD_REDLOCK", three)], ["LEASEHOLD_URL", "LEASEHOLD_REDLOCK"]),
            (
                &[("LEASEHOLD_REDLOCK", three), ("LEASEHOLD_RING", three)],
                ["LEASEHOLD_REDLOCK", "LEASEHOLD_RING"],
            ),
            (&[("LEASEHOLD_RING_FROM", three)], ["LEASEHOLD_RING_FROM", "LEASEHOLD_RING"]),
            (&[("LEASEHOLD_REPLICAS", "1")], ["LEASEHOLD_REPLICAS", "a number and a time"]),
            #[cfg(feature = "tls")]
            (&[("LEASEHOLD_TLS_KEY", "k")], ["LEASEHOLD_TLS_KEY", "LEASEHOLD_TLS_CERT"]),
        ] {
            let error = with(variables).map(drop).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
            assert!(names.iter().all(|name| error.to_string().contains(name)), "{error}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_variables_name_certificate_files() {
        let set =
            with(&[("LEASEHOLD_TLS_CA", "/a"), ("LEASEHOLD_TLS_CERT", "/b"), ("LEASEHOLD_TLS_KEY", "/c")]);
        let tls = set.unwrap().server.tls;
        assert_eq!((tls.ca, tls.identity), (Some("/a".into()), Some(("/b".into(), "/c".into()))));
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_variables_are_refused_without_the_tls_feature() {
        for name in ["LEASEHOLD_TLS_CA", "LEASEHOLD_TLS_CERT", "LEASEHOLD_TLS_KEY"] {
            let error = with(&[(name, "/a")]).map(drop).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn an_error_names_the_variable_and_never_its_value() {
        for (name, value) in [
            ("LEASEHOLD_URL_FILE", "/no/S3CR3T"),
            ("LEASEHOLD_PASSWORD_FILE", "S3CR3T"),
            ("LEASEHOLD_REDLOCK", "redis://a u:S3CR3T@b"),
            ("LEASEHOLD_RING", "redis://a u:S3CR3T@b"),
            ("LEASEHOLD_RING", "S3CR3T*S3CR3T=redis://a"),
            ("LEASEHOLD_POOL_SIZE", "0"),
            ("LEASEHOLD_POOL_SIZE", "S3CR3T"),
            ("LEASEHOLD_DATABASE", "S3CR3T"),
            ("LEASEHOLD_CLIENT_NAME", "two words"),
            ("LEASEHOLD_DIRECTORY", "S3CR3T"),
            ("LEASEHOLD_CLUSTER_PUB_SUB", "S3CR3T"),
            ("LEASEHOLD_ALLOWED_HOSTS", "cache:6379"),
            ("LEASEHOLD_URL", "user:S3CR3T@localhost:6379"),
            ("LEASEHOLD_URL", "S3CR3T"),
            ("LEASEHOLD_LEASE", "S3CR3T"),
            ("LEASEHOLD_LEASE", "1ms"),
            ("LEASEHOLD_COMMAND_TIMEOUT", "0s"),
            ("LEASEHOLD_CONNECT_TIMEOUT", "redis://u:S3CR3T@localhost"),
            ("LEASEHOLD_RETRY_TIMEOUT", "30 seconds"),
        ] {
            let error = with(&[(name, value)]).map(drop).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
            let said = format!("{error} {error:?}");
            assert!(said.contains(name) && !said.contains("S3CR3T"), "{said}");
        }
        #[cfg(unix)]
        let unreadable = |_: &str| Some(OsString::from_vec(vec![b'a', 0xff]));
        #[cfg(windows)]
        let unreadable = |_: &str| Some(OsString::from_wide(&[0x61, 0xd800]));
        let error = ClientBuilder::from_variables(unreadable).map(drop).unwrap_err();
        assert!(error.to_string().contains("LEASEHOLD_URL"), "{error}");
    }

    #[test]
    fn error_for_a_missing_url_names_the_variable_leasehold_url() {
        let error = with(&[]).unwrap().build().unwrap_err();
        assert!(error.to_string().contains("LEASEHOLD_URL"), "{error}");
    }
}
