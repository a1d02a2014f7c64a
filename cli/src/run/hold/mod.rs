//! `hold` and `release`: a lock within a script. A process, the *keeper*, holds the lock while the shell
//! lives.

pub(crate) mod keeper;
pub(crate) mod lookout;
pub(crate) mod place;
mod shell;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::{Common, Format, HoldArgs, OnLost, ReleaseArgs, RunArgs, Terms};
use crate::run::hold::shell::Shell;
use crate::run::parts::{KeepArgs, Part};
use crate::run::{check, family};
use crate::say::{Ended, Exit, Say, json_text};

const LOST: u8 = 79;

impl HoldArgs {
    fn as_run(&self) -> RunArgs {
        RunArgs {
            name: self.name.clone(),
            want: self.want.clone(),
            terms: Terms {
                command: Vec::new(),
                on_lost: OnLost::Signal(self.signal),
                kill_grace: None,
                lost_exit_code: LOST,
                label: self.label.clone(),
            },
            max_hold: None,
            strict: false,
            on_contended: None,
            leads: false,
        }
    }
}

/// How long `release` waits for the keeper's confirmation. A keeper that is not stopped confirms at once.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// Starts a keeper, and prints the handle of its hold. A signal ends this process as usual; the keeper
/// notices that, and gives up the wait or the lock.
pub(crate) fn hold(common: &Common, args: &HoldArgs) -> Ended {
    let say = Say::new(common);
    family::is_seen(say)?;
    check(args.want.lease.or_default(), "the lease", &args.as_run().terms, say)?;
    let shell = match args.pid {
        Some(pid) => Shell::of(pid).ok_or_else(|| format!("there is no process {pid}")),
        None => Shell::that_calls(),
    };
    let shell = shell.map_err(|words| say.error(&words, Exit::Usage))?;
    begin(common, args, shell, say).map_err(|error| say.internal("the lock cannot be kept", &error))
}

fn begin(common: &Common, args: &HoldArgs, shell: Shell, say: Say) -> std::io::Result<Exit> {
    let (mut keeper, mut stream) = start(args, shell)?;
    let words: Vec<OsString> = std::env::args_os().collect();
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let words = words.join(&0);
    let length = u32::try_from(words.len()).map_err(std::io::Error::other)?;
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(&words)?;

    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line).unwrap_or_default();
    let Some(handle) = answer.get("handle").and_then(Value::as_str) else {
        keeper.wait()?;
        return Ok(code_of(&answer).unwrap_or_else(|| {
            say.error("somebody ended the process that was to keep the lock", Exit::Internal)
        }));
    };
    let text = match common.format {
        Format::Text => format!("{handle}\n"),
        Format::Json => format!("{}\n", json_text(&answer)),
    };
    let mut out = std::io::stdout();
    // If the handle cannot be printed, the keeper gets no byte, and releases the lock.
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    stream.write_all(b"\n")?;
    Ok(Exit::Success)
}

fn start(args: &HoldArgs, shell: Shell) -> std::io::Result<(Child, UnixStream)> {
    let place = place::new()?;
    let (stream, theirs) = UnixStream::pair()?;
    let Shell { pid, began } = shell;
    let mut command = Part::Keep(KeepArgs { name: args.name.clone(), pid, began, place }).program()?;
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
    Ok((command.spawn()?, stream))
}

fn code_of(answer: &Value) -> Option<Exit> {
    let code = answer.get("exit").and_then(Value::as_u64)?;
    u8::try_from(code).ok().map(Exit::Command)
}

pub(crate) fn release(common: &Common, args: &ReleaseArgs) -> Ended {
    let say = Say::new(common);
    let Some(place) = place::of(&args.handle) else {
        return Err(say.error(&format!("{} is not what `leasehold hold` prints", args.handle), Exit::Usage));
    };
    let answer = match ask(place) {
        Ok(answer) => answer,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            place::remove(place); // no process will listen there again
            let words = "this hold has ended: it was released before, or the process that kept it was killed";
            say.notice("lost", words, &json!({}));
            return Ok(Exit::Lost(LOST));
        }
        Err(error) => {
            let words =
                format!("it is unknown whether the lock was released ({error}); it ends with its lease");
            say.notice("release_unknown", &words, &json!({}));
            return Ok(Exit::ReleaseUnknown);
        }
    };
    let exit = code_of(&answer).unwrap_or(Exit::Internal);
    let (words, fields) = (answer.get("words").and_then(Value::as_str), json!({"name": answer.get("name")}));
    let words = words.unwrap_or("the process that kept the lock gave no reason");
    match exit.code() {
        0 => say.detail("released", words, &fields),
        LOST => say.notice("lost", words, &fields),
        _ => say.notice("release_unknown", words, &fields),
    }
    Ok(exit)
}

fn ask(place: &Path) -> std::io::Result<Value> {
    let mut stream = UnixStream::connect(place)?;
    stream.set_read_timeout(Some(HEARD_WITHIN))?;
    stream.write_all(b"release\n")?;
    let mut lines = BufReader::new(&stream);
    let (mut heard, mut answer) = (String::new(), String::new());
    lines.read_line(&mut heard)?;
    // The keeper limits its wait for the store, so this read needs no time-out.
    stream.set_read_timeout(None)?;
    lines.read_line(&mut answer)?;
    serde_json::from_str(&answer).map_err(std::io::Error::other)
}
