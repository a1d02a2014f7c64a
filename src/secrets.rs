//! A client's credentials and certificates, which may change while it runs: from a provider or from files.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Credentials, Provider, ServerOptions, provider, read_secret, read_urls};
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{labelled, without_credentials};
use crate::inquiry::{Cause, Inquiry, Told};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::time::{Clock, Moment};

/// How long a provider's answer is reused for further connections, and how long a failure.
const FRESH: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(250));
/// First and longest pause between two questions to a provider whose answers are refused; the pause doubles.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Maximum number of tries to connect, as long as there are newer secrets after each refusal.
const MOST_TRIES: usize = 4;
const MOST_KEPT: usize = 1024;

pub(crate) fn password_in(file: PathBuf) -> Provider {
    provider(move |_| read_secret(&file).map(Credentials::new))
}

/// A client's options, with the secrets that the sources (provider and files) gave at one moment.
struct Secrets {
    asked: Moment,
    options: ServerOptions,
    /// Contents of [`ServerOptions::secret_files`].
    files: Vec<Option<Vec<u8>>>,
    ends: Option<Moment>,
}

impl Secrets {
    fn are_those_of(&self, other: &Secrets) -> bool {
        let login = |options: &ServerOptions| {
            (options.url.clone(), options.username.clone(), options.password.clone())
        };
        self.files == other.files && login(&self.options) == login(&other.options)
    }
}

impl ServerOptions {
    /// The files with secrets: the certificate, its key, the trusted authorities, and the file of URLs.
    fn secret_files(&self) -> impl Iterator<Item = PathBuf> {
        let (_, query) = self.url.split_once('?').unwrap_or_default();
        let named = query.split('&').filter_map(|pair| pair.split_once('='));
        let named = named.filter(|(name, _)| matches!(*name, "sslrootcert" | "sslcert" | "sslkey"));
        let named: Vec<PathBuf> = named.map(|(_, file)| file.into()).collect();
        let own = self.tls.ca.iter().chain(&self.url_files);
        let identity = self.tls.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        named.into_iter().chain(own.chain(identity).cloned().collect::<Vec<_>>())
    }

    fn file_contents(&self) -> Vec<Option<Vec<u8>>> {
        self.secret_files().map(|file| fs::read(file).ok()).collect()
    }

    /// Asks the sources for the secrets of the server at `address`. Of a changed URL only the credentials are
    /// used: the client stays with the servers that have its locks.
    fn secrets(&self, address: &str) -> Told<Secrets> {
        let asked = Clock::System.now();
        // The contents are noted before the files are used, so the next comparison shows a change during the
        // use.
        let files = self.file_contents();
        let (mut options, mut ends) = (self.clone(), None);
        let place = without_credentials(&self.url);
        for text in self.url_files.iter().filter_map(|file| read_urls(file).ok()) {
            let urls = [&*text].into_iter().chain(text.split_whitespace().map(|word| labelled(word).1));
            if let Some(url) = urls.into_iter().find(|url| without_credentials(url) == place) {
                url.clone_into(&mut options.url);
            }
        }
        if let Some(provider) = &self.credentials {
            let given = provider(address)?;
            given.check().map_err(cause)?;
            ends = given.valid_for.map(|time| Clock::System.after(time));
            (options.username, options.password) = given.over(options.username);
        }
        Ok(Secrets { asked, options, files, ends })
    }
}

fn cause(words: &str) -> Cause {
    Cause::from(<Box<dyn StdError + Send + Sync>>::from(words))
}

fn failed(words: &str) -> Error {
    Error::new(ErrorKind::Credentials, "connect", words)
}

fn late() -> Error {
    failed("the provider of credentials did not answer in time")
}

/// Options in a store's own form `T`, made anew when a secret has changed.
///
/// The client asks the sources of the secrets after a refused login or handshake, and, with a provider or a
/// file of URLs, for each connection. If a refused secret has changed, the client tries again
/// ([`MOST_TRIES`]).
pub(crate) struct Renewable<T> {
    options: ServerOptions,
    make: fn(&ServerOptions) -> Result<T>,
    inquiry: Arc<Inquiry<Arc<Secrets>>>,
    /// With a provider one form for each server's address, since its answer may depend on the address;
    /// otherwise a single form, under the empty address.
    made: Mutex<HashMap<Box<str>, Made<T>>>,
    /// Refusals for which the sources had no newer secret, since the last successful connection.
    refusals: AtomicU32,
    /// How long a provider's answer is reused: [`FRESH`], except in tests.
    fresh: Duration,
}

struct Made<T> {
    of: Arc<Secrets>,
    form: Arc<T>,
}

impl<T> Clone for Made<T> {
    fn clone(&self) -> Made<T> {
        Made { of: Arc::clone(&self.of), form: Arc::clone(&self.form) }
    }
}

impl<T> Renewable<T> {
    /// Also returns a form without the provider's credentials, from which the store reads hosts and paths.
    pub(crate) fn new(
        options: &ServerOptions,
        make: fn(&ServerOptions) -> Result<T>,
    ) -> Result<(Arc<Renewable<T>>, Arc<T>)> {
        let mut known = options.clone();
        let mut made = HashMap::default();
        let files = options.file_contents();
        if options.credentials.is_some() {
            known.username = None; // some stores refuse a user without a password
        }
        let form = Arc::new(make(&known)?);
        if options.credentials.is_none() {
            let of = Arc::new(Secrets { asked: Moment::from_nanos(0), options: known, files, ends: None });
            made.insert("".into(), Made { of, form: Arc::clone(&form) });
        }
        let asked = options.clone();
        let ask = move |address: &str| {
            let told = catch_unwind(AssertUnwindSafe(|| asked.secrets(address)));
            told.unwrap_or_else(|_panic| Err(cause("it panicked"))).map(Arc::new)
        };
        let renewable = Renewable {
            options: options.clone(),
            make,
            inquiry: Inquiry::new("leasehold-secrets", ask),
            made: Mutex::new(made),
            refusals: AtomicU32::new(0),
            fresh: FRESH.0,
        };
        Ok((Arc::new(renewable), form))
    }

    fn last(&self, address: &str) -> Option<Made<T>> {
        self.made.lock().get(address).cloned()
    }

    fn current(&self, address: &str, deadline: Moment) -> Result<Made<T>> {
        let address = if self.options.credentials.is_some() { address } else { "" };
        let last = self.last(address);
        match last {
            Some(last) if self.options.credentials.is_none() && self.options.url_files.is_empty() => Ok(last),
            // If the sources fail, the former credentials are used: the server may still accept them.
            last => self.ask(address, self.fresh, deadline).or_else(|error| last.ok_or(error)),
        }
    }

    fn ask(&self, address: &str, fresh: Duration, deadline: Moment) -> Result<Made<T>> {
        let told = self.inquiry.answer(address, (fresh, FRESH.1), deadline).ok_or_else(late)?;
        let of = told.map_err(|cause| failed("the provider of credentials failed").with_source(cause))?;
        let last = self.last(address).filter(|last| last.of.are_those_of(&of));
        let form = last.map_or_else(|| (self.make)(&of.options).map(Arc::new), |last| Ok(last.form))?;
        let made = Made { of, form };
        let mut all = self.made.lock();
        if all.len() >= MOST_KEPT {
            all.clear();
        }
        if let Some(newer) = all.get(address).filter(|newer| newer.of.asked > made.of.asked) {
            return Ok(newer.clone());
        }
        all.insert(address.into(), made.clone());
        Ok(made)
    }

    /// The form to try after `tried` failed with `error`; `None`: no newer one, or no secret was refused.
    fn after(
        &self,
        error: &Error,
        tried: &Made<T>,
        address: &str,
        deadline: Moment,
    ) -> Result<Option<Made<T>>> {
        if !matches!(error.kind(), ErrorKind::Authentication | ErrorKind::Tls) {
            return Ok(None);
        }
        let has_provider = self.options.credentials.is_some();
        let address = if has_provider { address } else { "" };
        let is_new = |made: &Made<T>| !Arc::ptr_eq(&made.form, &tried.form);
        if let Some(made) = self.last(address).filter(is_new) {
            return Ok(Some(made)); // made by another thread
        }
        let doublings = self.refusals.load(Ordering::Relaxed);
        let pause = doublings.checked_sub(1).map_or(Duration::ZERO, |doublings| {
            PAUSES.0.saturating_mul(1 << doublings.min(16)).min(PAUSES.1)
        });
        let newer = match self.ask(address, pause, deadline) {
            Ok(made) if has_provider && pause.is_zero() && Arc::ptr_eq(&made.of, &tried.of) => {
                return Err(late());
            }
            Ok(made) => Some(made).filter(is_new),
            Err(error) if has_provider && error.kind() == ErrorKind::Credentials => return Err(error),
            Err(_unusable) => None,
        };
        if newer.is_none() {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
        Ok(newer)
    }

    /// Calls `connect` with the current form, and again with each new one after a refusal. The second
    /// argument of `connect` is the time at which the server ends the connection.
    pub(crate) fn with<R>(
        &self,
        address: &str,
        deadline: Moment,
        connect: impl Fn(&T, Option<Moment>) -> Result<R>,
    ) -> Result<R> {
        let mut tried = self.current(address, deadline)?;
        let mut connected = connect(&tried.form, tried.of.ends);
        for _ in 1..MOST_TRIES {
            let Err(error) = &connected else { break };
            let Some(newer) = self.after(error, &tried, address, deadline)? else { break };
            tried = newer;
            connected = connect(&tried.form, tried.of.ends);
        }
        connected.inspect(|_| self.refusals.store(0, Ordering::Relaxed))
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    type Login = (String, Option<String>);

    fn renewable(options: &ServerOptions) -> Arc<Renewable<Login>> {
        let make = |options: &ServerOptions| Ok((options.url.clone(), options.password.clone()));
        let mut renewable = Renewable::new(options, make).unwrap().0;
        Arc::get_mut(&mut renewable).unwrap().fresh = Duration::from_secs(3600);
        renewable
    }

    /// Connects to a server that accepts only `right`; returns the result and the tried credentials.
    fn connect(renewable: &Renewable<Login>, right: &str, refusal: ErrorKind) -> (Result<()>, Vec<Login>) {
        let asked = Mutex::new(Vec::new());
        let outcome = renewable.with("host:1", Clock::System.after(Duration::from_secs(20)), |made, _| {
            asked.lock().push(made.clone());
            let is_right = made.1.as_deref() == Some(right) || made.0.contains(right);
            if is_right { Ok(()) } else { Err(Error::new(refusal, "connect", "no")) }
        });
        (outcome, asked.into_inner())
    }

    use ErrorKind::Authentication;

    #[test]
    fn a_changed_url_file_changes_the_login_and_never_the_server() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let url = "redis://u:1@host/2".to_owned();
        let options = ServerOptions {
            url: url.clone(),
            url_files: vec![file.path().into()],
            ..ServerOptions::default()
        };
        for (text, right, seen) in [
            (&*url, "u:1@", "redis://u:1@host/2"),
            ("redis://u:3@host/2", "u:3@", "redis://u:3@host/2"),
            ("redis://u:4@other/2", "u:1@", "redis://u:1@host/2"),
            ("redis://u:5@other/2 a*2=redis://u:6@host/2", "u:6@", "redis://u:6@host/2"),
        ] {
            fs::write(file.path(), text).unwrap();
            let (outcome, tried) = connect(&renewable(&options), right, Authentication);
            assert_eq!((outcome.is_ok(), &*tried[0].0), (true, seen), "{text}");
        }
    }

    #[test]
    fn a_refused_login_makes_the_client_ask_the_provider_again() {
        let answers = Arc::new(Mutex::new(vec!["old"]));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (said, heard) = (Arc::clone(&answers), Arc::clone(&asked));
        let credentials = provider(move |address: &str| {
            heard.lock().push(address.to_owned());
            let mut said = said.lock();
            let answer = if said.len() > 1 { said.remove(0) } else { said[0] };
            match answer {
                "panics" => panic!("the test wants this panic"),
                "fails" => Err("out of order"),
                answer => Ok(Credentials::new(answer)),
            }
        });
        let mut options = ServerOptions { credentials: Some(credentials), ..ServerOptions::default() };
        options.username = Some("u".to_owned());
        let renewable = renewable(&options);
        let times = || std::mem::take(&mut *asked.lock()).len();
        let tried = |right: &str, refusal| {
            let (outcome, tried) = connect(&renewable, right, refusal);
            let tried: Vec<String> = tried.into_iter().filter_map(|(_, password)| password).collect();
            (outcome.map_err(|error| error.kind()), tried.join(" "))
        };
        assert_eq!(tried("old", Authentication), (Ok(()), "old".to_owned()));
        assert_eq!(tried("old", Authentication), (Ok(()), "old".to_owned()));
        assert_eq!(
            std::mem::take(&mut *asked.lock()),
            ["host:1"],
            "the second connection uses the first answer"
        );
        // The password changes between the provider's answer and the login.
        *answers.lock() = vec!["new"];
        assert_eq!(tried("new", ErrorKind::Unreachable).1, "old", "no server refused it");
        assert_eq!(tried("new", Authentication), (Ok(()), "old new".to_owned()));
        assert_eq!(tried("new", Authentication), (Ok(()), "new".to_owned()));
        assert_eq!(times(), 1);
        // The client asks the provider at once, and then only after pauses: less often than it connects.
        for _ in 0..100 {
            assert_eq!(tried("x", Authentication).0, Err(Authentication));
        }
        assert!((1..100).contains(&times()));
        *answers.lock() = vec!["fails", "panics", "", "a\0b", "new"];
        for _ in 0..4 {
            let (outcome, _) = connect(&self::renewable(&options), "new", Authentication);
            let error = outcome.unwrap_err();
            assert!(error.kind() == ErrorKind::Credentials && error.is_retryable(), "{error}");
        }
        assert!(connect(&self::renewable(&options), "new", Authentication).0.is_ok());
    }

    /// The answer to a question sent before the refusal may be the old password.
    #[test]
    fn older_provider_answers_are_ignored_after_a_refused_login() {
        let (sender, answers) = crossbeam_channel::unbounded::<&str>();
        let credentials = provider(move |_: &str| answers.recv().map(Credentials::new));
        let renewable =
            renewable(&ServerOptions { credentials: Some(credentials), ..ServerOptions::default() });
        sender.send("old").unwrap();
        assert!(connect(&renewable, "old", Authentication).0.is_ok());
        let soon = Clock::System.after(Duration::from_millis(20));
        assert!(
            renewable.ask("host:1", Duration::from_nanos(1), soon).is_ok(),
            "the question for host:1 hangs"
        );
        sender.send("old").unwrap();
        sender.send("new").unwrap();
        assert!(connect(&renewable, "new", Authentication).0.is_ok());
    }

    #[test]
    fn the_last_credentials_are_used_while_the_provider_fails_or_hangs() {
        let (sender, answers) = crossbeam_channel::unbounded::<std::result::Result<Credentials, &str>>();
        let credentials = provider(move |_: &str| answers.recv().unwrap_or(Err("over")));
        let options = ServerOptions { credentials: Some(credentials), ..ServerOptions::default() };
        let renewable = renewable(&options);
        let ask = |ms| renewable.ask("a", Duration::ZERO, Clock::System.after(Duration::from_millis(ms)));
        let error = ask(20).map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Credentials && error.to_string().contains("in time"), "{error}");
        // One answer is for the pending question, the other for the next question.
        for _ in 0..2 {
            sender.send(Ok(Credentials::new("one").valid_for(Duration::from_secs(100)))).unwrap();
        }
        assert!(ask(20_000).unwrap().of.ends.is_some());
        sender.send(Err("broken")).unwrap();
        let error = ask(20_000).map(drop).unwrap_err();
        assert!(std::error::Error::source(&error).is_some_and(|cause| cause.to_string() == "broken"));
        let current = renewable.current("a", Clock::System.after(Duration::from_millis(50))).unwrap();
        assert_eq!(current.form.1.as_deref(), Some("one"), "while the next question hangs");
    }
}
