//! Private servers, on free ports and in temporary folders that are removed even if a test fails.
//!
//! `LEASEHOLD_SERVERS` lists the server programs, one a line or separated by colons, as `name=path`.
//! `scripts/servers.sh` prints such a list (`redis-7.0=/usr/bin/redis-server`). Without it, `redis-server`
//! and `valkey-server` are found in `PATH`. The first program is the default.
//!
//! Each server also listens on a Unix socket for admin connections. If the server has passwords, these
//! connections have their own user, so they work whatever a test does to network, TLS or permissions.

use super::netns::Netns;
use super::programs::{Running, listens, log_in};
use super::{eventually, missing, now, random, run};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// The time limits for a server to start, and to answer an admin connection.
const START_LIMIT: Duration = Duration::from_secs(60);
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The client name and the user of admin connections. `epilogue` does not count these connections.
pub const ADMIN: &str = "support-admin";
const ADMIN_PASSWORD: &str = "support-admin-password";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerBinary {
    pub name: String,
    pub path: PathBuf,
}

impl ServerBinary {
    fn probe(path: &Path) -> Option<ServerBinary> {
        let text = version_text(path)?;
        let (major, minor, _) = parse_version(&text)?;
        let kind = if text.starts_with("Valkey") { "valkey" } else { "redis" };
        Some(ServerBinary { name: format!("{kind}-{major}.{minor}"), path: path.to_owned() })
    }

    /// The program's version. Valkey counts its versions otherwise than Redis: 7.2, 8.0, 8.1, 9.0.
    pub fn version(&self) -> (u32, u32, u32) {
        let text = version_text(&self.path).unwrap_or_else(|| panic!("{self:?} does not run"));
        parse_version(&text).unwrap_or_else(|| panic!("{self:?} names no version: {text}"))
    }

    pub fn is_valkey(&self) -> bool {
        self.name.starts_with("valkey")
    }

    /// Whether the program has TLS: it then complains about a missing certificate.
    pub fn has_tls(&self) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let path = self.path.to_str().unwrap();
        let (_, text) =
            run(&[path, "--port", "0", "--tls-port", "1", "--save", ""], |c| c.current_dir(folder.path()));
        text.contains("No tls-cert-file configured") || text.contains("No tls-key-file configured")
    }
}

/// What the program prints for `--version`. This process runs each program only once for that.
fn version_text(path: &Path) -> Option<String> {
    static ASKED: Mutex<BTreeMap<PathBuf, Option<String>>> = Mutex::new(BTreeMap::new());
    let mut asked = ASKED.lock();
    let text = asked.entry(path.to_owned()).or_insert_with(|| {
        let (good, text) = run(&[path.as_os_str(), "--version".as_ref()], |command| command);
        good.then_some(text)
    });
    text.clone()
}

fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let version = text.split_once(" v=")?.1.split_whitespace().next()?;
    let mut numbers = version.split('.').map_while(|part| part.parse().ok());
    Some((numbers.next()?, numbers.next()?, numbers.next()?))
}

pub fn matrix() -> &'static [ServerBinary] {
    static MATRIX: OnceLock<Vec<ServerBinary>> = OnceLock::new();
    MATRIX.get_or_init(|| match std::env::var("LEASEHOLD_SERVERS") {
        Ok(list) => list
            .split([':', '\n'])
            .filter(|entry| !entry.trim().is_empty())
            .map(|entry| {
                let (name, path) = entry.trim().split_once('=').expect("LEASEHOLD_SERVERS: name=path");
                ServerBinary { name: name.to_owned(), path: path.into() }
            })
            .collect(),
        Err(_) => ["redis-server", "valkey-server"]
            .into_iter()
            .filter_map(|program| ServerBinary::probe(&in_path(program)?))
            .collect(),
    })
}

/// The first program of [`matrix`]; `None`, after [`missing`], if there is none.
/// ```ignore
/// let Some(binary) = default_server() else { return };
/// ```
#[track_caller]
pub fn default_server() -> Option<ServerBinary> {
    let first = matrix().first().cloned();
    if first.is_none() {
        missing("no redis-server and no valkey-server; ./check installs one");
    }
    first
}

/// URL number `which` in `LEASEHOLD_TEST_REDIS`, for systems on which tests cannot start servers (Windows).
/// All tests share server 0. A test may end the connections of server 1, and restart server 2.
pub fn given(which: usize) -> Option<String> {
    let urls = std::env::var("LEASEHOLD_TEST_REDIS").ok()?;
    urls.split(' ').nth(which).map(str::to_owned)
}

/// An admin connection to the server at a URL of [`given`].
pub fn admin_of(url: &str) -> redis::Connection {
    let mut connection =
        redis::Client::open(url).unwrap().get_connection_with_timeout(ADMIN_TIMEOUT).unwrap();
    redis::cmd("CLIENT").arg("SETNAME").arg(ADMIN).exec(&mut connection).unwrap();
    connection
}

pub fn in_path(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listen {
    Tcp,
    Tls { client_certificates: bool },
}

#[derive(Clone)]
pub struct Builder {
    binary: ServerBinary,
    listen: Listen,
    config: Vec<String>,
    password: Option<String>,
    users: Vec<String>,
    append_only: Option<&'static str>,
    netns: Option<(String, Ipv4Addr)>,
    wait_until_loaded: bool,
    is_sentinel: bool,
    certificates_of: Option<PathBuf>,
    movable_clock: bool,
}

impl Builder {
    pub fn config(mut self, line: &str) -> Builder {
        self.config.push(line.to_owned());
        self
    }

    /// Sets the default user's password. `url()` then contains it.
    pub fn requirepass(mut self, password: &str) -> Builder {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user by a rule of `ACL SETUSER`, such as `app on >secret ~* &* +@all`. A rule for `default`
    /// changes the default user.
    pub fn user(mut self, rules: &str) -> Builder {
        self.users.push(rules.to_owned());
        self
    }

    /// Makes the server speak only TLS. The certificate is for `localhost` and 127.0.0.1, of a new authority.
    pub fn tls(mut self) -> Builder {
        self.listen = Listen::Tls { client_certificates: false };
        self
    }

    /// Makes the server speak only TLS, and demand client certificates.
    pub fn mutual_tls(mut self) -> Builder {
        self.listen = Listen::Tls { client_certificates: true };
        self
    }

    /// Makes the server speak TLS with another server's certificates, so that the two trust each other.
    pub fn tls_of(mut self, other: &RedisServer) -> Builder {
        self.certificates_of = Some(other.path.clone());
        self.tls()
    }

    pub fn sentinel(mut self) -> Builder {
        self.is_sentinel = true;
        self
    }

    /// Makes the server write each change to a file, synced `always` or `everysec`, so that data survive a
    /// kill.
    pub fn append_only(mut self, sync: &'static str) -> Builder {
        self.append_only = Some(sync);
        self
    }

    /// Runs the server inside a network namespace, at the namespace's address.
    pub fn inside(mut self, net: &Netns) -> Builder {
        self.netns = Some((net.name().to_owned(), net.server_address()));
        self
    }

    /// Preloads a library by which [`RedisServer::move_clock`] moves the server's wall clock.
    pub fn movable_clock(mut self) -> Builder {
        self.movable_clock = true;
        self
    }

    /// Lets the start return once the server accepts connections, even if it still loads its data.
    pub fn while_loading(mut self) -> Builder {
        self.wait_until_loaded = false;
        self
    }

    #[track_caller]
    pub fn start(self) -> RedisServer {
        let folder = tempfile::Builder::new().prefix("leasehold-server-").tempdir().unwrap();
        match (&self.certificates_of, self.listen) {
            (Some(other), _) => {
                for file in ["ca.crt", "server.crt", "server.key"] {
                    std::fs::copy(other.join(file), folder.path().join(file)).unwrap();
                }
            }
            (None, Listen::Tls { .. }) => make_certificates(folder.path()),
            (None, _) => {}
        }
        let mut log = String::new();
        // If another process takes the port first, the server starts on another one.
        for _ in 0..20 {
            let port = Port::claim();
            let mut server = RedisServer {
                process: None,
                port,
                asks_for_password: self.password.is_some() || !self.users.is_empty(),
                builder: self.clone(),
                folder: None,
                path: folder.path().to_owned(),
            };
            server.write_config();
            match server.launch() {
                Ok(()) => {
                    server.folder = Some(folder);
                    return server;
                }
                Err(text) if text.contains("Address already in use") || text.contains("bind:") => log = text,
                Err(text) => panic!("{} did not start:\n{text}", self.binary.name),
            }
        }
        panic!("{} found no free port:\n{log}", self.binary.name)
    }
}

/// A private server. Dropping it kills the process that it started, and no other.
pub struct RedisServer {
    process: Option<Running>,
    port: Port,
    asks_for_password: bool,
    builder: Builder,
    folder: Option<TempDir>,
    path: PathBuf,
}

impl RedisServer {
    /// Starts the default program with default settings; `None`, after [`missing`], if none is installed.
    #[track_caller]
    pub fn start_default() -> Option<RedisServer> {
        Some(RedisServer::builder(&default_server()?).start())
    }

    pub fn builder(binary: &ServerBinary) -> Builder {
        Builder {
            binary: binary.clone(),
            listen: Listen::Tcp,
            config: Vec::new(),
            password: None,
            users: Vec::new(),
            append_only: None,
            netns: None,
            wait_until_loaded: true,
            is_sentinel: false,
            certificates_of: None,
            movable_clock: false,
        }
    }

    pub fn binary(&self) -> &ServerBinary {
        &self.builder.binary
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address for clients: 127.0.0.1, or that inside the network namespace.
    pub fn address(&self) -> Ipv4Addr {
        self.builder.netns.as_ref().map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address)
    }

    fn running(&self) -> &Running {
        self.process.as_ref().expect("the server runs")
    }

    pub fn pid(&self) -> u32 {
        self.running().pid()
    }

    /// Whether the server was started, and not killed since.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// The URL for clients, with the default user's password.
    pub fn url(&self) -> String {
        match &self.builder.password {
            Some(password) => self.url_with(&format!(":{password}@")),
            None => self.url_with(""),
        }
    }

    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.url_with(&format!("{user}:{password}@"))
    }

    fn url_with(&self, login: &str) -> String {
        match self.builder.listen {
            Listen::Tcp => format!("redis://{login}{}:{}/", self.address(), self.port()),
            Listen::Tls { .. } => format!("rediss://{login}localhost:{}/", self.port()),
        }
    }

    /// The URL of the Unix socket. A password is a parameter of this URL.
    pub fn unix_url(&self) -> String {
        let password = self.builder.password.as_ref().map(|password| format!("?pass={password}"));
        format!("redis+unix://{}{}", self.socket().display(), password.unwrap_or_default())
    }

    pub fn folder(&self) -> &Path {
        &self.path
    }

    pub fn log(&self) -> String {
        log_in(&self.path)
    }

    pub fn ca(&self) -> PathBuf {
        self.certificates().ca()
    }

    pub fn unknown_ca(&self) -> PathBuf {
        self.certificates().unknown_ca()
    }

    pub fn certificates(&self) -> Certificates {
        Certificates(self.path.clone())
    }

    /// An admin connection: over the Unix socket, without restrictions, with time-outs.
    #[track_caller]
    pub fn admin(&self) -> redis::Connection {
        self.try_admin().unwrap_or_else(|error| panic!("no admin connection: {error}\n{}", self.log()))
    }

    fn try_admin(&self) -> redis::RedisResult<redis::Connection> {
        let mut url = format!("redis+unix://{}", self.socket().display());
        if self.asks_for_password {
            write!(url, "?user={ADMIN}&pass={ADMIN_PASSWORD}").expect("a string");
        }
        let mut connection = redis::Client::open(url)?.get_connection_with_timeout(ADMIN_TIMEOUT)?;
        connection.set_read_timeout(Some(ADMIN_TIMEOUT))?;
        connection.set_write_timeout(Some(ADMIN_TIMEOUT))?;
        redis::cmd("CLIENT").arg("SETNAME").arg(ADMIN).exec(&mut connection)?;
        Ok(connection)
    }

    /// Kills the process (SIGKILL) and waits for its end. Its folder stays.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills the server if it runs, and starts it again with the same port and folder.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        if let Err(log) = self.launch() {
            panic!("{} did not start again:\n{log}", self.builder.binary.name);
        }
    }

    /// Stops the process. The kernel then accepts connections, but nobody answers.
    pub fn stop(&self) {
        self.running().signal("STOP");
    }

    pub fn cont(&self) {
        self.running().signal("CONT");
    }

    /// Moves the server's wall clock by `offset_s` seconds. Needs [`Builder::movable_clock`].
    pub fn move_clock(&self, offset_s: i64) {
        assert!(self.builder.movable_clock);
        // The file is overwritten in place, because the server has mapped it.
        let mut file = std::fs::File::options().write(true).open(self.path.join("clock")).unwrap();
        std::io::Write::write_all(&mut file, &offset_s.to_ne_bytes()).unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.path.join("s")
    }

    fn write_config(&self) {
        let settings = &self.builder;
        let mut config = format!(
            "dir {path}\nunixsocket {path}/s\nunixsocketperm 700\ndaemonize no\nsave \"\"\n",
            path = self.path.display()
        );
        let mut line = |text: &str| {
            config.push_str(text);
            config.push('\n');
        };
        line(&format!("bind {}", self.address()));
        if settings.netns.is_some() {
            line("protected-mode no");
        }
        match settings.listen {
            Listen::Tcp => line(&format!("port {}", self.port())),
            Listen::Tls { client_certificates } => {
                line(&format!("port 0\ntls-port {}", self.port()));
                line("tls-cert-file server.crt\ntls-key-file server.key\ntls-ca-cert-file ca.crt");
                line(if client_certificates { "tls-auth-clients yes" } else { "tls-auth-clients no" });
            }
        }
        match settings.append_only {
            Some(sync) => line(&format!("appendonly yes\nappendfsync {sync}")),
            None => line("appendonly no"),
        }
        // From version 7.0 on, a server obeys DEBUG, which some tests need, only if its settings allow it.
        if settings.binary.version() >= (7, 0, 0) {
            line("enable-debug-command local");
        }
        if let Some(password) = &settings.password {
            line(&format!("requirepass {password}"));
        }
        if self.asks_for_password {
            let admin = format!("{ADMIN} on >{ADMIN_PASSWORD} ~* &* +@all");
            let users: String =
                settings.users.iter().chain([&admin]).map(|rules| format!("user {rules}\n")).collect();
            line(&users);
        }
        settings.config.iter().for_each(|text| line(text));
        std::fs::write(self.path.join("redis.conf"), config).unwrap();
    }

    /// Starts the process and waits for its first answer. Fails with its log if it ends first or is too slow.
    fn launch(&mut self) -> Result<(), String> {
        let mut program: Vec<&OsStr> = Vec::new();
        if let Some((name, _)) = &self.builder.netns {
            // `ip` replaces itself by the server, so the child's pid is the server's.
            program.extend(["ip", "netns", "exec", name].map(OsStr::new));
        }
        let preload = self.builder.movable_clock.then(|| {
            std::fs::write(self.path.join("clock"), 0_i64.to_ne_bytes()).unwrap();
            let (library, file) = (clock_library(), self.path.join("clock"));
            [format!("LD_PRELOAD={}", library.display()), format!("LEASEHOLD_CLOCK={}", file.display())]
        });
        if let Some(variables) = &preload {
            program.push("env".as_ref()); // replaces itself by the server too
            program.extend(variables.iter().map(OsStr::new));
        }
        program.extend([self.builder.binary.path.as_os_str(), "redis.conf".as_ref()]);
        if self.builder.is_sentinel {
            program.push("--sentinel".as_ref());
        }
        self.process = Some(Running::start(&self.path, &program));
        let mut last = String::new();
        let mut ended = false;
        let ready = eventually(START_LIMIT, || {
            ended = self.process.as_mut().expect("just started").has_ended();
            ended || {
                match self.answers() {
                    Ok(()) => true,
                    Err(error) => {
                        last = error;
                        false
                    }
                }
            }
        });
        if ready && !ended {
            return Ok(());
        }
        self.kill();
        Err(format!("{}\n{last}", self.log()))
    }

    fn answers(&self) -> Result<(), String> {
        if !listens(self.pid(), self.port()) {
            return Err(format!("it does not listen on port {}", self.port()));
        }
        match self.try_admin().and_then(|mut admin| redis::cmd("PING").exec(&mut admin)) {
            Ok(()) => Ok(()),
            Err(error) if !self.builder.wait_until_loaded && error.code() == Some("LOADING") => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A free TCP port, reserved until drop, so that a server can restart on it. No outgoing connection takes it,
/// as it is below the kernel's range for them. No other test takes it, since each first binds the UDP port.
pub struct Port {
    number: u16,
    _claim: UdpSocket,
}

impl Port {
    pub fn claim() -> Port {
        let mut found = None;
        let free = eventually(START_LIMIT, || {
            let number = 15_000 + (random() % 17_000) as u16;
            let claim = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok();
            // The TCP check listens for a moment, so the UDP claim first keeps other tests off this port.
            let claim = claim.filter(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok());
            found = claim.map(|claim| Port { number, _claim: claim });
            found.is_some()
        });
        assert!(free, "no free port");
        found.expect("just found")
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

/// The library of `tests/support/clock.c`, which this process compiles once, by `cc`.
fn clock_library() -> &'static Path {
    static LIBRARY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, library) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/clock.c");
        let (library_text, source) = (library.to_str().unwrap(), source.to_str().unwrap());
        let (good, text) =
            run(&["cc", "-shared", "-fPIC", "-O1", "-o", library_text, source], |command| command);
        assert!(good, "cc: {text}");
        (folder, library)
    });
    library
}

/// A folder with the files (PEM) of [`make_certificates`].
#[derive(Debug, Clone)]
pub struct Certificates(pub(super) PathBuf);

impl Certificates {
    pub fn ca(&self) -> PathBuf {
        self.0.join("ca.crt")
    }

    pub fn unknown_ca(&self) -> PathBuf {
        self.0.join("unknown-ca.crt")
    }

    /// The files of the client `client`: a certificate that the server's authority signed, and its key.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        (self.0.join("client.crt"), self.0.join("client.key"))
    }
}

/// Makes two authorities, of which the first signs a server's and a client's certificate, with `openssl`.
pub(super) fn make_certificates(folder: &Path) {
    let openssl = |command: &str| {
        let words: Vec<&str> = ["openssl"].into_iter().chain(command.split(' ')).collect();
        let (good, text) = run(&words, |command| command.current_dir(folder));
        assert!(good, "{words:?}: {text}");
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for ca in ["ca", "unknown-ca"] {
        let usage = "-addext keyUsage=critical,keyCertSign,cRLSign";
        openssl(&format!("req -x509 -subj /CN={ca} -keyout {ca}.key -out {ca}.crt {usage} {key} -days 2"));
    }
    let extensions = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
    std::fs::write(folder.join("extensions"), extensions).unwrap();
    let signed = "-CA ca.crt -CAkey ca.key -CAcreateserial -extfile extensions -days 2";
    for (file, name) in [("server", "localhost"), ("client", "client")] {
        openssl(&format!("req -new -subj /CN={name} -keyout {file}.key -out {file}.csr {key}"));
        openssl(&format!("x509 -req -in {file}.csr {signed} -out {file}.crt"));
    }
}
