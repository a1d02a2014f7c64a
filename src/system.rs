//! The system below, under the same names on Unix and on Windows. The two files beside this one are the only
//! places of the ground that know which of them it is.
//!
//! | name | Unix | Windows |
//! | --- | --- | --- |
//! | `nanos` | `CLOCK_BOOTTIME`, or `CLOCK_MONOTONIC` on macOS | the performance counter |
//! | `Socket` | a `TcpStream` | one that never blocks, and waits by `poll` |
//! | `LocalSocket` | a `UnixStream` | none can be made |
//! | `host_name` | the node's name | the DNS name of the computer |
//! | `boot_id`, `process_start`, namespaces | of `/proc`, where it is | not known |
//! | `FileId` | device and inode | volume and index |
//! | `share_group`, `writing_refused` | group and mode | inherited, the attribute and an attempt |
//! | `local_path` | as it is | without the `/` before a drive |

mod poll;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

pub(crate) use self::poll::{PollFd, any_ready, for_bytes, has_bytes, has_room};
#[cfg(unix)]
pub(crate) use self::unix::*;
#[cfg(windows)]
pub(crate) use self::windows::*;
