//! A slow link to the server: a proxy that passes each byte on after half a round trip.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::server::address;

/// The URL of a new proxy, which serves for as long as this process runs.
pub fn far(url: &str, round_trip: Duration) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = format!("redis://{}", listener.local_addr()?);
    let server = address(url)?;
    spawn(move || {
        for client in listener.incoming().flatten() {
            // If the server cannot be reached, the client's connection ends, and the client counts an error.
            drop(join(client, &server, round_trip / 2));
        }
    });
    Ok(near)
}

fn join(client: TcpStream, server: &str, delay: Duration) -> Result<()> {
    let server = TcpStream::connect(server)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    pass(client.try_clone()?, server.try_clone()?, delay);
    pass(server, client, delay);
    Ok(())
}

/// Passes bytes on after a delay, while it reads more: the link delays, but does not limit the rate.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, under_way): (_, Receiver<(Instant, Vec<u8>)>) = channel();
    spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let read = buffer.get(..count).unwrap_or_default();
            if sender.send((Instant::now() + delay, read.to_vec())).is_err() {
                return;
            }
        }
    });
    spawn(move || {
        for (arrives, bytes) in under_way {
            sleep(arrives.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        drop(to.shutdown(Shutdown::Both));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_server_answers_after_a_round_trip() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", server.local_addr().unwrap());
        spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            let mut said = [0; 4];
            client.read_exact(&mut said).unwrap();
            client.write_all(&said).unwrap();
        });
        let trip = Duration::from_millis(20);
        let mut client = TcpStream::connect(address(&far(&url, trip).unwrap()).unwrap()).unwrap();
        let begun = Instant::now();
        client.write_all(b"ping").unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"ping");
        assert!(begun.elapsed() >= trip);
    }
}
