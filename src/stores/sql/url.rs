//! TLS settings in database URLs.

use std::net::IpAddr;

use crate::config::TlsOptions;
use crate::error::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TlsMode {
    Disable,
    Prefer,
    /// TLS with any certificate. If authorities are named, PostgreSQL acts as `VerifyCa`, and MySQL refuses.
    Require,
    VerifyCa,
    VerifyFull,
}

impl TlsMode {
    /// The mode that `word`, the value of a URL parameter, names. `words` has the name of each mode that the
    /// database has. Lower-case names match exactly, upper-case names in any case.
    pub(super) fn named(parameter: &str, words: [Option<&str>; 5], word: &str) -> Result<TlsMode> {
        use TlsMode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
        let modes = words.iter().zip([Disable, Prefer, Require, VerifyCa, VerifyFull]);
        let is_named = |known: &str| known == word || known == word.to_ascii_uppercase();
        if let Some((_, mode)) = modes.into_iter().find(|(known, _)| known.is_some_and(is_named)) {
            return Ok(mode);
        }
        let mut words: Vec<_> = words.into_iter().flatten().collect();
        let last = words.pop().unwrap_or_default();
        Err(Error::invalid("connect", format!("{parameter} must be one of {} and {last}", words.join(", "))))
    }

    /// The mode that the URL names, or its default: no TLS for a local server without TLS options, because
    /// nothing leaves the machine; otherwise `VerifyFull`. Without TLS, TLS options are refused with `why`.
    pub(super) fn or_default(
        said: Option<TlsMode>,
        is_here: bool,
        tls: &TlsOptions,
        why: &str,
    ) -> Result<TlsMode> {
        let mode = match said {
            Some(mode) => mode,
            None if is_here && tls.refused_without_tls("").is_ok() => TlsMode::Disable,
            None => TlsMode::VerifyFull,
        };
        if mode == TlsMode::Disable {
            tls.refused_without_tls(why)?;
        }
        Ok(mode)
    }
}

pub(super) fn is_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

pub(super) fn taken_out<'a, const N: usize>(
    url: &'a str,
    names: [&str; N],
) -> (String, [Option<&'a str>; N]) {
    let Some((place, query)) = url.split_once('?') else { return (url.to_owned(), [None; N]) };
    let pairs: Vec<_> =
        query.split('&').map(|pair| (pair, pair.split_once('=').unwrap_or((pair, "")))).collect();
    let values = names.map(|known| {
        let named = pairs.iter().rev().find(|(_, (name, _))| *name == known);
        named.map(|(_, (_, value))| *value)
    });
    let rest: Vec<_> =
        pairs.iter().filter(|(_, (name, _))| !names.contains(name)).map(|(pair, _)| *pair).collect();
    let url = if rest.is_empty() { place.to_owned() } else { format!("{place}?{}", rest.join("&")) };
    (url, values)
}

/// The error of a build without TLS. Connecting without encryption instead would be unsafe.
#[cfg(not(feature = "tls"))]
pub(super) fn no_tls(without: &str) -> Error {
    let words = format!(
        "TLS to a database needs leasehold's feature \"tls\", which this build does not have: to connect without TLS, write {without} in the URL"
    );
    Error::new(crate::error::ErrorKind::Unsupported, "connect", words)
}
