//! MySQL URLs, and TLS modes in MySQL's words.

use std::time::Duration;

use mysql::consts::CapabilityFlags;
use mysql::{Opts, OptsBuilder};

use crate::config::{ServerOptions, TlsOptions};
use crate::error::{Error, Result};
use crate::hosts::{check_url, parameters, unknown_parameter};
use crate::stores::sql::mysql::dial::Dial;
use crate::stores::sql::url::{TlsMode, is_here, taken_out};

/// The words of `ssl-mode`. `PREFERRED` is missing, because the driver cannot fall back from TLS.
const MODES: [Option<&str>; 5] =
    [Some("DISABLED"), None, Some("REQUIRED"), Some("VERIFY_CA"), Some("VERIFY_IDENTITY")];

/// The options of the driver. Fields of `options` take precedence over the URL. No error repeats the URL,
/// which may contain a secret.
pub(super) fn opts(options: &ServerOptions) -> Result<(OptsBuilder, Dial)> {
    let unusable = |words: &str| {
        let form = "mysql://[user:password@]host[:port]/database[?ssl-mode=…]";
        Error::invalid("connect", format!("{words}; the URL has the form {form}"))
    };
    check_url(&options.url)?;
    let rest = options.url.split_once("://").map_or("", |(_, rest)| rest);
    let (rest, [mode]) = taken_out(rest, ["ssl-mode"]);
    let mode = mode.map(|word| TlsMode::named("ssl-mode", MODES, word)).transpose()?;
    let named = format!("mysql://{rest}");
    for (name, value) in parameters(&named)?.1 {
        // Each parameter is parsed alone first, so that the error names it.
        if Opts::from_url(&format!("mysql://host/x?{name}={value}")).is_err() {
            let instead = if name.contains("ssl") || name.contains("tls") {
                "TLS is asked for by ssl-mode"
            } else {
                ""
            };
            return Err(unknown_parameter(Some(name), instead));
        }
    }
    let wrong = "a part of the URL is missing or wrong (a port is from 1 to 65535)";
    let read = Opts::from_url(&named).map_err(|_told_without_the_url| unusable(wrong))?;
    if read.get_db_name().is_none_or(str::is_empty) {
        return Err(unusable("the URL names no database"));
    }
    let host = read.get_ip_or_hostname().into_owned();
    let dial = Dial::new(&host, &options.hosts, options.connect_timeout);
    let mode = TlsMode::or_default(mode, is_here(&host), &options.tls, "ssl-mode is DISABLED")?;
    let (user, password) = (read.get_user().map(str::to_owned), read.get_pass().map(str::to_owned));
    let opts = OptsBuilder::from_opts(read)
        .user(options.username.clone().or(user))
        .pass(options.password.clone().or(password))
        .prefer_socket(false)
        .read_timeout(Some(options.command_timeout))
        .write_timeout(Some(options.command_timeout))
        // The server then counts the rows that a statement finds, not those that it changes. A renewal that
        // changes no value must count too, because zero would mean that the lock is lost.
        .additional_capabilities(CapabilityFlags::CLIENT_FOUND_ROWS)
        .init(settings(limit_in_seconds(options.command_timeout)));
    if mode == TlsMode::Disable {
        return Ok((opts, dial));
    }
    Ok((secured(opts, mode, &options.tls)?, dial))
}

/// The first statements on each connection, which replace settings of the server. `limit` is the longest
/// wait, in seconds, for locked rows and tables. By default, the server would wait for a table for a year.
pub(super) fn settings(limit: u64) -> Vec<String> {
    vec![
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
        format!(
            "SET NAMES utf8mb4, SESSION autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = {limit}, lock_wait_timeout = {limit}, \
             sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, sql_auto_is_null = 0, sql_big_selects = 1, \
             sql_select_limit = 18446744073709551615 /*M! , max_statement_time = 0 */ /*!50708 , max_execution_time = 0 */"
        ),
    ]
}

/// The server's limit for waits: a second less than the client's time-out, because MySQL checks the limit
/// once a second. If the client timed out first, it would not know the outcome, and would have to clean up.
pub(super) fn limit_in_seconds(command_timeout: Duration) -> u64 {
    command_timeout.as_secs().saturating_sub(1).max(1)
}

#[cfg(feature = "tls")]
fn secured(opts: OptsBuilder, mode: TlsMode, tls: &TlsOptions) -> Result<OptsBuilder> {
    // Checks the TLS files, because the driver's error does not say which of them is at fault.
    crate::tls::check(tls)?;
    let is_unproven = mode == TlsMode::VerifyCa || mode == TlsMode::Require && tls.ca.is_some();
    Error::unless(!is_unproven, || {
        "MySQL's driver also trusts public authorities, so only the host's name in a \
            certificate proves something: use ssl-mode=VERIFY_IDENTITY"
    })?;
    // The driver uses the process's default TLS provider, and panics without one.
    crate::tls::provide();
    let identity =
        tls.identity.clone().map(|(certificate, key)| mysql::ClientIdentity::new(certificate, key));
    let ssl = mysql::SslOpts::default()
        .with_root_cert_path(tls.ca.clone())
        .with_client_identity(identity)
        .with_danger_skip_domain_validation(mode != TlsMode::VerifyFull)
        .with_danger_accept_invalid_certs(mode == TlsMode::Require);
    Ok(opts.ssl_opts(ssl))
}

#[cfg(not(feature = "tls"))]
fn secured(_opts: OptsBuilder, _mode: TlsMode, _tls: &TlsOptions) -> Result<OptsBuilder> {
    Err(crate::stores::sql::url::no_tls("ssl-mode=DISABLED"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn read(url: &str) -> Result<Opts> {
        opts(&ServerOptions { url: url.to_owned(), ..ServerOptions::default() })
            .map(|(opts, _)| Opts::from(opts))
    }

    #[test]
    fn local_mysql_connections_use_no_tls_by_default() {
        for url in [
            "mysql://localhost/x",
            "mariadb://127.0.0.1:3307/x",
            "mysql://[::1]/x",
            "mysql://h/x?ssl-mode=disabled",
        ] {
            assert!(read(url).unwrap().get_ssl_opts().is_none(), "{url}");
        }
    }

    #[test]
    fn mysql_connections_use_tls_if_remote_or_demanded() {
        for (url, skips_name, believes_all) in [
            ("mysql://db.example.org/x", false, false),
            ("mysql://localhost/x?tcp_connect_timeout_ms=1000&ssl-mode=VERIFY_IDENTITY", false, false),
            ("mysql://db.example.org/x?ssl-mode=REQUIRED", true, true),
        ] {
            match read(url) {
                Ok(opts) => {
                    let ssl = opts.get_ssl_opts().unwrap();
                    assert_eq!(ssl.skip_domain_validation(), skips_name, "{url}");
                    assert_eq!(ssl.accept_invalid_certs(), believes_all, "{url}");
                }
                // Without the feature `tls`.
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unsupported);
                    assert!(error.to_string().contains("ssl-mode=DISABLED"), "{error}");
                }
            }
        }
    }

    #[test]
    fn bad_ssl_modes_are_refused_without_repeating_the_url() {
        for query in ["ssl-mode=PREFERRED", "ssl-mode=", "require_ssl=true"] {
            let error = read(&format!("mysql://u:S3CR3T@localhost/x?{query}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{query}");
            assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
        }
    }
}
