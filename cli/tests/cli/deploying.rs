//! The files of `docs/deploying`: each line of `leasehold` runs in the environment of its file. A short
//! script replaces the command that would run under the lock.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::site::Site;
use crate::world::{Server, ends, leasehold, outcome};

#[derive(Debug)]
struct Line {
    words: Vec<String>,
    variables: Vec<(String, String)>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/deploying")
}

fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for kind in fs::read_dir(folder()).unwrap() {
        for file in fs::read_dir(kind.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let name = path.strip_prefix(folder()).unwrap().display().to_string();
            files.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    files.sort();
    files
}

fn lines(name: &str, text: &str) -> Vec<Line> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let after = |start: &'static str| text.lines().filter_map(move |line| line.strip_prefix(start));
    let pair = |text: &str| {
        let (name, value) = text.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    };
    let mut found = Vec::new();
    if name.starts_with("systemd/") {
        let variables: Vec<_> = after("Environment=").map(pair).collect();
        found.extend(
            after("ExecStart=").map(|line| Line { words: words(line), variables: variables.clone() }),
        );
    } else if name.starts_with("cron/") {
        let is_variable = |line: &&str| line.starts_with("LEASEHOLD_");
        let variables: Vec<_> = text.lines().filter(is_variable).map(pair).collect();
        // A line of the system's crontab has five fields for the time, then the user, then the command.
        for line in
            text.lines().filter(|line| line.starts_with(|one: char| one.is_ascii_digit() || one == '*'))
        {
            found.push(Line { words: words(line).split_off(6), variables: variables.clone() });
        }
    } else {
        let commands = text.lines().filter_map(|line| line.trim().strip_prefix("command: "));
        for command in commands {
            let words: Vec<String> =
                serde_json::from_str(command).unwrap_or_else(|_| panic!("{name}: {command}"));
            let file = text.contains("LEASEHOLD_URL_FILE").then(|| "/a/file".to_owned());
            let variables = file.into_iter().map(|file| ("LEASEHOLD_URL_FILE".to_owned(), file)).collect();
            found.push(Line { words, variables });
        }
    }
    found.retain(|line| line.words[0].ends_with("leasehold"));
    found
}

#[test]
fn each_leasehold_command_in_the_deployment_files_succeeds() {
    let server = Server::start();
    let (url, ran) = (server.path("url"), server.path("ran"));
    fs::write(&url, format!("{}\n", server.url())).unwrap();
    let mut seen = 0;
    for (name, text) in files() {
        for line in lines(&name, &text) {
            seen += 1;
            let listen = |word: &str| match word {
                _ if word.contains("9478") => "0".to_owned(),
                _ if word.contains("9477") => "127.0.0.1:0".to_owned(),
                word => word.to_owned(),
            };
            if line.words[1] == "serve" {
                // `$OPTIONS` is left out, because the optional file that sets it does not exist.
                let words =
                    line.words[1..].iter().filter(|word| *word != "$OPTIONS").map(|word| listen(word));
                let words: Vec<String> = words.collect();
                let mut serve = leasehold(&["--format", "json"]);
                let site = Site::with(serve.args(words).env("LEASEHOLD_URL_FILE", &url));
                assert!(site.get("/metrics").body.contains("leasehold_store_up 1\n"), "{name}");
                continue;
            }
            let end = line.words.iter().position(|word| word == "--").unwrap();
            let words: Vec<String> = line.words[1..=end].iter().map(|word| listen(word)).collect();
            let mut run = leasehold(&words.iter().map(String::as_str).collect::<Vec<_>>());
            run.args(["sh", "-c", &format!("echo $LEASEHOLD_NAME >> {}", ran.display())]);
            for (variable, value) in &line.variables {
                run.env(
                    variable,
                    if variable == "LEASEHOLD_URL_FILE" { url.as_os_str() } else { value.as_ref() },
                );
            }
            let said = ends(run.env("LEASEHOLD_CONNECT_TIMEOUT", "50s"), 0, "");
            let name_of_lock = fs::read_to_string(&ran).unwrap_or_else(|_| panic!("{name}: {said}"));
            assert!(words.contains(&name_of_lock.trim().to_owned()), "{name}: {name_of_lock}");
            fs::remove_file(&ran).unwrap();
            let behind = &line.words[end + 1..];
            if behind[0] == "leasehold" {
                let rest: Vec<&str> =
                    behind[1..].iter().map(String::as_str).chain(["--for", "10ms"]).collect();
                server.ends(&rest, 0, "");
            }
            server.ask(&["FLUSHALL"]);
        }
    }
    assert_eq!(seen, 11, "lines of the files");
}

/// As under cron, only root can read the file with the URL, and the command runs as another user.
#[test]
fn the_job_of_the_crontab_cannot_read_the_url_file() {
    let server = Server::start();
    if !rustix::process::getuid().is_root() {
        return crate::world::skipped("the crontab's line is root's");
    }
    let (url, said) = (server.path("url"), server.path("said"));
    fs::write(&url, server.url()).unwrap();
    fs::set_permissions(&url, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(server.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&said, "").unwrap();
    fs::set_permissions(&said, fs::Permissions::from_mode(0o666)).unwrap();
    let report = server.path("report");
    let script = format!(
        "#!/bin/sh\n{{ id -un; cat \"$LEASEHOLD_URL_FILE\" || echo refused; }} > {} 2>/dev/null\n",
        said.display()
    );
    fs::write(&report, script).unwrap();
    fs::set_permissions(&report, fs::Permissions::from_mode(0o755)).unwrap();
    let crontab = fs::read_to_string(folder().join("cron/nightly-report")).unwrap();
    let line = crontab.lines().find(|line| line.starts_with("0 3 ")).unwrap();
    let line = line.splitn(6, ' ').nth(5).unwrap().trim_start().strip_prefix("root ").unwrap();
    let ours = [
        ("/usr/bin/leasehold", env!("CARGO_BIN_EXE_leasehold")),
        ("-u report", "-u nobody"),
        ("/usr/local/bin/report", &report.display().to_string()),
    ];
    let line = ours.iter().fold(line.to_owned(), |line, (file, ours)| {
        assert!(line.contains(file), "{line}");
        line.replace(file, ours)
    });
    let mut cron = Command::new("sh");
    cron.args(["-c", &line]).env_clear().env("PATH", "/usr/bin:/bin").env("LEASEHOLD_URL_FILE", &url);
    let (code, output) = outcome(cron.env("LEASEHOLD_CONNECT_TIMEOUT", "50s"));
    assert_eq!((code, &*output), (0, ""), "{line}");
    assert_eq!(fs::read_to_string(&said).unwrap(), "nobody\nrefused\n");
}

#[test]
fn every_probe_asks_for_a_path_that_is_served() {
    let mut seen = 0;
    for (name, text) in files() {
        for path in text.split("path: ").skip(1).filter_map(|rest| rest.split([',', '}', '\n']).next()) {
            let served = if text.contains("\"serve\"") { &["/"][..] } else { &["/leader", "/ready"] };
            assert!(served.contains(&path), "{name}: {path}");
            seen += 1;
        }
    }
    assert!(seen > 1, "{seen} probes");
}
