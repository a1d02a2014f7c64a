//! Servers on 127.0.0.1 whose answers a test chooses.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Parser, Value};

pub struct Server {
    pub address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // This connection wakes the thread that accepts. It fails if that thread has ended.
        drop(TcpStream::connect(self.address));
    }
}

/// Starts a server that runs `talk` for each client in a thread.
pub fn talking(talk: impl Fn(TcpStream) + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (address, ended) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
    let (talk, ends) = (Arc::new(talk), Arc::clone(&ended));
    drop(super::start(move || {
        for client in listener.incoming().flatten().take_while(|_| !ends.load(Ordering::SeqCst)) {
            let talk = Arc::clone(&talk);
            drop(super::start(move || talk(client)));
        }
    }));
    Server { address, ended }
}

/// Starts a server that sends `words` after a client's first bytes, and then reads until the client hangs up.
pub fn saying(words: Vec<u8>) -> Server {
    talking(move |mut client| {
        let mut chunk = [0; 4096];
        if client.read(&mut chunk).is_ok_and(|count| count > 0) {
            client.write_all(&words).ok(); // fails if the client has hung up
            while client.read(&mut chunk).is_ok_and(|count| count > 0) {}
        }
    })
}

/// Starts a server that answers a Redis command by `answer`, or not at all if `answer` returns an empty text.
pub fn answering(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Server {
    talking(move |client| {
        let (mut parser, mut client) = (Parser::new(), &client);
        while let Ok(Value::Array(words)) = parser.parse_value(&mut client) {
            let words = words.into_iter().map(|word| redis::from_redis_value(word).unwrap_or_default());
            let said = answer(&words.collect::<Vec<String>>().join(" "));
            if client.write_all(said.as_bytes()).is_err() {
                return;
            }
        }
    })
}
