//! Runs the commands of one part with a priority and, in CI, a time limit; measures their processor time.
//! Their output goes to the part's log, and to the terminal if no other part writes there.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::gate::Gate;
use crate::output::processor_seconds;

/// How long a command that was asked to end may run on before it is killed.
const GRACE: Duration = Duration::from_secs(30);
/// Runs a command and writes its processor time to `$0`: the standard library does not report it.
const METERED: &str = r#""$@"; status=$?; times >"$0"; exit $status"#;

#[derive(Clone, Default)]
pub struct Run {
    words: Vec<String>,
    variables: Vec<(String, String)>,
    folder: Option<PathBuf>,
    has_no_limit: bool,
    is_silent: bool,
    has_terminal: bool,
}

impl Run {
    pub fn new(program: &str) -> Run {
        Run { words: vec![program.to_owned()], ..Run::default() }
    }

    pub fn cargo(arguments: &str) -> Run {
        Run::new("cargo").args(arguments.split_whitespace())
    }

    /// A call of a function of `scripts/servers.sh`, which may ask the user for a password.
    pub fn servers(function: &str) -> Run {
        let run = Run::new("bash")
            .args(["-c", ". scripts/servers.sh; \"$@\"", "bash"])
            .args(function.split_whitespace());
        Run { has_terminal: true, has_no_limit: true, ..run }
    }

    pub fn args<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Run {
        self.words.extend(arguments.into_iter().map(Into::into));
        self
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Run {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// A test program's command, with the variables that cargo sets for tests.
    pub fn of_a_test(self) -> Run {
        let here = std::env::current_dir().unwrap_or_default();
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| path_of("cargo").unwrap_or_default());
        self.with("CARGO", cargo).with("CARGO_MANIFEST_DIR", here.display().to_string())
    }

    pub fn within(mut self, folder: impl Into<PathBuf>) -> Run {
        self.folder = Some(folder.into());
        self
    }

    pub fn without_limit(self) -> Run {
        Run { has_no_limit: true, ..self }
    }

    /// The same command, whose output is returned but not shown.
    pub fn silent(self) -> Run {
        Run { is_silent: true, ..self }
    }
}

pub fn path_of(program: &str) -> Option<String> {
    let paths = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&paths).map(|folder| folder.join(program));
    files.find(|file| file.is_file()).map(|file| file.display().to_string())
}

pub struct Came {
    pub good: bool,
    pub output: String,
}

enum Words {
    Log { file: File, to_terminal: bool },
    Held(String),
}

pub struct Job<'a> {
    pub gate: &'a Gate,
    words: Arc<Mutex<Words>>,
    processor_seconds: Arc<Mutex<f64>>,
    variables: Vec<(String, String)>,
    nice: u8,
    /// In CI a command is ended after this many seconds, unless the environment sets another limit.
    limit: u64,
}

impl<'a> Job<'a> {
    pub fn logged(gate: &'a Gate, file: File, to_terminal: bool) -> Job<'a> {
        let words = Arc::new(Mutex::new(Words::Log { file, to_terminal }));
        Job { gate, words, processor_seconds: Arc::default(), variables: Vec::new(), nice: 0, limit: 900 }
    }

    /// A copy for the same part, to give its commands other settings.
    pub fn also(&self) -> Job<'a> {
        let (words, processor_seconds) = (Arc::clone(&self.words), Arc::clone(&self.processor_seconds));
        Job { gate: self.gate, words, processor_seconds, variables: self.variables.clone(), ..*self }
    }

    /// A copy for commands that run beside this job's. [`release`](Job::release) prints their output later.
    pub fn beside(&self) -> Job<'a> {
        Job { words: Arc::new(Mutex::new(Words::Held(String::new()))), ..self.also() }
    }

    pub fn release(&self, other: &Job<'_>) {
        if let Words::Held(text) = &*locked(&other.words) {
            self.write(text);
        }
    }

    pub fn standing_back(self) -> Job<'a> {
        Job { nice: 10, limit: self.limit.max(2700), ..self }
    }

    pub fn with_limit(self, limit: u64) -> Job<'a> {
        Job { limit, ..self }
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Job<'a> {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// A variable as this part's commands see it; `None` if unset or empty.
    pub fn variable(&self, name: &str) -> Option<String> {
        let mine = self.variables.iter().rev().find(|(mine, _)| mine == name).map(|(_, value)| value.clone());
        mine.or_else(|| self.gate.variable(name)).filter(|value| !value.is_empty())
    }

    pub fn processor(&self) -> f64 {
        *locked(&self.processor_seconds)
    }

    pub fn say(&self, line: &str) {
        self.write(&format!("{line}\n"));
    }

    fn write(&self, text: &str) {
        match &mut *locked(&self.words) {
            Words::Held(held) => held.push_str(text),
            Words::Log { file, to_terminal } => {
                file.write_all(text.as_bytes()).expect("the log can be written");
                if *to_terminal {
                    print!("{text}");
                    std::io::stdout().flush().ok(); // fails if the reader has gone
                }
            }
        }
    }

    /// Prints that something is skipped; returns whether that is allowed, which it is not in CI.
    pub fn skipped(&self, what: &str) -> bool {
        self.say(&format!("SKIPPED {what}"));
        !self.gate.in_ci
    }

    pub fn failed(&self, why: &str) -> bool {
        self.say(&format!("FAILED: {why}"));
        false
    }

    pub fn cargo(&self, arguments: &str) -> bool {
        self.run(&Run::cargo(arguments)).good
    }

    /// The standard output of a command; `None` if it fails. Errors go to the log.
    pub fn answer(&self, run: &Run) -> Option<String> {
        let came = self.ask(run);
        came.good.then(|| came.output.trim_end().to_owned())
    }

    /// The standard output of a command, and whether it succeeded. Errors go to the log.
    pub fn ask(&self, run: &Run) -> Came {
        self.started(run, true)
    }

    pub fn run(&self, run: &Run) -> Came {
        self.started(run, false)
    }

    /// Starts a command and waits for its end. If `is_question`, only errors go to the part's output.
    fn started(&self, run: &Run, is_question: bool) -> Came {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let (complaints, complains) = std::io::pipe().expect("a pipe");
        let times = self.gate.scratch();
        let mut command = Command::new("bash");
        command.args([OsStr::new("-c"), OsStr::new(METERED), times.as_os_str()]);
        if self.nice > 0 {
            command.args(["nice", "-n", &self.nice.to_string()]);
        }
        command.args(&run.words).envs(self.gate.variables()).envs(self.variables.iter().cloned());
        command.envs(run.variables.iter().cloned());
        if let Some(folder) = &run.folder {
            command.current_dir(folder);
        }
        // If this process kept a writing end, reading would never end, so each end is moved or dropped.
        let errors = if is_question {
            complains
        } else {
            drop(complains);
            writer.try_clone().expect("a pipe")
        };
        command.stderr(errors).stdout(writer);
        if !run.has_terminal {
            command.stdin(Stdio::null()).process_group(0);
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                return Came { good: self.failed(&format!("bash: {error}")), output: String::new() };
            }
        };
        drop(command); // closes this process's writing ends of the pipes
        let group = self.gate.groups.enter((!run.has_terminal).then_some(child.id()));
        let limit = (self.gate.in_ci && !run.has_no_limit).then(|| self.gate.limit().unwrap_or(self.limit));
        let (ended, ends) = channel::<()>();
        let is_shown = !is_question && !run.is_silent;
        let (output, status, is_late) = std::thread::scope(|scope| {
            let (group, ends) = (&group, ends);
            let watch = scope.spawn(move || limit.is_some_and(|limit| end_after(limit, group, &ends)));
            scope.spawn(|| self.read(complaints, !run.is_silent));
            let output = self.read(reader, is_shown);
            let status = child.wait();
            drop(ended);
            (output, status, watch.join().unwrap_or(false))
        });
        *locked(&self.processor_seconds) +=
            processor_seconds(&std::fs::read_to_string(&times).unwrap_or_default());
        std::fs::remove_file(&times).ok(); // missing if the command was ended at its limit
        if is_late {
            let limit = limit.unwrap_or_default();
            self.failed(&format!("not ended after {limit} s: {}", run.words.join(" ")));
        }
        Came { good: !is_late && status.is_ok_and(|status| status.success()), output }
    }

    /// Reads until the last writing process has ended, and shows lines as they come if `is_shown`.
    fn read(&self, from: PipeReader, is_shown: bool) -> String {
        let mut lines = BufReader::new(from);
        let (mut line, mut all) = (Vec::new(), String::new());
        while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line);
            if is_shown {
                self.write(&text);
            }
            all.push_str(&text);
            line.clear();
        }
        all
    }
}

/// Ends a group of processes after `limit` seconds, so that a part that hangs fails and the other parts run.
/// Returns whether the limit was reached.
fn end_after(limit: u64, group: &crate::gate::Group<'_>, ends: &std::sync::mpsc::Receiver<()>) -> bool {
    let over = |span| matches!(ends.recv_timeout(span), Err(RecvTimeoutError::Timeout));
    if !over(Duration::from_secs(limit)) {
        return false;
    }
    group.signal("TERM");
    if over(GRACE) {
        group.signal("KILL");
    }
    true
}

/// Locks a value, even if a thread panicked with the lock, so that the other parts go on.
pub fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
