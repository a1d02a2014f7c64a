//! Runs a test in a process of its own, because the test counts the threads, descriptors or bytes of its
//! process, or stops or kills it.

use std::fmt::Write as _;
use std::fs::File;
use std::process::Child;
use std::thread;
use std::time::Duration;

use super::{eventually, shout, signal, spawn, watch_for_stalls};

/// The shortest time limit of a test: on a busy machine, ten seconds of processor time can take minutes.
const HANGS: Duration = Duration::from_secs(400);

/// Runs `body` in a new process of this program, which runs only the calling test.
#[track_caller]
pub fn alone(body: impl FnOnce()) {
    alone_within(HANGS, body);
}

#[track_caller]
pub fn alone_within(limit: Duration, body: impl FnOnce()) {
    const ALONE: &str = "LEASEHOLD_TEST_ALONE";
    let name = test_name();
    if std::env::var(ALONE).as_ref() == Ok(&name) {
        watch_for_stalls();
        return body();
    }
    let (good, text) = reexecuted(&name, &[(ALONE, &name)]).ends_within(limit.max(HANGS));
    // The harness writes the test's name without a line end, so a reported line may follow the name.
    for line in text.lines().map(|line| line.rsplit_once(" ... ").map_or(line, |(_, rest)| rest)) {
        if ["SKIPPED ", "COUNTED ", "MEASURED "].iter().any(|begin| line.starts_with(begin)) {
            shout(line);
        }
    }
    assert!(good && text.contains("1 passed"), "{name} failed:\n{text}");
}

pub fn test_name() -> String {
    thread::current().name().expect("a test's thread has its name").to_owned()
}

pub fn test_command(test: &str) -> Vec<String> {
    let program = std::env::current_exe().expect("this program");
    let program = program.to_str().expect("a path in Unicode");
    [program, test, "--exact", "--nocapture", "--test-threads=1"].map(str::to_owned).to_vec()
}

/// Starts this test program again, to run only `test` with these environment variables.
pub fn reexecuted(test: &str, variables: &[(&str, &str)]) -> Process {
    let output = tempfile::NamedTempFile::new().unwrap();
    let append = || File::options().append(true).open(output.path()).unwrap();
    let child = spawn(&test_command(test), |command| {
        command.envs(variables.iter().copied()).stdout(append()).stderr(append())
    });
    Process { child: Some(child), output }
}

pub struct Process {
    child: Option<Child>,
    output: tempfile::NamedTempFile,
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the process runs").id()
    }

    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.output.path()).unwrap()).into_owned()
    }

    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for the process, and kills it after `limit`. Returns whether it succeeded, and its output.
    pub fn ends_within(mut self, limit: Duration) -> (bool, String) {
        let child = self.child.as_mut().expect("the process runs");
        let mut status = None;
        let has_ended = eventually(limit, || {
            status = child.try_wait().expect("a child can be asked");
            status.is_some()
        });
        if has_ended {
            self.child = None;
        }
        let mut text = self.output();
        if !has_ended {
            writeln!(text, "\nit was ended after {} s: it hangs", limit.as_secs()).unwrap();
        }
        (status.is_some_and(|status| status.success()), text)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
