//! The number of permits of a semaphore of either kind.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::locks::expirable::ExpirableSemaphore;
use crate::locks::named::RedisLock;
use crate::locks::semaphore::Semaphore;
use crate::seam::{Counting, Kind};

/// Numbers in Redis's scripts are exact below this.
const MOST: u64 = 1 << 53;

macro_rules! counted {
    ($semaphore:ident, $kind:ident) => {
        impl $semaphore {
            pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> $semaphore {
                $semaphore { core: RedisLock::new(engine, Kind::$kind, name) }
            }

            /// The name, as it was given.
            #[must_use]
            pub fn name(&self) -> &str {
                self.core.name()
            }

            /// Sets the number of permits up; `false`, with nothing changed, if it was set up before.
            /// [`add_permits`](Self::add_permits) changes an existing semaphore, as does an expirable
            /// semaphore's [`set_permits`](crate::ExpirableSemaphore::set_permits).
            ///
            /// # Blocking
            /// One round trip; while the server cannot be used, up to the client's retry time-out.
            ///
            /// # Errors
            /// The name is bad, the key holds something else, or the server could not be used.
            pub fn try_set_permits(&self, permits: u32) -> Result<bool> {
                let what = Counting::SetUp { to: permits, lease: None };
                Ok(self.core.count("try_set_permits", &what)? == Some(1))
            }

            /// Adds permits, or removes some, even below zero; returns the number available.
            ///
            /// # Blocking
            /// As [`try_set_permits`](Self::try_set_permits).
            ///
            /// # Errors
            /// As [`try_set_permits`](Self::try_set_permits); and of kind
            /// [`InvalidInput`](crate::ErrorKind::InvalidInput), with nothing changed, if the number would
            /// reach 2^53, or minus that.
            pub fn add_permits(&self, permits: i64) -> Result<i64> {
                if permits.unsigned_abs() >= MOST {
                    let words = format!("{permits} permits are too many: the number has to be below 2^53");
                    return Err(Error::invalid("add_permits", words).on(self.name()));
                }
                Ok(self.core.count("add_permits", &Counting::Add(permits))?.unwrap_or(0))
            }

            /// The number of permits available now; 0 if none were set up.
            ///
            /// # Blocking
            /// As [`try_set_permits`](Self::try_set_permits).
            ///
            /// # Errors
            /// As [`try_set_permits`](Self::try_set_permits).
            pub fn available_permits(&self) -> Result<i64> {
                Ok(self.core.count("available_permits", &Counting::Ask)?.unwrap_or(0))
            }

            /// Removes the semaphore with all its permits; `false` if there was none.
            ///
            /// # Blocking
            /// As [`try_set_permits`](Self::try_set_permits).
            ///
            /// # Errors
            /// As [`try_set_permits`](Self::try_set_permits).
            pub fn delete(&self) -> Result<bool> {
                Ok(self.core.count("delete", &Counting::Delete)? == Some(1))
            }
        }
    };
}

counted!(Semaphore, Semaphore);
counted!(ExpirableSemaphore, Permits);
