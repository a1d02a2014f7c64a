//! Hosts: how messages show them, which ones the client may connect to, and their addresses.
//!
//! The system's look-up of a name has no time-out, so a separate thread does it, an [`Inquiry`].

pub(crate) mod url;

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
pub(crate) use crate::hosts::url::HostList;
#[cfg(any(feature = "etcd", feature = "sqlite", feature = "zookeeper"))]
pub(crate) use crate::hosts::url::no_parameters;
pub(crate) use crate::hosts::url::{
    SCHEMES, check_scheme, check_url, labelled, needs_feature, parameters, unescaped, unknown_parameter,
    without_credentials,
};
use crate::inquiry::{Cause, Inquiry};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::system::{self, Socket};
use crate::time::{Clock, Moment, random_between};

/// For how long the outcome of a look-up is reused: found addresses for 1 s, a failure not at all.
const FRESH: (Duration, Duration) = (Duration::from_secs(1), Duration::ZERO);
/// How long each of several addresses is tried before the next one, as RFC 8305 advises; and the factor by
/// which that time grows after each round over all addresses.
const FIRST_LIMIT: (Duration, u32) = (Duration::from_millis(250), 4);
const MOST_KEPT: usize = 256;
const UNSHOWN: &str = "(the URL's host, not shown since it may be part of a password)";

#[derive(Clone)]
pub(crate) struct Host {
    name: Arc<str>,
    /// Whether a server named this host, not the URL.
    is_foreign: bool,
    /// Whether messages may show this host. In a mistyped URL this text may be a password, so an unsure text
    /// is shown only after a look-up has found its address.
    is_shown: Arc<AtomicBool>,
}

impl Host {
    /// A host from a URL. `is_sure`: the text cannot be a password, so messages may show it.
    pub(crate) fn given(name: &str, is_sure: bool) -> Host {
        let is_sure = is_sure || name == "localhost" || name.parse::<IpAddr>().is_ok();
        Host { name: name.into(), is_foreign: false, is_shown: Arc::new(AtomicBool::new(is_sure)) }
    }

    pub(crate) fn named(name: &str) -> Host {
        Host { name: name.into(), is_foreign: true, is_shown: Arc::new(AtomicBool::new(true)) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl PartialEq for Host {
    fn eq(&self, other: &Host) -> bool {
        self.name == other.name
    }
}

impl Eq for Host {}

impl Hash for Host {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_shown.load(Ordering::Relaxed) { &self.name } else { UNSHOWN })
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(crate) struct Hosts {
    /// The hosts that servers may name; `None`: all.
    allowed: Option<Vec<String>>,
    /// The hosts of the client's own URL, which servers may always name.
    own: Mutex<Vec<Host>>,
    look_ups: Arc<Inquiry<Vec<SocketAddr>>>,
    /// For each name, the address that accepted last. Trying it first avoids the delay of a silent address.
    accepted: Mutex<HashMap<Box<str>, IpAddr>>,
}

/// Limits the time for each of several addresses, so that a silent one does not use up the deadline.
pub(crate) struct Rounds {
    deadline: Moment,
    limit: Duration,
    begun: Option<Moment>,
}

impl Rounds {
    pub(crate) fn until(deadline: Moment) -> Rounds {
        Rounds { deadline, limit: FIRST_LIMIT.0, begun: None }
    }

    /// The time for each address in the next round. `None`: no time is left, or no address was silent in
    /// the last round, so that another is useless.
    pub(crate) fn next_limit(&mut self) -> Option<Duration> {
        let now = Clock::System.now();
        if let Some(begun) = self.begun.replace(now) {
            if now.since(begun) < self.limit {
                return None;
            }
            self.limit = self.limit.saturating_mul(FIRST_LIMIT.1);
        }
        let left = self.deadline.since(now);
        (!left.is_zero()).then(|| self.limit.min(left))
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Lifetime {
    /// Maximum age of a connection, less a random part of up to a tenth, so that a fleet does not reconnect
    /// at once. Only a new connection notices a revoked password, or that a name or proxy leads elsewhere.
    pub(crate) age: Duration,
    /// The longest time without a request. Routers and load balancers silently forget connections that idle
    /// for four minutes or more, and the next request would time out.
    pub(crate) idle: Duration,
}

impl Default for Lifetime {
    fn default() -> Lifetime {
        Lifetime { age: Duration::from_secs(30 * 60), idle: Duration::from_secs(3 * 60) }
    }
}

impl Lifetime {
    pub(crate) fn some_age(&self) -> Duration {
        random_between((self.age - self.age / 10, self.age))
    }

    /// Whether to replace a connection, if another can be opened.
    pub(crate) fn is_over(&self, replace_at: Moment, used: Moment, now: Moment) -> bool {
        now >= replace_at || now.since(used) >= self.idle
    }
}

/// Maximum of [`link`]; `lua/wait_queue.lua` has the same bound.
const FARTHEST_LINK: u32 = 6;

/// How slow the network is: `10 ms << link` covers two round trips, and the 8 ms until a notified thread
/// runs. For that time the wait queue reserves a lock for the notified client.
pub(crate) fn link(round_trip: Duration) -> u32 {
    let wanted = round_trip.saturating_mul(2) + Duration::from_millis(8);
    (0..FARTHEST_LINK).find(|link| wanted <= Duration::from_millis(10 << link)).unwrap_or(FARTHEST_LINK)
}

/// If an old connection cannot be replaced, it is used for this time before the next try.
pub(crate) const REPLACE_AGAIN: Duration = Duration::from_secs(60);

/// The age from which a connection to a read-only server is closed. If younger ones were closed too, a server
/// that stays read-only would cost a connect for each request.
pub(crate) const LEAST_AGE: Duration = Duration::from_millis(250);

impl Default for Hosts {
    fn default() -> Hosts {
        Hosts::resolving(|name| (name, 0).to_socket_addrs().map(Iterator::collect))
    }
}

impl Hosts {
    pub(crate) fn resolving(
        resolve: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Hosts {
        let look_up = move |name: &str| resolve(name).map_err(|error| Arc::new(error) as Cause);
        Hosts {
            allowed: None,
            own: Mutex::default(),
            look_ups: Inquiry::new("leasehold-names", look_up),
            accepted: Mutex::default(),
        }
    }

    pub(crate) fn allowing(hosts: Vec<String>) -> Hosts {
        Hosts { allowed: Some(hosts), ..Hosts::default() }
    }

    /// Adds a host of the client's own URL to the hosts that servers may name.
    pub(crate) fn own(&self, host: Host) -> Host {
        if self.allowed.is_some() {
            self.own.lock().push(host.clone());
        }
        host
    }

    pub(crate) fn check_options(&self) -> Result<()> {
        let is_host = |host: &String| {
            let name = host.strip_prefix("*.").unwrap_or(host);
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
            is_name || host.parse::<IpAddr>().is_ok()
        };
        if self.allowed.iter().flatten().all(is_host) {
            return Ok(());
        }
        let words =
            "allowed_hosts takes names and addresses of hosts, without ports; a name may begin with *.";
        Err(Error::invalid("connect", words))
    }

    pub(crate) fn check(&self, host: &Host) -> Result<()> {
        let Some(allowed) = self.allowed.as_ref().filter(|_| host.is_foreign) else { return Ok(()) };
        let is_own = || self.own.lock().iter().any(|own| is_covered(&host.name, &own.name));
        if allowed.iter().any(|allowed| is_covered(&host.name, allowed)) || is_own() {
            return Ok(());
        }
        let words = format!("a server named the host {host}, which is not among the allowed_hosts");
        Err(Error::new(ErrorKind::Unsupported, "connect", words))
    }

    pub(crate) fn connect(&self, host: &Host, port: u16, deadline: Moment) -> io::Result<Socket> {
        let addresses = self.addresses(host, deadline)?;
        let is_only = addresses.len() == 1;
        let mut rounds = Rounds::until(deadline);
        let mut failure: Option<io::Error> = None;
        while let Some(limit) = rounds.next_limit() {
            for mut address in addresses.iter().copied() {
                address.set_port(port);
                let left = deadline.since(Clock::System.now());
                if left.is_zero() {
                    break;
                }
                match TcpStream::connect_timeout(&address, if is_only { left } else { limit.min(left) }) {
                    Ok(socket) => {
                        if !is_only {
                            self.note_accepted(host, address.ip());
                        }
                        socket.set_nodelay(true)?;
                        return system::socket(socket);
                    }
                    // A refusal explains more than a time-out, so the time-out of another address does not
                    // replace it.
                    Err(error) => match &failure {
                        Some(known) if known.kind() != io::ErrorKind::TimedOut => {}
                        _ => failure = Some(error),
                    },
                }
            }
        }
        Err(failure.unwrap_or_else(|| match addresses.is_empty() {
            true => io::Error::new(io::ErrorKind::NotFound, "the host has no address"),
            false => io::ErrorKind::TimedOut.into(),
        }))
    }

    fn note_accepted(&self, host: &Host, address: IpAddr) {
        let mut accepted = self.accepted.lock();
        if accepted.len() >= MOST_KEPT {
            accepted.clear();
        }
        accepted.insert((&*host.name).into(), address);
    }

    /// The host's addresses, with the one that accepted last in front. If the look-up takes too long, returns
    /// the addresses of the last look-up.
    pub(crate) fn addresses(&self, host: &Host, deadline: Moment) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.name.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, 0)]);
        }
        let late =
            || io::Error::new(io::ErrorKind::TimedOut, "the look-up of the host's name takes too long");
        let found = self.look_ups.answer(&host.name, FRESH, deadline).ok_or_else(late)?;
        let mut found = found.map_err(io::Error::other)?;
        let accepted = self.accepted.lock().get(&*host.name).copied();
        found.sort_by_key(|address| Some(address.ip()) != accepted);
        if !found.is_empty() {
            host.is_shown.store(true, Ordering::Relaxed);
        }
        Ok(found)
    }
}

fn is_covered(host: &str, allowed: &str) -> bool {
    if let (Ok(host), Ok(allowed)) = (host.parse::<IpAddr>(), allowed.parse::<IpAddr>()) {
        return host == allowed;
    }
    let (host, allowed) = (host.trim_end_matches('.').to_lowercase(), allowed.to_lowercase());
    match allowed.strip_prefix('*') {
        Some(ending) => host.len() > ending.len() && host.ends_with(ending),
        None => host == allowed,
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosts").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    fn soon(ms: u64) -> Moment {
        Clock::System.after(Duration::from_millis(ms))
    }

    fn address(last: u8) -> SocketAddr {
        (Ipv4Addr::new(127, 0, 0, last), 0).into()
    }

    /// Look-ups that wait until the test sends their outcomes, in order.
    fn held() -> (Arc<Hosts>, crossbeam_channel::Sender<io::Result<Vec<SocketAddr>>>) {
        let (sender, outcomes) = crossbeam_channel::unbounded();
        let look_up = move |_: &str| outcomes.recv().unwrap_or_else(|_over| Err(io::ErrorKind::Other.into()));
        (Arc::new(Hosts::resolving(look_up)), sender)
    }

    #[test]
    fn a_hanging_look_up_times_out_at_the_deadline() {
        let (hosts, _never) = held();
        let error = hosts.addresses(&Host::named("hangs"), soon(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(hosts.addresses(&Host::named("127.0.0.9"), soon(0)).unwrap(), [address(9)]);
    }

    /// A listener with a full queue, which answers no further connect.
    fn silent(place: SocketAddr) -> (TcpListener, Vec<TcpStream>) {
        let listener = TcpListener::bind(place).unwrap();
        let place = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&place, Duration::from_millis(100)).ok();
        (listener, std::iter::from_fn(connect).collect())
    }

    #[test]
    fn the_next_connect_tries_a_silent_address_last() {
        let listener = TcpListener::bind(address(3)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut dead = address(2);
        dead.set_port(port);
        let _full = silent(dead);
        let hosts = Arc::new(Hosts::resolving(|_| Ok(vec![address(2), address(3)])));
        let host = Host::named("shop");
        let begun = Clock::System.now();
        for _ in 0..2 {
            let socket = hosts.connect(&host, port, soon(20_000)).unwrap();
            assert_eq!(socket.peer_addr().unwrap(), listener.local_addr().unwrap());
            assert_eq!(hosts.addresses(&host, soon(20_000)).unwrap(), [address(3), address(2)]);
        }
        assert!(Clock::System.now().since(begun) < Duration::from_secs(10));
        let none = Arc::new(Hosts::resolving(|_| Ok(vec![address(2), address(2)])));
        let begun = Clock::System.now();
        let error = none.connect(&host, port, soon(700)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(Clock::System.now().since(begun) >= Duration::from_millis(700));
        drop(listener);
        let error = hosts.connect(&host, port, soon(700)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_failed_look_up_is_reported_and_repeated() {
        let (hosts, sender) = held();
        let host = Host::given("shop", false);
        for _ in 0..2 {
            sender.send(Err(io::Error::other("no such host"))).unwrap();
            assert_eq!(hosts.addresses(&host, soon(20_000)).unwrap_err().to_string(), "no such host");
            assert!(!host.to_string().contains("shop"));
        }
        sender.send(Ok(vec![address(1)])).unwrap();
        hosts.addresses(&host, soon(20_000)).unwrap();
        assert_eq!(host.to_string(), "shop");
    }

    #[test]
    fn only_allowed_hosts_and_hosts_of_the_url_are_accepted() {
        let hosts =
            Hosts::allowing(["one.example", "*.two.example", "10.0.0.1", "::1"].map(str::to_owned).into());
        hosts.check_options().unwrap();
        for good in
            ["one.example", "ONE.example.", "a.two.example", "a.b.Two.Example", "10.0.0.1", "0:0:0:0:0:0:0:1"]
        {
            hosts.check(&Host::named(good)).unwrap();
        }
        for bad in ["one.example.evil", "two.example", "eviltwo.example", "10.0.0.2", "", "a.one.example"] {
            let error = hosts.check(&Host::named(bad)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{bad}");
            hosts.check(&Host::given(bad, true)).unwrap();
        }
        hosts.own(Host::given("url.example", false));
        hosts.check(&Host::named("url.example")).unwrap();
        Hosts::default().check(&Host::named("anywhere")).unwrap();
        for bad in ["", "*.", "*", "host:1", "http://host", "u@host", "[::1]"] {
            let error = Hosts::allowing(vec![bad.to_owned()]).check_options().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
        }
    }
}
