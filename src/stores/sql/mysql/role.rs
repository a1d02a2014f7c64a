//! Whether the server is the one that takes writes.

use crate::error::{Error, ErrorKind};

/// Whether the server takes no writes, for those of it that ask. Users with the right to write all the same
/// (SUPER, READ ONLY ADMIN) are to go by it too: grants come from the primary.
macro_rules! is_read_only {
    () => {
        "(CONCAT(@@global.read_only) NOT IN ('0', 'OFF') OR @@global.innodb_read_only)"
    };
}
pub(super) use is_read_only;

pub(super) fn read_only_now() -> Error {
    Error::new(ErrorKind::ReadOnly, "request", "the server is read-only: grants come from the primary")
}
