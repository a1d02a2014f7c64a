//! The parts for systems that are not this one: what is compiled for them, and what runs under wine.

use std::path::Path;

use crate::build::tested;
use crate::job::{Job, Run, path_of};

const WINDOWS: &str = "x86_64-pc-windows-gnu";
const TARGETS: &[&str] = &[WINDOWS, "x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"];
/// Everything of the workspace that users get.
const OURS: &str = "--locked --workspace --exclude xtask --all-features";

/// Whether the compiler has the standard library of that system.
fn has(job: &Job<'_>, target: &str) -> bool {
    let asked = Run::new("rustc").args(["--print", "target-libdir", "--target", target]);
    job.answer(&asked).is_some_and(|folder| Path::new(&folder).is_dir())
}

/// The library with all features and the program, checked for the other systems by one cargo: what runs while
/// it compiles is built once. Nothing is linked, so nothing needs a C compiler for them: a script that makes
/// empty files stands for it, and for the archiver's input too.
pub fn targets(job: &Job<'_>) -> bool {
    let (there, missing): (Vec<&str>, Vec<&str>) = TARGETS.iter().partition(|target| has(job, target));
    for target in missing {
        // Not fetched, and no failure: as with the toolchain of the stated minimum.
        job.say(&format!("SKIPPED compiling for {target}: rustup target add {target}"));
    }
    if there.is_empty() {
        return true;
    }
    let stand_in = std::path::absolute("scripts/no-compiler.sh").unwrap_or_default().display().to_string();
    let mut run = Run::cargo(&format!("check {OURS} --lib --bins"));
    for target in there {
        let name = target.replace('-', "_");
        run = run.args(["--target", target]);
        run = run.with(&format!("CC_{name}"), &*stand_in).with(&format!("AR_{name}"), "ar");
    }
    job.run(&run).good
}

/// The tests that need no Unix, as programs for Windows under wine: the unit tests, the contracts on memory, on
/// SQLite and on a Redis of this machine, and the program.
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
    let threads = &job.gate.threads;
    let under_wine = |arguments: &str| {
        let cargo = format!("scripts/with-redis.sh cargo test {OURS} --target {WINDOWS} {arguments}");
        let run = Run::new("bash").args(cargo.split_whitespace()).args([format!("--test-threads={threads}")]);
        let run = run.with("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", "wine").with("WINEPREFIX", &*prefix);
        // Neither its own words, nor a question for what .NET and HTML would need.
        run.with("WINEDEBUG", "-all").with("WINEDLLOVERRIDES", "mscoree,mshtml=")
    };
    let job = job.also().with_limit(3600);
    tested(&job, under_wine("--lib --bins --"))
        & tested(&job, under_wine("--test contract -- memory:: redis:: sqlite:: every_store no_contract"))
        & tested(&job, under_wine("--test anywhere --"))
}
