#![forbid(unsafe_code)]
//! The benchmark: `drive` puts one *peer*, a lock library, under one load. `rounds` runs all peers and loads
//! and writes the report. `./bench` in the root of the repository builds what is needed and calls `rounds`.

mod chart;
mod drive;
mod figures;
mod kept;
mod link;
mod load;
mod machine;
mod monitor;
mod peers;
mod pin;
mod process;
mod quiet;
mod report;
mod rounds;
mod server;
mod stamp;
mod stores;
mod tally;
mod workload;

use clap::Parser;

#[derive(Parser)]
#[command(about = "The benchmark of leasehold and its peers; see ./bench")]
enum Command {
    /// Puts one peer under one load; `load.rs` explains the flags and the protocol.
    Drive(load::Load),
    /// Measures leasehold on one store under one load; `stores` starts this.
    Store(stores::child::One),
    /// Measures leasehold on every store in turn and writes the report.
    Stores(stores::Options),
    /// Runs every workload with every peer in turn and writes the report.
    Rounds(rounds::Options),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Drive(load) => drive::drive(&load),
        Command::Store(one) => stores::child::run(&one),
        Command::Stores(options) => stores::run(&options),
        Command::Rounds(options) => rounds::run(&options),
    }
}
