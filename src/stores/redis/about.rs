//! A server's answers about itself, and the stored [format number](crate::seam::format).

use std::sync::Arc;

use redis::Value;

use crate::error::{Error, Result};
use crate::seam::format::{check_format, format_text};
use crate::seam::{Answer, Failure};
use crate::stores::redis::conn::connections::Connections;
use crate::stores::redis::keys::Part;
use crate::stores::redis::reply::{Redirect, bytes, done, refusal, refused_by};
use crate::stores::redis::script::Command;
use crate::time::Moment;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) run_id: Option<String>,
    pub(crate) is_cluster_member: bool,
    pub(crate) replicas: u32,
}

impl About {
    pub(super) fn of(connections: &Arc<Connections>, deadline: Moment) -> Result<About> {
        let reply = connections.call(Command::new("INFO"), deadline).map_err(Failure::into_error)?;
        Ok(About::read(&String::from_utf8_lossy(bytes(&done(reply)?)?)))
    }

    fn read(info: &str) -> About {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        About {
            run_id: field("run_id").map(str::to_owned),
            is_cluster_member: field("cluster_enabled") == Some("1"),
            replicas: field("connected_slaves").and_then(|number| number.parse().ok()).unwrap_or(0),
        }
    }
}

pub(super) fn probe() -> Command {
    Command::new("EVAL").arg("return 1").arg(0_u32)
}

pub(super) fn scripts_refused(error: &redis::ServerError) -> Error {
    refused_by("the server does not let this user run scripts, which all locks need", error).during("connect")
}

/// The key of the format number has the prefix of clients' entries in the directory, so that users need no
/// further right. A client's id is a UUID, so no entry has this key.
pub(super) fn format_key() -> String {
    format!("{}format", Part::ClientEntry.text())
}

/// Refuses a server whose stored format number is not this version's. If none is stored, stores this
/// version's, unless `notes` is false. Sends the command `first`, if any, together with the question for the
/// number. Returns whether a number is stored now, and the reply to `first`.
///
/// A user who may not read or write the key can still lock, so a refusal counts as a stored number. With
/// `is_followed` (in a cluster), a redirect is returned as an error, which the caller follows.
pub(super) fn agree_on_format(
    connections: &Connections,
    (notes, is_followed): (bool, bool),
    first: Option<Command>,
    deadline: Moment,
) -> Answer<(bool, Option<Value>)> {
    let get = Command::new("GET").arg(format_key());
    let note = Command::new("SET").arg(format_key()).arg(format_text()).arg("NX");
    let has_first = first.is_some();
    let say = |commands: &[Command]| connections.dialog(deadline, |dialog| dialog.say(commands));
    let replies = say(&first.into_iter().chain([get.clone()]).collect::<Vec<_>>())?;
    let mut is_there = is_noted(replies.last(), is_followed)?;
    if !is_there && notes {
        // The number is read after the write, because another client may have stored another one meanwhile.
        is_there = is_noted(say(&[note, get])?.last(), is_followed)?;
    }
    Ok((is_there, replies.into_iter().next().filter(|_| has_first)))
}

fn is_noted(reply: Option<&Value>, is_followed: bool) -> Answer<bool> {
    match reply {
        Some(Value::BulkString(found)) => {
            let (found, place) = (String::from_utf8_lossy(found), format!("the key {}", format_key()));
            check_format(&found, &place).map(|()| true)
        }
        Some(Value::ServerError(error)) => {
            let error = refusal(error);
            let is_elsewhere = is_followed && Redirect::of(&error).is_some();
            if is_elsewhere { Err(Failure::Refused(error)) } else { Ok(true) }
        }
        _ => Ok(false),
    }
}
