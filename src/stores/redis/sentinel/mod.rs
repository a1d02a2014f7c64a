//! Finds the master of a name through Sentinels.
//!
//! Before each connect, the client asks Sentinels until more than half have answered, or one names a newer
//! master (docs/decisions/0034); before the first, it asks all. Each switch has a number that grows (the
//! configuration epoch). An answer counts only if its number is not below the highest one seen, because some
//! Sentinels learn of a switch later, or are cut off. When the client learns of a newer master, it ends all
//! connections to others: an old master that was cut off accepts writes for some ten seconds more.
//!
//! When a Sentinel announces which replica it will promote, the client writes nothing until the promotion is
//! done: the new master would not get writes that the old one receives now.

pub(crate) mod monitor;

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{Host, Hosts};
use crate::secrets::Renewable;
use crate::stores::redis::conn::connection::{Connection, Endpoint, ServerPlace};
use crate::stores::redis::conn::handshake::{auth, auth_refused, dial};
use crate::stores::redis::reply::{accepted, field, is_unknown_command, refusal, text};
use crate::stores::redis::script::Command;
use crate::sync::{Condvar, Mutex};
use crate::time::{Clock, Moment};
use crate::wire::{TlsConfig, Wire, tls_config};

const PAUSE: Duration = Duration::from_millis(25);
/// A try to reach the named master has a third of the remaining time, but at least this. The rest is for
/// another try: the master may be dead, and the Sentinels may name another one meanwhile.
const LEAST_TRY: Duration = Duration::from_millis(200);
/// Once there is a usable answer, each further Sentinel has at most this fraction of the time: an eighth.
const SECOND_OPINION: u32 = 8;
/// A Sentinel announces a replica 0.1 s before its promotion, and checks every second whether the promotion
/// is done. If no Sentinel names a new master within this time, the promotion counts as given up.
const PROMOTION: Duration = Duration::from_secs(3);
/// If more than half of the Sentinels have named a master with a lower epoch for this time, the Sentinels
/// were set up anew with new epochs, and the client accepts their master.
const SET_UP_ANEW: Duration = Duration::from_secs(10);

pub(crate) struct Sentinels {
    pub(super) name: String,
    /// The Sentinels' addresses. A Sentinel that did not name the master moves to the end.
    places: Mutex<Vec<Arc<ServerPlace>>>,
    access: Arc<Renewable<Access>>,
    first_access: Arc<Access>,
    write_timeout: Duration,
    hosts: Arc<Hosts>,
    known: Mutex<KnownMaster>,
    changed: Condvar,
}

/// The login at the Sentinels, and the TLS settings for them and the master.
struct Access {
    username: Option<String>,
    password: Option<String>,
    tls: Option<TlsConfig>,
}

impl Access {
    fn new(options: &ServerOptions) -> Result<Access> {
        let is_tls = options.url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("rediss"));
        let (username, password) = (options.username.clone(), options.password.clone());
        Ok(Access { username, password, tls: tls_config(&options.tls, is_tls)? })
    }
}

#[derive(Default)]
struct KnownMaster {
    master: Option<Master>,
    /// The open connections to masters, each with its server.
    open: Vec<(Endpoint, Weak<Wire>)>,
    /// Since when more than half of the Sentinels have named only older masters.
    older_since: Option<Moment>,
    /// Until this time, a Sentinel may be promoting another server.
    promoting_until: Option<Moment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Master {
    epoch: u64,
    node: Endpoint,
}

impl Sentinels {
    pub(crate) fn new(
        name: &str,
        places: Vec<Arc<ServerPlace>>,
        options: &ServerOptions,
    ) -> Result<Sentinels> {
        let own = ServerOptions {
            username: options.sentinel_username.clone(),
            password: options.sentinel_password.clone(),
            credentials: options.sentinel_credentials.clone(),
            url_files: Vec::new(),
            ..options.clone()
        };
        let (access, first_access) = Renewable::new(&own, Access::new)?;
        Ok(Sentinels {
            name: name.to_owned(),
            places: Mutex::new(places),
            access,
            first_access,
            write_timeout: options.command_timeout,
            hosts: Arc::clone(&options.hosts),
            known: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn places(&self) -> Vec<Arc<ServerPlace>> {
        self.places.lock().clone()
    }

    /// A server's place with the certificates that were configured at the start.
    pub(crate) fn secured(&self, place: &ServerPlace) -> ServerPlace {
        place.secured(self.first_access.tls.as_ref())
    }

    /// Connects to the master. `connect` opens the connection by the given deadline, and first passes the
    /// socket to its third argument, so that a switch can end a connection that hangs. While the master is
    /// down, or the Sentinels disagree, tries again until `deadline`.
    pub(crate) fn open(
        &self,
        deadline: Moment,
        connect: impl Fn(&ServerPlace, Moment, &dyn Fn(&Arc<Wire>)) -> Result<Connection>,
    ) -> Result<Connection> {
        let mut before = None;
        loop {
            self.await_promotion(deadline)?;
            let master = match self.ask_in_turn(deadline) {
                Ok(master) => master,
                Err(error) => return Err(error.or_answer(before)),
            };
            let Endpoint { host, port } = master.node.clone();
            let now = Clock::System.now();
            let part = now.plus((deadline.since(now) / 3).max(LEAST_TRY)).min(deadline);
            let place = ServerPlace::Tcp { host, port, tls: None };
            let error = match connect(&place, part, &|stream| self.register(&master.node, stream)) {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            let words =
                format!("the Sentinels name {} as master {}: {}", master.node, self.name, error.detail());
            let error = Error::new(error.kind(), "connect", words).with_source(error).or_answer(before);
            if !error.is_retryable() || Clock::System.now().plus(PAUSE) >= deadline {
                return Err(error);
            }
            before = Some(error);
            let mut known = self.known.lock();
            self.changed.wait_for(&mut known, PAUSE);
        }
    }

    fn await_promotion(&self, deadline: Moment) -> Result<()> {
        let mut known = self.known.lock();
        while let Some(until) = known.promoting_until {
            let now = Clock::System.now();
            if now >= until {
                known.promoting_until = None;
            } else if now >= deadline {
                let words = format!("the Sentinels are promoting a new master {}: try again", self.name);
                return Err(Error::new(ErrorKind::Busy, "connect", words));
            } else {
                self.changed.wait_for(&mut known, until.min(deadline).since(now));
            }
        }
        Ok(())
    }

    /// Asks the Sentinels in turn, and returns the newest master. Stops early at one newer than the known
    /// one, or at the known one if more than half have answered: fewer may all have missed a switch.
    fn ask_in_turn(&self, deadline: Moment) -> Result<Master> {
        let places = self.places();
        let mut newest: Option<Master> = None;
        let (mut answers, mut would_do) = (0, false);
        let mut failure: Option<Error> = None;
        for (asked, place) in places.iter().enumerate() {
            // The Sentinels not yet asked and the master share the remaining time.
            let now = Clock::System.now();
            let parts = u32::try_from(places.len() - asked + 1).unwrap_or(u32::MAX);
            let parts = if would_do { parts.max(SECOND_OPINION) } else { parts };
            match self.ask_once(place, now.plus(deadline.since(now) / parts)) {
                Ok(master) => {
                    answers += 1;
                    if newest.as_ref().is_none_or(|newest| newest.epoch < master.epoch) {
                        newest = Some(master);
                    }
                }
                Err(error) => {
                    self.ask_last(place);
                    // A lasting error, such as a wrong password, is more useful than that of a dead Sentinel.
                    if failure.as_ref().is_none_or(Error::is_retryable) {
                        failure = Some(error);
                    }
                }
            }
            // The epoch is read again each time, because another thread may have learned of a switch.
            let known = self.known.lock().master.as_ref().map(|known| known.epoch);
            if let (Some(known), Some(newest)) = (known, &newest) {
                would_do = newest.epoch >= known;
                if newest.epoch > known || would_do && self.are_more_than_half(answers) {
                    break;
                }
            }
        }
        let Some(newest) = newest else {
            let none = || Error::new(ErrorKind::Unreachable, "connect", "the URL names no Sentinel");
            return Err(failure.unwrap_or_else(none));
        };
        if self.learn(&newest) {
            return Ok(newest);
        }
        let Master { epoch, node } = newest;
        let words = format!(
            "the Sentinels that answered name {node} as master {} (epoch {epoch}), but the client \
                knows a newer master: check the other Sentinels",
            self.name
        );
        let error = Error::new(ErrorKind::Busy, "connect", words);
        Err(match failure {
            Some(failure) => error.with_source(failure),
            None => error,
        })
    }

    fn are_more_than_half(&self, count: usize) -> bool {
        count * 2 > self.places.lock().len()
    }

    fn ask_once(&self, place: &ServerPlace, deadline: Moment) -> Result<Master> {
        let mut connection = self.greet(place, &[], deadline, |_| ())?;
        self.send_question(&mut connection, deadline).map_err(|error| of_sentinel(place, error))?;
        self.read_answer(&mut connection, deadline).map_err(|error| of_sentinel(place, error))
    }

    /// Connects to a Sentinel. Sends `commands` together with the login; the caller reads their replies.
    pub(crate) fn greet(
        &self,
        place: &ServerPlace,
        commands: &[Command],
        deadline: Moment,
        begun: impl Fn(&Arc<Wire>),
    ) -> Result<Connection> {
        self.access.with(&place.address(), deadline, |access, _| {
            let auth = auth(access.username.as_deref(), access.password.as_deref());
            let mut bytes = Vec::new();
            for command in auth.iter().chain(commands) {
                command.pack_into(&mut bytes);
            }
            let talk = || {
                let mut connection =
                    dial(&place.secured(access.tls.as_ref()), &self.hosts, self.write_timeout, deadline)?;
                begun(&connection.stream);
                connection.send(&bytes, deadline)?;
                if auth.is_some() {
                    accepted(connection.receive(deadline)?).map_err(|error| auth_refused(&error))?;
                }
                Ok(connection)
            };
            talk().map_err(|error| of_sentinel(place, error))
        })
    }

    /// Asks for the master's address and epoch in one write, since a Sentinel changes both together.
    pub(crate) fn send_question(&self, connection: &mut Connection, deadline: Moment) -> Result<()> {
        let mut bytes = Vec::new();
        for question in ["GET-MASTER-ADDR-BY-NAME", "MASTER"] {
            Command::new("SENTINEL").arg(question).arg(&self.name).pack_into(&mut bytes);
        }
        connection.send(&bytes, deadline)
    }

    pub(crate) fn read_answer(&self, connection: &mut Connection, deadline: Moment) -> Result<Master> {
        let (node, details) = (self.reply(connection, deadline)?, self.reply(connection, deadline)?);
        let refused = |error: redis::ServerError| {
            if is_unknown_command(&error) {
                let words = "the server is no Sentinel, but keeps data: give a URL that begins with redis://";
                return Error::new(ErrorKind::Unsupported, "connect", words);
            }
            refusal(&error)
        };
        let node = match accepted(node).map_err(refused)? {
            Value::Array(node) => node,
            _ => {
                let words = format!("this Sentinel knows no master called {}", self.name);
                return Err(Error::new(ErrorKind::Refused, "connect", words));
            }
        };
        let details = accepted(details).map_err(refused)?;
        let node = match node.as_slice() {
            [host, port] => text(host).zip(text(port).and_then(|port| port.parse().ok())),
            _ => None,
        };
        let epoch = field(&details, "config-epoch").and_then(text).and_then(|epoch| epoch.parse().ok());
        let (Some((host, port)), Some(epoch)) = (node, epoch) else {
            return Err(Error::new(ErrorKind::Protocol, "connect", "the answer is not a Sentinel's"));
        };
        Ok(Master { epoch, node: Endpoint { host: Host::named(host), port } })
    }

    /// Reads the next reply, and handles the messages before it.
    fn reply(&self, connection: &mut Connection, deadline: Moment) -> Result<Value> {
        loop {
            match connection.receive(deadline)? {
                Value::Push { data, .. } => self.hear(&data),
                reply => return Ok(reply),
            }
        }
    }

    /// Handles a message. Only the beginning of a promotion matters; the answers to questions show its end.
    fn hear(&self, message: &[Value]) {
        let [channel, details] = message else { return };
        // `details` has the form `slave 10.0.0.2:6379 10.0.0.2 6379 @ name 10.0.0.1 6379`.
        let is_ours = || {
            let master = text(details).and_then(|details| details.split_once(" @ "));
            master.and_then(|(_, master)| master.split(' ').next()) == Some(&*self.name)
        };
        if text(channel) == Some(BEGINS) && is_ours() {
            let mut known = self.known.lock();
            known.promoting_until = Some(Clock::System.after(PROMOTION));
            known.end_connections(|_| false);
        }
    }

    /// Notes a master, and ends connections to others. Returns `false` if a newer master is known.
    fn learn(&self, master: &Master) -> bool {
        let mut known = self.known.lock();
        if known.master.as_ref().is_some_and(|known| master.epoch < known.epoch) {
            return false;
        }
        self.become_known(&mut known, master);
        true
    }

    /// Learns the newest of the masters that the Sentinels named; see [`SET_UP_ANEW`] for an older one.
    pub(crate) fn learn_from_all(&self, said: &[Master], now: Moment) {
        let Some(newest) = said.iter().max_by_key(|master| master.epoch) else { return };
        if self.learn(newest) {
            return;
        }
        let more_than_half = self.are_more_than_half(said.len());
        let mut known = self.known.lock();
        if !more_than_half {
            known.older_since = None;
        } else if now.since(*known.older_since.get_or_insert(now)) >= SET_UP_ANEW {
            self.become_known(&mut known, newest);
        }
    }

    fn become_known(&self, known: &mut KnownMaster, master: &Master) {
        known.older_since = None;
        if known.master.as_ref() == Some(master) {
            return;
        }
        known.end_connections(|node| *node == master.node);
        known.promoting_until = None;
        known.master = Some(master.clone());
        self.changed.notify_all();
    }

    /// Registers a connection. Ends it as soon as another master is known or being promoted, perhaps now.
    fn register(&self, node: &Endpoint, stream: &Arc<Wire>) {
        let mut known = self.known.lock();
        let is_replaced = known.master.as_ref().is_some_and(|master| master.node != *node);
        if is_replaced || known.promoting_until.is_some() {
            stream.shutdown();
            return;
        }
        known.open.retain(|(_, stream)| stream.strong_count() > 0);
        known.open.push((node.clone(), Arc::downgrade(stream)));
    }

    fn ask_last(&self, place: &Arc<ServerPlace>) {
        let mut places = self.places.lock();
        if let Some(at) = places.iter().position(|other| Arc::ptr_eq(other, place)) {
            let place = places.remove(at);
            places.push(place);
        }
    }
}

impl KnownMaster {
    fn end_connections(&mut self, is_kept: impl Fn(&Endpoint) -> bool) {
        self.open.retain(|(node, stream)| {
            let is_kept = is_kept(node);
            if let (false, Some(stream)) = (is_kept, stream.upgrade()) {
                stream.shutdown();
            }
            is_kept
        });
    }
}

fn of_sentinel(place: &ServerPlace, error: Error) -> Error {
    let words = match error.kind() {
        ErrorKind::Authentication => format!(
            "the Sentinel at {place} refuses the Sentinels' own user or password: set sentinel_username() and sentinel_password()"
        ),
        _ => format!("the Sentinel at {place} did not name the master: {}", error.detail()),
    };
    Error::new(error.kind(), "connect", words).with_source(error)
}

/// The messages of Sentinels during a switch: the leading Sentinel announces a replica, and then its
/// promotion; then each Sentinel reports the switch.
pub(crate) const CHANNELS: [&str; 3] = [BEGINS, "+promoted-slave", "+switch-master"];
const BEGINS: &str = "+selected-slave";

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::redis::address::RedisAddress;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    pub(super) fn sentinels(count: usize) -> Sentinels {
        let place = || ServerPlace::Tcp { host: Host::given("sentinel", true), port: 1, tls: None };
        let places = (0..count).map(|_| Arc::new(place())).collect();
        Sentinels::new("m", places, &ServerOptions::default()).unwrap()
    }

    #[test]
    fn a_changed_sentinel_password_is_read_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("password"), folder.path().join("s.sock"));
        std::fs::write(&file, "old\n").unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let answer = move || {
            for mut client in listener.incoming().flatten() {
                let mut bytes = [0; 256];
                let count = client.read(&mut bytes).unwrap();
                let is_new = bytes[..count].windows(3).any(|part| part == b"new");
                let reply: &[u8] = if is_new { b"+OK\r\n" } else { b"-WRONGPASS no\r\n" };
                client.write_all(reply).unwrap();
            }
        };
        drop(crate::sync::thread::Builder::new().spawn(answer).unwrap());
        let sentinel_credentials = Some(crate::secrets::password_in(file.clone()));
        let options = ServerOptions { sentinel_credentials, ..ServerOptions::default() };
        let sentinels = Sentinels::new("m", Vec::new(), &options).unwrap();
        let greet = || {
            let deadline = Clock::System.after(Duration::from_secs(10));
            sentinels.greet(&ServerPlace::Unix(socket.clone()), &[], deadline, |_| ())
        };
        assert_eq!(greet().err().map(|error| error.kind()), Some(ErrorKind::Authentication));
        std::fs::write(&file, "new\n").unwrap();
        // Repeats `greet`, because for a while after a refusal the client does not read the password again.
        let deadline = Clock::System.after(Duration::from_secs(60));
        while greet().is_err() {
            assert!(Clock::System.now() < deadline);
        }
    }

    fn master(epoch: u64, host: &str) -> Master {
        Master { epoch, node: Endpoint { host: Host::named(host), port: 1 } }
    }

    fn connection() -> (Arc<Wire>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Arc::new(Wire::Unix(ours)), theirs)
    }

    fn is_open(mut theirs: &UnixStream) -> bool {
        theirs.read(&mut [0]).is_err()
    }

    #[test]
    fn only_a_newer_sentinel_epoch_closes_connections_to_the_master() {
        let sentinels = sentinels(3);
        assert!(sentinels.learn(&master(4, "a")));
        let ((to_a, a), (to_b, b)) = (connection(), connection());
        sentinels.register(&master(4, "a").node, &to_a);
        assert!(sentinels.learn(&master(4, "a")) && is_open(&a));
        assert!(sentinels.learn(&master(5, "b")) && !is_open(&a));
        assert!(!sentinels.learn(&master(4, "a")));
        sentinels.register(&master(5, "b").node, &to_b);
        assert!(is_open(&b));
        // A connection that began before the switch is ended when it is registered.
        let (late, server) = connection();
        sentinels.register(&master(4, "a").node, &late);
        assert!(!is_open(&server));
    }

    #[test]
    fn a_promotion_closes_and_refuses_connections_to_the_master() {
        let sentinels = sentinels(3);
        assert!(sentinels.learn(&master(4, "a")));
        let (stream, server) = connection();
        sentinels.register(&master(4, "a").node, &stream);
        let word = |channel: &str, name: &str| {
            let details = format!("slave b:1 b 1 @ {name} a 1");
            sentinels
                .hear(&[channel.as_bytes(), details.as_bytes()].map(|text| Value::BulkString(text.to_vec())));
        };
        word("+selected-slave", "other");
        word("+sdown", "m");
        assert!(is_open(&server));
        word("+selected-slave", "m");
        assert!(!is_open(&server));
        let (late, server) = connection();
        sentinels.register(&master(4, "a").node, &late);
        assert!(!is_open(&server));
        assert!(sentinels.learn(&master(4, "a")));
        let soon = || Clock::System.after(Duration::from_millis(30));
        assert_eq!(sentinels.await_promotion(soon()).unwrap_err().kind(), ErrorKind::Busy);
        assert!(sentinels.learn(&master(5, "b")));
        sentinels.await_promotion(soon()).unwrap();
    }

    /// A Sentinel that always names a master at this host and port.
    fn naming(host: &str, port: u16) -> (RedisAddress, std::net::TcpListener) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = listener.local_addr().unwrap().port();
        let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let node = format!("*2\r\n{}{}", text(host), text(&port.to_string()));
        let answer = format!("{node}*2\r\n{}{}", text("config-epoch"), text("1"));
        let serving = listener.try_clone().unwrap();
        let serve = move || {
            for mut socket in serving.incoming().map_while(std::result::Result::ok) {
                drop(std::io::Write::write_all(&mut socket, answer.as_bytes()));
                drop(socket.read(&mut [0; 1024]));
            }
        };
        drop(crate::sync::thread::Builder::new().spawn(serve).unwrap());
        let options = ServerOptions {
            url: format!("redis-sentinel://:S3CR3T@127.0.0.1:{ours}/m"),
            hosts: Arc::new(Hosts::allowing(vec!["10.0.0.1".to_owned()])),
            ..ServerOptions::default()
        };
        (RedisAddress::new(&options).unwrap(), listener)
    }

    #[test]
    fn a_master_outside_the_allowed_hosts_is_not_connected_to() {
        let there = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        there.set_nonblocking(true).unwrap();
        let (address, _listener) = naming("localhost", there.local_addr().unwrap().port());
        let deadline = Clock::System.after(Duration::from_secs(5));
        let error = address.open(deadline).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("localhost"), "{error}");
        assert_eq!(there.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn an_older_sentinel_epoch_needs_a_lasting_majority() {
        let sentinels = sentinels(3);
        let at = |seconds| Clock::System.after(Duration::from_secs(seconds));
        assert!(sentinels.learn(&master(4, "a")));
        let older = [master(0, "b"), master(0, "b")];
        let host = || sentinels.known.lock().master.as_ref().unwrap().node.host.name().to_owned();
        sentinels.learn_from_all(&older, at(0));
        sentinels.learn_from_all(&older[..1], at(5)); // not more than half, so the time begins again
        sentinels.learn_from_all(&older, at(6));
        sentinels.learn_from_all(&older, at(15));
        assert_eq!(host(), "a");
        sentinels.learn_from_all(&older, at(17));
        assert_eq!(host(), "b");
        sentinels.learn_from_all(&[master(0, "b"), master(7, "c"), master(0, "b")], at(18));
        assert_eq!(host(), "c");
    }
}

#[cfg(all(test, unix, leasehold_fuzz))]
mod fuzz {
    use std::hint::black_box;

    use super::*;
    use crate::fuzz::each;
    use crate::stores::redis::tests::made_up::{replies, weight};

    const TEXTS: &[&str] =
        &["name", "ip", "port", "10.0.0.1", "6379", "+selected-slave", "slave a:1 a 1 @ m a 2", " @ "];

    #[test]
    fn any_sentinel_reply_is_parsed_or_ignored() {
        let sentinels = tests::sentinels(2);
        each(replies(TEXTS), weight, |reply| {
            black_box((text(reply), field(reply, "ip"), field(reply, "port")));
            if let Value::Array(message) = reply {
                sentinels.hear(message);
            }
        });
    }
}
