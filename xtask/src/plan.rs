//! The parts of the gate, and their order.

use crate::job::Job;
use crate::{build, elsewhere, parts, suites};

/// The first parts, which run at the same time as part `build`; all other parts begin after these
/// and `build`.
pub const TOOLS: &[&str] = &["tools", "format", "shell"];
/// The parts with test programs, the longest first, and `toolchain`. They run in [`LANES`] lanes: a lane
/// takes the next part when it has finished one. Most tests wait, for leases and for each other, so a lane
/// runs [`TESTS_PER_PROCESSOR`] tests at a time for each processor. With two lanes, a quarter of the
/// processors' time was unused.
pub const TESTS: &[&str] = &[
    "stores",
    "interop",
    "topologies",
    "faults",
    "cli",
    "contract",
    "architecture",
    "contract-memory",
    "redis",
    "demo",
    "unit-redis",
    "unit",
    "support",
    "toolchain",
];
pub const LANES: usize = 3;
/// The parts that compile. One lane runs them, since two compilations beside the tests would keep a test's
/// threads from the processors for seconds. When no part of [`TESTS`] is left to start, idle lanes help.
pub const BUILD: &[&str] =
    &["clippy", "docs", "doc-tests", "compile", "targets", "package", "deny", "deploying", "model"];
/// The parts that measure how soon a waiter is woken. They run last, when nothing else runs, since their
/// bounds grow with the load (`tests/README.md`), so on a busy machine they show little.
pub const TIMED: &[&str] = &["timed"];
/// How many tests a test program runs at a time, for each processor: several, since tests mostly wait.
pub const TESTS_PER_PROCESSOR: usize = 3;
/// The parts of `./check quick`, which need no server.
pub const QUICK: &[&str] = &[
    "format",
    "shell",
    "toolchain",
    "build",
    "unit",
    "architecture",
    "contract-memory",
    "clippy",
    "compile",
    "docs",
    "doc-tests",
];
/// The parts that run only when named, or in the soak ([`SOAK`]).
pub const EXTRA: &[&str] = &[
    "coverage",
    "mysql",
    "servers",
    "minimal",
    "web",
    "bench",
    "semver",
    "unit-plain",
    "proof",
    "sabotage",
    "histories",
    "fuzz",
    "under-systemd",
    "fleet",
    "versions",
    "release",
    "windows",
];
pub const SOAK: &[&str] = &[
    "histories",
    "topologies",
    "interop",
    "faults",
    "cli",
    "model",
    "stores",
    "mysql",
    "timed",
    "servers",
    "web",
    "bench",
    "unit-plain",
    "proof",
    "sabotage",
    "fuzz",
    "under-systemd",
    "fleet",
    "versions",
    "release",
    "windows",
];

pub type Work = fn(&Job<'_>) -> bool;

const PARTS: &[(&str, Work)] = &[
    ("format", parts::format),
    ("shell", parts::shell),
    ("tools", parts::tools),
    ("build", suites::part_build),
    ("unit", parts::unit),
    ("architecture", |job| suites::of_part(job, "architecture", &[])),
    ("contract-memory", parts::contract_memory),
    ("support", |job| suites::of_part(job, "support", &[])),
    ("unit-redis", parts::unit_redis),
    ("contract", parts::contract),
    ("servers", parts::servers),
    ("redis", |job| suites::on_each_server(job, |job| suites::of_part(job, "redis", &[]))),
    ("topologies", parts::topologies),
    ("stores", parts::stores),
    ("mysql", parts::mysql),
    ("interop", |job| suites::of_part(job, "interop", &[])),
    ("faults", |job| suites::of_part(job, "faults", &[])),
    ("timed", suites::timed),
    ("demo", |job| suites::of_part(job, "demo", &[])),
    ("cli", parts::cli),
    ("toolchain", build::toolchain),
    ("model", build::model),
    ("clippy", build::clippy),
    ("docs", build::docs),
    ("doc-tests", build::doc_tests),
    ("compile", build::compile),
    ("targets", elsewhere::targets),
    ("package", build::package),
    ("deny", build::deny),
    ("deploying", parts::deploying),
    ("coverage", parts::coverage),
    ("minimal", build::minimal),
    ("web", parts::web),
    ("bench", parts::bench),
    ("semver", build::semver),
    ("unit-plain", parts::unit_plain),
    ("proof", parts::proof),
    ("sabotage", |job| parts::sabotage(job, &[])),
    ("histories", parts::histories),
    ("fuzz", parts::fuzz),
    ("under-systemd", parts::under_systemd),
    ("fleet", parts::fleet),
    ("versions", parts::versions),
    ("release", parts::release),
    ("windows", elsewhere::windows),
];

/// All parts of the gate, in the order of the summary.
pub fn full() -> impl Iterator<Item = &'static str> {
    [TOOLS, &["build"], TESTS, BUILD, TIMED].into_iter().flatten().copied()
}

pub fn is_part(name: &str) -> bool {
    work_of(name).is_some()
}

pub fn work_of(name: &str) -> Option<Work> {
    PARTS.iter().find(|(part, _)| *part == name).map(|(_, work)| *work)
}

/// Whether the part runs test programs, which are built first.
pub fn needs_tests(part: &str) -> bool {
    part != "toolchain" && [TESTS, TIMED].iter().any(|lane| lane.contains(&part))
        || ["docs", "histories", "mysql", "servers", "under-systemd", "fleet", "versions"].contains(&part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_check_part_is_forgotten_or_listed_twice() {
        let listed: Vec<_> = full().chain(EXTRA.iter().copied()).collect();
        for (part, _) in PARTS {
            assert_eq!(listed.iter().filter(|name| *name == part).count(), 1, "{part}");
        }
        for part in listed.iter().chain(QUICK).chain(SOAK) {
            assert!(is_part(part), "{part}");
        }
    }

    #[test]
    fn the_check_parts_that_run_tests_wait_for_the_build() {
        for part in crate::suites::SUITES.iter().map(|suite| suite.part) {
            assert!(needs_tests(part), "{part}");
        }
        for part in ["unit", "unit-redis"] {
            assert!(needs_tests(part), "{part}");
        }
        for part in ["clippy", "model", "format", "build", "proof"] {
            assert!(!needs_tests(part), "{part}");
        }
    }
}
