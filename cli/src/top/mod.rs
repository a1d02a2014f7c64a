//! `top`: a store's locks in a terminal, polled at an interval.

mod asks;
mod screen;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use leasehold::LockClient;
use leasehold::crossbeam_channel::{Receiver, select, unbounded};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent};

use crate::args::{Common, Format, TopArgs};
use crate::clock::Moment;
use crate::run::signals::Caught;
use crate::say::{Ended, Exit, SIGINT, Say};
use crate::store::{self, explain, explained};
use crate::system;
use crate::top::asks::{Answer, Asks};
use crate::top::view::{Next, View};

pub(crate) fn top(common: &Common, args: &TopArgs) -> Ended {
    let say = Say::new(common);
    if common.format == Format::Json || !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        let words = "top is for a terminal; ls, show and watch write for files and programs, also as JSON";
        return Err(say.error(words, Exit::Usage));
    }
    let caught = Caught::start().map_err(|error| say.internal("signals cannot be caught", &error))?;
    let interval = args.interval;
    let opened = store::open_unless(&caught, common, None, say.silent(), move |builder| {
        store::patient(builder, interval)
    });
    let client = opened?.map_err(explained(say))?;
    let shown = show(&client, args, &caught);
    store::finish(client);
    shown.map_err(|trouble| match trouble {
        Trouble::Store(error) => explain(&error, say),
        Trouble::System(error) => say.internal("the terminal cannot be used", &error),
    })
}

enum Trouble {
    /// An error that later polls would repeat: the user lacks a right, or the store has no lists.
    Store(leasehold::Error),
    System(std::io::Error),
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        Trouble::System(error)
    }
}

fn show(client: &LockClient, args: &TopArgs, caught: &Caught) -> Result<Exit, Trouble> {
    let asks = Asks::start(client, &args.pattern, args.interval)?;
    let events = events()?;
    let mut view = View::default();
    let mut terminal = ratatui::try_init()?;
    let shown = shown(&mut terminal, &mut view, &asks, &events, caught);
    ratatui::try_restore()?;
    shown
}

fn events() -> std::io::Result<Receiver<Event>> {
    let (sender, receiver) = unbounded();
    let read = move || while event::read().is_ok_and(|event| sender.send(event).is_ok()) {};
    std::thread::Builder::new().name("typed".to_owned()).spawn(read)?;
    Ok(receiver)
}

fn shown(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    asks: &Asks,
    events: &Receiver<Event>,
    caught: &Caught,
) -> Result<Exit, Trouble> {
    const TICK: Duration = Duration::from_secs(1);
    loop {
        terminal.draw(|frame| screen::draw(frame, view, Moment::now()))?;
        asks.visible(view.visible());
        let next = select! {
            recv(events) -> event => match event {
                Ok(Event::Key(key)) if is_press(&key) => view.typed(&key),
                Ok(_) => Next::Go,
                Err(_closed) => return Ok(Exit::Success), // the terminal is gone
            },
            recv(asks.answers) -> answer => match answer {
                Ok(Answer::Failed(error)) if !error.is_retryable() && !view.has_locks() => return Err(Trouble::Store(error)),
                Ok(answer) => { view.answered(answer, Moment::now()); Next::Go }
                Err(_ended) => return Ok(Exit::Internal),
            },
            recv(caught.signals) -> signal => return Ok(signal.map_or(Exit::Internal, Exit::Signal)),
            default(TICK) => Next::Go,
        };
        match next {
            Next::Go => {}
            Next::Quit => return Ok(Exit::Success),
            Next::Interrupt => return Ok(Exit::Signal(SIGINT)),
            Next::Stop => stop(terminal)?,
            Next::Ask(ask) => asks.ask(ask),
        }
    }
}

fn is_press(key: &KeyEvent) -> bool {
    key.kind != event::KeyEventKind::Release
}

fn stop(terminal: &mut DefaultTerminal) -> Result<(), Trouble> {
    ratatui::try_restore()?;
    system::stop()?;
    // Not `clear`: it asks for the cursor's position, and the thread that reads keys would get the answer.
    *terminal = ratatui::try_init()?;
    Ok(())
}
