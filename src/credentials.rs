//! A user and a password, and what provides them.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::inquiry::{Cause, Told};

/// The longest user name and password that are sent.
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
    /// The password of the user that the client's options or its URL name.
    pub fn new(password: impl Into<String>) -> Credentials {
        Credentials { username: None, password: password.into(), valid_for: None }
    }

    /// The user. Defaults to that of the client's options, or of the URL.
    pub fn username(mut self, username: impl Into<String>) -> Credentials {
        self.username = Some(username.into());
        self
    }

    /// The time from now after which the server ends connections that have logged in with these. Defaults to
    /// no such time.
    ///
    /// On Redis the client replaces each connection before: a fifth of the time, at least 30 s and at most
    /// half of it, and up to an eighth earlier, so that a fleet does not connect at once. The old connection
    /// serves until the new one stands. Other stores take no notice.
    pub fn valid_for(mut self, time: Duration) -> Credentials {
        self.valid_for = Some(time);
        self
    }

    /// The user and the password, with the user that is known otherwise.
    pub(crate) fn over(self, username: Option<String>) -> (Option<String>, Option<String>) {
        (self.username.or(username), Some(self.password))
    }

    /// Refuses credentials that no server lets in, and those that could end a field of a protocol early.
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
    /// Leaves out the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("valid_for", &self.valid_for).finish_non_exhaustive()
    }
}

/// Asked with the server's address.
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
