//! Types that may be used after a caught panic (`catch_unwind`), and with them all that are made of them.
//! Observers, callbacks and name mappings run where nothing is locked or half done, and their panics are
//! caught, so no panic leaves a guard or a client inconsistent. The compiler cannot see this through the
//! locks inside.

use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::engine::Engine;
use crate::engine::hold::{Hold, LocalLock};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::locks::leader::Leader;
use crate::stores::memory::MemoryStore;
use crate::time::ManualClock;

macro_rules! unwind_safe {
    ($($name:ty),+) => {
        $(
            impl UnwindSafe for $name {}
            impl RefUnwindSafe for $name {}
        )+
    };
}

unwind_safe!(Engine, Error, Hold, Interrupt, Leader, LocalLock, ManualClock, MemoryStore);
