//! The directory of clients on several servers, and the list of their locks.
//!
//! Each server has an entry of each client, so that any of them can be asked. Which locks there are, each server knows of those
//! that it granted; what a majority says of one is what is listed.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ident::{ClientId, LockName};
use crate::inspect::Inspection;
use crate::seam::directory::{Directory, Listing, Page, Place, Posted, Wanted, Written};
use crate::seam::inspection::Inspect;
use crate::seam::{Answer, Store};
use crate::time::{Clock, Moment};
use crate::topologies::redlock::Redlock;
use crate::topologies::redlock::node::VotingNode;
use crate::topologies::redlock::votes::majority;

fn none<T>(words: &'static str) -> Answer<T> {
    Answer::Refused(Error::new(ErrorKind::Unsupported, "directory", words))
}

impl Redlock {
    fn directories(&self) -> impl Iterator<Item = (&VotingNode, Arc<dyn Store>)> {
        self.shared.nodes.iter().filter_map(|node| Some((node, Arc::clone(node.ready().ok()?))))
    }

    /// Has `ask` ask one server after the other until one answers.
    fn first_that<T>(
        &self,
        deadline: Moment,
        ask: impl Fn(&dyn Directory, Moment) -> Answer<T>,
    ) -> Answer<T> {
        let mut last = none("none of the servers can be asked now");
        for (_, store) in self.directories() {
            let Some(directory) = store.capabilities().directory else { continue };
            last = ask(directory, deadline.min(Clock::System.after(self.shared.node_timeout)));
            if matches!(last, Answer::Done(_)) {
                break;
            }
        }
        last
    }

    /// Whether this server is the first of those that show a lock, so that it is listed once.
    fn is_first_with(&self, at: &VotingNode, name: &LockName, deadline: Moment) -> bool {
        let before = self.directories().take_while(|(node, _)| !std::ptr::eq(*node, at));
        let mut before = before.filter(|(node, _)| node.has_names_as_given());
        let deadline = deadline.min(Clock::System.after(self.shared.node_timeout));
        !before
            .any(|(_, store)| matches!(store.describe(name, deadline), Answer::Done(seen) if seen.is_held()))
    }
}

impl Directory for Redlock {
    fn write(&self, client: ClientId, text: &str, lease: Duration, deadline: Moment, done: Written) {
        // The first one's answer stands for all: they have users with the same rights.
        let mut done = Some(done);
        for (_, store) in self.directories() {
            let Some(directory) = store.capabilities().directory else { continue };
            let done = done.take().unwrap_or_else(|| Box::new(drop));
            directory.write(client, text, lease, deadline, done);
        }
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        for (_, store) in self.directories() {
            if let Some(directory) = store.capabilities().directory {
                // One that stays ends with its lease.
                drop(directory.remove(client, deadline.min(Clock::System.after(self.shared.node_timeout))));
            }
        }
        Answer::Done(())
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        self.first_that(deadline, |directory, deadline| directory.read(clients, deadline))
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        // A list goes on where it began: another server's pages are others.
        let begun = from.servers.as_ref().and_then(|servers| servers.first());
        let found = self.directories().find(|(node, _)| begun.is_none_or(|place| *place == node.place));
        let Some((node, store)) = found else { return none("the server that the list came from is away") };
        let Some(directory) = store.capabilities().directory else { return none("it has no directory") };
        let place = Place { servers: None, cursor: from.cursor.clone() };
        match directory.clients(&place, deadline) {
            Answer::Done(mut page) => {
                page.next = page.next.map(|next| Place { servers: Some(vec![node.place.clone()]), ..next });
                Answer::Done(page)
            }
            failed => failed,
        }
    }
}

impl Listing for Redlock {
    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        // By a server that has other names for locks, they cannot be listed.
        let listable = || self.directories().filter(|(node, _)| node.has_names_as_given());
        let all = self.shared.nodes.len();
        if from.servers.is_none() && listable().count() <= all - majority(all) {
            return none(
                "too many servers are away, or have other names for locks: some locks would be missing",
            );
        }
        let mut servers =
            from.servers.clone().unwrap_or_else(|| listable().map(|(node, _)| node.place.clone()).collect());
        let Some((node, store)) = listable().find(|(node, _)| servers.first() == Some(&node.place)) else {
            return none("a server that was about to be asked is away");
        };
        let Some(listing) = store.capabilities().listing else { return none("it cannot list its locks") };
        let place = Place { servers: None, cursor: from.cursor.clone() };
        let page = match listing.locks(wanted, &place, deadline) {
            Answer::Done(page) => page,
            failed => return failed,
        };
        let mut listed = Page { found: Vec::new(), next: None, ..page };
        for seen in page.found.into_iter().filter(Inspection::is_held) {
            let name = LockName::new(&Arc::from(&*seen.name), format!("{}{}", wanted.prefix, seen.name));
            let Ok(name) = name else { continue };
            listed.requests += u64::try_from(self.shared.nodes.len()).unwrap_or(u64::MAX);
            if !self.is_first_with(node, &name, deadline) {
                continue;
            }
            match Inspect::describe(self, &name, deadline) {
                Answer::Done(seen) => listed.found.push(seen),
                Answer::Refused(error) | Answer::Unknown(error) => return Answer::Refused(error),
            }
        }
        let cursor = page.next.map_or_else(String::new, |next| next.cursor);
        if cursor.is_empty() {
            servers.remove(0);
        }
        listed.next = (!servers.is_empty()).then_some(Place { servers: Some(servers), cursor });
        Answer::Done(listed)
    }
}
