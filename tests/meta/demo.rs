//! The stock demo, which has a row for each lock: its counts, verdict and errors, and that nothing remains.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use serde_json::Value;

use crate::support::prelude::*;
use crate::support::programs::example;

const ROWS: [&str; 7] = [
    "none",
    "local_mutex",
    "setnx_ttl_del",
    "owner_checked_del",
    "lua_no_renewal",
    "redis_lock",
    "redis_lock_fenced",
];

/// How many sales of the row came late under this trouble, and how many pieces were sold twice.
fn wrong(row: &Value, trouble: &str) -> (u64, u64) {
    let count = |what: &str| row[trouble][what].as_u64().unwrap_or_else(|| panic!("{trouble} {what}: {row}"));
    (count("late"), count("twice"))
}

const TROUBLES: [&str; 3] = ["slow", "killed", "stopped"];

test_on!(each_demo_row_sells_as_its_lock_promises, RedisServer::start_default(), |server| {
    let demo = Demo::start(&server, &[]);
    let (out, success) = demo.finish();

    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let names: Vec<_> = rows.iter().map(|row| row["lock"].as_str().unwrap()).collect();
    assert_eq!(names, ROWS);
    for row in &rows {
        let fields = ["refused", "orders_per_s", "wait_p50_ms", "wait_p90_ms"];
        assert!(fields.iter().all(|field| row[field].as_f64().is_some_and(|number| number >= 0.0)), "{row}");
        assert_eq!(row.as_object().unwrap().len(), 1 + TROUBLES.len() + fields.len(), "{row}");
        for trouble in TROUBLES {
            let (late, twice) = wrong(row, trouble);
            assert!(twice <= late, "a piece was sold twice, and no sale came late: {row}");
        }
    }
    let [none, .., lua, plain, fenced] = &rows[..] else { panic!("no rows in {out}") };
    assert!(wrong(none, "killed").1 > 0, "sellers without a lock sold nothing twice: {none}");
    assert_eq!(wrong(lua, "killed"), (0, 0), "an expiry outlives its holder as a lease does: {lua}");
    assert!(wrong(lua, "stopped").0 > 0, "nothing came late after a stop: {lua}");
    assert_eq!(wrong(plain, "slow"), (0, 0), "{plain}");
    assert_eq!(wrong(plain, "killed"), (0, 0), "{plain}");
    assert_eq!(wrong(plain, "stopped"), (1, 1), "only the stopped holder's write is late: {plain}");
    for trouble in TROUBLES {
        assert_eq!(wrong(fenced, trouble), (0, 0), "{fenced}");
    }
    assert_eq!(fenced["refused"], 1, "the stopped holder's write is refused: {fenced}");
    assert!(success, "the demo failed though leasehold's rows are as promised");
    assert_eq!(keys(&server), 0, "the demo left keys behind");
});

test_on!(the_last_line_of_the_demo_is_its_verdict, RedisServer::start_default(), |server| {
    let rows = ["--rows", "lua_no_renewal,redis_lock,redis_lock_fenced", "--url", &server.url()];
    let demo = output(Command::new(example("stock")).args(SMALL).args(rows));
    assert!(demo.status.success(), "{demo:?}");
    let text = String::from_utf8(demo.stdout).unwrap();
    let verdict = "verdict: redis_lock: nothing wrong when slow or killed, 1 late when stopped; \
                   redis_lock_fenced: nothing wrong, stopped or not; the others: 1 of 1 went wrong";
    assert_eq!(text.lines().last(), Some(verdict), "{text}");
    for column in ["late ", "twice ", "slow ", "killed ", "stopped ", "orders/s ", "wait "] {
        assert!(text.lines().any(|line| line.starts_with(column)), "{column} is not explained:\n{text}");
    }
});

/// Asserts that the row `redis_lock_fenced` is right on this topology, although a server is killed half-way.
fn is_exact_on(topology: &str) {
    let Some(server) = RedisServer::start_default() else { return };
    let (out, success) =
        Demo::start(&server, &["--rows", "redis_lock_fenced", "--topology", topology]).finish();
    let row: Value = serde_json::from_str(&out).expect(&out);
    for trouble in TROUBLES.into_iter().chain(["server"]) {
        assert_eq!(wrong(&row, trouble), (0, 0), "{trouble}: {row}");
    }
    assert!(success, "the demo failed though its row is exact");
    assert_eq!(keys(&server), 0, "the demo left keys behind");
}

#[test]
fn the_fenced_demo_row_sells_correctly_despite_a_server_restart() {
    is_exact_on("single");
}

#[test]
fn the_fenced_demo_row_sells_correctly_despite_a_dead_server() {
    is_exact_on("redlock");
}

#[test]
fn the_fenced_demo_row_sells_correctly_despite_a_master_failover() {
    is_exact_on("sentinel");
}

#[test]
fn the_fenced_demo_row_sells_correctly_despite_a_cluster_failover() {
    is_exact_on("cluster");
}

// On the port of the demo's first server, a server without cluster support already answers. The demo did not
// start it, and so must not end it.
test_on!(the_demo_leaves_another_server_on_its_port_running, RedisServer::start_default(), |server| {
    let stage = Stage::new("exit 0");
    let script = r#"
real=$SERVER others=$OTHERS
if mkdir "$others" 2>/dev/null; then
    port=$(sed -n 's/^port //p' "$1")
    "$real" --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$others" --logfile log \
        --pidfile "$others/pid" --daemonize yes
    until [ -s "$others/pid" ] && grep -q 'ready to accept\|Ready to accept' "$others/log"; do sleep 0.01; done
fi
exec "$real" "$@""#;
    stage.program("server", script);
    let others = stage.folder.path().join("others");
    let mut demo = Command::new(example("stock"));
    demo.arg("--json").args(SMALL).args(["--rows", "redis_lock_fenced", "--topology", "cluster"]);
    demo.env("REDIS_URL", server.url()).env("LEASEHOLD_DEMO_SERVER", stage.programs().join("server"));
    demo.env("SERVER", &server.binary().path).env("OTHERS", &others);
    let demo = Demo::of(&mut demo);
    // The demo kills its first worker only after all servers have started, so the interrupt below comes while
    // they run.
    is_being_struck(&server);
    kill_process(Pid::from_child(&demo.child), Signal::INT).unwrap();
    let (_, said, status) = demo.end();
    let pid = std::fs::read_to_string(others.join("pid")).expect(&said);
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    assert!(kill_process(pid, Signal::KILL).is_ok(), "the demo ended a server that it did not start: {said}");
    assert_eq!((said.as_str(), status.success()), ("stock: interrupted\n", false));
});

#[test]
fn the_fenced_demo_row_sells_correctly_despite_a_lost_node() {
    is_exact_on("ring");
}

test_on!(an_interrupted_demo_says_so_in_one_line, RedisServer::start_default(), |server| {
    let stage = Stage::new("exit 0");
    let mut demo = stage.demo(&["--rows", "redis_lock_fenced"]);
    let demo = Demo::of(demo.args(SMALL).env("REDIS_URL", server.url()));
    is_being_struck(&server);
    kill_process_group(demo.group, Signal::INT).unwrap();
    let (_, said, status) = demo.end();
    assert_eq!((said.as_str(), status.code()), ("stock: interrupted\n", Some(130)));
    assert_eq!(keys(&server), 0, "the interrupted demo left keys behind");

    let begun = stage.folder.path().join("begun");
    let stage = Stage::new(&format!("echo > '{}'; exec sleep 60", begun.display()));
    let demo = Demo::of(stage.demo(&[]).env("REDIS_URL", server.url()));
    assert!(eventually(Duration::from_secs(30), || begun.exists()), "nothing was built");
    kill_process_group(demo.group, Signal::INT).unwrap();
    let (_, said, status) = demo.end();
    assert_eq!((said.as_str(), status.code()), ("demo: interrupted\n", Some(130)));
});

#[test]
fn a_wrong_demo_command_line_prints_one_error_line() {
    let program = example("stock");
    for arguments in [["--threads", "0"], ["--processes", "1"], ["--stock", "many"], ["--topology", "moon"]] {
        let refused = output(Command::new(&program).args(arguments));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.lines().count() == 1 && said.contains(arguments[0]), "{arguments:?}: {said}");
        assert_eq!(refused.status.code(), Some(2));
    }
    // The script refuses these arguments before it builds.
    let stage = Stage::new("echo built >&2; exit 1");
    for arguments in [["--threads", "0"], ["--processes=0", ""], ["--stock", "many"], ["--runs", ""]] {
        let refused = output(&mut stage.demo(&arguments));
        let said = String::from_utf8(refused.stderr).unwrap();
        let name = arguments[0].split('=').next().unwrap();
        assert!(said.lines().count() == 1 && said.starts_with("demo: ") && said.contains(name), "{said}");
        assert_eq!(refused.status.code(), Some(1));
    }
    // The program refuses these arguments before it needs a server.
    let stage = Stage::new("exit 0");
    let refused = output(&mut stage.demo(&["--threads", "1000"]));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.lines().count() == 1 && said.contains("--threads") && said.contains("256"), "{said}");
}

#[test]
fn the_demo_help_needs_no_build_and_names_every_option() {
    let stage = Stage::new("echo built >&2; exit 1");
    let help = output(&mut stage.demo(&["--help"]));
    assert!(help.status.success() && help.stderr.is_empty(), "{help:?}");
    let help = String::from_utf8(help.stdout).unwrap();
    let program = String::from_utf8(output(Command::new(example("stock")).arg("--help")).stdout).unwrap();
    let options: Vec<_> = program.split_whitespace().filter(|word| word.starts_with("--")).collect();
    assert!(options.len() > 7, "{program}");
    for option in options {
        let option = option.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
        assert!(help.contains(option), "{option} is not in the help of ./demo");
    }
}

#[test]
fn the_demo_without_a_server_says_what_to_do() {
    let stage = Stage::new("echo built >&2; exit 1");
    // Imitates a machine with a package manager, whose user has neither root nor sudo.
    for (program, script) in [("id", "echo 1000"), ("apt-get", "echo installed >&2; exit 1")] {
        stage.program(program, script);
    }
    for program in ["bash", "dirname", "sed", "cut"] {
        let path = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|folder| folder.join(program))
            .find(|path| path.is_file());
        std::os::unix::fs::symlink(path.expect(program), stage.programs().join(program)).unwrap();
    }
    let refused = output(stage.demo(&[]).env("PATH", stage.programs()));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.lines().count() == 1, "{said}");
    for words in ["no redis-server or valkey-server in PATH", "apt install redis-server", "set REDIS_URL"] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(refused.status.code(), Some(1));
}

/// The number of keys, except the entries of killed workers, which expire.
fn keys(server: &RedisServer) -> usize {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.admin()).unwrap();
    keys.retain(|key| !key.starts_with("leasehold_client:"));
    keys.len()
}

/// Waits until a worker is about to be killed, when most processes and keys exist.
fn is_being_struck(server: &RedisServer) {
    let mut admin = server.admin();
    let mut struck =
        || !redis::cmd("KEYS").arg("*:strike").query::<Vec<String>>(&mut admin).unwrap().is_empty();
    assert!(eventually(Duration::from_secs(30), &mut struck), "no worker was about to be killed");
}

const SMALL: [&str; 6] = ["--processes", "3", "--threads", "2", "--stock", "80"];

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// `./demo` with a replacement for `cargo` (a short shell script), and the built program.
struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(cargo: &str) -> Stage {
        let stage = Stage { folder: tempfile::tempdir().unwrap() };
        let built = stage.folder.path().join("release/examples");
        std::fs::create_dir_all(&built).unwrap();
        std::fs::create_dir_all(stage.programs()).unwrap();
        std::os::unix::fs::symlink(example("stock"), built.join("stock")).unwrap();
        stage.program("cargo", cargo);
        stage
    }

    fn programs(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.programs().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    fn demo(&self, arguments: &[&str]) -> Command {
        let mut demo = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/demo"));
        let path = std::env::var_os("PATH").unwrap();
        let path = std::env::join_paths([self.programs()].into_iter().chain(std::env::split_paths(&path)));
        demo.args(arguments).env("PATH", path.unwrap()).env("CARGO_TARGET_DIR", self.folder.path());
        demo.env_remove("REDIS_URL");
        demo
    }
}

/// The running example or script. Its process group identifies its workers.
struct Demo {
    child: Child,
    group: Pid,
    ended: bool,
}

impl Demo {
    fn start(server: &RedisServer, more: &[&str]) -> Demo {
        let mut demo = Command::new(example("stock"));
        demo.arg("--json").args(SMALL).args(more);
        Demo::of(demo.env("REDIS_URL", server.url()).env("LEASEHOLD_DEMO_SERVER", &server.binary().path))
    }

    fn of(command: &mut Command) -> Demo {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).spawn().unwrap();
        let group = Pid::from_child(&child);
        Demo { child, group, ended: false }
    }

    /// Returns standard output and success, and asserts that no process of the demo remains.
    fn finish(self) -> (String, bool) {
        let (out, said, status) = self.end();
        eprint!("{said}");
        (out, status.success())
    }

    fn end(mut self) -> (String, String, ExitStatus) {
        let (mut out, mut said) = (String::new(), String::new());
        let mut errors = self.child.stderr.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| errors.read_to_string(&mut said).unwrap());
            self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        });
        let status = self.child.wait().unwrap();
        assert!(test_kill_process_group(self.group).is_err(), "the demo left processes running: {said}");
        self.ended = true;
        (out, said, status)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // The group is killed only after a failed assertion: once the demo has ended, the group's number may
        // belong to another process.
        if !self.ended && kill_process_group(self.group, Signal::KILL).is_ok() {
            drop(self.child.wait());
        }
    }
}
