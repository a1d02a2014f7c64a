//! Places for connections, as r2d2 hands them out.

use r2d2::ManageConnection;

use crate::stores::redis::conn::connection::Connection;

/// The item of the r2d2 pool: a place for a connection. The thread that gets it connects, so that errors are
/// typed and immediate; r2d2 itself would retry in the background and report a string.
#[derive(Debug)]
pub(crate) struct ConnectionSlots;

/// A place for a connection; empty before the first use and after a failure.
pub(crate) struct ConnectionSlot(pub(crate) Option<Connection>);

impl ManageConnection for ConnectionSlots {
    type Connection = ConnectionSlot;
    type Error = std::convert::Infallible;

    fn connect(&self) -> std::result::Result<ConnectionSlot, Self::Error> {
        Ok(ConnectionSlot(None))
    }

    fn is_valid(&self, _slot: &mut ConnectionSlot) -> std::result::Result<(), Self::Error> {
        Ok(())
    }

    fn has_broken(&self, _slot: &mut ConnectionSlot) -> bool {
        false
    }
}
