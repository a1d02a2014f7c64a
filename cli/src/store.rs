//! The client of the store that the environment or `--url` names, and what an error of it means for the exit
//! code.

use std::error::Error as _;
use std::time::Duration;

use leasehold::{ClientBuilder, Error, ErrorKind, Event, LockClient, Observer};

use crate::args::{self, Common, Want};
use crate::exit::Exit;
use crate::rings;
use crate::run::signals::Caught;
use crate::say::Say;

/// Connects, or says why not.
pub(crate) fn connect(
    common: &Common,
    lease: Option<Duration>,
    label: Option<&str>,
    say: Say,
) -> Result<LockClient, Exit> {
    open(common, label, say, |builder| lease.into_iter().fold(builder, ClientBuilder::lease))
        .map_err(|error| explain(&error, say))
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

/// Connects, with options beside those of the environment.
pub(crate) fn open(
    common: &Common,
    label: Option<&str>,
    say: Say,
    options: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> leasehold::Result<LockClient> {
    let mut builder = options(builder(common)?).observer(Warnings(say));
    let label = label.map(str::to_owned).or_else(|| variable("LEASEHOLD_LABEL"));
    if variable("LEASEHOLD_CLIENT_NAME").is_none() {
        builder = builder.client_name(client_name(label.as_deref()));
    }
    label.iter().fold(builder, |builder, label| builder.label(label)).build()
}

/// For how long a store that is away at the start is waited for.
pub(crate) fn waited_for(want: &Want) -> Duration {
    if want.no_wait { Duration::ZERO } else { args::patience().max(want.wait.unwrap_or_default()) }
}

/// The URL of the store; it may hold a password. Empty, if several servers are named.
pub(crate) fn url(common: &Common) -> String {
    common.url.clone().or_else(|| secret("LEASEHOLD_URL")).unwrap_or_default()
}

/// The URLs of Redlock's servers or a ring's, where the environment names such.
pub(crate) fn urls_of_several() -> Vec<String> {
    let Some(servers) = secret("LEASEHOLD_REDLOCK").or_else(|| secret("LEASEHOLD_RING")) else {
        return Vec::new();
    };
    // A ring's may have a label and a weight before it.
    let url = |word: &str| {
        let scheme = word.find("://").unwrap_or(word.len());
        let at = word.get(..scheme).and_then(|before| before.rfind('=')).map_or(0, |at| at + 1);
        word.get(at..).unwrap_or_default().to_owned()
    };
    servers.split_whitespace().map(url).collect()
}

/// A variable that is set, and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// A variable that may come from a file, as the library reads it: it has said by now what cannot be used.
pub(crate) fn secret(name: &str) -> Option<String> {
    let file = || std::fs::read_to_string(variable(&format!("{name}_FILE"))?).ok();
    variable(name).or_else(|| file().map(|text| text.trim_end_matches(['\r', '\n']).to_owned()))
}

fn builder(common: &Common) -> leasehold::Result<ClientBuilder> {
    let mut builder = ClientBuilder::from_env()?;
    builder = common.url.iter().fold(builder, |builder, url| builder.url(url));
    builder = common.ca.iter().fold(builder, ClientBuilder::tls_ca);
    if let (Some(certificate), Some(key)) = (&common.cert, &common.key) {
        builder = builder.tls_identity(certificate, key);
    }
    // A file is made like any lock file; a table in somebody's database is not made unasked.
    let is_file = url(common).get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("sqlite:"));
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
    if words.contains("there is no table") {
        advice = "here the option --create-schema does that";
    }
    if !advice.is_empty() {
        words += &format!("; {advice}");
    }
    say.error(&words);
    exit
}

/// The text of an error, with its cause.
pub(crate) fn text(error: &Error) -> String {
    match error.source() {
        Some(cause) => format!("{error} ({cause})"),
        None => error.to_string(),
    }
}

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
        ErrorKind::NoPermission => {
            (Exit::NoPermission, "give the user of LEASEHOLD_URL the rights that docs/stores.md lists")
        }
        ErrorKind::Tls => (
            Exit::Unavailable,
            "--ca names the authorities to trust, --cert and --key the certificate of this client (LEASEHOLD_TLS_CA, LEASEHOLD_TLS_CERT, LEASEHOLD_TLS_KEY)",
        ),
        ErrorKind::Unreachable | ErrorKind::TimedOut => {
            (Exit::Unavailable, "is the server of LEASEHOLD_URL up, and can it be reached from here?")
        }
        ErrorKind::ReadOnly => (
            Exit::Unavailable,
            "LEASEHOLD_URL has to name what takes writes: the master, or its Sentinels; a file on a mount that is not read-only",
        ),
        ErrorKind::NotSetUp => (Exit::Unavailable, "somebody removed the permits: run the command again"),
        ErrorKind::OtherFormat => (Exit::Unavailable, "docs/operating.md says which versions may meet"),
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

impl Observer for Warnings {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Warning { text, .. } => self.0.notice("warning", text, &serde_json::json!({})),
            Event::Deadlock { deadlock, .. } => {
                self.0.notice("deadlock", &rings::words(deadlock), &rings::as_json(deadlock));
            }
            _ => {}
        }
    }
}
