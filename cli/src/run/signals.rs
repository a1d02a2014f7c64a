//! Signals as events, and the process's part in groups of processes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::Interrupt;
use leasehold::crossbeam_channel::{Receiver, unbounded};
use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, kill_current_process_group, kill_process_group, test_kill_process_group};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};

/// Signals that end the wait for a lock, and are passed on to the command.
const FORWARDED: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// The signals that came, in order.
pub(crate) struct Caught {
    pub(crate) signals: Receiver<i32>,
    pub(crate) interrupt: Interrupt,
    waits: Arc<AtomicBool>,
    handle: Handle,
}

impl Caught {
    /// Catches from now on all signals that end a wait, but those that are ignored already (`nohup`).
    pub(crate) fn start() -> io::Result<Caught> {
        let ignored = ignored_signals();
        let mut signals = Signals::new(FORWARDED.iter().filter(|signal| !is_in(ignored, **signal)))?;
        let (handle, interrupt) = (signals.handle(), Interrupt::new());
        let waits = Arc::new(AtomicBool::new(true));
        let (sender, receiver) = unbounded();
        let (ends, is_waiting) = (interrupt.clone(), Arc::clone(&waits));
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                // Sent first: after an interrupted wait it is there to be read.
                if sender.send(signal).is_err() {
                    return;
                }
                if is_waiting.load(Ordering::SeqCst) {
                    ends.interrupt();
                }
            }
        })?;
        Ok(Caught { signals: receiver, interrupt, waits, handle })
    }

    /// The wait is over. Stops by the terminal are now passed on as well.
    pub(crate) fn stop_waiting(&self) -> io::Result<()> {
        self.waits.store(false, Ordering::SeqCst);
        let ignored = ignored_signals();
        [SIGTSTP, SIGCONT]
            .into_iter()
            .filter(|signal| !is_in(ignored, *signal))
            .try_for_each(|signal| self.handle.add_signal(signal))
    }
}

/// Keeps signals that are sent to all of a service's processes from ending this one, which ends when its command has.
pub(crate) fn outlive_signals() -> io::Result<Arc<AtomicBool>> {
    let (ignored, flag) = (ignored_signals(), Arc::new(AtomicBool::new(false)));
    for signal in FORWARDED.into_iter().chain([SIGTSTP]).filter(|signal| !is_in(ignored, *signal)) {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Lets this thread, and those that it starts, write to the terminal and hand it on from the background.
pub(crate) fn ignore_terminal_output_stop() {
    let mut set = SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGTTOU);
    // Without it, a hand-over in the background would stop this process, as it would any.
    set.thread_block().ok();
}

/// Sends a signal to a process group; one that is gone needs none.
pub(crate) fn kill_group(group: Pid, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        kill_process_group(group, signal).ok();
    }
}

/// Sends a signal to all of this process's group.
pub(crate) fn kill_own_group(signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        kill_current_process_group(signal).ok(); // it has this process at least
    }
}

/// Whether a process group still has a process.
pub(crate) fn group_exists(group: Pid) -> bool {
    test_kill_process_group(group).is_ok()
}

/// The mask of ignored signals; none where the system does not say.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(mask: u64, signal: i32) -> bool {
    u32::try_from(signal - 1).ok().and_then(|bit| mask.checked_shr(bit)).is_some_and(|rest| rest & 1 == 1)
}
