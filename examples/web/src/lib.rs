//! Shared by the recipes: a client whose times suit a web request, and the answers.
//!
//! `docs/using-from-async.md` shows these files; `tests/web.rs` runs each recipe against a Redis.

use std::time::Duration;

use leasehold::{LockClient, Result};

/// How long a request may wait for its lock.
pub const WAIT: Duration = Duration::from_secs(1);

/// Connects. It blocks, so it is called before the runtime starts, or from a thread that may wait.
pub fn connect() -> Result<LockClient> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    // A request has no use for an answer after seconds: each wait is shorter than the caller's patience.
    let times = LockClient::builder().command_timeout(WAIT).connect_timeout(WAIT).retry_timeout(WAIT);
    // The program starts while Redis is down, and answers 503 until it is there.
    times.url(&url).connect_lazily().build()
}

/// The status of an answer: done; another has the lock; the locks' server cannot be used and nothing was done,
/// so try again; anything else, such as a lock that was lost while the work was done.
pub fn status(outcome: &Result<Option<()>>) -> u16 {
    match outcome {
        Ok(Some(())) => 200,
        Ok(None) => 409,
        Err(error) if error.is_retryable() => 503,
        Err(_) => 500,
    }
}

/// The answer of a finished request after its release. The work is done, so "try again" would repeat it. The
/// client repeats a failed release, or the lease expires. Only a lock that was lost meanwhile concerns the
/// caller.
pub fn released(unlocked: Result<()>) -> Result<Option<()>> {
    match unlocked {
        Err(error) if error.is_lost() => Err(error),
        _ => Ok(Some(())),
    }
}

/// The work that one process at a time may do. It blocks.
pub fn make_report() {
    std::thread::sleep(Duration::from_millis(500));
}
