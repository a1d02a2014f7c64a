//! Lists the clients' entries and the locks, page by page.
//!
//! A client's entry is an ephemeral node below `/leasehold/%clients`.

use std::time::Duration;

use crate::ident::{ClientId, LockName};
use crate::inspect::Inspection;
use crate::seam::Answer;
use crate::seam::directory::{Directory, Entry, Page, Place, Posted, Wanted};
use crate::stores::zookeeper::answer::{Found, NoReply, Replied, failed, if_there, line_of};
use crate::stores::zookeeper::jute::{self, Mode, Operation, code};
use crate::stores::zookeeper::{ZooKeeperStore, path};
use crate::time::{Clock, Moment};

const PAGE: usize = 250;

/// An entry's remaining time, which ZooKeeper does not report. The maximum shows each entry as just written.
const UNKNOWN: Duration = Duration::MAX;

impl ZooKeeperStore {
    fn entry(&self, client: ClientId) -> String {
        format!("{}/{client}", path::of_clients(&self.session.address.chroot))
    }

    fn put_entry(&self, client: ClientId, text: &str, deadline: Moment) -> Found<()> {
        let path = self.entry(client);
        let data = text.as_bytes();
        if if_there(self.session.call(&Operation::SetData(&path, data), deadline))?.is_some() {
            return Ok(());
        }
        let create = Operation::Create { path: &path, data, mode: Mode::Ephemeral, access: self.access };
        self.create_in(&path::of_clients(&self.session.address.chroot), &create, deadline).map(drop)
    }

    fn entries(&self, clients: &[ClientId], deadline: Moment) -> Found<Vec<Option<Posted>>> {
        let paths: Vec<String> = clients.iter().map(|client| self.entry(*client)).collect();
        let looks: Vec<_> = paths.iter().map(|path| Operation::Data(path)).collect();
        let read = |outcome: Replied| match outcome {
            Ok(reply) => {
                let text = String::from_utf8(jute::data(&reply.body)?).ok();
                Ok(text.map(|text| Posted { text, remaining: UNKNOWN }))
            }
            Err(NoReply::Code(code::NO_NODE | code::NO_AUTH)) => Ok(None),
            Err(failure) => Err(failure),
        };
        self.session.call_all(&looks, deadline).into_iter().map(read).collect()
    }

    /// A page of names, and the page's last name if more names follow.
    fn children(&self, folder: &str, from: &str, deadline: Moment) -> Found<(Vec<String>, Option<String>)> {
        let reply = if_there(self.session.call(&Operation::Children(folder), deadline))?;
        let mut names = reply.map_or(Ok(Vec::new()), |reply| jute::children(&reply.body))?;
        names.retain(|name| from.is_empty() || name.as_str() > from);
        names.sort_unstable();
        let has_more = names.len() > PAGE;
        names.truncate(PAGE);
        let next = names.last().filter(|_| has_more).cloned();
        Ok((names, next))
    }

    fn entries_page(&self, from: &Place, deadline: Moment) -> Found<Page<(ClientId, Posted)>> {
        let folder = path::of_clients(&self.session.address.chroot);
        let (names, next) = self.children(&folder, &from.cursor, deadline)?;
        let clients: Vec<ClientId> = names.iter().filter_map(|name| ClientId::read(name)).collect();
        let posted = self.entries(&clients, deadline)?;
        let found = clients.into_iter().zip(posted).filter_map(|(client, posted)| Some((client, posted?)));
        Ok(Page::of(found.collect(), next, (1 + names.len(), names.len())))
    }

    fn locks_page(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Found<Page<Inspection>> {
        let each = deadline.since(Clock::System.now());
        let chroot = &self.session.address.chroot;
        let place = path::listed(chroot, wanted);
        let (children, next) = self.children(&place.folder, &from.cursor, deadline)?;
        let names = children.iter().filter_map(|child| {
            let name = wanted.lock(place.key_of(child)?)?;
            Some((self.path_of(&name).ok()?, name))
        });
        let names: Vec<(String, LockName)> = names.collect();
        let looks: Vec<_> = names.iter().map(|(path, _)| Operation::Children(path)).collect();
        let mut requests = 1 + looks.len();
        let mut found = Vec::new();
        for ((lock, name), reply) in names.iter().zip(self.session.call_all(&looks, deadline)) {
            let line = match reply {
                Ok(reply) => line_of(&reply)?,
                Err(NoReply::Code(code::NO_NODE | code::NO_AUTH)) => continue,
                Err(failure) => return Err(failure),
            };
            let holders = line.all().filter(|one| line.in_front_of(one).is_none()).count();
            if holders > 0 {
                requests += holders;
                // On a slow link one deadline would be too short for a page, so each lock has its own.
                match self.shown_line(name, lock, &line, false, Clock::System.after(each)) {
                    Ok(seen) => found.push(seen),
                    Err(NoReply::Code(code::NO_AUTH)) => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(Page::of(found, next, (requests, children.len())))
    }
}

fn worded<T>(found: Found<T>, action: &'static str) -> Answer<T> {
    found.map_err(|failure| failed(failure, action))
}

impl Directory for ZooKeeperStore {
    fn write(&self, entry: Entry<'_>, deadline: Moment) -> Answer<()> {
        worded(self.put_entry(entry.client, entry.text, deadline), "directory")
    }

    fn ends_entries(&self) -> bool {
        false
    }

    fn remove(&self, client: ClientId, deadline: Moment) -> Answer<()> {
        let removed = self.session.call(&Operation::Delete(&self.entry(client)), deadline);
        worded(if_there(removed).map(drop), "directory")
    }

    fn read(&self, clients: &[ClientId], deadline: Moment) -> Answer<Page<Option<Posted>>> {
        let found = self.entries(clients, deadline);
        worded(found.map(|found| Page::of(found, None, (clients.len(), 0))), "directory")
    }

    fn clients(&self, from: &Place, deadline: Moment) -> Answer<Page<(ClientId, Posted)>> {
        worded(self.entries_page(from, deadline), "clients")
    }

    fn locks(&self, wanted: &Wanted, from: &Place, deadline: Moment) -> Answer<Page<Inspection>> {
        worded(self.locks_page(wanted, from, deadline), "list")
    }
}
