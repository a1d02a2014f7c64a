//! Signals as events, and signals to process groups.

use std::io;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::Interrupt;
use leasehold::crossbeam_channel::{Receiver, Sender, after, select, unbounded};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal as Named, sigprocmask};
use rustix::process::{Pid, Signal, kill_current_process_group};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};

use crate::run::{end_as_interrupted, family};
use crate::say::{Exit, Say};

const FORWARDED: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// Whether a signal asks this program to end. Other signals end a wait for the lock, or go to the command.
fn ends(signal: i32) -> bool {
    matches!(signal, SIGINT | SIGTERM | SIGQUIT | SIGHUP)
}

pub(crate) struct Caught {
    pub(crate) signals: Receiver<i32>,
    /// Puts signals back into `signals` that were read, but could not be sent to the command.
    pub(super) put_back: Sender<i32>,
    pub(crate) interrupt: Interrupt,
    waits: Arc<AtomicBool>,
    /// The last signal that asked this program to end; 0: none.
    asked_to_end: Arc<AtomicI32>,
    handle: Handle,
    pub(crate) inherited: Inherited,
    wards: Arc<Wards>,
    hurried: AtomicBool,
}

/// The children of this process: the one that it started, and [adopted](family::adopt_orphans) orphans.
#[derive(Default)]
struct Wards {
    /// The started child, which another thread waits for. Locked while the child starts, so that it is not
    /// reaped as an orphan.
    own: Mutex<Option<Pid>>,
}

impl Wards {
    fn reap(&self) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        family::reap_children(&[*own]);
    }
}

impl Caught {
    /// Catches all signals that end a wait, except those that are ignored already (`nohup`). SIGCHLD is
    /// caught in any case: if it is ignored, the system reports no child's end.
    pub(crate) fn start() -> io::Result<Caught> {
        Caught::with(Inherited::take())
    }

    pub(super) fn with(inherited: Inherited) -> io::Result<Caught> {
        let ignored = ignored();
        let caught = FORWARDED.iter().filter(|signal| !is_in(ignored, **signal)).chain([&SIGCHLD]);
        let mut signals = Signals::new(caught)?;
        let (handle, interrupt, wards) = (signals.handle(), Interrupt::new(), Arc::new(Wards::default()));
        let reaping = Arc::clone(&wards);
        let (waits, asked_to_end) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicI32::new(0)));
        let (sender, receiver) = unbounded();
        let put_back = sender.clone();
        let (waiting, is_waiting, is_asked) =
            (interrupt.clone(), Arc::clone(&waits), Arc::clone(&asked_to_end));
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                if signal == SIGCHLD {
                    reaping.reap();
                    continue;
                }
                if ends(signal) {
                    is_asked.store(signal, Ordering::SeqCst);
                }
                if matches!(signal, SIGTSTP | SIGCONT) && is_waiting.load(Ordering::SeqCst) {
                    // While no command runs, a stop or continue is meant for this process.
                    signal_hook::low_level::emulate_default_handler(signal).ok();
                    continue;
                }
                // The signal is passed on before the interrupt, so that the interrupted wait finds it.
                if sender.send(signal).is_err() {
                    return;
                }
                if is_waiting.load(Ordering::SeqCst) {
                    waiting.interrupt();
                }
            }
        })?;
        Ok(Caught {
            signals: receiver,
            put_back,
            interrupt,
            waits,
            asked_to_end,
            handle,
            inherited,
            wards,
            hurried: AtomicBool::new(false),
        })
    }

    /// Runs `act` on another thread, since it may have to wait for the store. After a signal that asks this
    /// program to end, waits for `act` for at most `more`, then leaves the thread behind.
    pub(crate) fn unless_signaled<T: Send + 'static>(
        &self,
        what: &str,
        more: Duration,
        say: Say,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Exit> {
        let is_done = say.on_thread(what, act)?;
        loop {
            select! {
                recv(is_done) -> outcome => return outcome.map_err(|_panicked| Exit::Internal),
                recv(self.signals) -> signal => match signal {
                    Ok(signal) if ends(signal) => {
                        // While connecting (`more` is zero) no later code reads the signal, so it counts.
                        if !more.is_zero()
                            && let Ok(outcome) = is_done.recv_timeout(more)
                        {
                            return Ok(outcome);
                        }
                        self.hurried.store(true, Ordering::SeqCst);
                        return Err(Exit::Signal(signal));
                    }
                    Ok(_) => {}
                    Err(_gone) => return Err(Exit::Internal),
                },
            }
        }
    }

    /// Called when the command has ended: starts a thread that waits for a signal to end the program.
    /// A signal that the command missed counts. If the program still runs `more` time later, the thread calls
    /// `last_words`, which reports unfinished work, and ends the program.
    pub(super) fn end_by_signal(
        &self,
        more: Duration,
        last_words: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let signals = self.signals.clone();
        std::thread::Builder::new().name("ends".to_owned()).spawn(move || {
            let Some(signal) = signals.iter().find(|signal| ends(*signal)) else { return };
            after(more).recv().ok();
            last_words();
            let exit = Exit::Signal(signal);
            end_as_interrupted(exit);
            std::process::exit(exit.code().into());
        })?;
        Ok(())
    }

    pub(crate) fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::SeqCst)
    }

    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut own = self.wards.own.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        *own = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(child)
    }

    pub(super) fn wait(&self, child: &mut Child) {
        drop(child.wait());
        *self.wards.own.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.wards.reap();
    }

    pub(crate) fn is_asked_to_end(&self) -> bool {
        self.asked_to_end.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn wait_again(&self, pause: Duration) -> Option<i32> {
        // Earlier signals were meant for the command, so they are dropped.
        while self.signals.try_recv().is_ok() {}
        self.waits.store(true, Ordering::SeqCst);
        match self.asked_to_end.load(Ordering::SeqCst) {
            0 => self.signals.recv_timeout(pause).ok(),
            signal => Some(signal),
        }
    }

    /// Called when the wait for the lock is over. Later stops by the terminal (Ctrl-Z) are not acted upon
    /// here, but forwarded to the command.
    pub(crate) fn stop_waiting(&self) -> io::Result<()> {
        self.waits.store(false, Ordering::SeqCst);
        let ignored = ignored();
        [SIGTSTP, SIGCONT]
            .into_iter()
            .filter(|signal| !is_in(ignored, *signal))
            .try_for_each(|signal| self.handle.add_signal(signal))
    }
}

/// Ignores signals that a service manager sends to all processes: a helper must outlive its command, and a
/// lookout its shell.
pub(crate) fn outlive_signals() -> io::Result<Arc<AtomicBool>> {
    let (ignored, flag) = (ignored(), Arc::new(AtomicBool::new(false)));
    for signal in FORWARDED.into_iter().chain([SIGTSTP]).filter(|signal| !is_in(ignored, *signal)) {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Blocks SIGTTOU for this thread, and threads that it starts. The signal would stop a background process
/// that writes to the terminal or gives the terminal to another group.
pub(crate) fn ignore_terminal_output_stop() {
    let mut set = SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGTTOU);
    set.thread_block().ok();
}

pub(crate) fn kill_own_group(signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        kill_current_process_group(signal).ok(); // cannot fail: the group contains this process
    }
}

/// The signal dispositions that this program was started with; the command gets them back.
///
/// Some programs start others with signals blocked, or with SIGCHLD ignored, which hides a child's end. Two
/// things are not restored: blocked real-time signals, and SIGPIPE, which gets its default, since Rust's
/// runtime replaces its disposition before `main`.
///
/// Each field has one bit for each signal; the lowest is signal 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inherited {
    blocked: u64,
    ignored: u64,
}

impl Inherited {
    /// Reads the dispositions, and unblocks all signals. Called before this program starts a thread, since
    /// threads inherit the mask of blocked signals.
    pub(super) fn take() -> Inherited {
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), Some(&mut before)).ok();
        let blocked = before.iter().map(bit).fold(0, std::ops::BitOr::bitor);
        Inherited { blocked, ignored: ignored() }
    }

    pub(super) fn restore(self) {
        for signal in Named::iterator() {
            // SIGCHLD is the only ignored signal that this program caught, so the others are still ignored.
            if signal == Named::SIGCHLD && self.ignored & bit(signal) != 0 {
                set(signal, SigHandler::SigIgn);
            }
        }
        set(Named::SIGPIPE, SigHandler::SigDfl);
        let blocked = Named::iterator().filter(|signal| self.blocked & bit(*signal) != 0).collect();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None).ok();
    }
}

fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn bit(signal: Named) -> u64 {
    1 << (signal as i32 - 1)
}

#[expect(unsafe_code, reason = "the only call that ignores a signal")]
fn set(signal: Named, how: SigHandler) {
    // SAFETY: `SigIgn` and `SigDfl` are no handlers, so no code of this process runs because of them.
    unsafe { nix::sys::signal::signal(signal, how) }.ok();
}

fn is_in(mask: u64, signal: i32) -> bool {
    u32::try_from(signal - 1).ok().and_then(|bit| mask.checked_shr(bit)).is_some_and(|rest| rest & 1 == 1)
}
