//! Where the store's URL comes from, and the errors when the server does not match the URL.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;

use crate::world::{Run, Server, ends, eventually, leasehold, outcome, server_program};

fn write(file: &Path, text: &str, mode: u32) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
}

fn at_home(home: &Path, arguments: &[&str]) -> Command {
    let mut command = leasehold(arguments);
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME");
    command
}

#[test]
fn the_default_url_file_yields_to_variables_and_options() {
    let (server, other) = (Server::start(), Server::start());
    let home = server.path("home");
    let said = ends(&mut at_home(&home, &["ls"]), 64, "LEASEHOLD_URL");
    assert!(said.contains("/etc/leasehold/url"), "{said}");
    write(
        &home.join(".config/leasehold/url"),
        &format!("# the locks of this host\n\n  {}  \n", server.url()),
        0o644,
    );
    assert_eq!(outcome(&mut at_home(&home, &["run", "job", "true"])), (0, String::new()));
    let own = server.path("own");
    write(&own.join("leasehold/url"), "redis://127.0.0.1:1", 0o600);
    let mut nearer = at_home(&home, &["run", "-n", "job", "true"]);
    assert_eq!(outcome(nearer.env("XDG_CONFIG_HOME", &own)).0, 69);
    assert_eq!(outcome(nearer.env("LEASEHOLD_URL", other.url())).0, 0);
    let mut option = at_home(&home, &["--url", &other.url(), "run", "-n", "job", "true"]);
    assert_eq!(outcome(option.env("XDG_CONFIG_HOME", &own)).0, 0);
}

#[test]
fn a_world_readable_password_file_causes_a_warning() {
    let server = Server::start();
    server.ask(&["CONFIG", "SET", "requirepass", "S3CR3T"]);
    let url = server.url().replace("redis://", "redis://:S3CR3T@");
    let home = server.path("home");
    let file = home.join(".config/leasehold/url");
    write(&file, &url, 0o644);
    let ask = |arguments: &[&str]| outcome(&mut at_home(&home, arguments));
    for arguments in [&["run", "job", "true"][..], &["ls"], &["show", "job"], &["clients"]] {
        let (code, said) = ask(arguments);
        assert!(
            code == 0 && said.contains("every user of this machine can read it"),
            "{arguments:?}: {said}"
        );
        assert!(said.contains(&file.display().to_string()) && !said.contains("S3CR3T"), "{said}");
    }
    let (_, said) = ask(&["doctor"]);
    let line = said.lines().find(|line| line.contains(" secrets ")).expect(&said);
    assert!(line.starts_with("warning"), "{line}");
    write(&file, &url, 0o600);
    assert!(!ask(&["ls"]).1.contains("can read it"));
    let word = server.path("password");
    write(&word, "S3CR3T\n", 0o604);
    let mut beside = server.leasehold(&["ls"]);
    ends(beside.env("LEASEHOLD_PASSWORD_FILE", &word), 0, "can read it");
    if !geteuid().is_root() {
        write(&file, &url, 0);
        assert!(ask(&["ls"]).1.contains("cannot be read"));
    }
}

#[test]
fn run_prints_a_warning_about_settings_once_per_runtime_folder() {
    let server = Server::start();
    let folder = server.path("run");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let with = |arguments: &[&str]| {
        let mut command = server.leasehold(arguments);
        command.env("XDG_RUNTIME_DIR", &folder);
        command
    };
    // A run may end before the client's callback thread prints the warning, so the test repeats the run.
    let mut said = String::new();
    eventually("the warning is printed", || {
        said += &outcome(&mut with(&["run", "--lease", "2s", "job", "--", "sleep", "0.2"])).1;
        said.contains("longer than the lease")
    });
    for _ in 0..3 {
        said += &outcome(&mut with(&["run", "--lease", "2s", "job", "--", "sleep", "0.2"])).1;
    }
    assert_eq!(said.matches("longer than the lease").count(), 1, "{said}");
    let doctor = || outcome(&mut with(&["doctor", "--lease", "2s"])).1;
    for _ in 0..2 {
        let said = doctor();
        let line = said.lines().find(|line| line.contains(" lease ")).expect(&said);
        assert!(line.starts_with("warning") || line.starts_with("fault"), "{line}");
    }
}

#[test]
fn messages_contain_no_method_name_or_error_number() {
    let server = Server::start();
    server.ask(&["ACL", "SETUSER", "weak", "on", ">pw", "~*", "&*", "+ping", "+hello", "+client", "+info"]);
    let weak = server.url().replace("redis://", "redis://weak:pw@");
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &server.port().to_string()]);
    let closed = "redis://127.0.0.1:1";
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("redis://{}", silent.local_addr().unwrap());
    for (url, arguments, code, words) in [
        (&*server.url(), &["--ca", "/no/file", "run", "-n", "job", "true"][..], 64, "--ca was given"),
        (closed, &["run", "-n", "job", "true"], 69, "no server listens"),
        (&silent_url, &["run", "-n", "job", "true"], 69, "did not answer in time"),
        (&weak, &["run", "-n", "job", "true"], 77, "docs/permissions.md"),
        (&replica.url(), &["run", "-n", "job", "true"], 69, "name the server that takes writes"),
    ] {
        let mut command = leasehold(arguments);
        let limits = [("LEASEHOLD_CONNECT_TIMEOUT", "300ms"), ("LEASEHOLD_RETRY_TIMEOUT", "0s")];
        let said = ends(command.env("LEASEHOLD_URL", url).envs(limits), code, words);
        for wrong in [" failed:", "os error", "Resource temporarily", "_", "mount"] {
            assert!(!said.replace("LEASEHOLD_", "").contains(wrong), "{url}: {wrong}: {said}");
        }
    }
    let bad = [("LEASEHOLD_URL", &*silent_url), ("LEASEHOLD_LEASE", "soon")];
    let (code, said) = outcome(leasehold(&["ls"]).envs(bad));
    assert!(code == 64 && said.starts_with("leasehold: LEASEHOLD_LEASE cannot be used"), "{said}");
    drop(silent); // keeps the port open until here
}

#[test]
fn errors_say_whether_sentinel_or_server_needs_the_password() {
    let server = Server::start();
    let config = server.path("sentinel.conf");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let monitor = format!("sentinel monitor m 127.0.0.1 {} 1", server.port());
    fs::write(&config, format!("port {port}\nbind 127.0.0.1\nrequirepass S3CR3T\n{monitor}\n")).unwrap();
    let mut sentinel = Command::new(server_program());
    let _sentinel = Run::start(sentinel.arg(&config).arg("--sentinel").current_dir(server.dir.path()));
    eventually("the Sentinel listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let url = format!("redis-sentinel://127.0.0.1:{port}/m");
    ends(
        leasehold(&["run", "-n", "job", "true"]).env("LEASEHOLD_URL", &url),
        77,
        "LEASEHOLD_SENTINEL_PASSWORD",
    );
    let guarded = Server::start();
    guarded.ask(&["CONFIG", "SET", "requirepass", "S3CR3T"]);
    let (code, said) = guarded.outcome(&["run", "-n", "job", "true"]);
    assert!(code == 77 && said.contains("LEASEHOLD_PASSWORD") && !said.contains("SENTINEL"), "{said}");
}
