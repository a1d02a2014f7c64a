//! A store of several equal servers: its URL, and connections to them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::config::ServerOptions;
use crate::error::{Error, Result};
use crate::hosts::{Host, HostList, Hosts, check_url, no_parameters, unescaped};
use crate::time::Moment;
use crate::wire::{TlsConfig, Wire, tls_config};

/// Holds the password, so it is not `Debug`.
pub(crate) struct ServerList {
    pub(crate) hosts: Vec<(Host, u16)>,
    /// User and password; the password may be empty.
    pub(crate) login: Option<(String, String)>,
    /// The rest of the URL, without the leading `/`.
    pub(crate) path: String,
    names: Arc<Hosts>,
    tls: Option<TlsConfig>,
}

impl ServerList {
    /// Reads `scheme://[user[:password]@]host[:port][,host[:port]…][/path]`; the scheme `secure` means TLS,
    /// and has the second of the default ports. The fields of `options` take precedence over the URL. No
    /// message repeats the URL: it may be secret.
    pub(crate) fn read(
        options: &ServerOptions,
        secure: &str,
        [port, secure_port]: [u16; 2],
        unusable: impl Fn() -> Error,
    ) -> Result<ServerList> {
        let (scheme, rest) = options.url.split_once("://").ok_or_else(&unusable)?;
        let is_tls = options.tls.is_wanted_by(scheme, secure)?;
        check_url(&options.url)?;
        no_parameters(&options.url)?;
        let list = HostList::read(rest.trim_end_matches('?'), if is_tls { secure_port } else { port });
        let HostList { login, places: hosts, path } = list.ok_or_else(&unusable)?;
        let part = |text: &str| unescaped(text).ok_or_else(&unusable);
        let login = login.map(|login| login.split_once(':').unwrap_or((login, "")));
        let user = login.map(|(user, _)| part(user)).transpose()?;
        let password = login.map(|(_, password)| part(password)).transpose()?;
        let login = match (options.username.clone().or(user), options.password.clone().or(password)) {
            (Some(user), password) if !user.is_empty() => Some((user, password.unwrap_or_default())),
            (None, None) => None,
            _ => return Err(Error::invalid("connect", "a password was given without a user name")),
        };
        Ok(ServerList {
            hosts,
            login,
            path: path.to_owned(),
            names: Arc::clone(&options.hosts),
            tls: tls_config(&options.tls, is_tls)?,
        })
    }

    /// The servers' addresses. Messages must not show them: a mistyped URL's host may be a password.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = String> {
        self.hosts.iter().map(|(host, port)| format!("{}:{port}", host.name()))
    }

    pub(crate) fn place(&self, at: usize) -> String {
        match self.hosts.get(at) {
            Some((host, port)) if host.name().contains(':') => format!("[{host}]:{port}"),
            Some((host, port)) => format!("{host}:{port}"),
            None => String::new(),
        }
    }

    /// Connects to server number `at`. `write_limit`: the longest time that one write may block.
    pub(crate) fn connect(&self, at: usize, write_limit: Duration, deadline: Moment) -> io::Result<Wire> {
        let (host, port) = self.hosts.get(at).ok_or(io::ErrorKind::NotFound)?;
        Wire::connect(&self.names, (host, *port), self.tls.as_ref(), write_limit, deadline)
    }
}
