//! `run`: a command under a lock.

mod acquire;
pub(crate) mod helper;
mod link;
pub(crate) mod signals;
mod supervisor;
pub(crate) mod terminal;

use serde_json::json;

use crate::args::{Common, RunArgs};
use crate::exit::Exit;
use crate::run::acquire::Refusal;
use crate::run::signals::Caught;
use crate::run::supervisor::Task;
use crate::say::Say;
use crate::store;

pub(crate) fn run(common: &Common, args: &RunArgs) -> Exit {
    let say = Say::new(common);
    // Before the first thread, so that all have it.
    signals::ignore_terminal_output_stop();
    let caught = match Caught::start() {
        Ok(caught) => caught,
        Err(error) => {
            say.error(&format!("signals cannot be caught: {error}"));
            return Exit::Internal;
        }
    };
    let client = match store::connect(common, args.terms.lease, args.terms.label.as_deref(), say) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let exit = match acquire::acquire(&client, args, &caught, say) {
        Ok((guard, window)) => {
            let fields = json!({"name": args.name, "owner": guard.owner().to_string(), "fence": guard.fence().map(|fence| fence.get())});
            say.detail("acquired", &format!("acquired {}", args.name), &fields);
            let task = Task {
                name: &args.name,
                terms: &args.terms,
                window,
                max_hold: args.max_hold,
                strict: args.strict,
                format: common.format,
                command: &args.command,
            };
            supervisor::supervise(&task, guard, &caught, say)
        }
        Err(Refusal::Busy) => {
            if !say.is_quiet() {
                let holder = client.inspect(&args.name).ok();
                let holder = holder.and_then(|shown| shown.holders.first().map(ToString::to_string));
                let words = match &holder {
                    Some(holder) => format!("{} is busy: held by {holder}", args.name),
                    None => format!("{} is busy", args.name),
                };
                say.notice("busy", &words, &json!({"name": args.name, "holder": holder}));
            }
            Exit::Busy(args.conflict_exit_code)
        }
        Err(Refusal::Signal(signal)) => Exit::Signal(signal),
        Err(Refusal::Failed(exit)) => exit,
    };
    store::finish(client);
    exit
}

/// This program, also when its file has been replaced meanwhile.
fn own_program() -> std::io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}
