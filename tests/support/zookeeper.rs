//! Private ZooKeeper servers, single or as an ensemble, from the jar files of Debian.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;

use super::programs::{Running, in_a_folder, in_memory, listens};
use super::relay::{self, Act, Direction, Piece};
use super::server::{Port, make_certificates};
use super::{eventually, missing};

const START_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// ZooKeeper's jar file. Its manifest names the other ones, except those for TLS.
const JAR: &str = "/usr/share/java/zookeeper.jar";
const FOR_TLS: &str = ":/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar:\
                       /usr/share/java/netty-transport-native-unix-common.jar";

#[derive(Debug, Clone, Copy)]
pub struct Sessions {
    pub tick_ms: u32,
    pub least_ms: u32,
    pub most_ms: u32,
}

/// The times of sessions that survive the delays of a busy machine.
pub const CALM: Sessions = Sessions { tick_ms: 500, least_ms: 5_000, most_ms: 60_000 };

pub struct ZooKeeper {
    process: Option<Running>,
    folder: TempDir,
    port: Port,
    secure: Option<Port>,
    _inner: [Port; 2],
}

in_a_folder!(ZooKeeper);

impl ZooKeeper {
    /// Starts a single server; `None`, after [`missing`], if ZooKeeper is not installed.
    #[track_caller]
    pub fn start(sessions: Sessions) -> Option<ZooKeeper> {
        Some(ZooKeeper::ensemble(1, sessions)?.remove(0))
    }

    /// Starts a server that also speaks TLS, on a port that needs client certificates if `demands`.
    #[track_caller]
    pub fn start_tls(sessions: Sessions, demands: bool) -> Option<ZooKeeper> {
        Some(ZooKeeper::make(1, sessions, Some(demands))?.remove(0))
    }

    #[track_caller]
    pub fn ensemble(count: usize, sessions: Sessions) -> Option<Vec<ZooKeeper>> {
        ZooKeeper::make(count, sessions, None)
    }

    #[track_caller]
    fn make(count: usize, sessions: Sessions, tls: Option<bool>) -> Option<Vec<ZooKeeper>> {
        if !Path::new(JAR).is_file() {
            missing("no ZooKeeper (Debian: libzookeeper-java); ./check installs it");
            return None;
        }
        let mut servers: Vec<_> = (0..count)
            .map(|_| ZooKeeper {
                process: None,
                folder: in_memory(),
                port: Port::claim(),
                secure: tls.map(|_| Port::claim()),
                _inner: [Port::claim(), Port::claim()],
            })
            .collect();
        let peers: String = if count == 1 {
            String::new()
        } else {
            let line = |(at, server): (usize, &ZooKeeper)| {
                let [follow, elect] = server._inner.each_ref().map(Port::number);
                format!("server.{}=127.0.0.1:{follow}:{elect}\n", at + 1)
            };
            servers.iter().enumerate().map(line).collect()
        };
        for (at, server) in servers.iter().enumerate() {
            let data = server.folder.path().join("data");
            std::fs::create_dir(&data).unwrap();
            std::fs::write(data.join("myid"), format!("{}\n", at + 1)).unwrap();
            let config = format!(
                "tickTime={}\nminSessionTimeout={}\nmaxSessionTimeout={}\ninitLimit=20\nsyncLimit=10\n\
                 dataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
                 admin.enableServer=false\n4lw.commands.whitelist=*\n{peers}",
                sessions.tick_ms,
                sessions.least_ms,
                sessions.most_ms,
                data.display(),
                server.port.number(),
            );
            let config = config + &tls.map_or_else(String::new, |demands| server.secured(demands));
            std::fs::write(server.folder.path().join("zoo.cfg"), config).unwrap();
        }
        servers.iter_mut().for_each(ZooKeeper::launch);
        servers.iter().for_each(ZooKeeper::wait_until_serving);
        Some(servers)
    }

    pub fn url(&self) -> String {
        format!("zk://127.0.0.1:{}", self.port())
    }

    fn secured(&self, demands: bool) -> String {
        let folder = self.folder.path();
        make_certificates(folder);
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
        std::fs::write(folder.join("server.pem"), read("server.key") + &read("server.crt")).unwrap();
        format!(
            "secureClientPort={}\nsecureClientPortAddress=127.0.0.1\n\
             serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nssl.keyStore.type=PEM\n\
             ssl.keyStore.location=server.pem\nssl.trustStore.type=PEM\nssl.trustStore.location=ca.crt\n\
             ssl.clientAuth={}\n",
            self.secure_port(),
            if demands { "need" } else { "none" },
        )
    }

    pub fn secure_port(&self) -> u16 {
        self.secure.as_ref().expect("the server uses TLS").number()
    }

    fn launch(&mut self) {
        let class_path = format!("{JAR}{}", if self.secure.is_some() { FOR_TLS } else { "" });
        let program = [
            "java",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xmx128m",
            "-Dzookeeper.forceSync=no", // tests crash the server but not the machine
            "-cp",
            &class_path,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            "zoo.cfg",
        ];
        self.process = Some(Running::start(self.folder.path(), &program));
    }

    fn wait_until_serving(&self) {
        // The server opens the TLS port after the other one, so both must be open.
        let is_open = |port: &Port| listens(self.pid(), port.number());
        let serves = eventually(START_LIMIT, || {
            let is_ours = is_open(&self.port) && self.secure.as_ref().is_none_or(is_open);
            is_ours && self.ask("srvr").contains("Mode:")
        });
        assert!(serves, "ZooKeeper does not serve:\n{}", self.log());
    }

    pub fn ask(&self, word: &str) -> String {
        let mut answer = String::new();
        let asked = TcpStream::connect(("127.0.0.1", self.port())).and_then(|mut stream| {
            stream.set_read_timeout(Some(ANSWER_LIMIT))?;
            stream.write_all(word.as_bytes())?;
            stream.read_to_string(&mut answer)
        });
        asked.map(|_| answer).unwrap_or_default()
    }

    pub fn figure(&self, name: &str) -> u64 {
        let figures = self.ask("mntr");
        let line = figures.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {name} in {figures:?}"))
    }

    pub fn set_data(&self, path: &str, data: &[u8]) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        stream.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
        let bytes = |bytes: &[u8]| [&i32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat();
        let mut greeting = vec![0; 12];
        greeting.extend(10_000_i32.to_be_bytes());
        greeting.extend([0; 8]);
        greeting.extend(bytes(&[0; 16]));
        greeting.push(0);
        stream.write_all(&bytes(&greeting)).unwrap();
        stream.read_exact(&mut [0; 41]).unwrap();
        let any_version = (-1_i32).to_be_bytes();
        let request = [&[0, 0, 0, 1, 0, 0, 0, 5][..], &bytes(path.as_bytes()), &bytes(data), &any_version];
        stream.write_all(&bytes(&request.concat())).unwrap();
        let mut header = [0; 20];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(header[16..], [0; 4], "the node was written");
    }

    pub fn watched_below(&self, path: &str) -> usize {
        self.ask("wchp").lines().filter(|line| line.starts_with(path)).count()
    }

    pub fn is_leader(&self) -> bool {
        self.ask("srvr").contains("Mode: leader")
    }

    /// Whether the server says that it is a follower; `false` if it is too busy to answer.
    pub fn is_follower(&self) -> bool {
        self.ask("srvr").contains("Mode: follower")
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    pub fn launch_again(&mut self) {
        self.kill();
        self.launch();
        self.wait_until_serving();
    }
}

/// Values of `Interference::cuts`: a cut is requested; then a request that creates a node has passed.
const ARMED: u8 = 1;
const MADE: u8 = 2;

/// A relay between clients and a server. It passes all bytes on, unless a test requests otherwise.
#[derive(Clone)]
pub struct Relay(relay::Relay, Arc<Interference>);

#[derive(Default)]
struct Interference {
    swallows: AtomicBool,
    cuts: AtomicU8,
    /// The server's first answer, which contains the id and password of the first client's session.
    session: Mutex<Option<Vec<u8>>>,
}

impl Interference {
    fn act(&self, relay: &relay::Relay, piece: &Piece<'_>) -> Act {
        if piece.direction == Direction::ToClient {
            self.session.lock().get_or_insert_with(|| piece.bytes.to_vec());
            return if self.swallows.load(Ordering::SeqCst) { Act::Lose } else { Act::Pass };
        }
        // Bytes 8 to 11 of a request are its type. The types 1 and 15 create a node.
        let makes_a_node = matches!(piece.bytes.get(8..12), Some([0, 0, 0, 1 | 15]));
        match self.cuts.load(Ordering::SeqCst) {
            ARMED if makes_a_node => self.cuts.store(MADE, Ordering::SeqCst),
            MADE => {
                self.cuts.store(0, Ordering::SeqCst);
                relay.cut();
                return Act::HangUp;
            }
            _ => {}
        }
        Act::Pass
    }
}

impl Relay {
    pub fn before(server: &ZooKeeper) -> Relay {
        let told = Arc::new(Interference::default());
        let acts = Arc::clone(&told);
        let act = move |relay: &relay::Relay, piece: &Piece<'_>| acts.act(relay, piece);
        Relay(relay::Relay::with("127.0.0.1", server.port(), act), told)
    }

    pub fn url(&self) -> String {
        format!("zk://127.0.0.1:{}", self.0.port())
    }

    /// Closes all connections, and passes answers again. New connections are served.
    pub fn cut(&self) {
        self.1.swallows.store(false, Ordering::SeqCst);
        self.0.cut();
    }

    /// Passes the next request that creates a node, and closes all connections instead of passing the one
    /// after it.
    pub fn cut_behind_a_new_node(&self) {
        self.1.cuts.store(ARMED, Ordering::SeqCst);
    }

    pub fn has_cut(&self) -> bool {
        self.1.cuts.load(Ordering::SeqCst) == 0
    }

    /// Passes requests on, but no answers, until the connections are cut.
    pub fn swallow_answers(&self) {
        self.1.swallows.store(true, Ordering::SeqCst);
    }

    /// Ends the first client's session, as anybody can who knows the session's id and password.
    pub fn end_session(&self, server: &ZooKeeper) {
        let welcome = self.1.session.lock().clone().expect("a client has a session");
        let (id, password) = (&welcome[12..20], &welcome[20..40]);
        let mut greeting = vec![0, 0, 0, 45];
        greeting.extend([0; 12]);
        greeting.extend(10_000_i32.to_be_bytes());
        greeting.extend(id);
        greeting.extend(password);
        greeting.push(0);
        // The client must not connect again and resume the session before it has ended.
        self.0.refuse(true);
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&greeting).unwrap();
        let mut answer = [0; 41];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[12..20], id, "the session is taken over");
        stream.write_all(&[0, 0, 0, 8, 0, 0, 0, 1, 255, 255, 255, 245]).unwrap();
        stream.read_exact(&mut [0; 20]).unwrap();
        self.0.refuse(false);
    }
}
