//! `watch`.
use crate::args::{Common, WatchArgs};
use crate::exit::Exit;
pub(crate) fn watch(_common: &Common, _args: &WatchArgs) -> Exit {
    Exit::Success
}
