//! Functions that differ between operating systems, under the same names on Unix and Windows. Elsewhere only
//! `fencing` depends on the system.
//!
//! | name | Unix | Windows |
//! | --- | --- | --- |
//! | `nanos` | `CLOCK_BOOTTIME`, or `CLOCK_MONOTONIC` on macOS | the performance counter |
//! | `Socket` | a `TcpStream` | one that never blocks, and waits by `poll` |
//! | `LocalSocket` | a `UnixStream` | none can be made |
//! | `host_name` | the node's name | the DNS name of the computer |
//! | `boot_id`, `process_start`, namespaces | from `/proc`, where it is mounted | not known |
//! | `FileId` | device and inode | volume and index |
//! | `names_of`, `is_mount_point` | link count; `/proc/self/mountinfo`, if mounted | link count; never |
//! | `share_group` | gives a file the group of another | does nothing |
//! | `writing_refused` | asks `access` | tries to open the file for writing |
//! | `local_path` | as it is | without the `/` before a drive |

mod poll;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

pub(crate) use self::poll::{PollFd, any_ready, for_bytes, has_room};
#[cfg(unix)]
pub(crate) use self::unix::*;
#[cfg(windows)]
pub(crate) use self::windows::*;

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::sync::thread;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(1);

    fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (socket(ours).unwrap(), listener.accept().unwrap().0)
    }

    #[test]
    fn a_timed_out_read_loses_no_later_byte() {
        let (ours, mut theirs) = pair();
        ours.set_read_timeout(Some(SHORT)).unwrap();
        let writing = move || (0..=255).for_each(|byte| theirs.write_all(&[byte]).unwrap());
        let (mut seen, mut late) = (Vec::new(), 0);
        assert_eq!((&ours).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let writer = thread::Builder::new().spawn(writing).unwrap();
        loop {
            let mut buf = [0; 3];
            match (&ours).read(&mut buf) {
                Ok(0) => break,
                Ok(read) => seen.extend_from_slice(&buf[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => late += 1,
                Err(error) => panic!("{error}"),
            }
        }
        drop(writer.join());
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>(), "{late} reads were late");
    }

    #[test]
    fn the_other_end_receives_exactly_the_bytes_that_writes_reported() {
        let (ours, mut theirs) = pair();
        ours.set_write_timeout(Some(SHORT)).unwrap();
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
        let mut sent = Vec::new();
        for _ in 0..1_000 {
            match (&ours).write(&bytes) {
                Ok(written) => sent.extend_from_slice(&bytes[..written]),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        assert!(!has_room(&ours, Duration::ZERO));
        let reading = thread::Builder::new().spawn(move || {
            let mut seen = Vec::new();
            theirs.read_to_end(&mut seen).unwrap();
            seen
        });
        ours.shutdown(Shutdown::Write).unwrap();
        let seen = reading.unwrap().join().unwrap();
        assert!(seen == sent, "{} bytes were sent, and {} came", sent.len(), seen.len());
    }

    #[test]
    fn shutting_down_a_cloned_socket_wakes_its_blocked_read() {
        let (ours, _theirs) = pair();
        ours.set_read_timeout(Some(LONG)).unwrap();
        let other = ours.try_clone().unwrap();
        let reading = thread::Builder::new().spawn(move || (&ours).read(&mut [0]).unwrap()).unwrap();
        other.shutdown(Shutdown::Both).unwrap();
        assert_eq!(reading.join().unwrap(), 0);
    }

    #[test]
    fn sockets_refuse_a_time_out_of_zero() {
        let (ours, _theirs) = pair();
        assert!(ours.set_read_timeout(Some(Duration::ZERO)).is_err());
        assert!(ours.set_write_timeout(Some(Duration::ZERO)).is_err());
        assert!(!host_name().is_empty());
    }

    #[test]
    #[cfg(feature = "sqlite")]
    fn a_replaced_file_has_another_id() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        for path in [&one, &two] {
            std::fs::write(path, "").unwrap();
        }
        let (id, other) = (file_id(&one).unwrap(), file_id(&two).unwrap());
        assert!(id != other && file_id(&one) == Some(id) && file_id(folder.path()).is_some());
        std::fs::rename(&two, &one).unwrap();
        assert_eq!((file_id(&one), file_id(&two)), (Some(other), None));
        assert_eq!(writing_refused(&one), None);
    }
}
