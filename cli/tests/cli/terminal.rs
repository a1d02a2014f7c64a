//! A shell on a terminal of its own: Ctrl-C, Ctrl-Z, and who reads what is typed.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::world::{Server, eventually};

/// The end of a terminal that is typed at and read, and the file that programs have for a terminal.
pub(crate) fn pseudo_terminal() -> (File, PathBuf) {
    let main: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&main).unwrap();
    unlockpt(&main).unwrap();
    let name = ptsname(&main, Vec::new()).unwrap();
    (File::from(main), PathBuf::from(std::ffi::OsString::from_vec(name.into_bytes())))
}

struct Shell {
    process: Child,
    terminal: File,
    shown: Arc<Mutex<String>>,
    seen: usize,
}

impl Shell {
    fn start(server: &Server) -> Shell {
        let (terminal, path) = pseudo_terminal();
        // With notes of its own: a warning about the set-up comes once.
        let run = server.path("run");
        std::fs::DirBuilder::new().mode(0o700).create(&run).unwrap();
        let side = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // Tests in the background have ignored interrupts, which all that they start would ignore too.
        let process = Command::new("env")
            .args("--default-signal setsid --ctty --wait bash --norc --noprofile --noediting -i".split(' '))
            .env("PS1", "ready> ")
            .env("LEASEHOLD_URL", server.url())
            .env("XDG_RUNTIME_DIR", run)
            .env("TERM", "xterm")
            .env("leasehold", env!("CARGO_BIN_EXE_leasehold"))
            .env("run", format!("{} run", env!("CARGO_BIN_EXE_leasehold")))
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .expect("env, of coreutils");
        let shown = Arc::<Mutex<String>>::default();
        let (mut reading, shows) = (terminal.try_clone().unwrap(), Arc::clone(&shown));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reading.read(&mut bytes) {
                shows.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        let mut shell = Shell { process, terminal, shown, seen: 0 };
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
}

impl Drop for Shell {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.shown.lock().unwrap());
        }
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[test]
fn ctrl_c_ends_the_command_and_the_script_around_it() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.types("bash -c \"$run one -- sh -c 'echo run''ning; exec sleep 60'; echo ne''xt\"\n");
    shell.shows("running");
    shell.types("\x03");
    shell.shows("ready> ");
    shell.types("echo code $?\n");
    shell.shows("code 130");
    assert!(!shell.shown.lock().unwrap().contains("next"));
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn ctrl_c_ends_a_wait() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.types("$run one -- sleep 60 &\n");
    eventually("it is held", || server.keys() == ["one"]);
    shell.types("$run -v --fair one -- true\n");
    shell.shows("asking for one");
    eventually("it waits", || server.ask(&["LLEN", "redisson_lock_queue:{one}"]).starts_with(":1"));
    shell.types("\x03");
    shell.shows("ready> ");
    shell.types("echo code $?\n");
    shell.shows("code 130");
    shell.types("kill %1; wait %1; echo over $?\n");
    shell.shows("over 143");
}

#[test]
fn a_command_stops_and_goes_on_with_the_shells_job() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.types("$run one -- cat\n");
    eventually("it is held", || server.keys() == ["one"]);
    shell.types("typed\n");
    shell.shows("typed\r\ntyped");
    shell.types("\x1a");
    shell.shows("suspended");
    shell.shows("Stopped");
    shell.shows("ready> ");
    shell.types("fg\n");
    shell.shows("cat");
    shell.types("again\n");
    // The terminal's echo, and the command's.
    shell.shows("again");
    shell.shows("again");
    shell.types("\x04");
    shell.types("echo code $?\n");
    shell.shows("code 0");
}

#[test]
fn a_wait_stops_and_goes_on_with_the_shells_job() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.types("$run one -- sleep 60 &\n");
    eventually("it is held", || server.keys() == ["one"]);
    shell.types("$run -v one -- echo had''it\n");
    shell.shows("asking for one");
    eventually("it waits", || server.ask(&["ZCARD", "leasehold_lock_line:{one}"]).starts_with(":1"));
    shell.types("\x1a");
    shell.shows("Stopped");
    shell.types("kill %1; fg\n");
    shell.shows("hadit");
    shell.types("echo code $?\n");
    shell.shows("code 0");
}

/// Nobody renews the lock of a run that is suspended. Its helper is not, and ends the command.
#[test]
fn a_run_suspended_past_its_lease_has_lost() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    // A lease shorter than a request may take is warned of, at some moment of the run.
    shell.types("$run --lease 2s one -- cat\n");
    shell.shows("make it less than a third of the lease");
    eventually("it is held", || server.keys() == ["one"]);
    shell.types("typed\n");
    shell.shows("typed\r\ntyped");
    shell.types("\x1a");
    shell.shows("suspended");
    shell.shows("Stopped");
    eventually("the lease is over", || server.keys().is_empty());
    shell.types("jobs -p; pgrep -x -s 0 cat | wc -l | sed 's/^/cats /'\n");
    shell.shows("cats 0");
    shell.types("fg\n");
    shell.shows("ready> ");
    shell.types("echo code $?\n");
    shell.shows("code 79");
}

#[test]
fn a_command_in_the_background_gets_the_terminal_with_fg() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    // It reads, which stops it, until the shell puts it in front.
    shell.types("$run one -- cat &\n");
    shell.shows("suspended");
    // The shell tells of the stop in the words of going on, so it goes on when it has told.
    shell.types("until jobs | grep -q Stopped; do sleep 0.01; done; echo is''stopped\n");
    shell.shows("isstopped");
    shell.shows("ready> ");
    shell.types("fg\n");
    shell.shows("run one -- cat\r\n");
    shell.types("typed\n");
    shell.shows("typed\r\ntyped");
    shell.types("\x04");
    shell.types("echo code $?\n");
    shell.shows("code 0");
}

#[test]
fn a_command_in_a_pipeline_gets_the_terminal_when_it_asks() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.types("$run one -- cat | tr a-z A-Z\n");
    eventually("it is held", || server.keys() == ["one"]);
    shell.types("loud\n\x04");
    shell.shows("LOUD");
    shell.shows("ready> ");
}

#[test]
fn top_stops_and_goes_on_with_the_shells_job() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.types("stty rows 24 columns 100; $leasehold top\n");
    shell.shows("q quit");
    shell.types("\x1a");
    shell.shows("Stopped");
    shell.shows("ready> ");
    shell.types("echo typed\n");
    shell.shows("typed\r\ntyped");
    shell.types("fg\n");
    shell.shows("q quit");
    shell.types("\x03");
    shell.shows("ready> ");
    shell.types("echo code $?\n");
    shell.shows("code 130");
}

#[test]
fn a_waiter_on_a_terminal_says_who_has_the_lock() {
    let server = Server::start();
    let mut shell = Shell::start(&server);
    shell.types("$run one -- sleep 60 &\n");
    eventually("it is held", || server.keys() == ["one"]);
    shell.types("$run one -- true\n");
    shell.shows("waiting for one: held by sleep on ");
    shell.types("\x03");
    shell.shows("ready> ");
    shell.types("$run -q -w 2 one -- true; echo code $?\n");
    shell.shows("code 75");
    assert_eq!(shell.shown.lock().unwrap().matches("waiting for").count(), 1);
    shell.types("kill %1; wait %1; echo over $?\n");
    shell.shows("over 143");
}
