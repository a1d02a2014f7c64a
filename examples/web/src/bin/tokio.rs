//! tokio: a task owns the hold, keeps it across its awaits, and stops when the hold is lost.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use leasehold::{LockClient, OwnedGuard};
use leasehold_web::{WAIT, connect, released, status};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The work, with an `.await` in it.
async fn make_report() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

/// Makes a report while the hold lasts, then releases the lock.
async fn make_holding(guard: OwnedGuard) -> u16 {
    let (tell, lost) = oneshot::channel();
    guard.on_lost(move |loss| drop(tell.send(loss.clone())));
    tokio::select! {
        () = make_report() => {}
        // The lock is lost, so the report is dropped. A later write would need a fencing token.
        Ok(_loss) = lost => {}
    }
    // `unlock` blocks until the server answers. It returns an error if the hold was lost.
    let ended = spawn_blocking(move || released(guard.unlock())).await;
    ended.map_or(500, |outcome| status(&outcome))
}

async fn report(State(client): State<LockClient>, Path(name): Path<String>) -> StatusCode {
    let lock = client.lock_builder(&name).non_reentrant().build();
    let taken = spawn_blocking(move || lock.try_acquire_owned_for(WAIT)).await;
    let status = match taken {
        // A separate task releases the lock even if the caller hangs up and this future is dropped.
        Ok(Ok(Some(guard))) => tokio::spawn(make_holding(guard)).await.unwrap_or(500),
        Ok(outcome) => status(&outcome.map(|_| None)),
        Err(_) => 500,
    };
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[tokio::main]
async fn main() -> Result<()> {
    let client = spawn_blocking(connect).await??;
    let app = Router::new().route("/report/{name}", post(report)).with_state(client.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let mut end = signal(SignalKind::terminate())?;
    let ended = async move { end.recv().await.map_or((), drop) };
    axum::serve(listener, app).with_graceful_shutdown(ended).await?;
    spawn_blocking(move || client.shutdown()).await??;
    Ok(())
}
