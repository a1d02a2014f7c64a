//! `permits`: how many commands may run at a time under a name, for all who use it.

use leasehold::LockClient;
use serde_json::json;

use crate::args::{Common, Format, PermitsArgs};
use crate::exit::Exit;
use crate::say::{Say, json_text, plain, print_line};
use crate::store::{self, explain};

pub(crate) fn permits(common: &Common, args: &PermitsArgs) -> Exit {
    store::asked(common, |client, say| match act(client, common, args, say) {
        Ok(()) => Exit::Success,
        Err(error) => explain(&error, say),
    })
}

fn act(client: &LockClient, common: &Common, args: &PermitsArgs, say: Say) -> leasehold::Result<()> {
    let (name, semaphore) = (&args.name, client.get_expirable_semaphore(&args.name));
    if args.remove {
        let words = if semaphore.delete()? { "was removed" } else { "was not set up" };
        say.notice("removed", &format!("{name} {words}"), &json!({"name": name}));
        return Ok(());
    }
    if let Some(permits) = args.set {
        semaphore.set_permits(permits)?;
    }
    let (all, out) = (semaphore.permits()?, semaphore.acquired_permits()?);
    print_line(&match common.format {
        Format::Text => format!("{}: {all} permits, {out} of them out", plain(name)),
        Format::Json => json_text(&json!({"name": name, "permits": all, "out": out})),
    });
    Ok(())
}
