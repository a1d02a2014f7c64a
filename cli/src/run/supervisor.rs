//! The supervisor: the process that holds the lock. It sends its helper the time until which the lock is
//! held, forwards signals to the command, and reports the command's end.

use std::io::{IoSlice, stdin};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use leasehold::crossbeam_channel::{Receiver, bounded, never, select, unbounded};
use leasehold::{HoldState, Loss, LossReason, OwnedGuard};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde_json::json;
use signal_hook::consts::{SIGCONT, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};
use signal_hook::low_level::signal_name;

use crate::args::{OnLost, Terms};
use crate::clock::Moment;
use crate::run::family::{self, Cgroup, Family, kill_group};
use crate::run::hold::place;
use crate::run::office::{Office, Stage};
use crate::run::parts::{self, HelperArgs, Order, Part, Report};
use crate::run::signals::{self, Caught};
use crate::run::terminal::{Terminal, has_job_control};
use crate::run::times::{self, Times};
use crate::say::{Exit, Say};
use crate::secret;
use crate::store;

/// How long to wait for the release of the lock after a signal; the store usually answers sooner.
pub(super) const RELEASE_AFTER_SIGNAL: Duration = Duration::from_millis(500);

pub(crate) struct Task<'a> {
    pub(crate) name: &'a str,
    pub(crate) terms: &'a Terms,
    pub(crate) window: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) is_renewed: bool,
    pub(crate) strict: bool,
    pub(crate) on_contended: Option<i32>,
    pub(crate) office: Option<&'a Office>,
}

pub(crate) fn supervise_and_release(task: &Task<'_>, guard: OwnedGuard, caught: &Caught, say: Say) -> Exit {
    match supervise(task, &guard, caught, say).exit {
        // The exit code is fixed, so nothing waits for the release, which the dropped guard sends.
        lost @ (Exit::Lost(_) | Exit::Survivor) => lost,
        exit => released(task, guard, exit, caught, say),
    }
}

pub(super) struct Supervised {
    pub(super) exit: Exit,
    pub(super) was_never_begun: bool,
}

pub(super) fn supervise(task: &Task<'_>, guard: &OwnedGuard, caught: &Caught, say: Say) -> Supervised {
    let granted = Moment::now();
    let times = Times::of(task.window, task.terms.kill_grace);
    let ceiling = task.max_hold.map_or(Moment::NEVER, |most| granted.plus(most));
    let never_begun = |exit| Supervised { exit, was_never_begun: true };
    let contended = match wanted_by_others(task, guard) {
        Ok(contended) => contended,
        Err(error) => {
            let words = format!("--on-contended: {}", store::text(&error));
            return never_begun(say.error(&words, Exit::Usage));
        }
    };
    let helper = match caught.stop_waiting().and_then(|()| Helper::start(task, guard, times, caught, say)) {
        Ok(helper) => helper,
        Err(error) => return never_begun(say.internal("the helper process cannot be started", &error)),
    };
    let lost = guard.lost();
    let supervisor = Supervisor {
        task,
        guard,
        helper,
        times,
        ceiling,
        say,
        terminal: Terminal::open(),
        group: None,
        unheard: Vec::new(),
        until: Moment::from_nanos(0),
        is_ending: false,
        is_lost: false,
        is_gone: false,
        was_never_begun: false,
        has_survivor: false,
    };
    supervisor.run(caught, lost, contended)
}

fn wanted_by_others(task: &Task<'_>, guard: &OwnedGuard) -> leasehold::Result<Receiver<()>> {
    let (sender, contended) = bounded(1);
    match task.on_contended {
        Some(_) => guard.on_contended(move || sender.try_send(()).unwrap_or_default())?, // one message is enough
        None => return Ok(never()),
    }
    Ok(contended)
}

fn under(guard: &OwnedGuard) -> String {
    /// The most owners that LEASEHOLD_UNDER names: the innermost, if `leasehold run` is nested more deeply.
    const MOST: usize = 16;
    let above = secret::variable("LEASEHOLD_UNDER").unwrap_or_default();
    let mut all = vec![guard.owner().to_string()];
    all.extend(place::owners_above());
    all.extend(above.split_whitespace().map(str::to_owned));
    all.truncate(MOST);
    all.join(" ")
}

struct Helper {
    process: Child,
    stream: UnixStream,
    reports: Receiver<Report>,
}

impl Helper {
    fn start(
        task: &Task<'_>,
        guard: &OwnedGuard,
        times: Times,
        caught: &Caught,
        say: Say,
    ) -> std::io::Result<Helper> {
        let (stream, theirs) = UnixStream::pair()?;
        let Times { grace, margin, .. } = times;
        let (on_lost, inherited) = (task.terms.on_lost, caught.inherited);
        let mut command = Part::Helper(HelperArgs { say, grace, margin, on_lost, inherited }).program()?;
        command.args(&task.terms.command);
        command.env("LEASEHOLD_NAME", task.name).env("LEASEHOLD_OWNER", guard.owner().to_string());
        command.env("LEASEHOLD_UNDER", under(guard));
        match guard.fencing_token() {
            Some(fence) => command.env("LEASEHOLD_FENCE", fence.get().to_string()),
            None => command.env_remove("LEASEHOLD_FENCE"),
        };
        match task.on_contended.and_then(signal_name) {
            Some(signal) => command.env("LEASEHOLD_CONTENDED_BY", signal.trim_start_matches("SIG")),
            None => command.env_remove("LEASEHOLD_CONTENDED_BY"),
        };
        // The helper has a process group of its own, so that it gets no signals from the terminal.
        let process = caught.spawn(command.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0))?;
        drop(command); // only the helper keeps this end, so its death closes the socket
        send_input(&stream)?;
        // A helper that does not read must not block this process, which may have to end the command itself.
        stream.set_write_timeout(Some(Duration::from_millis(50)))?;
        let (sender, reports) = unbounded();
        let reading = stream.try_clone()?;
        std::thread::Builder::new()
            .name("reports".to_owned())
            .spawn(move || parts::receive(reading, |report| sender.send(report).is_ok()))?;
        Ok(Helper { process, stream, reports })
    }
}

/// Sends this process's standard input to the helper, for the command. It goes over the socket, since the
/// helper's own standard input is that socket.
fn send_input(stream: &UnixStream) -> std::io::Result<()> {
    let (input, mut space) = (stdin(), [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let rights = [input.as_fd()];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&rights));
    sendmsg(stream, &[IoSlice::new(b"\n")], &mut control, SendFlags::empty())?;
    Ok(())
}

#[derive(Clone, Copy)]
enum Ended {
    Exited(i32),
    Signaled(i32),
    Not(Exit),
    /// No report says how the command ended, or it never began.
    Unknown,
}

struct Supervisor<'a> {
    task: &'a Task<'a>,
    guard: &'a OwnedGuard,
    helper: Helper,
    times: Times,
    ceiling: Moment,
    say: Say,
    terminal: Terminal,
    group: Option<Pid>,
    /// Signals that the command cannot receive, because it does not run yet or has ended.
    unheard: Vec<i32>,
    until: Moment,
    is_ending: bool,
    is_lost: bool,
    is_gone: bool,
    was_never_begun: bool,
    has_survivor: bool,
}

impl Supervisor<'_> {
    fn run(mut self, caught: &Caught, mut lost: Receiver<Loss>, mut contended: Receiver<()>) -> Supervised {
        let unheard = never();
        let reports = self.helper.reports.clone();
        let ended = loop {
            self.beat();
            // A stopped helper would not report the command's end, so the lock would be renewed for ever.
            family::wake(&self.helper.process);
            if let Some(ended) = self.end_itself() {
                break ended;
            }
            select! {
                recv(reports) -> report => match report {
                    Ok(report) => if let Some(ended) = self.reported(report) { break ended },
                    Err(_gone) => break self.without_helper(),
                },
                recv(caught.signals) -> signal => if let Ok(signal) = signal { self.signaled(signal) },
                recv(lost) -> loss => {
                    self.is_lost = loss.is_ok();
                    self.is_gone = loss.is_ok_and(|loss| loss.reason == LossReason::Gone);
                    lost = never();
                    if self.is_lost {
                        drop(parts::send(&self.helper.stream, &Order::Gone)); // if this fails, the helper acts when the window ends
                    }
                },
                recv(if self.group.is_some() { &contended } else { &unheard }) -> wanted => {
                    contended = never();
                    if wanted.is_ok() {
                        self.give_way();
                    }
                }
                default(self.times.tick) => {}
            }
        };
        self.conclude(ended, caught)
    }

    fn beat(&mut self) {
        // The clock is read first, so that the instant is never later than the window's end.
        let now = Moment::now();
        let until = now.plus(self.guard.remaining()).min(self.ceiling);
        if until > self.until.plus(Duration::from_millis(1))
            && !self.is_lost
            && parts::send(&self.helper.stream, &Order::Until(until)).is_ok()
        {
            self.until = until;
        }
        self.tell_office(false);
    }

    /// Publishes until when this run leads its election: until the helper has to end the command, which is
    /// before another process can lead.
    fn tell_office(&self, has_ended: bool) {
        let Some(office) = self.task.office else { return };
        office.set(match self.group {
            _ if has_ended || self.is_ending || self.is_lost => Stage::Ends,
            None => Stage::Begins,
            Some(_) => {
                let term = self.guard.fencing_token().map(|fence| fence.get());
                Stage::Leads { term, until: self.until.minus(self.times.margin) }
            }
        });
    }

    /// Ends the command if the helper has not done so in time: something may keep stopping the helper.
    /// `None`: the run goes on, or the helper's report may still come.
    fn end_itself(&mut self) -> Option<Ended> {
        let (Some(group), OnLost::Kill) = (self.group, self.task.terms.on_lost) else { return None };
        let now = Moment::now();
        if now < self.until.minus(self.times.margin / 2) {
            return None;
        }
        self.is_ending = true;
        self.family(group).kill();
        if now < self.until.plus(Duration::from_secs(1)) {
            return None; // the helper's report will arrive
        }
        // A helper that stays stopped reports nothing. After its death the command is a child of this process
        // (a subreaper), which can kill and reap it.
        drop(self.helper.process.kill());
        self.end_family(&self.family(group), now.plus(Duration::from_secs(1)));
        Some(Ended::Unknown)
    }

    fn end_family(&mut self, family: &Family, by: Moment) {
        family.end(by);
        for pid in family.survivors() {
            self.reported(Report::Survivor(pid));
        }
    }

    fn family(&self, group: Pid) -> Family {
        let helper = self.helper.process.id();
        let number = i32::try_from(helper).ok().and_then(Pid::from_raw);
        Family { group, helper: number, cgroup: Cgroup::found(helper) }
    }

    fn reported(&mut self, report: Report) -> Option<Ended> {
        match report {
            Report::Started(pid) => {
                self.group = Pid::from_raw(pid);
                if let Some(group) = self.group {
                    self.terminal.offer(group);
                    // The command is stopped if it used the terminal before this offer.
                    kill_group(group, SIGCONT);
                    std::mem::take(&mut self.unheard).into_iter().for_each(|signal| self.signaled(signal));
                }
                None
            }
            Report::Stopped(signal) => {
                self.stopped(signal);
                None
            }
            Report::Ending => {
                self.is_ending = true;
                None
            }
            Report::Survivor(pid) => {
                let words = format!(
                    "process {pid} of the command could not be ended, and may go on without the lock of {}",
                    self.task.name
                );
                self.say.notice("survivor", &words, &json!({"name": self.task.name, "pid": pid}));
                self.has_survivor = true;
                None
            }
            Report::Unwatched => {
                self.is_ending = false;
                let words = "the end of the command could not be seen, so it was ended";
                Some(Ended::Not(self.say.error(words, Exit::Internal)))
            }
            Report::Exited(code) => Some(Ended::Exited(code)),
            Report::Signaled(signal) => Some(Ended::Signaled(signal)),
            Report::Failed(errno) => {
                self.was_never_begun = true;
                let error = std::io::Error::from_raw_os_error(errno);
                let program =
                    self.task.terms.command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
                let is_there = error.kind() != std::io::ErrorKind::NotFound;
                let exit = if is_there { Exit::CannotRun } else { Exit::NotFound };
                Some(Ended::Not(self.say.error(&format!("{program} cannot be run: {error}"), exit)))
            }
            Report::Late => {
                self.was_never_begun = true;
                self.is_ending = true;
                Some(Ended::Unknown)
            }
        }
    }

    /// Called when the helper has ended without a report. The command must not run without a helper.
    fn without_helper(&mut self) -> Ended {
        if let Some(group) = self.group {
            let family = self.family(group);
            self.end_family(&family, self.until);
            if let Some(cgroup) = &family.cgroup {
                cgroup.remove();
            }
        }
        if self.is_ending {
            return Ended::Unknown;
        }
        let words = "somebody ended the helper process, so the command was ended too";
        Ended::Not(self.say.error(words, Exit::Internal))
    }

    fn signaled(&mut self, signal: i32) {
        let Some(group) = self.group else { return self.unheard.push(signal) };
        if family::is_dead(group) {
            self.unheard.push(signal); // the dead command misses this signal, so `conclude` puts it back
        }
        if signal == SIGCONT {
            self.terminal.offer(group);
        }
        self.say.detail("signal", &format!("signal {signal} is passed on"), &json!({"signal": signal}));
        self.send(group, signal);
    }

    fn send(&self, group: Pid, signal: i32) {
        if signal == SIGTERM {
            // TERM also goes to processes outside the group, since none may outlive the lock.
            drop(parts::send(&self.helper.stream, &Order::Asked));
            return self.family(group).signal(signal);
        }
        kill_group(group, signal);
    }

    fn give_way(&self) {
        let (Some(group), Some(signal)) = (self.group, self.task.on_contended) else { return };
        let words =
            format!("others wait for the lock of {}: the command gets signal {signal}", self.task.name);
        self.say.notice("contended", &words, &json!({"name": self.task.name, "signal": signal}));
        if signal == SIGTERM {
            return self.send(group, signal);
        }
        // Only the command itself gets the signal: its children may be in the middle of a unit of work.
        if let Some(signal) = Signal::from_named_raw(signal)
            && !family::is_dead(group)
        {
            kill_process(group, signal).ok();
        }
    }

    /// Called when a signal has suspended the command. Suspends this process too if it is a job of a shell,
    /// as the shell expects.
    fn stopped(&mut self, signal: i32) {
        let Some(group) = self.group else { return };
        if matches!(signal, SIGTTIN | SIGTTOU) && self.terminal.give(group) {
            return kill_group(group, SIGCONT);
        }
        let had = self.terminal.take_back(group);
        if has_job_control() {
            let left = self.until.minus(self.times.margin).since(Moment::now());
            let words = format!(
                "suspended: the lock of {} is not renewed, and the command is killed unless it goes on within {} s",
                self.task.name,
                left.as_secs()
            );
            self.say.notice("suspended", &words, &json!({"name": self.task.name}));
            // This call returns when the shell continues this process.
            kill_process(getpid(), Signal::STOP).ok();
        } else if signal != SIGTSTP {
            return; // whoever stopped only the command will continue only the command
        }
        self.beat();
        if had {
            self.terminal.give(group);
        }
        kill_group(group, SIGCONT);
    }

    fn conclude(mut self, ended: Ended, caught: &Caught) -> Supervised {
        // The end of the leadership is published before the release, after which another run may lead.
        self.tell_office(true);
        let had_terminal = self.group.is_some_and(|group| self.terminal.take_back(group));
        if let (true, Ended::Signaled(signal @ (SIGINT | SIGQUIT))) = (had_terminal, ended) {
            // The command had the terminal, so the calling script got no Ctrl-C. This signal ends the script.
            signals::kill_own_group(signal);
        }
        let is_lost = self.is_lost || self.guard.state() == HoldState::Lost;
        let exit = match ended {
            Ended::Not(exit) => exit,
            _ if self.is_ending && !self.is_gone && self.is_at_ceiling() => self.max_hold_over(),
            _ if self.is_ending || is_lost => self.lost(),
            Ended::Exited(code) => Exit::Command(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
            Ended::Signaled(signal) => Exit::Signal(signal),
            Ended::Unknown => self.lost(),
        };
        for signal in &self.unheard {
            caught.put_back.send(*signal).ok();
        }
        caught.wait(&mut self.helper.process);
        Supervised { exit, was_never_begun: self.was_never_begun }
    }

    fn is_at_ceiling(&self) -> bool {
        self.task
            .max_hold
            .is_some_and(|most| !self.task.is_renewed || times::is_set_by(self.until, self.ceiling, most))
    }

    fn max_hold_over(&self) -> Exit {
        let words = format!("{} was held for as long as --max-hold allows: {}", self.task.name, self.end());
        self.say.notice("max_hold", &words, &json!({"name": self.task.name}));
        if self.has_survivor { Exit::Survivor } else { Exit::MaxHold }
    }

    fn end(&self) -> &'static str {
        if self.has_survivor { "a part of the command goes on without it" } else { "the command was ended" }
    }

    fn lost(&self) -> Exit {
        let what = match self.task.terms.on_lost {
            OnLost::Kill => self.end(),
            OnLost::Signal(_) | OnLost::Ignore => "the command went on without it",
        };
        let words = format!("the lock of {} could not be kept: {what}", self.task.name);
        self.say.notice("lost", &words, &json!({"name": self.task.name}));
        if self.has_survivor { Exit::Survivor } else { Exit::Lost(self.task.terms.lost_exit_code) }
    }
}

fn released(task: &Task<'_>, guard: OwnedGuard, exit: Exit, caught: &Caught, say: Say) -> Exit {
    let unlocked = match caught.unless_signaled("release", RELEASE_AFTER_SIGNAL, say, move || guard.unlock())
    {
        Ok(unlocked) => unlocked,
        Err(signaled) => {
            let words = format!("it is unknown whether the lock of {} was released", task.name);
            say.notice("release_unknown", &words, &json!({"name": task.name}));
            return signaled;
        }
    };
    let Err(error) = unlocked else {
        say.detail("released", &format!("released {}", task.name), &json!({"name": task.name}));
        return exit;
    };
    if error.is_lost() || error.is_not_held() {
        let words = format!("the lock of {} was lost before the command ended", task.name);
        say.notice("lost", &words, &json!({"name": task.name}));
        return match exit {
            Exit::Command(_) | Exit::Signal(_) => Exit::Lost(task.terms.lost_exit_code),
            other => other,
        };
    }
    let words =
        format!("it is unknown whether the lock of {} was released: {}", task.name, store::text(&error));
    say.notice("release_unknown", &words, &json!({"name": task.name}));
    if task.strict && exit == Exit::Command(0) { Exit::ReleaseUnknown } else { exit }
}
