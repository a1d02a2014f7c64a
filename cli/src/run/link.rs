//! The words that the process with the lock and its helper say to each other, one a line, over one socket.
//!
//! | from the supervisor | meaning |
//! |---|---|
//! | `until N` | until instant N the lock is surely held, if nothing else is heard |
//! | `gone` | the lock is lost: somebody else may hold it now |
//! | `asked` | the command was asked to end (TERM): what it leaves behind is to end with it |
//!
//! The end of the socket means that the supervisor is dead.
//!
//! | from the helper | meaning |
//! |---|---|
//! | `started PID` | the command runs; PID is its process group too |
//! | `failed ERRNO` | the command cannot be run |
//! | `late` | the command was not started: the time was over |
//! | `stopped SIGNAL`, `ending`, `exited CODE`, `signaled SIGNAL` | what became of the command; `ending`: by the helper |
//! | `unwatched` | the end of the command could not be seen, so it was ended |
//! | `survivor PID` | a process of the command could not be ended in time |

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use crate::clock::Moment;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Until(Moment),
    Gone,
    Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    Started(i32),
    Failed(i32),
    Late,
    Stopped(i32),
    Ending,
    Exited(i32),
    Signaled(i32),
    Unwatched,
    Survivor(i32),
}

/// A message as a line.
pub(super) trait Line: Sized {
    fn word(&self) -> (&'static str, u64);
    fn of(word: &str, number: u64) -> Option<Self>;
}

impl Line for Order {
    fn word(&self) -> (&'static str, u64) {
        match self {
            Order::Until(moment) => ("until", moment.nanos()),
            Order::Gone => ("gone", 0),
            Order::Asked => ("asked", 0),
        }
    }

    fn of(word: &str, number: u64) -> Option<Order> {
        match word {
            "until" => Some(Order::Until(Moment::from_nanos(number))),
            "gone" => Some(Order::Gone),
            "asked" => Some(Order::Asked),
            _ => None,
        }
    }
}

impl Line for Report {
    fn word(&self) -> (&'static str, u64) {
        let (word, number) = match *self {
            Report::Started(pid) => ("started", pid),
            Report::Failed(errno) => ("failed", errno),
            Report::Late => ("late", 0),
            Report::Stopped(signal) => ("stopped", signal),
            Report::Ending => ("ending", 0),
            Report::Exited(code) => ("exited", code),
            Report::Signaled(signal) => ("signaled", signal),
            Report::Unwatched => ("unwatched", 0),
            Report::Survivor(pid) => ("survivor", pid),
        };
        (word, u64::try_from(number).unwrap_or(0))
    }

    fn of(word: &str, number: u64) -> Option<Report> {
        let number = i32::try_from(number).ok()?;
        match word {
            "started" => Some(Report::Started(number)),
            "failed" => Some(Report::Failed(number)),
            "late" => Some(Report::Late),
            "stopped" => Some(Report::Stopped(number)),
            "ending" => Some(Report::Ending),
            "exited" => Some(Report::Exited(number)),
            "signaled" => Some(Report::Signaled(number)),
            "unwatched" => Some(Report::Unwatched),
            "survivor" => Some(Report::Survivor(number)),
            _ => None,
        }
    }
}

/// Sends one message.
pub(super) fn send(mut stream: &UnixStream, message: &impl Line) -> io::Result<()> {
    let (word, number) = message.word();
    stream.write_all(format!("{word} {number}\n").as_bytes())
}

/// Reads messages until the other side is gone; each is given to `each`, which says whether to go on.
pub(super) fn receive<M: Line>(stream: UnixStream, mut each: impl FnMut(M) -> bool) {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        match lines.read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let (word, number) = line.trim_end().split_once(' ').unwrap_or(("", ""));
        let message = number.parse().ok().and_then(|number| M::of(word, number));
        if message.is_some_and(|message| !each(message)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_were_sent() {
        let (one, other) = UnixStream::pair().unwrap();
        let reports = [
            Report::Started(7),
            Report::Failed(2),
            Report::Late,
            Report::Stopped(20),
            Report::Ending,
            Report::Exited(0),
            Report::Signaled(9),
            Report::Unwatched,
            Report::Survivor(71),
        ];
        for report in reports {
            send(&one, &report).unwrap();
        }
        drop(one);
        let mut came = Vec::new();
        receive(other, |report: Report| {
            came.push(report);
            true
        });
        assert_eq!(came, reports);
    }
}
