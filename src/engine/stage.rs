//! How far the end of a client has come.

use crate::seam::Claim;
use crate::sync::Mutex;

/// How far the end of a client has come. Locked by the thread that works at it; others who end the client
/// wait here.
#[derive(Debug, Default)]
pub(super) struct Ending(pub(super) Mutex<Stage>);

#[derive(Debug, Default)]
pub(super) enum Stage {
    /// Nobody has ended the client.
    #[default]
    NotBegun,
    /// Somebody has, but not all came to its end: the store did not forget these, or a call was still under
    /// way. The connections are open, for the next try.
    Failed(Vec<Claim>),
    Over,
}
