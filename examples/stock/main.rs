//! Sells numbered pieces, which are in Redis, with many processes and threads, once for each kind of lock.
//!
//! `./demo` starts a Redis for this program; with your own Redis: `cargo run --release --example stock --
//! --url redis://127.0.0.1:6379`. A sale is read, decide, write: two commands with a pause in between, so two
//! sellers that do not exclude each other sell the same piece. Each row of the table is a kind of lock that
//! people write, with its wrong sales. Each row does the same work three times with the same faults: slow
//! moments, a kill -9, a stop. If leasehold's lock makes a wrong sale in slow moments or after the kill -9,
//! or its fenced lock makes any, the program ends with status 1.
//!
//! | file | what it holds |
//! |---|---|
//! | `args.rs` | the command line |
//! | `shop.rs` | pieces and sales in Redis, and what is counted |
//! | `rows.rs`, `leases.rs` | one seller per kind of lock: hand-written ones, and leasehold's |
//! | `worker.rs` | a worker process: its threads, and how it follows the parent's messages |
//! | `fleet.rs` | the parent: starts, kills, stops, resumes and always ends its workers |
//! | `topology.rs` | with `--topology`: the locks' own servers, one of which is killed |
//! | `talk.rs` | the messages between parent and workers |
//! | `report.rs` | progress, table, JSON |
#![allow(
    clippy::print_stdout,
    reason = "a program for people: its table and JSON lines go to standard output"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "the program measures and waits by itself, outside the library's clock"
)]

mod args;
mod fleet;
mod leases;
mod report;
mod rows;
mod shop;
mod talk;
mod topology;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use args::Args;
use clap::Parser;
use fleet::Fleet;
use report::Report;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The argument by which the program starts itself as a worker.
const WORKER: &str = "worker";

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(WORKER) {
        return worker::run();
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => return refuse(&e),
    };
    if args.parse_only {
        return ExitCode::SUCCESS;
    }
    match demo(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("stock: {e}");
            // 130 tells a calling shell that Ctrl-C ended the program.
            match e.downcast_ref() {
                Some(fleet::NoNews::Interrupted) => ExitCode::from(130),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Prints the help, or the mistake in the command line as one line.
fn refuse(e: &clap::Error) -> ExitCode {
    if !e.use_stderr() {
        e.exit();
    }
    let text = e.to_string();
    let said = text.lines().next().unwrap_or_default();
    eprintln!("stock: {} (--help shows all options)", said.trim_start_matches("error: "));
    ExitCode::from(2)
}

/// Runs the wanted rows; `false` if one of leasehold's rows broke its promise.
fn demo(args: &Args) -> Result<bool> {
    let url = args.url()?;
    let stop = Arc::new(AtomicBool::new(false));
    let on_signal = Arc::clone(&stop);
    // Ctrl-C only sets a flag. The fleet reads the flag and ends its workers, as after any failure.
    ctrlc::set_handler(move || on_signal.store(true, Ordering::Relaxed))?;

    let mut is_kept = true;
    for run in 1..=args.runs {
        let mut report = Report::new(args, run);
        for row in args.rows() {
            let line = report.start(row)?;
            let sale = Fleet::sell_out(args, &url, &stop, row, &line)?;
            report.finish(&line, sale)?;
        }
        if args.shows_deadlock() {
            report.deadlock(Fleet::take_and_die(args, &url, &stop)?);
        }
        report.print();
        let verdict = report.verdict();
        if !verdict.is_kept && args.json {
            eprintln!("stock: {}", verdict.text);
        }
        is_kept &= verdict.is_kept;
    }
    Ok(is_kept)
}
