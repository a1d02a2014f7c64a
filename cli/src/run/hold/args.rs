//! The arguments of `hold` and `release`, and of the processes that keep a hold.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::{OnLost, RunArgs, Terms, Want, signal, time};

#[derive(Debug, Clone, Args)]
pub(crate) struct HoldArgs {
    /// The lock's name.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) want: Want,
    /// The process for which the lock is kept: it is released when that ends. Defaults to the shell that
    /// calls, as `$$` names it.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,
    /// The signal that the shell and all that it has started get when the lock cannot be kept.
    #[arg(long, value_name = "NAME", default_value = "TERM", value_parser = signal)]
    pub(crate) signal: i32,
    /// The signal comes this long before another can get the lock: a third of the lease at most. Defaults to
    /// a tenth of the lease, 5s at most. If the server says that the lock is gone, the signal comes at once.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) notice: Option<Duration>,
    /// The exit code when the lock is busy or the wait ended.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,
    /// A name for this hold, which `ls` and `clients` show; also LEASEHOLD_LABEL.
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
}

impl HoldArgs {
    /// The same lock, as `run` would ask for it.
    pub(super) fn as_run(&self) -> RunArgs {
        RunArgs {
            name: self.name.clone(),
            want: self.want.clone(),
            terms: self.terms(),
            conflict_exit_code: self.conflict_exit_code,
            max_hold: None,
            strict: false,
            command: Vec::new(),
        }
    }

    fn terms(&self) -> Terms {
        Terms {
            on_lost: OnLost::Signal(self.signal),
            kill_grace: None,
            lost_exit_code: super::LOST,
            label: self.label.clone(),
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ReleaseArgs {
    /// The handle that `hold` printed.
    pub(crate) handle: String,
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
