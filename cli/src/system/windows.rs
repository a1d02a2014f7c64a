//! Windows 10 and later.

use std::io;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The performance counter, including sleep, from a day before the first reading: not comparable between
/// processes.
#[expect(clippy::disallowed_methods, reason = "the clock of deadlines on this system")]
pub(crate) fn nanos() -> u64 {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let begun = *BEGUN;
    u64::try_from((DAY + Instant::now().saturating_duration_since(begun)).as_nanos()).unwrap_or(u64::MAX)
}

/// No signal is sent here: arguments are parsed as on Unix before they are refused.
pub(crate) fn signal_number(name: &str) -> Option<i32> {
    const NAMES: [(&str, i32); 7] =
        [("HUP", 1), ("INT", 2), ("QUIT", 3), ("KILL", 9), ("USR1", 10), ("USR2", 12), ("TERM", 15)];
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = NAMES.iter().find(|(name, number)| *name == short || number.to_string() == short)?;
    Some(found.1)
}

pub(crate) fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

pub(crate) fn terminal_width() -> Option<u16> {
    ratatui::crossterm::terminal::size().ok().map(|(columns, _)| columns)
}

pub(crate) fn is_unread() -> bool {
    false
}

#[expect(clippy::unnecessary_wraps, reason = "it can fail on Unix")]
pub(crate) fn stop() -> io::Result<()> {
    Ok(())
}
