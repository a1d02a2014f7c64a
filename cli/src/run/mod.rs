//! `run`, `once` and `elect`: a command under a lock.

mod acquire;
mod family;
mod helper;
pub(crate) mod hold;
mod messages;
mod office;
pub(crate) mod parts;
pub(crate) mod signals;
mod supervisor;
mod terminal;
pub(crate) mod times;

use std::sync::Arc;
use std::time::Duration;

use leasehold::{ClientBuilder, ErrorKind, LockClient, OwnedGuard};
use serde_json::json;

use crate::args::{Common, ElectArgs, OnceArgs, RunArgs, Terms, Want};
use crate::clock::Moment;
use crate::job::{self, State};
use crate::run::office::{Office, Stage};
use crate::run::signals::{Caught, Inherited};
use crate::run::supervisor::{RELEASE_AFTER_SIGNAL, Task};
use crate::say::{Ended, Exit, SIGINT, Say};
use crate::store;

const PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn run(common: &Common, args: &RunArgs) -> Ended {
    let lease = args.want.lease.or_default();
    let least = args.max_hold.map_or(lease, |most| most.min(lease));
    check(least, "the lease, or --max-hold", &args.terms, Say::new(common))?;
    let (away, begun) = (store::waited_for(&args.want.patience), Moment::now());
    let label = args.terms.label();
    with_client(common, args.want.lease.lease, label, away, None, |client, caught, say| {
        let args = RunArgs { want: args.want.since(begun), ..args.clone() };
        hold(client, &args, None, caught, say)
    })
}

fn check(asked: Duration, what: &str, terms: &Terms, say: Say) -> Result<(), Exit> {
    let refused = |words| Err(say.error(&format!("{what} ({asked:?}): {words}"), Exit::Usage));
    times::why_too_short(asked, terms).map_or(Ok(()), refused)
}

pub(crate) fn elect(common: &Common, args: &ElectArgs) -> Ended {
    let mut candidate = RunArgs {
        name: args.name.clone(),
        want: Want { patience: args.patience.clone(), lease: args.lease.clone(), ..Want::default() },
        terms: args.terms.clone(),
        max_hold: None,
        strict: args.strict,
        on_contended: None,
        leads: true,
    };
    let say = Say::new(common);
    check(args.lease.or_default(), "the lease", &args.terms, say)?;
    // The program listens before the election, so that an unusable address fails at once.
    let office = args.listen.as_ref().map(|address| Office::listening(address, say)).transpose()?;
    let office = office.map(Arc::new);
    let is_patient = args.patience.wait.is_none() && !args.patience.no_wait;
    let away = if is_patient { Duration::MAX } else { store::waited_for(&args.patience) };
    let label = args.terms.label();
    with_client(common, args.lease.lease, label, away, office.as_ref(), |client, caught, say| {
        office.as_ref().map_or(Ok(()), |office| office.reach(client, &args.name, say))?;
        loop {
            let exit = hold(client, &candidate, office.as_deref(), caught, say).unwrap_or_else(|exit| exit);
            let patience = &mut candidate.want.patience;
            let is_patient = patience.wait.is_none() && !patience.no_wait;
            let stands_again = match exit {
                Exit::Lost(_) => !args.one_term,
                Exit::Unavailable => is_patient && !args.one_term,
                _ => false,
            };
            if !stands_again || caught.is_asked_to_end() {
                return Ok(exit);
            }
            (patience.no_wait, patience.wait) = (false, None);
            if let Some(signal) = caught.wait_again(PAUSE) {
                return Ok(Exit::Signal(signal));
            }
            say.notice("candidate", &format!("stands for {} again", args.name), &json!({"name": args.name}));
            if let Some(office) = &office {
                office.set(Stage::Stands);
            }
        }
    })
}

pub(crate) fn once(common: &Common, args: &OnceArgs) -> Ended {
    let (name, say) = (&args.name, Say::new(common));
    check(args.at_most, "--at-most", &args.terms, say)?;
    if args.at_least > args.at_most {
        let words = format!("--at-least ({:?}) is longer than --at-most ({:?})", args.at_least, args.at_most);
        return Err(say.error(&words, Exit::Usage));
    }
    let label = args.terms.label();
    with_client(common, None, label, store::environment().retry_timeout, None, |client, caught, say| {
        let (mut ran, asked) = (None, Moment::now());
        let outcome = client.run_once_fenced(name, args.at_least, args.at_most, |guard| {
            let begun = Moment::now();
            messages::acquired(name, guard, begun.since(asked), say);
            let task = Task {
                name,
                terms: &args.terms,
                window: guard.remaining(),
                max_hold: Some(args.at_most),
                is_renewed: false,
                strict: false,
                on_contended: None,
                office: None,
            };
            let end = supervisor::supervise(&task, guard, caught, say);
            let words = format!("it is unknown for how long {name} counts as run");
            let fields = json!({"name": name});
            let last_words = move || say.notice("release_unknown", &words, &fields);
            // If no thread can be started, a signal takes effect only after the store's answer.
            caught.end_by_signal(RELEASE_AFTER_SIGNAL, last_words).ok();
            if !end.was_never_begun {
                record(client, guard, end.exit, Moment::now().since(begun), say);
            }
            messages::ended(name, begun.since(asked), begun, end.exit, say);
            if matches!(end.exit, Exit::Command(1..) | Exit::Signal(_)) {
                let code = end.exit.code();
                let words = format!(
                    "{name} failed with {code}, and counts as run: no machine runs it again within {:?} of its begin",
                    args.at_least
                );
                say.notice("failed", &words, &json!({"name": name, "exit_code": code}));
            }
            ran = Some((end, guard.owner().to_string()));
        });
        let ran = ran.map(|(ran, owner)| {
            if ran.was_never_begun {
                leave_to_others(client, name, &owner, say);
            }
            ran.exit
        });
        Ok(match (ran, outcome) {
            (None, Ok(_)) => is_run(client, name, args.conflict_exit_code, say),
            (None, Err(error)) if error.kind() == ErrorKind::Unsupported => {
                say.error(&format!("{}; {NO_ONCE}", store::text(&error)), Exit::Usage)
            }
            (None, Err(error)) => store::explain(&error, say),
            // The supervisor has printed how the hold ended, so an error of the release adds nothing.
            (Some(exit @ (Exit::Lost(_) | Exit::MaxHold | Exit::Survivor)), _) | (Some(exit), Ok(_)) => exit,
            (Some(exit), Err(error)) => {
                let words =
                    format!("it is unknown for how long {name} counts as run: {}", store::text(&error));
                say.notice("release_unknown", &words, &json!({"name": name}));
                exit
            }
        })
    })
}

const NO_ONCE: &str = "`leasehold run -n` there keeps others out while the command runs, and no longer, and `elect` keeps one scheduler; \
                       `once` needs Redis, PostgreSQL, MySQL, MariaDB or SQLite";

/// Records in the store how the job ended, unless the lock is lost: then the job may be another owner's.
fn record(client: &LockClient, guard: &OwnedGuard, exit: Exit, took: Duration, say: Say) {
    if matches!(exit, Exit::Lost(_)) {
        return;
    }
    if let Err(error) = client.record_run(guard, exit.code(), took) {
        let words = format!("how {} ended is not recorded: {}", guard.name(), store::text(&error));
        say.notice("unrecorded", &words, &json!({"name": guard.name()}));
    }
}

fn is_run(client: &LockClient, name: &str, code: u8, say: Say) -> Exit {
    if !say.is_quiet()
        && let (Ok(shown), Ok(Some(last))) = (client.inspect(name), client.last_run(name))
        && State::of(&shown, &last) == State::HasRun
    {
        let words = format!("{name} has run within --at-least: {}", job::as_text(&last));
        say.notice(
            "has_run",
            &words,
            &json!({"name": name, "last_run": job::as_json(State::of(&shown, &last), &last)}),
        );
        return Exit::Busy(code);
    }
    messages::busy(client, name, "runs already", code, say)
}

/// Releases the lock of a job whose command never started, so that another machine can run the job before
/// `--at-least` is over.
fn leave_to_others(client: &LockClient, name: &str, owner: &str, say: Say) {
    let Ok(shown) = client.inspect(name) else { return };
    // `force_unlock` would free another owner's lock too, so this lock must outlast the request.
    let is_kept = shown.remaining.is_some_and(|left| left > 2 * store::environment().command_timeout);
    if is_kept
        && shown.holders.iter().all(|holder| holder.owner == owner)
        && client.get_lock(name).force_unlock().is_ok()
    {
        let words = format!("{name} does not count as run: its command was never started");
        say.notice("not_run", &words, &json!({"name": name}));
    }
}

fn connect(
    common: &Common,
    lease: Option<Duration>,
    label: Option<&str>,
    away: Duration,
    caught: &Caught,
    say: Say,
) -> Result<LockClient, Exit> {
    let (mut was_said, give_up) = (false, Moment::now().plus(away));
    loop {
        let error = match store::open_unless(caught, common, label, say, lease_of(lease))? {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        let is_for_good = matches!(error.kind(), ErrorKind::Tls | ErrorKind::TooOld);
        let is_away = store::meaning(error.kind()).0 == Exit::Unavailable && !is_for_good;
        if !is_away || Moment::now() >= give_up {
            return Err(store::unconnected(common, &error, say));
        }
        if !was_said {
            store::unconnected(common, &error, say);
            say.notice("away", "the store is waited for", &json!({}));
            was_said = true;
        }
        if let Ok(signal) = caught.signals.recv_timeout(PAUSE) {
            return Err(Exit::Signal(signal));
        }
    }
}

fn lease_of(lease: Option<Duration>) -> impl FnOnce(ClientBuilder) -> ClientBuilder + Send + 'static {
    move |builder| {
        let builder = lease.into_iter().fold(builder, ClientBuilder::lease);
        hold::place::owners_above().iter().fold(builder, ClientBuilder::under_hold)
    }
}

fn with_client(
    common: &Common,
    lease: Option<Duration>,
    label: Option<String>,
    away: Duration,
    office: Option<&Arc<Office>>,
    act: impl FnOnce(&LockClient, &Caught, Say) -> Ended,
) -> Ended {
    let say = Say::new(common);
    family::is_seen(say)?;
    let inherited = Inherited::take();
    signals::ignore_terminal_output_stop();
    family::adopt_orphans();
    let caught = Caught::with(inherited).map_err(|error| say.internal("signals cannot be caught", &error))?;
    office.map_or(Ok(()), |office| office.open(say))?;
    let client = connect(common, lease, label.as_deref(), away, &caught, say)?;
    let ended = act(&client, &caught, say);
    if caught.is_hurried() {
        store::finish_within(client, Duration::ZERO);
    } else {
        store::finish(client);
    }
    ended
}

fn hold(client: &LockClient, args: &RunArgs, office: Option<&Office>, caught: &Caught, say: Say) -> Ended {
    let asked = Moment::now();
    let (guard, window) = acquire::acquire(client, args, caught, say)?;
    let (granted, waited) = (Moment::now(), Moment::now().since(asked));
    messages::acquired(&args.name, &guard, waited, say);
    let task = Task {
        name: &args.name,
        terms: &args.terms,
        window,
        max_hold: args.max_hold,
        is_renewed: acquire::is_renewed(args),
        strict: args.strict,
        on_contended: args.on_contended,
        office,
    };
    let exit = supervisor::supervise_and_release(&task, guard, caught, say);
    messages::ended(&args.name, waited, granted, exit, say);
    Ok(exit)
}

/// If `exit` says SIGINT, ends this process by SIGINT itself: a shell ends its loop or script only if the
/// signal killed the process. The shell sees the same exit code.
pub(crate) fn end_as_interrupted(exit: Exit) {
    if exit == Exit::Signal(SIGINT) && terminal::is_foreground() {
        signal_hook::low_level::emulate_default_handler(SIGINT).ok();
    }
}
