//! How tests start programs: users for servers that refuse to run as root, folders, ports, and the examples.

use super::{LastWill, run, signal, spawn};
use serde_json::Value;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::UNIX_EPOCH;
use tempfile::TempDir;

/// A server that runs in a folder of the test, with its output in the file `log`. Dropping this kills the
/// process that it started, and no other.
pub struct Running {
    process: Child,
    _will: LastWill,
}

impl Running {
    pub fn start<S: AsRef<OsStr>>(folder: &Path, program: &[S]) -> Running {
        let log = File::create(folder.join("log")).expect("a file can be made");
        let same = log.try_clone().expect("a file handle can be copied");
        let process = spawn(program, |command| command.current_dir(folder).stdout(same).stderr(log));
        let (pid, path) = (process.id().to_string(), folder.to_string_lossy());
        // If this process dies, a shell kills the server, lets its last writes end, and removes the folder.
        let end = "kill -KILL $1; sleep 1; rm -rf \"$2\"";
        Running { process, _will: LastWill::new(&["sh", "-c", end, "sh", &pid, &path]) }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("a child can be asked").is_some()
    }

    /// Sends `STOP` or `CONT`. While a server is stopped, the kernel accepts connections, but nobody answers.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process.
        if let Err(error) = self.process.kill() {
            super::shout(&format!("process {}: {error}", self.pid()));
        }
        self.process.wait().expect("a child can be waited for");
    }
}

/// Defines the methods of a server that has the fields `process`, `port` and `folder`.
macro_rules! in_a_folder {
    ($server:ident) => {
        impl $server {
            pub fn port(&self) -> u16 {
                self.port.number()
            }

            pub fn pid(&self) -> u32 {
                self.running().pid()
            }

            fn running(&self) -> &$crate::support::programs::Running {
                self.process.as_ref().expect("the server runs")
            }

            pub fn signal(&self, name: &str) {
                self.running().signal(name);
            }

            pub fn certificates(&self) -> $crate::support::server::Certificates {
                $crate::support::server::Certificates(self.folder.path().to_owned())
            }

            pub fn log(&self) -> String {
                $crate::support::programs::log_in(self.folder.path())
            }
        }
    };
}
pub(super) use in_a_folder;

pub fn log_in(folder: &Path) -> String {
    String::from_utf8_lossy(&fs::read(folder.join("log")).unwrap_or_default()).into_owned()
}

/// The words that make the command after them run as the first of `users` that exists. Empty if there is no
/// such user, or if this process is not root.
pub fn prefix(users: &[&str]) -> Vec<String> {
    let Some(user) = other(users) else { return Vec::new() };
    let group = run(&["id", "-g", user], |command| command).1.trim().to_owned();
    ["setpriv", "--reuid", user, "--regid", &group, "--clear-groups", "--"].map(str::to_owned).into()
}

/// Creates `folder/data` by the server's installer, which takes seconds. So the result is kept for each
/// version of `program`, and later tests copy it.
pub fn install(program: &Path, folder: &Path, installer: &[String]) {
    let built = fs::metadata(program).and_then(|file| file.modified()).unwrap();
    let name = program.to_str().unwrap().replace('/', "-");
    let name = format!("data{name}-{}", built.duration_since(UNIX_EPOCH).unwrap().as_secs());
    let (kept, data) = (Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), folder.join("data"));
    let copy = |from: &Path, to: &Path| {
        let (good, text) =
            run(&["cp", "-a", from.to_str().unwrap(), to.to_str().unwrap()], |command| command);
        assert!(good, "cp: {text}");
    };
    if kept.exists() {
        return copy(&kept, &data);
    }
    let (good, text) = run(installer, |command| command.current_dir(folder));
    assert!(good, "{installer:?}: {text}");
    let new = tempfile::tempdir_in(kept.parent().unwrap()).unwrap();
    copy(&data, &new.path().join("data"));
    // The rename fails if another test has made the folder first. Then this copy is superfluous.
    fs::rename(new.path().join("data"), kept).ok();
}

pub fn own(folder: &Path, users: &[&str]) {
    if let Some(user) = other(users) {
        let (good, text) = run(&["chown", "-R", user, folder.to_str().unwrap()], |command| command);
        assert!(good, "chown: {text}");
    }
}

fn other<'a>(users: &[&'a str]) -> Option<&'a str> {
    let is_root = run(&["id", "-u"], |command| command).1.trim() == "0";
    let exists = |user: &str| run(&["id", user], |command| command).0;
    if is_root { users.iter().copied().find(|user| exists(user)) } else { None }
}

/// A folder in memory, or on disk if memory is short. On a busy disk a commit may take seconds, which the
/// stall meter would not notice, and a copy of PostgreSQL's thousand files takes ten times as long.
pub fn in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if has_room(memory)
        && let Ok(folder) = tempfile::Builder::new().prefix("leasehold-").tempdir_in(memory)
    {
        return folder;
    }
    tempfile::tempdir().unwrap()
}

/// Whether this folder has room for the data of some twenty servers.
#[cfg(target_os = "linux")]
fn has_room(memory: &Path) -> bool {
    const ROOM: u64 = 2 << 30;
    rustix::fs::statvfs(memory).is_ok_and(|is| is.f_bavail.saturating_mul(is.f_frsize) >= ROOM)
}

#[cfg(not(target_os = "linux"))]
fn has_room(_memory: &Path) -> bool {
    false
}

pub fn sqlite_url(file: &Path) -> String {
    let path = file.to_str().unwrap().replace('\\', "/");
    format!("sqlite:///{}", path.trim_start_matches('/'))
}

/// Whether the process `pid` listens on the TCP port, in any network namespace. Linux shows this without a
/// request to the server; on other systems the answer is always yes.
pub fn listens(pid: u32, port: u16) -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let process = Path::new("/proc").join(pid.to_string());
    let Ok(files) = fs::read_dir(process.join("fd")) else { return false };
    let links = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    let number =
        |link: PathBuf| Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned());
    let sockets: HashSet<String> = links.filter_map(number).collect();
    // Reading the kernel's table takes milliseconds, so a process without sockets is ruled out first.
    !sockets.is_empty()
        && ["net/tcp", "net/tcp6"].iter().any(|table| {
            let Ok(table) = File::open(process.join(table)) else { return false };
            let lines = BufReader::new(table).lines().map_while(Result::ok).skip(1);
            // Listening sockets come first in the table, so the rest is not read.
            lines
                .map_while(|line| listening_socket(&line))
                .any(|(at, socket)| at == port && sockets.contains(&socket))
        })
}

/// The port and the socket's number, if this line of `/proc/net/tcp` is a listening socket.
fn listening_socket(line: &str) -> Option<(u16, String)> {
    const LISTEN: &str = "0A";
    let fields: Vec<_> = line.split_whitespace().collect();
    if fields.get(3) != Some(&LISTEN) {
        return None;
    }
    let (_, port) = fields.get(1)?.rsplit_once(':')?;
    Some((u16::from_str_radix(port, 16).ok()?, (*fields.get(9)?).to_owned()))
}

/// The path of an example's program. `LEASEHOLD_EXAMPLES` names the folder in which `./check` has built all
/// examples; without it, this function builds the example with this test's features.
pub fn example(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("LEASEHOLD_EXAMPLES") {
        let program = PathBuf::from(folder).join(name);
        assert!(program.is_file(), "{} was not built", program.display());
        return program;
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--example", name, "--message-format", "json"]);
    cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // With other features than this test's, cargo would build the whole library again.
    let features = [
        ("tls", cfg!(feature = "tls")),
        ("tracing", cfg!(feature = "tracing")),
        ("metrics", cfg!(feature = "metrics")),
        ("etcd", cfg!(feature = "etcd")),
        ("zookeeper", cfg!(feature = "zookeeper")),
        ("postgres", cfg!(feature = "postgres")),
        ("mysql", cfg!(feature = "mysql")),
        ("sqlite", cfg!(feature = "sqlite")),
        ("tokio", cfg!(feature = "tokio")),
    ];
    for (feature, _) in features.iter().filter(|(_, on)| *on) {
        cargo.args(["--features", feature]);
    }
    let built = cargo.stderr(Stdio::inherit()).output().unwrap();
    assert!(built.status.success(), "the example {name} does not build");
    String::from_utf8(built.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo names the executable")
}
