//! Whether the server is the one that takes writes.

use mysql::Params;

use crate::error::{Error, ErrorKind};
use crate::seam::{Failure, Outcome};
use crate::stores::sql::mysql::MysqlConnection;

/// Whether the server takes no writes, for those of it that ask. Users with the right to write all the same (SUPER, READ ONLY
/// ADMIN) are to go by it too: grants come from the primary.
macro_rules! is_read_only {
    () => {
        "(CONCAT(@@global.read_only) NOT IN ('0', 'OFF') OR @@global.innodb_read_only)"
    };
}
pub(super) use is_read_only;

pub(super) fn read_only_now() -> Error {
    Error::new(ErrorKind::ReadOnly, "request", "the server is read-only: grants come from the primary")
}

impl MysqlConnection {
    /// Refuses if the server takes no writes.
    pub(super) fn refuse_read_only(&mut self) -> Outcome<()> {
        let read_only = self.first::<i64>(concat!("SELECT ", is_read_only!()), Params::Empty);
        match read_only.map_err(Failure::of_reading)? {
            Some(0) => Ok(()),
            _ => Err(Failure::Refused(read_only_now())),
        }
    }
}
