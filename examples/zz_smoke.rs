//! smoke
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::disallowed_methods)]
use leasehold::*;
use std::time::*;
fn main() {
    let c = LockClient::connect("redis://127.0.0.1:7777").unwrap();
    let l = c.lock("a");
    let n = 20000;
    let t = Instant::now();
    for _ in 0..n {
        l.lock().unwrap();
        l.unlock().unwrap();
    }
    println!("lock/unlock {:.0}/s", n as f64 / t.elapsed().as_secs_f64());
    let t = Instant::now();
    for _ in 0..n {
        drop(l.acquire().unwrap());
    }
    println!("guards {:.0}/s", n as f64 / t.elapsed().as_secs_f64());
    for threads in [8, 64] {
        let t = Instant::now();
        let hs: Vec<_> = (0..threads)
            .map(|_| {
                let l = c.lock("b");
                std::thread::spawn(move || {
                    let t = Instant::now();
                    let mut n = 0;
                    let mut max = Duration::ZERO;
                    while t.elapsed() < Duration::from_secs(2) {
                        let w = Instant::now();
                        let g = l.acquire().unwrap();
                        max = max.max(w.elapsed());
                        drop(g);
                        n += 1;
                    }
                    (n, max)
                })
            })
            .collect();
        let r: Vec<_> = hs.into_iter().map(|h| h.join().unwrap()).collect();
        let sum: i32 = r.iter().map(|x| x.0).sum();
        println!(
            "{threads} threads one key {:.0}/s min {} max {} longest {:?}",
            sum as f64 / t.elapsed().as_secs_f64(),
            r.iter().map(|x| x.0).min().unwrap(),
            r.iter().map(|x| x.0).max().unwrap(),
            r.iter().map(|x| x.1).max().unwrap()
        );
    }
    for threads in [16, 64] {
        let t = Instant::now();
        let hs: Vec<_> = (0..threads)
            .map(|i| {
                let l = c.lock(&format!("k{i}"));
                std::thread::spawn(move || {
                    let t = Instant::now();
                    let mut n = 0;
                    while t.elapsed() < Duration::from_secs(2) {
                        let g = l.acquire().unwrap();
                        drop(g);
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        let r: Vec<i32> = hs.into_iter().map(|h| h.join().unwrap()).collect();
        println!(
            "{threads} threads own keys {:.0}/s",
            r.iter().sum::<i32>() as f64 / t.elapsed().as_secs_f64()
        );
    }
}
