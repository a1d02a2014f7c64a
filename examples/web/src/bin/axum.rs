//! axum: the lock is taken, used and released in one closure of `spawn_blocking`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use leasehold::LockClient;
use leasehold_web::{WAIT, connect, make_report, released, status};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Clone)]
struct Locks {
    client: LockClient,
    /// Limits the requests that wait or work, since each blocks a thread of the runtime's pool.
    places: Arc<Semaphore>,
}

async fn report(State(locks): State<Locks>, Path(name): Path<String>) -> StatusCode {
    let Ok(place) = locks.places.try_acquire_owned() else { return StatusCode::SERVICE_UNAVAILABLE };
    let made = spawn_blocking(move || {
        let _place = place;
        let outcome = (|| {
            // If a request leaks its guard, the next request on this thread must not re-enter the lock.
            let lock = locks.client.lock_builder(&name).non_reentrant().build();
            let Some(guard) = lock.try_acquire_for(WAIT)? else { return Ok(None) };
            make_report();
            released(guard.unlock())
        })();
        status(&outcome)
    });
    let status = made.await.unwrap_or(500);
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[tokio::main]
async fn main() -> Result<()> {
    let client = spawn_blocking(connect).await??;
    let locks = Locks { client: client.clone(), places: Arc::new(Semaphore::new(64)) };
    let app = Router::new().route("/report/{name}", post(report)).with_state(locks);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let mut end = signal(SignalKind::terminate())?;
    let ended = async move { end.recv().await.map_or((), drop) };
    axum::serve(listener, app).with_graceful_shutdown(ended).await?;
    // All requests are answered. `shutdown` releases what is still held, and blocks until this is done.
    spawn_blocking(move || client.shutdown()).await??;
    Ok(())
}
