//! `run_once`: five processes have the same timer, and at each of ten ticks one of them does the job.
//!
//! `cargo run --example nightly_job` needs no server, and runs five threads, each with its own client, in
//! place of processes. With `REDIS_URL=redis://127.0.0.1:6379` it starts five processes. An argument sets the
//! time between two ticks in ms (default 500).
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::error::Error;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{LockClient, MemoryStore};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const PROCESSES: u32 = 5;
const TICKS: u32 = 10;

/// Waits for each tick, and runs the job if no other process does. Returns how often this process ran it.
fn timer(client: &LockClient, process: u32, first: Duration, tick: Duration) -> Result<u32> {
    // `run_once` keeps the lock for `at_least`: longer than the timers differ, so that no late timer repeats
    // the job, and shorter than the time between two ticks, so that the lock is free at the next tick.
    let at_least = tick * 3 / 4;
    // If a process dies during the job, another process may run the job after `at_most`.
    let at_most = Duration::from_secs(60);
    let mut jobs = 0;
    for number in 0..TICKS {
        // `late` makes the timers differ, as real timers do.
        let late = tick / 20 * ((process + number) % PROCESSES);
        let due = first + tick * number;
        thread::sleep((due + late).saturating_sub(SystemTime::now().duration_since(UNIX_EPOCH)?));
        let ran = client.run_once("example:nightly", at_least, at_most, |_guard| {
            // … close the books …
        })?;
        let took = SystemTime::now().duration_since(UNIX_EPOCH)?.saturating_sub(due);
        if ran.is_some() {
            println!(
                "tick {number}: process {process} has closed the books, {} ms after it",
                took.as_millis()
            );
            jobs += 1;
        }
    }
    client.shutdown()?;
    Ok(jobs)
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let mut next = || args.next().transpose();
    let tick_ms = next()?.unwrap_or(500);
    let tick = Duration::from_millis(tick_ms);
    // A process started by this example gets the time of the first tick, and its number.
    if let (Some(first_ms), Some(process)) = (next()?, next()?) {
        let client = LockClient::connect(&std::env::var("REDIS_URL")?)?;
        timer(&client, u32::try_from(process)?, Duration::from_millis(first_ms), tick)?;
        return Ok(());
    }
    // The first tick is a second from now, so that all processes have started by then.
    let first = SystemTime::now().duration_since(UNIX_EPOCH)? + Duration::from_secs(1);
    if std::env::var_os("REDIS_URL").is_some() {
        let start = |process: u32| {
            let mut command = Command::new(std::env::current_exe()?);
            let numbers = [u128::from(tick_ms), first.as_millis(), u128::from(process)];
            Ok(command.args(numbers.map(|number| number.to_string())).spawn()?)
        };
        let mut processes = (0..PROCESSES).map(start).collect::<Result<Vec<Child>>>()?;
        let ended = processes.iter_mut().map(|process| Ok(process.wait()?.success()));
        let all_well = ended.collect::<Result<Vec<bool>>>()?.into_iter().all(|well| well);
        println!("{PROCESSES} processes, {TICKS} ticks, all went well: {all_well}");
        return Ok(());
    }
    let store = MemoryStore::new();
    let jobs = thread::scope(|scope| {
        let clients = (0..PROCESSES).map(|process| (process, LockClient::in_memory_with(&store)));
        let timers =
            clients.map(|(process, client)| scope.spawn(move || timer(&client, process, first, tick)));
        timers.collect::<Vec<_>>().into_iter().try_fold(0, |jobs, timer| {
            Ok::<u32, Box<dyn Error + Send + Sync>>(
                jobs + timer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
            )
        })
    })?;
    println!("{PROCESSES} processes, {TICKS} ticks, {jobs} jobs");
    Ok(())
}
