//! The parts of `./check` that build, lint and pack.

use std::fs;
use std::path::Path;

use crate::elsewhere;
use crate::job::{Job, Run, path_of};
use crate::output::{between, ran_a_test};
use crate::suites;

/// Lints the library without its tests, whose dependencies could turn on a feature that the library needs but
/// does not ask for.
const LINTED: &str = "--lib --no-default-features";
/// Feature combinations that only need to compile: each store alone, and all features that are no store.
const CHECKED: &[&str] =
    &["redis", "tls,tracing,metrics,tokio,serde", "etcd", "zookeeper", "postgres", "mysql", "sqlite"];
const TESTS: &str = "test --locked --workspace --all-features --no-run";

/// Cargo with clippy as the compiler of the workspace's own crates, so that one pass compiles and lints.
/// Commands that share built crates use this function, since cargo rebuilds what another compiler built.
/// Without clippy this is plain cargo.
pub fn compiled_by_clippy(arguments: &str) -> Run {
    let has_clippy = std::process::Command::new("clippy-driver").arg("--version").output();
    let run = Run::cargo(arguments);
    if has_clippy.is_ok_and(|output| output.status.success()) {
        run.with("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
    } else {
        run
    }
}

pub fn clippy(job: &Job<'_>) -> bool {
    let mut good = true;
    job.say(&format!("-- {LINTED}"));
    good &= job.cargo(&format!("clippy --locked {LINTED} -- -D warnings"));
    job.say("-- all that is built for the tests, and the benchmarks");
    for what in [TESTS.to_owned(), format!("{TESTS} --benches")] {
        // `-D warnings` would end the build, so this looks for warnings in cargo's output.
        good &= passes_without_warnings(job, compiled_by_clippy(&what));
    }
    good
}

/// Cargo repeats the warnings of crates that are already built, so these count too.
fn passes_without_warnings(job: &Job<'_>, run: Run) -> bool {
    let came = job.run(&run.with("CARGO_TERM_COLOR", "never"));
    came.good && !came.output.lines().any(|line| line.starts_with("warning: "))
}

pub fn compile(job: &Job<'_>) -> bool {
    let mut good = true;
    for features in CHECKED {
        job.say(&format!("-- {features}"));
        let check = format!("check --locked --lib --no-default-features --features={features}");
        good &= passes_without_warnings(job, Run::cargo(&check));
    }
    job.say("-- with every mutation");
    good & crate::parts::sabotage(job, &["--check"])
}

/// Renders the documentation as docs.rs does, and checks it.
pub fn docs(job: &Job<'_>) -> bool {
    let here = std::env::current_dir().unwrap_or_default();
    let run = Run::cargo("doc --locked --no-deps --workspace --all-features --lib")
        .with("RUSTDOC", here.join("scripts/rustdoc.sh").display().to_string())
        .with("RUSTDOCFLAGS", "--cfg docsrs -D warnings");
    if !job.run(&run).good {
        return false;
    }
    let rendered = job.gate.target.join("doc/leasehold").display().to_string();
    suites::of_part(&job.also().with("LEASEHOLD_DOC", rendered), "docs", &[])
}

/// Runs the doc tests with the features of the other tests, so cargo rebuilds nothing.
pub fn doc_tests(job: &Job<'_>) -> bool {
    tested(job, compiled_by_clippy("test --locked --workspace --all-features --doc"))
}

/// Runs `cargo test`, and fails if no test ran.
pub fn tested(job: &Job<'_>, run: Run) -> bool {
    let came = job.run(&run);
    came.good && (ran_a_test(&came.output) || job.failed("no test was run"))
}

/// Checks that this toolchain is not below the minimum in Cargo.toml, that no crate occurs twice, and that
/// the library compiles with the minimum.
pub fn toolchain(job: &Job<'_>) -> bool {
    let manifest = fs::read_to_string("Cargo.toml").unwrap_or_default();
    let stated = between(&manifest, "\nrust-version = \"", "\"").unwrap_or_default();
    let here = job.answer(&Run::new("rustc").args(["--version"])).unwrap_or_default();
    let here = here.split(' ').nth(1).unwrap_or_default();
    job.say(&format!("rust-version = {stated}, this is {here}"));
    if stated.is_empty() || version(stated) > version(here) {
        return false;
    }
    let good = no_crate_twice(job);
    let toolchains = Run::new("rustup").args(["toolchain", "list"]);
    let has = path_of("rustup").and_then(|_| job.answer(&toolchains));
    // `./check` installs no missing toolchain, since its duration must not depend on a download.
    if !has.is_some_and(|list| list.lines().any(|line| line.starts_with(stated))) {
        // A missing toolchain is no failure, even in CI: GitHub's job `msrv` compiles with it.
        job.say(&format!(
            "SKIPPED compiling with Rust {stated}: rustup toolchain install {stated} --profile minimal"
        ));
        return good;
    }
    // Only GitHub's job `msrv` compiles the databases with this toolchain, because their drivers take long.
    let run = Run::cargo(&format!("+{stated} check --locked --lib --features=tls,etcd,zookeeper,tracing"));
    good & job.run(&run.with("CARGO_TARGET_DIR", job.gate.target.join("msrv").display().to_string())).good
}

fn version(text: &str) -> Vec<u32> {
    let number = |part: &str| {
        part.split(|one: char| !one.is_ascii_digit()).next().and_then(|digits| digits.parse().ok())
    };
    text.split('.').map_while(number).collect()
}

/// Checks that without features a user compiles only one version of each crate.
fn no_crate_twice(job: &Job<'_>) -> bool {
    let tree = Run::cargo("tree --locked --duplicates --edges=normal --no-default-features --quiet");
    let came = job.run(&tree.silent());
    came.good && came.output.trim().is_empty()
        || job.failed(&format!("crates that are there twice:\n{}", came.output))
}

/// The path in a form that cargo accepts from every folder.
fn absolute(path: &Path) -> String {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Runs the models: tests in which the crate shuttle chooses which thread runs next. They are a package by
/// themselves, because the library uses shuttle's mutexes there, and the dependencies of the other tests take
/// longer to build than the models run.
pub fn model(job: &Job<'_>) -> bool {
    let copy = job.gate.target.join("model/package");
    let manifest = fs::read_to_string("Cargo.toml").unwrap_or_default();
    let made = fs::create_dir_all(&copy).and_then(|()| match fs::remove_dir_all(copy.join("src")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => fs::write(copy.join("Cargo.toml"), manifest_of_the_model(&manifest)),
    });
    if let Err(error) = made {
        return job.failed(&format!("{}: {error}", copy.display()));
    }
    let there = copy.display().to_string();
    if !job.run(&Run::new("cp").args(["-R", "src", "README.md", "Cargo.lock", &there])).good {
        return false;
    }
    let build = job
        .also()
        .with_limit(2700)
        .with(
            "RUSTFLAGS",
            format!("{} --cfg leasehold_shuttle", job.variable("RUSTFLAGS").unwrap_or_default()),
        )
        .with("CARGO_TARGET_DIR", absolute(&job.gate.target.join("model")));
    // `update --workspace` keeps all versions; it only removes crates that this package does not need.
    build.run(&Run::cargo("update --workspace").within(&copy)).good
        && tested(
            &build,
            Run::cargo("test --locked --profile model --lib -- --show-output model::").within(&copy),
        )
}

fn manifest_of_the_model(manifest: &str) -> String {
    let mut skips = false;
    let mut kept = String::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            skips = ["[dev-dependencies]", "[[", "[workspace]"].iter().any(|start| line.starts_with(start));
        }
        if !skips {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    let tempfile = manifest.lines().find(|line| line.starts_with("tempfile = ")).unwrap_or_default();
    format!("{kept}[dev-dependencies]\n{tempfile}\n[workspace]\n")
}

/// Packs both crates as for publishing. The program depends on a version of the library that no registry has
/// yet, so cargo takes the library from this workspace.
pub fn package(job: &Job<'_>) -> bool {
    let status = job.answer(&Run::new("git").args(["status", "--porcelain"])).unwrap_or_default();
    let packed = "package --locked --no-verify -p leasehold -p leasehold-cli";
    let mut run = Run::cargo(packed).with("CARGO_TERM_COLOR", "never");
    if !status.is_empty() {
        job.say("uncommitted changes: packaged with --allow-dirty");
        run = run.args(["--allow-dirty"]);
    }
    let came = job.run(&run);
    if !came.good || came.output.lines().any(|line| line.starts_with("warning")) {
        return false;
    }
    // `cargo package` would compile all dependencies again, so this script compiles the packed crates. It
    // unpacks into the same folder each time, because cargo rebuilds crates of another path. The patch
    // replaces the library of crates.io, which the program's Cargo.lock names.
    let unpacked = r#"folder=${TMPDIR:-/tmp}/leasehold-package-$(cksum <<<"$PWD" | cut -d' ' -f1)
        rm -rf "$folder" && mkdir -p "$folder" || exit 1
        trap 'rm -rf "$folder"' EXIT
        for crate in "leasehold-$2" "leasehold-cli-$2"; do
            tar -xzf "$1/package/$crate.crate" -C "$folder" || exit 1
            for file in README.md LICENSE-MIT LICENSE-APACHE; do
                [ -s "$folder/$crate/$file" ] || { echo "$crate has no $file" && exit 1; }
            done
        done
        cd "$folder/leasehold-cli-$2" && cargo check --offline --config "patch.crates-io.leasehold.path='../leasehold-$2'""#;
    let target = absolute(&job.gate.target);
    let manifest = fs::read_to_string("Cargo.toml").unwrap_or_default();
    let version = between(&manifest, "\nversion = \"", "\"").unwrap_or_default();
    let unpacked = Run::new("bash").args(["-c", unpacked, "bash", &target, version]);
    job.run(&elsewhere::on_musl(job, unpacked.with("CARGO_TARGET_DIR", &target))).good
}

/// Compiles with the lowest versions that Cargo.toml allows, in a copy without test dependencies, which would
/// raise the versions. `RUSTC_BOOTSTRAP` allows cargo's unstable option for this.
pub fn minimal(job: &Job<'_>) -> bool {
    let copy = job.gate.target.join("minimal");
    let copied = r#"rm -rf "$1" && mkdir -p "$1" && git ls-files -z | tar --null --files-from=- -cf - | tar -xf - -C "$1" &&
        awk '/^\[/ { skip = /dev-dependencies/ } !skip' Cargo.toml >"$1/Cargo.toml" && rm "$1/Cargo.lock""#;
    if !job.run(&Run::new("bash").args(["-c", copied, "bash", &copy.display().to_string()])).good {
        return false;
    }
    let folder = copy.clone();
    let of_minimum = move |run: Run, target: String| run.within(&folder).with("CARGO_TARGET_DIR", target);
    let target = format!("{}/msrv", absolute(&job.gate.target));
    let update = Run::cargo("update -Z direct-minimal-versions").with("RUSTC_BOOTSTRAP", "1");
    job.run(&of_minimum(update, target.clone())).good
        && ["--no-default-features", "--all-features"].iter().all(|features| {
            let check = Run::cargo(&format!("check --locked --lib {features}"));
            job.run(&of_minimum(check, target.clone())).good
        })
}

/// Checks dependencies: licences, sources, duplicates, and known vulnerabilities if their list can be had.
pub fn deny(job: &Job<'_>) -> bool {
    let Some(program) = job.answer(&Run::servers("servers_ensure_deny")) else {
        return job.skipped("cargo-deny, and with it what is said of dependencies");
    };
    let folder = Path::new(&program).parent().unwrap_or(Path::new("."));
    let paths = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let deny = |arguments: &str| job.run(&Run::cargo(arguments).with("PATH", &paths)).good;
    deny("deny --version");
    let mut known = "bans licenses sources".to_owned();
    if deny("deny fetch") {
        known.push_str(" advisories");
    } else {
        job.say(
            "the list of advisories cannot be fetched from here: nothing is said of known vulnerabilities",
        );
    }
    deny(&format!("deny --workspace --locked check {known}"))
}

pub fn semver(job: &Job<'_>) -> bool {
    let tags = Run::new("git").args(["tag", "--list", "v[0-9]*", "--sort=-version:refname"]);
    let tags = job.answer(&tags).unwrap_or_default();
    let Some(last) = tags.lines().next().filter(|last| !last.is_empty()) else {
        job.say(
            "SKIPPED the comparison with the last release, of which there is none. With one: \
             cargo semver-checks --package leasehold --all-features --baseline-rev v0.1.0",
        );
        return true;
    };
    if !job.run(&Run::cargo("semver-checks --version").silent()).good {
        return job.skipped(&format!(
            "cargo semver-checks (cargo install cargo-semver-checks --locked), and with it the comparison with {last}"
        ));
    }
    job.cargo(&format!("semver-checks --package leasehold --all-features --baseline-rev {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(version("1.89") < version("1.95.0"));
        assert!(version("1.100.0-nightly") > version("1.89"));
    }

    #[test]
    fn the_model_package_gets_no_unused_test_dependencies() {
        let manifest = "[workspace]\nmembers = [\"cli\"]\n[package]\nname = \"a\"\n[dependencies]\nb = \"1\"\n\
            [dev-dependencies]\nclap = \"4\"\ntempfile = \"3\"\n[[bench]]\nname = \"c\"\n\
            [target.'cfg(leasehold_shuttle)'.dev-dependencies]\nshuttle = \"0.9\"\n[profile.model]\nopt-level = 0\n";
        assert_eq!(
            manifest_of_the_model(manifest),
            "[package]\nname = \"a\"\n[dependencies]\nb = \"1\"\n\
            [target.'cfg(leasehold_shuttle)'.dev-dependencies]\nshuttle = \"0.9\"\n[profile.model]\nopt-level = 0\n\
            [dev-dependencies]\ntempfile = \"3\"\n[workspace]\n"
        );
    }
}
