//! The directory of clients, and the listing of locks, on several servers.
//!
//! Each server has every client's entry, so any server can answer for the directory. A server knows only the
//! locks that it granted, so the listing shows for each lock what a majority of the servers says.

use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::ident::{ClientId, LockName};
use crate::inspect::Inspection;
use crate::seam::directory::{Directory, Entry, Page, Place, Posted, Wanted};
use crate::seam::{Answer, Failure, Inspect, OpenStore};
use crate::time::Moment;
use crate::topologies::redlock::Redlock;
use crate::topologies::redlock::node::VotingNode;
use crate::topologies::redlock::votes::majority;

fn none<T>(words: &'static str) -> Answer<T> {
    Failure::refused(Error::new(ErrorKind::Unsupported, "directory", words))
}

impl Redlock {
    fn servers(&self) -> impl Iterator<Item = (&VotingNode, &OpenStore)> {
        self.monitor.nodes.iter().filter_map(|node| Some((node, node.ready().ok()?)))
    }

    fn directories(&self) -> impl Iterator<Item = (&VotingNode, &dyn Directory)> {
        self.servers().filter_map(|(node, store)| Some((node, store.capabilities.directory.as_deref()?)))
    }

    /// Whether a server that was listed earlier (`before`: addresses) has the lock with the same owners.
    fn is_listed_by(&self, before: &[String], name: &LockName, seen: &Inspection) -> bool {
        let mut before = self.servers().filter(|(node, _)| before.contains(&node.place));
        before.any(|(_, store)| {
            let other = store.describe(name, self.node_until(Moment::NEVER));
            other.is_ok_and(|other| other.is_held() && owners(&other).eq(owners(seen)))
        })
    }
}

fn owners(seen: &Inspection) -> impl Iterator<Item = &str> {
    seen.holders.iter().map(|one| one.owner.as_str())
}

fn away<T>(words: &'static str) -> Answer<T> {
    Failure::refused(Error::new(ErrorKind::Unreachable, "list", words))
}

impl Directory for Redlock {
    fn write(&self, entry: Entry<'_>, deadline: Moment) -> Answer<()> {
        let mut last = none("no server in use has a directory of clients");
        let mut failed = None;
        for (_, directory) in self.directories() {
            match directory.write(entry, self.node_until(deadline)) {
                Ok(()) => last = Ok(()),
                Err(failure) => failed = Some(failure),
            }
        }
        failed.map_or(last, Err)
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        // Errors are ignored, because an entry that stays ends with its lease.
        self.directories().for_each(|(_, one)| drop(one.remove(client, self.node_until(deadline))));
        Ok(())
    }

    /// Reads entries from one server, and those that it lacks, perhaps after a restart, from the next ones.
    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        let mut all = Page { found: vec![None; clients.len()], next: None, requests: 0, examined: 0 };
        for (_, directory) in self.directories() {
            let lacking = clients.iter().zip(&all.found).filter(|(_, posted)| posted.is_none());
            let lacking: Vec<ClientId> = lacking.map(|(client, _)| *client).collect();
            if lacking.is_empty() {
                break;
            }
            let Ok(page) = directory.read(&lacking, self.node_until(deadline)) else { continue };
            all.requests += page.requests;
            let mut found = page.found.into_iter();
            for place in all.found.iter_mut().filter(|place| place.is_none()) {
                *place = found.next().flatten();
            }
        }
        Ok(all)
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        // A listing continues on the server where it began, because a cursor is valid only on its own server.
        let begun = from.servers.as_ref().and_then(|servers| servers.first());
        let place = Place { servers: None, cursor: from.cursor.clone() };
        let mut last = away("the server that the list comes from is away");
        let is_it = |node: &VotingNode| begun.is_none_or(|place| *place == node.place);
        for (node, directory) in self.directories().filter(|(node, _)| is_it(node)) {
            last = directory.clients(&place, deadline);
            if let Ok(page) = &mut last {
                let on = |next| Place { servers: Some(vec![node.place.clone()]), ..next };
                page.next = page.next.take().map(on);
                break;
            }
        }
        last
    }

    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        // A server whose `NameMapper` changes names cannot list the names that users gave.
        let listable = || self.directories().filter(|(node, _)| node.map_names.is_none());
        let all = self.monitor.nodes.len();
        // Any `enough` servers include one of every majority, so together they list every held lock.
        let enough = all - majority(all) + 1;
        if self.monitor.nodes.iter().filter(|node| node.map_names.is_none()).count() < enough {
            return none("too many servers have other names for locks: some locks would be missing");
        }
        if from.servers.is_none() && listable().count() < enough {
            return away("too many servers are away: some locks would be missing");
        }
        // The servers of this listing. The first `asked` of them are already listed completely.
        let mut servers: Vec<String> =
            from.servers.clone().unwrap_or_else(|| listable().map(|(node, _)| node.place.clone()).collect());
        let (asked, cursor) = from.cursor.split_once(' ').unwrap_or(("0", ""));
        let asked: usize = asked.parse().unwrap_or(0);
        let found = listable().find(|(node, _)| servers.get(asked) == Some(&node.place));
        let place = Place { servers: None, cursor: cursor.to_owned() };
        let answer = found.map_or_else(
            || away("a server that was about to be asked is away"),
            |(_, directory)| directory.locks(wanted, &place, deadline),
        );
        let mut page = match answer {
            Ok(page) => page,
            // A server that failed before its first page is left out, if enough others remain.
            Err(Failure::Refused(error) | Failure::Unknown(error))
                if cursor.is_empty() && servers.len() > enough && error.is_retryable() =>
            {
                servers.remove(asked);
                let place = Place { cursor: format!("{asked} "), servers: Some(servers) };
                let next =
                    place.servers.as_ref().is_some_and(|servers| asked < servers.len()).then_some(place);
                return Ok(Page { found: Vec::new(), next, requests: 1, examined: 0 });
            }
            failed => return failed,
        };
        let mut listed = Vec::new();
        for seen in page.found.iter().filter(|seen| seen.is_held()) {
            let name = LockName::new(&Arc::from(&*seen.name), format!("{}{}", wanted.prefix, seen.name));
            let Ok(name) = name else { continue };
            page.requests += u64::try_from(all + asked).unwrap_or(u64::MAX);
            if self.is_listed_by(servers.get(..asked).unwrap_or_default(), &name, seen) {
                continue;
            }
            // `describe` limits the time of each server, so a listing needs no common deadline.
            let agreed = Inspect::describe(self, &name, Moment::NEVER)?;
            // If the majority names other owners than this server, another server's page lists the lock.
            if owners(&agreed).eq(owners(seen)) {
                listed.push(agreed);
            }
        }
        page.found = listed;
        let (asked, cursor) =
            page.next.take().map_or((asked + 1, String::new()), |next| (asked, next.cursor));
        let cursor = format!("{asked} {cursor}");
        page.next = (asked < servers.len()).then_some(Place { cursor, servers: Some(servers) });
        Ok(page)
    }
}
