//! Servers that accept only TLS with a client certificate, and the certificates.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::world::{LIMIT, converse, eventually, leasehold, skipped};

pub(crate) struct Certificates(TempDir);

impl Certificates {
    pub(crate) fn make() -> Certificates {
        let folder = tempfile::tempdir().unwrap();
        let openssl = |words: &[&str]| {
            let made = Command::new("openssl").args(words).current_dir(folder.path()).output();
            let made = made.expect("these tests need openssl");
            assert!(made.status.success(), "{words:?}: {}", String::from_utf8_lossy(&made.stderr));
        };
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        for name in ["ca", "unknown-ca"] {
            let (key_out, out, subject) =
                (format!("{name}.key"), format!("{name}.crt"), format!("/CN={name}"));
            let words = ["req", "-x509", "-days", "2", "-subj", &subject, "-keyout", &key_out, "-out", &out];
            openssl(&[&words[..], &key[..], &["-addext", "keyUsage=critical,keyCertSign,cRLSign"]].concat());
        }
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("extensions", "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n");
        write("index.txt", "");
        write(
            "ca.cnf",
            "[ca]\ndefault_ca=own\n[own]\ndatabase=index.txt\nnew_certs_dir=.\ndefault_md=sha256\npolicy=any\nunique_subject=no\nrand_serial=yes\n\
             [any]\ncommonName=supplied\n",
        );
        for (name, ca, is_over) in [
            ("server", "ca", false),
            ("client", "ca", false),
            ("stranger", "unknown-ca", false),
            ("expired-server", "ca", true),
            ("expired-client", "ca", true),
        ] {
            let subject = if name.ends_with("server") { "/CN=localhost" } else { "/CN=client" };
            let (key_out, request, out) =
                (format!("{name}.key"), format!("{name}.csr"), format!("{name}.crt"));
            let words = ["req", "-new", "-subj", subject, "-keyout", &key_out, "-out", &request];
            openssl(&[&words[..], &key[..]].concat());
            let (ca, ca_key) = (format!("{ca}.crt"), format!("{ca}.key"));
            let (from, to) = if is_over { ("20200101", "20210101") } else { ("20200101", "20490101") };
            let (from, to) = (format!("{from}000000Z"), format!("{to}000000Z"));
            let words = format!(
                "ca -batch -notext -config ca.cnf -extfile extensions -cert {ca} -keyfile {ca_key} -startdate {from} \
                 -enddate {to} -in {request} -out {out}"
            );
            openssl(&words.split(' ').collect::<Vec<_>>());
        }
        Certificates(folder)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    pub(crate) fn options(&self) -> [String; 6] {
        let [ca, certificate, key] = self.right();
        ["--ca".to_owned(), ca, "--cert".to_owned(), certificate, "--key".to_owned(), key]
    }

    pub(crate) fn right(&self) -> [String; 3] {
        ["ca.crt", "client.crt", "client.key"].map(|name| self.file(name))
    }

    /// A command of the program for a store, with the right certificates in its environment.
    pub(crate) fn program(&self, url: &str, arguments: &[&str]) -> Command {
        let mut command = leasehold(arguments);
        let names = ["LEASEHOLD_TLS_CA", "LEASEHOLD_TLS_CERT", "LEASEHOLD_TLS_KEY"];
        command.envs(names.into_iter().zip(self.right())).env("LEASEHOLD_URL", url);
        command.env("LEASEHOLD_CONNECT_TIMEOUT", "50s"); // a busy machine may need that long
        command
    }
}

pub(crate) struct Secured {
    process: Child,
    pub(crate) port: u16,
    dir: TempDir,
}

impl Drop for Secured {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Secured {
    /// Starts `program` and waits until it is ready. If another process has taken its port, another port is
    /// tried.
    fn start(is_ready: impl Fn(&Secured, &str) -> bool, program: impl Fn(&Path, u16) -> Command) -> Secured {
        for _ in 0..20 {
            let dir = tempfile::Builder::new().prefix("leasehold-secured-").tempdir().unwrap();
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let log = fs::File::create(dir.path().join("log")).unwrap();
            let mut command = program(dir.path(), port);
            command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null());
            let process = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            let mut server = Secured { process, port, dir };
            let mut has_ended = false;
            eventually("the server is ready", || {
                has_ended = server.process.try_wait().unwrap().is_some();
                has_ended || is_ready(&server, &server.log())
            });
            if !has_ended {
                return server;
            }
            let log = server.log();
            assert!(log.to_ascii_lowercase().contains("in use"), "the server does not start:\n{log}");
        }
        panic!("no port is free");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://localhost:{}{path}", self.port)
    }

    pub(crate) fn redis(certificates: &Certificates, settings: &[&str]) -> Option<Secured> {
        Secured::redis_as(certificates, "server", settings)
    }

    pub(crate) fn redis_as(certificates: &Certificates, name: &str, settings: &[&str]) -> Option<Secured> {
        let program = crate::world::server_program();
        let asked =
            Command::new(&program).args(["--port", "0", "--tls-port", "1", "--save", ""]).output().unwrap();
        if !String::from_utf8_lossy(&asked.stdout).contains("No tls-") {
            skipped("the server was built without TLS");
            return None;
        }
        let (certificate, key) =
            (certificates.file(&format!("{name}.crt")), certificates.file(&format!("{name}.key")));
        Some(Secured::start(
            |_, log| log.contains("eady to accept connections") || log.contains("+monitor master"),
            |dir, port| {
                let mut command = Command::new(&program);
                // A Sentinel's settings must be in a file, which the Sentinel rewrites.
                let file = dir.join("conf");
                fs::write(&file, settings.iter().map(|line| format!("{line}\n")).collect::<String>())
                    .unwrap();
                let listens = format!("--port 0 --tls-port {port} --bind 127.0.0.1 127.0.0.2");
                command.arg(file).args(listens.split(' '));
                command.args(["--tls-cert-file", &certificate, "--tls-key-file", &key]);
                command.args(["--tls-ca-cert-file", &certificates.file("ca.crt"), "--dir"]).arg(dir);
                command.arg("--unixsocket").arg(dir.join("socket"));
                let is_sentinel = settings.iter().any(|line| line.starts_with("sentinel "));
                command.args(if is_sentinel { ["--sentinel"].as_slice() } else { ["--save", ""].as_slice() });
                command
            },
        ))
    }

    /// Sends a request over the server's Unix socket, and returns the answer.
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        self.ask_all(&[words])
    }

    pub(crate) fn ask_as(&self, user: &str, password: &str, words: &[&str]) -> String {
        self.ask_all(&[&["AUTH", user, password], words])
    }

    fn ask_all(&self, requests: &[&[&str]]) -> String {
        let stream = UnixStream::connect(self.dir.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        converse(stream, requests).unwrap()
    }

    pub(crate) fn etcd(certificates: &Certificates) -> Option<Secured> {
        let program = found("etcd", &[])?;
        Some(Secured::start(
            |server, _| TcpStream::connect(("127.0.0.1", server.port)).is_ok(),
            |dir, port| {
                let client = format!("https://127.0.0.1:{port}");
                let mut command = Command::new(&program);
                command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
                command.args("--listen-peer-urls http://127.0.0.1:0 --log-level error --data-dir".split(' '));
                command.arg(dir.join("data")).args(["--cert-file", &certificates.file("server.crt")]);
                command.args(["--key-file", &certificates.file("server.key"), "--client-cert-auth"]);
                command.args(["--trusted-ca-file", &certificates.file("ca.crt")]);
                command
            },
        ))
    }

    pub(crate) fn postgres(certificates: &Certificates) -> Option<Secured> {
        let mut folders: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .flatten()
            .map(|one| one.path().join("bin"))
            .collect();
        folders.sort();
        let program = found("postgres", &folders)?;
        Some(Secured::start(
            |_, log| log.matches("ready to accept connections").count() > 0,
            |dir, port| {
                let user = own_user(&["postgres", "nobody"]);
                copy(certificates, dir);
                owned(dir, &user);
                let mut initialize = as_user(&user, &program.with_file_name("initdb"));
                initialize.args("-U client -A trust --no-sync --locale=C -E UTF8 -D".split(' '));
                let made = initialize.arg(dir.join("data")).current_dir(dir).output().unwrap();
                assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
                fs::write(dir.join("data/pg_hba.conf"), "hostssl all all all cert\nlocal all all trust\n")
                    .unwrap();
                let mut command = as_user(&user, &program);
                command.arg("-D").arg(dir.join("data")).arg("-k").arg(dir).current_dir(dir);
                let port = format!("port={port}");
                for setting in [
                    "ssl=on",
                    "ssl_cert_file=../server.crt",
                    "ssl_key_file=../server.key",
                    "ssl_ca_file=../ca.crt",
                    "fsync=off",
                    "listen_addresses=127.0.0.1",
                    "dynamic_shared_memory_type=mmap",
                    "shared_buffers=16MB",
                    &port,
                ] {
                    command.args(["-c", setting]);
                }
                command
            },
        ))
    }
}

fn found(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).chain(folders.iter().rev().cloned()).map(|folder| folder.join(name));
    let found = found.into_iter().find(|program| program.is_file());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "no {name}");
        skipped(&format!("no {name}"));
    }
    found
}

/// The first of `users` that exists, to run a server that refuses root. `None`: there is none, or no need.
fn own_user(users: &[&str]) -> Option<String> {
    let asked = |words: &[&str]| Command::new("id").args(words).output().unwrap();
    let exists = |user: &&&str| asked(&[user]).status.success();
    if asked(&["-u"]).stdout == b"0\n" {
        users.iter().find(exists).map(|user| (*user).to_owned())
    } else {
        None
    }
}

fn as_user(user: &Option<String>, program: &Path) -> Command {
    let Some(user) = user else { return Command::new(program) };
    let group = Command::new("id").args(["-g", user]).output().unwrap().stdout;
    let mut command = Command::new("setpriv");
    let words =
        format!("--reuid {user} --regid {} --clear-groups --", String::from_utf8_lossy(&group).trim());
    command.args(words.split(' '));
    command.arg(program);
    command
}

fn owned(dir: &Path, user: &Option<String>) {
    if let Some(user) = user {
        assert!(Command::new("chown").args(["-R", user]).arg(dir).status().unwrap().success());
    }
}

fn copy(certificates: &Certificates, dir: &Path) {
    for name in ["ca.crt", "server.crt", "server.key"] {
        fs::copy(certificates.file(name), dir.join(name)).unwrap();
    }
}
