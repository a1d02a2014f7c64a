//! A driver as a child process: its input and output lines, and its numbers in /proc.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::load::STACK;
use crate::quiet::{self, TICKS_PER_S};

pub struct Driver {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

/// A process's numbers of threads and memory. Only Linux shows them; on other systems all are zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub threads: f64,
    pub rss_kib: f64,
    /// The part of the memory that is stacks of waiting threads.
    pub stacks_kib: f64,
}

impl Driver {
    pub fn start(program: &[String], arguments: &[String]) -> Result<Driver> {
        let (first, rest) = program.split_first().context("a driver without a program")?;
        let mut child = Command::new(first)
            .args(rest)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {first}"))?;
        let input = child.stdin.take().context("no standard input")?;
        let output = child.stdout.take().context("no standard output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Driver { child, input, lines })
    }

    pub fn tell(&mut self, word: &str) -> Result<()> {
        Ok(writeln!(self.input, "{word}")?)
    }

    /// The next line; `None` if no line comes in time, an error if the driver has ended.
    pub fn line(&mut self, deadline: Instant) -> Result<Option<String>> {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(Some(line)),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => Ok(None),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                bail!("the driver ended: {}", self.child.wait()?)
            }
        }
    }

    /// Waits for the line `word`; `false` if no line comes in time, an error if another line comes.
    pub fn hear(&mut self, word: &str, deadline: Instant) -> Result<bool> {
        match self.line(deadline)? {
            Some(line) if line.trim() == word => Ok(true),
            Some(line) => bail!("the driver said {line:?} instead of {word:?}"),
            None => Ok(false),
        }
    }

    pub fn kill(&mut self) {
        drop(self.child.kill());
    }

    /// The driver's processor time so far; `NAN` except on Linux.
    pub fn cpu_s(&self) -> f64 {
        quiet::process(&self.child.id().to_string()).map_or(f64::NAN, |process| process.own / TICKS_PER_S)
    }

    pub fn memory(&self) -> Memory {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_default()
        };
        let mut memory = Memory::default();
        for line in read("status").lines() {
            match line.split_once(':') {
                Some(("Threads", value)) => memory.threads = value.trim().parse().unwrap_or_default(),
                Some(("VmRSS", value)) => memory.rss_kib = kib(value),
                _ => {}
            }
        }
        let mut is_stack = false;
        for line in read("smaps").lines() {
            match line.split_once(':') {
                Some(("Size", value)) => is_stack = kib(value) == (STACK / 1024) as f64,
                Some(("Rss", value)) if is_stack => memory.stacks_kib += kib(value),
                _ => {}
            }
        }
        memory
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // A driver ends by itself after its answer. If it still runs after 2 s, it hangs and must be killed.
        let deadline = Instant::now() + Duration::from_secs(2);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
        drop(self.child.wait());
    }
}

fn kib(text: &str) -> f64 {
    text.trim().trim_end_matches("kB").trim().parse().unwrap_or_default()
}
