//! Where the server is and who we are there.

use std::fmt;
#[cfg(unix)]
use std::path::PathBuf;
use std::time::Duration;

use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::config::RedisOptions;
use crate::error::{Error, ErrorKind, Result};

/// All that a new connection needs. Holds the password, so it is not `Debug`.
pub(super) struct Address {
    pub(super) place: Place,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    pub(super) client_name: Option<String>,
    pub(super) connect_timeout: Duration,
    /// How long one write may block.
    pub(super) write_timeout: Duration,
}

pub(super) enum Place {
    Tcp {
        host: String,
        port: u16,
    },
    #[cfg(feature = "tls")]
    Tls {
        host: String,
        port: u16,
        config: std::sync::Arc<rustls::ClientConfig>,
    },
    #[cfg(unix)]
    Unix(PathBuf),
}

impl Address {
    /// Reads the URL; the options' own fields go before what it says. No message repeats the URL: it may hold a
    /// password.
    pub(super) fn new(options: &RedisOptions) -> Result<Address> {
        check_scheme(&options.url)?;
        let info = options.url.as_str().into_connection_info().map_err(|error| {
            let form = "redis://[user:password@]host[:port][/database] or redis+unix:///path";
            Error::invalid("connect", format!("the URL cannot be used; it has the form {form}"))
                .with_source(error)
        })?;
        let settings = info.redis_settings();
        let database = options.database.unwrap_or(settings.db());
        if database < 0 {
            return Err(Error::invalid("connect", format!("there is no database {database}")));
        }
        let own = |option: &Option<String>, url: Option<&str>| option.clone().or(url.map(str::to_owned));
        Ok(Address {
            place: place(info.addr(), options)?,
            username: own(&options.username, settings.username()),
            password: own(&options.password, settings.password()),
            database,
            client_name: options.client_name.clone(),
            connect_timeout: options.connect_timeout,
            write_timeout: options.command_timeout,
        })
    }
}

fn check_scheme(url: &str) -> Result<()> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    match scheme.as_str() {
        "redis" | "redis+unix" | "unix" => Ok(()),
        "rediss" if cfg!(feature = "tls") => Ok(()),
        "rediss" => Err(Error::new(
            ErrorKind::Unsupported,
            "connect",
            "rediss:// needs leasehold's feature \"tls\", which this build does not have",
        )),
        _ => Err(Error::invalid(
            "connect",
            "the URL does not start with redis://, rediss://, redis+unix:// or unix://",
        )),
    }
}

fn place(addr: &ConnectionAddr, options: &RedisOptions) -> Result<Place> {
    match addr {
        ConnectionAddr::Tcp(host, port) => {
            if options.tls_ca.is_some() {
                return Err(Error::invalid(
                    "connect",
                    "authorities to trust were given, but the URL does not start with rediss://",
                ));
            }
            Ok(Place::Tcp { host: host.clone(), port: *port })
        }
        #[cfg(feature = "tls")]
        ConnectionAddr::TcpTls { host, port, insecure, .. } => {
            if *insecure {
                return Err(Error::invalid(
                    "connect",
                    "the URL ends in #insecure, but certificates are always verified",
                ));
            }
            let config = super::tls::config(options.tls_ca.as_deref())?;
            Ok(Place::Tls { host: host.clone(), port: *port, config })
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Ok(Place::Unix(path.clone())),
        _ => Err(Error::new(ErrorKind::Unsupported, "connect", "this build cannot connect to such a URL")),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp { host, port } => write!(f, "{host}:{port}"),
            #[cfg(feature = "tls")]
            Place::Tls { host, port, .. } => write!(f, "{host}:{port}"),
            #[cfg(unix)]
            Place::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<Address> {
        Address::new(&RedisOptions { url: url.to_owned(), ..RedisOptions::default() })
    }

    #[test]
    fn a_url_is_read() {
        let read = address("redis://me:p%40ss@example.org:7000/3").unwrap();
        assert_eq!(read.place.to_string(), "example.org:7000");
        assert_eq!(read.username.as_deref(), Some("me"));
        assert_eq!(read.password.as_deref(), Some("p@ss"));
        assert_eq!(read.database, 3);
        assert_eq!(address("redis://localhost").unwrap().place.to_string(), "localhost:6379");
        #[cfg(unix)]
        for url in ["redis+unix:///run/r.sock?db=2&pass=x", "unix:///run/r.sock?db=2&pass=x"] {
            let read = address(url).unwrap();
            assert_eq!((read.place.to_string().as_str(), read.database), ("/run/r.sock", 2));
            assert_eq!(read.password.as_deref(), Some("x"));
        }
    }

    #[test]
    fn options_go_before_the_url() {
        let options = RedisOptions {
            url: "redis://me:one@example.org/3".to_owned(),
            username: Some("you".to_owned()),
            password: Some("two".to_owned()),
            database: Some(4),
            ..RedisOptions::default()
        };
        let read = Address::new(&options).unwrap();
        assert_eq!((read.username.as_deref(), read.password.as_deref()), (Some("you"), Some("two")));
        assert_eq!(read.database, 4);
    }

    #[test]
    fn what_is_no_redis_url_is_refused_without_repeating_it() {
        for url in [
            "",
            "localhost",
            "user:S3CR3T@localhost",
            "http://user:S3CR3T@localhost",
            "redis//user:S3CR3T@localhost",
            "redis://user:S3CR3T@localhost:port",
            "redis://user:S3CR3T@localhost:99999",
            "redis://user:S3CR3T@localhost/S3CR3T",
            "redis://user:S3CR3T@",
            "redis://user:S3CR3T@0.0.0.0/",
            "redis://user:S3CR3T@localhost/-1",
            "redis+unix://?pass=S3CR3T",
        ] {
            let error = address(url).err().unwrap_or_else(|| panic!("{url} was accepted"));
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_tls_is_refused_in_words() {
        let error = address("rediss://localhost").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("feature \"tls\""));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn verification_cannot_be_turned_off() {
        assert_eq!(address("rediss://localhost/#insecure").err().unwrap().kind(), ErrorKind::InvalidInput);
    }
}
