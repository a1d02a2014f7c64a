//! `permits`: how many commands may run at a time under a name, for all who use it.

use std::io::Write;

use serde_json::json;

use crate::args::{Common, Format, PermitsArgs};
use crate::exit::Exit;
use crate::say::{Say, json_text};
use crate::store::{self, explain};

/// Prints the number of permits, after it was changed or removed if that was asked for.
pub(crate) fn permits(common: &Common, args: &PermitsArgs) -> Exit {
    let say = Say::new(common);
    let client = match store::connect(common, say) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let semaphore = client.get_expirable_semaphore(&args.name);
    let act = || {
        if args.remove {
            let was_there = semaphore.delete()?;
            let words = if was_there { "was removed" } else { "was not set up" };
            say.notice("removed", &format!("{} {words}", args.name), &json!({"name": args.name}));
            return Ok(());
        }
        if let Some(permits) = args.set {
            semaphore.set_permits(permits)?;
        }
        let (all, out) = (semaphore.permits()?, semaphore.acquired_permits()?);
        let line = match common.format {
            Format::Text => format!("{}: {all} permits, {out} of them out\n", crate::say::plain(&args.name)),
            Format::Json => {
                format!("{}\n", json_text(&json!({"name": args.name, "permits": all, "out": out})))
            }
        };
        // A reader that has seen enough is no failure.
        drop(std::io::stdout().write_all(line.as_bytes()));
        Ok(())
    };
    let exit = act().map_or_else(|error| explain(&error, say), |()| Exit::Success);
    store::finish(client);
    exit
}
