//! The helper: the process between the supervisor, which holds the lock, and the command. The helper ends the
//! command in time whatever happens to the supervisor.
//!
//! The helper knows nothing about locks. Each [`Order::Until`] says until when the lock is certainly held, by
//! a clock that all processes of the machine share. A little earlier the helper kills the command and [its
//! descendants](super::family) ([`OnLost::Kill`]), unless a later order came. A stopped or killed supervisor
//! sends none.

use std::ffi::{CString, OsString};
use std::io::{IoSliceMut, stdin};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use leasehold::crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use nix::unistd::execvp;
use rustix::io::FdFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitId, WaitIdOptions, getppid, waitid};
use signal_hook::consts::{SIGCONT, SIGKILL, SIGTERM};

use crate::args::OnLost;
use crate::clock::Moment;
use crate::run::family::{self, Awake, Cgroup, Family, POLL, kill_group};
use crate::run::parts::{self, BecomeArgs, HelperArgs, Order, Part, Report};
use crate::run::signals;
use crate::say::Exit;

/// The longest pause between two looks at the clock, which may jump while the machine sleeps.
pub(super) const CHECK_EVERY: Duration = Duration::from_millis(100);

enum Event {
    Order(Order),
    Orphaned,
    Stopped(i32),
    /// The command is dead but not reaped, so no other process can have its pid.
    Dead(Report),
}

pub(crate) fn helper(args: &HelperArgs, command: &[OsString]) -> Exit {
    signals::ignore_terminal_output_stop();
    match serve(args, command) {
        Ok(()) => Exit::Success,
        Err(_) => Exit::Internal, // the closed socket tells the supervisor
    }
}

/// Replaces this process, a child of the helper, by the command. The kernel kills the command when the helper
/// dies: otherwise a helper that is killed before it reports the start would leave a command of which the
/// supervisor does not know.
pub(crate) fn become_command(args: &BecomeArgs, command: &[OsString]) -> Exit {
    #[cfg(target_os = "linux")]
    if rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).is_err() {
        return Exit::Internal;
    }
    // If the helper died before the call above, the kernel will not kill this process, so it must end itself.
    // It notices the death by its new parent.
    if getppid().and_then(|parent| u32::try_from(parent.as_raw_nonzero().get()).ok()) != Some(args.parent) {
        return Exit::Internal;
    }
    if let Some(cgroup) = &args.cgroup {
        // A failure is ignored, since the helper also finds descendants without the control group.
        std::fs::write(cgroup.join("cgroup.procs"), "0").ok();
    }
    let words: Result<Vec<CString>, _> = command.iter().map(|word| CString::new(word.as_bytes())).collect();
    let Ok(words) = words else { return Exit::Usage };
    let Some(program) = words.first() else { return Exit::Usage };
    args.inherited.restore();
    let Err(error) = execvp(program, &words);
    let error = std::io::Error::from(error);
    let is_there = error.kind() != std::io::ErrorKind::NotFound;
    let exit = if is_there { Exit::CannotRun } else { Exit::NotFound };
    args.say.error(&format!("{} cannot be run: {error}", program.to_string_lossy()), exit)
}

fn serve(args: &HelperArgs, words: &[OsString]) -> std::io::Result<()> {
    signals::outlive_signals()?;
    let mut awake = Awake::new();
    awake.put_off(Moment::NEVER);
    family::adopt_orphans();
    let stream = UnixStream::from(stdin().as_fd().try_clone_to_owned()?);
    let input = receive_input(&stream)?;
    // A supervisor that does not read must not block this process, which has to end the command.
    stream.set_write_timeout(Some(Duration::from_millis(50)))?;
    let (sender, events) = unbounded();
    let (orders, reading) = (sender.clone(), stream.try_clone()?);
    std::thread::Builder::new().name("orders".to_owned()).spawn(move || {
        parts::receive(reading, |order| orders.send(Event::Order(order)).is_ok());
        drop(orders.send(Event::Orphaned));
    })?;
    let Ok(Event::Order(Order::Until(until))) = events.recv() else { return Ok(()) };
    if Moment::now() >= until.minus(args.margin) {
        return parts::send(&stream, &Report::Late);
    }
    // The command inherits `lost`, which becomes readable at a loss, or when the helper ends the command.
    let (lost, loses) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::fcntl_setfd(&lost, FdFlags::empty())?;
    let cgroup = Cgroup::make(std::process::id());
    let mut command = Part::Become(BecomeArgs {
        say: args.say,
        parent: std::process::id(),
        inherited: args.inherited,
        cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
    })
    .program()?;
    command.args(words).env("LEASEHOLD_LOST_FD", lost.as_raw_fd().to_string());
    let started = command.stdin(Stdio::from(input)).process_group(0).spawn();
    drop((lost, command));
    let child = match started {
        Ok(child) => child,
        Err(error) => return parts::send(&stream, &Report::Failed(error.raw_os_error().unwrap_or(0))),
    };
    let number = i32::try_from(child.id()).unwrap_or(0);
    let Some(group) = Pid::from_raw(number) else { return Ok(()) };
    tell(&stream, Report::Started(number));
    let watched = Watched { events: sender, report: None };
    std::thread::Builder::new().name("child".to_owned()).spawn(move || watch(group, watched))?;
    let family = Family { group, helper: None, cgroup };
    let helper = Helper {
        args,
        awake,
        family,
        stream: &stream,
        loses: Some(loses),
        until,
        stage: Stage::Running,
        is_asked: false,
        has_all_orders: false,
        ended: None,
    };
    helper.run(&events);
    Ok(())
}

fn receive_input(stream: &UnixStream) -> std::io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    rights.ok_or_else(|| std::io::Error::other("no input came"))
}

fn tell(stream: &UnixStream, report: Report) {
    drop(parts::send(stream, &report));
}

/// Reports the command's end when dropped, so also after an error: without a report the supervisor would
/// renew the lock for ever.
struct Watched {
    events: Sender<Event>,
    report: Option<Report>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.events.send(Event::Dead(self.report.unwrap_or(Report::Unwatched))));
    }
}

fn watch(child: Pid, mut watched: Watched) {
    let any = WaitIdOptions::EXITED | WaitIdOptions::STOPPED;
    loop {
        let status = match waitid(WaitId::Pid(child), any | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => status,
            Err(rustix::io::Errno::INTR) | Ok(None) => continue,
            Err(_) => return,
        };
        if let Some(signal) = status.stopping_signal() {
            // This call consumes the stop, so that the next `waitid` does not report it again.
            waitid(WaitId::Pid(child), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG).ok();
            drop(watched.events.send(Event::Stopped(signal)));
            continue;
        }
        watched.report = Some(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Report::Exited(code),
            (None, signal) => Report::Signaled(signal.unwrap_or(SIGKILL)),
        });
        return;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Ending { kill_at: Moment },
    Killed,
    Tolerated,
}

struct Helper<'a> {
    args: &'a HelperArgs,
    awake: Awake,
    family: Family,
    stream: &'a UnixStream,
    loses: Option<OwnedFd>,
    until: Moment,
    stage: Stage,
    /// Whether the supervisor sent TERM to the command, so that all processes of the command must end too.
    is_asked: bool,
    /// Whether all orders have been read. After the command's end the helper waits for that, because the
    /// order that caused the end may be unread.
    has_all_orders: bool,
    ended: Option<Report>,
}

impl Helper<'_> {
    fn run(mut self, events: &Receiver<Event>) {
        loop {
            self.awake.put_off(self.next());
            self.act(Moment::now());
            if let Some(report) = self.ended.filter(|_| self.has_all_orders && self.is_over()) {
                return self.conclude(report);
            }
            let limit = match self.stage {
                Stage::Killed => POLL,
                // Each check for descendants reads /proc, and the grace may be long, so checks are rare.
                _ if self.ended.is_some() => 4 * POLL,
                _ => CHECK_EVERY,
            };
            let wait = self.next().since(Moment::now()).min(limit);
            match events.recv_timeout(wait) {
                Ok(Event::Order(Order::Until(until))) => self.until = self.until.max(until),
                Ok(Event::Order(Order::Gone)) => self.gone(),
                Ok(Event::Order(Order::Asked)) => {
                    self.is_asked = true;
                    self.end_rest();
                }
                Ok(Event::Orphaned) => self.orphaned(),
                Ok(Event::Stopped(signal)) => self.stopped(signal),
                Ok(Event::Dead(report)) => self.dead(report),
                Err(RecvTimeoutError::Timeout) => {}
                // Both sending threads have ended. If no report came, nothing watches the command.
                Err(RecvTimeoutError::Disconnected) if self.ended.is_none() => self.dead(Report::Unwatched),
                // Without senders `recv_timeout` returns at once, so the wait is here.
                Err(RecvTimeoutError::Disconnected) => std::thread::park_timeout(wait),
            }
            self.family.reap();
        }
    }

    fn limit(&self) -> Moment {
        self.until.minus(self.args.margin)
    }

    fn next(&self) -> Moment {
        match (self.stage, self.args.on_lost) {
            (Stage::Running, OnLost::Kill) => self.limit().minus(self.args.grace),
            (Stage::Running, _) => self.limit(),
            (Stage::Ending { kill_at }, _) => kill_at.min(self.limit()),
            // The kill is repeated, since a process that was forking may have left a child.
            (Stage::Killed, _) => Moment::now().plus(POLL),
            (Stage::Tolerated, _) => Moment::NEVER,
        }
    }

    fn act(&mut self, now: Moment) {
        if self.stage == Stage::Killed {
            return self.family.kill();
        }
        if now < self.next() {
            return;
        }
        match (self.stage, self.args.on_lost) {
            (Stage::Running, OnLost::Kill) if now >= self.limit() => self.kill(),
            (Stage::Running, OnLost::Kill) => self.terminate(now),
            (Stage::Running, OnLost::Signal(_) | OnLost::Ignore) => self.tolerate(),
            (Stage::Ending { .. }, _) => self.kill(),
            (Stage::Killed | Stage::Tolerated, _) => {}
        }
    }

    fn terminate(&mut self, now: Moment) {
        self.loses = None;
        tell(self.stream, Report::Ending);
        self.family.signal(SIGTERM);
        // A stopped process handles TERM only after it continues.
        self.family.signal(SIGCONT);
        self.stage = Stage::Ending { kill_at: now.plus(self.args.grace).min(self.limit()) };
    }

    fn kill(&mut self) {
        // The kill comes first, since the other steps may take time.
        self.family.kill();
        self.loses = None;
        if self.stage == Stage::Running {
            tell(self.stream, Report::Ending);
        }
        self.stage = Stage::Killed;
    }

    fn tolerate(&mut self) {
        self.loses = None;
        if let OnLost::Signal(signal) = self.args.on_lost {
            kill_group(self.family.group, signal);
        }
        self.stage = Stage::Tolerated;
    }

    /// Called when the supervisor reports that the lock is lost: another process may have it, so the command
    /// gets no grace.
    fn gone(&mut self) {
        match (self.stage, self.args.on_lost) {
            (Stage::Running | Stage::Ending { .. }, OnLost::Kill) => self.kill(),
            (Stage::Running, _) => self.tolerate(),
            _ => {}
        }
    }

    /// Called when all orders have been read: the command has ended, or no supervisor is left to renew the
    /// lock. With [`OnLost::Kill`] a running command gets TERM at once: no later order can postpone its end.
    fn orphaned(&mut self) {
        self.has_all_orders = true;
        if self.ended.is_none() && (self.stage, self.args.on_lost) == (Stage::Running, OnLost::Kill) {
            self.terminate(Moment::now());
        }
    }

    fn stopped(&self, signal: i32) {
        match self.stage {
            Stage::Ending { .. } => kill_group(self.family.group, SIGCONT),
            _ => tell(self.stream, Report::Stopped(signal)),
        }
    }

    fn dead(&mut self, report: Report) {
        self.ended = Some(report);
        // The helper waits for `has_all_orders`: after this, `orders` reads the rest and sends `Orphaned`.
        self.stream.shutdown(Shutdown::Read).ok();
        if report == Report::Unwatched {
            self.kill();
        }
        self.end_rest();
    }

    /// Once the command has ended and the supervisor has sent it TERM, the processes that the command started
    /// get the grace, and are then killed. Without TERM they may go on.
    fn end_rest(&mut self) {
        if self.ended.is_some() && self.is_asked && self.stage == Stage::Running {
            let kill_at = Moment::now().plus(self.args.grace).min(self.limit());
            self.stage = Stage::Ending { kill_at };
        }
    }

    fn is_over(&self) -> bool {
        match self.stage {
            Stage::Running | Stage::Tolerated => true,
            Stage::Ending { .. } | Stage::Killed => self.family.is_gone() || Moment::now() >= self.until,
        }
    }

    fn conclude(self, report: Report) {
        if self.stage == Stage::Killed {
            for pid in self.family.survivors() {
                tell(self.stream, Report::Survivor(pid));
            }
        }
        waitid(WaitId::Pid(self.family.group), WaitIdOptions::EXITED).ok();
        if let Some(cgroup) = &self.family.cgroup {
            cgroup.remove();
        }
        tell(self.stream, report);
    }
}
