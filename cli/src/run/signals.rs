//! Signals as events, and the process's part in groups of processes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

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
    /// The last signal that is to end the program; 0: none.
    asked_to_end: Arc<AtomicI32>,
    handle: Handle,
}

impl Caught {
    /// Catches from now on all signals that end a wait, but those that are ignored already (`nohup`).
    pub(crate) fn start() -> io::Result<Caught> {
        let ignored = ignored_signals();
        let mut signals = Signals::new(FORWARDED.iter().filter(|signal| !is_in(ignored, **signal)))?;
        let (handle, interrupt) = (signals.handle(), Interrupt::new());
        let (waits, asked_to_end) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicI32::new(0)));
        let (sender, receiver) = unbounded();
        let (ends, is_waiting, is_asked) = (interrupt.clone(), Arc::clone(&waits), Arc::clone(&asked_to_end));
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                if matches!(signal, SIGINT | SIGTERM | SIGQUIT | SIGHUP) {
                    is_asked.store(signal, Ordering::SeqCst);
                }
                if matches!(signal, SIGTSTP | SIGCONT) && is_waiting.load(Ordering::SeqCst) {
                    // No command is there that it could be passed on to.
                    signal_hook::low_level::emulate_default_handler(signal).ok();
                    continue;
                }
                // Sent first: after an interrupted wait it is there to be read.
                if sender.send(signal).is_err() {
                    return;
                }
                if is_waiting.load(Ordering::SeqCst) {
                    ends.interrupt();
                }
            }
        })?;
        Ok(Caught { signals: receiver, interrupt, waits, asked_to_end, handle })
    }

    /// Whether a signal has come that is to end the program, be it by its command.
    pub(crate) fn is_asked_to_end(&self) -> bool {
        self.asked_to_end.load(Ordering::SeqCst) != 0
    }

    /// A wait begins again, after this pause. The signal that ends it already, if one has come.
    pub(crate) fn wait_again(&self, pause: Duration) -> Option<i32> {
        // Those that came until now were for the command.
        while self.signals.try_recv().is_ok() {}
        self.waits.store(true, Ordering::SeqCst);
        match self.asked_to_end.load(Ordering::SeqCst) {
            0 => self.signals.recv_timeout(pause).ok(),
            signal => Some(signal),
        }
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

/// Whether a process group still has a process that is not dead.
///
/// A process that nobody has reaped yet still has its number, and in a container without an init nobody ever does.
pub(crate) fn group_lives(group: Pid) -> bool {
    test_kill_process_group(group).is_ok() && !is_known_to_be_dead(group)
}

/// Whether all of a group are dead by what the system lists; false where it lists nothing.
fn is_known_to_be_dead(group: Pid) -> bool {
    // Mounted from outside of this container, the list has other numbers.
    let is_own = std::fs::read_link("/proc/self")
        .is_ok_and(|link| link.to_str() == Some(std::process::id().to_string().as_str()));
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let lines =
        processes.flatten().filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    is_own && lines.filter(|line| is_of(line, group)).all(|line| is_dead(&line))
}

/// The fields of a line of `/proc/PID/stat` from the state on, which follow the program's name.
fn fields(line: &str) -> impl Iterator<Item = &str> {
    line.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace()
}

fn is_of(line: &str, group: Pid) -> bool {
    fields(line).nth(2).and_then(|number| number.parse().ok()) == Some(group.as_raw_nonzero().get())
}

/// A first thread that ended leaves the state of the dead, while other threads may go on.
fn is_dead(line: &str) -> bool {
    let threads = fields(line).nth(17).and_then(|number| number.parse::<u32>().ok());
    matches!(fields(line).next(), Some("Z" | "X")) && threads.is_some_and(|number| number <= 1)
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

#[cfg(test)]
mod tests {
    use super::{Pid, is_dead, is_of};

    const ZOMBIE: &str = "71 (a) b) Z 1 70 60 0 -1 4228108 0 0 0 0 0 0 0 0 20 0 1 0 5976714";

    #[test]
    fn a_process_is_dead_when_its_last_thread_is() {
        assert!(is_dead(ZOMBIE));
        assert!(!is_dead(&ZOMBIE.replace(" 0 1 0 ", " 0 2 0 ")));
        assert!(!is_dead(&ZOMBIE.replace(" Z ", " D ")));
        assert!(!is_dead("71 (cut"));
    }

    #[test]
    fn a_process_is_of_the_group_that_its_line_names() {
        assert!(is_of(ZOMBIE, Pid::from_raw(70).unwrap()));
        assert!(!is_of(ZOMBIE, Pid::from_raw(71).unwrap()));
        assert!(!is_of("71 (cut", Pid::from_raw(70).unwrap()));
    }
}
