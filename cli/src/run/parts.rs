//! The processes that this program starts of itself, and their arguments.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::args::{Common, OnLost, on_lost, time};
use crate::exit::Exit;
use crate::run::helper;
use crate::run::hold::{keeper, lookout};
use crate::run::inherited::Inherited;

/// The parts that this program starts of itself. Neither the help nor completions show them.
#[derive(Debug, Parser)]
#[command(name = "leasehold", disable_help_flag = true)]
pub(crate) struct Inner {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) part: Part,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    /// Runs the command for the process that holds the lock, and ends it in time.
    Helper(HelperArgs),
    /// Becomes the command, which dies with the helper.
    Become(BecomeArgs),
    /// Keeps a lock for a shell.
    Keep(KeepArgs),
    /// Sends the shell its signal when the lock is not kept.
    Lookout(LookoutArgs),
}

/// Does what the first argument names, if that is one of these parts.
pub(crate) fn part() -> Option<Exit> {
    std::env::args_os().nth(1).filter(|word| Part::NAMES.iter().any(|name| word == *name))?;
    // Started by way of /proc, they would be `exe` in lists of processes. Elsewhere there is no such file.
    std::fs::write("/proc/self/comm", "leasehold").ok();
    Some(match Inner::try_parse() {
        Ok(Inner { common, part: Part::Helper(args) }) => helper::helper(&common, &args),
        Ok(Inner { common, part: Part::Become(args) }) => helper::become_command(&common, &args),
        Ok(Inner { part: Part::Keep(args), .. }) => keeper::keep(&args),
        Ok(Inner { part: Part::Lookout(args), .. }) => lookout::lookout(&args),
        Err(error) => crate::usage(error),
    })
}

impl Part {
    const NAMES: [&str; 4] = ["helper", "become", "keep", "lookout"];
}

/// Written by `run`, read by its helper.
#[derive(Debug, Clone, Args)]
pub(crate) struct HelperArgs {
    #[arg(long, value_parser = time)]
    pub(crate) grace: Duration,
    #[arg(long, value_parser = time)]
    pub(crate) margin: Duration,
    #[arg(long, value_parser = on_lost)]
    pub(crate) on_lost: OnLost,
    #[arg(long)]
    pub(crate) inherited: Inherited,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Written by the helper, read by the process that becomes the command.
#[derive(Debug, Clone, Args)]
pub(crate) struct BecomeArgs {
    /// The helper.
    #[arg(long)]
    pub(crate) parent: i32,
    #[arg(long)]
    pub(crate) inherited: Inherited,
    #[arg(long)]
    pub(crate) cgroup: Option<PathBuf>,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Written by `hold`, read by the process that keeps the lock. The rest comes over its socket, since the
/// command that was typed may hold a password.
#[derive(Debug, Clone, Args)]
pub(crate) struct KeepArgs {
    /// The process for which the lock is kept, and when it began.
    #[arg(long)]
    pub(crate) pid: i32,
    #[arg(long)]
    pub(crate) began: u64,
    /// The file of its socket.
    #[arg(long)]
    pub(crate) place: PathBuf,
    /// For those who look at the list of processes.
    pub(crate) name: String,
}

/// Written by the process that keeps the lock, read by its lookout.
#[derive(Debug, Clone, Args)]
pub(crate) struct LookoutArgs {
    #[arg(long)]
    pub(crate) pid: i32,
    #[arg(long)]
    pub(crate) began: u64,
    #[arg(long)]
    pub(crate) place: PathBuf,
    #[arg(long)]
    pub(crate) signal: i32,
    /// How long before the end of the lock's time the signal is sent.
    #[arg(long, value_parser = time)]
    pub(crate) before: Duration,
}
