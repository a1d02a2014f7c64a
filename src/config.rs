//! Options of a client, and their checks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::time::{LONGEST_LEASE, checked_lease};

/// The shortest lease that the watchdog can keep alive: it renews each third.
pub(crate) const SHORTEST_RENEWED: Duration = Duration::from_millis(100);

/// Turns a lock's given name into the store's.
pub(crate) type NameMapper = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// What every store is used with.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) patience: Duration,
    pub(crate) key_prefix: String,
    pub(crate) map_names: Option<NameMapper>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            lease: Duration::from_secs(30),
            command_timeout: Duration::from_secs(3),
            patience: Duration::from_secs(10),
            key_prefix: String::new(),
            map_names: None,
        }
    }
}

impl Options {
    pub(crate) fn checked(mut self) -> Result<Options> {
        self.lease = checked_lease("connect", self.lease)?;
        if self.lease < SHORTEST_RENEWED {
            let (lease, least) = (self.lease, SHORTEST_RENEWED);
            return Err(Error::invalid(
                "connect",
                format!("a renewed lease of {lease:?} is too short: the least is {least:?}"),
            ));
        }
        check_timeout("command_timeout", self.command_timeout)?;
        Ok(self)
    }
}

/// What a Redis store is opened with.
#[derive(Clone)]
pub(crate) struct RedisOptions {
    pub(crate) url: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<i64>,
    pub(crate) client_name: Option<String>,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) pool_size: u32,
    /// How long a subscription that nobody needs stays.
    pub(crate) linger: Duration,
    /// Whether scripts may be used; without them only token locks work.
    pub(crate) scripts: bool,
    /// PEM file of the authorities to trust instead of the system's.
    pub(crate) tls_ca: Option<std::path::PathBuf>,
}

impl Default for RedisOptions {
    fn default() -> RedisOptions {
        RedisOptions {
            url: String::new(),
            username: None,
            password: None,
            database: None,
            client_name: None,
            connect_timeout: Duration::from_secs(3),
            command_timeout: Duration::from_secs(3),
            pool_size: 8,
            linger: Duration::from_secs(5),
            scripts: true,
            tls_ca: None,
        }
    }
}

impl RedisOptions {
    pub(crate) fn checked(self) -> Result<RedisOptions> {
        check_timeout("connect_timeout", self.connect_timeout)?;
        check_timeout("command_timeout", self.command_timeout)?;
        if self.pool_size == 0 {
            return Err(Error::invalid("connect", "a pool_size of 0 leaves no connection to work with"));
        }
        if self.client_name.as_deref().is_some_and(|name| name.contains(|c: char| !c.is_ascii_graphic())) {
            return Err(Error::invalid(
                "connect",
                "a client_name has printable ASCII characters only, no spaces",
            ));
        }
        Ok(self)
    }
}

fn check_timeout(option: &str, timeout: Duration) -> Result<()> {
    if timeout < Duration::from_millis(1) || timeout > LONGEST_LEASE {
        return Err(Error::invalid("connect", format!("a {option} of {timeout:?} cannot be used")));
    }
    Ok(())
}

impl fmt::Debug for RedisOptions {
    /// Leaves out what may be secret: the URL's user part and the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("database", &self.database)
            .field("client_name", &self.client_name)
            .field("pool_size", &self.pool_size)
            .finish_non_exhaustive()
    }
}
