//! A private PostgreSQL, on a free port, with its data in a temporary folder.
//!
//! The programs are found in `PATH` and in Debian's folders. PostgreSQL refuses to run as root, so root
//! starts it as the user `postgres` or `nobody`.

use super::programs::{Running, in_a_folder, in_memory, install, listens, log_in, own, prefix};
use super::server::{Port, in_path, make_certificates};
use super::{eventually, missing, run};
use postgres::{Client, NoTls};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

const START_LIMIT: Duration = Duration::from_secs(40);
const USERS: [&str; 2] = ["postgres", "nobody"];

/// A private server. Dropping it kills the process that it started, and no other.
pub struct PostgresServer {
    process: Option<Running>,
    port: Port,
    settings: Vec<String>,
    folder: TempDir,
}

in_a_folder!(PostgresServer);

impl PostgresServer {
    /// Starts a server, without disk syncs; `None`, after [`missing`], if none is found.
    #[track_caller]
    pub fn start() -> Option<PostgresServer> {
        PostgresServer::start_with(&[])
    }

    #[track_caller]
    pub fn start_with(settings: &[&str]) -> Option<PostgresServer> {
        PostgresServer::make(settings, false)
    }

    /// Starts a server that also speaks TLS. Its user `client` needs TLS and a client certificate.
    #[track_caller]
    pub fn start_tls() -> Option<PostgresServer> {
        PostgresServer::make(
            &["ssl=on", "ssl_cert_file=../server.crt", "ssl_key_file=../server.key", "ssl_ca_file=../ca.crt"],
            true,
        )
    }

    #[track_caller]
    fn make(settings: &[&str], tls: bool) -> Option<PostgresServer> {
        let Some(initdb) = program("initdb") else {
            missing("no PostgreSQL; ./check installs one");
            return None;
        };
        let folder = in_memory();
        if tls {
            make_certificates(folder.path());
        }
        own(folder.path(), &USERS);
        let data = folder.path().join("data");
        let mut command = prefix(&USERS);
        command.extend([initdb.to_str().unwrap(), "-D", data.to_str().unwrap()].map(str::to_owned));
        command.extend(
            ["-U", "admin", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"].map(str::to_owned),
        );
        install(&initdb, folder.path(), &command);
        let rules = "host all secretive all scram-sha-256\nhost all all all trust\nlocal all all trust\n";
        let secured = "hostssl all client all cert\nhostnossl all client all reject\n";
        let rules = if tls { format!("{secured}{rules}") } else { rules.to_owned() };
        std::fs::write(data.join("pg_hba.conf"), rules).unwrap();
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut server = PostgresServer { process: None, port: Port::claim(), settings, folder };
        server.launch();
        Some(server)
    }

    pub fn url(&self) -> String {
        self.url_as("admin")
    }

    /// The URL for a user, given as `name` or `name:password`.
    pub fn url_as(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres", self.port())
    }

    #[track_caller]
    pub fn admin(&self) -> Client {
        self.try_connect("admin").unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    pub fn try_connect(&self, user: &str) -> Result<Client, postgres::Error> {
        Client::connect(&self.url_as(user), NoTls)
    }

    /// Kills the server (SIGKILL), and the processes that it has for its clients.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            let pid = process.pid();
            let served =
                std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            drop(process);
            // The processes that serve clients would go on answering for a while.
            for pid in served.split_whitespace() {
                run(&["kill", "-KILL", pid], |command| command); // it may be gone
            }
        }
    }

    pub fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    fn launch(&mut self) {
        let mut command = prefix(&USERS);
        command.push(program("postgres").expect("beside initdb").to_str().unwrap().to_owned());
        let folder = self.folder.path().display().to_string();
        command.extend(["-D".to_owned(), format!("{folder}/data"), "-k".to_owned(), folder]);
        let mut settings = vec![
            format!("port={}", self.port()),
            "listen_addresses=127.0.0.1".to_owned(),
            "fsync=off".to_owned(), // writes survive the server's death, but not the machine's
            "shared_buffers=16MB".to_owned(),
            // Shared memory is in this folder, because a killed server would leave it in /dev/shm.
            "dynamic_shared_memory_type=mmap".to_owned(),
            "max_connections=300".to_owned(),
            "autovacuum=off".to_owned(),
        ];
        settings.extend(self.settings.iter().cloned());
        command.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
        let mut ended = false;
        let ready = eventually(START_LIMIT, || {
            let process = self.process.get_or_insert_with(|| Running::start(self.folder.path(), &command));
            if process.has_ended() {
                // While processes of the killed server run, a new one refuses to start and is tried again.
                ended = !self.log().contains("still in use") && !self.log().contains("still running");
                self.process = None;
                return ended;
            }
            listens(process.pid(), self.port()) && self.try_connect("admin").is_ok()
        });
        assert!(ready && !ended, "PostgreSQL did not start:\n{}", self.log());
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A PgBouncer (a pool of connections) in front of a server. It is killed on drop.
pub struct Bouncer {
    process: Running,
    port: Port,
    folder: TempDir,
}

impl Bouncer {
    /// Starts a PgBouncer that pools by `mode`: `session`, `transaction` or `statement`. `None`, after
    /// [`missing`], if none is installed.
    #[track_caller]
    pub fn before(server: &PostgresServer, mode: &str) -> Option<Bouncer> {
        Bouncer::before_with(server, mode, "")
    }

    /// As [`before`](Self::before), with one more line of settings, such as `default_pool_size = 1`.
    #[track_caller]
    pub fn before_with(server: &PostgresServer, mode: &str, more: &str) -> Option<Bouncer> {
        let debians = PathBuf::from("/usr/sbin/pgbouncer");
        let Some(program) = in_path("pgbouncer").or_else(|| Some(debians).filter(|path| path.is_file()))
        else {
            missing("no PgBouncer; scripts/servers.sh installs one");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("leasehold-pgbouncer-").tempdir().unwrap();
        let port = Port::claim();
        let settings = format!(
            "[databases]\n\
             postgres = host=127.0.0.1 port={} dbname=postgres user=admin\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = {mode}\nignore_startup_parameters = extra_float_digits\n{more}\n",
            server.port(),
            port.number()
        );
        let file = folder.path().join("ini");
        std::fs::write(&file, settings).unwrap();
        own(folder.path(), &USERS);
        let mut command = prefix(&USERS);
        command.extend([program.to_str().unwrap(), file.to_str().unwrap()].map(str::to_owned));
        let bouncer = Bouncer { process: Running::start(folder.path(), &command), port, folder };
        let answers = || listens(bouncer.process.pid(), bouncer.port.number());
        let log = || log_in(bouncer.folder.path());
        assert!(eventually(START_LIMIT, answers), "PgBouncer did not start:\n{}", log());
        Some(bouncer)
    }

    pub fn url(&self) -> String {
        format!("postgres://admin@127.0.0.1:{}/postgres", self.port.number())
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let debians = || {
        let mut versions: Vec<_> = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().collect();
        versions.sort_by_key(std::fs::DirEntry::path);
        Some(versions.pop()?.path().join("bin").join(name)).filter(|path| path.is_file())
    };
    in_path(name).or_else(debians)
}
