//! The messages that the process with the lock and its helper send each other over one socket, one a line.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Moment;

/// From the process with the lock. The end of the socket means that this process is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// Until this instant the lock is surely held, if nothing else is heard.
    Until(Moment),
    Gone,
    /// The command was asked to end (TERM): what it leaves behind is to end with it.
    Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    /// The command runs; its number is its process group's too.
    Started(i32),
    Failed(i32),
    Late,
    Stopped(i32),
    Ending,
    Exited(i32),
    Signaled(i32),
    /// The end of the command could not be seen, so it was ended.
    Unwatched,
    Survivor(i32),
}

pub(super) fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(format!("{}\n", serde_json::to_string(message)?).as_bytes())
}

pub(super) fn receive<M: DeserializeOwned>(stream: UnixStream, mut each: impl FnMut(M) -> bool) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        if serde_json::from_str(&line).is_ok_and(|message| !each(message)) {
            return;
        }
    }
}
