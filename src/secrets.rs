//! Files of passwords and certificates, which may be replaced while a client runs.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{ServerOptions, read_secret, read_urls};
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::without_credentials;
use crate::sync::Mutex;

impl ServerOptions {
    /// The files by which this client proves itself, and those by which it judges servers.
    fn secret_files(&self) -> impl Iterator<Item = PathBuf> {
        let (_, query) = self.url.split_once('?').unwrap_or_default();
        let named = query.split('&').filter_map(|pair| pair.split_once('='));
        let named = named.filter(|(name, _)| matches!(*name, "sslrootcert" | "sslcert" | "sslkey"));
        let named: Vec<PathBuf> = named.map(|(_, file)| file.into()).collect();
        let files = &self.files;
        let own = [&files.password, &files.sentinel_password, &self.tls.ca].into_iter().flatten();
        let own = own.chain(&files.urls);
        let identity = self.tls.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        named.into_iter().chain(own.chain(identity).cloned().collect::<Vec<_>>())
    }

    /// The contents of these files now.
    fn secrets(&self) -> Vec<Option<Vec<u8>>> {
        self.secret_files().map(|file| fs::read(file).ok()).collect()
    }

    /// The same with the secrets that the files have now. A URL that leads elsewhere is not followed: the
    /// locks are where they are.
    fn read_again(&self) -> ServerOptions {
        let mut options = self.clone();
        let place = without_credentials(&self.url);
        for text in self.files.urls.iter().filter_map(|file| read_urls(file).ok()) {
            let urls = [&*text].into_iter().chain(text.split_whitespace().map(behind_label));
            if let Some(url) = urls.into_iter().find(|url| without_credentials(url) == place) {
                url.clone_into(&mut options.url);
            }
        }
        for (file, password) in [
            (&self.files.password, &mut options.password),
            (&self.files.sentinel_password, &mut options.sentinel_password),
        ] {
            *password = file.as_ref().and_then(|file| read_secret(file).ok()).or(password.take());
        }
        options
    }
}

/// The URL in an entry of a list: `label*2=redis://host`.
fn behind_label(word: &str) -> &str {
    let before = word.split_once("://").map_or("", |(before, _)| before);
    before.rfind('=').and_then(|at| word.get(at + 1..)).unwrap_or(word)
}

/// A store's own form of its options, for each connection: made anew after a login or a handshake was
/// refused, if a file has changed since.
pub(crate) struct Renewable<T> {
    options: ServerOptions,
    make: fn(&ServerOptions) -> Result<T>,
    made: Mutex<Made<T>>,
}

struct Made<T> {
    of: Vec<Option<Vec<u8>>>,
    value: Arc<T>,
}

impl<T> Renewable<T> {
    pub(crate) fn new(
        options: &ServerOptions,
        make: fn(&ServerOptions) -> Result<T>,
    ) -> Result<Arc<Renewable<T>>> {
        // Before what is made of them: what changes meanwhile is seen as a change.
        let of = options.secrets();
        let made = Made { of, value: Arc::new(make(options)?) };
        Ok(Arc::new(Renewable { options: options.clone(), make, made: Mutex::new(made) }))
    }

    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.made.lock().value)
    }

    /// The form to try after `error` came of `tried`; `None`: there is nothing new to try.
    pub(crate) fn after(&self, error: &Error, tried: &Arc<T>) -> Option<Arc<T>> {
        if !matches!(error.kind(), ErrorKind::Authentication | ErrorKind::Tls) {
            return None;
        }
        // Read without the mutex, for which threads wait that connect.
        let of = self.options.secrets();
        let made = self.made.lock();
        if !Arc::ptr_eq(&made.value, tried) {
            return Some(Arc::clone(&made.value)); // by another thread
        }
        if of == made.of {
            return None;
        }
        drop(made);
        // Of files that are being written nothing can be made: the next refusal looks again.
        let value = Arc::new((self.make)(&self.options.read_again()).ok()?);
        let mut made = self.made.lock();
        if Arc::ptr_eq(&made.value, tried) {
            *made = Made { of, value };
        }
        Some(Arc::clone(&made.value))
    }

    /// Has `connect` try what there is, and what is new after a refusal.
    pub(crate) fn with<R>(&self, connect: impl Fn(&T) -> Result<R>) -> Result<R> {
        let current = self.current();
        connect(&current).or_else(|error| match self.after(&error, &current) {
            Some(newer) => connect(&newer),
            None => Err(error),
        })
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SecretFiles;

    #[test]
    fn a_secret_is_read_again_after_a_refusal_if_its_file_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let files = SecretFiles {
            urls: vec![file("url", "redis://u:1@host/2\n")],
            password: Some(file("password", "old\n")),
            sentinel_password: None,
        };
        let url = "redis://u:1@host/2".to_owned();
        let options =
            ServerOptions { url, password: Some("old".to_owned()), files, ..ServerOptions::default() };
        let make = |options: &ServerOptions| Ok((options.url.clone(), options.password.clone().unwrap()));
        let renewable = Renewable::new(&options, make).unwrap();
        let asked = Mutex::new(Vec::new());
        let connect = |kind: ErrorKind| {
            asked.lock().clear();
            let outcome = renewable.with(|made: &(String, String)| {
                asked.lock().push(made.clone());
                if made.1 == "new" { Ok(()) } else { Err(Error::new(kind, "connect", "no")) }
            });
            (outcome.is_ok(), asked.lock().len())
        };
        assert_eq!(connect(ErrorKind::Authentication), (false, 1), "nothing has changed");
        file("password", "new\n");
        assert_eq!(connect(ErrorKind::Unreachable), (false, 1), "nobody refused it");
        assert_eq!(connect(ErrorKind::Authentication), (true, 2));
        assert_eq!(connect(ErrorKind::Authentication), (true, 1), "and that is kept");
        // The user of the URL, and another place.
        for (url, seen) in [
            ("redis://u:3@host/2", "redis://u:3@host/2"),
            ("redis://u:4@other/2", "redis://u:1@host/2"),
            ("redis://u:5@other/2 a*2=redis://u:6@host/2", "redis://u:6@host/2"),
        ] {
            file("url", url);
            file("password", url);
            let refusal = || Error::new(ErrorKind::Authentication, "connect", "no");
            assert!(renewable.with(|_| Err::<(), _>(refusal())).is_err());
            assert_eq!(renewable.current().0, seen);
        }
    }
}
