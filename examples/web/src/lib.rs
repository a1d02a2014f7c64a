//! Shared by the recipes: a client whose times suit a web request, and the answers.
//!
//! `docs/using-from-async.md` shows these files; `tests/web.rs` runs each recipe against a Redis.

use std::time::Duration;

use leasehold::{LockClient, Result};

/// How long a request may wait for its lock.
pub const WAIT: Duration = Duration::from_secs(1);

/// Connects. Connecting blocks, so call this before the runtime starts, or from a thread that may wait.
pub fn connect() -> Result<LockClient> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    // Web clients give up after a few seconds, so each wait must be shorter.
    let times = LockClient::builder().command_timeout(WAIT).connect_timeout(WAIT).retry_timeout(WAIT);
    // The program starts even if Redis is down, and answers 503 until Redis is up.
    times.url(&url).connect_lazily().build()
}

/// The status of an answer: 200 for done; 409 if another owner has the lock; 503 if the locks' server cannot
/// be used and nothing was done, so that the caller may try again; 500 otherwise, for example if the lock was
/// lost during the work.
pub fn status(outcome: &Result<Option<()>>) -> u16 {
    match outcome {
        Ok(Some(())) => 200,
        Ok(None) => 409,
        Err(error) if error.is_retryable() => 503,
        Err(_) => 500,
    }
}

/// The result of a request after its work and its release. A failed release is no error for the caller, who
/// would repeat the work: the client repeats the release, or the lease expires. A lock that was lost during
/// the work is an error.
pub fn released(unlocked: Result<()>) -> Result<Option<()>> {
    match unlocked {
        Err(error) if error.is_lost() => Err(error),
        _ => Ok(Some(())),
    }
}

/// The work that only one process at a time may do. This function blocks.
pub fn make_report() {
    std::thread::sleep(Duration::from_millis(500));
}
