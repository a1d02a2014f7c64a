//! A running `serve`, and the requests of a client to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{ChildStderr, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::world::{LIMIT, Run, Server, signal};

pub(crate) struct Site {
    process: Run,
    pub(crate) address: SocketAddr,
    said: BufReader<ChildStderr>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Site {
    pub(crate) fn start(server: &Server) -> Site {
        Site::with(&mut server.leasehold(&["--format", "json", "serve", "--listen", "127.0.0.1:0"]))
    }

    pub(crate) fn with(command: &mut Command) -> Site {
        let mut process = Run::start(command.stderr(Stdio::piped()));
        let said = BufReader::new(process.0.stderr.take().unwrap());
        let mut site = Site { process, address: "127.0.0.1:0".parse().unwrap(), said };
        site.address = site.says("serving")["address"].as_str().unwrap().parse().unwrap();
        site
    }

    #[track_caller]
    pub(crate) fn says(&mut self, event: &str) -> Value {
        loop {
            let mut line = String::new();
            self.said.read_line(&mut line).unwrap();
            assert!(!line.is_empty(), "the program ended without the event {event}");
            let object: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if object["event"] == event {
                return object;
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &self.address.to_string())
    }

    pub(crate) fn ask(&self, method: &str, path: &str, host: &str) -> Answer {
        self.send(&format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    }

    pub(crate) fn send(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        answer(stream)
    }

    pub(crate) fn locks(&self) -> Vec<Value> {
        self.get("/locks.json").json()["locks"].as_array().unwrap().clone()
    }

    pub(crate) fn lock(&self, name: &str) -> Option<Value> {
        self.locks().into_iter().find(|lock| lock["name"] == name)
    }

    #[track_caller]
    pub(crate) fn end(&mut self, by: Signal) -> Option<i32> {
        signal(self.pid(), by);
        self.process.wait().code()
    }
}

#[track_caller]
pub(crate) fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}
