//! A Redis server for each test, runs of the program, and commands that record when they run.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The time limit of each wait, which is longer than any step of a test that passes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The time in nanoseconds, by a clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

pub(crate) fn pause(millis: u64) {
    std::thread::park_timeout(Duration::from_millis(millis));
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = now() + u64::try_from(LIMIT.as_nanos()).unwrap();
    while !holds() {
        assert!(now() < end, "not within {LIMIT:?}: {what}");
        pause(5);
    }
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

pub(crate) struct Server {
    process: Child,
    port: u16,
    pub(crate) dir: TempDir,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_with(&[])
    }

    pub(crate) fn start_with(options: &[&str]) -> Server {
        Server::start_program(&server_program(), options)
    }

    pub(crate) fn start_program(program: &OsStr, options: &[&str]) -> Server {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(process) = start_server(program, port, dir.path(), options) {
                return Server { process, port, dir };
            }
        }
        panic!("the server does not start");
    }

    pub(crate) fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn start_again(&mut self) {
        self.process =
            start_server(&server_program(), self.port, self.dir.path(), &[]).expect("the port is still free");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn ask(&self, words: &[&str]) -> String {
        ask(self.port, words).expect("the server answers")
    }

    /// The keys of locks: without the directory of clients, and without counters of tokens, which stay on
    /// purpose.
    pub(crate) fn keys(&self) -> Vec<String> {
        let answer = self.ask(&["KEYS", "*"]);
        let keys = answer.lines().filter(|line| !line.starts_with(['*', '$']));
        let is_lock =
            |key: &&str| !key.starts_with("redisson_lock_token") && !key.starts_with("leasehold_client:");
        let mut keys: Vec<String> = keys.filter(is_lock).map(str::to_owned).collect();
        keys.sort_unstable();
        keys
    }

    pub(crate) fn queue_length(&self, name: &str) -> usize {
        let answer = self.ask(&["ZCARD", &format!("leasehold_lock_queue:{{{name}}}")]);
        answer.trim().trim_start_matches(':').parse().unwrap()
    }

    pub(crate) fn leasehold(&self, arguments: &[&str]) -> Command {
        let mut command = leasehold(arguments);
        command.env("LEASEHOLD_URL", self.url());
        command
    }

    pub(crate) fn outcome(&self, arguments: &[&str]) -> (i32, String) {
        outcome(&mut self.leasehold(arguments))
    }

    #[track_caller]
    pub(crate) fn ends(&self, arguments: &[&str], code: i32, words: &str) -> String {
        ends(&mut self.leasehold(arguments), code, words)
    }

    /// Runs the program, and returns the only JSON object that it prints.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let said = self.ends(&[&["-q", "--format", "json"], arguments].concat(), 0, "");
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    pub(crate) fn begin(&self, arguments: &[&str]) -> Run {
        Run::start(&mut self.leasehold(arguments))
    }

    /// A command of the program with a long connect time-out, which a busy machine may need.
    pub(crate) fn connected(&self, arguments: &[&str]) -> Command {
        let mut command = self.leasehold(arguments);
        command.env("LEASEHOLD_CONNECT_TIMEOUT", "50s");
        command
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

pub(crate) fn server_program() -> OsString {
    std::env::var_os("LEASEHOLD_TEST_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// Starts a server, and waits until it answers. `None` if it ends (because another process has the port), or
/// does not answer within 30 s.
fn start_server(program: &OsStr, port: u16, dir: &Path, options: &[&str]) -> Option<Child> {
    let mut process = Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(dir)
        .args(options)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server: set LEASEHOLD_TEST_SERVER");
    let end = now() + 30_000_000_000;
    let ours = format!("process_id:{}\r\n", process.id());
    while process.try_wait().unwrap().is_none() && now() < end {
        if ask(port, &["INFO", "server"]).is_some_and(|answer| answer.contains(&ours)) {
            return Some(process);
        }
        pause(5);
    }
    drop(process.kill());
    drop(process.wait());
    None
}

fn ask(port: u16, words: &[&str]) -> Option<String> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    converse(stream, &[words]).ok()
}

/// A Redis server's answers to these requests, as one text.
pub(crate) fn converse(mut stream: impl Read + Write, requests: &[&[&str]]) -> std::io::Result<String> {
    let mut text = String::new();
    for words in requests.iter().chain([&["QUIT"].as_slice()]) {
        text += &format!("*{}\r\n", words.len());
        words.iter().for_each(|word| text += &format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(text.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.trim_end_matches("+OK\r\n").to_owned())
}

/// Reports that a test skips something, in the form that `./check` counts. The harness does not hide this
/// output.
pub(crate) fn skipped(what: &str) {
    let line = format!("SKIPPED {}: {what}\n", std::thread::current().name().unwrap_or("?"));
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// The path of the example `stock`, which `./check` builds. If it is not built, prints SKIPPED and returns
/// `None`; in CI returns the path, so the test fails.
pub(crate) fn stock() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let examples =
        std::env::var_os("LEASEHOLD_EXAMPLES").map_or_else(|| program.with_file_name("examples"), Into::into);
    let stock = examples.join("stock");
    if !stock.exists() && std::env::var_os("CI").is_none() {
        skipped(&format!("{} is not built", stock.display()));
        return None;
    }
    Some(stock)
}

/// A command in its own user and process namespaces, like in a container; `None` if this system allows none.
pub(crate) fn container(arguments: &[&str]) -> Option<Command> {
    let command = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]).args(arguments);
        command
    };
    if !command().arg("true").status().is_ok_and(|status| status.success()) {
        skipped("this system allows no namespaces");
        return None;
    }
    Some(command())
}

pub(crate) fn leasehold(arguments: &[&str]) -> Command {
    let mut command = program(&[], arguments);
    command.stdin(Stdio::null());
    command
}

pub(crate) fn leasehold_in_time(arguments: &[&str]) -> Command {
    let limit = LIMIT.as_secs().to_string();
    let mut command = program(&["timeout", &limit], arguments);
    command.stdin(Stdio::null());
    command
}

pub(crate) fn in_a_session_of_its_own(arguments: &[&str]) -> Command {
    program(&["setsid", "--ctty", "--wait"], arguments)
}

fn program(before: &[&str], arguments: &[&str]) -> Command {
    // A background test ignores SIGINT, and its processes would inherit this, so `env` resets signals.
    let mut command = Command::new("env");
    command.arg("--default-signal").args(before).arg(env!("CARGO_BIN_EXE_leasehold")).args(arguments);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LEASEHOLD_"))
    {
        command.env_remove(name);
    }
    command
}

#[track_caller]
pub(crate) fn outcome(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    (status.code().unwrap_or_else(|| panic!("ended by a signal: {said}")), said)
}

/// Runs the command, checks its exit code and that its output contains `words`, and returns the output.
#[track_caller]
pub(crate) fn ends(command: &mut Command, code: i32, words: &str) -> String {
    let (ended, said) = outcome(command);
    assert!(ended == code && said.contains(words), "{command:?}: {ended}: {said}");
    said
}

pub(crate) struct Run(pub(crate) Child);

impl Run {
    pub(crate) fn start(command: &mut Command) -> Run {
        Run(command.stdout(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    #[track_caller]
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        signal(self.pid(), Signal::TERM);
        self.wait().code()
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("a run ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // When the program dies, its helper process ends the command.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub(crate) fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map(|tasks| tasks.flatten().collect::<Vec<_>>());
    let lists =
        tasks.unwrap_or_default().into_iter().map(|task| fs::read_to_string(task.path().join("children")));
    lists
        .flatten()
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

pub(crate) fn is_dead(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.contains("State:\tZ")
}

const STAMPS: &str = "LEASEHOLD_CLI_TEST_STAMPS";
const IGNORES_TERM: &str = "LEASEHOLD_CLI_TEST_IGNORES_TERM";
const ONCE: &str = "LEASEHOLD_CLI_TEST_ONCE";

/// A command that writes the time to a file, `once` or every few milliseconds. If it ignores TERM, it writes
/// the time of TERM to a file with the extension `term`.
pub(crate) struct Stamper<'a> {
    pub(crate) file: &'a Path,
    pub(crate) ignores_term: bool,
    pub(crate) once: bool,
}

impl Stamper<'_> {
    pub(crate) fn under<'c>(&self, run: &'c mut Command) -> &'c mut Command {
        let words = self.words(run);
        run.arg("--").args(words)
    }

    pub(crate) fn words(&self, run: &mut Command) -> Vec<OsString> {
        run.env(STAMPS, self.file);
        if self.ignores_term {
            run.env(IGNORES_TERM, "1");
        }
        if self.once {
            run.env(ONCE, "1");
        }
        let this = std::env::current_exe().unwrap().into_os_string();
        let rest =
            ["--exact", "world::helper_process_that_writes_time_stamps", "--nocapture", "--test-threads=1"];
        [this].into_iter().chain(rest.map(OsString::from)).collect()
    }
}

pub(crate) fn stamps(file: &Path) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    // A line that is still being written has no end, so it is left out.
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| line.trim().parse().unwrap())
        .collect()
}

#[test]
fn helper_process_that_writes_time_stamps() {
    let Some(file) = std::env::var_os(STAMPS) else { return };
    let has_term = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
    if std::env::var_os(IGNORES_TERM).is_some() {
        signal_hook::flag::register(signal_hook::consts::SIGTERM, has_term.clone()).unwrap();
    }
    let path = Path::new(&file);
    let term = path.with_extension("term");
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    // A failed test may leave this process behind. The test's folder is removed, so the loop ends.
    while path.exists() {
        if has_term.swap(false, std::sync::atomic::Ordering::SeqCst) {
            fs::write(&term, format!("{}\n", now())).ok();
        }
        file.write_all(format!("{}\n", now()).as_bytes()).unwrap();
        if std::env::var_os(ONCE).is_some() {
            return;
        }
        pause(5);
    }
}
