//! The client of the store that `--url`, the environment or a file names, and the exit codes of its errors.

use std::error::Error as _;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use leasehold::program::Settings;
use leasehold::{ClientBuilder, Error, ErrorKind, Event, LockClient, Observer};

use crate::args::{Common, Patience};
use crate::cycles;
use crate::run::hold::place;
use crate::run::signals::Caught;
use crate::say::{Ended, Exit, Say, without_numbers};
use crate::secret;

pub(crate) fn asked(common: &Common, ask: impl FnOnce(&LockClient, Say) -> Ended) -> Ended {
    let say = Say::new(common);
    // A client that only reads needs no entry in the directory of clients.
    let client = open(common, None, say, |builder| builder.directory(false));
    let client = client.map_err(|error| unconnected(common, &error, say))?;
    let ended = ask(&client, say);
    finish(client);
    ended
}

/// Prints why connecting failed, and returns the exit code, as [`explain`] does. If the error may come from
/// TLS on one side only, first tests whether the server uses TLS.
pub(crate) fn unconnected(common: &Common, error: &Error, say: Say) -> Exit {
    let is_silent = matches!(
        error.kind(),
        ErrorKind::Unreachable
            | ErrorKind::TimedOut
            | ErrorKind::Tls
            | ErrorKind::Protocol
            | ErrorKind::Refused
    );
    if is_silent && let Some(words) = mismatch(&settings(common).url) {
        return say.failure(&format!("{words} ({})", text(error)), meaning(error.kind()).0, "Tls");
    }
    explain(error, say)
}

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

/// For a client that polls: limits the retries of one poll to the interval, so that an outage is reported
/// soon. The variable LEASEHOLD_RETRY_TIMEOUT takes precedence.
pub(crate) fn patient(builder: ClientBuilder, interval: Duration) -> ClientBuilder {
    if secret::variable("LEASEHOLD_RETRY_TIMEOUT").is_some() {
        builder
    } else {
        builder.retry_timeout(interval)
    }
}

pub(crate) fn waited_for(asked: &Patience) -> Duration {
    if asked.no_wait {
        Duration::ZERO
    } else {
        environment().retry_timeout.max(asked.wait.unwrap_or_default())
    }
}

/// The settings from the environment, as read at the first use, and the builder that read them. The first
/// call of [`builder`] takes that builder; later calls read the environment again.
static READ: LazyLock<(Settings, Mutex<Option<ClientBuilder>>)> = LazyLock::new(|| {
    let read = ClientBuilder::from_env().ok();
    let settings = read.as_ref().map_or_else(|| ClientBuilder::default().settings(), ClientBuilder::settings);
    (settings, Mutex::new(read))
});

/// The settings from the environment; the defaults if a variable is unusable, which [`open`] reports.
pub(crate) fn environment() -> &'static Settings {
    &READ.0
}

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
    // A SQLite file is created like any lock file, but a table in a database only on request.
    let is_file =
        builder.settings().url.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("sqlite:"));
    if common.create_schema || is_file {
        builder = builder.create_schema(true);
    }
    Ok(builder)
}

fn client_name(label: Option<&str>) -> String {
    let label: String = label
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_ascii_graphic() { c } else { '_' })
        .take(60)
        .collect();
    if label.is_empty() { "leasehold-cli".to_owned() } else { format!("leasehold-cli:{label}") }
}

pub(crate) fn explained(say: Say) -> impl Fn(Error) -> Exit {
    move |error| explain(&error, say)
}

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

pub(crate) fn text(error: &Error) -> String {
    let mut words = error.lock_name().map(|name| format!("{name}: ")).unwrap_or_default();
    words += error.detail();
    let cause = error.source().map(|cause| match cause.downcast_ref::<Error>() {
        Some(error) => error.detail().to_owned(),
        None => cause.to_string(),
    });
    // “Resource temporarily unavailable” is the system's text for a time-out, which `words` names already.
    let cause = cause.filter(|cause| !cause.starts_with("Resource temporarily"));
    if let Some(cause) = cause.filter(|cause| !words.contains(cause)) {
        words += &format!(" ({cause})");
    }
    if error.outcome_unknown() {
        words += " (the store may have carried out the request)";
    }
    let words = without_numbers(&words);
    OF_THE_LIBRARY.iter().fold(words, |words, (theirs, ours)| words.replace(theirs, ours))
}

const OF_THE_LIBRARY: [(&str, &str); 4] = [
    (": call try_set_permits first", ""),
    (", or by password()", ", or in LEASEHOLD_PASSWORD"),
    ("tls_ca", "--ca"),
    ("tls_identity", "--cert"),
];

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

/// Shuts the client down, so that its directory entry leaves the store. Waits at most a second.
pub(crate) fn finish(client: LockClient) {
    finish_within(client, Duration::from_secs(1));
}

pub(crate) fn finish_within(client: LockClient, within: Duration) {
    let (done, is_done) = leasehold::crossbeam_channel::bounded::<()>(0);
    let ending = std::thread::Builder::new().name("shutdown".to_owned()).spawn(move || {
        drop(client.shutdown()); // each failed release was reported
        drop(done);
    });
    if ending.is_ok() {
        is_done.recv_timeout(within).ok();
    }
}

struct Warnings(Say);

/// Phrases by which warnings about a set-up are recognized. Such a warning is printed once: otherwise each
/// run would repeat it until someone changes the set-up.
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
                    if is_lasting { " (printed once; `leasehold doctor` lists it each time)" } else { "" };
                self.0.notice("warning", &format!("{text}{once}"), &serde_json::json!({}));
            }
            Event::Deadlock { deadlock, .. } => {
                self.0.notice("deadlock", &cycles::words(deadlock), &cycles::as_json(deadlock));
            }
            _ => {}
        }
    }
}

const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// The first message of a TLS 1.2 client. A server that uses TLS answers it, by accepting or by an alert.
fn hello() -> Vec<u8> {
    // A handshake record with a ClientHello of 43 bytes; its 32 random bytes need not be random here.
    let head = [0x16, 3, 1, 0, 47, 1, 0, 0, 43, 3, 3];
    let tail = [0, 0, 4, 0xc0, 0x2f, 0xc0, 0x30, 1, 0];
    [&head[..], &[7; 32], &tail].concat()
}

/// URL schemes without TLS and with TLS, and the default port. Databases are left out: they negotiate TLS
/// after connecting.
const SCHEMES: [(&str, &str, u16); 5] = [
    ("redis", "rediss", 6379),
    ("redis-sentinel", "rediss-sentinel", 26379),
    ("redis-cluster", "rediss-cluster", 6379),
    ("etcd", "etcds", 2379),
    ("zk", "zks", 2181),
];

pub(crate) fn mismatch(url: &str) -> Option<String> {
    let (scheme, rest) = url.trim().split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let (plain, secured, port) =
        SCHEMES.into_iter().find(|(plain, secured, _)| scheme == *plain || scheme == *secured)?;
    let hosts = rest.split(['/', '?']).next()?;
    let host = hosts.rsplit('@').next()?.split(',').next()?;
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let place = if has_port { host.to_owned() } else { format!("{host}:{port}") };
    match (speaks_tls(&place)?, scheme == secured) {
        (true, false) => {
            Some(format!("{place} speaks TLS, and the URL does not: it has to begin with {secured}://"))
        }
        (false, true) => Some(format!(
            "{place} does not speak TLS, and the URL does: name the port for TLS, or begin the URL with {plain}://"
        )),
        _ => None,
    }
}

fn speaks_tls(place: &str) -> Option<bool> {
    let address = place.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, PROBE_LIMIT).ok()?;
    stream.set_read_timeout(Some(PROBE_LIMIT)).ok()?;
    stream.write_all(&hello()).ok()?;
    let mut first = [0; 2];
    // A record of TLS begins with its type (alert or handshake) and the major version.
    Some(stream.read_exact(&mut first).is_ok() && matches!(first, [0x15 | 0x16, 3]))
}
