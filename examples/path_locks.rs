//! Locks of a tree: a lock on a path excludes others from that path and from all paths below it.
//!
//! `cargo run --example path_locks` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the locks are in
//! Redis.
#![allow(clippy::print_stdout, reason = "an example talks")]

use leasehold::{LockClient, MultiLock, Result};

/// Read locks on all paths above and a write lock on the path itself. The path has no slash at its ends.
///
/// In Java this is `getMultiLock` of the same locks, beginning with the topmost path.
fn path_lock(client: &LockClient, path: &str) -> MultiLock {
    let named = |path: &str| client.get_read_write_lock(format!("example:tree:{path}"));
    let mut locks: Vec<_> =
        path.match_indices('/').map(|(end, _)| named(&path[..end]).read().clone()).collect();
    locks.push(named(path).write().clone());
    client.get_multi_lock(locks)
}

fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").ok();
    let connect = || url.as_deref().map_or_else(|| Ok(LockClient::in_memory()), LockClient::connect);
    let client = connect()?;
    let shelf = path_lock(&client, "library/east/shelf").acquire()?;
    // Another thread is another owner, as another program would be, so a thread asks.
    let is_free = |path: &str| -> Result<bool> {
        std::thread::scope(|scope| {
            let tries = scope.spawn(|| path_lock(&client, path).try_acquire().map(|guard| guard.is_some()));
            tries.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    };
    for path in ["library/east/shelf/box", "library/east", "library", "library/east/desk", "library/west"] {
        println!("{path}: {}", if is_free(path)? { "free" } else { "locked" });
    }
    shelf.check()?; // before each write: an error if one of the locks is lost
    // A lock below needs a read lock of `shelf`, which the holder of the write lock of `shelf` gets.
    println!("and the box within: {}", path_lock(&client, "library/east/shelf/box").try_acquire()?.is_some());
    shelf.unlock()?;
    println!("afterwards library: {}", if is_free("library")? { "free" } else { "locked" });
    client.shutdown()
}
