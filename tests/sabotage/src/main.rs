//! Breaks the library in one place after another, and runs the cheapest tests that must notice each.
//!
//! `mutations/*.txt` lists the mutations. One copy of the sources contains all of them and is built once. The
//! environment variable `SABOTAGE` of a test program switches one on. See docs/decisions/0033-sabotage-in-a-copy.md.
//!
//! Arguments: `[--resume] [--check | --build | --page] [PATTERN…]`. A pattern is a number, or a part of a
//! mutation's file or description. `--resume` skips mutations that were caught. `--check` only checks
//! that the copy compiles, `--build` builds its tests, and `--page` only writes the page from earlier verdicts.
//!
//! Environment: `CARGO_TARGET_DIR`; `LEASEHOLD_BLESS` writes docs/figures/sabotage.md;
//! `LEASEHOLD_SABOTAGE_JOBS` (2) is the number of mutations at a time.

mod copy;
mod hooks;
mod list;
mod page;
mod record;
mod run;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use list::{Mutation, Suite};
use record::{Record, Verdict};
use run::Programs;

type Result<T> = std::result::Result<T, String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Cargo's build folder, which the copy shares, so that dependencies are built once.
fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root().join(target)
}

fn main() -> ExitCode {
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work() -> Result<()> {
    let (mut patterns, mut resumes) = (Vec::new(), false);
    let (mut only_checks, mut only_builds, mut only_page) = (false, false, false);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--resume" => resumes = true,
            "--build" => only_builds = true,
            "--check" => only_checks = true,
            "--page" => only_page = true,
            _ => patterns.push(argument),
        }
    }
    let mutations = list::read(&root().join("tests/sabotage/mutations"))?;
    let record = Record::open(&target().join("sabotage/results.tsv"))?;
    if only_page {
        return page::write(&root(), &mutations, &record);
    }
    let package = copy::write(&root(), &target().join("sabotage/package"), &mutations)?;
    if only_checks {
        return run::check(&package, &target());
    }
    let chosen: Vec<&Mutation> = mutations
        .iter()
        .filter(|one| one.equivalent.is_none())
        .filter(|one| patterns.is_empty() || patterns.iter().any(|pattern| one.is_meant_by(pattern)))
        .filter(|one| !resumes || record.verdict(one) != Some(Verdict::Caught))
        .collect();
    let programs = Programs::build(&package, &target(), &chosen)?;
    if only_builds {
        return Ok(());
    }
    let suites: BTreeSet<&Suite> = chosen.iter().map(|one| &one.suite).collect();
    println!("{} mutations, {} of them to run, by {} suites", mutations.len(), chosen.len(), suites.len());
    let suites: Vec<&Suite> = suites.into_iter().collect();
    let unbroken = side_by_side(&suites, |suite| programs.judge_unbroken(suite));
    let judged = side_by_side(&chosen, |mutation| {
        let (verdict, seconds) = programs.judge(mutation)?;
        println!("{:3} {verdict:?} in {seconds} s: {}: {}", mutation.number, mutation.file, mutation.what);
        record.note(mutation, verdict)
    });
    // The page is written even if a mutation's run failed.
    page::write(&root(), &mutations, &record)?;
    judged.and(unbroken)
}

/// Runs `work` for each suite or mutation, a few at a time. A failure does not stop the others.
fn side_by_side<T: Sync>(all: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let jobs = std::env::var("LEASEHOLD_SABOTAGE_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(2);
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = work(one) {
                        println!("{failure}");
                        failures.lock().expect("no job panics with it").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no job panics with it");
    if failures.is_empty() { Ok(()) } else { Err(format!("{} could not be judged", failures.len())) }
}
