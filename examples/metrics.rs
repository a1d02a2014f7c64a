//! A program whose locks Prometheus can watch: `GET /metrics`.
//!
//! ```text
//! cargo run --example metrics --features metrics -- 9478      # a port; 0: any
//! curl http://127.0.0.1:9478/metrics
//! ```
//! With REDIS_URL the locks are in that Redis, otherwise in memory. The program ends with standard input.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use leasehold::{LockClient, MemoryStore, Metrics};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tiny_http::{Response, Server};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let port: u16 = std::env::args().nth(1).map_or(Ok(9478), |text| text.parse())?;
    let exporter = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), Metrics::BUCKETS)?
        .install_recorder()?;

    // `stock:41` and `stock:42` belong to the group `stock`.
    let metrics = Metrics::new().group_names(|name| name.split(':').next().unwrap_or_default().to_owned());
    let builder = LockClient::builder().observer(metrics.clone());
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => builder.url(&url).build()?,
        Err(_) => builder.build_in_memory(&MemoryStore::new())?,
    };

    let is_over = Arc::new(AtomicBool::new(false));
    for worker in 0..3 {
        let (client, is_over) = (client.clone(), Arc::clone(&is_over));
        thread::spawn(move || work(&client, worker, &is_over));
    }
    let server = Server::http(("127.0.0.1", port))?;
    println!("metrics on http://{}/metrics", server.server_addr());
    let observed = client.clone();
    thread::spawn(move || {
        for request in server.incoming_requests() {
            // `sample` sets the gauges to their present values.
            metrics.sample(&observed.stats());
            request.respond(Response::from_string(exporter.render())).ok();
        }
    });

    std::io::stdin().read_to_end(&mut Vec::new())?;
    is_over.store(true, Relaxed);
    Ok(client.shutdown()?)
}

/// A worker's loop. Three workers share two locks, so that some wait. One call in four does not wait.
fn work(client: &LockClient, worker: u32, is_over: &AtomicBool) {
    for round in 0_u32.. {
        if is_over.load(Relaxed) {
            return;
        }
        let lock = client.get_lock(format!("stock:{}", 41 + round % 2));
        let wait = if (round + worker).is_multiple_of(4) { Duration::ZERO } else { Duration::from_secs(1) };
        if let Ok(Some(_piece)) = lock.try_acquire_for(wait) {
            thread::sleep(Duration::from_millis(2));
        }
    }
}
