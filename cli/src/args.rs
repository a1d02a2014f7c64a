//! The arguments; help, completions and the man pages are made from them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, FromArgMatches, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use serde::{Deserialize, Serialize};

use crate::clock::Moment;
use crate::help;

/// Runs commands under distributed locks, and shows who holds them.
///
/// LEASEHOLD_URL names the store, for example redis://127.0.0.1:6379, sqlite:///var/lib/locks.db,
/// postgres://host/database, mysql://host/database, etcd://host:2379 or zk://host:2181. If the variable is
/// not set, the file ~/.config/leasehold/url or /etc/leasehold/url names the store.
///
/// run, once, elect, hold and release are for Unix only. The others are for Windows too.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Print version.
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = "Output")]
    version: Option<bool>,
    #[command(subcommand)]
    pub(crate) action: Action,
}

impl Cli {
    pub(crate) fn read() -> Result<Cli, clap::Error> {
        Cli::read_from(std::env::args_os())
    }

    /// Reads the arguments. In `run -- -name -- COMMAND` the second `--` is not part of the command.
    pub(crate) fn read_from(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Cli, clap::Error> {
        let mut cli = Cli::from_arg_matches(&help::command().try_get_matches_from(words)?)?;
        let command = match &mut cli.action {
            Action::Run(args) => &mut args.terms.command,
            Action::Once(args) => &mut args.terms.command,
            Action::Elect(args) => &mut args.terms.command,
            _ => return Ok(cli),
        };
        if command.first().is_some_and(|first| first == "--") {
            command.remove(0);
        }
        if command.is_empty() {
            let words = "the command is missing behind `--`\n";
            return Err(help::command().error(ErrorKind::MissingRequiredArgument, words));
        }
        Ok(cli)
    }
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Store and TLS")]
pub(crate) struct Common {
    /// The store. Prefer LEASEHOLD_URL: other users of the machine see a command line.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The authorities to trust over TLS, a PEM file; also LEASEHOLD_TLS_CA. Defaults to the system's.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// The client certificate, for a store that demands one: a PEM file; also LEASEHOLD_TLS_CERT.
    #[arg(long, global = true, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// The private key of --cert: a PEM file; also LEASEHOLD_TLS_KEY.
    #[arg(long, global = true, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// A shell command whose first line of output is the password, for passwords that change. It runs for
    /// each new connection, for ten seconds at most, with the server's address in LEASEHOLD_SERVER.
    #[arg(long, global = true, value_name = "COMMAND")]
    pub(crate) password_command: Option<String>,
    /// Creates the table of locks in a PostgreSQL or MySQL database if there is none.
    #[arg(long, global = true)]
    pub(crate) create_schema: bool,
    /// How answers and messages are written.
    #[arg(long, global = true, value_enum, default_value = "text", help_heading = "Output")]
    pub(crate) format: Format,
    /// Says on standard error what happens: waiting, acquired, released.
    #[arg(short, long, global = true, conflicts_with = "quiet", help_heading = "Output")]
    pub(crate) verbose: bool,
    /// Prints nothing about the lock; the exit code says how the action ended.
    #[arg(short, long, global = true, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Print help.
    #[arg(short, long, global = true, action = ArgAction::Help, help_heading = "Output")]
    help: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Format {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Runs a command while holding a lock. If the lock cannot be kept, the command is killed before another
    /// client can acquire the lock.
    Run(RunArgs),
    /// Runs a command unless a machine has run it within --at-least: for a timer that fires on many machines.
    /// A command that failed counts as run.
    Once(OnceArgs),
    /// Runs a command while this process is the leader of a name. When the leadership ends, ends the command
    /// and stands for election again.
    ///
    /// As `run`, but a lost leadership ends the command and not the program. Candidates of the library
    /// (LockClient::leader) stand in the same election. -n and -w limit the wait for the first election; the
    /// waits for later elections have no limit.
    Elect(ElectArgs),
    /// Acquires a lock for the calling shell, and prints a handle: the lock is kept until `release`, or until
    /// the shell ends.
    ///
    /// As in hold=$(leasehold hold NAME) || exit. If the lock cannot be kept, the shell and all processes
    /// that it started get a signal.
    Hold(HoldArgs),
    /// Releases what `hold` acquired. Exits with 79 if the lock was lost before.
    Release(ReleaseArgs),
    /// Shows locks: holders, waiters, permits, and the time that is left of each lease.
    ///
    /// Exits with 65 if a name belongs to something other than a lock, and does not show the content. With -q
    /// prints nothing, and exits with 0 if all locks are held, otherwise with 1.
    Show(ShowArgs),
    /// Lists the locks that are held, a page of the server's keys at a time, and the number of requests and
    /// keys that this took.
    Ls(LsArgs),
    /// Lists the clients of leasehold that hold or wait for locks, as each client reports itself: host,
    /// process, program, threads.
    Clients,
    /// Shows in a terminal, updated each second (see --interval), who holds and who waits, and since when.
    /// The key f ends a hold after a confirmation. The first 10,000 locks are shown; all are counted.
    Top(TopArgs),
    /// Shows who holds a lock, and with --yes ends the hold, whoever has it.
    Force(ForceArgs),
    /// Shows how many commands can use a name at a time (`run --permits`), changes this number for all, or
    /// removes the name.
    Permits(PermitsArgs),
    /// Checks a set-up from end to end: a line for each check, with what to do about it. Exits with 1 if
    /// there is a fault.
    ///
    /// Faults: the server is too old, is a replica, or does not answer; the user lacks a right that locks
    /// need; scripts are refused; a full server evicts keys (maxmemory is set); the lease is below 3 round
    /// trips (p99); a test lock cannot be acquired and released; threads wait for each other.
    ///
    /// Warnings: a member of a cluster is used as one server; the user may not subscribe, or not write the
    /// list of clients; there is no append-only file, or it is not synced; the server would evict keys if
    /// maxmemory were set; a replica lags; a clock is 1 s off; a test message does not arrive; the lease is
    /// below 30 round trips, or below 3 command time-outs; locks have no expiry; a table of the same name is
    /// in another schema; old versions of rows pile up; every user can read a password.
    ///
    /// Doctor asks for the user's rights by ACL DRYRUN or a script. Before Redis 7.0 doctor tries each
    /// request, on keys below --name that expire after 1s. Each server of a cluster, a Redlock or a ring is
    /// checked.
    Doctor(DoctorArgs),
    /// Prints a line for each change of locks: acquired, released, expired, waiters. Polls after each
    /// --interval, until --for is over or a signal ends it.
    Watch(WatchArgs),
    /// Serves a page that shows who holds and who waits, and metrics for Prometheus. Changes nothing.
    ///
    /// The label group is the text of a name before its first colon. The first 64 groups have numbers of
    /// their own; all others are `other`. The label kind says how a lock is used: lock; bounded, whose holds
    /// end by themselves (once, --max-hold); leader; permits. Holders report the kind in the directory of
    /// clients; without a directory the kind is lock.
    ///
    /// The list of locks is reused for 1s, for as long as it took, or for a hundred times its processor time
    /// in the store, whichever is longest.
    Serve(ServeArgs),
    /// Writes the completions of a shell to standard output.
    Completions { shell: Shell },
    /// Writes a man page to standard output, or all of them to a folder.
    Man {
        /// The command whose page to write. Defaults to the page of the whole program.
        command: Option<String>,
        /// Writes all pages to this folder, and creates the folder if needed.
        #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
        to: Option<PathBuf>,
    },
}

/// Whether and how long to wait for a lock that is busy.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct Patience {
    /// Does not wait: exits with 75 if the lock is busy.
    #[arg(short, long, visible_alias = "nonblock", conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Exits with 75 after waiting for this time: seconds, or numbers with ms, s, m, h or d. Without this
    /// option the wait has no limit.
    #[arg(short, long, value_name = "SECS", value_parser = time)]
    pub(crate) wait: Option<Duration>,
    /// The exit code when the lock is busy or the wait ended.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,
}

/// The kind of lock to acquire, and the wait.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Want {
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Locks as one of many readers (see --write). On Redis and ZooKeeper.
    #[arg(help_heading = "Lock", short = 's', long, visible_alias = "shared", group = "half", conflicts_with_all = ["fair", "permits"])]
    pub(crate) read: bool,
    /// Locks as the only writer, without readers. Use a name always with -s or -x, or never.
    #[arg(help_heading = "Lock", short = 'x', long, group = "half", conflicts_with_all = ["fair", "permits"])]
    pub(crate) write: bool,
    /// With -s or -x: waiting writers go before all new readers, if every command on the name uses this
    /// option. Without it readers and writers take turns.
    #[arg(help_heading = "Lock", long, requires = "half")]
    pub(crate) writers_first: bool,
    /// Waits in a queue: first come, first served. On Redis, etcd and ZooKeeper.
    #[arg(help_heading = "Lock", long, conflicts_with = "permits")]
    pub(crate) fair: bool,
    /// Lets N commands hold the name at a time. On Redis. The first run sets the number; a run with another
    /// number is refused (see permits).
    #[arg(help_heading = "Lock", long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    #[command(flatten)]
    pub(crate) lease: Lease,
}

impl Want {
    /// A copy in which the wait is shortened by the time since `begun`.
    pub(crate) fn since(&self, begun: Moment) -> Want {
        let mut want = self.clone();
        let patience = &mut want.patience;
        patience.wait = patience.wait.map(|wait| wait.saturating_sub(Moment::now().since(begun)));
        want
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// The lock's name. A name that begins with a dash goes behind `--`: `run -- -name -- COMMAND`.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) want: Want,
    #[command(flatten)]
    pub(crate) terms: Terms,
    /// Kills the command when it has had the lock for this time, and exits with 124. TERM comes earlier, by
    /// --kill-grace.
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "Lease")]
    pub(crate) max_hold: Option<Duration>,
    /// Exits with 80 if the command succeeded and it is unknown whether the lock was released. Without this
    /// option that is a warning.
    #[arg(long, help_heading = "Lease")]
    pub(crate) strict: bool,
    /// Sends this signal to the command, once, when others wait for the lock, so that the command may give
    /// way. The command finds the signal's name in LEASEHOLD_CONTENDED_BY.
    #[arg(long, value_name = "SIGNAL", help_heading = "Lease", hide_possible_values = true)]
    #[arg(value_parser = Offered { read: signal, values: &SIGNALS })]
    pub(crate) on_contended: Option<i32>,
    /// Whether the holder leads an election; only `elect` sets this.
    #[arg(skip)]
    pub(crate) leads: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OnceArgs {
    /// The job's name. A name that begins with a dash goes behind `--`: `once … -- -name -- COMMAND`.
    pub(crate) name: String,
    /// The time from the command's start within which no machine runs the job again: longer than the
    /// difference between the machines' clocks, shorter than the timer's period.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at_least: Duration,
    /// Kills the command when it has run for this time, and exits with 124. TERM comes earlier, by
    /// --kill-grace. After a crash, another machine may run the job when this time is over. At least 1s, not
    /// below --at-least.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at_most: Duration,
    #[command(flatten)]
    pub(crate) terms: Terms,
    /// The exit code if another machine runs the job, or started it within --at-least.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75, help_heading = "Waiting")]
    pub(crate) conflict_exit_code: u8,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ElectArgs {
    /// The name of the election. A name that begins with a dash goes behind `--`: `elect -- -name --
    /// COMMAND`.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) lease: Lease,
    #[command(flatten)]
    pub(crate) terms: Terms,
    /// Exits with 79 (--lost-exit-code) when the leadership is lost, instead of standing again.
    #[arg(long)]
    pub(crate) one_term: bool,
    /// An address and port where this process answers whether it leads: /leader with 200 or 503, and /ready.
    /// A port alone means 127.0.0.1. Without this option the process does not listen.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen)]
    pub(crate) listen: Option<String>,
    /// Exits with 80 if the command succeeded and it is unknown whether the leadership was given up. Without
    /// this option that is a warning.
    #[arg(long, help_heading = "Lease")]
    pub(crate) strict: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct HoldArgs {
    /// The lock's name.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) want: Want,
    /// The process for which the lock is kept; when this process ends, the lock is released. Defaults to the
    /// calling shell ($$). Needed in a background job ($BASHPID), under programs that fork workers, and if a
    /// program such as sudo or timeout starts `hold` ($$): by default the lock ends with that program.
    #[arg(long, help_heading = "Shell", value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,
    /// The signal that the shell and all processes that it started get when the lock cannot be kept. An
    /// interactive bash ignores TERM: HUP ends it.
    #[arg(
        long,
        help_heading = "Shell",
        value_name = "NAME",
        default_value = "TERM",
        hide_possible_values = true
    )]
    #[arg(value_parser = Offered { read: signal, values: &SIGNALS })]
    pub(crate) signal: i32,
    /// The signal comes this long before another client can acquire the lock: a third of the lease at most.
    /// Defaults to a tenth of the lease, 5s at most. If the server says that the lock is gone, the signal
    /// comes at once.
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

#[derive(Debug, Clone, Args)]
pub(crate) struct ShowArgs {
    /// The locks' names.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Treats a Redis string as a token lock, whichever program wrote it, and shows the token, which may be a
    /// secret.
    #[arg(long)]
    pub(crate) token: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LsArgs {
    /// A pattern for the names: `*` is any text, `?` a character.
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// Lists only locks whose holders report this name as their host's.
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ForceArgs {
    /// The lock's name.
    pub(crate) name: String,
    /// Ends the hold. Without this option the holder is only shown.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Treats a Redis string as a token lock, whichever program wrote it.
    #[arg(long)]
    pub(crate) token: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PermitsArgs {
    /// The name, as for `run --permits`.
    pub(crate) name: String,
    /// The new number of permits, those in use included. Running commands go on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) set: Option<u32>,
    /// Removes the name and all its permits, those in use too. The next run sets the number again.
    #[arg(long, conflicts_with = "set")]
    pub(crate) remove: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArgs {
    /// The lock's name for which the user's rights are checked. The lock itself is left alone.
    #[arg(long, value_name = "NAME", default_value = "leasehold-doctor")]
    pub(crate) name: String,
    /// The lease that is compared with the latency. Defaults to 30s, or LEASEHOLD_LEASE.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) lease: Option<Duration>,
    /// Exits with 1 for a warning too.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Searches all keys for locks without an expiry, however long that takes. Without this option the search
    /// stops after 10 s.
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WatchArgs {
    /// The locks' names.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// The time between two polls: at least 100ms. A poll is one request for each name.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Ends after this time, with exit code 0.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub(crate) duration: Option<Duration>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct TopArgs {
    /// A pattern for the names: `*` is any text, `?` a character.
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// The time between two polls: at least 100ms. A poll costs as many requests as `ls`, which prints their
    /// number.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// The address and port to listen on; a port alone means 127.0.0.1. There is no password: on an address
    /// other than loopback, other machines see the locks.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9477", value_parser = listen)]
    pub(crate) listen: String,
    /// A host name by which browsers and scrapers may reach this server, besides localhost and the address;
    /// may be repeated.
    #[arg(long = "host", value_name = "NAME", value_parser = host)]
    pub(crate) hosts: Vec<String>,
    /// A job of `once` whose last run and last success are added to the metrics; may be repeated. Each job
    /// costs one more request whenever the locks are listed.
    #[arg(long = "job", value_name = "NAME")]
    pub(crate) jobs: Vec<String>,
    /// A pattern for the names that are listed: `*` is any text, `?` a character.
    #[arg(long, value_name = "PATTERN", default_value = "*")]
    pub(crate) pattern: String,
    /// The time between two lists of the locks, however many clients ask. Defaults to a hundred times a
    /// list's processor time in the store, 1s at least: for example 100s if the store has 500,000 other keys.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) interval: Option<Duration>,
}

/// Options of all actions that run a command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Command")]
pub(crate) struct Terms {
    /// The command and its arguments: all words after `--`, or from the first non-option word after NAME.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    #[arg(help_heading = None)]
    pub(crate) command: Vec<OsString>,
    /// What happens to the command when the lock cannot be kept: kill (TERM, then KILL), signal:NAME (that
    /// signal alone), or ignore.
    #[arg(long, value_name = "HOW", default_value = "kill", hide_possible_values = true)]
    #[arg(value_parser = Offered { read: on_lost, values: &ON_LOST })]
    pub(crate) on_lost: OnLost,
    /// The time between TERM and KILL. It is part of the lease, and more than a third of the lease is
    /// refused. Defaults to a tenth of the lease, 5s at most.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) kill_grace: Option<Duration>,
    /// The exit code when the lock was lost: 1 to 255.
    #[arg(long, value_name = "CODE", default_value_t = 79, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) lost_exit_code: u8,
    /// A name for this run, which `ls` and `clients` show; also LEASEHOLD_LABEL. Defaults to the command's.
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
}

impl Terms {
    pub(crate) fn label(&self) -> Option<String> {
        let base = || Some(Path::new(self.command.first()?).file_name()?.to_string_lossy().into_owned());
        self.label.clone().or_else(|| crate::secret::variable("LEASEHOLD_LABEL")).or_else(base)
    }
}

/// How long a lock lasts without a renewal.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Lease")]
pub(crate) struct Lease {
    /// How long the lock stays held if this program dies: at least 1s. The program renews the lock after each
    /// third of this time. Defaults to 30s, or LEASEHOLD_LEASE.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) lease: Option<Duration>,
}

impl Lease {
    pub(crate) fn or_default(&self) -> Duration {
        self.lease.unwrap_or_else(|| crate::store::environment().lease)
    }
}

/// A parser of an option. `read` accepts more values than `values`, which shells offer as completions.
#[derive(Clone)]
struct Offered<T> {
    read: fn(&str) -> Result<T, String>,
    values: &'static [&'static str],
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Offered<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let read = self.read;
        StringValueParser::new().try_map(move |text| read(&text)).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.values.iter().map(PossibleValue::new)))
    }
}

const ON_LOST: [&str; 6] = ["kill", "ignore", "signal:TERM", "signal:HUP", "signal:INT", "signal:USR1"];
const SIGNALS: [&str; 6] = ["TERM", "HUP", "INT", "KILL", "USR1", "USR2"];

/// What happens to the command when the lock cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnLost {
    Kill,
    Signal(i32),
    Ignore,
}

fn on_lost(text: &str) -> Result<OnLost, String> {
    match text.split_once(':') {
        None if text == "kill" => Ok(OnLost::Kill),
        None if text == "ignore" => Ok(OnLost::Ignore),
        Some(("signal", name)) => signal(name).map(OnLost::Signal),
        _ => Err("the value must be kill, signal:NAME (as in signal:HUP) or ignore".to_owned()),
    }
}

fn signal(name: &str) -> Result<i32, String> {
    crate::system::signal_number(name).ok_or_else(|| format!("there is no signal {name}"))
}

/// An address and a port. A port alone means 127.0.0.1, not all addresses of the machine.
fn listen(text: &str) -> Result<String, String> {
    if text.parse::<u16>().is_ok() {
        return Ok(format!("127.0.0.1:{text}"));
    }
    let (address, port) = text.rsplit_once(':').unwrap_or(("", ""));
    if address.is_empty() || port.parse::<u16>().is_err() {
        return Err("the value must be a port, or an address and a port, as in 127.0.0.1:9478".to_owned());
    }
    Ok(text.to_owned())
}

/// A host's name, normalized for comparison: lower case, without port and final dot.
fn host(text: &str) -> Result<String, String> {
    crate::serve::http::host_name(text)
        .ok_or_else(|| "the value must be a host's name or address, as in locks.example.com".to_owned())
}

fn time(text: &str) -> Result<Duration, &'static str> {
    leasehold::ClientBuilder::parse_duration(text)
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    let least = Duration::from_millis(100);
    time(text).and_then(|time| if time < least { Err("the value must be at least 100ms") } else { Ok(time) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_accepts_all_argument_definitions() {
        help::command().debug_assert();
    }

    #[test]
    fn every_command_line_in_the_documentation_can_be_parsed() {
        let mut count = 0;
        for page in
            ["README.md", "docs/command-line.md", "docs/deploying.md", "docs/operating.md", "cli/README.md"]
        {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
            let text = std::fs::read_to_string(path).unwrap();
            let mut is_code = false;
            for line in text.lines() {
                if line.starts_with("```") {
                    is_code = !is_code;
                    continue;
                }
                let in_prose =
                    line.split('`').skip(1).step_by(2).filter(|code| code.starts_with("leasehold "));
                let lines: Vec<&str> = if is_code { vec![line] } else { in_prose.collect() };
                for line in lines {
                    let Some(words) = arguments(line) else { continue };
                    let read = Cli::read_from(&words);
                    let is_help = |error: &clap::Error| error.exit_code() == 0;
                    assert!(
                        read.as_ref().err().is_none_or(is_help),
                        "{page}: {line}: {words:?}: {}",
                        read.err().unwrap()
                    );
                    count += 1;
                }
            }
        }
        assert!(count > 20, "{count} lines");
    }

    /// The arguments in a line that calls the program. `None` if the line only mentions it.
    fn arguments(line: &str) -> Option<Vec<String>> {
        let line = line.split(" # ").next()?.split(" | ").next()?;
        let at = line.find("leasehold ").filter(|at| {
            let before = line[..*at].trim_end();
            before.is_empty()
                || before.ends_with(['$', '*', '='])
                || before.split(' ').all(|word| word.contains('='))
        })?;
        // In `$(…)` the command ends at the `)`.
        let line = line[at..]
            .split(')')
            .next()?
            .split(" || ")
            .next()?
            .replace("NAME…", "NAME")
            .replace(['[', ']'], "")
            .replace("NAME…", "NAME");
        let words = line.split_whitespace().map(|word| word.trim_matches('\'').replace("SHELL", "bash"));
        let mut words: Vec<String> = words.collect();
        let runs = words.get(1).is_some_and(|word| matches!(word.as_str(), "run" | "once" | "elect"));
        if runs && !words.contains(&"--".to_owned()) {
            return None; // the line only mentions the program
        }
        let needs_name = words.get(1).is_some_and(|word| {
            matches!(word.as_str(), "show" | "watch" | "force" | "permits" | "hold" | "release")
        });
        if needs_name && words.len() == 2 {
            words.push("NAME".to_owned());
        }
        Some(words)
    }

    #[test]
    fn a_lock_name_starting_with_a_dash_is_parsed_after_two_dashes() {
        let read = |line: &str| match Cli::read_from(line.split(' ')).map(|cli| cli.action) {
            Ok(Action::Run(RunArgs { name, terms, .. }) | Action::Elect(ElectArgs { name, terms, .. })) => {
                Some(format!("{name}: {}", terms.command.join(OsStr::new(" ")).display()))
            }
            _ => None,
        };
        assert_eq!(read("x run -n -- -job -- sh -c --").as_deref(), Some("-job: sh -c --"));
        assert_eq!(read("x elect -- --job -- true").as_deref(), Some("--job: true"));
        assert_eq!(read("x run job -- -odd -- x").as_deref(), Some("job: -odd -- x"));
        assert_eq!(read("x run -w 1 job sh -c -- -n").as_deref(), Some("job: sh -c -- -n"));
        assert_eq!(read("x run job -w 1 nice -n 5 x").as_deref(), Some("job: nice -n 5 x"));
        for wrong in ["x run -- true", "x run job --", "x run -- -job --", "x run job -odd x", "x run --"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_bare_port_listens_on_localhost_only() {
        assert_eq!(listen("9478").as_deref(), Ok("127.0.0.1:9478"));
        for whole in ["0.0.0.0:9478", "[::]:9478", "localhost:0"] {
            assert_eq!(listen(whole).as_deref(), Ok(whole));
        }
        for bad in ["", ":9478", "65536", "localhost", "localhost:", "a:b", "+"] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn on_lost_accepts_kill_ignore_and_signal_names() {
        assert_eq!(on_lost("kill"), Ok(OnLost::Kill));
        assert_eq!(on_lost("signal:HUP"), Ok(OnLost::Signal(1)));
        assert_eq!(on_lost("signal:sigusr1"), Ok(OnLost::Signal(10)));
        assert_eq!(on_lost("signal:15"), Ok(OnLost::Signal(15)));
        assert_eq!(on_lost("ignore"), Ok(OnLost::Ignore));
        for bad in ["", "signal", "signal:", "signal:NONE", "signal:999", "die"] {
            assert!(on_lost(bad).is_err(), "{bad}");
        }
    }
}
