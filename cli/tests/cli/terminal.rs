//! A shell on its own terminal: Ctrl-C, Ctrl-Z, and which process reads the typed text.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::world::{Run, Server, eventually};

/// Starts a program on its own terminal of this size. Returns the file in which the test writes what a user
/// would type. A thread passes the output to `shows`.
pub(crate) fn on_terminal(
    command: &mut Command,
    (rows, columns): (u16, u16),
    mut shows: impl FnMut(&[u8]) + Send + 'static,
) -> (Run, File) {
    let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&main).unwrap();
    unlockpt(&main).unwrap();
    let path = OsString::from_vec(ptsname(&main, Vec::new()).unwrap().into_bytes());
    let terminal = File::from(main);
    resize(&terminal, rows, columns);
    let side = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
    command.env("TERM", "xterm").stdin(side()).stdout(side()).stderr(side());
    let run = Run(command.spawn().unwrap());
    let mut reading = terminal.try_clone().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = reading.read(&mut bytes) {
            shows(&bytes[..count]);
        }
    });
    (run, terminal)
}

pub(crate) fn resize(terminal: &File, ws_row: u16, ws_col: u16) {
    tcsetwinsize(terminal, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

struct Shell {
    _process: Run,
    terminal: File,
    shown: Arc<Mutex<String>>,
    seen: usize,
}

impl Shell {
    fn start(server: &Server) -> Shell {
        // `run` prints some warnings once for each runtime folder, so a new folder makes it print them here.
        let run = server.path("run");
        std::fs::DirBuilder::new().mode(0o700).create(&run).unwrap();
        // A background test ignores SIGINT, and its processes would inherit this, so `env` resets signals.
        let mut bash = Command::new("env");
        bash.args("--default-signal setsid --ctty --wait bash --norc --noprofile --noediting -i".split(' '));
        bash.env("PS1", "ready> ").env("LEASEHOLD_URL", server.url()).env("XDG_RUNTIME_DIR", run);
        let program = env!("CARGO_BIN_EXE_leasehold");
        bash.env("leasehold", program).env("run", format!("{program} run"));
        let shown = Arc::<Mutex<String>>::default();
        let shows = Arc::clone(&shown);
        let (process, terminal) = on_terminal(&mut bash, (24, 80), move |bytes| {
            shows.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        });
        let mut shell = Shell { _process: process, terminal, shown, seen: 0 };
        shell.shows("ready> ");
        shell
    }

    fn types(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    #[track_caller]
    fn shows(&mut self, text: &str) {
        let (shown, seen) = (Arc::clone(&self.shown), self.seen);
        let mut at = None;
        eventually(&format!("{text:?} is shown"), || {
            let shown = shown.lock().unwrap();
            at = shown[seen..].find(text);
            at.is_some()
        });
        self.seen += at.unwrap() + text.len();
    }

    /// For each step, types the first text, and waits until the terminal shows all texts that belong to it.
    #[track_caller]
    fn goes(&mut self, steps: &[(&str, &[&str])]) {
        for (typed, shown) in steps {
            self.types(typed);
            shown.iter().for_each(|text| self.shows(text));
        }
    }

    #[track_caller]
    fn has_code(&mut self, code: u8) {
        self.goes(&[("echo code $?\n", &[&format!("code {code}")])]);
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.shown.lock().unwrap());
        }
    }
}

/// A shell in which `leasehold run` holds the lock `one` in the background.
fn beside_a_holder(server: &Server) -> Shell {
    let mut shell = Shell::start(server);
    shell.types("$run one -- sleep 60 &\n");
    eventually("the lock is held", || server.keys() == ["one"]);
    shell
}

/// A shell in which `leasehold run` holds the lock `one` in the foreground, and `cat` reads the typed text.
fn with_cat(server: &Server, options: &str, shown: &[&str]) -> Shell {
    let mut shell = Shell::start(server);
    shell.goes(&[(&format!("$run {options} one -- cat\n"), shown)]);
    eventually("the lock is held", || server.keys() == ["one"]);
    shell.goes(&[("typed\n", &["typed\r\ntyped"])]);
    shell
}

#[test]
fn ctrl_c_ends_the_command_and_the_calling_script() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    let script = "bash -c \"$run one -- sh -c 'echo run''ning; exec sleep 60'; echo ne''xt\"\n";
    shell.goes(&[(script, &["running"]), ("\x03", &["ready> "])]);
    shell.has_code(130);
    assert!(!shell.shown.lock().unwrap().contains("next"));
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn ctrl_c_ends_a_wait() {
    let server = Server::start();
    let mut shell = beside_a_holder(&server);
    shell.goes(&[("$run -v --fair one -- true\n", &["asking for one"])]);
    eventually("the waiter waits", || server.ask(&["LLEN", "redisson_lock_queue:{one}"]).starts_with(":1"));
    shell.goes(&[("\x03", &["ready> "])]);
    shell.has_code(130);
    shell.goes(&[("kill %1; wait %1; echo over $?\n", &["over 143"])]);
}

#[test]
fn a_command_stops_and_continues_with_its_shell_job() {
    let server = Server::start();
    let mut shell = with_cat(&server, "", &[]);
    shell.goes(&[("\x1a", &["suspended", "Stopped", "ready> "]), ("fg\n", &["cat"])]);
    // The word is shown twice: by the terminal's echo, and by the command.
    shell.goes(&[("again\n", &["again", "again"]), ("\x04", &[])]);
    shell.has_code(0);
}

#[test]
fn a_wait_stops_and_continues_with_its_shell_job() {
    let server = Server::start();
    let mut shell = beside_a_holder(&server);
    shell.goes(&[("$run -v one -- echo had''it\n", &["asking for one"])]);
    eventually("the waiter waits", || server.queue_length("one") == 1);
    shell.goes(&[("\x1a", &["Stopped"]), ("kill %1; fg\n", &["hadit"])]);
    shell.has_code(0);
}

/// A suspended run does not renew its lock. Its helper is not suspended, and ends the command.
#[test]
fn a_run_suspended_past_its_lease_loses_the_lock() {
    let server = Server::start();
    // The test types after the warning about the short lease, which would else mix with the typed text.
    let mut shell = with_cat(&server, "--lease 2s", &["make it less than a third of the lease"]);
    shell.goes(&[("\x1a", &["suspended", "Stopped"])]);
    eventually("the lease is over", || server.keys().is_empty());
    shell.goes(&[("jobs -p; pgrep -x -s 0 cat | wc -l | sed 's/^/cats /'\n", &["cats 0"])]);
    shell.goes(&[("fg\n", &["ready> "])]);
    shell.has_code(79);
}

#[test]
fn a_command_in_the_background_gets_the_terminal_with_fg() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    // `cat` reads from the terminal, so the system stops it until `fg`.
    shell.goes(&[("$run one -- cat &\n", &["suspended"])]);
    // Bash reports a stop some time after it happens, so the test waits for the report before `fg`.
    let told = "until jobs | grep -q Stopped; do sleep 0.01; done; echo is''stopped\n";
    shell.goes(&[(told, &["isstopped", "ready> "]), ("fg\n", &["run one -- cat\r\n"])]);
    shell.goes(&[("typed\n", &["typed\r\ntyped"]), ("\x04", &[])]);
    shell.has_code(0);
}

#[test]
fn a_command_in_a_pipeline_gets_the_terminal() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.types("$run one -- cat | tr a-z A-Z\n");
    eventually("the lock is held", || server.keys() == ["one"]);
    shell.goes(&[("loud\n\x04", &["LOUD", "ready> "])]);
}

#[test]
fn top_stops_and_continues_with_its_shell_job() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.goes(&[("stty rows 24 columns 100; $leasehold top\n", &["q quit"])]);
    shell.goes(&[("\x1a", &["Stopped", "ready> "]), ("echo typed\n", &["typed\r\ntyped"])]);
    shell.goes(&[("fg\n", &["q quit"]), ("\x03", &["ready> "])]);
    shell.has_code(130);
}

#[test]
fn a_waiter_on_a_terminal_names_the_holder() {
    let server = Server::start();
    let mut shell = beside_a_holder(&server);
    shell.goes(&[("$run one -- true\n", &["waiting for one: held by sleep on "]), ("\x03", &["ready> "])]);
    shell.goes(&[("$run -q -w 2 one -- true; echo code $?\n", &["code 75"])]);
    assert_eq!(shell.shown.lock().unwrap().matches("waiting for").count(), 1);
    shell.goes(&[("kill %1; wait %1; echo over $?\n", &["over 143"])]);
}
