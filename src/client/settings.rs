//! Only the program `leasehold` uses this file: it reads a builder's options for its own connections to the
//! servers, and calls some private functions of this crate.

use std::path::PathBuf;
use std::time::Duration;

use crate::client::ClientBuilder;
use crate::config::{Provider, debug_fields, read_urls};
use crate::directory::ClientInfo;

/// The time in nanoseconds by this machine's clock, which also runs while the machine sleeps.
pub const NANOS: fn() -> u64 = crate::system::nanos;
/// The name of this machine.
pub const HOST_NAME: fn() -> String = crate::system::host_name;
/// A duration in words.
pub const SPAN: fn(Duration) -> String = crate::inspect::span;
/// Whether a wait in the client's entry may be part of a deadlock: the search starts at such waits.
pub const MAY_BE_DEADLOCKED: fn(&ClientInfo) -> bool =
    |client| client.uses.iter().any(|one| one.published.is_some());

/// The options in effect. Empty or `None` means the default.
#[expect(missing_docs, reason = "each is the builder's option of the same name")]
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// Empty if there are several servers.
    pub url: String,
    /// The servers of a Redlock or of a ring.
    pub urls: Vec<String>,
    pub username: Option<String>,
    pub password: Option<String>,
    pub sentinel_username: Option<String>,
    pub sentinel_password: Option<String>,
    credentials: Option<Provider>,
    pub database: Option<i64>,
    pub tls_ca: Option<PathBuf>,
    pub tls_identity: Option<(PathBuf, PathBuf)>,
    pub key_prefix: String,
    pub client_name: Option<String>,
    pub label: Option<String>,
    pub lease: Duration,
    pub command_timeout: Duration,
    pub retry_timeout: Duration,
}

debug_fields!(Settings, |_|);

/// User and password: the provider's, or if there is none or it fails, those of the options.
impl From<Settings> for (Option<String>, Option<String>) {
    fn from(given: Settings) -> (Option<String>, Option<String>) {
        match given.credentials.and_then(|provider| provider("").ok()) {
            Some(credentials) => credentials.over(given.username),
            None => (given.username, given.password),
        }
    }
}

impl ClientBuilder {
    /// The options so far. An unreadable file counts as empty here; [`build`](Self::build) returns its error.
    #[doc(hidden)]
    #[must_use]
    pub fn settings(&self) -> Settings {
        let (server, options) = (self.server.clone(), self.options.clone());
        let redlock = self.redlock.iter().flat_map(|redlock| &redlock.nodes).map(|node| &node.url);
        let ring = self.ring.iter().flat_map(|ring| &ring.nodes).map(|node| &node.url);
        let url =
            Some(server.url).filter(|url| !url.is_empty() || self.redlock.is_some() || self.ring.is_some());
        Settings {
            url: url.or_else(|| read_urls(server.url_files.first()?).ok()).unwrap_or_default(),
            urls: redlock.chain(ring).cloned().collect(),
            username: server.username,
            password: server.password,
            sentinel_username: server.sentinel_username,
            sentinel_password: server.sentinel_password,
            credentials: server.credentials,
            database: server.database,
            tls_ca: server.tls.ca,
            tls_identity: server.tls.identity,
            key_prefix: options.key_prefix,
            client_name: server.client_name,
            label: options.label,
            lease: options.lease,
            command_timeout: options.command_timeout,
            retry_timeout: options.retry_timeout,
        }
    }

    /// Reads a duration, as in variables and the program's options: seconds, or numbers with units.
    ///
    /// # Errors
    /// Why the text is no duration.
    #[doc(hidden)]
    pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
        parsed(text).ok_or("its value is not a duration: write seconds, or a form like 500ms, 1h30m or 2d")
    }
}

fn parsed(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let is_plain = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let mut seconds = 0.0;
    loop {
        let (number, behind) =
            rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len()));
        let (unit, behind) =
            behind.split_at(behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len()));
        let scale = match unit.trim() {
            "" if is_plain => 1.0,
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * scale;
        if behind.is_empty() {
            return Duration::try_from_secs_f64(seconds).ok();
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_file_is_read_when_the_client_is_built() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# the store\n redis://host \n").unwrap();
        let builder = ClientBuilder::default().url_file(file.path());
        assert_eq!(builder.settings().url, "redis://host");
        let mut server = builder.server;
        server.read_url().unwrap();
        assert_eq!(server.url, "redis://host");
        let error = ClientBuilder::default().url_file("/none").build().unwrap_err();
        assert!(error.to_string().contains("the URL's file cannot be used"), "{error}");
    }

    #[test]
    fn times_are_read_as_seconds_or_numbers_with_units() {
        let ms = Duration::from_millis;
        for (text, span) in [
            ("500ms", ms(500)),
            ("30s", ms(30_000)),
            ("30", ms(30_000)),
            ("2 m", ms(120_000)),
            (" 1h ", ms(3_600_000)),
            ("1h30m", ms(5_400_000)),
            ("1m 500ms", ms(60_500)),
            ("1d", ms(86_400_000)),
            ("1.5h", ms(5_400_000)),
            ("0.5", ms(500)),
        ] {
            assert_eq!(ClientBuilder::parse_duration(text), Ok(span), "{text}");
        }
        for bad in [
            "",
            " ",
            "s",
            "+30",
            "1h30",
            "-1s",
            "1.2.3s",
            "30 seconds",
            "30S",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(ClientBuilder::parse_duration(bad).is_err(), "{bad}");
        }
    }
}
