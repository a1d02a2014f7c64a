//! Opens connections within a deadline, and tries all addresses of a host.
//!
//! The driver alone stops at the first address that refuses, looks up names without a time-out, and waits
//! for a silent server for the whole time-out of an answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mysql::{Conn, DriverError, Opts, OptsBuilder};

use crate::error::Result;
use crate::hosts::{Host, Hosts, Rounds};
use crate::secrets::Renewable;
use crate::stores::sql::mysql::refusal::refusal;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{channel, thread};
use crate::time::{Clock, Moment};

/// Maximum number of threads that still connect although the caller's deadline has passed. Each ends after
/// the time-out for an answer.
const MOST_LEFT: usize = 8;

#[derive(Clone)]
pub(super) struct Dial {
    host: Host,
    hosts: Arc<Hosts>,
    connect_timeout: Duration,
    left: Arc<AtomicUsize>,
    /// Reads user and password again for each connection. (The driver itself reads certificates again.)
    pub(super) credentials: Option<Arc<Renewable<(OptsBuilder, Dial)>>>,
}

impl Dial {
    pub(super) fn new(host: &str, hosts: &Arc<Hosts>, connect_timeout: Duration) -> Dial {
        let host = hosts.own(Host::given(host.trim_start_matches('[').trim_end_matches(']'), true));
        Dial { host, hosts: Arc::clone(hosts), connect_timeout, left: Arc::default(), credentials: None }
    }

    /// Connects by `deadline`. `answer` is the time-out for each answer, as set in `opts`.
    pub(super) fn connect(&self, opts: &OptsBuilder, answer: Duration, deadline: Moment) -> Result<Conn> {
        let connect = |opts: &OptsBuilder| {
            self.connect_once(opts, answer, deadline).map_err(|error| refusal(error).during("connect"))
        };
        let Some(credentials) = &self.credentials else { return connect(opts) };
        let address = format!("{}:{}", self.host.name(), Opts::from(opts.clone()).get_tcp_port());
        credentials.with(&address, deadline, |(renewed, _), _| {
            let renewed = Opts::from(renewed.clone());
            connect(&opts.clone().user(renewed.get_user()).pass(renewed.get_pass()))
        })
    }

    fn connect_once(&self, opts: &OptsBuilder, answer: Duration, deadline: Moment) -> mysql::Result<Conn> {
        let deadline = deadline.min(Clock::System.after(self.connect_timeout));
        let families = self.families(deadline)?;
        let mut rounds = Rounds::until(deadline);
        let mut failure = None;
        while let Some(limit) = rounds.next_limit() {
            // A host with one address (no `families`) gets the whole time: nothing else can be tried.
            let limit = if families.is_empty() { deadline.since(Clock::System.now()) } else { limit };
            let opts = opts.clone().tcp_connect_timeout(Some(limit));
            let from: Vec<_> = match &*families {
                [] => vec![opts],
                // The driver tries only addresses of the family of `bind_address`, so each family gets a try.
                families => families.iter().map(|own| opts.clone().bind_address(Some(*own))).collect(),
            };
            for opts in from {
                match self.open(opts, answer, deadline) {
                    Err(error) if is_of_network(&error) => failure = Some(error),
                    opened => return opened,
                }
            }
        }
        Err(failure.unwrap_or_else(late))
    }

    /// Local addresses to bind, because the driver then tries only the host's addresses of that family:
    /// 0.0.0.0 for IPv4, :: for IPv6. Empty for a host with one address.
    fn families(&self, deadline: Moment) -> mysql::Result<Vec<SocketAddr>> {
        let addresses = self.hosts.addresses(&self.host, deadline);
        let addresses = addresses.map_err(|_no_address| DriverError::CouldNotConnect(None))?;
        let own = |address: &SocketAddr| -> IpAddr {
            if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
        };
        let mut families: Vec<SocketAddr> = Vec::new();
        for family in addresses.iter().filter(|_| addresses.len() > 1).map(own) {
            if !families.iter().any(|known| known.ip() == family) {
                families.push((family, 0).into());
            }
        }
        Ok(families)
    }

    /// Opens a connection. If the driver may take longer than the deadline, a separate thread opens it.
    fn open(&self, opts: OptsBuilder, answer: Duration, deadline: Moment) -> mysql::Result<Conn> {
        if answer <= deadline.since(Clock::System.now()) {
            return Conn::new(opts);
        }
        if self.left.load(Ordering::SeqCst) >= MOST_LEFT {
            return Err(late());
        }
        // With capacity zero, the thread cannot send a connection that nobody receives.
        let (sender, opened) = channel::bounded(0);
        let left = Arc::clone(&self.left);
        let work = move || {
            if sender.send(Conn::new(opts)).is_err() {
                left.fetch_sub(1, Ordering::SeqCst);
            }
        };
        thread::Builder::new().name("leasehold-dial".to_owned()).spawn(work)?;
        opened.recv_timeout(deadline.since(Clock::System.now())).unwrap_or_else(|ended| {
            // The thread's `send` fails only when this call has dropped `opened`, so the thread decrements
            // `left` after this increment.
            let is_left = ended == channel::RecvTimeoutError::Timeout;
            self.left.fetch_add(usize::from(is_left), Ordering::SeqCst);
            Err(late())
        })
    }
}

/// Whether no server has answered, so that another address or another try may succeed.
fn is_of_network(error: &mysql::Error) -> bool {
    use DriverError::{ConnectTimeout, CouldNotConnect};
    matches!(error, mysql::Error::IoError(_) | mysql::Error::DriverError(ConnectTimeout | CouldNotConnect(_)))
}

fn late() -> mysql::Error {
    mysql::Error::DriverError(DriverError::ConnectTimeout)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn dial(found: &'static [IpAddr]) -> Dial {
        let hosts = Hosts::resolving(move |_| Ok(found.iter().map(|address| (*address, 0).into()).collect()));
        Dial::new("localhost", &Arc::new(hosts), SOON)
    }

    fn opts(port: u16) -> OptsBuilder {
        OptsBuilder::new().ip_or_hostname(Some("localhost")).tcp_port(port).prefer_socket(false)
    }

    const BOTH: &[IpAddr] = &[IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)];

    #[test]
    fn both_address_families_of_a_host_are_tried() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::Builder::new().spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.write_all(b"\x0b\0\0\0\xff\x10\x04Too many").unwrap();
        });
        let server = server.unwrap();
        let deadline = Clock::System.after(SOON);
        let error = dial(BOTH).connect_once(&opts(port), SOON, deadline).unwrap_err();
        assert!(matches!(&error, mysql::Error::MySqlError(said) if said.code == 1040), "{error:?}");
        server.join().unwrap();
        let families: Vec<IpAddr> =
            dial(BOTH).families(deadline).unwrap().iter().map(SocketAddr::ip).collect();
        assert_eq!(families, [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)]);
        assert!(dial(&BOTH[1..]).families(deadline).unwrap().is_empty(), "a single address needs no choice");
    }

    #[test]
    fn connecting_to_a_silent_mysql_server_ends_by_the_deadline() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (dial, answer) = (dial(&BOTH[1..]), SOON);
        let opts = opts(port).read_timeout(Some(answer));
        let begun = Clock::System.now();
        for _ in 0..MOST_LEFT + 2 {
            let deadline = Clock::System.after(Duration::from_millis(50));
            assert!(is_of_network(&dial.connect_once(&opts, answer, deadline).unwrap_err()));
        }
        assert!(Clock::System.now().since(begun) < SOON / 2);
        assert_eq!(dial.left.load(Ordering::SeqCst), MOST_LEFT);
    }
}
