//! Credentials, and their provider.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::inquiry::{Cause, Told};

/// Longest user name and password.
const LONGEST: usize = 64 * 1024;

/// A user and a password, as a provider of [`ClientBuilder::credentials`](crate::ClientBuilder::credentials)
/// returns them.
///
/// # Examples
/// ```
/// use leasehold::Credentials;
/// use std::time::Duration;
///
/// let credentials = Credentials::new("token").username("locks").valid_for(Duration::from_secs(900));
/// assert!(!format!("{credentials:?}").contains("token"));
/// ```
#[derive(Clone)]
#[must_use = "a provider returns them"]
pub struct Credentials {
    username: Option<String>,
    password: String,
    pub(crate) valid_for: Option<Duration>,
}

impl Credentials {
    /// The password of the user named in the client's options or URL.
    pub fn new(password: impl Into<String>) -> Credentials {
        Credentials { username: None, password: password.into(), valid_for: None }
    }

    /// The user. Defaults to that of the client's options, or of the URL.
    pub fn username(mut self, username: impl Into<String>) -> Credentials {
        self.username = Some(username.into());
        self
    }

    /// When, from now on, the server ends connections that logged in with these. Defaults to never.
    ///
    /// On Redis the client replaces each connection before that: a fifth of the time, at least 30 s and at
    /// most half of it, and up to an eighth earlier, so that a fleet does not reconnect at once. The old
    /// connection serves until the new one stands. Other stores ignore this.
    pub fn valid_for(mut self, time: Duration) -> Credentials {
        self.valid_for = Some(time);
        self
    }

    /// User and password; `username` is the default.
    pub(crate) fn over(self, username: Option<String>) -> (Option<String>, Option<String>) {
        (self.username.or(username), Some(self.password))
    }

    /// Refuses credentials that no server accepts, and those that could break a protocol's framing.
    pub(crate) fn check(&self) -> std::result::Result<(), &'static str> {
        let texts = || self.username.iter().chain([&self.password]);
        match () {
            () if self.password.is_empty() => Err("the password is empty"),
            () if texts().any(|text| text.contains('\0')) => Err("there is a NUL in them"),
            () if texts().any(|text| text.len() > LONGEST) => Err("they are longer than 64 KiB"),
            () => Ok(()),
        }
    }
}

impl fmt::Debug for Credentials {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("valid_for", &self.valid_for).finish_non_exhaustive()
    }
}

/// Called with the server's address.
pub(crate) type Provider = Arc<dyn Fn(&str) -> Told<Credentials> + Send + Sync>;

pub(crate) fn provider<E: Into<Box<dyn StdError + Send + Sync>>>(
    ask: impl Fn(&str) -> std::result::Result<Credentials, E> + Send + Sync + 'static,
) -> Provider {
    Arc::new(move |address| {
        ask(address).map_err(|error| {
            let boxed: Box<dyn StdError + Send + Sync> = error.into();
            Cause::from(boxed)
        })
    })
}
