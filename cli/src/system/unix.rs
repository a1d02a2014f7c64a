//! Linux, Android and macOS.

use std::io;

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal as Sent, getpid, kill_process};
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

pub(crate) fn nanos() -> u64 {
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

pub(crate) fn signal_number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse::<i32>() {
        return Signal::try_from(number).ok().map(|signal| signal as i32);
    }
    let upper = name.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    full.parse::<Signal>().ok().map(|signal| signal as i32)
}

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub(crate) fn terminal_width() -> Option<u16> {
    rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| size.ws_col)
}

pub(crate) fn is_unread() -> bool {
    let output = io::stdout();
    let mut asked = [PollFd::new(&output, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&now)).is_ok_and(|ready| ready > 0)
        && asked.iter().any(|one| one.revents().contains(PollFlags::ERR))
}

pub(crate) fn stop() -> io::Result<()> {
    Ok(kill_process(getpid(), Sent::STOP)?)
}
