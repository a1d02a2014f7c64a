//! A network of its own for a server: a namespace that virtual Ethernet devices join to ours.
//!
//! The server runs inside, at a private address, and the test outside. When packets are dropped, the *kernel*
//! keeps a connection's bytes and sends them again later, even after the process closed the connection. So a
//! request arrives late without any proxy.
//!
//! Needs root, `ip` (iproute2) and `iptables`. Without them [`Netns::new`] reports [`missing`] and returns
//! `None`.

use super::server::{Builder, RedisServer, in_path};
use super::{LastWill, missing, random, shout};
use std::net::Ipv4Addr;

/// A network namespace. Dropping it removes it and its devices; the servers inside must be dropped first.
pub struct Netns {
    name: String,
    inner: String,
    subnet: (u8, u8),
    _will: LastWill,
}

/// Connections that are cut, until this value is healed or dropped.
pub struct Cut<'a> {
    net: &'a Netns,
    heal: Vec<Vec<String>>,
}

impl Netns {
    /// Makes a namespace; `None`, after [`missing`], if the system does not allow that.
    #[track_caller]
    pub fn new() -> Option<Netns> {
        let reason = if !cfg!(target_os = "linux") {
            Some("network namespaces are Linux's".to_owned())
        } else if run(&["id", "-u"]).as_deref() != Ok("0") {
            Some("a network namespace needs root".to_owned())
        } else if in_path("ip").is_none() || in_path("iptables").is_none() {
            Some("a network namespace needs ip (iproute2) and iptables".to_owned())
        } else {
            None
        };
        let made = reason.map_or_else(Netns::make, Err);
        made.map_err(|reason| missing(&reason)).ok()
    }

    fn make() -> Result<Netns, String> {
        let mut last = String::new();
        for _ in 0..20 {
            // The name contains the subnet, so no other test gets this subnet while the namespace exists.
            let subnet = (200 + (random() % 50) as u8, (random() % 250) as u8);
            let name = format!("leasehold-{}-{}", subnet.0, subnet.1);
            let route = run(&["ip", "-o", "route", "show", &format!("10.{}.{}.0/24", subnet.0, subnet.1)])?;
            if !route.is_empty() {
                continue;
            }
            if let Err(error) = run(&["ip", "netns", "add", &name]) {
                last = error;
                continue;
            }
            let will = LastWill::new(&["ip", "netns", "del", &name]);
            let net = Netns { name, inner: format!("lh{}-{}i", subnet.0, subnet.1), subnet, _will: will };
            net.connect()?;
            return Ok(net);
        }
        Err(format!("no network namespace can be made: {last}"))
    }

    fn connect(&self) -> Result<(), String> {
        let outer = format!("lh{}-{}o", self.subnet.0, self.subnet.1);
        let (name, inner) = (self.name.as_str(), self.inner.as_str());
        let ours = format!("{}/30", self.test_address());
        let theirs = format!("{}/30", self.server_address());
        run(&["ip", "link", "add", &outer, "type", "veth", "peer", "name", inner, "netns", name])?;
        run(&["ip", "addr", "add", &ours, "dev", &outer])?;
        run(&["ip", "link", "set", &outer, "up"])?;
        run(&["ip", "-n", name, "addr", "add", &theirs, "dev", inner])?;
        run(&["ip", "-n", name, "link", "set", inner, "up"])?;
        run(&["ip", "-n", name, "link", "set", "lo", "up"])?;
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn test_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet.0, self.subnet.1, 1)
    }

    pub fn server_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.subnet.0, self.subnet.1, 2)
    }

    #[track_caller]
    pub fn start(&self, builder: Builder) -> RedisServer {
        builder.inside(self).start()
    }

    /// Drops all packets to the server on its present connections. Later connections work.
    #[must_use = "dropping the cut heals it"]
    pub fn cut_connections(&self, server: &RedisServer) -> Cut<'_> {
        let ports = self.ports(server);
        assert!(!ports.is_empty(), "no connection to cut");
        let mut cut = Cut { net: self, heal: Vec::new() };
        for port in ports.iter().map(u16::to_string) {
            let rule = |action: &str| {
                let exec = ["ip", "netns", "exec", &self.name, "iptables", "-w", action, "INPUT"];
                [&exec[..], &["-p", "tcp", "--sport", &port, "-j", "DROP"]]
                    .concat()
                    .iter()
                    .map(|&word| word.to_owned())
                    .collect::<Vec<_>>()
            };
            run(&rule("-A")).unwrap();
            cut.heal.push(rule("-D"));
        }
        cut
    }

    /// The ports of the clients to which the server is connected.
    pub fn ports(&self, server: &RedisServer) -> Vec<u16> {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.admin()).unwrap();
        let prefix = format!("addr={}:", self.test_address());
        let fields = list.lines().flat_map(|line| line.split(' '));
        fields.filter_map(|field| field.strip_prefix(&prefix)?.parse::<u16>().ok()).collect()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // The kernel removes the devices too, so only the namespace is deleted.
        if let Err(error) = run(&["ip", "netns", "del", &self.name]) {
            shout(&format!("{error}: the namespace {} stays", self.name));
        }
    }
}

impl Cut<'_> {
    /// Lets packets pass again. The kernel then sends the lost bytes again.
    pub fn heal(self) {
        drop(self);
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        for command in &self.heal {
            if let Err(error) = run(command) {
                shout(&format!("{error}: the namespace {} stays cut", self.net.name));
            }
        }
    }
}

fn run<S: AsRef<str>>(command: &[S]) -> Result<String, String> {
    let words: Vec<&str> = command.iter().map(S::as_ref).collect();
    match super::run(&words, |command| command) {
        (true, text) => Ok(text.trim_end().to_owned()),
        (false, text) => Err(format!("{}: {}", words.join(" "), text.trim_end())),
    }
}
