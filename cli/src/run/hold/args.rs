//! The arguments of `hold` and `release`.

use std::time::Duration;

use clap::Args;

use crate::args::{Offered, SIGNALS, Want, signal, time};

#[derive(Debug, Clone, Args)]
pub(crate) struct HoldArgs {
    /// The lock's name.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) want: Want,
    /// The process for which the lock is kept: it is released when that ends. Defaults to the shell that
    /// calls, as `$$` names it. Needed in a list in the background ($BASHPID), under programs that fork workers, and
    /// behind one that ends with `hold`, such as sudo or timeout ($$).
    #[arg(long, help_heading = "Shell", value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,
    /// The signal that the shell and all that it has started get when the lock cannot be kept. An interactive bash
    /// ignores TERM: HUP ends it.
    #[arg(
        long,
        help_heading = "Shell",
        value_name = "NAME",
        default_value = "TERM",
        hide_possible_values = true
    )]
    #[arg(value_parser = Offered { read: signal, values: &SIGNALS })]
    pub(crate) signal: i32,
    /// The signal comes this long before another can get the lock: a third of the lease at most. Defaults to
    /// a tenth of the lease, 5s at most. If the server says that the lock is gone, the signal comes at once.
    #[arg(long, help_heading = "Shell", value_name = "TIME", value_parser = time)]
    pub(crate) notice: Option<Duration>,
    /// A name for this hold, which `ls` and `clients` show; also LEASEHOLD_LABEL.
    #[arg(long, help_heading = "Shell", value_name = "TEXT")]
    pub(crate) label: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ReleaseArgs {
    /// The handle that `hold` printed.
    pub(crate) handle: String,
}
