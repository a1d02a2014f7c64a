//! `./check changed`: the parts of the gate that test the changed files.

use std::process::Command;

use crate::plan;

/// The parts that test any change of the library.
const OF_ALL: &str = "unit architecture contract-memory contract unit-redis redis faults timed";

/// The parts that test a file: those of the first line with a pattern for its path. `ALL` is [`OF_ALL`].
const FILES: &[(&str, &str)] = &[
    ("scripts/rustdoc.sh", "shell docs"),
    ("scripts/deploying.sh", "shell deploying"),
    ("scripts/under_systemd.sh", "shell under-systemd"),
    ("scripts/fleet.sh", "shell fleet"),
    ("release scripts/release_* .github/workflows/release.yml", "shell release"),
    ("check demo bench scripts/* .ci/* .github/*", "shell"),
    ("xtask/*", "shell build unit clippy"),
    ("clippy.toml", "clippy"),
    ("rustfmt.toml", ""), // part `format`, which checks it, always runs
    ("deny.toml", "deny"),
    ("cli/*.md", "architecture cli"),
    ("cli/*", "clippy cli"),
    ("docs/deploying/*", "cli deploying under-systemd"),
    ("docs/operating/*", "architecture fleet"),
    ("docs/using-from-async.md", "architecture web"),
    ("tests/histories/*", "clippy support histories"),
    ("tests/proof/* docs/figures/proof.md", "architecture proof"),
    ("tests/interop/java/*", "interop proof"),
    ("tests/sabotage/*", "sabotage"),
    ("*.md docs/*", "architecture doc-tests"),
    ("src/stores/redis/lua/*", "clippy ALL topologies interop proof"),
    ("src/stores/redis/cluster/* src/topologies/*", "clippy unit architecture contract-memory topologies"),
    ("src/stores/redis/*", "clippy ALL topologies interop"),
    ("src/stores/memory/*", "clippy unit architecture contract-memory"),
    ("src/stores/*", "clippy unit architecture stores timed"),
    ("src/engine/* src/seam/* src/sync/*", "clippy ALL model topologies stores"),
    ("src/*", "clippy compile targets docs doc-tests ALL stores"),
    ("Cargo.*", "clippy compile targets docs doc-tests ALL stores cli toolchain minimal deny"),
    ("examples/web/*", "architecture web"),
    ("examples/* tests/meta/demo.rs tests/meta/examples.rs", "clippy demo"),
    ("benches/*", "clippy"),
    ("tests/contract/*", "clippy contract-memory contract topologies stores"),
    ("tests/faults/cuts_under_load.rs tests/stores/inspect.rs tests/meta/pages.rs", "clippy redis"),
    ("tests/faults/line_processes.rs tests/faults/wakeups.rs tests/stores/turnstile.rs", "clippy timed"),
    ("tests/faults/*", "clippy faults"),
    ("tests/interop/*", "clippy interop"),
    ("tests/topology/*", "clippy topologies"),
    ("tests/stores/memory*", "clippy architecture"),
    ("tests/stores/*", "clippy stores"),
    ("tests/meta/rendered.rs", "clippy docs"),
    ("tests/meta/support_selftest.rs", "clippy support"),
    ("tests/meta/*", "clippy architecture"),
    ("tests/support/*", "clippy support ALL topologies stores interop"),
];

/// The revision, and the parts that test the files changed since. By default: since the branch left main.
pub fn since(revision: Option<&str>) -> (String, Vec<&'static str>) {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    };
    let base =
        || git(&["merge-base", "HEAD", "origin/main"]).or_else(|| git(&["merge-base", "HEAD", "main"]));
    let revision = revision.map(str::to_owned).or_else(base).unwrap_or_else(|| "HEAD".to_owned());
    let changed = git(&["diff", "--name-only", &revision]).unwrap_or_default();
    let new = git(&["ls-files", "--others", "--exclude-standard"]).unwrap_or_default();
    let parts = parts_of(changed.lines().chain(new.lines()));
    (revision, parts)
}

/// The parts that test these files, in the order in which they run.
fn parts_of<'a>(files: impl Iterator<Item = &'a str>) -> Vec<&'static str> {
    let line = |file: &str| FILES.iter().find(|(paths, _)| paths.split(' ').any(|path| fits(path, file)));
    let mut named: Vec<&str> = vec!["format"];
    for (_, parts) in files.filter_map(line) {
        for part in parts.split(' ') {
            named.extend(if part == "ALL" { OF_ALL } else { part }.split(' '));
        }
    }
    plan::full().chain(plan::EXTRA.iter().copied()).filter(|part| named.contains(part)).collect()
}

fn fits(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((start, end)) => path.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(files: &[&str]) -> String {
        parts_of(files.iter().copied()).join(" ")
    }

    #[test]
    fn every_path_rule_refers_to_existing_check_parts() {
        for (paths, parts) in FILES.iter().chain(&[("", OF_ALL)]) {
            for part in parts.split(' ').filter(|part| !part.is_empty() && *part != "ALL") {
                assert!(plan::is_part(part), "{paths}: {part}");
            }
        }
    }

    #[test]
    fn a_changed_file_follows_the_first_matching_path_rule() {
        assert_eq!(parts(&["src/stores/sql/mod.rs"]), "format stores architecture unit clippy timed");
        assert_eq!(parts(&["docs/using-from-async.md"]), "format architecture web");
        assert_eq!(parts(&["docs/stores.md", "README.md"]), "format architecture doc-tests");
        assert_eq!(parts(&["cli/README.md"]), "format cli architecture");
        assert!(parts(&["Cargo.lock"]).contains("minimal"));
        assert_eq!(parts(&["rustfmt.toml", "LICENSE-MIT"]), "format");
    }

    #[test]
    fn a_changed_redis_script_selects_library_tests_and_the_proof() {
        for part in OF_ALL.split(' ').chain(["topologies", "interop", "proof"]) {
            assert!(
                parts(&["src/stores/redis/lua/lock.lua"]).split(' ').any(|named| named == part),
                "{part}"
            );
        }
    }
}
