//! The names by which this server may be asked.
//!
//! Another's page can give its own name a loopback address (DNS rebinding), and read what a server there answers. Its requests
//! have that name in `Host`, so unknown names are refused.

use std::net::{IpAddr, SocketAddr};

/// Without the port: behind a tunnel it is another one, and whoever rebinds a name chooses the port too.
pub(crate) fn name(host: &str) -> Option<String> {
    let host = host.trim();
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            is_port(port).then_some(address)?
        }
        // An IPv6 address without brackets and without a port.
        None if host.matches(':').count() > 1 => host,
        None => match host.split_once(':') {
            Some((name, port)) => is_port(&format!(":{port}")).then_some(name)?,
            None => host,
        },
    };
    if let Ok(address) = name.parse::<IpAddr>() {
        return Some(address.to_canonical().to_string());
    }
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

fn is_port(text: &str) -> bool {
    text.is_empty()
        || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|digit| digit.is_ascii_digit()))
}

pub(crate) fn is_known(host: &str, local: SocketAddr, given: &[String]) -> bool {
    let Some(name) = name(host) else { return false };
    let is_here = |address: IpAddr| address.is_loopback() || address == local.ip().to_canonical();
    name == "localhost" || given.contains(&name) || name.parse().is_ok_and(is_here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_compared_without_case_port_and_last_dot() {
        for (text, host) in [
            ("localhost", "localhost"),
            ("LocalHost:9477", "localhost"),
            ("locks.example.com.:80", "locks.example.com"),
            ("127.0.0.1:9477", "127.0.0.1"),
            ("[::1]:9477", "::1"),
            ("[0:0:0:0:0:0:0:1]", "::1"),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1"),
            ("::1", "::1"),
        ] {
            assert_eq!(name(text).as_deref(), Some(host), "{text}");
        }
        for bad in
            ["", ":80", "a b", "a/b", "a:b", "[::1", "[::1]x", "user@localhost", "localhost:80:80", "é"]
        {
            assert_eq!(name(bad), None, "{bad}");
        }
    }
}
