//! The program `leasehold`: commands under distributed locks.

#[cfg_attr(windows, allow(dead_code, reason = "what commands need, which are run on Unix only"))]
mod args;
mod clock;
mod cycles;
mod doctor;
mod help;
mod job;
mod list;
#[cfg(unix)]
mod run;
#[cfg(windows)]
#[path = "run/windows.rs"]
mod run;
mod say;
mod secret;
mod serve;
mod show;
mod store;
mod system;
mod top;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::args::{Action, Cli};
use crate::say::{Exit, Say};

/// Replaces musl's allocator, which serializes threads and is slow when thousands of locks are listed.
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
    let asks_no_store =
        matches!(cli.action, Action::Release(_) | Action::Completions { .. } | Action::Man { .. });
    if !asks_no_store && !matches!(cli.action, Action::Doctor(_)) {
        for warning in secret::warnings(&cli.common) {
            Say::new(&cli.common).notice("warning", &warning, &serde_json::json!({}));
        }
    }
    let ended = match &cli.action {
        Action::Run(args) => run::run(&cli.common, args),
        Action::Once(args) => run::once(&cli.common, args),
        Action::Elect(args) => run::elect(&cli.common, args),
        Action::Hold(args) => run::hold::hold(&cli.common, args),
        Action::Release(args) => run::hold::release(&cli.common, args),
        Action::Show(args) => show::show(&cli.common, args),
        Action::Ls(args) => list::locks(&cli.common, args),
        Action::Clients => list::clients(&cli.common),
        Action::Force(args) => show::force(&cli.common, args),
        Action::Permits(args) => show::permits(&cli.common, args),
        Action::Doctor(args) => doctor::doctor(&cli.common, args),
        Action::Top(args) => top::top(&cli.common, args),
        Action::Watch(args) => watch::watch(&cli.common, args),
        Action::Serve(args) => serve::serve(&cli.common, args),
        Action::Completions { shell } => Ok(completions(*shell)),
        Action::Man { command, to } => help::man(command.as_deref(), to.as_deref()),
    };
    let exit = ended.unwrap_or_else(|early| early);
    run::end_as_interrupted(exit);
    exit.into()
}

pub(crate) fn usage(error: clap::Error) -> Exit {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        drop(error.print()); // the reader may be gone
        return Exit::Success;
    }
    let words: Vec<_> = std::env::args_os().take_while(|word| word != "--").collect();
    let asks_for_json =
        words.windows(2).any(|pair| matches!(pair, [option, json] if option == "--format" && json == "json"))
            || words.iter().any(|word| word == "--format=json");
    if asks_for_json {
        Say::json().error(error.to_string().trim_end(), Exit::Usage);
    } else {
        drop(error.print());
    }
    Exit::Usage
}

/// Completes in bash the words after `--` as another command. For other shells clap's completions do so.
const BEHIND_THE_DASHES: &str = r#"
_leasehold_or_command() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        if declare -F _command_offset >/dev/null; then
            _command_offset $((i + 1))
        elif ((COMP_CWORD == i + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}" | sort -u)
        fi
        return
    done
    _leasehold "$@"
}
complete -F _leasehold_or_command -o nosort -o bashdefault -o default leasehold
"#;

fn completions(shell: clap_complete::Shell) -> Exit {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut help::command(), "leasehold", &mut text);
    if shell == clap_complete::Shell::Bash {
        text.extend(BEHIND_THE_DASHES.as_bytes());
    }
    print(&text)
}

pub(crate) fn print(text: &[u8]) -> Exit {
    // Errors are ignored, because a reader that closes the pipe early (`head`) is no failure.
    drop(std::io::stdout().write_all(text));
    Exit::Success
}
