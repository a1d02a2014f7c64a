//! A builder from the process's environment.

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use crate::client::ClientBuilder;
use crate::error::{Error, Result};
use crate::hosts::check_scheme;

const ACTION: &str = "from_env";

type DurationSetter = fn(ClientBuilder, Duration) -> ClientBuilder;

impl ClientBuilder {
    /// A builder with the values of these environment variables. One that is not set, or empty, leaves the default; each can be
    /// overridden by the builder's methods.
    ///
    /// | Variable | As | Example |
    /// |---|---|---|
    /// | `LEASEHOLD_URL` | [`url`](Self::url) | `redis://127.0.0.1:6379` |
    /// | `LEASEHOLD_PREFIX` | [`key_prefix`](Self::key_prefix) | `shop:` |
    /// | `LEASEHOLD_LEASE` | [`lease`](Self::lease) | `30s` |
    /// | `LEASEHOLD_COMMAND_TIMEOUT` | [`command_timeout`](Self::command_timeout) | `3s` |
    /// | `LEASEHOLD_CONNECT_TIMEOUT` | [`connect_timeout`](Self::connect_timeout) | `500ms` |
    /// | `LEASEHOLD_PATIENCE` | [`patience`](Self::patience) | `10s` |
    ///
    /// Times are seconds, or whole numbers with `ms`, `s`, `m`, `h` or `d`, one behind the other: `30`, `500ms`, `1h30m`.
    ///
    /// # Errors
    ///
    /// Of kind [`InvalidInput`](crate::ErrorKind::InvalidInput), for a value that cannot be used. The text names the variable and
    /// never repeats the value, which may be a secret.
    ///
    /// # Examples
    ///
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
        let get = |name: &str| -> Result<Option<String>> {
            match get(name).filter(|value| !value.is_empty()).map(OsString::into_string) {
                None => Ok(None),
                Some(Ok(value)) => Ok(Some(value)),
                Some(Err(_unreadable)) => Err(bad(name, "it is not Unicode")),
            }
        };
        let mut builder = ClientBuilder::default();
        builder.is_from_env = true;
        if let Some(url) = get("LEASEHOLD_URL")? {
            check_scheme(&url).map_err(|error| bad("LEASEHOLD_URL", error.detail()))?;
            builder = builder.url(&url);
        }
        if let Some(prefix) = get("LEASEHOLD_PREFIX")? {
            builder = builder.key_prefix(&prefix);
        }
        let times: [(&str, DurationSetter); 4] = [
            ("LEASEHOLD_LEASE", ClientBuilder::lease),
            ("LEASEHOLD_COMMAND_TIMEOUT", ClientBuilder::command_timeout),
            ("LEASEHOLD_CONNECT_TIMEOUT", ClientBuilder::connect_timeout),
            ("LEASEHOLD_PATIENCE", ClientBuilder::patience),
        ];
        for (name, set) in times {
            let Some(value) = get(name)? else { continue };
            let time = parse_time(&value).ok_or_else(|| {
                bad(
                    name,
                    "it is neither seconds nor whole numbers with ms, s, m, h or d, as in 500ms or 1h30m",
                )
            })?;
            builder = set(builder, time);
            builder.check_times().map_err(|error| bad(name, error.detail()))?;
        }
        Ok(builder)
    }
}

/// Says which variable, never what is in it.
fn bad(name: &str, why: &str) -> Error {
    Error::invalid(ACTION, format!("{name} cannot be used: {why}"))
}

/// Seconds, or whole numbers with units, as the program `leasehold` reads its options: a time that works there works here.
fn parse_time(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if let Ok(seconds) = rest.parse() {
        return rest.bytes().all(|byte| byte.is_ascii_digit()).then(|| Duration::from_secs(seconds));
    }
    let mut time = Duration::ZERO;
    loop {
        let (number, behind) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let number: u64 = number.parse().ok()?;
        let (unit, behind) =
            behind.split_at(behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len()));
        let seconds = match unit.trim() {
            "ms" => None,
            "s" => Some(1),
            "m" => Some(60),
            "h" => Some(3600),
            "d" => Some(86_400),
            _ => return None,
        };
        let part = match seconds {
            None => Duration::from_millis(number),
            Some(seconds) => Duration::from_secs(number.checked_mul(seconds)?),
        };
        time = time.checked_add(part)?;
        if behind.is_empty() {
            return Some(time);
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn with(variables: &[(&str, &str)]) -> Result<ClientBuilder> {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        ClientBuilder::from_variables(value)
    }

    #[test]
    fn times_are_seconds_or_numbers_with_units() {
        let ms = Duration::from_millis;
        for (text, time) in [
            ("500ms", ms(500)),
            ("30s", ms(30_000)),
            ("30", ms(30_000)),
            ("2 m", ms(120_000)),
            (" 1h ", ms(3_600_000)),
            ("1h30m", ms(5_400_000)),
            ("1m 500ms", ms(60_500)),
            ("1d", ms(86_400_000)),
        ] {
            assert_eq!(parse_time(text), Some(time), "{text}");
        }
        for bad in [
            "",
            "s",
            "+30",
            "1h30",
            "-1s",
            "1.5s",
            "30 seconds",
            "30S",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_not_set_or_empty_keeps_its_default() {
        let plain = with(&[("LEASEHOLD_LEASE", "")]).unwrap();
        let lease = |builder: &ClientBuilder| builder.options.lease;
        assert_eq!(lease(&plain), lease(&ClientBuilder::default()));
        let set = with(&[
            ("LEASEHOLD_URL", "redis://u:p@localhost"),
            ("LEASEHOLD_PREFIX", "shop:"),
            ("LEASEHOLD_LEASE", "7s"),
            ("LEASEHOLD_COMMAND_TIMEOUT", "1s"),
            ("LEASEHOLD_CONNECT_TIMEOUT", "2s"),
            ("LEASEHOLD_PATIENCE", "3s"),
        ]);
        let ClientBuilder { options, redis, .. } = set.unwrap();
        let seconds = Duration::from_secs;
        assert_eq!((redis.url.as_str(), options.key_prefix.as_str()), ("redis://u:p@localhost", "shop:"));
        assert_eq!((options.lease, options.patience), (seconds(7), seconds(3)));
        assert_eq!((options.command_timeout, redis.command_timeout), (seconds(1), seconds(1)));
        assert_eq!(redis.connect_timeout, seconds(2));
    }

    #[test]
    fn an_error_names_the_variable_and_never_its_value() {
        for (name, value) in [
            ("LEASEHOLD_URL", "user:S3CR3T@localhost:6379"),
            ("LEASEHOLD_URL", "S3CR3T"),
            ("LEASEHOLD_LEASE", "S3CR3T"),
            ("LEASEHOLD_LEASE", "1ms"),
            ("LEASEHOLD_COMMAND_TIMEOUT", "0s"),
            ("LEASEHOLD_CONNECT_TIMEOUT", "redis://u:S3CR3T@localhost"),
            ("LEASEHOLD_PATIENCE", "30 seconds"),
        ] {
            let error = with(&[(name, value)]).map(drop).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
            let said = format!("{error} {error:?}");
            assert!(said.contains(name) && !said.contains("S3CR3T"), "{said}");
        }
        let unreadable = |_: &str| Some(OsString::from_vec(vec![b'a', 0xff]));
        let error = ClientBuilder::from_variables(unreadable).map(drop).unwrap_err();
        assert!(error.to_string().contains("LEASEHOLD_URL"), "{error}");
    }

    #[test]
    fn without_a_url_the_variable_is_named() {
        let error = with(&[]).unwrap().build().unwrap_err();
        assert!(error.to_string().contains("LEASEHOLD_URL"), "{error}");
    }
}
