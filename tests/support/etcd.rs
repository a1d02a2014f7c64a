//! Private etcd members, on free ports and in a temporary folder that is removed even if the test fails.
//!
//! The program is found in `PATH` (Debian's package etcd-server). The data is in memory if there is room,
//! because old versions of etcd sync every change to disk.

use super::programs::{Running, in_a_folder, in_memory, listens};
use super::server::{Port, in_path, make_certificates};
use super::{eventually, missing};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;
use tempfile::TempDir;

const START_LIMIT: Duration = Duration::from_secs(30);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A private etcd member. Dropping it kills the process that it started, and no other.
pub struct Etcd {
    process: Option<Running>,
    name: String,
    port: Port,
    peer: Port,
    cluster: String,
    tls: bool,
    folder: TempDir,
}

in_a_folder!(Etcd);

impl Etcd {
    pub fn start() -> Option<Etcd> {
        Etcd::start_cluster(1)?.pop()
    }

    pub fn start_cluster(count: usize) -> Option<Vec<Etcd>> {
        Etcd::start_members(count, false)
    }

    /// Starts a member that speaks only TLS. Its certificate is for `localhost` and 127.0.0.1.
    pub fn start_tls() -> Option<Etcd> {
        Etcd::start_members(1, true)?.pop()
    }

    fn start_members(count: usize, tls: bool) -> Option<Vec<Etcd>> {
        if in_path("etcd").is_none() {
            missing("no etcd in PATH (Debian's package etcd-server)");
            return None;
        }
        let ports: Vec<_> = (0..count).map(|_| (Port::claim(), Port::claim())).collect();
        let cluster: Vec<_> = ports
            .iter()
            .enumerate()
            .map(|(at, (_, peer))| format!("m{at}=http://127.0.0.1:{}", peer.number()))
            .collect();
        let cluster = cluster.join(",");
        let mut members: Vec<_> = ports
            .into_iter()
            .enumerate()
            .map(|(at, (client, peer))| Etcd {
                process: None,
                name: format!("m{at}"),
                port: client,
                peer,
                cluster: cluster.clone(),
                tls,
                folder: in_memory(),
            })
            .collect();
        if tls {
            members.iter().for_each(|member| make_certificates(member.folder.path()));
        }
        members.iter_mut().for_each(Etcd::launch);
        members.iter_mut().for_each(Etcd::wait_until_ready);
        Some(members)
    }

    pub fn url(&self) -> String {
        format!("etcd://{}", self.place())
    }

    pub fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The certificate files of two authorities: the one that signed the member's certificate, and another.
    pub fn authorities(&self) -> [std::path::PathBuf; 2] {
        ["ca.crt", "unknown-ca.crt"].map(|file| self.folder.path().join(file))
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
        self.wait_until_ready();
    }

    /// Stops the process. The kernel then accepts connections, but nobody answers.
    pub fn stop(&self) {
        self.running().signal("STOP");
    }

    pub fn cont(&self) {
        self.running().signal("CONT");
    }

    /// Sends an operator's request to the HTTP gateway. Returns the answer's status and body.
    pub fn ask(&self, path: &str, body: &str) -> Result<(u16, String), String> {
        self.ask_as("", path, body)
    }

    fn ask_as(&self, token: &str, path: &str, body: &str) -> Result<(u16, String), String> {
        let io = |error: std::io::Error| error.to_string();
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())).map_err(io)?;
        socket.set_read_timeout(Some(ANSWER_LIMIT)).map_err(io)?;
        let length = body.len();
        let token = if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
        let request =
            format!("POST {path} HTTP/1.0\r\nHost: test\r\n{token}Content-Length: {length}\r\n\r\n{body}");
        socket.write_all(request.as_bytes()).map_err(io)?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).map_err(io)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no end of the head")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status")?;
        Ok((status, body.to_owned()))
    }

    /// As [`ask`](Self::ask), but panics if the request fails, and returns the body as JSON.
    #[track_caller]
    pub fn must(&self, path: &str, body: &str) -> serde_json::Value {
        self.must_as("", path, body)
    }

    #[track_caller]
    pub fn must_as(&self, token: &str, path: &str, body: &str) -> serde_json::Value {
        let (status, text) =
            self.ask_as(token, path, body).unwrap_or_else(|error| panic!("{path} {body}: {error}"));
        assert_eq!(status, 200, "{path} {body}: {text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path} {body}: {text}: {error}"))
    }

    /// Makes the server demand passwords. Root's is `R00T`. Each of `users` is a name, a password and a role;
    /// the role `locks` may use the locks below the default prefix.
    #[track_caller]
    pub fn demand_passwords(&self, users: &[(&str, &str, &str)]) {
        let does = |path: &str, body: String| self.must(&format!("/v3/auth/{path}"), &body);
        for role in ["root", "locks"] {
            does("role/add", format!(r#"{{"name":"{role}"}}"#));
        }
        let (key, end) = (STANDARD.encode("leasehold/"), STANDARD.encode("leasehold0"));
        let right = format!(r#"{{"permType":"READWRITE","key":"{key}","range_end":"{end}"}}"#);
        does("role/grant", format!(r#"{{"name":"locks","perm":{right}}}"#));
        for (user, password, role) in users.iter().chain(&[("root", "R00T", "root")]) {
            does("user/add", format!(r#"{{"name":"{user}","password":"{password}"}}"#));
            if !role.is_empty() {
                does("user/grant", format!(r#"{{"user":"{user}","role":"{role}"}}"#));
            }
        }
        does("enable", "{}".to_owned());
    }

    /// A login token of root, after [`demand_passwords`](Self::demand_passwords).
    pub fn token(&self) -> String {
        let login = self.must("/v3/auth/authenticate", r#"{"name":"root","password":"R00T"}"#);
        login["token"].as_str().expect("a token").to_owned()
    }

    pub fn leads(&self) -> bool {
        let status = self.must("/v3/maintenance/status", "{}");
        status["leader"] == status["header"]["member_id"]
    }

    fn launch(&mut self) {
        let scheme = if self.tls { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.port.number());
        let peer = format!("http://127.0.0.1:{}", self.peer.number());
        let path = self.folder.path();
        // etcd's shortest lease is 1.5 election times, rounded up to whole seconds: one second here.
        let (beat, election) = if self.cluster.contains(',') { ("60", "600") } else { ("50", "500") };
        // The low bcrypt cost makes logins fast. Tokens live for 2 s, so that tests see one expire.
        let options = format!(
            "etcd --name {} --data-dir data --listen-client-urls {client} --advertise-client-urls {client} \
             --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} --initial-cluster {} \
             --heartbeat-interval {beat} --election-timeout {election} --log-level error --bcrypt-cost 4 \
             --auth-token-ttl 2",
            self.name, self.cluster
        );
        let mut program: Vec<&str> = options.split(' ').collect();
        if self.tls {
            program.extend(["--cert-file", "server.crt", "--key-file", "server.key"]);
        }
        self.process = Some(Running::start(path, &program));
    }

    #[track_caller]
    fn wait_until_ready(&mut self) {
        let mut last = String::new();
        let ready = eventually(START_LIMIT, || {
            let process = self.process.as_mut().expect("just started");
            assert!(!process.has_ended(), "etcd ended:\n{}", self.log());
            let ports = [&self.peer, &self.port].map(Port::number);
            if !ports.into_iter().all(|port| listens(self.pid(), port)) {
                last = format!("it does not listen on {ports:?}");
                return false;
            }
            match self.ask("/v3/kv/range", r#"{"key":"YQ=="}"#) {
                Ok((200, _)) => true,
                // This plain request fails if the server speaks TLS. Then the open ports are enough.
                Err(_) if self.tls => true,
                other => {
                    last = format!("{other:?}");
                    false
                }
            }
        });
        assert!(ready, "etcd did not come up: {last}\n{}", self.log());
    }
}
