//! The programs of `examples/`.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The path of an example, built with this test's features, or taken from `LEASEHOLD_EXAMPLES`, where
/// `./check` has built all.
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
    // With the test's features, or the library would be built again.
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
