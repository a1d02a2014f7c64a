//! Reads MONITOR, and separates commands that clients sent from commands that scripts ran.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use uuid::Uuid;

use crate::server::{Control, address};

/// The benchmark's own requests, which are not counted.
const OURS: &[&[u8]] = &[b"\"INFO\"", b"\"DBSIZE\"", b"\"CLIENT\" \"ID\"", b"\"CLIENT\" \"LIST\""];
/// How many requests of a `Section` are kept with their arguments.
const KEPT: usize = 64;

pub struct Monitor {
    socket: TcpStream,
    sections: Receiver<Section>,
    reader: Option<JoinHandle<()>>,
}

/// The clients' requests between two marks, which are ECHOs of the benchmark. `mark` is the later one.
#[derive(Default)]
struct Section {
    mark: String,
    sent: u64,
    kept: Vec<Vec<Vec<u8>>>,
}

impl Monitor {
    pub fn start(url: &str) -> Result<Monitor> {
        let mut socket = TcpStream::connect(address(url)?)?;
        socket.write_all(b"*1\r\n$7\r\nMONITOR\r\n")?;
        let mut lines = BufReader::with_capacity(1 << 20, socket.try_clone()?);
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line)?;
        let (sender, sections) = channel();
        let reader = std::thread::spawn(move || {
            let mut section = Section::default();
            loop {
                line.clear();
                if !matches!(lines.read_until(b'\n', &mut line), Ok(read) if read > 0) {
                    return;
                }
                let Some((from_script, words)) = split(&line) else { continue };
                if from_script {
                    continue;
                }
                if let Some(mark) = mark_of(words) {
                    section.mark = mark;
                    if sender.send(std::mem::take(&mut section)).is_err() {
                        return;
                    }
                    continue;
                }
                if OURS.iter().any(|ours| words.starts_with(ours)) {
                    continue;
                }
                section.sent += 1;
                if section.kept.len() < KEPT {
                    section.kept.push(parse(words));
                }
            }
        });
        Ok(Monitor { socket, sections, reader: Some(reader) })
    }

    /// How many requests clients sent since the last call of `count` or `take`.
    pub fn count(&mut self, control: &mut Control) -> Result<u64> {
        Ok(self.section(control)?.sent)
    }

    /// The first `KEPT` requests that clients sent since the last call of `count` or `take`.
    pub fn take(&mut self, control: &mut Control) -> Result<Vec<Vec<Vec<u8>>>> {
        Ok(self.section(control)?.kept)
    }

    fn section(&mut self, control: &mut Control) -> Result<Section> {
        let mark = format!("mark-{}", Uuid::new_v4());
        control.echo(&mark)?;
        loop {
            let section =
                self.sections.recv_timeout(Duration::from_secs(60)).context("MONITOR does not keep up")?;
            if section.mark == mark {
                return Ok(section);
            }
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        drop(self.socket.shutdown(std::net::Shutdown::Both));
        if let Some(reader) = self.reader.take() {
            drop(reader.join());
        }
    }
}

/// Splits a line such as `+1700000000.000000 [0 127.0.0.1:4242] "GET" "a"`: whether a script made the call,
/// and the words.
fn split(line: &[u8]) -> Option<(bool, &[u8])> {
    let open = line.iter().position(|byte| *byte == b'[')?;
    let close = open + line.get(open..)?.iter().position(|byte| *byte == b']')?;
    let from_script = line.get(open..close)?.ends_with(b" lua");
    let words = line.get(close + 1..)?;
    Some((from_script, words.trim_ascii()))
}

fn mark_of(words: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(words).ok()?;
    let mark = text.strip_prefix("\"ECHO\" \"")?.strip_suffix('"')?;
    mark.starts_with("mark-").then(|| mark.to_owned())
}

/// The words inside the quotes, with the escapes of Redis's `sdscatrepr` undone.
fn parse(text: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match (&mut word, byte) {
            (None, b'"') => word = Some(Vec::new()),
            (None, _) => {}
            (Some(_), b'"') => words.extend(word.take()),
            (Some(word), b'\\') => match bytes.next() {
                Some(b'n') => word.push(b'\n'),
                Some(b'r') => word.push(b'\r'),
                Some(b't') => word.push(b'\t'),
                Some(b'a') => word.push(7),
                Some(b'b') => word.push(8),
                Some(b'x') => {
                    let digits: Vec<u8> = bytes.by_ref().take(2).collect();
                    let digits = std::str::from_utf8(&digits).unwrap_or_default();
                    word.extend(u8::from_str_radix(digits, 16).ok());
                }
                Some(other) => word.push(other),
                None => {}
            },
            (Some(word), byte) => word.push(byte),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{parse, split};

    #[test]
    fn a_monitor_line_is_split_into_source_and_arguments() {
        let line = b"+1339518083.107412 [0 127.0.0.1:60866] \"evalsha\" \"a b\"\r\n";
        assert_eq!(split(line), Some((false, &b"\"evalsha\" \"a b\""[..])));
        assert_eq!(split(b"+1.2 [0 lua] \"get\" \"[x] lua]\"\r\n").map(|found| found.0), Some(true));
    }

    #[test]
    fn escape_sequences_in_monitor_lines_are_decoded() {
        assert_eq!(
            parse(br#""a\"b" "\x00\xff\n\\" """#),
            [b"a\"b".to_vec(), vec![0, 255, b'\n', b'\\'], vec![]]
        );
    }
}
