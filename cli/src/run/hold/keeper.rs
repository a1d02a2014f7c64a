//! The keeper of a shell's lock: acquires, renews, releases, and answers `release`.
//!
//! The keeper has its own session and none of the shell's open files, so that neither `$(…)` nor a terminal
//! waits for it. A signal to all processes of a service does not end the keeper: it ends after its shell.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use leasehold::crossbeam_channel::{Receiver, Sender, never, select, unbounded};
use leasehold::{HoldState, OwnedGuard};
use serde_json::json;

use crate::args::{Action, Cli, HoldArgs, RunArgs};
use crate::clock::Moment;
use crate::job::span;
use crate::run::acquire;
use crate::run::hold::LOST;
use crate::run::hold::lookout::Lookout;
use crate::run::hold::place::{self, Socket};
use crate::run::hold::shell::Shell;
use crate::run::parts::{KeepArgs, LookoutArgs};
use crate::run::signals::Caught;
use crate::run::times::Times;
use crate::run::{connect, messages};
use crate::say::{Exit, Say};
use crate::store;

enum Event {
    /// The process `leasehold hold` died, or ended without printing the handle.
    CallerGone,
    ShellEnded,
    Release(UnixStream),
}

pub(crate) fn keep(args: &KeepArgs) -> Exit {
    close_inherited();
    rustix::process::setsid().ok(); // cannot fail, since this process leads no group yet
    // After an error this process ends, and its closed socket tells `leasehold hold` of the failure.
    begin(args).unwrap_or_else(|error| Say::json().internal("the lock cannot be kept", &error))
}

/// Closes inherited files, since an inherited pipe of the shell would stay open while this process runs.
fn close_inherited() {
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        nix::unistd::close(number).ok(); // fails for the descriptor of the list, which is closed by now
    }
}

fn fall_silent() {
    if let Ok(nothing) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        nix::unistd::dup2_stderr(nothing).ok();
    }
}

fn begin(args: &KeepArgs) -> std::io::Result<Exit> {
    let caller = UnixStream::from(stdin().as_fd().try_clone_to_owned()?);
    let words = receive_words(&caller)?;
    let read = Cli::read_from(words).map(|cli| (cli.common, cli.action));
    let Ok((common, Action::Hold(hold))) = read else {
        return Err(std::io::Error::other("the arguments are not those of hold"));
    };
    let say = Say::new(&common);
    let caught = Caught::start()?;
    let shell = Shell { pid: args.pid, began: args.began };
    let (sender, events) = unbounded();
    watch(shell, &caller, &caught, &sender)?;
    // Steps that can fail come first: once the lookout runs, it signals the shell if this process ends.
    let socket = Socket::at(&args.place)?;
    listen(socket.listener.try_clone()?, sender)?;

    let (lease, away, begun) = (hold.want.lease.lease, store::waited_for(&hold.want.patience), Moment::now());
    let client = match connect(&common, lease, hold.label.as_deref(), away, &caught, say) {
        Ok(client) => client,
        Err(exit) => return answer_refusal(&caller, exit),
    };
    let asked = RunArgs { want: hold.want.since(begun), ..hold.as_run() };
    let waits = Moment::now();
    let exit = match acquire::acquire(&client, &asked, &caught, say) {
        Ok((guard, window)) => {
            messages::acquired(&hold.name, &guard, Moment::now().since(waits), say);
            socket.note(shell, &guard.owner().to_string());
            let times = Times::of(window, hold.notice);
            let lookout = LookoutArgs {
                pid: args.pid,
                began: args.began,
                place: args.place.clone(),
                signal: hold.signal,
                before: times.grace + times.margin,
            };
            let keeper = Keeper { hold: &hold, lookout, guard, tick: times.tick, caught: &caught };
            keeper
                .run(&caller, socket, &events)
                .or_else(|error| answer_refusal(&caller, say.internal("the lock cannot be kept", &error)))
        }
        Err(exit) => answer_refusal(&caller, exit),
    };
    store::finish(client);
    exit
}

fn receive_words(mut caller: &UnixStream) -> std::io::Result<Vec<OsString>> {
    let mut length = [0; 4];
    caller.read_exact(&mut length)?;
    let mut bytes = Vec::new();
    caller.take(u32::from_be_bytes(length).into()).read_to_end(&mut bytes)?;
    Ok(bytes.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect())
}

fn answer_refusal(mut caller: &UnixStream, exit: Exit) -> std::io::Result<Exit> {
    caller.write_all(format!("{}\n", json!({"exit": exit.code()})).as_bytes())?;
    Ok(exit)
}

fn watch(shell: Shell, caller: &UnixStream, caught: &Caught, sender: &Sender<Event>) -> std::io::Result<()> {
    let (interrupt, events) = (caught.interrupt.clone(), sender.clone());
    std::thread::Builder::new().name("shell".to_owned()).spawn(move || {
        shell.wait_for_end();
        // The event is sent before the interrupt, so that the interrupted wait finds it.
        drop(events.send(Event::ShellEnded));
        fall_silent();
        interrupt.interrupt();
    })?;
    let (interrupt, events, mut caller) = (caught.interrupt.clone(), sender.clone(), caller.try_clone()?);
    std::thread::Builder::new().name("caller".to_owned()).spawn(move || {
        if !matches!(caller.read(&mut [0]), Ok(1)) {
            drop(events.send(Event::CallerGone));
        }
        fall_silent();
        interrupt.interrupt(); // ends the wait for the lock; no effect after the grant
    })?;
    Ok(())
}

fn listen(listener: UnixListener, events: Sender<Event>) -> std::io::Result<()> {
    std::thread::Builder::new().name("listen".to_owned()).spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.set_read_timeout(Some(Duration::from_secs(1))).ok();
            let mut word = String::new();
            let is_asked = BufReader::new(&stream).read_line(&mut word).is_ok() && word == "release\n";
            if is_asked
                && stream.write_all(b"heard\n").is_ok()
                && events.send(Event::Release(stream)).is_err()
            {
                return;
            }
        }
    })?;
    Ok(())
}

struct Keeper<'a> {
    hold: &'a HoldArgs,
    lookout: LookoutArgs,
    guard: OwnedGuard,
    tick: Duration,
    caught: &'a Caught,
}

impl Keeper<'_> {
    fn run(self, caller: &UnixStream, socket: Socket, events: &Receiver<Event>) -> std::io::Result<Exit> {
        self.caught.stop_waiting()?;
        // The lookout starts before the handle is printed, so it signals the shell if a later step fails.
        let mut lookout = Some(Lookout::start(&self.lookout, self.caught)?);
        let fence = self.guard.fencing_token().map(|fence| fence.get());
        let granted = json!({
            "handle": place::handle(&self.lookout.place, fence),
            "name": self.hold.name,
            "owner": self.guard.owner().to_string(),
            "fence": fence,
            "keeper": std::process::id(),
            "pid": self.lookout.pid,
        });
        lookout.iter_mut().for_each(|lookout| lookout.beat(self.until()));
        // If the caller is dead, this write fails, and `CallerGone` ends the hold.
        drop((&*caller).write_all(format!("{granted}\n").as_bytes()));

        let (mut lost, mut is_lost, granted) = (self.guard.lost(), false, Moment::now());
        let asked = loop {
            if !is_lost {
                lookout.iter_mut().for_each(|lookout| lookout.beat(self.until()));
            }
            let ended = lookout.as_ref().map_or_else(never, Lookout::ended);
            select! {
                recv(events) -> event => match event {
                    Ok(Event::Release(stream)) => break Some(stream),
                    Ok(Event::CallerGone | Event::ShellEnded) | Err(_) => break None,
                },
                recv(lost) -> loss => {
                    is_lost = loss.is_ok();
                    lost = never();
                    lookout.iter().filter(|_| is_lost).for_each(Lookout::gone);
                },
                // The lookout has ended. The `default` branch starts another, because without a lookout the
                // shell could get its signal too late.
                recv(ended) -> _ => lookout.take().into_iter().for_each(|lookout| lookout.end(self.caught)),
                recv(self.caught.signals) -> _ => {}
                default(self.tick) => if lookout.is_none() {
                    lookout = Lookout::start(&self.lookout, self.caught).ok();
                    lookout.iter().filter(|_| is_lost).for_each(Lookout::gone);
                }
            }
        };
        lookout.into_iter().for_each(|lookout| lookout.end(self.caught));
        drop(socket);
        let held = Moment::now().since(granted);
        let (exit, words) = released(self.guard, &self.hold.name, is_lost, held);
        if let Some(mut stream) = asked {
            let answer = json!({"exit": exit.code(), "words": words, "name": self.hold.name});
            drop(stream.write_all(format!("{answer}\n").as_bytes()));
        }
        Ok(exit)
    }

    fn until(&self) -> Moment {
        let now = Moment::now();
        now.plus(self.guard.remaining())
    }
}

fn released(guard: OwnedGuard, name: &str, is_lost: bool, held: Duration) -> (Exit, String) {
    let lost = || (Exit::Lost(LOST), format!("the lock of {name} was lost before it was released"));
    if is_lost || guard.state() == HoldState::Lost {
        return lost(); // the dropped guard releases what may be left
    }
    match guard.unlock() {
        Ok(()) => (Exit::Success, format!("released {name}, held {}", span(held))),
        Err(error) if error.is_lost() || error.is_not_held() => lost(),
        Err(error) => (
            Exit::ReleaseUnknown,
            format!("it is unknown whether the lock of {name} was released: {}", store::text(&error)),
        ),
    }
}
