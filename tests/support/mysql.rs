//! A private MariaDB or MySQL, on a free port, with its data in a temporary folder.
//!
//! `LEASEHOLD_MYSQLD` names the server program. Otherwise it is found in `PATH` and `/usr/sbin`. The server
//! refuses to run as root, so root starts it as the user `mysql` or `nobody`.

use super::programs::{Running, in_a_folder, in_memory, install, listens, own, prefix};
use super::server::{Port, in_path, make_certificates};
use super::{eventually, missing};
use mysql::Conn;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

const START_LIMIT: Duration = Duration::from_secs(60);
const USERS: [&str; 2] = ["mysql", "nobody"];
/// Settings without disk syncs: writes survive a kill of the server, but no crash of the machine.
const UNSYNCED: [&str; 4] = [
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=OFF",
    "--innodb-log-file-size=32M", // small, because tests copy this file for each server
];

/// A private server. Dropping it kills the process that it started, and no other.
pub struct MysqlServer {
    process: Option<Running>,
    program: PathBuf,
    port: Port,
    settings: Vec<String>,
    folder: TempDir,
}

in_a_folder!(MysqlServer);

impl MysqlServer {
    /// Starts a server, without disk syncs; `None`, after [`missing`], if none is found.
    #[track_caller]
    pub fn start() -> Option<MysqlServer> {
        MysqlServer::start_with(&[])
    }

    #[track_caller]
    pub fn start_with(settings: &[&str]) -> Option<MysqlServer> {
        MysqlServer::make(settings, false)
    }

    #[track_caller]
    pub fn start_tls() -> Option<MysqlServer> {
        MysqlServer::make(&[], true)
    }

    #[track_caller]
    fn make(settings: &[&str], tls: bool) -> Option<MysqlServer> {
        let named = std::env::var_os("LEASEHOLD_MYSQLD").map(PathBuf::from);
        let installer = if named.is_some() { None } else { program("mariadb-install-db") };
        let Some(program) = named.or_else(|| program("mariadbd")).or_else(|| program("mysqld")) else {
            missing("no MariaDB and no MySQL; ./check installs one");
            return None;
        };
        let folder = in_memory();
        let users = "CREATE DATABASE IF NOT EXISTS locks;\n\
            CREATE USER IF NOT EXISTS admin@'%';\n\
            GRANT ALL ON *.* TO admin@'%' WITH GRANT OPTION;\n";
        std::fs::write(folder.path().join("init.sql"), users).unwrap();
        if tls {
            make_certificates(folder.path());
        }
        own(folder.path(), &USERS);
        let data = format!("--datadir={}/data", folder.path().display());
        // A starting server deletes all temporary tables in its `tmpdir`, so no two servers share one.
        let temporary = format!("--tmpdir={}", folder.path().display());
        let mut command = prefix(&USERS);
        if let Some(installer) = installer {
            let words = [
                installer.to_str().unwrap(),
                "--no-defaults",
                &data,
                "--auth-root-authentication-method=normal",
            ];
            command.extend(words.map(str::to_owned));
            command.extend(["--skip-test-db".to_owned(), temporary]);
        } else {
            let words = [program.to_str().unwrap(), "--no-defaults", "--initialize-insecure", &data];
            command.extend(words.map(str::to_owned));
        }
        command.extend(UNSYNCED.map(str::to_owned));
        install(&program, folder.path(), &command);
        let mut settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        if tls {
            let file = |name: &str| folder.path().join(name).display().to_string();
            settings.push(format!("--ssl-ca={}", file("ca.crt")));
            settings.push(format!("--ssl-cert={}", file("server.crt")));
            settings.push(format!("--ssl-key={}", file("server.key")));
        }
        let port = Port::claim();
        let mut server = MysqlServer { process: None, program, port, settings, folder };
        server.launch();
        Some(server)
    }

    pub fn url(&self) -> String {
        self.url_as("admin")
    }

    /// The URL for a user, given as `name` or `name:password`.
    pub fn url_as(&self, user: &str) -> String {
        format!("mysql://{user}@127.0.0.1:{}/locks", self.port())
    }

    #[track_caller]
    pub fn admin(&self) -> Conn {
        self.try_connect("admin").unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// Connects by TCP only: the Unix socket would take a second connection, beyond some users' limits.
    pub fn try_connect(&self, user: &str) -> mysql::Result<Conn> {
        let opts = mysql::Opts::from_url(&format!("{}?prefer_socket=false", self.url_as(user)))?;
        Conn::new(opts)
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills the server if it runs, and starts it on the same port with the same data.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    fn launch(&mut self) {
        let folder = self.folder.path().display().to_string();
        let mut command = prefix(&USERS);
        command.extend([self.program.to_str().unwrap(), "--no-defaults"].map(str::to_owned));
        command.extend([
            format!("--datadir={folder}/data"),
            format!("--socket={folder}/s"),
            format!("--tmpdir={folder}"),
            format!("--pid-file={folder}/pid"),
            format!("--init-file={folder}/init.sql"),
            format!("--port={}", self.port()),
        ]);
        let sizes = [
            "--bind-address=127.0.0.1",
            "--innodb-buffer-pool-size=32M",
            "--max-connections=300",
            "--performance-schema=OFF",
            "--skip-log-bin",
            "--loose-mysqlx=OFF", // MySQL would open a second port for another protocol
        ];
        command.extend(sizes.into_iter().chain(UNSYNCED).map(str::to_owned));
        command.extend(self.settings.iter().cloned());
        self.process = Some(Running::start(self.folder.path(), &command));
        let mut ended = false;
        let ready = eventually(START_LIMIT, || {
            ended = self.process.as_mut().expect("just started").has_ended();
            ended || (listens(self.pid(), self.port()) && self.try_connect("admin").is_ok())
        });
        assert!(ready && !ended, "the server did not start:\n{}", self.log());
    }
}

fn program(name: &str) -> Option<PathBuf> {
    in_path(name).or_else(|| Some(PathBuf::from("/usr/sbin").join(name)).filter(|path| path.is_file()))
}
