//! The cost of grants that a replica must have, beside grants without: `cargo bench --bench replicas`, or with
//! `-- redis://HOST:PORT` on a master that has a replica already.
//!
//! Both by turns, so that whatever else the machine does meets both. The figures are cycles of lock and unlock
//! a second, and their ratio.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a program that measures"
)]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::LockClient;

const ROUNDS: usize = 5;
const RUN: Duration = Duration::from_secs(1);
const WITHIN: Duration = Duration::from_secs(1);

struct Server(Child, u16);

impl Server {
    fn start(of: Option<u16>) -> Server {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--save", "", "--repl-diskless-sync-delay", "0"]);
        if let Some(master) = of {
            command.args(["--replicaof", "127.0.0.1", &master.to_string()]);
        }
        Server(command.current_dir(std::env::temp_dir()).stdout(Stdio::null()).spawn().unwrap(), port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn main() {
    let given = std::env::args().find(|argument| argument.starts_with("redis://"));
    let servers = if given.is_some() {
        Vec::new()
    } else {
        let master = Server::start(None);
        let replica = Server::start(Some(master.1));
        vec![master, replica]
    };
    let url = given.unwrap_or_else(|| format!("redis://127.0.0.1:{}", servers[0].1));
    let connect = |count: u32| {
        let begun = Instant::now();
        loop {
            let options = LockClient::builder().url(&url).retry_timeout(Duration::from_secs(30));
            let options = if count > 0 { options.require_replicas(count, WITHIN) } else { options };
            match options.build() {
                Ok(client) => return client,
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(30), "{error}"),
            }
        }
    };
    let clients = [connect(0), connect(1)];
    drop(clients[1].get_lock("ready").acquire().unwrap());
    for (what, threads, locks) in [
        ("one thread", 1, 1),
        ("16 threads, a lock each", 16, 16),
        ("64 threads, a lock each", 64, 64),
        ("16 threads, one lock", 16, 1),
    ] {
        let mut rates: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            for (client, rates) in clients.iter().zip(&mut rates) {
                let cycles = cycles(client, threads, locks);
                if round > 0 {
                    rates.push(cycles); // the first warms up
                }
            }
        }
        let [without, with] = rates.map(|mut rates| {
            rates.sort_unstable();
            rates[rates.len() / 2]
        });
        println!(
            "{what}: {without} cycles a second without, {with} with a replica: {:.2}",
            with as f64 / without as f64
        );
    }
}

fn cycles(client: &LockClient, threads: usize, locks: usize) -> u64 {
    let (ended, all) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (ended, all) = (&ended, &all);
            scope.spawn(move || {
                let lock = client.get_lock(format!("bench:{}", thread % locks));
                let mut count = 0;
                while !ended.load(Ordering::Relaxed) {
                    lock.lock().unwrap();
                    lock.unlock().unwrap();
                    count += 1;
                }
                all.fetch_add(count, Ordering::Relaxed);
            });
        }
        std::thread::sleep(RUN);
        ended.store(true, Ordering::Relaxed);
    });
    (all.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()) as u64
}
