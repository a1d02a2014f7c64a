//! The examples of docs/command-line.md on each store, without `once` or `--fair` where the store lacks it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::secured::{Certificates, Secured};
use crate::world::{Server, eventually, outcome};

struct Listed {
    name: &'static str,
    variables: Vec<(&'static str, String)>,
    lacks: &'static [&'static str],
}

#[test]
fn the_examples_of_the_command_line_page_work_on_each_store() {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command-line.md")).unwrap();
    let section = page.split("\n## ").find(|part| part.starts_with("Examples\n")).unwrap();
    let certificates = Certificates::make();
    let (redis, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let secured = |url: String, user: &str| {
        let names = ["LEASEHOLD_TLS_CA", "LEASEHOLD_TLS_CERT", "LEASEHOLD_TLS_KEY"];
        let mut variables: Vec<_> = names.into_iter().zip(certificates.right()).collect();
        variables.extend([("LEASEHOLD_URL", url), ("LEASEHOLD_CREATE_SCHEMA", "yes".to_owned())]);
        variables.extend((!user.is_empty()).then(|| ("LEASEHOLD_USERNAME", user.to_owned())));
        variables
    };
    let file = format!("sqlite://{}", folder.path().join("locks.db").display());
    let plain = |url: String| vec![("LEASEHOLD_URL", url)];
    let mut all = vec![
        Listed { name: "Redis", variables: plain(redis.url()), lacks: &[] },
        Listed { name: "SQLite", variables: plain(file), lacks: &["--fair"] },
    ];
    let etcd = Secured::etcd(&certificates);
    if let Some(server) = &etcd {
        let url = server.url("etcds", "");
        let answers = || outcome(&mut certificates.program(&url, &["show", "job"])).0 == 0;
        eventually("etcd has a leader", answers);
        let variables =
            secured(url.clone(), "").into_iter().filter(|(name, _)| *name != "LEASEHOLD_CREATE_SCHEMA");
        all.push(Listed { name: "etcd", variables: variables.collect(), lacks: &["once"] });
    }
    let postgres = Secured::postgres(&certificates);
    if let Some(server) = &postgres {
        let variables = secured(server.url("postgres", "/postgres"), "client");
        all.push(Listed { name: "PostgreSQL", variables, lacks: &["--fair"] });
    }
    for store in &all {
        examples(store, section);
    }
}

fn examples(store: &Listed, section: &str) {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    for name in ["migrate", "shop", "deploy.sh", "scheduler", "report.sh"] {
        let script = folder.path().join(name);
        fs::write(&script, format!("#!/bin/sh\necho {name} >> {}\n", ran.display())).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap().display().to_string();
    let shell = |line: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(folder.path()).env_clear();
        shell.env("PATH", format!("{program}:/usr/bin:/bin")).envs(store.variables.iter().cloned());
        shell.env("LEASEHOLD_CONNECT_TIMEOUT", "50s").env("LEASEHOLD_COMMAND_TIMEOUT", "20s");
        let (code, said) = outcome(&mut shell);
        assert_eq!(code, 0, "{}: {line}: {said}", store.name);
    };
    let blocks = |kind: &str| -> Vec<&str> {
        let begins = format!("```{kind}\n");
        section.split(&begins).skip(1).map(|block| block.split("```").next().unwrap()).collect()
    };
    let lacks = |word: &str| store.lacks.contains(&word);
    let mut expected = Vec::new();
    if !lacks("once") {
        let [crontab] = blocks("crontab")[..] else { panic!("{section}") };
        let line = crontab.lines().find(|line| line.contains("leasehold once")).unwrap();
        shell(&line.splitn(6, ' ').nth(5).unwrap().trim_start().replace("/opt/report.sh", "./report.sh"));
        expected.push("report.sh");
    }
    let [migration, deploy, elected, shown] = blocks("sh")[..] else { panic!("{section}") };
    shell(migration);
    shell(&if lacks("--fair") { deploy.replace(" --fair", "") } else { deploy.to_owned() });
    shell(elected);
    shell(shown.lines().next().unwrap());
    expected.extend(["migrate", "shop", "deploy.sh", "scheduler"]);
    assert_eq!(fs::read_to_string(&ran).unwrap().lines().collect::<Vec<_>>(), expected, "{}", store.name);
}
