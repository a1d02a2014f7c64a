//! The client of the store that the environment or `--url` names, and what an error of it means for the exit
//! code.

use std::error::Error as _;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use leasehold::program::Settings;
use leasehold::{ClientBuilder, Error, ErrorKind, Event, LockClient, Observer};

use crate::args::{Common, Patience};
use crate::exit::Exit;
use crate::probe;
use crate::rings;
use crate::run::hold::place;
use crate::run::signals::Caught;
use crate::say::{Say, without_numbers};
use crate::secret;

/// Connects for a look, which writes nothing of the client, or says why not.
fn connect(common: &Common, say: Say) -> Result<LockClient, Exit> {
    open(common, None, say, |builder| builder.directory(false))
        .map_err(|error| unconnected(common, &error, say))
}

/// Connects for a look, asks, and ends the client.
pub(crate) fn asked(common: &Common, ask: impl FnOnce(&LockClient, Say) -> Exit) -> Exit {
    let say = Say::new(common);
    let client = match connect(common, say) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let exit = ask(&client, say);
    finish(client);
    exit
}

/// As [`explain`], of an attempt to connect: a server that speaks TLS, or does not, is the reason that comes first.
pub(crate) fn unconnected(common: &Common, error: &Error, say: Say) -> Exit {
    let is_silent = matches!(
        error.kind(),
        ErrorKind::Unreachable
            | ErrorKind::TimedOut
            | ErrorKind::Tls
            | ErrorKind::Protocol
            | ErrorKind::Refused
    );
    if is_silent && let Some(words) = probe::mismatch(&settings(common).url) {
        return say.failure(&format!("{words} ({})", text(error)), meaning(error.kind()).0, "Tls");
    }
    explain(error, say)
}

/// Connects, unless a signal comes before: it is not to wait for a server that does not answer.
pub(crate) fn open_unless(
    caught: &Caught,
    common: &Common,
    label: Option<&str>,
    say: Say,
    options: impl FnOnce(ClientBuilder) -> ClientBuilder + Send + 'static,
) -> Result<leasehold::Result<LockClient>, Exit> {
    let (common, label) = (common.clone(), label.map(str::to_owned));
    caught.unless_signaled("connect", Duration::ZERO, say, move || {
        open(&common, label.as_deref(), say, options)
    })
}

pub(crate) fn open(
    common: &Common,
    label: Option<&str>,
    say: Say,
    options: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> leasehold::Result<LockClient> {
    let mut builder = options(builder(common)?).observer(Warnings(say));
    builder = label.into_iter().fold(builder, ClientBuilder::label);
    let given = builder.settings();
    if given.client_name.is_none() {
        builder = builder.client_name(client_name(given.label.as_deref()));
    }
    builder.build()
}

/// Each look is a new attempt: that the store is away is to be said soon.
pub(crate) fn patient(builder: ClientBuilder, interval: Duration) -> ClientBuilder {
    if secret::variable("LEASEHOLD_RETRY_TIMEOUT").is_some() {
        builder
    } else {
        builder.retry_timeout(interval)
    }
}

/// For how long a store that is away at the start is waited for.
pub(crate) fn waited_for(asked: &Patience) -> Duration {
    if asked.no_wait {
        Duration::ZERO
    } else {
        environment().retry_timeout.max(asked.wait.unwrap_or_default())
    }
}

/// The variables and their files, read once, and the builder that has them, until a client is made of it.
static READ: LazyLock<(Settings, Mutex<Option<ClientBuilder>>)> = LazyLock::new(|| {
    let read = ClientBuilder::from_env().ok();
    let settings = read.as_ref().map_or_else(|| ClientBuilder::default().settings(), ClientBuilder::settings);
    (settings, Mutex::new(read))
});

/// What the variables say; the defaults where one of them cannot be used, which [`open`] says.
pub(crate) fn environment() -> &'static Settings {
    &READ.0
}

/// The same, with the options that all actions have.
pub(crate) fn settings(common: &Common) -> Settings {
    builder(common).unwrap_or_default().settings()
}

fn builder(common: &Common) -> leasehold::Result<ClientBuilder> {
    let read = READ.1.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut builder = read.map_or_else(ClientBuilder::from_env, Ok)?;
    let file = secret::default_file(common, &builder.settings());
    builder = file.into_iter().fold(builder, ClientBuilder::url_file);
    builder = common.url.iter().fold(builder, ClientBuilder::url);
    builder = common.ca.iter().fold(builder, ClientBuilder::tls_ca);
    if let (Some(certificate), Some(key)) = (&common.cert, &common.key) {
        builder = builder.tls_identity(certificate, key);
    }
    if let Some(command) = common.password_command.clone() {
        builder = builder.credentials(move |server| secret::printed_by(&command, server));
    }
    // A file is made like any lock file; a table in somebody's database is not made unasked.
    let is_file =
        builder.settings().url.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("sqlite:"));
    if common.create_schema || is_file {
        builder = builder.create_schema(true);
    }
    Ok(builder)
}

/// Servers allow neither spaces nor much else in a client's name.
fn client_name(label: Option<&str>) -> String {
    let label: String = label
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_ascii_graphic() { c } else { '_' })
        .take(60)
        .collect();
    if label.is_empty() { "leasehold-cli".to_owned() } else { format!("leasehold-cli:{label}") }
}

/// Says what went wrong and what to do, and with which code the program ends.
pub(crate) fn explain(error: &Error, say: Say) -> Exit {
    let (exit, mut advice) = meaning(error.kind());
    let mut words = text(error);
    for (part, only_of, better) in [
        ("there is no table", None, "here the option --create-schema does that"),
        ("no URL was given", None, "or write the URL to /etc/leasehold/url or ~/.config/leasehold/url"),
        (
            "the Sentinel at",
            Some(ErrorKind::Authentication),
            "LEASEHOLD_SENTINEL_USERNAME and LEASEHOLD_SENTINEL_PASSWORD are the user of the Sentinels themselves",
        ),
        ("the file", Some(ErrorKind::ReadOnly), "--url names a file on a mount that takes writes"),
    ] {
        if words.contains(part) && only_of.is_none_or(|kind| kind == error.kind()) {
            advice = better;
        }
    }
    if !advice.is_empty() {
        words += &format!("; {advice}");
    }
    say.failure(&words, exit, &format!("{:?}", error.kind()))
}

/// An error in the words of those who run commands: without the library's name of the action, with its cause.
pub(crate) fn text(error: &Error) -> String {
    let mut words = error.lock_name().map(|name| format!("{name}: ")).unwrap_or_default();
    words += error.detail();
    let cause = error.source().map(|cause| match cause.downcast_ref::<Error>() {
        Some(error) => error.detail().to_owned(),
        None => cause.to_string(),
    });
    // The system's name for a silence says no more than the time-out.
    let cause = cause.filter(|cause| !cause.starts_with("Resource temporarily"));
    if let Some(cause) = cause.filter(|cause| !words.contains(cause)) {
        words += &format!(" ({cause})");
    }
    if error.outcome_unknown() {
        words += " (the store may have done it all the same)";
    }
    let words = without_numbers(&words);
    OF_THE_LIBRARY.iter().fold(words, |words, (theirs, ours)| words.replace(theirs, ours))
}

/// The library's methods in its texts, and what does the same here.
const OF_THE_LIBRARY: [(&str, &str); 5] = [
    (": call try_set_permits first", ""),
    (", or by password()", ", or in LEASEHOLD_PASSWORD"),
    (" (see without_scripts)", ""),
    ("tls_ca", "--ca"),
    ("tls_identity", "--cert"),
];

/// The exit code of a kind of error, and what to do about it.
pub(crate) fn meaning(kind: ErrorKind) -> (Exit, &'static str) {
    match kind {
        ErrorKind::InvalidInput => (Exit::Usage, ""),
        ErrorKind::Unsupported => (Exit::Usage, "use another kind of lock, or another store"),
        ErrorKind::WrongType => (
            Exit::Usage,
            "the name is in use as another kind of object: use another name, or the same options as the others do",
        ),
        ErrorKind::Authentication => (
            Exit::NoPermission,
            "the user and the password are those of LEASEHOLD_URL, or LEASEHOLD_USERNAME and LEASEHOLD_PASSWORD; a server may also want a client certificate of the user (--cert and --key)",
        ),
        ErrorKind::NoPermission => (
            Exit::NoPermission,
            "docs/permissions.md lists the rights that each kind of lock needs; `leasehold doctor` names those that are missing",
        ),
        ErrorKind::Tls => (
            Exit::Unavailable,
            "--ca names the authorities to trust, --cert and --key the certificate of this client (LEASEHOLD_TLS_CA, LEASEHOLD_TLS_CERT, LEASEHOLD_TLS_KEY)",
        ),
        ErrorKind::Unreachable | ErrorKind::TimedOut => (
            Exit::Unavailable,
            "is the server up, and can it be reached from here? `leasehold doctor` looks closer",
        ),
        ErrorKind::ReadOnly => (
            Exit::Unavailable,
            "name the server that takes writes: the primary, or the Sentinels that know it (LEASEHOLD_URL)",
        ),
        ErrorKind::NotSetUp => (Exit::Unavailable, "somebody removed the permits: run the command again"),
        ErrorKind::IncompatibleFormat => {
            (Exit::Unavailable, "docs/operating.md says which versions may meet")
        }
        ErrorKind::TooOld => (Exit::Unavailable, "docs/stores.md names the versions that work"),
        ErrorKind::Resource | ErrorKind::Forked => (Exit::Internal, ""),
        _ => (Exit::Unavailable, ""),
    }
}

/// Ends the client, which takes what it has in the store out of it; a store that does not answer is not
/// waited for.
pub(crate) fn finish(client: LockClient) {
    finish_within(client, Duration::from_secs(1));
}

/// As [`finish`], by a time of the caller's.
pub(crate) fn finish_within(client: LockClient, within: Duration) {
    let (done, is_done) = leasehold::crossbeam_channel::bounded::<()>(0);
    let ending = std::thread::Builder::new().name("shutdown".to_owned()).spawn(move || {
        drop(client.shutdown()); // each release that failed has been told of
        drop(done);
    });
    if ending.is_ok() {
        is_done.recv_timeout(within).ok();
    }
}

/// Writes the library's warnings to standard error.
struct Warnings(Say);

/// Parts of warnings about a set-up, which are the same at each run until somebody changes it. The others say what
/// happened.
const OF_THE_SET_UP: [&str; 3] =
    ["is longer than the lease", "and there is also", "can revoke leases of living holders"];

impl Observer for Warnings {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Warning { text, .. } => {
                let is_lasting = OF_THE_SET_UP.iter().any(|part| text.contains(part));
                if is_lasting && !place::is_first(text) {
                    return;
                }
                let once =
                    if is_lasting { " (said once; `leasehold doctor` counts it each time)" } else { "" };
                self.0.notice("warning", &format!("{text}{once}"), &serde_json::json!({}));
            }
            Event::Deadlock { deadlock, .. } => {
                self.0.notice("deadlock", &rings::words(deadlock), &rings::as_json(deadlock));
            }
            _ => {}
        }
    }
}
