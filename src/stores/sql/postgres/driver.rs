//! The runtime of a connection: it runs only while a call waits, on the calling thread or, where that may
//! not, beside it.

use std::future::Future;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::{spawn_scoped, thread};
use crate::time::{Clock, Moment};

/// A runtime that can be waited on and dropped anywhere, also in a task of the caller's own runtime.
pub(super) struct Driver {
    /// There until it is dropped.
    runtime: Option<Runtime>,
}

impl Driver {
    pub(super) fn new() -> Result<Driver> {
        if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
            return Err(ending());
        }
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(|error| {
            Error::new(ErrorKind::Resource, "connect", "the system could not create an event queue")
                .with_source(error)
        })?;
        Ok(Driver { runtime: Some(runtime) })
    }

    /// The result of `work`, for which the calling thread waits. An error: nothing was begun.
    ///
    /// A thread that runs the tasks of a runtime may not run another one, by a panic of tokio's. Then a
    /// thread beside it does. So does one for a thread of `spawn_blocking`, which could do it itself: tokio
    /// does not tell the two apart.
    pub(super) fn wait<T: Send>(&self, work: impl Future<Output = T> + Send) -> Result<T> {
        let runtime = self.runtime.as_ref().ok_or_else(ending)?;
        match Handle::try_current() {
            Ok(_) => beside(|| runtime.block_on(work)),
            Err(error) if error.is_thread_local_destroyed() => Err(ending()),
            Err(_) => Ok(runtime.block_on(work)),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Not waited for: in a task that would be a panic, and a look-up of a host's name may hang.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs `work` on a thread of its own, and waits for that.
fn beside<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let waiting = spawn_scoped(scope, work).map_err(|error| {
            Error::new(ErrorKind::Resource, "use", "the system could not start a thread").with_source(error)
        })?;
        // A panic of the driver's is the caller's, as it is without the thread.
        waiting.join().or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// While a thread's local storage is torn down, nothing can be waited for on it: its guards' releases are
/// repeated by the watchdog.
fn ending() -> Error {
    Error::new(ErrorKind::Resource, "use", "the thread is ending")
}

/// `work`, but not beyond `deadline`.
pub(super) async fn within<T>(deadline: Moment, work: impl Future<Output = T>) -> Option<T> {
    timeout(deadline.since(Clock::System.now()), work).await.ok()
}
