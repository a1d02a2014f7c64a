//! A small stock service. Start it twice, and put load on both.
//!
//! ```text
//! export REDIS_URL=redis://127.0.0.1:6379
//! cargo run --release --example service -- 8081 --stock 10000     # fills the shop
//! cargo run --release --example service -- 8082                   # the second one, another terminal
//! curl http://127.0.0.1:8081/stock                                # {"stock":10000,"orders":0}
//! curl -X POST http://127.0.0.1:8082/buy                          # {"left":9999}
//!
//! ab -n 5000 -c 16 -m POST http://127.0.0.1:8081/buy              # and the same on 8082 at the same time
//! wrk -t 2 -c 16 -d 10 -s post.lua http://127.0.0.1:8081/buy      # post.lua: wrk.method = "POST"
//! ```
//! JMeter: a thread group with two HTTP requests, `POST /buy` to port 8081 and to 8082. Under any load, stock
//! and orders always add up to the initial stock. Ctrl-C finishes the requests under way and releases all
//! locks.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use leasehold::{FencedLock, LockClient};
use redis::{Connection, Script, pipe};
use tiny_http::{Method, Request, Response, Server};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const WORKERS: usize = 8;
/// How long a request waits for the lock at most.
const WAIT: Duration = Duration::from_secs(2);

/// Stores my token, reads the stock; nil if a newer token was seen. KEYS: stock, fence, orders. ARGV: token.
const READ: &str = "if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[1]) then return false end
    redis.call('SET', KEYS[2], ARGV[1]) return tonumber(redis.call('GET', KEYS[1]) or '0')";
/// Writes the stock and adds an order; nil if a newer token was seen. KEYS as `READ`. ARGV: token, new stock.
const WRITE: &str = "if tonumber(redis.call('GET', KEYS[2]) or '0') > tonumber(ARGV[1]) then return false end
    redis.call('SET', KEYS[1], ARGV[2]) redis.call('RPUSH', KEYS[3], ARGV[1]) return tonumber(ARGV[2])";
const KEYS: [&str; 3] = ["{shop}:stock", "{shop}:fence", "{shop}:orders"];

fn buy(lock: &FencedLock, redis: &mut Connection) -> Result<(u16, String)> {
    let Some(guard) = lock.try_acquire_for(WAIT)? else { return Ok((503, r#"{"error":"busy"}"#.into())) };
    let fence = guard.fencing_token().ok_or("no fence")?.get();
    let mut run = |code: &str, left: i64| -> Result<Option<i64>> {
        Ok(Script::new(code).key(&KEYS).arg(fence).arg(left).invoke(redis)?)
    };
    let answer = match run(READ, 0)? {
        Some(stock) if stock > 0 => match run(WRITE, stock - 1)? {
            Some(left) => (200, format!(r#"{{"left":{left}}}"#)),
            None => (503, r#"{"error":"came too late, nothing was sold"}"#.into()),
        },
        Some(_) => (409, r#"{"error":"sold out"}"#.into()),
        None => (503, r#"{"error":"came too late, nothing was sold"}"#.into()),
    };
    // The dropped guard releases the lock. The sale is done, so a failed release is no error for the buyer.
    Ok(answer)
}

fn answer(request: &Request, lock: &FencedLock, redis: &mut Connection) -> Result<(u16, String)> {
    match (request.method(), request.url()) {
        (Method::Get, "/stock") => {
            let [stock, _, orders] = KEYS;
            let (stock, orders): (i64, u64) =
                pipe().cmd("GET").arg(stock).cmd("LLEN").arg(orders).query(redis)?;
            Ok((200, format!(r#"{{"stock":{stock},"orders":{orders}}}"#)))
        }
        (Method::Post, "/buy") => buy(lock, redis),
        _ => Ok((404, r#"{"error":"GET /stock or POST /buy"}"#.into())),
    }
}

fn serve(server: &Server, client: &LockClient, redis: &mut Connection, stop: &AtomicBool) -> Result<()> {
    let lock = client.get_fenced_lock("{shop}:lock");
    while !stop.load(Relaxed) {
        let Some(request) = server.recv_timeout(Duration::from_millis(200))? else { continue };
        let (status, body) = answer(&request, &lock, redis).unwrap_or_else(|e| {
            eprintln!("service: {e}");
            (500, r#"{"error":"see the log"}"#.into())
        });
        if let Err(e) = request.respond(Response::from_string(body + "\n").with_status_code(status)) {
            eprintln!("service: a client left early: {e}");
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (port, stock) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [port] => (port.parse::<u16>()?, None),
        [port, "--stock", stock] => (port.parse()?, Some(stock.parse::<u32>()?)),
        _ => return Err("usage: service PORT [--stock N]".into()),
    };
    let url = std::env::var("REDIS_URL").map_err(|e| format!("REDIS_URL: {e}"))?;
    let redis = redis::Client::open(url.as_str())?;
    if let Some(stock) = stock {
        pipe()
            .cmd("SET")
            .arg(KEYS[0])
            .arg(stock)
            .cmd("DEL")
            .arg(KEYS[2])
            .exec(&mut redis.get_connection()?)?;
    }

    let client = LockClient::builder().url(&url).client_name("stock-service").build()?;
    let server = Server::http(("127.0.0.1", port))?;
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let on_signal = std::sync::Arc::clone(&stop);
    ctrlc::set_handler(move || on_signal.store(true, Relaxed))?;
    println!("http://127.0.0.1:{port}/stock and /buy, {WORKERS} threads, client {}", client.id());

    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            let mut connection = redis.get_connection()?;
            let (server, client, stop) = (&server, &client, &stop);
            workers.push(scope.spawn(move || serve(server, client, &mut connection, stop)));
        }
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    println!("no more requests; releasing what is held");
    Ok(client.shutdown()?)
}
