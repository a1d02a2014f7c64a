//! PostgreSQL URLs, with the words and meanings of libpq.

use std::net::IpAddr;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, SslMode, TargetSessionAttrs};

use crate::config::{ServerOptions, TlsOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{check_url, parameters, unescaped, unknown_parameter};
use crate::stores::sql::postgres::link::{Dial, Secure};
use crate::stores::sql::url::{TlsMode, is_here, taken_out};
use crate::system::NO_LOCAL_SOCKETS;

/// The words of `sslmode`. `allow` is missing, because it begins without encryption.
const MODES: [Option<&str>; 5] =
    [Some("disable"), Some("prefer"), Some("require"), Some("verify-ca"), Some("verify-full")];

/// Reads the URL. Fields of `options` take precedence. No error repeats the URL, which may contain a secret.
pub(super) fn dial(options: &ServerOptions) -> Result<Dial> {
    check_url(&options.url)?;
    // The driver ends the password at the first `@`, and would send the rest to a name server as a host name.
    let place = options.url.split(['?', '#']).next().unwrap_or_default();
    let words = "the URL has more than one @: in a password write %40 instead";
    Error::unless(place.matches('@').count() <= 1, || words)?;
    let (url, [mode, ca, certificate, key]) =
        taken_out(&options.url, ["sslmode", "sslrootcert", "sslcert", "sslkey"]);
    let mode = mode.map(|word| TlsMode::named("sslmode", MODES, word)).transpose()?;
    let is_system = ca == Some("system");
    for (name, value) in parameters(&url)?.1 {
        // Each parameter is parsed alone first, so that the error names it.
        if format!("postgres://host/?{name}={value}").parse::<Config>().is_err() {
            return Err(unknown_parameter(Some(name), ""));
        }
    }
    let mut config: Config = url.parse().map_err(|_told_without_the_url| {
        let form = "postgres://[user:password@]host[:port][/database][?sslmode=…]";
        let wrong = "a part of the URL is missing or wrong (a port is from 1 to 65535)";
        Error::invalid("connect", format!("{wrong}; write it as {form}"))
    })?;
    let has_hosts = !config.get_hosts().is_empty() || !config.get_hostaddrs().is_empty();
    Error::unless(has_hosts, || "the URL names no host")?;
    let is_local = |host: &Host| !matches!(host, Host::Tcp(name) if !name.starts_with('/'));
    if let Some(words) = NO_LOCAL_SOCKETS
        && config.get_hosts().iter().any(is_local)
    {
        return Err(Error::new(ErrorKind::Unsupported, "connect", words));
    }
    let words = "channel_binding=require is not supported: leave it out of the URL";
    let is_bound = config.get_channel_binding() == ChannelBinding::Require;
    Error::when(is_bound, ErrorKind::Unsupported, "connect", || words)?;
    if config.get_hosts().len() > 1 {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    if let Some(user) = &options.username {
        config.user(user);
    }
    if let Some(password) = &options.password {
        config.password(password);
    }
    if let Some(name) = &options.client_name {
        config.application_name(name);
    }
    config.connect_timeout(options.connect_timeout).tcp_user_timeout(options.command_timeout);
    let file = |name: &str| unescaped(name).map(Into::into).ok_or_else(unreadable);
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((file(certificate)?, file(key)?)),
        (None, None) => None,
        _ => return Err(Error::invalid("connect", "sslcert and sslkey must be given together")),
    };
    let ca = ca.filter(|_| !is_system).map(file).transpose()?;
    let tls =
        TlsOptions { ca: options.tls.ca.clone().or(ca), identity: options.tls.identity.clone().or(identity) };
    // Public authorities certify anybody, so a certificate proves nothing unless the host name is checked.
    let is_full = mode.is_none_or(|mode| mode == TlsMode::VerifyFull);
    Error::unless(!is_system || is_full, || "sslrootcert=system goes with sslmode=verify-full only")?;
    let words = "sslmode=verify-ca needs your own certificate authorities: name them by sslrootcert or tls_ca, or use verify-full";
    Error::unless(mode != Some(TlsMode::VerifyCa) || tls.ca.is_some(), || words)?;
    let is_here = !is_system && is_all_here(&config);
    let mode = TlsMode::or_default(mode, is_here, &tls, "sslmode is disable")?;
    config.ssl_mode(match mode {
        TlsMode::Disable => SslMode::Disable,
        TlsMode::Prefer => SslMode::Prefer,
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
    });
    let secure = secure(mode, &tls)?;
    Ok(Dial { address: addresses(&config), config, secure, credentials: None })
}

#[cfg(feature = "tls")]
fn secure(mode: TlsMode, tls: &TlsOptions) -> Result<Secure> {
    Secure::new(mode, tls)
}

/// In a build without TLS, `prefer` connects without encryption, as in libpq.
#[cfg(not(feature = "tls"))]
fn secure(mode: TlsMode, _tls: &TlsOptions) -> Result<Secure> {
    match mode {
        TlsMode::Disable | TlsMode::Prefer => Ok(tokio_postgres::NoTls),
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => {
            Err(crate::stores::sql::url::no_tls("sslmode=disable"))
        }
    }
}

fn addresses(config: &Config) -> String {
    let (hosts, ports) = (config.get_hosts().iter(), config.get_ports());
    let addresses = hosts.enumerate().map(|(at, host)| match host {
        Host::Tcp(name) if !name.starts_with('/') => {
            format!("{name}:{}", ports.get(at).or(ports.first()).unwrap_or(&5432))
        }
        // A path; matched as text, because its variant does not exist on Windows.
        socket => format!("{socket:?}").trim_start_matches("Unix(\"").trim_end_matches("\")").to_owned(),
    });
    addresses.collect::<Vec<_>>().join(",")
}

fn is_all_here(config: &Config) -> bool {
    // Matched by exclusion, because the variant for local sockets does not exist on Windows.
    let is_here = |host: &Host| !matches!(host, Host::Tcp(name) if !is_here(name));
    match config.get_hostaddrs() {
        [] => config.get_hosts().iter().all(is_here),
        addresses => addresses.iter().all(IpAddr::is_loopback),
    }
}

fn unreadable() -> Error {
    Error::invalid("connect", "the name of a file in the URL cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssl_mode(url: &str) -> Result<SslMode> {
        let options = ServerOptions { url: url.to_owned(), ..ServerOptions::default() };
        dial(&options).map(|dial| dial.config.get_ssl_mode())
    }

    #[test]
    fn local_postgres_connections_use_no_tls_by_default() {
        for url in ["postgres://localhost/x", "postgres://127.0.0.1/x", "postgres://[::1]/x"] {
            assert_eq!(ssl_mode(url).unwrap(), SslMode::Disable, "{url}");
        }
        match (ssl_mode("postgres://%2Ftmp/x"), NO_LOCAL_SOCKETS) {
            (Ok(mode), None) => assert_eq!(mode, SslMode::Disable),
            (Err(error), Some(words)) => {
                assert_eq!((error.kind(), error.to_string().contains(words)), (ErrorKind::Unsupported, true));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(ssl_mode("postgres://localhost/x?sslmode=prefer").unwrap(), SslMode::Prefer);
    }

    #[test]
    fn remote_postgres_connections_use_tls_by_default() {
        for url in [
            "postgres://db.example.org/x",
            "postgres://localhost,10.0.0.1/x",
            "postgres://localhost?hostaddr=10.0.0.1",
        ] {
            match ssl_mode(url) {
                Ok(mode) => assert_eq!(mode, SslMode::Require, "{url}"),
                // Without the feature `tls`, or on a system without authorities.
                Err(error) => assert!(
                    ["disable", "tls_ca"].iter().any(|way| error.to_string().contains(way)),
                    "{error}"
                ),
            }
        }
        let url = "postgres://db.example.org/x?connect_timeout=1&sslmode=disable&application_name=x";
        assert_eq!(ssl_mode(url).unwrap(), SslMode::Disable);
    }

    #[test]
    fn bad_tls_parameters_are_refused_without_repeating_the_url() {
        for query in
            ["sslmode=allow", "sslmode=", "sslcert=/a", "sslmode=disable&sslrootcert=/a", "sslrootcert=%4"]
        {
            let error = ssl_mode(&format!("postgres://u:S3CR3T@localhost/x?{query}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{query}");
            assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
        }
        let error = ssl_mode("postgres://localhost/x?channel_binding=require").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}
