//! The server's description of itself, and whether it lets scripts run.

use crate::error::{Error, ErrorKind, Result};
use crate::seam::Failure;
use crate::stores::redis::conn::connections::Connections;
use crate::stores::redis::reply::{self, Expected};
use crate::stores::redis::script::Command;
use crate::time::Moment;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct About {
    /// A random text that the server draws at each start.
    pub(crate) run_id: Option<String>,
    pub(crate) is_cluster_member: bool,
    pub(crate) replicas: u32,
}

impl About {
    pub(super) fn of(connections: &Connections, deadline: Moment) -> Result<About> {
        let reply = connections.call(&Command::new("INFO"), deadline).map_err(Failure::into_error)?;
        let reply = reply::accepted(reply).map_err(|error| reply::refusal(&error, Expected::Nothing))?;
        match reply {
            redis::Value::BulkString(text) => Ok(About::read(&String::from_utf8_lossy(&text))),
            other => Err(reply::unexpected(&other)),
        }
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
    let refused = reply::refusal(error, Expected::Nothing).during("connect");
    match refused.kind() {
        ErrorKind::NoPermission | ErrorKind::Unsupported | ErrorKind::Refused => Error::new(
            refused.kind(),
            "connect",
            "the server does not let this user run scripts, which all but token locks need (see without_scripts)",
        )
        .with_source(refused),
        _ => refused,
    }
}
