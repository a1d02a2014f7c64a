//! The kinds of lock in this process.

mod counted;
mod held;
pub(super) mod kind;
mod rw;

use crate::seam::Kind;
use crate::stores::memory::counted::CountedKind;
use crate::stores::memory::parties::Half;
use held::HeldKind;
use kind::MemoryKind;

pub(super) fn of(kind: Kind) -> &'static dyn MemoryKind {
    match kind {
        Kind::Mutex | Kind::Fenced => &HeldKind::Plain,
        Kind::Fair => &HeldKind::Fair,
        Kind::Token => &HeldKind::Token,
        Kind::Read => &Half::Read,
        Kind::Write => &Half::Write,
        Kind::Semaphore => &CountedKind::Semaphore,
        Kind::Permits => &CountedKind::Permits,
        Kind::Latch => &CountedKind::Latch,
        Kind::Signal => &CountedKind::Signal,
    }
}
