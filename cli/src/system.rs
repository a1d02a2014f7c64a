//! Calls that differ between Unix and Windows.

use std::io;

#[cfg(unix)]
pub(crate) fn signal_number(name: &str) -> Option<i32> {
    use nix::sys::signal::Signal;
    if let Ok(number) = name.parse::<i32>() {
        return Signal::try_from(number).ok().map(|signal| signal as i32);
    }
    let upper = name.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    full.parse::<Signal>().ok().map(|signal| signal as i32)
}

/// Parses a signal's name as on Unix: on Windows the subcommands with such an option are refused later.
#[cfg(windows)]
pub(crate) fn signal_number(name: &str) -> Option<i32> {
    const NAMES: [(&str, i32); 7] =
        [("HUP", 1), ("INT", 2), ("QUIT", 3), ("KILL", 9), ("USR1", 10), ("USR2", 12), ("TERM", 15)];
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = NAMES.iter().find(|(name, number)| *name == short || number.to_string() == short)?;
    Some(found.1)
}

pub(crate) fn terminal_width() -> Option<u16> {
    #[cfg(unix)]
    let width = rustix::termios::tcgetwinsize(io::stdout()).map(|size| size.ws_col);
    #[cfg(windows)]
    let width = ratatui::crossterm::terminal::size().map(|(columns, _)| columns);
    width.ok()
}

/// Whether the program that reads the standard output has closed it; always false on Windows.
pub(crate) fn is_unread() -> bool {
    #[cfg(unix)]
    {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let output = io::stdout();
        let mut asked = [PollFd::new(&output, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut asked, Some(&now)).is_ok_and(|ready| ready > 0)
            && asked.iter().any(|one| one.revents().contains(PollFlags::ERR))
    }
    #[cfg(windows)]
    false
}

/// On Unix, stops this process, as Ctrl-Z does. On Windows, does nothing.
#[cfg_attr(windows, expect(clippy::unnecessary_wraps, reason = "it can fail on Unix"))]
pub(crate) fn stop() -> io::Result<()> {
    #[cfg(unix)]
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)?;
    Ok(())
}
