//! The lookout: a process beside a keeper that signals the shell in time, even if the keeper is stopped or
//! killed. Like the [helper](crate::run::helper), it knows nothing about locks, only until when the lock is
//! certainly held.

use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use leasehold::crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};

use crate::clock::Moment;
use crate::run::family;
use crate::run::helper::CHECK_EVERY;
use crate::run::hold::place;
use crate::run::hold::shell::Shell;
use crate::run::parts::{self, LookoutArgs, Order, Part};
use crate::run::signals::{self, Caught};
use crate::say::Exit;

pub(crate) fn lookout(args: &LookoutArgs) -> Exit {
    match look_out(args) {
        Ok(()) => Exit::Success,
        Err(_) => Exit::Internal, // the closed socket tells the keeper
    }
}

fn look_out(args: &LookoutArgs) -> std::io::Result<()> {
    signals::outlive_signals()?;
    let mut awake = family::Awake::new(); // the keeper, which would continue this process, may be stopped too
    let stream = UnixStream::from(stdin().as_fd().try_clone_to_owned()?);
    let (sender, orders) = unbounded();
    std::thread::Builder::new()
        .name("orders".to_owned())
        .spawn(move || parts::receive(stream, |order: Order| sender.send(order).is_ok()))?;
    let (shell, mut until) = (Shell { pid: args.pid, began: args.began }, Moment::NEVER);
    let mut is_told = false;
    let mut tell = || {
        if !std::mem::replace(&mut is_told, true) {
            shell.signal(args.signal);
        }
    };
    loop {
        let due = until.minus(args.before);
        awake.put_off(due);
        let left = due.since(Moment::now());
        if left.is_zero() {
            tell();
        }
        match orders.recv_timeout(if left.is_zero() { CHECK_EVERY } else { CHECK_EVERY.min(left) }) {
            // Before the first order `until` is `NEVER`, which `max` would keep.
            Ok(Order::Until(next)) => until = if until == Moment::NEVER { next } else { until.max(next) },
            Ok(Order::Gone) => tell(),
            Ok(Order::Asked) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                tell();
                place::remove(&args.place);
                return Ok(());
            }
        }
    }
}

pub(super) struct Lookout {
    process: Child,
    stream: UnixStream,
    ended: Receiver<()>,
    until: Moment,
}

impl Lookout {
    pub(super) fn start(args: &LookoutArgs, caught: &Caught) -> std::io::Result<Lookout> {
        let (stream, theirs) = UnixStream::pair()?;
        // A lookout that does not read must not block the keeper.
        stream.set_write_timeout(Some(Duration::from_millis(50)))?;
        let (alive, ended) = unbounded();
        let reading = stream.try_clone()?;
        std::thread::Builder::new().name("lookout".to_owned()).spawn(move || {
            parts::receive(reading, |_: Order| true);
            drop(alive);
        })?;
        let mut command = Part::Lookout(args.clone()).program()?;
        // The lookout must not keep open standard error, which may be a pipe that the shell reads to its end.
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::null());
        // No later step may fail: if this process closed the socket, the lookout would signal the shell.
        let process = caught.spawn(&mut command)?;
        Ok(Lookout { process, stream, ended, until: Moment::from_nanos(0) })
    }

    pub(super) fn ended(&self) -> Receiver<()> {
        self.ended.clone()
    }

    pub(super) fn beat(&mut self, until: Moment) {
        family::wake(&self.process);
        if until > self.until.plus(Duration::from_millis(1))
            && parts::send(&self.stream, &Order::Until(until)).is_ok()
        {
            self.until = until;
        }
    }

    pub(super) fn gone(&self) {
        drop(parts::send(&self.stream, &Order::Gone)); // if this fails, the lookout acts when the window ends
    }

    pub(super) fn end(mut self, caught: &Caught) {
        drop(self.process.kill());
        caught.wait(&mut self.process);
    }
}
