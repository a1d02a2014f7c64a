//! The program `leasehold`: commands under distributed locks.

#[cfg_attr(windows, allow(dead_code, reason = "what commands need, which are run on Unix only"))]
mod args;
mod clock;
mod doctor;
mod exit;
mod job;
mod list;
mod permits;
mod rings;
#[cfg(unix)]
mod run;
#[cfg(windows)]
#[path = "run/windows.rs"]
mod run;
mod say;
mod serve;
mod show;
mod store;
mod system;
mod top;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::{Action, Cli};
use crate::exit::Exit;
use crate::say::Say;

/// Threads that list thousands of locks do not queue at it, as they do at the one of musl.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(exit) = run::parts::part() {
        return exit.into();
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return usage(error).into(),
    };
    let exit = match &cli.action {
        Action::Run(args) => run::run(&cli.common, args),
        Action::Once(args) => run::once(&cli.common, args),
        Action::Elect(args) => run::elect(&cli.common, args),
        Action::Hold(args) => run::hold::hold(&cli.common, args),
        Action::Release(args) => run::hold::release(&cli.common, args),
        Action::Show(args) => show::show(&cli.common, args),
        Action::Ls { pattern } => list::locks(&cli.common, pattern),
        Action::Clients => list::clients(&cli.common),
        Action::Force(args) => show::force(&cli.common, args),
        Action::Permits(args) => permits::permits(&cli.common, args),
        Action::Doctor(args) => doctor::doctor(&cli.common, args),
        Action::Top(args) => top::top(&cli.common, args),
        Action::Watch(args) => watch::watch(&cli.common, args),
        Action::Serve(args) => serve::serve(&cli.common, args),
        Action::Completions { shell } => completions(*shell),
        Action::Man => man(),
    };
    run::end_as_interrupted(exit);
    exit.into()
}

/// Help and version are no failure; all else is one of usage.
pub(crate) fn usage(mut error: clap::Error) -> Exit {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        drop(error.print()); // nobody may be reading
        return Exit::Success;
    }
    let words: Vec<_> = std::env::args_os().take_while(|word| word != "--").collect();
    let runs = words.get(1).is_some_and(|word| ["run", "once", "elect"].iter().any(|name| word == *name));
    if runs && words.len() == std::env::args_os().len() {
        let hint = "the command follows `--`, as in `leasehold run NAME -- COMMAND`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    let asks_for_json =
        words.windows(2).any(|pair| matches!(pair, [option, json] if option == "--format" && json == "json"))
            || words.iter().any(|word| word == "--format=json");
    if asks_for_json {
        Say::json().error(error.to_string().trim_end());
    } else {
        drop(error.print());
    }
    Exit::Usage
}

fn completions(shell: clap_complete::Shell) -> Exit {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leasehold", &mut text);
    print(&text)
}

fn man() -> Exit {
    let mut text = Vec::new();
    match write_man(&mut text) {
        Ok(()) => print(&text),
        Err(_) => Exit::Internal,
    }
}

/// One page: behind what is the same for all, a section for each subcommand.
fn write_man(text: &mut Vec<u8>) -> std::io::Result<()> {
    let mut all = Cli::command();
    all.build();
    clap_mangen::Man::new(all.clone()).render(text)?;
    for one in all.get_subcommands().filter(|one| !one.is_hide_set()) {
        let page = clap_mangen::Man::new(one.clone());
        writeln!(text, ".SH \"LEASEHOLD {}\"", one.get_name().to_uppercase())?;
        let mut section = Vec::new();
        page.render_synopsis_section(&mut section)?;
        page.render_description_section(&mut section)?;
        page.render_options_section(&mut section)?;
        // Below the section of the subcommand.
        text.write_all(String::from_utf8_lossy(&section).replace(".SH ", ".SS ").as_bytes())?;
    }
    Ok(())
}

fn print(text: &[u8]) -> Exit {
    // A reader that has seen enough is no failure.
    drop(std::io::stdout().write_all(text));
    Exit::Success
}
