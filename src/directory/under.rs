//! The thread that waits on behalf of another process's hold: a directory entry under an id derived from the
//! hold's owner.
//!
//! The program `leasehold run` keeps its lock while its command waits for another one, as a different
//! client. The command's client learns the program's owner from `LEASEHOLD_UNDER` and writes this entry,
//! which leads the search for deadlocks from the owner to the waiting thread. Lists of clients skip it,
//! since it has no `lease_ms`.

use super::lines::{Fields, Lines};
use crate::ident::{ClientId, Owner};

pub(crate) fn id_under(owner: Owner) -> ClientId {
    ClientId::of_text(&["under ", &owner.to_string()])
}

pub(crate) fn written(owner: Owner, client: ClientId, thread: u64) -> String {
    let mut lines = Lines::new();
    lines.add("under", owner);
    lines.add("client", client);
    lines.add("by", thread);
    lines.into_text()
}

/// `None`: not such an entry of this owner.
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
    fn an_under_entry_round_trips_and_is_no_client() {
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
