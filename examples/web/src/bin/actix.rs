//! actix-web: the program has its own threads for locks, which get their work through a queue.

use std::thread::JoinHandle;

use actix_web::http::StatusCode;
use actix_web::web::{Data, Path};
use actix_web::{App, HttpResponse, HttpServer, post};
use leasehold::LockClient;
use leasehold::crossbeam_channel::{Sender, bounded};
use leasehold_web::{WAIT, connect, make_report, released, status};
use tokio::sync::oneshot;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A lock's name, and the channel for the status of the answer.
type Job = (String, oneshot::Sender<u16>);

/// Maximum number of requests that wait or work at a time.
const THREADS: usize = 16;
/// Maximum number of further requests in the queue. Any more get a 503 at once.
const QUEUE: usize = 64;

fn start(client: &LockClient) -> Result<(Sender<Job>, Vec<JoinHandle<()>>)> {
    let (jobs, queue) = bounded::<Job>(QUEUE);
    let mut threads = Vec::new();
    for number in 0..THREADS {
        let (client, queue) = (client.clone(), queue.clone());
        let work = move || {
            for (name, tell) in queue {
                // The caller hung up while the job was in the queue, so the job is skipped.
                if tell.is_closed() {
                    continue;
                }
                let outcome = (|| {
                    // If a job leaks its guard, the next job on this thread must not re-enter the lock.
                    let lock = client.lock_builder(&name).non_reentrant().build();
                    let Some(guard) = lock.try_acquire_for(WAIT)? else { return Ok(None) };
                    make_report();
                    released(guard.unlock())
                })();
                let _ = tell.send(status(&outcome));
            }
        };
        threads.push(std::thread::Builder::new().name(format!("report {number}")).spawn(work)?);
    }
    Ok((jobs, threads))
}

#[post("/report/{name}")]
async fn report(jobs: Data<Sender<Job>>, name: Path<String>) -> HttpResponse {
    let (tell, told) = oneshot::channel();
    let status = match jobs.try_send((name.into_inner(), tell)) {
        Ok(()) => told.await.unwrap_or(500),
        Err(_) => 503,
    };
    HttpResponse::new(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
}

fn main() -> Result<()> {
    let client = connect()?;
    let (jobs, threads) = start(&client)?;
    actix_web::rt::System::new().block_on(async move {
        let jobs = Data::new(jobs);
        let server = HttpServer::new(move || App::new().app_data(jobs.clone()).service(report));
        let server = server.workers(2).bind(("127.0.0.1", 0))?;
        println!("{}", server.addrs().first().ok_or(std::io::ErrorKind::AddrNotAvailable)?);
        // Runs until SIGTERM, and then answers the requests under way.
        server.run().await
    })?;
    // The server's end has dropped the queue's senders, which ends the threads.
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")?;
    }
    client.shutdown()?;
    Ok(())
}
