//! The parts of `./check` that compile for other systems, or run tests under wine.

use std::path::Path;

use crate::build::tested;
use crate::job::{Job, Run, path_of};

const WINDOWS: &str = "x86_64-pc-windows-gnu";
/// Part `package` checks packages for this target. The soak's part `release` builds for it and for x86_64.
const MUSL: &str = "aarch64-unknown-linux-musl";
/// Cargo's arguments for the crates of the workspace that users get.
const OURS: &str = "--locked --workspace --exclude xtask --all-features";

/// Whether the compiler has that system's standard library. If not, prints that the check is skipped:
/// nothing installs the library, and its lack is no failure, not even in CI.
fn has(job: &Job<'_>, target: &str) -> bool {
    let asked = Run::new("rustc").args(["--print", "target-libdir", "--target", target]);
    let has = job.answer(&asked).is_some_and(|folder| Path::new(&folder).is_dir());
    if !has {
        job.say(&format!("SKIPPED compiling for {target}: rustup target add {target}"));
    }
    has
}

/// The command with settings for another system. A check links nothing, so a script that creates empty files
/// replaces the C compiler.
fn checked_for(target: &str, run: Run) -> Run {
    let stand_in = std::path::absolute("scripts/no-compiler.sh").unwrap_or_default().display().to_string();
    let name = target.replace('-', "_");
    let run = run.with("CARGO_BUILD_TARGET", target).with(&format!("CC_{name}"), stand_in);
    run.with(&format!("AR_{name}"), "ar")
}

/// The command, for musl if the compiler can. Fetches missing crates first, since the command is offline.
pub fn on_musl(job: &Job<'_>, run: Run) -> Run {
    let can = has(job, MUSL) && job.cargo(&format!("fetch --locked --target {MUSL}"));
    if can { checked_for(MUSL, run) } else { run }
}

/// Checks the library with all features, and the program, for Windows.
pub fn targets(job: &Job<'_>) -> bool {
    !has(job, WINDOWS)
        || job.run(&checked_for(WINDOWS, Run::cargo(&format!("check {OURS} --lib --bins")))).good
}

/// Runs tests that need no Unix, built for Windows, under wine: unit tests, contracts on memory and Redis,
/// some tests of stores, and tests of the program. SQLite's file is too slow there for the contracts.
pub fn windows(job: &Job<'_>) -> bool {
    let needs = [
        ("wine", path_of("wine").is_some(), "apt-get install wine wine64"),
        (
            "a C compiler for Windows",
            path_of("x86_64-w64-mingw32-gcc").is_some(),
            "apt-get install gcc-mingw-w64-x86-64",
        ),
        ("the target", has(job, WINDOWS), "rustup target add x86_64-pc-windows-gnu"),
    ];
    for (what, is_there, how) in needs {
        if !is_there {
            return job.skipped(&format!("the tests under wine, for want of {what}: {how}"));
        }
    }
    let prefix = std::path::absolute(job.gate.target.join("wine")).unwrap_or_default().display().to_string();
    // All tests wait for wine's server. With more of them at a time, some exceed their time limits.
    const THREADS: &str = "--test-threads=4";
    // Suppresses wine's messages, and its offers to install .NET and HTML.
    let job = job.also().with_limit(3600).with("WINEPREFIX", &*prefix).with("WINEDEBUG", "-all");
    let job = job.with("WINEDLLOVERRIDES", "mscoree,mshtml=");
    let library = format!("{prefix}/drive_c/windows/system32/bcryptprimitives.dll");
    let compile = format!("-shared -O1 -o {library} tests/support/wine/bcryptprimitives.c -ladvapi32");
    let made = job.run(&Run::new("wine").args(["wineboot", "--init"])).good
        && job.run(&Run::new("x86_64-w64-mingw32-gcc").args(compile.split_whitespace())).good;
    if !made {
        return job.failed("wine cannot be set up");
    }
    let test = |arguments: &str| {
        let cargo = format!("scripts/with-redis.sh cargo test {OURS} --target {WINDOWS} {arguments}");
        let run = Run::new("bash").args(cargo.split_whitespace()).args([THREADS]);
        tested(&job, run.with("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", "wine"))
    };
    test("--lib --bins --")
        & test("--test contract -- ::memory ::redis")
        & test("--test stores -- files:: memory:: memory_faults::")
        & test("--test anywhere --")
}
