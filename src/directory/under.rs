//! The thread that waits for the sake of another process's hold: an entry in the directory, under an id that
//! follows from the hold's owner.
//!
//! A command under `leasehold run` keeps the lock of that program as long as it waits, and the two are clients
//! that do not know each other's threads. The waiting client knows the owner, by `LEASEHOLD_UNDER`, and writes
//! this entry; whoever follows a wait for that lock finds it by the owner. A list of clients passes it over,
//! since it has no `lease_ms`.

use super::lines::{Fields, Lines};
use crate::ident::{ClientId, Owner};

/// The id of the entry for what is done under the hold of `owner`.
pub(crate) fn id_under(owner: Owner) -> ClientId {
    ClientId::of_text(&["under ", &owner.to_string()])
}

/// The entry: this thread of this client waits.
pub(crate) fn written(owner: Owner, client: ClientId, thread: u64) -> String {
    let mut lines = Lines::new();
    lines.add("under", owner);
    lines.add("client", client);
    lines.add("by", thread);
    lines.into_text()
}

/// The client and its thread; `None`: it is no such entry, or another owner's.
pub(crate) fn read_under(owner: Owner, text: &str) -> Option<(ClientId, u64)> {
    let entry = Fields::of(text);
    let is_its = entry.text("under").as_deref() == Some(&*owner.to_string());
    let client = entry.text("client").filter(|_| is_its)?;
    Some((ClientId::read(&client)?, entry.number("by")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::ClientInfo;
    use std::time::Duration;

    #[test]
    fn an_entry_under_a_hold_is_read_as_it_was_written_and_is_no_client() {
        let [one, other] = [7, 8].map(|number| Owner::new(ClientId::random(), number));
        let waiter = ClientId::random();
        let text = written(one, waiter, 3);
        assert_eq!(read_under(one, &text), Some((waiter, 3)));
        assert_eq!(read_under(other, &text), None);
        assert_eq!(read_under(one, "under=x\nclient=y\nby=z\n"), None);
        assert!(ClientInfo::read(id_under(one), &text, Duration::ZERO).is_none());
        assert_ne!(id_under(one), id_under(other));
        assert_eq!(Owner::read(&one.to_string()), Some(one));
        assert_eq!(Owner::read("7"), None);
    }
}
